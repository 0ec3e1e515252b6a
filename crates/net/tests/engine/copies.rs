//! Copies of the engine.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_net::engine::{CopyEvent, CopyKind, CopySpec, Engine, Next, ViaChoice};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_proto::budget::{Bounds, Budgets, Class, ClassId};
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::plan::Via;
use sterna_proto::rate::RateContract;
use sterna_proto::session::PathNumber;
use sterna_proto::{BitRate, ErrorKind, Location, Scope};

use crate::served::{Keys, Served, local};

#[test]
fn ten_copies_at_once_end_each_with_its_own_files() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(to.path());
    let engine = served.engine();
    let started = (0..10_u8).map(|number| {
        let source = from.path().join(format!("file{number}"));
        std::fs::write(&source, vec![number; 3_000_000 + usize::from(number)]).unwrap();
        let spec = CopySpec::new(vec![local(&source)], served.at(&format!("copy{number}")));
        assert_eq!(engine.plan(&spec).unwrap(), CopyKind::Agent);
        engine.start(spec).unwrap()
    });
    // All of them run before the first is waited for.
    for (number, copy) in started.collect::<Vec<_>>().into_iter().enumerate() {
        let mut is_up = false;
        loop {
            match copy.next(Duration::MAX) {
                Next::Event(CopyEvent::LaneUp { .. }) => is_up = true,
                Next::Event(_) | Next::Nothing => {}
                Next::Ended => break,
            }
        }
        let counters = copy.snapshot().unwrap().session.counters;
        let summary = copy.wait().unwrap();
        assert!(is_up && summary.failed == 0, "{summary:?}");
        assert_eq!((summary.done, summary.bytes), (1, 3_000_000 + number as u64));
        assert_eq!(counters.bytes_done, summary.bytes);
        let copied = std::fs::read(to.path().join(format!("copy{number}"))).unwrap();
        assert!(copied.len() == 3_000_000 + number && copied.iter().all(|&byte| usize::from(byte) == number));
    }
}

#[test]
fn a_cancelled_copy_ends_and_the_next_one_resumes() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(to.path());
    let source = from.path().join("data");
    std::fs::write(&source, vec![7; 40_000_000]).unwrap();
    let mut spec = CopySpec::new(vec![local(&source)], served.at("data"));
    // The whole takes 1.6 s.
    let rate = Some(BitRate::megabits(200));
    spec.paths[0].contract = RateContract { ceiling: rate, target: rate, ..RateContract::default() };
    spec.compress = sterna_proto::compress::CompressionPolicy::Never;
    let engine = served.engine();
    let copy = engine.start(spec.clone()).unwrap();
    while copy.snapshot().is_none_or(|now| now.session.counters.bytes_done < 20_000_000) {
        assert!(!matches!(copy.next(Duration::from_millis(10)), Next::Ended));
    }
    copy.cancel();
    let failure = copy.wait().unwrap_err();
    assert_eq!(failure.error.kind, ErrorKind::Cancelled);
    assert_eq!(failure.summary.unwrap().done, 0);
    spec.paths[0].contract = RateContract::default();
    // The first blocks travel again: their lanes take them before the receiver has reported what it has.
    let summary = engine.start(spec).unwrap().wait().unwrap();
    assert!(summary.done == 1 && summary.counters.bytes_held >= 1 << 20, "{summary:?}");
    assert_eq!(std::fs::read(to.path().join("data")).unwrap(), vec![7; 40_000_000]);
}

/// Copies `source` at a rate at which it would take ten minutes, and lifts the rate once a lane is up.
fn copy_faster_than_it_began(engine: &Engine, sources: Vec<Location>, destination: Location, via: Via) {
    let mut spec = CopySpec::new(sources, destination);
    spec.paths[0].contract = RateContract::of_rate(Some(SLOW));
    spec.paths[0].via = ViaChoice::Only(via);
    spec.compress = CompressionPolicy::Never;
    let copy = engine.start(spec).unwrap();
    while !matches!(copy.next(HANG), Next::Event(CopyEvent::LaneUp { .. })) {}
    copy.set_rate(PathNumber(0), RateContract::default()).unwrap();
    let until = Instant::now() + HANG;
    loop {
        match copy.next(HANG) {
            Next::Ended => break,
            _ => assert!(Instant::now() < until, "{via}: the copy keeps its rate: {:?}", copy.snapshot()),
        }
    }
    assert_eq!(copy.wait().unwrap().done, 1);
}

/// A file of [`FAST_BYTES`] takes ten minutes.
const SLOW: BitRate = BitRate(256_000);
const FAST_BYTES: usize = 20_000_000;

/// Time after which a test fails that would hang.
const HANG: Duration = Duration::from_secs(120);

#[test]
fn a_new_rate_reaches_the_end_that_sends() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(theirs.path());
    let (here, back) = (ours.path().join("data"), ours.path().join("back"));
    std::fs::write(&here, vec![7; FAST_BYTES]).unwrap();
    for via in [Via::Tcp, Via::Quic] {
        copy_faster_than_it_began(&served.engine(), vec![local(&here)], served.at(&format!("{via}")), via);
        copy_faster_than_it_began(&served.engine(), vec![served.at(&format!("{via}"))], local(&back), via);
        assert_eq!(std::fs::read(&back).unwrap().len(), FAST_BYTES);
        std::fs::remove_file(&back).unwrap();
    }
}

