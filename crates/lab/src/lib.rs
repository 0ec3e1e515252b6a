//! The emulated long fat network: a path model in virtual time, and the same model as a router between two hosts.
//!
//! [`LinkModel`] describes a path. [`model::Wire`] carries packets over this path in virtual time, for tests. [`Lab`]
//! carries the packets of real programs over it, between two network namespaces. [`profiles`] names existing paths.
//!
//! Refuses: any knowledge of Sterna's protocol, and any requirement beyond root and `/dev/net/tun`.

pub mod args;
pub mod command;
mod cpus;
mod error;
mod lab;
pub mod model;
mod packet;
pub mod profiles;
mod record;
mod router;
mod sys;

pub use lab::{Host, Lab, LabOptions};
pub use model::LinkModel;
pub use record::NAME_VARIABLE;
pub use router::{Counters, NetworkCounters, RouterCounters};
