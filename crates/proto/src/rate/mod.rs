//! Rate control of QUIC lanes: the send rate of a session's lanes on one path.
//!
//! One [`PathControl`] serves all lanes of a path. It derives the rate from acknowledgements and losses
//! ([`RateControl`]). It divides the rate among the lanes that have data to send; each lane keeps a [`LaneControl`].
//! Refuses to read a clock, pace packets or call a QUIC engine. Time comes in as `now`. Bytes are bytes on the wire (IP
//! packets). So the operator, the router and this module count the same rate.
//!
//! Why not a window that halves on loss: 1 % of random loss limits such a window to 1 % of a path of 660 ms and 50
//! Mbit/s. Here the operator *gives* the rate (like MaxBW of UDT), or packet trains find it. Loss up to a ceiling
//! counts as noise. The rate is reduced when delivery falls behind sending.

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
pub use contract::{Fairness, RATE_LEAST, RateContract};
pub use control::{RateControl, RateState};
pub use evidence::AckBatch;
pub use lane::{AckedPacket, LaneControl};
pub use path::{PathControl, Terms};
pub use search::TrainOrder;
