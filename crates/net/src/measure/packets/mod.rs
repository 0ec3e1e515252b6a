//! Packet trains and echoes over UDP.
//!
//! The client sends from one or many ports to one port of the agent, which tells packets of a measurement by the
//! address of the peer and a session identifier. A train goes one way, its receiver counts it, and nobody answers it.
//! Echoes are packets of STAMP that the agent sends back.
//!
//! The socket of the agent exists from the first train or echo of a measurement to its end. Packets of plain STAMP or
//! TWAMP Light from the same peer get their replies then, too.

mod agent;
mod client;
mod echo;
mod log;
mod pace;
mod plan;
mod receive;
mod reflector;
mod responder;
mod send;
mod skew;
mod socket;

pub(super) use self::agent::Agent;
pub(super) use self::client::Client;
pub use self::echo::stamp_echoes;
pub(super) use self::pace::{Pace, Step};
pub(super) use self::plan::TRAIN_RATE_MAX;
pub use self::responder::StampReflector;
pub(super) use self::send::{nanos, unix_time};
