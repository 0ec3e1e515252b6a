//! Copies of the engine.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sterna_net::engine::{CopyEvent, CopyKind, CopySpec, Engine, Next};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, ErrorKind, Scope};

use crate::served::{OneKey, Served, local};

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
    let stranger = Engine::new(Identity::ephemeral().unwrap(), Arc::new(OneKey(Fingerprint([0; 32]))));
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
