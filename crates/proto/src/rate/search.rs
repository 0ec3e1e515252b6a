//! Search for the rate of a path by packet trains.
//!
//! A train is a short burst of packets at a pace that is tried. It is judged by how fast it arrived beside how fast it was *sent*: a host
//! that sends more slowly than its pace, or has too little to send, shows nothing about the path beyond what arrived.

use std::time::Duration;

use super::evidence::Losses;

/// A packet train under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// Pace that is tried, bytes/s.
    pub(super) pace: f64,
    /// Size in bytes. It stays when larger packets are found to pass meanwhile.
    pub(super) bytes: u64,
    /// Rate at which it arrives, bytes/s: the highest measured since half of it arrived. The acknowledgement of the last packets waits
    /// for more packets and does not measure the path.
    pub(super) came: f64,
    /// Rate that the path is known to carry, bytes/s.
    pub(super) proven: f64,
    /// Times that it was sent again because a host stalled while it arrived.
    pub(super) repeats: u32,
    /// Lowest arrival rate of those, bytes/s; infinite without one.
    pub(super) least: f64,
    /// Trains in a row that had too little data.
    pub(super) starved: u32,
    /// Times that this host was too slow for it.
    pub(super) slow_starts: u32,
    /// Times that it began anew behind a pause of its lane.
    pub(super) pauses: u32,
}

/// Evidence of one train, when all of it has arrived or is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainEvidence {
    /// Pace asked for, the pace of departure and that of arrival, bytes/s; 0 where too few packets arrived to tell.
    pub(super) asked: f64,
    pub(super) sent: f64,
    pub(super) came: f64,
    pub(super) losses: Losses,
    /// A host stalled while it arrived.
    pub(super) has_stall: bool,
    /// The lane ran out of data.
    pub(super) is_starved: bool,
    pub(super) repeats: u32,
    pub(super) slow_starts: u32,
}

/// Verdict on a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainVerdict {
    /// It arrived as fast as it was asked to be: a faster one is next.
    AsFast,
    /// It arrived more slowly than it was sent: its arrival rate is that of the path.
    Slower,
    /// This host was too slow for it, and all of it arrived as fast as it was sent: once more.
    SlowStart,
    /// The same after [`SLOW_STARTS`] of them: this host sends no faster.
    HostBound,
    /// There was too little to send.
    Starved,
    /// It says nothing: the same train again.
    Blurred,
    /// The same after [`TRAIN_REPEATS`] of them: the slowest arrival is believed.
    BlurredAgain,
}

impl TrainEvidence {
    /// Classifies a train.
    pub(super) fn classify(&self) -> TrainVerdict {
        // Many losses show that it was too fast, whatever stalled.
        let is_hopeless = self.losses.lost >= self.losses.packets * LOST_MOST;
        match self {
            // What trickles is spread over acknowledgements at random: how fast it arrived says nothing.
            _ if self.is_starved && !is_hopeless => TrainVerdict::Starved,
            _ if !self.has_stall && self.came > 0.0 => self.classify_measured(),
            _ if self.repeats >= TRAIN_REPEATS || is_hopeless => TrainVerdict::BlurredAgain,
            _ => TrainVerdict::Blurred,
        }
    }

    fn classify_measured(&self) -> TrainVerdict {
        match self {
            _ if self.came < self.sent.min(self.asked) * KEEPS_UP => TrainVerdict::Slower,
            _ if self.sent >= self.asked * KEEPS_UP => TrainVerdict::AsFast,
            _ if self.slow_starts < SLOW_STARTS => TrainVerdict::SlowStart,
            _ => TrainVerdict::HostBound,
        }
    }
}

impl Train {
    /// A train at `pace` bytes/s, in packets of at most `packet_bytes`; the path is known to carry `proven` bytes/s.
    pub(super) fn new(pace: f64, packet_bytes: u64, proven: f64) -> Self {
        let bytes = (pace * TRAIN_TIME.as_secs_f64()) as u64;
        let bytes = bytes.min(TRAIN_BYTES_MAX).max(TRAIN_PACKETS_MIN * packet_bytes);
        Self { pace, bytes, came: 0.0, proven, repeats: 0, least: f64::INFINITY, starved: 0, slow_starts: 0, pauses: 0 }
    }
}

