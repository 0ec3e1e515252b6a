//! Tables, times and counts for people. Texts in tables may come from others: they are made plain here.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use sterna_proto::file::{drives_terminal, plain};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::api::native::types::Entries;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Space between two columns.
const GAP: &str = "  ";

/// Table with a head.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that are aligned to the right.
    numbers: std::ops::Range<usize>,
}

impl Table {
    /// Creates a table. `numbers`: columns that are aligned to the right.
    pub fn new(head: &[&str], numbers: std::ops::Range<usize>) -> Self {
        Self { rows: vec![head.iter().map(|name| (*name).to_owned()).collect()], numbers }
    }

    /// Adds a row, with as many cells as the head.
    pub fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| plain(cell).into_owned()).collect());
    }

    /// Returns the table as lines, without a line end at the end.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let length = |cell: &String| cell.chars().count();
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut lines = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a string succeeds always.
                let _ = match self.numbers.contains(&column) {
                    true => write!(line, "{cell:>width$}{GAP}"),
                    false => write!(line, "{cell:<width$}{GAP}"),
                };
            }
            lines.push(line.trim_end().to_owned());
        }
        lines.join("\n")
    }
}

/// Returns a time in milliseconds since 1970 as `2026-11-25T22:12:00Z`.
pub fn utc(millis: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(millis.div_euclid(1000)).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{millis} ms after 1970"))
}

/// Returns a reply as one line of JSON that drives no terminal: such characters are only in strings, where JSON has
/// escapes for them.
pub fn json_line(json: &Value) -> String {
    let mut line = String::new();
    for c in json.to_string().chars() {
        // Writing to a string succeeds always. Every such character is in the basic plane: four digits.
        let _ = if drives_terminal(c) { write!(line, "\\u{:04x}", u32::from(c)) } else { write!(line, "{c}") };
    }
    line
}

/// Returns a result as one line of JSON that drives no terminal. Errors: a bug of ours.
pub fn json_of(result: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_value(result).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write the result as JSON").caused_by(e)
    })?;
    Ok(json_line(&json))
}

/// Returns the outcome of a job in words, such as `3 of 10 files arrived, 1 failed, 2 under way`.
pub fn counts(entries: &Entries) -> String {
    let files = if entries.all == 1 { "file" } else { "files" };
    let mut words = format!("{} of {} {files} arrived", entries.finished, entries.all);
    let others = [(entries.failed, "failed"), (entries.cancelled, "cancelled"), (entries.active, "under way")];
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        // Writing to a string succeeds always.
        let _ = write!(words, ", {count} {what}");
    }
    if entries.listing > 0 {
        words.push_str(", more are being listed");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_leave_out_what_did_not_happen() {
        let entries =
            |all, finished, failed, active| Entries { all, finished, failed, cancelled: 0, active, listing: 0 };
        assert_eq!(counts(&entries(1, 0, 0, 0)), "0 of 1 file arrived");
        assert_eq!(counts(&entries(10, 3, 1, 2)), "3 of 10 files arrived, 1 failed, 2 under way");
        let listing = Entries { listing: 1, ..entries(2, 0, 0, 2) };
        assert_eq!(counts(&listing), "0 of 2 files arrived, 2 under way, more are being listed");
    }

    #[test]
    fn columns_are_aligned_and_drive_no_terminal() {
        let mut table = Table::new(&["name", "files", "owner"], 1..2);
        table.add(vec!["a".to_owned(), "7".to_owned(), "x\u{1b}[31m".to_owned()]);
        table.add(vec!["longer".to_owned(), "123456".to_owned(), String::new()]);
        let expected = "name     files  owner\na            7  x\\u{1b}[31m\nlonger  123456";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn json_drives_no_terminal_and_stays_the_same() {
        let json = serde_json::json!({"a": "\u{1b}\u{9b}\u{202e}\n\u{e9}"});
        let line = json_line(&json);
        assert_eq!(line, "{\"a\":\"\\u001b\\u009b\\u202e\\n\u{e9}\"}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json);
    }

    #[test]
    fn a_time_is_shown_in_utc() {
        assert_eq!(utc(1_700_000_000_999), "2023-11-14T22:13:20Z");
        assert_eq!(utc(i64::MAX), format!("{} ms after 1970", i64::MAX));
    }
}
