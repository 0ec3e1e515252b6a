//! Sockets, TLS, lanes, disk and the session driver.
//!
//! Does everything that touches the operating system on behalf of a session. `sterna-proto` decides. Each driver loop
//! reads the clock once a turn and hands it down.

pub mod agent;
mod arrivals;
mod budget;
pub mod buffer;
mod cancel;
mod client;
mod crowd;
pub mod descriptors;
pub mod disk;
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod handshakes;
pub mod identity;
pub mod lane;
mod latch;
mod lister;
pub mod measure;
mod observer;
mod pace;
pub mod perfsonar;
pub mod report;
pub mod session;
pub mod sink;
pub mod source;
pub mod sys;
mod thread_clock;
pub mod tuning;
mod wake;
pub mod web;

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

/// A bug of ours, or the operating system refusing what it always gives (a thread).
pub(crate) fn internal(text: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Service, Phase::Transfer, text)
}

/// Error of a host that gives no more threads, while it was `tried` to start one. Another attempt may succeed.
pub(crate) fn no_thread(tried: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, tried).retry(Retry::After).caused_by(error)
}
