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
