//! Values of flags that are times.

use std::time::Duration;

use sterna_doctor::plan::{RTT_MAX, RTT_MIN};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Form of a time.
const TIME_EXPECTED: &str = "expected a whole number and a unit (ms, s, min, h or d), such as 500ms, 30s, 10min or 2h";

/// Reads `90s`, `10min`, `2h` or `500ms`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        _ => return Err(TIME_EXPECTED.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| TIME_EXPECTED.to_owned())?;
    // A year: a larger number is a typing error.
    match number.checked_mul(millis) {
        Some(total) if total <= 366 * 24 * 3_600_000 => Ok(Duration::from_millis(total)),
        _ => Err("the maximum is 8784h (366 days)".to_owned()),
    }
}

/// Reads `148ms`, `11.9ms`, `500us` or `0.66s`.
pub fn parse_rtt(text: &str) -> Result<Duration, String> {
    let expected = || "expected a number and a unit (us, ms or s), such as 148ms or 11.9ms".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    let rtt = Duration::try_from_secs_f64(number * scale).map_err(|_| expected())?;
    match (RTT_MIN..=RTT_MAX).contains(&rtt) {
        true => Ok(rtt),
        false => Err(format!("from {} us to {} s", RTT_MIN.as_micros(), RTT_MAX.as_secs())),
    }
}

/// Point in time, or a time from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Milliseconds since 1970, UTC.
    At(i64),
    /// Time from now.
    In(Duration),
}

impl Moment {
    /// Returns the milliseconds since 1970.
    pub fn millis(self, now: OffsetDateTime) -> i64 {
        match self {
            Self::At(millis) => millis,
            Self::In(time) => millis_of(now).saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

fn millis_of(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// Reads a time from now as [`parse_time`], or a date and time of RFC 3339, such as `2027-01-31T18:00:00Z`.
pub fn parse_moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(Moment::At(millis_of(at)));
    }
    parse_time(text).map(Moment::In).map_err(|why| format!("{why}; or a date and time, such as 2027-01-31T18:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_with_its_time_zone_or_a_time_from_now() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let millis = |text| parse_moment(text).map(|moment| moment.millis(now));
        for (text, expected) in [
            ("2027-01-15T08:00:00Z", 1_800_000_000_000),
            ("2027-01-15T10:00:00.5+02:00", 1_800_000_000_500),
            ("1969-12-31T23:59:59Z", -1000),
            ("90s", 1_800_000_090_000),
            ("2h", 1_800_007_200_000),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        for wrong in ["", "tomorrow", "2027-01-15", "2027-01-15T08:00:00", "2027-13-01T08:00:00Z", "-1s", "9000h"] {
            assert!(millis(wrong).unwrap_err().contains("2027-01-31T18:00:00Z"), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_a_whole_number_with_a_unit_and_the_error_names_the_units() {
        let millis = |text| parse_time(text).map(|time| time.as_millis());
        for (text, expected) in
            [("500ms", 500), ("30s", 30_000), ("10min", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)]
        {
            assert_eq!(millis(text), Ok(expected));
        }
        for wrong in ["0.5s", "30", "s", "", "-1s", "1w", "1 s"] {
            let error = millis(wrong).unwrap_err();
            assert!(error.contains("whole number") && error.contains("ms, s, min, h or d"), "{wrong}: {error}");
        }
        assert_eq!(millis("9000h"), Err("the maximum is 8784h (366 days)".to_owned()));
    }
}
