//! Rate control of QUIC lanes: how fast the lanes of a session send on one path.
//!
//! What it does: [`PathControl`] is one for all lanes of a path. It decides the rate from what is acknowledged and what is lost
//! ([`RateControl`]) and divides it among the lanes that have something to send; each lane keeps a [`LaneControl`].
//! What it refuses to do: read a clock, pace packets, know a QUIC engine. Time comes in as `now`; bytes are bytes on the
//! wire (IP packets), so that the rate of the operator, of the router and of this module are the same number.
//!
//! Why not a window that halves on loss: at 660 ms and 50 Mbit/s, 1 % of random loss holds such a window to 1 % of the
//! path. Here the rate is *given* (as the MaxBW of UDT) or found by trains of packets; loss is noise up to a ceiling, and the rate yields when
//! delivery falls behind what is sent.

mod budget;
mod capacity;
mod contract;
mod control;
mod evidence;
mod lane;
mod neighbours;
mod path;
mod search;
mod steps;
#[cfg(test)]
mod tests;
mod verdict;

pub use budget::LaneKey;
pub use contract::{Manner, RATE_LEAST, RateContract};
pub use control::{RateControl, RateState};
pub use evidence::AckBatch;
pub use lane::{AckedPacket, LaneControl};
pub use path::{PathControl, Terms, TrainOrder};
