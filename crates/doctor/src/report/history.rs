//! History of monitored paths: lines for people, and one HTML page with plots.

use maud::{Markup, html};
use serde::Serialize;
use sterna_proto::BitRate;

use super::figures;
use super::html::{around, drawn, safe};
use crate::monitor::{Change, Present, Round, Test};
use crate::verdict::Cause;
use crate::words::{date, millis, percent};

/// History of one path.
#[derive(Clone, Debug, Serialize)]
pub struct PathHistory {
    /// Name of the peer.
    pub peer: String,
    /// State now.
    pub present: Present,
    /// Changes, in order.
    pub changes: Vec<Change>,
    /// Rounds, in order.
    pub rounds: Vec<Round>,
}

impl PathHistory {
    /// Returns the cells of the table: round trips, loss there and back, and rates there and back.
    pub fn cells(&self) -> [String; 4] {
        let now = &self.present;
        let absent = || "not measured".to_owned();
        let trips = [now.fastest_s, now.typical_s, now.slowest_s].into_iter().flatten().map(millis);
        let trips = trips.collect::<Vec<_>>().join(" / ");
        let loss = now.loss.map(|loss| loss.map_or_else(absent, percent)).join(" / ");
        let [there, back] = now.tests.clone().map(|test| test.map_or_else(absent, |test| rate(&test)));
        [if trips.is_empty() { absent() } else { trips }, loss, there, back]
    }

    /// Returns the lines below the table: open alarms, then changes.
    pub fn lines(&self) -> Vec<String> {
        let alarms = self.present.alarms.iter().map(|alarm| format!("ALARM {}: {}", self.peer, alarm.words()));
        let changes =
            self.changes.iter().map(|change| format!("{}  {}: {}", date(change.at), self.peer, change.words()));
        alarms.chain(changes).collect()
    }
}

/// Heads of the cells.
pub const HEADS: [&str; 4] =
    ["round trip fastest / median / slowest port", "lost there / back", "rate there", "rate back"];

/// Returns the rate of a test with its limit.
fn rate(test: &Test) -> String {
    let rate = BitRate(test.rate_bps);
    match test.limit {
        Cause::RateCap => format!("{rate} (cap)"),
        Cause::Clean => format!("{rate} (path)"),
        limit => format!("{rate} ({})", limit.words()),
    }
}

/// Returns the page of some paths.
pub fn page(paths: &[PathHistory]) -> String {
    let main = html! {
        h1 { "Monitored paths" }
        (table(paths))
        @for (number, path) in paths.iter().enumerate() { (section(number, path)) }
    };
    around("Monitored paths", &main)
}

fn table(paths: &[PathHistory]) -> Markup {
    html! {
        table {
            thead { tr { th scope="col" { "Path to" } @for head in HEADS { th scope="col" { (head) } } th scope="col" { "alarms" } } }
            tbody {
                @for path in paths {
                    tr {
                        th scope="row" { (safe(&path.peer)) }
                        @for cell in path.cells() { td { (safe(&cell)) } }
                        td { (path.present.alarms.len()) }
                    }
                }
            }
        }
    }
}

fn section(number: usize, path: &PathHistory) -> Markup {
    let counts = path.present.counts;
    html! {
        section {
            h2 { (safe(&path.peer)) }
            p.soft {
                (counts.rounds) " rounds, " (counts.failures) " without measurements, " (counts.tests) " throughput tests, "
                (sterna_proto::ByteCount(counts.bytes)) " over the path"
                @if counts.last > 0 { "; last round " (date(counts.last)) }
            }
            @for alarm in &path.present.alarms { article.verdict { p.plain { (safe(&alarm.words())) } } }
            @if !path.changes.is_empty() {
                h3 { "Changes" }
                table { tbody {
                    @for change in path.changes.iter().rev() {
                        tr { th scope="row" { (date(change.at)) } td { (safe(&change.words())) } }
                    }
                } }
            }
            @for figure in &figures::history(number, &path.rounds, &path.changes) { (drawn(figure)) }
        }
    }
}

/// Returns the history of a path from its rounds. Changes and rounds before `since` (seconds since 1970) are left out.
pub fn history(peer: String, rounds: Vec<Round>, since: u64) -> PathHistory {
    let mut series = crate::monitor::Series::default();
    for round in &rounds {
        series.observe(round);
    }
    let changes = series.changes().filter(|change| change.at >= since).cloned().collect();
    let rounds = rounds.into_iter().filter(|round| round.at >= since).collect();
    PathHistory { peer, present: series.present(), changes, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Direction;
    use crate::monitor::{Echoes, Failure, Measured, Outcome};

    fn rounds() -> Vec<Round> {
        let round = |number: u64| {
            let rtt = if number < 100 { 7_900 } else { 11_900 };
            let rtt_us = (0..16).map(|port| rtt + (number * 7 + port) % 90).collect();
            let hops = Some(9);
            let echoes =
                Echoes { sent: 320, reflected: 320, returned: 319, rtt_us, forward_hops: hops, reverse_hops: hops };
            let test = Test {
                direction: Direction::Forward,
                rate_bps: 42_000_000,
                cap_bps: 100_000_000,
                loss: 0.0,
                limit: Cause::SendBuffer,
                remedy: String::new(),
            };
            let tests = if number.is_multiple_of(12) { vec![test] } else { Vec::new() };
            let outcome = match number {
                50 => Outcome::Failed(Failure::Unreachable("<script>".to_owned())),
                _ => Outcome::Measured(Measured { echoes: Some(echoes), tests, bytes: 81_920, test_bytes: 0 }),
            };
            Round { at: 1_800_000_000 + number * 300, outcome }
        };
        (0..120).map(round).collect()
    }

    #[test]
    fn a_history_has_what_holds_and_its_changes_in_every_form() {
        let path = history("<b>\u{202e}:7373".to_owned(), rounds(), 0);
        let cells = path.cells();
        assert!(cells[0].starts_with("11.9") && cells[2] == "42.0 Mbit/s (send buffer)", "{cells:?}");
        assert_eq!((cells[1].as_str(), cells[3].as_str()), ("0 % / 0.3 %", "not measured"));
        let lines = path.lines();
        assert!(lines.len() == 2 && lines[0].contains("longer round trip: 7.9"), "{lines:?}");
        let page = page(std::slice::from_ref(&path));
        for expected in
            ["history-rtt-0-title", "history-loss-0", "history-rate-0", "class=\"guide\"", "longer round trip"]
        {
            assert!(page.contains(expected), "{expected}");
        }
        assert!(!page.contains("<b>") && !page.contains("<script") && !page.contains('\u{202e}'));
        let mut reader =
            quick_xml::Reader::from_str(&page[page.find("<svg").unwrap()..page.find("</svg>").unwrap() + 6]);
        while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
        let later = history("a:1".to_owned(), rounds(), 1_800_000_000 + 119 * 300);
        assert_eq!((later.rounds.len(), later.changes.len(), later.present.alarms.len()), (1, 0, 1));
        assert_eq!(super::page(&[]).matches("<section>").count(), 0);
        let json = serde_json::to_value(&path).unwrap();
        assert_eq!(json["present"]["alarms"][0]["kind"], "rerouted");
    }
}
