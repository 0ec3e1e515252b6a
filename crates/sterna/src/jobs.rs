//! Commands that talk to a transfer service, by its native interface: each translates its flags to requests, and shows
//! the replies.
//!
//! Decides nothing about jobs. Tables go to stdout, messages and progress to stderr; with `--json` each reply goes to
//! stdout as one line.

pub mod ban;
pub mod config;
pub mod credentials;
pub mod explain;
pub mod status;
pub mod submit;
pub mod watch;

mod client;
pub mod table;
