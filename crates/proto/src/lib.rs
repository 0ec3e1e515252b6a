//! The sans-IO core of Sterna.
//!
//! Quantities, locations, frames, both ends of a session, digests, the journal format, rate control. Refuses to read a
//! clock, open a socket or a file, start a thread or log. Time is an argument, `now`. Bytes enter as slices and leave
//! as values. Every state machine here can run in virtual time.

pub mod budget;
mod by_name;
pub mod compress;
pub mod counters;
pub mod digest;
pub mod error;
pub mod file;
pub mod follow;
pub mod growth;
mod host_port;
pub mod journal;
pub mod limit;
pub mod location;
pub mod path_cache;
pub mod plan;
pub mod quantity;
pub mod range_set;
pub mod rate;
pub mod session;
pub mod setting;
pub mod transport_trial;
mod via;
pub mod web;
pub mod wire;

pub use counters::{Counters, Earlier};
pub use digest::{Algorithm, BlockDigest, BlockHasher, Checks, Digest, FileDigester, FileDigests};
pub use error::{Error, ErrorKind, Phase, Retry, SaidBy, Scope};
pub use file::{BlockMap, EntryKind, FileEntry, FileTime, RelPath};
pub use growth::Growth;
pub use location::Location;
pub use quantity::{BitRate, ByteCount};
pub use range_set::RangeSet;
pub use setting::Setting;
