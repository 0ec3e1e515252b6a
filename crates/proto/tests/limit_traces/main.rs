//! Replays recordings of copies under imposed limits in virtual time. The first limit and every stated fact must be
//! correct.
//!
//! A recording holds the samples of kernels and engines. `bench/limits.py --record` makes these files and writes the
//! imposed values at their head. CONTRIBUTING.md describes the procedure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sterna_proto::BitRate;
use sterna_proto::limit::trace::read_trace;
use sterna_proto::limit::{Accountant, Advice, Facts, Limit, LimitReport, remedy};

/// Largest relative error of a stated fact without a range.
const PRECISION: f64 = 0.1;

/// A recording with the imposed values.
struct Recording {
    name: String,
    first: Limit,
    facts: Vec<(String, f64)>,
    text: String,
}

impl Recording {
    fn read(path: &Path) -> Self {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(path).unwrap();
        let of_head = |kind: &'static str| text.lines().filter_map(move |line| line.strip_prefix(kind));
        let first = of_head("# first ").next().unwrap_or_else(|| panic!("{name} names no first limit"));
        let first = Limit::ALL.into_iter().find(|limit| limit.name() == first).unwrap();
        let fact = |line: &str| line.split_once(' ').map(|(fact, value)| (fact.to_owned(), value.parse().unwrap()));
        let facts = of_head("# fact ").filter_map(fact).collect();
        Self { name, first, facts, text }
    }

    fn replay(&self) -> LimitReport {
        let mut accountant = Accountant::default();
        let start = Instant::now();
        for (at, input) in read_trace(&self.text).unwrap() {
            input.apply(start + at, &mut accountant);
        }
        accountant.report()
    }
}

fn recordings() -> Vec<Recording> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/limit_traces");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|name| name == "txt")).collect();
    files.sort();
    files.iter().map(|path| Recording::read(path)).collect()
}

/// Returns a fact as the remedy of `first` states it, as a range; `None` if this remedy does not state the fact.
fn stated(name: &str, first: Limit, facts: &Facts) -> Option<(f64, f64)> {
    let exact = |value: f64| Some((value, value));
    let bytes = |(least, most): (BitRate, BitRate)| Some((least.0 as f64 / 8.0, most.0 as f64 / 8.0));
    match (name, first) {
        ("rtt_s", Limit::ReceiveWindow | Limit::SendBuffer) => exact(facts.rtt.as_secs_f64()),
        ("receive_buffer_max_bytes", Limit::ReceiveWindow) => exact(facts.receive_buffer_max.0 as f64),
        ("send_buffer_max_bytes", Limit::SendBuffer) => exact(facts.send_buffer_max.0 as f64),
        ("loss", Limit::Loss) => {
            let (least, most) = facts.loss_range_ppm();
            Some((least as f64 / 1e6, most as f64 / 1e6))
        }
        ("policed_bps", Limit::Policer) if facts.policed_is_least => Some((facts.policed.0 as f64, f64::INFINITY)),
        ("policed_bps", Limit::Policer) => exact(facts.policed.0 as f64),
        ("rate_bps", Limit::CongestionWindow) if !facts.is_growing => exact(facts.rate.0 as f64),
        ("rate_cap_bps", Limit::RateCap) => exact(facts.rate_cap.0 as f64),
        ("source_bytes_per_s", Limit::SourceDisk) => bytes(facts.disk_range(facts.source)),
        ("destination_bytes_per_s", Limit::DestinationDisk) => bytes(facts.disk_range(facts.destination)),
        ("cpu_at_receiver", Limit::Cpu) => exact(f64::from(u8::from(facts.cpu_at_receiver))),
        _ => None,
    }
}

#[test]
fn every_recorded_limit_is_named_first_with_facts_that_hold() {
    let mut wrong = Vec::new();
    for recording in recordings() {
        let (name, report) = (&recording.name, recording.replay());
        let (total, facts) = (report.total, report.facts);
        let said = remedy(recording.first, &facts);
        if total.first() != Some(recording.first) {
            wrong.push(format!("{name}: {:?} where {:?} was imposed", total.shares(), recording.first));
            continue;
        }
        for (fact, imposed) in &recording.facts {
            let Some((least, most)) = stated(fact, recording.first, &facts) else { continue };
            // A range this narrow is stated as one number.
            let is_near = (most - imposed).abs() <= imposed * PRECISION && least * 10.0 >= most * 9.0;
            // Texts show three significant digits.
            let is_within = (least * 0.99..=most * 1.01).contains(imposed);
            if !is_within && !is_near {
                wrong.push(format!("{name}: {fact} is {least} to {most} where {imposed} was imposed: {said:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_remedy_asks_for_less_than_the_copy_reached() {
    for recording in recordings() {
        let mut facts = recording.replay().facts;
        assert!(
            facts.reached.0 > 0 || facts.lanes == 0 || recording.first == Limit::NothingToSend,
            "{}",
            recording.name
        );
        facts.policed_is_least = false;
        let advice = remedy(Limit::Policer, &facts).and_then(|remedy| remedy.advice);
        let Some(Advice::QuicBelowPolicer { rate_bps }) = advice else { continue };
        assert!(rate_bps >= facts.reached.0, "{}: {rate_bps}, reached {}", recording.name, facts.reached);
    }
}

#[test]
fn recordings_are_of_every_limit_of_a_sender_and_of_moderate_size() {
    let recordings = recordings();
    let named: BTreeSet<&str> = recordings.iter().map(|recording| recording.first.name()).collect();
    let of_a_sender = Limit::ALL.into_iter().filter(|limit| *limit != Limit::ServerOrPath);
    let missing: Vec<&str> = of_a_sender.map(Limit::name).filter(|name| !named.contains(name)).collect();
    assert_eq!(missing, [""; 0], "recorded: {named:?}");
    recordings.iter().for_each(|recording| assert!(recording.text.len() < 60_000, "{} is large", recording.name));
}
