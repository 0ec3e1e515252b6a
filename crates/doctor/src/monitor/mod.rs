//! Monitor: repeated light measurements of a path, the changes in them, and alarms with their cause in words.
//!
//! A [`Round`] is what one visit of a peer observed. A [`Series`] takes the rounds of a path in order, finds lasting
//! [shifts](shift), and has the open [alarms](Alarm). A [`Schedule`] says when which peer is visited, and what may be
//! sent. The [`metrics`] are the same for Prometheus.
//!
//! Pure: time and random seeds come in, and the agent measures and stores. So a series that is read again from its file
//! has the same alarms.

mod alarm;
pub mod metrics;
mod round;
mod schedule;
mod series;
pub mod shift;
#[cfg(test)]
mod tests;

pub use self::alarm::{Alarm, Change, Turn};
pub use self::round::{Echoes, Failure, Measured, Outcome, Round, Test, evidence};
pub use self::schedule::{ECHOES, Schedule, Settings, TestPlan};
pub use self::series::{Counts, Present, Series};
