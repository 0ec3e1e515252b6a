//! Storages that speak HTTP or WebDAV: `http`, `https`, `dav` and `davs`.
//!
//! The storages move the bytes between each other where they can (WLCG HTTP-TPC), and this worker does where they
//! cannot. An agent writes its own files in the same way.
//!
//! Everything is asynchronous: ten thousand transfers need no ten thousand threads. Bytes enter and leave in
//! `connection`; `transfer` has the order of events. Refuses to retry, and to schedule.

mod address;
mod cleanup;
mod client;
mod connection;
mod digest;
mod directories;
mod failure;
mod listing;
mod local;
mod location;
mod macaroon;
mod marker;
mod meter;
mod modes;
mod multistatus;
mod payload;
mod progress;
mod reader;
mod source;
mod storage;
mod stream;
mod third_party;
mod tls;
mod transfer;

pub use address::{AddressRules, ConnectRules};
pub use location::is_web;
pub use progress::Progress;
pub use transfer::Web;
