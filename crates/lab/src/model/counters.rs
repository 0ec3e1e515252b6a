//! Counters of a path, for the JSON output.

use serde::Serialize;

/// Cause of a packet's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropCause {
    /// Larger than the path MTU.
    Mtu,
    /// The policer's bucket was empty.
    Policer,
    /// The shaper's queue was full.
    Shaper,
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
    /// The shaper's queue was full.
    pub shaper: u64,
    /// The queue was full.
    pub queue: u64,
    /// An outage.
    pub outage: u64,
    /// Random loss.
    pub loss: u64,
    /// A loss burst.
    pub burst_loss: u64,
}

/// Counters of one direction since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionCounters {
    /// Packets that were sent into the path.
    pub offered_packets: u64,
    /// Bytes of these packets, IP headers included.
    pub offered_bytes: u64,
    /// Packets that the path delivers to the other end, without duplicates.
    pub carried_packets: u64,
    /// Bytes of these packets, IP headers included.
    pub carried_bytes: u64,
    /// Duplicates that the path created.
    pub duplicated_packets: u64,
    /// Packets held back.
    pub reordered_packets: u64,
    /// Packets dropped, by cause.
    pub dropped: Dropped,
    /// Largest length of the queue, bytes.
    pub queue_bytes_max: u64,
    /// Packets that waited for tokens of the shaper.
    pub shaped_packets: u64,
    /// Most bytes sent into the path within any second, to a millisecond. The second need not start on a whole second.
    pub busiest_second_bytes: u64,
}

/// Sliding window that finds the busiest second: bytes per millisecond of the last second.
#[derive(Clone, Debug)]
pub(super) struct BusiestSecond {
    bytes: Box<[u64; MILLISECONDS]>,
    /// Number of the current millisecond.
    now: u64,
    sum: u64,
    max: u64,
}

/// Length of the sliding window, milliseconds.
const MILLISECONDS: usize = 1000;

impl BusiestSecond {
    pub(super) fn new() -> Self {
        Self { bytes: Box::new([0; MILLISECONDS]), now: 0, sum: 0, max: 0 }
    }

    /// Records `bytes` sent at `now_ns`. Returns the most bytes of any second so far. Cost: amortised constant.
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
            DropCause::Shaper => &mut self.shaper,
            DropCause::Queue => &mut self.queue,
            DropCause::Outage => &mut self.outage,
            DropCause::Loss => &mut self.loss,
            DropCause::BurstLoss => &mut self.burst_loss,
        };
        *counter += 1;
    }

    /// Returns the number of packets dropped for any cause.
    pub fn total(&self) -> u64 {
        self.mtu + self.policer + self.shaper + self.queue + self.outage + self.loss + self.burst_loss
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
        // The next whole second, but within one second of the first packet.
        assert_eq!(busiest.add(ms(1_100), 10), 20);
        // One second and more after the first.
        assert_eq!(busiest.add(ms(1_900), 10), 20);
        assert_eq!(busiest.add(ms(2_050), 15), 35);
        // After a long silence the window is empty, and the maximum stays.
        assert_eq!(busiest.add(ms(1_000_000), 30), 35);
        assert_eq!(busiest.add(ms(1_000_999), 6), 36);
    }
}
