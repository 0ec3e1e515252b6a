//! Parts and times as people read them.

use std::time::Duration;

use sterna_proto::quantity::readable_time;

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
