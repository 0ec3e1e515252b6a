//! What others do on the path, as far as it can be told from here.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::evidence::Losses;

/// Whether a queue is that of others, and the rate that is not gone below beside them.
///
/// A queue of our own goes when less is sent than comes through. Flows that send whenever a queue has room keep it full, whatever
/// we do: as much comes as we send, but for what is lost, round after round, and who yields to such a queue yields for good. So beside them we keep
/// [`PART`] of the most that the path has carried; but on these grounds never more than [`TCP_FLOWS`] TCP flows would take at the losses
/// that are seen, since several senders that each insist on their part may insist on more than there is.
///
/// Cost: O(1) per call. Rates are bytes per second on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbours {
    losses: LossEvents,
    /// What came or was lost as a part of what was sent, while a queue stood: the mean of recent rounds.
    balance: f64,
    /// Rounds in a row in which it stood.
    queued_rounds: u32,
    /// Packets were lost lately, as they are where flows keep a queue full.
    is_losing: bool,
    /// The most that came, while it is believed.
    capacity: f64,
}

/// What one round has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// A queue stood during all of it.
    pub(super) is_queueing: bool,
    pub(super) sent: f64,
    pub(super) came: f64,
    pub(super) losses: Losses,
    pub(super) length: Duration,
}

impl Neighbours {
    pub(super) fn new() -> Self {
        Self {
            losses: LossEvents::default(),
            balance: BALANCE_DRAINING,
            queued_rounds: 0,
            is_losing: false,
            capacity: 0.0,
        }
    }

    /// Packets have been heard of, whatever rate they were sent at; `rtt`: the latest.
    pub(super) fn hear(&mut self, now: Instant, heard: Losses, rtt: Option<Duration>) {
        self.losses.add(now, heard, rtt);
    }

    /// The path has been seen to carry `came`.
    pub(super) fn note_capacity(&mut self, came: f64) {
        self.capacity = self.capacity.max(came);
    }

    /// A round is over.
    pub(super) fn look(&mut self, now: Instant, round: Look) {
        self.is_losing = self.losses.last.is_some_and(|last| now.saturating_duration_since(last) < LOSSES_APART);
        let came = round.came.min(round.sent);
        if round.is_queueing {
            self.queued_rounds += 1;
            let arrived_or_lost = round.came / (1.0 - round.losses.fraction()).max(1.0 - LOST_MOST);
            let rounds = f64::from((self.queued_rounds + 1).min(BALANCE_ROUNDS));
            self.balance += (arrived_or_lost / round.sent - self.balance) / rounds;
            if round.losses.exceeds(LOST_MOST) {
                self.capacity = came;
            }
        } else {
            (self.queued_rounds, self.balance) = (0, BALANCE_DRAINING);
            self.capacity *= (-round.length.div_duration_f64(CAPACITY_FADES)).exp();
        }
        self.note_capacity(came);
    }

    /// Whether a queue stands that others keep full.
    pub(super) fn are_queueing(&self) -> bool {
        self.is_losing && self.queued_rounds > 0 && BALANCE_OTHERS.contains(&self.balance)
    }

    /// The rate that is not gone below beside those that keep a queue full. `packet_bytes`: a full packet.
    pub(super) fn our_part(&self, packet_bytes: u64) -> f64 {
        let as_tcp = self.losses.tcp_rate().map_or(f64::INFINITY, |packets| packets * TCP_FLOWS * packet_bytes as f64);
        as_tcp.min(self.capacity * PART)
    }
}

/// Loss events, which are losses within one round trip, and the packets between them (RFC 5348, section 5).
#[derive(Clone, Copy, Debug, Default)]
struct LossEvents {
    /// Packets from each event to the next, the latest first.
    intervals: [f64; INTERVALS],
    /// How many of these are known.
    known: usize,
    /// Packets since the last event.
    open: f64,
    last: Option<Instant>,
    /// Smoothed, in seconds; 0 before the first sample.
    rtt: f64,
}

impl LossEvents {
    fn add(&mut self, now: Instant, heard: Losses, rtt: Option<Duration>) {
        if let Some(rtt) = rtt.map(|rtt| rtt.as_secs_f64()) {
            self.rtt = if self.rtt == 0.0 { rtt } else { self.rtt + (rtt - self.rtt) * RTT_SMOOTHED };
        }
        self.open += heard.packets;
        let is_same = self.last.is_some_and(|last| now.saturating_duration_since(last).as_secs_f64() < self.rtt);
        if heard.lost == 0.0 || is_same {
            return;
        }
        if self.last.is_some() {
            self.intervals.rotate_right(1);
            self.intervals[0] = self.open;
            self.known = (self.known + 1).min(INTERVALS);
        }
        (self.open, self.last) = (0.0, Some(now));
    }

    /// Mean number of packets between events, that since the last one included where it is many; `None` before two of them.
    fn interval(&self) -> Option<f64> {
        let mut with_open = self.intervals;
        with_open.rotate_right(1);
        with_open[0] = self.open;
        let known = self.known;
        (known > 0).then(|| weighted_mean(&self.intervals[..known]).max(weighted_mean(&with_open[..known])))
    }

    /// Packets per second of one TCP flow with these losses: CUBIC, or Reno where that is faster (RFC 9438, sections 4.3 and 5.1).
    fn tcp_rate(&self) -> Option<f64> {
        let interval = self.interval()?.max(1.0);
        let reno = (1.5 * interval).sqrt();
        let cubic = 1.054 * (self.rtt * interval).powf(0.75);
        Some(reno.max(cubic) / self.rtt)
    }
}

