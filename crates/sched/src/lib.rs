//! Decisions of the transfer service.
//!
//! Takes a snapshot of queues, limits, shares and statistics, and returns decisions with their rationale. Refuses to
//! read a clock, open a socket or a database, start a thread or log. Time is an argument, `now`; amounts are values.

pub mod breaker;
pub mod obstacle;
pub mod order;
pub mod queue;
pub mod replica;
pub mod retry;
pub mod scheduler;
pub mod settings;
pub mod share;
pub mod state;
pub mod statistics;
pub mod time;
pub mod why;
