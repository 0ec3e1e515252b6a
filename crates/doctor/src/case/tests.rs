use super::entry::Retest;
use super::examination::{DirectionResult, LimitResult};
use super::facts::{FactPair, FactValue};
use super::moment::EntryTime;
use super::*;
use crate::evidence::Direction;
use crate::verdict::Cause;

/// Returns a limit in the forward direction; the one of a policer has a bucket.
pub(super) fn limit_of(limit: Cause, bps: Option<u64>) -> LimitResult {
    let is_policer = limit == Cause::Policer;
    LimitResult {
        limit,
        direction: Direction::Forward,
        limits_to_bps: bps,
        predicted_bps: 200_000_000,
        rate_bps: bps.filter(|_| is_policer),
        burst_bytes: is_policer.then_some(100_000),
        confidence: 0.9,
        remedy: "ask the operator".to_owned(),
    }
}

/// Returns an examination with these limits and this rate of one connection, forward.
pub(super) fn examination(id: &str, measured_bps: u64, limits: Vec<LimitResult>) -> Examination {
    Examination {
        id: id.parse().unwrap(),
        target: "sterna://hub/".to_owned(),
        address: "192.0.2.7:7373".to_owned(),
        digest: "0a".to_owned(),
        signers: vec!["SHA256:x".to_owned()],
        rate_max_bps: Some(10_000_000_000),
        rtt_s: 0.06,
        directions: Direction::ALL
            .map(|direction| DirectionResult {
                direction,
                measured_bps,
                capacity_bps: None,
                at_least_bps: measured_bps,
                loss: None,
            })
            .to_vec(),
        limits,
    }
}

fn entry(day: i64, event: Event) -> Entry {
    Entry { time: EntryTime::from_unix(day * 86_400), recorded: None, by: "ann@noc".to_owned(), event }
}

fn note(day: i64, text: &str) -> Entry {
    entry(day, Event::Note { text: text.to_owned() })
}

fn file(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.line().unwrap()).collect()
}

#[test]
fn entries_of_every_kind_are_read_as_they_were_written() {
    let limits = vec![limit_of(Cause::Policer, Some(5_000_000))];
    let (before, now) = (examination("1", 4_000_000, limits.clone()), examination("2", 4_000_000, limits));
    let outcomes = retest::judge(&before, &now, &retest::Asked::default());
    let retest = Retest {
        since: before.id.clone(),
        examination: now,
        claim: Some("limit lifted".to_owned()),
        raised_to_bps: Some(90_000_000),
        limits: outcomes,
    };
    let pair: FactPair = "rate_limit=none".parse().unwrap();
    let domain = "geant.net".to_owned();
    let fact = facts::Fact { domain, direction: Some(Direction::Reverse), key: pair.key, value: pair.value };
    let opened = Event::Opened { format: FORMAT, title: "TIGO".to_owned(), targets: vec!["sterna://hub/".to_owned()] };
    let entries = [
        entry(1, opened),
        Entry { recorded: Some(EntryTime::from_unix(9)), ..note(0, "two\nlines \"quoted\" \u{202e}é") },
        entry(2, Event::Fact(fact)),
        entry(3, Event::Examination(Box::new(before))),
        entry(4, Event::Retest(Box::new(retest))),
        entry(5, Event::Closed { text: "upgraded".to_owned() }),
    ];
    let case = Case::read(&file(&entries)).unwrap();
    assert_eq!((case.entries.as_slice(), case.unreadable.as_slice()), (&entries[..], &[][..]));
    assert_eq!(case.opened().unwrap().1, "TIGO");
    assert_eq!(case.closed().unwrap().1, "upgraded");
    assert_eq!(case.chronology()[0], &entries[1], "an earlier event is first");
    assert_eq!(case.of_target("sterna://hub/").len(), 2);
    let reopened = Case::read(&file(&[&entries[..], &[note(6, "again")]].concat())).unwrap();
    assert!(reopened.closed().is_none());
}

