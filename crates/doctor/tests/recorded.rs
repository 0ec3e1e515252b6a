//! Examinations recorded in the lab: the same evidence gives the imposed verdict.
//!
//! Each file of `bundles/` is the evidence of one run of bench/doctor.py, compressed by zstd. Its name starts with the
//! imposed causes, the first one first, and their direction (`both` for causes without one):
//! `receive_buffer+random_loss.forward.…`.

#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sterna_doctor::bundle::Proof;
use sterna_doctor::case::examination::Examination;
use sterna_doctor::case::retest::{Asked, Fate, LimitOutcome, judge};
use sterna_doctor::evidence::{Direction, Evidence, Experiment, Outcome, Record};
use sterna_doctor::report::{About, Report};
use sterna_doctor::rules::diagnose;
use sterna_doctor::steps::{Bounds, Next, next};
use sterna_doctor::verdict::Cause;
use sterna_proto::BitRate;
use sterna_seeded::{Seeded, for_seeds};

/// Largest evidence, bytes.
const EVIDENCE_BYTES_MAX: usize = 16 << 20;

fn bundles() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles");
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn evidence(path: &Path) -> Evidence {
    let mut json = vec![0; EVIDENCE_BYTES_MAX];
    let compressed = fs::read(path).unwrap();
    let length = zstd_safe::decompress(&mut json[..], &compressed);
    let length = length.unwrap_or_else(|code| panic!("{}: {code}", path.display()));
    serde_json::from_slice(&json[..length]).unwrap()
}

