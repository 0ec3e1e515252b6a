//! Rate control of QUIC lanes: how fast one lane sends, and how all lanes of a session stay under one rate.
//!
//! What it does: [`RateControl`] decides the rate and the window of one lane from what is acknowledged and what is lost;
//! [`RateBudget`] divides the rate that the operator gave for the path among the lanes that have something to send.
//! What it refuses to do: read a clock, pace packets, know a QUIC engine. Time comes in as `now`; bytes are bytes on the
//! wire (IP packets), so that the rate of the operator, of the router and of this module are the same number.
//!
//! Why not a window that halves on loss: at 660 ms and 50 Mbit/s, 1 % of random loss holds such a window to 1 % of the
//! path. Here the rate is *given* (as the MaxBW of UDT); loss is noise up to a ceiling, and the rate yields when delivery
//! falls behind what is sent. Without a given rate the same struct finds one, by trains of packets.

mod budget;
mod control;
#[cfg(test)]
mod tests;

pub use budget::{LaneKey, RateBudget};
pub use control::{AckedPacket, RateConfig, RateControl};
