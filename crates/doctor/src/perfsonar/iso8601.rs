//! Durations of ISO 8601, as pScheduler writes them: `PT20S`, `PT0.0123S`, `P1DT2H`. Months and years are refused, as
//! there, because they have no length.

use std::time::Duration;

/// Largest duration that is read, seconds. Reason: none of a test is longer than a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// Returns a duration in seconds; `None`: it is none.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let rest = text.strip_prefix('P')?;
    let (days, time) = rest.split_once('T').unwrap_or((rest, ""));
    if days.is_empty() && time.is_empty() {
        return None;
    }
    let sum = sum(days, &[('W', 604_800.0), ('D', 86_400.0)])? + sum(time, &[('H', 3600.0), ('M', 60.0), ('S', 1.0)])?;
    (sum <= SECONDS_MAX).then_some(sum)
}

/// Returns the sum of numbers with units, each unit once and in order.
fn sum(text: &str, units: &[(char, f64)]) -> Option<f64> {
    let (mut rest, mut sum) = (text, 0.0);
    for (unit, scale) in units {
        if let Some((number, after)) = rest.split_once(*unit) {
            let is_number = |c: char| c.is_ascii_digit() || c == '.';
            if number.is_empty() || !number.chars().all(is_number) {
                return None;
            }
            sum += number.parse::<f64>().ok()? * scale;
            rest = after;
        }
    }
    rest.is_empty().then_some(sum)
}

/// Returns the text of a duration, in seconds and whole microseconds.
pub(super) fn text(time: Duration) -> String {
    let (seconds, micros) = (time.as_secs(), time.subsec_micros());
    match micros {
        0 => format!("PT{seconds}S"),
        _ => format!("PT{}S", format!("{seconds}.{micros:06}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_pscheduler_are_read_and_written() {
        for (duration, expected) in [
            ("PT20S", Some(20.0)),
            ("PT0.0123S", Some(0.0123)),
            ("P1DT2H3M4S", Some(93_784.0)),
            ("P1W", Some(604_800.0)),
            ("PT5M", Some(300.0)),
            ("P", None),
            ("PT", None),
            ("20S", None),
            ("PT1X", None),
            ("PT1S2M", None),
            ("P1M", None),
            ("PT-1S", None),
            ("PT1e9S", None),
            ("P99999W", None),
            ("PTS", None),
        ] {
            assert_eq!(seconds(duration), expected, "{duration}");
        }
        for (micros, expected) in [(20_000_000, "PT20S"), (12_300, "PT0.0123S"), (0, "PT0S"), (1, "PT0.000001S")] {
            let time = Duration::from_micros(micros);
            assert_eq!(text(time), expected);
            assert_eq!(seconds(expected), Some(time.as_secs_f64()));
        }
    }
}