#[test]
fn recorded_examinations_have_the_imposed_verdicts() {
    let mut wrong = Vec::new();
    let paths = bundles();
    assert!(paths.len() >= 10, "{paths:?}");
    for path in &paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut words = name.split('.');
        let imposed: Vec<&str> = words.next().unwrap().split('+').collect();
        let direction = words.next().unwrap();
        let found = diagnose(&evidence(path));
        let first = &found.verdicts[0];
        let is_direction = direction == "both" || first.direction.name() == direction;
        let named: Vec<String> = found.verdicts.iter().map(|verdict| verdict.limit.name()).collect();
        let words = found.verdicts.iter().map(|verdict| {
            format!("\n    {} {}: {:?}", verdict.limit.name(), verdict.direction.name(), verdict.evidence)
        });
        println!("{name}: {}", words.collect::<String>());
        if first.limit.name() != imposed[0] || !is_direction {
            wrong.push(format!("{name}: {:?} {}", first.limit, first.direction.name()));
        }
        if imposed == ["clean"] && found.verdicts.iter().any(|verdict| verdict.limit != Cause::Clean) {
            wrong.push(format!("{name}: trouble on a clean path: {named:?}"));
        }
        let ladder: Vec<&str> = imposed.iter().copied().filter(|one| named.iter().any(|name| name == one)).collect();
        if direction != "both" && ladder != imposed {
            // The second cause may be a step of the ladder only.
            let steps = found.ladder.iter().filter(|step| step.direction.name() == direction);
            let steps: Vec<String> = steps.map(|step| step.limit.name()).collect();
            if !imposed.iter().all(|one| named.iter().chain(&steps).any(|name| name == one)) {
                wrong.push(format!("{name}: {named:?}, {steps:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
}

/// Returns the rate of all packets of an experiment, bit/s, and the time of its data, milliseconds.
fn rate_and_time(experiment: &Experiment) -> (Option<u64>, u64) {
    match experiment {
        Experiment::Echo { spec } => {
            let rate = u64::from(spec.packet_bytes) * 8_000_000 / spec.interval_us;
            (Some(rate), u64::from(spec.ports * spec.per_port) * spec.interval_us / 1000)
        }
        Experiment::Flow { spec } => (spec.sender.pacing_bps.map(|bps| bps * u64::from(spec.streams)), spec.time_ms),
        Experiment::Train { spec, rest_ms } => (Some(spec.rate_bps), spec.time_ms + rest_ms),
        Experiment::Disk { .. } => (Some(0), 0),
    }
}

#[test]
fn experiments_keep_to_rate_and_time_whatever_comes_back() {
    let recorded: Vec<Evidence> = bundles().iter().map(|path| evidence(path)).collect();
    for_seeds("experiments", 400, |seed| {
        let mut draw = Seeded::new(seed);
        let most = draw.chance(800).then(|| BitRate(100_000 + draw.below(300_000_000)));
        let time = Duration::from_millis(1000 + draw.below(120_000));
        let bounds = Bounds { time: Some(time), rate_max: most, near_disk: None, far_disk: None };
        let of = &recorded[draw.index(recorded.len())];
        let mut so_far = Evidence { records: Vec::new(), ..of.clone() };
        let mut clock_ms = 0;
        while let Some(Next { purpose, direction, experiment }) = next(&so_far, &bounds) {
            let (rate, data_ms) = rate_and_time(&experiment);
            if let Some(most) = most {
                assert!(rate.is_some_and(|rate| rate <= most.0), "{purpose:?}: {rate:?} of {most}: {experiment:?}");
            }
            // Echoes come first, whatever the time is.
            let end = Duration::from_millis(clock_ms + data_ms);
            assert!(so_far.records.is_empty() || end <= time, "{purpose:?} ends at {end:?} of {time:?}");
            let other = &recorded[draw.index(recorded.len())];
            let source = if draw.chance(700) { of } else { other };
            let known = source.record(purpose, direction).filter(|_| draw.chance(900));
            let outcome = known.map_or(Outcome::Failed("lost".to_owned()), |record| record.outcome.clone());
            let time_ms = data_ms + draw.below(3000);
            so_far.records.push(Record { purpose, direction, start_ms: clock_ms, time_ms, experiment, outcome });
            clock_ms += time_ms;
            assert!(so_far.records.len() < 64, "{:?}", so_far.records.iter().map(|r| r.purpose).collect::<Vec<_>>());
        }
        diagnose(&so_far);
    });
}

/// Returns the numbers of a recorded examination, as the entry of a case has them.
fn examination(name: &str) -> Examination {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles").join(format!("{name}.json.zst"));
    let report = Report::new(&evidence(&path), &About::default());
    Examination::new("20261126T120000Z".parse().unwrap(), &report, &Proof::default())
}

#[test]
fn a_retest_tells_limits_that_are_gone_from_hidden_ones() {
    let policer = examination("policer.forward.cubic-policer-small-2002-0");
    let large = examination("policer.reverse.cubic-policer-large-2002-0");
    let clean = examination("clean.both.cubic-clean-2002-0");
    let buffer = examination("receive_buffer.reverse.cubic-receive-buffer-1001-0");
    let fates = |before: &Examination, now: &Examination| {
        let outcomes = judge(before, now, &Asked::default());
        println!("{:?}", outcomes.iter().map(LimitOutcome::words).collect::<Vec<_>>());
        outcomes.iter().map(|one| (one.limit, one.direction, one.fate)).collect::<Vec<_>>()
    };
    let (forward, reverse) = (Direction::Forward, Direction::Reverse);
    assert_eq!(fates(&policer, &policer), [(Cause::Policer, forward, Fate::StillThere)]);
    assert_eq!(fates(&policer, &clean), [(Cause::Policer, forward, Fate::Gone)]);
    assert_eq!(fates(&policer, &large), [(Cause::Policer, forward, Fate::Gone)]);
    assert_eq!(fates(&large, &buffer), [(Cause::Policer, reverse, Fate::Replaced)]);
    assert_eq!(fates(&buffer, &large), [(Cause::ReceiveBuffer, reverse, Fate::Replaced)]);
    // The connection is slower than the buffer allowed it to be, so the buffer may be as small as it was.
    let mut slower = clean.clone();
    slower.directions.iter_mut().for_each(|one| one.measured_bps = 20_000_000);
    assert_eq!(fates(&buffer, &slower), [(Cause::ReceiveBuffer, reverse, Fate::Open)]);
}