#[test]
fn a_torn_line_costs_that_line_only() {
    let whole = file(&[note(1, "one"), note(2, "two")]);
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for end in 0..whole.len() {
        let case = Case::read(&whole[..end]).unwrap();
        // A line is whole without its end of line, too.
        let expected = usize::from(end + 1 >= first) + usize::from(end + 1 >= whole.len());
        assert_eq!(case.entries.len(), expected, "{end}");
        let is_torn = end != 0 && end + 1 != first && end != first && end + 1 != whole.len();
        assert_eq!(case.unreadable.len(), usize::from(is_torn), "{end}");
        if is_torn {
            assert!(case.unreadable[0].why.contains("a write was interrupted"), "{case:?}");
        }
        // The next entry begins a line.
        let later = [&whole[..end], b"\n", &file(&[note(3, "three")])].concat();
        let case = Case::read(&later).unwrap();
        assert_eq!(case.entries.last(), Some(&note(3, "three")), "{end}");
        assert_eq!((case.entries.len(), case.unreadable.len()), (expected + 1, usize::from(is_torn)), "{end}");
    }
}

#[test]
fn lines_of_strangers_are_bounded_and_named() {
    let long = format!("{{\"kind\":\"note\",\"text\":\"{}\"}}", "x".repeat(entry::ENTRY_BYTES_MAX));
    let hostile = r#"{"time":"2026-01-01T00:00:00Z","by":"x","kind":"examination","id":"../../etc/passwd"}"#;
    let later = r#"{"time":"2026-01-01T00:00:00Z","by":"x","kind":"vote","option":3}"#;
    let deep = "[".repeat(100_000);
    let text = [&long, hostile, later, "\u{0}", &deep, "null", "{}"].join("\n");
    let case = Case::read(text.as_bytes()).unwrap();
    assert_eq!(case.entries.iter().map(|entry| &entry.event).collect::<Vec<_>>(), [&Event::Unknown]);
    assert_eq!(case.unreadable.iter().map(|one| one.line).collect::<Vec<_>>(), [1, 2, 4, 5, 6, 7]);
    let many = "{}\n".repeat(ENTRIES_MAX + 1);
    assert!(Case::read(many.as_bytes()).unwrap_err().chain().contains("open another case"));
    assert!(Case::read(&vec![b' '; FILE_BYTES_MAX + 1]).is_err());
    for (text, is_fit) in [("x".repeat(entry::TEXT_BYTES_MAX), true), ("x".repeat(entry::TEXT_BYTES_MAX + 1), false)] {
        assert_eq!(note(1, &text).line().is_ok(), is_fit);
    }
    // Each of these bytes has six in JSON.
    assert!(note(1, &"\u{1}".repeat(entry::TEXT_BYTES_MAX)).line().is_err());
}

#[test]
fn facts_are_read_with_their_units_and_keep_their_history() {
    let pair = |text: &str| text.parse::<FactPair>().map(|pair| pair.value);
    for (text, value) in [
        ("rate_limit=90Mbit", FactValue::Number(90_000_000)),
        ("rate_limit=none", FactValue::Unlimited),
        ("burst=16MB", FactValue::Number(16_000_000)),
        ("mtu=9000", FactValue::Number(9000)),
        ("queue=1000 packets", FactValue::Text("1000 packets".to_owned())),
        ("kernel=2.6.17=patched", FactValue::Text("2.6.17=patched".to_owned())),
    ] {
        assert_eq!(pair(text), Ok(value), "{text}");
    }
    for wrong in ["", "rate_limit", "=x", "rate_limit=", "rate_limit=90", "burst=big", "Rate=1", "a b=c", "x=\u{20}"] {
        assert!(pair(wrong).is_err(), "{wrong}");
    }
    let fact = |day, text: &str| {
        let FactPair { key, value } = text.parse().unwrap();
        entry(day, Event::Fact(facts::Fact { domain: "geant.net".to_owned(), direction: None, key, value }))
    };
    let case = Case {
        entries: vec![fact(3, "rate_limit=155Mbit"), fact(1, "rate_limit=90Mbit"), fact(2, "burst=1MB")],
        ..Case::default()
    };
    let histories = history::histories(&case);
    assert_eq!(histories.len(), 2);
    let shown: Vec<String> = histories[0].values.iter().map(|one| histories[0].shown(&one.value)).collect();
    assert_eq!(shown, ["90.0 Mbit/s", "155 Mbit/s"]);
    assert_eq!(histories[0].at(EntryTime::from_unix(2 * 86_400)).len(), 1);
}