/// The mean of the latest intervals, of which older ones count for less (RFC 5348, section 5.4).
fn weighted_mean(intervals: &[f64]) -> f64 {
    let sum: f64 = intervals.iter().zip(WEIGHTS).map(|(packets, weight)| packets * weight).sum();
    sum / WEIGHTS[..intervals.len()].iter().sum::<f64>()
}

/// The part of what the path has carried that is kept beside others. Reason: half of it, and a tenth of that since what came most came
/// beside others too where they were here first.
const PART: f64 = 0.55;

/// What we take beside others for our own is at most what this many TCP flows would. Reason: other movers of files open as many and more.
const TCP_FLOWS: f64 = 4.0;

/// What comes of what is sent while a queue of our own is drained: it is sent at 0.95 of what the path carries.
const BALANCE_DRAINING: f64 = 1.0 / 0.95;

/// What comes or is lost of what is sent while others keep a queue full. More of it is ours and goes; less comes through a path that has
/// become slower.
const BALANCE_OTHERS: Range<f64> = 0.9..1.04;

/// Flows that keep a queue full lose packets, and so do we, at least this often: over a long path of 1 Gbit/s one flow needs half a minute to
/// fill a queue again. Reason: a path that has become half as fast behind a deep buffer looks like them, but loses nothing.
const LOSSES_APART: Duration = Duration::from_secs(60);

/// How many rounds count. Reason: a round of 24 packets is off by a tenth, and the queue of a flow that yields and grows again by as much.
const BALANCE_ROUNDS: u32 = 16;

/// Others do not take more of what we send than this: the path has become slower.
const LOST_MOST: f64 = 0.3;

/// How fast it is forgotten that a path has carried more, while no queue stands. Guess.
const CAPACITY_FADES: Duration = Duration::from_secs(300);

/// Intervals between loss events that count, and for how much (RFC 5348, section 5.4).
const INTERVALS: usize = 8;
const WEIGHTS: [f64; INTERVALS] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// The part of a new sample in the smoothed RTT (RFC 5348, section 4.3).
const RTT_SMOOTHED: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn heard(packets: u32, lost: u32) -> Losses {
        Losses { packets: f64::from(packets), lost: f64::from(lost) }
    }

    /// One loss event in every `interval` packets, of which `losses` are lost within a round trip.
    fn losing(interval: u32, losses: u32) -> LossEvents {
        let (mut events, start) = (LossEvents::default(), Instant::now());
        for event in 0..20 {
            let at = start + RTT * 10 * event;
            events.add(at, heard(interval + 1 - losses, 1), Some(RTT));
            (1..losses).for_each(|_| events.add(at + RTT / 2, heard(1, 1), Some(RTT)));
        }
        events
    }

    #[test]
    fn losses_within_a_round_trip_are_one_event() {
        assert_eq!((losing(200, 1).interval(), losing(200, 5).interval()), (Some(200.0), Some(200.0)));
    }

    #[test]
    fn a_tcp_flow_has_the_rate_that_the_standard_says() {
        // RFC 9438, table 1 (100 ms): an average window of 12 packets at a loss of 0.01, of 187 at 0.0001, where CUBIC is as Reno at 0.01.
        for (interval, window) in [(100, 12.0), (10_000, 187.0)] {
            let rate = losing(interval, 1).tcp_rate().unwrap() * RTT.as_secs_f64();
            assert!((rate / window - 1.0).abs() < 0.06, "{rate}");
        }
        assert!(LossEvents::default().tcp_rate().is_none(), "nothing was lost");
    }

    fn look(is_queueing: bool, sent: f64, came: f64, losses: Losses) -> Look {
        Look { is_queueing, sent, came, losses, length: RTT }
    }

    #[test]
    fn a_queue_that_goes_when_less_is_sent_is_not_that_of_others() {
        let (mut neighbours, now) = (Neighbours::new(), Instant::now());
        (0..100).for_each(|_| neighbours.look(now, look(true, 95.0, 95.0, heard(100, 0))));
        assert!(!neighbours.are_queueing(), "nothing was ever lost");
        neighbours.hear(now, heard(100, 1), Some(RTT));
        let mut stands = |now: Instant, came: f64| {
            (0..100).for_each(|_| neighbours.look(now, look(true, 95.0, came, heard(100, 0))));
            neighbours.are_queueing()
        };
        assert!(!stands(now, 100.0));
        assert!(stands(now, 95.0));
        assert!(!stands(now + LOSSES_APART, 95.0), "flows that keep a queue full lose packets");
        assert!(stands(now, 95.0));
        neighbours.look(now, look(false, 95.0, 95.0, heard(100, 0)));
        assert!(!neighbours.are_queueing(), "the queue is gone");
    }

    #[test]
    fn half_of_what_came_is_ours_until_the_path_is_seen_to_be_slower() {
        let (mut neighbours, now) = (Neighbours::new(), Instant::now());
        neighbours.note_capacity(1000.0);
        (0..1000).for_each(|_| neighbours.look(now, look(true, 500.0, 450.0, heard(100, 10))));
        assert_eq!(neighbours.our_part(1), 1000.0 * PART, "what is lost to others changes nothing");
        neighbours.look(now, look(true, 500.0, 200.0, heard(100, 60)));
        assert_eq!(neighbours.our_part(1), 200.0 * PART);
        // Losses in each round trip: as four TCP flows would.
        neighbours.losses = losing(10, 1);
        neighbours.note_capacity(1e6);
        assert_eq!(neighbours.our_part(1), neighbours.losses.tcp_rate().unwrap() * TCP_FLOWS);
    }
}
