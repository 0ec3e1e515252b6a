//! Tests of whole sessions within this process: a sender and a receiver, with every kind of sink.

use std::fs;
use std::path::Path;

use sterna_proto::BlockDigest;
use sterna_proto::session::FileOutcome;

use super::*;
use crate::lane::in_process::InProcessTx;
use crate::sink::tests::fixture::{Fixture, KINDS};
use crate::source::SourcePlace;

/// Lanes of blocks besides the lane for control frames.
const LANES: u32 = 2;

/// Bytes of a file of several blocks.
const LARGE: usize = (5 << 20) + 7;

#[derive(Default)]
struct Reported(Mutex<Vec<SessionEvent>>);

impl Observer for Reported {
    fn session_event(&self, event: SessionEvent) {
        self.0.lock().push(event);
    }
}

impl Reported {
    fn outcomes(&self) -> Vec<(String, FileOutcome)> {
        let mut outcomes: Vec<(String, FileOutcome)> = Vec::new();
        for event in &*self.0.lock() {
            if let SessionEvent::Settled { entry, outcome } = event {
                outcomes.push((entry.path.to_string(), outcome.clone()));
            }
        }
        outcomes.sort_by(|(one, _), (two, _)| one.cmp(two));
        outcomes
    }

    fn notices(&self) -> Vec<String> {
        let events = self.0.lock();
        let notices = events.iter().filter_map(|event| match event {
            SessionEvent::Notice(text) => Some(text.clone()),
            _ => None,
        });
        notices.collect()
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]).collect()
}

/// Copies the content of a directory in one session.
fn copy(source: &Path, fixture: &Fixture, dry_run: bool) -> Arc<Reported> {
    let root = Root::open(source, Access::ReadOnly).unwrap();
    let roots = Roots::new(vec![SourcePlace { root, pattern: b".".to_vec(), name: None }]);
    let (pool, silent) = (BufferPool::new(), Arc::new(Silent));
    let sender =
        Sender::start(roots, LINGER_DEFAULT, dry_run, Arc::default(), CompressionPolicy::Never, pool, silent).unwrap();
    let reported = Arc::<Reported>::default();
    let checks = Checks { crc32c: true, ..Checks::NONE };
    let options = ReceiverOptions { checks, dry_run, ..ReceiverOptions::new(fixture.sink()) };
    let receiver = Receiver::start(options, Arc::clone(&reported) as Arc<dyn Observer>).unwrap();
    let ends: [Arc<dyn End>; 2] = [Arc::clone(&sender) as _, Arc::clone(&receiver) as _];
    ends.iter().for_each(|end| (0..=LANES).for_each(|lane| end.lane_up(LaneId(lane))));
    thread::scope(|scope| {
        let start_lane = |from: &Arc<dyn End>, to: &Arc<dyn End>, lane: LaneId| {
            let (from, sink) = (Arc::clone(from), SessionSink::new(Arc::clone(to), lane));
            scope.spawn(move || feed(&*from, lane, Box::new(InProcessTx::new(Box::new(sink))), None).unwrap());
        };
        start_lane(&ends[1], &ends[0], LaneId(0));
        (0..=LANES).for_each(|lane| start_lane(&ends[0], &ends[1], LaneId(lane)));
        let is_over = || ends.iter().all(|end| end.is_over());
        wait_until("end of the session", || {
            ends.iter().for_each(|end| end.tick());
            receiver.wake().wait_until(Duration::from_millis(25), is_over);
            is_over()
        });
    });
    receiver.join();
    reported
}

/// Creates a source with a file of each kind in a directory.
fn source() -> TempDir {
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("d")).unwrap();
    for (name, size) in [("d/empty", 0), ("d/small", 9), ("large", LARGE)] {
        fs::write(source.path().join(name), pattern(size)).unwrap();
    }
    fs::File::create(source.path().join("d/hole")).unwrap().set_len(3 << 20).unwrap();
    source
}

const NAMES: [&str; 5] = ["d", "d/empty", "d/hole", "d/small", "large"];

#[test]
fn a_session_writes_the_same_to_every_sink_and_the_next_one_finds_it_up_to_date() {
    let source = source();
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let first = copy(source.path(), &fixture, false);
        let outcomes = first.outcomes();
        assert!(outcomes.iter().map(|(name, _)| name).eq(NAMES.iter()), "{outcomes:?}");
        assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, FileOutcome::Done(_))), "{outcomes:?}");
        assert_eq!((fixture.names(), first.notices()), (NAMES.map(str::to_owned).to_vec(), Vec::new()));
        for name in &NAMES[1..] {
            assert!(fixture.read(name).unwrap() == fs::read(source.path().join(name)).unwrap(), "{name}");
        }
        for name in NAMES {
            let path = source.path().join(name);
            let (mode, mtime) = fixture.metadata(name).unwrap();
            let meta = fs::metadata(path).unwrap();
            let since = meta.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
            assert_eq!((u32::from(mode), mtime.nanoseconds), (meta.permissions().mode() & 0o777, since.subsec_nanos()));
        }
        let again = copy(source.path(), &fixture, false).outcomes();
        let is_skipped =
            |(name, outcome): &(String, FileOutcome)| name == "d" || matches!(outcome, FileOutcome::Skipped);
        assert!(again.len() == NAMES.len() && again.iter().all(is_skipped), "{again:?}");
    }
}

#[test]
fn a_dry_run_writes_to_no_sink() {
    let source = source();
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        assert_eq!(copy(source.path(), &fixture, true).outcomes().len(), NAMES.len());
        assert_eq!(fixture.names(), [""; 0]);
    }
}

#[test]
fn a_session_resumes_from_every_sink_and_sends_a_damaged_block_again() {
    let source = tempfile::tempdir().unwrap();
    let data = pattern(LARGE);
    fs::write(source.path().join("large"), &data).unwrap();
    let root = Root::open(source.path(), Access::ReadOnly).unwrap();
    let entry = root.open_source(&RelPath::new(b"large").unwrap()).unwrap().entry().unwrap();
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let terms = Terms { overwrite: Overwrite::IfChanged, checks: Checks::NONE };
        let Prepared::Incoming(file) = fixture.sink().prepare(&entry, &terms).unwrap() else { panic!("no blocks") };
        let map = entry.blocks();
        for index in 0..3 {
            let block = &data[map.offset(index) as usize..][..map.length(index) as usize];
            file.write_at(map.offset(index), block).unwrap();
            file.record(index, BlockDigest::of(&map, index, Checks::NONE, block)).unwrap();
        }
        file.checkpoint().unwrap();
        drop(file);
        fixture.damage("large", map.offset(1) + 5);
        let reported = copy(source.path(), &fixture, false);
        let (outcomes, notices) = (reported.outcomes(), reported.notices());
        assert!(matches!(outcomes[..], [(_, FileOutcome::Done(_))]), "{outcomes:?}");
        assert!(matches!(&notices[..], [text] if text.contains("sent again: 1")), "{notices:?}");
        assert!(fixture.read("large").unwrap() == data);
    }
}