#[test]
fn a_new_rate_reaches_the_agent_that_runs_a_third_party_copy() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, destination) = (Served::start(from.path()), Served::start(to.path()));
    std::fs::write(from.path().join("data"), vec![7; FAST_BYTES]).unwrap();
    let keys = Arc::new(Keys(vec![source.trust().0[0], destination.trust().0[0]]));
    let engine = Engine::new(Identity::ephemeral().unwrap(), keys);
    copy_faster_than_it_began(&engine, vec![source.at("data")], destination.at("data"), Via::Quic);
    assert_eq!(std::fs::read(to.path().join("data")).unwrap().len(), FAST_BYTES);
}

#[test]
fn a_copy_borrows_what_another_class_does_not_use() {
    const ALL: u64 = 800_000_000;
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(theirs.path());
    let here = ours.path().join("data");
    std::fs::write(&here, vec![7; FAST_BYTES]).unwrap();
    let class = |name: &str, guarantee| {
        let rate = Bounds { guarantee: BitRate(guarantee), ceiling: Some(BitRate(ALL)) };
        Class { name: name.to_owned(), rate, ..Class::default() }
    };
    let mut budgets = Budgets::new(class("process", 0)).unwrap();
    let urgent = budgets.add(ClassId::ROOT, class("urgent", ALL - 8 * SLOW.0)).unwrap();
    let bulk = budgets.add(ClassId::ROOT, class("bulk", 0)).unwrap();
    let engine = served.engine().with_budgets(budgets);
    let start = |class, destination: Location| {
        let mut spec = CopySpec::new(vec![local(&here)], destination);
        spec.paths[0].via = ViaChoice::Only(Via::Tcp);
        spec.compress = CompressionPolicy::Never;
        engine.start(CopySpec { class, ..spec }).unwrap()
    };
    // The first copy has its part while it dials an agent that does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Location::parse(format!("sterna://{}/", silent.local_addr().unwrap()).as_ref()).unwrap();
    let first = start(urgent, silent);
    let second = start(bulk, served.at("data"));
    while !matches!(second.next(HANG), Next::Event(CopyEvent::LaneUp { .. })) {}
    assert!(second.snapshot().is_none_or(|now| now.session.counters.bytes_done < FAST_BYTES as u64 / 2));
    first.cancel();
    assert_eq!(first.wait().unwrap_err().error.kind, ErrorKind::Cancelled);
    let until = Instant::now() + HANG;
    while !matches!(second.next(HANG), Next::Ended) {
        assert!(Instant::now() < until, "the copy keeps its rate: {:?}", second.snapshot());
    }
    assert_eq!(second.wait().unwrap().done, 1);
}

#[test]
fn a_wrong_rate_is_refused_with_its_reason() {
    let to = tempfile::tempdir().unwrap();
    let served = Served::start(to.path());
    let copy = served.engine().start(CopySpec::new(vec![served.at("missing")], local(&to.path().join("x")))).unwrap();
    let refused = |path, contract| copy.set_rate(PathNumber(path), contract).unwrap_err().to_string();
    let rate = |megabits| Some(BitRate::megabits(megabits));
    assert!(refused(1, RateContract::default()).contains("the copy has 1"), "{}", refused(1, RateContract::default()));
    let above = RateContract { ceiling: rate(1), target: rate(2), ..RateContract::default() };
    assert!(
        refused(0, above).contains("the target 2.00 Mbit/s is above the ceiling 1.00 Mbit/s"),
        "{}",
        refused(0, above)
    );
    let least = RateContract::of_rate(Some(BitRate(1)));
    assert!(refused(0, least).contains("the least is 64.0 kbit/s"), "{}", refused(0, least));
}

#[test]
fn wrong_usage_is_an_error_of_the_start_and_everything_else_of_the_end() {
    let to = tempfile::tempdir().unwrap();
    let served = Served::start(to.path());
    let engine = served.engine();
    let usage = engine.start(CopySpec::new(vec![local(Path::new("/a"))], local(Path::new("/b")))).err().unwrap();
    assert_eq!(usage.kind, ErrorKind::Usage);
    let missing = CopySpec::new(vec![local(&to.path().join("missing"))], served.at("x"));
    let summary = engine.start(missing).unwrap().wait().unwrap();
    assert_eq!((summary.failed, summary.failures[0].scope), (1, Scope::Source));
    let stranger = Engine::new(Identity::ephemeral().unwrap(), Arc::new(Keys(vec![Fingerprint([0; 32])])));
    let untrusted = stranger.start(CopySpec::new(vec![served.at("data")], local(&to.path().join("out")))).unwrap();
    assert_eq!(untrusted.wait().unwrap_err().error.kind, ErrorKind::Untrusted);
}

#[test]
fn a_reader_that_went_away_does_not_hold_a_copy_up() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(to.path());
    for number in 0..3000 {
        std::fs::write(from.path().join(format!("{number}")), [1]).unwrap();
    }
    drop(served.engine().start(CopySpec::new(vec![local(from.path())], served.at(""))).unwrap());
    let copied = to.path().join(from.path().file_name().unwrap());
    let count = || std::fs::read_dir(&copied).map_or(0, |names| names.filter_map(Result::ok).count());
    while count() < 3000 {
        thread::yield_now();
    }
}
