//! perfSONAR: specifications of tests, results of pScheduler in our terms, and our results in the form of pScheduler.
//!
//! [`spec`] writes tasks. [`result`] reads results, and [`judge`] applies the arithmetic of this crate to them.
//! [`history`] reads results from archives. [`export`] writes the evidence of an examination as archivers of pScheduler
//! do. Values come from strangers: fields that are absent or of another type are unknown, and no field is needed but
//! those without which nothing can be said. Opens no socket: `sterna_net::perfsonar` does.

pub mod export;
pub mod history;
mod iso8601;
pub mod judge;
pub mod result;
pub mod spec;

use serde_json::Value;

/// Returns a number of an object; `None`: absent, negative or not finite.
fn number(of: &Value, name: &str) -> Option<f64> {
    of.get(name)?.as_f64().filter(|value| value.is_finite() && *value >= 0.0)
}

/// Returns a count of an object. A count above 2^48 is none.
fn count(of: &Value, name: &str) -> Option<u64> {
    number(of, name).filter(|count| *count < COUNT_MAX).map(|count| count as u64)
}

/// Returns a text of an object, cut to a length that a line can show.
fn text(of: &Value, name: &str) -> Option<String> {
    Some(of.get(name)?.as_str()?.chars().take(TEXT_CHARS_MAX).collect())
}

/// Returns the members of a list of an object.
fn list<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Largest count that is taken. Reason: sums of many stay exact.
const COUNT_MAX: f64 = (1_u64 << 48) as f64;

/// Maximum characters of a text. Reason: the longest host name has 255.
const TEXT_CHARS_MAX: usize = 255;
