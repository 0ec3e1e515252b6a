//! Search for the rate of a path by packet trains.
//!
//! A train is a short burst of packets at the pace under test. Its arrival rate is compared with its actual *send*
//! rate. If the host sends below the pace, or has too little data, the train shows only that the path carries what
//! arrived.

use std::time::Duration;

use super::evidence::Losses;
use crate::{BitRate, ByteCount};

/// Train that one lane must send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOrder {
    /// Pace of the train.
    pub pace: BitRate,
    /// Size of the whole train.
    pub bytes: ByteCount,
}

/// A packet train in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    /// Pace under test, bytes/s.
    pub(super) pace: f64,
    /// Size in bytes. It is fixed, also when path MTU discovery finds larger packets meanwhile.
    pub(super) bytes: u64,
    /// Arrival rate, bytes/s: the highest measured since half of the train arrived. The acknowledgement of the last
    /// packets waits for more packets, so it does not measure the path.
    pub(super) came: f64,
    /// Rate that the path is known to carry, bytes/s.
    pub(super) proven: f64,
    /// Repeats of this train because a host stalled while it arrived.
    pub(super) repeats: u32,
    /// Lowest arrival rate of the repeated trains, bytes/s; infinite without one.
    pub(super) least: f64,
    /// Trains in a row with too little data.
    pub(super) starved: u32,
    /// Repeats because this host was too slow.
    pub(super) slow_starts: u32,
    /// Restarts after a pause of the lane.
    pub(super) pauses: u32,
}

/// Evidence of one train, once all of it has arrived or is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainEvidence {
    /// Requested pace, bytes/s.
    pub(super) asked: f64,
    /// Actual send rate, bytes/s.
    pub(super) sent: f64,
    /// Arrival rate, bytes/s; 0 if too few packets arrived to measure it.
    pub(super) came: f64,
    pub(super) losses: Losses,
    /// True if a host stalled while the train arrived.
    pub(super) has_stall: bool,
    /// True if the lane ran out of data.
    pub(super) is_starved: bool,
    pub(super) repeats: u32,
    pub(super) slow_starts: u32,
}

/// Verdict on a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainVerdict {
    /// The train arrived at the requested pace: a faster one is next.
    AsFast,
    /// The train arrived more slowly than it was sent: its arrival rate is the rate of the path.
    Slower,
    /// This host was too slow, and all of the train arrived as fast as it was sent: the train is repeated.
    SlowStart,
    /// As `SlowStart`, after [`SLOW_STARTS`] repeats: this host sends no faster.
    HostBound,
    /// The lane had too little data to send.
    Starved,
    /// The train is no evidence: it is repeated.
    Blurred,
    /// As `Blurred`, after [`TRAIN_REPEATS`] repeats: the slowest arrival rate counts.
    BlurredAgain,
}

impl TrainEvidence {
    /// Classifies the train.
    pub(super) fn classify(&self) -> TrainVerdict {
        // Many losses show that the train was too fast, even if a host stalled.
        let is_hopeless = self.losses.lost >= self.losses.packets * LOST_MOST;
        match self {
            // A train with too little data spreads over acknowledgements at random: its arrival rate shows nothing.
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
    /// Returns a train at `pace` bytes/s, in packets of at most `packet_bytes`; the path carries at least `proven`
    /// bytes/s.
    pub(super) fn new(pace: f64, packet_bytes: u64, proven: f64) -> Self {
        let bytes = (pace * TRAIN_TIME.as_secs_f64()) as u64;
        let bytes = bytes.min(TRAIN_BYTES_MAX).max(TRAIN_PACKETS_MIN * packet_bytes);
        Self { pace, bytes, came: 0.0, proven, repeats: 0, least: f64::INFINITY, starved: 0, slow_starts: 0, pauses: 0 }
    }
}

/// Duration of a train at its pace. Reason: busy hosts, and acknowledgements for 50 packets, blur some milliseconds.
const TRAIN_TIME: Duration = Duration::from_millis(32);

/// Shortest train, in packets: three acknowledgements.
const TRAIN_PACKETS_MIN: u64 = 128;

/// Longest train, in bytes. Reason: half of the receive buffer of our UDP sockets, so that a host that is busy for a
/// moment drops nothing of it. Equals 10 Gbit/s for 10 ms.
const TRAIN_BYTES_MAX: u64 = 12_000_000;

/// Part of a train's pace that its send or arrival rate must reach to keep up.
const KEEPS_UP: f64 = 0.7;

/// Repeats of a train because a host stalled. Guess.
const TRAIN_REPEATS: u32 = 3;

/// Repeats of a train because this host was too slow. Reason: the first packets of a session wait for a file that
/// opens, for memory used for the first time and for threads that start. Each repeat costs a round trip, which is less
/// than the cost of a search that ends too early.
const SLOW_STARTS: u32 = 2;

/// Restarts of a train after a pause of its lane. Reason: a session first sends a few packets, and then pauses for a
/// read. A lane that pauses all the time sends messages, and must not send at the pace of a train forever.
pub(super) const TRAIN_PAUSES: u32 = 4;

/// Loss of a train, as a fraction, from which it was too fast, even if a host stalled.
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
        // A host that sends 40 of 100 shows nothing about a path on which 40 arrive.
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
