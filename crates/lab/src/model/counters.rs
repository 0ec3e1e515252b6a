//! What happened on a path, as figures that go to JSON.

use serde::Serialize;

/// Why a packet never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCause {
    /// Larger than the path MTU.
    Mtu,
    /// The policer's bucket was empty.
    Policer,
    /// The queue was full.
    Queue,
    /// An outage.
    Outage,
    /// Random loss.
    Loss,
    /// A loss burst.
    BurstLoss,
}

/// Packets dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Larger than the path MTU.
    pub mtu: u64,
    /// The policer's bucket was empty.
    pub policer: u64,
    /// The queue was full.
    pub queue: u64,
    /// An outage.
    pub outage: u64,
    /// Random loss.
    pub loss: u64,
    /// A loss burst.
    pub burst_loss: u64,
}

/// Figures of one direction since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionCounters {
    /// Packets that were sent into the path.
    pub offered_packets: u64,
    /// Their bytes, IP headers included.
    pub offered_bytes: u64,
    /// Packets that the path carries to the other end, copies not counted.
    pub carried_packets: u64,
    /// Their bytes, IP headers included.
    pub carried_bytes: u64,
    /// Copies made on the way.
    pub duplicated_packets: u64,
    /// Packets held back.
    pub reordered_packets: u64,
    /// Packets dropped, by cause.
    pub dropped: Dropped,
    /// Fullest that the queue was, bytes.
    pub queue_bytes_max: u64,
    /// Most bytes that were sent into the path within one second (any, not only whole ones), to a millisecond.
    pub busiest_second_bytes: u64,
}

/// Finds the busiest second: bytes by the millisecond, of the last second.
#[derive(Clone, Debug)]
pub(super) struct BusiestSecond {
    bytes: Box<[u64; MILLISECONDS]>,
    /// Number of the millisecond that is being counted.
    now: u64,
    sum: u64,
    max: u64,
}

/// Milliseconds of the window that slides.
const MILLISECONDS: usize = 1000;

impl BusiestSecond {
    pub(super) fn new() -> Self {
        Self { bytes: Box::new([0; MILLISECONDS]), now: 0, sum: 0, max: 0 }
    }

    /// Takes note of `bytes` sent at `now_ns`; the most of any second until now. Cost: constant, over all calls.
    pub(super) fn add(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let now = now_ns / 1_000_000;
        if now.saturating_sub(self.now) >= MILLISECONDS as u64 {
            self.bytes.fill(0);
            self.sum = 0;
            self.now = now;
        }
        while self.now < now {
            self.now += 1;
            self.sum -= std::mem::take(&mut self.bytes[self.now as usize % MILLISECONDS]);
        }
        self.bytes[self.now as usize % MILLISECONDS] += bytes;
        self.sum += bytes;
        self.max = self.max.max(self.sum);
        self.max
    }
}

impl Dropped {
    /// Counts one packet.
    pub fn add(&mut self, cause: DropCause) {
        let counter = match cause {
            DropCause::Mtu => &mut self.mtu,
            DropCause::Policer => &mut self.policer,
            DropCause::Queue => &mut self.queue,
            DropCause::Outage => &mut self.outage,
            DropCause::Loss => &mut self.loss,
            DropCause::BurstLoss => &mut self.burst_loss,
        };
        *counter += 1;
    }

    /// Packets dropped for any cause.
    pub fn total(&self) -> u64 {
        self.mtu + self.policer + self.queue + self.outage + self.loss + self.burst_loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_is_any_second() {
        let mut busiest = BusiestSecond::new();
        let ms = |ms: u64| ms * 1_000_000;
        assert_eq!(busiest.add(ms(900), 10), 10);
        // In another whole second than the first, and within one second of it.
        assert_eq!(busiest.add(ms(1_100), 10), 20);
        // A second and more after the first.
        assert_eq!(busiest.add(ms(1_900), 10), 20);
        assert_eq!(busiest.add(ms(2_050), 15), 35);
        // After a long silence nothing is left in the window, and the maximum stays.
        assert_eq!(busiest.add(ms(1_000_000), 30), 35);
        assert_eq!(busiest.add(ms(1_000_999), 6), 36);
    }
}
