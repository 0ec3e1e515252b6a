//! Parts and times as people read them.

use std::time::Duration;

use sterna_proto::quantity::readable_time;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns a part for people, in per cent.
pub fn percent(part: f64) -> String {
    match part * 100.0 {
        whole if whole >= 10.0 => format!("{whole:.0} %"),
        some if some >= 0.1 => format!("{some:.1} %"),
        0.0 => "0 %".to_owned(),
        few => format!("{few:.3} %"),
    }
}

/// Returns a time for people. A negative one is zero, and one without an end is `"for ever"`.
pub fn time(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds.max(0.0)) {
        Ok(Duration::ZERO) => "0 ms".to_owned(),
        Ok(time) => readable_time(time),
        Err(_) => "for ever".to_owned(),
    }
}

/// Returns a round trip for people. Modes differ by tenths of a millisecond.
pub fn millis(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

/// Returns a time of day in UTC. `seconds`: since 1970.
pub fn date(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let text = date.and_then(|date| date.format(&Rfc3339).ok());
    text.map_or_else(|| "at an unknown time".to_owned(), |text| text.replace('T', " ").replace('Z', " UTC"))
}
