//! Time of an entry: seconds in UTC, in files as RFC 3339.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// First and last second that RFC 3339 has: of the years 0 and 9999.
const RANGE: (i64, i64) = (-62_167_219_200, 253_402_300_799);

/// Time of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EntryTime(i64);

impl EntryTime {
    /// Returns the time of seconds since 1970; the nearest one in the years 0 to 9999.
    pub fn from_unix(seconds: i64) -> Self {
        Self(seconds.clamp(RANGE.0, RANGE.1))
    }

    /// Returns the seconds since 1970.
    pub fn unix(self) -> i64 {
        self.0
    }

    /// Reads `2006-08-22`, `2006-08-22 14:30` (both UTC), or a date and time of RFC 3339.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let full = match text.len() {
            10 => format!("{text}T00:00:00Z"),
            16 => format!("{}T{}:00Z", text.get(..10).unwrap_or_default(), text.get(11..).unwrap_or_default()),
            _ => text.to_owned(),
        };
        OffsetDateTime::parse(&full, &Rfc3339).map(|time| Self::from_unix(time.unix_timestamp())).map_err(|_| {
            "expected a date, such as 2006-08-22, 2006-08-22 14:30 (UTC) or 2006-08-22T14:30:00+02:00".to_owned()
        })
    }

    /// Returns the time as the name of an examination: `20060822T143000Z`.
    pub fn compact(self) -> String {
        self.rfc3339().chars().filter(|c| !matches!(c, '-' | ':')).collect()
    }

    /// Returns the date alone.
    pub fn date(self) -> String {
        self.rfc3339().chars().take(10).collect()
    }

    fn rfc3339(self) -> String {
        // Within the range, both conversions succeed.
        let time = OffsetDateTime::from_unix_timestamp(self.0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        time.format(&Rfc3339).unwrap_or_default()
    }
}

impl fmt::Display for EntryTime {
    /// Writes minutes; only the date for midnight, which is how a date without a time is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.rfc3339();
        let (date, time) = text.split_once('T').unwrap_or((&text, ""));
        match time {
            "00:00:00Z" => f.pad(date),
            time => f.pad(&format!("{date} {}", time.get(..5).unwrap_or_default())),
        }
    }
}

impl From<EntryTime> for String {
    fn from(time: EntryTime) -> Self {
        time.rfc3339()
    }
}

impl TryFrom<String> for EntryTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_people_write_them() {
        for (text, shown) in [
            ("2006-08-22", "2006-08-22"),
            ("2006-08-22 14:30", "2006-08-22 14:30"),
            ("2006-08-22T14:30", "2006-08-22 14:30"),
            ("2006-08-22T14:30:59Z", "2006-08-22 14:30"),
            ("2006-08-22T01:30:00+02:00", "2006-08-21 23:30"),
        ] {
            let time = EntryTime::parse(text).unwrap();
            assert_eq!(time.to_string(), shown, "{text}");
            assert_eq!(EntryTime::parse(&String::from(time)), Ok(time));
        }
        for wrong in ["", "yesterday", "22/08/06", "2006-13-01", "2006-08-22 25:00", "éééééééé", "2006-08-2é 14:30"]
        {
            assert!(EntryTime::parse(wrong).unwrap_err().contains("2006-08-22 14:30"), "{wrong}");
        }
        assert_eq!(EntryTime::from_unix(1_156_257_000).compact(), "20060822T143000Z");
        for far in [i64::MIN, i64::MAX] {
            let time = EntryTime::from_unix(far);
            assert_eq!(EntryTime::parse(&String::from(time)), Ok(time), "{far}");
        }
    }
}
