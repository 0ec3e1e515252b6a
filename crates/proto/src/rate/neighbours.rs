//! Competing flows on the path, as far as the acknowledgements of this sender show them.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::evidence::Losses;

/// Detector of queues that competing flows keep full, and the rate that is kept beside them.
///
/// A queue of our own drains when we send less than the path delivers. Competing flows that send whenever a queue has
/// room keep it full at any rate of ours. In every round all our packets arrive, except for losses. A sender that
/// yields to such a queue never gets its rate back. So beside them we keep [`PART`] of the highest rate that the path
/// has carried. This floor is never above the rate of [`TCP_FLOWS`] TCP flows at the observed losses. Reason: the
/// floors of several senders may together exceed the path.
///
/// Cost: O(1) per call. Rates are bytes per second on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbours {
    losses: LossEvents,
    /// Arrived or lost packets as a part of sent ones while a queue existed: mean of recent rounds.
    balance: f64,
    /// Rounds in a row with a queue.
    queued_rounds: u32,
    /// True if packets were lost lately. Flows that keep a queue full cause losses.
    is_losing: bool,
    /// Highest delivery rate; it fades while no queue exists.
    capacity: f64,
}

/// Result of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// True if a queue existed during the whole round.
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

    /// Records acknowledged and lost packets of any epoch; `rtt`: the latest.
    pub(super) fn hear(&mut self, now: Instant, heard: Losses, rtt: Option<Duration>) {
        self.losses.add(now, heard, rtt);
    }

    /// Records that the path has carried `came`.
    pub(super) fn note_capacity(&mut self, came: f64) {
        self.capacity = self.capacity.max(came);
    }

    /// Processes a round that is over.
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

    /// Returns true if competing flows keep a queue full.
    pub(super) fn are_queueing(&self) -> bool {
        self.is_losing && self.queued_rounds > 0 && BALANCE_OTHERS.contains(&self.balance)
    }

    /// Returns the lower bound of the rate beside flows that keep a queue full. `packet_bytes`: size of a full packet.
    pub(super) fn our_part(&self, packet_bytes: u64) -> f64 {
        let as_tcp = self.losses.tcp_rate().map_or(f64::INFINITY, |packets| packets * TCP_FLOWS * packet_bytes as f64);
        as_tcp.min(self.capacity * PART)
    }
}

/// Loss events (losses within one round trip) and the packets between them (RFC 5348, section 5).
#[derive(Clone, Copy, Debug, Default)]
struct LossEvents {
    /// Packets from each event to the next, the latest first.
    intervals: [f64; INTERVALS],
    /// Number of valid intervals.
    known: usize,
    /// Packets since the last event.
    open: f64,
    last: Option<Instant>,
    /// Smoothed round-trip time in seconds; 0 before the first sample.
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

    /// Returns the mean number of packets between events; `None` before two events. The open interval since the last
    /// event counts if it raises the mean.
    fn interval(&self) -> Option<f64> {
        let mut with_open = self.intervals;
        with_open.rotate_right(1);
        with_open[0] = self.open;
        let known = self.known;
        (known > 0).then(|| weighted_mean(&self.intervals[..known]).max(weighted_mean(&with_open[..known])))
    }

    /// Returns the packets per second of one TCP flow at these losses: CUBIC, or Reno where that is faster (RFC 9438,
    /// sections 4.3 and 5.1).
    fn tcp_rate(&self) -> Option<f64> {
        let interval = self.interval()?.max(1.0);
        let reno = (1.5 * interval).sqrt();
        let cubic = 1.054 * (self.rtt * interval).powf(0.75);
        Some(reno.max(cubic) / self.rtt)
    }
}

/// Returns the mean of the latest intervals; older ones have a lower weight (RFC 5348, section 5.4).
fn weighted_mean(intervals: &[f64]) -> f64 {
    let sum: f64 = intervals.iter().zip(WEIGHTS).map(|(packets, weight)| packets * weight).sum();
    sum / WEIGHTS[..intervals.len()].iter().sum::<f64>()
}

/// Part of the highest delivery rate that is kept beside competing flows. Reason: half of it, plus a tenth of that
/// half. Where other flows came first, they have already reduced the highest rate that was measured.
const PART: f64 = 0.55;

/// TCP flows whose rate bounds our part beside competing flows. Reason: other file transfer tools open as many or more.
const TCP_FLOWS: f64 = 4.0;

/// Value of `balance` while a queue of our own drains: the send rate is 0.95 of the path's rate.
const BALANCE_DRAINING: f64 = 1.0 / 0.95;

/// Range of `balance` while competing flows keep a queue full. Above the range the queue is our own and drains. Below
/// it the path has become slower.
const BALANCE_OTHERS: Range<f64> = 0.9..1.04;

/// Longest time between losses beside flows that keep a queue full; such flows and we lose packets at least this often.
/// Over a long path of 1 Gbit/s one flow needs half a minute to fill a queue again. Reason: a path that has become half
/// as fast behind a deep buffer looks the same, but loses nothing.
const LOSSES_APART: Duration = Duration::from_secs(60);

/// Rounds that count. Reason: a round of 24 packets has an error of a tenth. The queue of a flow that yields and grows
/// again varies as much.
const BALANCE_ROUNDS: u32 = 16;

/// Highest loss that competing flows cause: above it the path has become slower.
const LOST_MOST: f64 = 0.3;

/// Time constant with which the highest delivery rate fades while no queue exists. Guess.
const CAPACITY_FADES: Duration = Duration::from_secs(300);

/// Number of intervals between loss events that count (RFC 5348, section 5.4).
const INTERVALS: usize = 8;
/// Weights of these intervals, the latest first.
const WEIGHTS: [f64; INTERVALS] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// Weight of a new sample in the smoothed RTT (RFC 5348, section 4.3).
const RTT_SMOOTHED: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn heard(packets: u32, lost: u32) -> Losses {
        Losses { packets: f64::from(packets), lost: f64::from(lost) }
    }

    /// Returns one loss event in every `interval` packets, with `losses` losses within a round trip.
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
        // RFC 9438, table 1 (100 ms): an average window of 12 packets at a loss of 0.01, of 187 at 0.0001. CUBIC equals
        // Reno at 0.01.
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
        // Losses in each round trip: the rate of four TCP flows.
        neighbours.losses = losing(10, 1);
        neighbours.note_capacity(1e6);
        assert_eq!(neighbours.our_part(1), neighbours.losses.tcp_rate().unwrap() * TCP_FLOWS);
    }
}
