//! Packets in flight, released in order of arrival.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::direction::{Delivery, Direction, Flow, Order, Verdict};
use super::{DirectionCounters, LinkModel};

/// Packets in flight in one direction.
///
/// The direction limits their number: its queue and the content of its delay. Cost: constant per packet in order,
/// logarithmic in their count for packets that were held back or duplicated.
#[derive(Clone, Debug)]
pub struct InFlight<P> {
    /// One FIFO for each equal-cost path; grows as paths appear.
    lines: Vec<VecDeque<(Duration, u64, P)>>,
    alone: BinaryHeap<Reverse<Held<P>>>,
    sequence: u64,
    count: usize,
}

#[derive(Clone, Debug)]
struct Held<P> {
    at: Duration,
    sequence: u64,
    payload: P,
}

#[derive(Clone, Copy)]
enum Place {
    Line(usize),
    Alone,
}

impl<P> InFlight<P> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self { lines: Vec::new(), alone: BinaryHeap::new(), sequence: 0, count: 0 }
    }

    /// Adds a packet that the path will deliver. The caller adds a duplicate with [`InFlight::push_at`].
    pub fn push(&mut self, delivery: &Delivery, payload: P) {
        match delivery.order {
            Order::InOrder(index) => {
                if self.lines.len() <= index {
                    self.lines.resize_with(index + 1, VecDeque::new);
                }
                self.sequence += 1;
                self.count += 1;
                self.lines[index].push_back((delivery.at, self.sequence, payload));
            }
            Order::Alone => self.push_at(delivery.at, payload),
        }
    }

    /// Adds a packet that arrives at `at`, independent of the order of others.
    pub fn push_at(&mut self, at: Duration, payload: P) {
        self.sequence += 1;
        self.count += 1;
        self.alone.push(Reverse(Held { at, sequence: self.sequence, payload }));
    }

    /// Returns the arrival time of the next packet.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.first().map(|(at, _, _)| at)
    }

    /// Returns the next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Duration) -> Option<P> {
        let (at, _, place) = self.first()?;
        if at > now {
            return None;
        }
        self.count -= 1;
        match place {
            Place::Line(index) => self.lines[index].pop_front().map(|(_, _, payload)| payload),
            Place::Alone => self.alone.pop().map(|Reverse(held)| held.payload),
        }
    }

    /// Returns the number of packets in flight.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no packet is in flight.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn first(&self) -> Option<(Duration, u64, Place)> {
        let lines = self.lines.iter().enumerate().filter_map(|(index, line)| {
            let (at, sequence, _) = line.front()?;
            Some((*at, *sequence, Place::Line(index)))
        });
        let alone = self.alone.peek().map(|Reverse(held)| (held.at, held.sequence, Place::Alone));
        lines.chain(alone).min_by_key(|(at, sequence, _)| (*at, *sequence))
    }
}

impl<P> Default for InFlight<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<P> Eq for Held<P> {}

impl<P> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// One direction with its packets, for tests in virtual time: connects two state machines.
///
/// Example: `wire.offer(now, 1500, flow, frame)`, then `wire.poll(now)` at each `wire.poll_timeout()`.
#[derive(Clone, Debug)]
pub struct Wire<P> {
    direction: Direction,
    flight: InFlight<P>,
}

impl<P: Clone> Wire<P> {
    /// Creates a wire with the behaviour of `direction`.
    pub fn new(direction: Direction) -> Self {
        Self { direction, flight: InFlight::new() }
    }

    /// Creates both directions of a path: forward (from `a` to `b`), then reverse.
    pub fn pair(model: &LinkModel) -> (Self, Self) {
        (Self::new(Direction::forward(model)), Self::new(Direction::reverse(model)))
    }

    /// Sends a packet of `len` bytes. Returns the verdict for information; [`Wire::poll`] delivers the packet.
    pub fn offer(&mut self, now: Duration, len: usize, flow: Flow, payload: P) -> Verdict {
        let verdict = self.direction.offer(now, len, flow);
        if let Verdict::Deliver(delivery) = &verdict {
            if let Some(copy_at) = delivery.copy_at {
                self.flight.push(delivery, payload.clone());
                self.flight.push_at(copy_at, payload);
            } else {
                self.flight.push(delivery, payload);
            }
        }
        verdict
    }

    /// Returns the arrival time of the next packet.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.flight.poll_timeout()
    }

    /// Returns the next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Duration) -> Option<P> {
        self.flight.poll(now)
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &DirectionCounters {
        self.direction.counters()
    }
}