/// Duration of a train at its pace. Reason: busy hosts and acknowledgements for 50 packets blur some milliseconds.
const TRAIN_TIME: Duration = Duration::from_millis(32);

/// Shortest train in packets: three acknowledgements.
const TRAIN_PACKETS_MIN: u64 = 128;

/// Longest train. Reason: half of what the receive buffer of our UDP sockets holds, so that a host that is busy for a moment drops
/// nothing of it; 10 Gbit/s for 10 ms.
const TRAIN_BYTES_MAX: u64 = 12_000_000;

/// Share of its pace at which a train keeps up.
const KEEPS_UP: f64 = 0.7;

/// Times that a train is sent again because a host stalled. Guess.
const TRAIN_REPEATS: u32 = 3;

/// Times that a train is sent again because this host was too slow for it. Reason: the first packets of a session meet a file that just
/// opens, memory that is used for the first time and threads that just start; a round trip each is less than what a search that ended there
/// costs.
const SLOW_STARTS: u32 = 2;

/// Times that a train begins anew behind a pause of its lane. Reason: what a session says first is a few packets and a pause of a read; a
/// lane that pauses all the time has messages, and what goes at the pace of a train must end.
pub(super) const TRAIN_PAUSES: u32 = 4;

/// Share of a train above which losses show that it was too fast, whatever stalled.
const LOST_MOST: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(asked: f64, sent: f64, came: f64) -> TrainEvidence {
        let losses = Losses { packets: 128.0, lost: 0.0 };
        TrainEvidence {
            asked,
            sent,
            came,
            losses,
            has_stall: false,
            is_starved: false,
            repeats: 0,
            slow_starts: SLOW_STARTS,
        }
    }

    #[test]
    fn a_train_is_judged_by_what_was_sent_of_it() {
        let verdict = |asked, sent, came| evidence(asked, sent, came).classify();
        assert_eq!(verdict(100.0, 100.0, 95.0), TrainVerdict::AsFast);
        assert_eq!(verdict(100.0, 100.0, 60.0), TrainVerdict::Slower);
        // A host that sends 40 of 100 shows nothing of a path on which 40 arrive.
        assert_eq!(verdict(100.0, 40.0, 38.0), TrainVerdict::HostBound);
        assert_eq!(verdict(100.0, 40.0, 20.0), TrainVerdict::Slower);
        let first = TrainEvidence { slow_starts: 0, ..evidence(100.0, 40.0, 38.0) };
        assert_eq!(first.classify(), TrainVerdict::SlowStart, "the next one may be faster");
    }

    #[test]
    fn too_little_to_send_is_no_slow_path() {
        let starved = TrainEvidence { is_starved: true, ..evidence(100.0, 5.0, 5.0) };
        assert_eq!(starved.classify(), TrainVerdict::Starved);
        assert_eq!(TrainEvidence { came: 0.0, ..starved }.classify(), TrainVerdict::Starved);
        assert_eq!(TrainEvidence { came: 2.0, ..starved }.classify(), TrainVerdict::Starved, "by chance");
        let flooded = Losses { packets: 20.0, lost: 10.0 };
        assert_eq!(TrainEvidence { losses: flooded, ..starved }.classify(), TrainVerdict::HostBound);
    }

    #[test]
    fn a_train_that_met_a_stall_is_sent_again_but_not_for_ever() {
        let stalled = TrainEvidence { has_stall: true, ..evidence(100.0, 100.0, 30.0) };
        assert_eq!(stalled.classify(), TrainVerdict::Blurred);
        assert_eq!(TrainEvidence { repeats: TRAIN_REPEATS, ..stalled }.classify(), TrainVerdict::BlurredAgain);
        let flooded = Losses { packets: 128.0, lost: 64.0 };
        assert_eq!(TrainEvidence { losses: flooded, ..stalled }.classify(), TrainVerdict::BlurredAgain);
    }

    #[test]
    fn a_train_fits_into_the_buffer_of_a_receiving_host() {
        assert_eq!(Train::new(6.25e6, 1500, 0.0).bytes, 200_000);
        assert_eq!(Train::new(1e5, 1500, 0.0).bytes, 192_000, "three acknowledgements");
        assert_eq!(Train::new(3.2e9, 9000, 0.0).bytes, TRAIN_BYTES_MAX);
    }
}
