//! Tests of lanes and their session when a thread panics, a lane is slow to close, or a disk is slow.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use sterna_proto::compress::CompressionPolicy;
use sterna_proto::session::{
    Answer, BlockData, BlockHeader, Capabilities, ControlSide, FileId, LINGER_DEFAULT, LOG_BYTES_MAX, Message,
    Overwrite,
};
use sterna_proto::{Checks, EntryKind, ErrorKind, FileEntry, FileTime, Phase, RelPath, Scope};
use tempfile::TempDir;

use super::*;
use crate::buffer::BufferPool;
use crate::disk::{Access, Destination, Root, Sources};
use crate::identity::Fingerprint;
use crate::lane::{LaneRx, LaneStats};
use crate::sink::{Prepared, Sink, Terms};
use crate::source::Roots;

mod sinks;
mod sources;

struct Silent;

impl Observer for Silent {
    fn session_event(&self, _: SessionEvent) {}
}

/// Lane without a transport, which records its close.
#[derive(Default)]
struct Unplugged {
    is_closed: AtomicBool,
}

impl LaneHandle for Unplugged {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }
    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }
    fn peer_addr(&self) -> SocketAddr {
        self.local_addr()
    }
    fn stats(&self) -> LaneStats {
        LaneStats::default()
    }
    fn close(&self, _: &str) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Discards everything, also on a lane that is down. With `panics`, sending a frame panics.
struct DiscardingTx {
    panics: bool,
}

impl LaneTx for DiscardingTx {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
        assert!(!self.panics, "a bug in the feeding half of a lane");
        Ok(())
    }
    fn block_begin(&mut self, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _: bytes::Bytes) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandon(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Reads until the lane is closed, then ends in order or by a panic.
struct ClosedRx {
    lane: Arc<Unplugged>,
    panics: bool,
}

impl LaneRx for ClosedRx {
    fn run(self: Box<Self>, _: &mut dyn LaneSink) -> Result<(), Error> {
        while !self.panics && !self.lane.is_closed.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        assert!(!self.panics, "a bug in the reading half of a lane");
        Ok(())
    }
}

/// Observer that blocks the report of the end of a session until it is released.
struct SlowToHear {
    is_reported: Barrier,
    let_go: Barrier,
    has_heard: AtomicBool,
}

impl Observer for SlowToHear {
    fn session_event(&self, event: SessionEvent) {
        if matches!(event, SessionEvent::Aborted(_)) {
            self.is_reported.wait();
            self.let_go.wait();
            self.has_heard.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_session_is_done_with_when_its_observer_has_heard_how_it_ended() {
    let observer = Arc::new(SlowToHear {
        is_reported: Barrier::new(2),
        let_go: Barrier::new(2),
        has_heard: AtomicBool::new(false),
    });
    let linger = Duration::from_secs(600);
    let heard = Arc::clone(&observer) as Arc<dyn Observer>;
    let end = Sender::start(
        Roots::new(Vec::new()),
        linger,
        false,
        Arc::default(),
        CompressionPolicy::Never,
        BufferPool::new(),
        heard,
    )
    .unwrap();
    let aborting = Arc::clone(&end);
    let aborted = thread::spawn(move || aborting.abort(Error::protocol("ended")));
    observer.is_reported.wait();
    assert!(end.is_over());
    let (done, is_done) = std::sync::mpsc::channel();
    let (asked, seen) = (Arc::clone(&end), Arc::clone(&observer));
    thread::spawn(move || done.send(asked.has_followed_up() && seen.has_heard.load(Ordering::SeqCst)));
    // The query must wait: an answer before the release of the observer would be wrong.
    let early = is_done.recv_timeout(Duration::from_millis(200));
    observer.let_go.wait();
    assert!(early.or_else(|_| is_done.recv()).unwrap());
    aborted.join().unwrap();
}

#[test]
fn a_panic_of_either_half_takes_the_lane_down() {
    for panics in [true, false] {
        let pool = BufferPool::new();
        let linger = Duration::from_secs(600);
        let end = Sender::start(
            Roots::new(Vec::new()),
            linger,
            false,
            Arc::default(),
            CompressionPolicy::Never,
            pool,
            Arc::new(Silent),
        )
        .unwrap();
        let handle = Arc::new(Unplugged::default());
        let lane = Lane {
            peer: Fingerprint([0; 32]),
            tx: Box::new(DiscardingTx { panics: true }),
            rx: Box::new(ClosedRx { lane: Arc::clone(&handle), panics }),
            handle: Arc::clone(&handle) as Arc<dyn LaneHandle>,
        };
        let (joined, id) = (Arc::clone(&end) as Arc<dyn End>, LaneId(1));
        let first = Some(Frame::Welcome(Capabilities::OURS));
        let ended = catch_unwind(AssertUnwindSafe(|| attach(joined, id, lane, first, &|| {})));
        assert_eq!(ended.is_err(), panics);
        assert!(handle.is_closed.load(Ordering::Relaxed));
        assert_eq!(end.progress().lanes, 0, "panics: {panics}");
    }
}

#[test]
fn a_session_that_is_over_sends_no_hello() {
    let (pool, silent) = (BufferPool::new(), Arc::new(Silent));
    let roots = Roots::new(Vec::new());
    let end =
        Sender::start(roots, LINGER_DEFAULT, false, Arc::default(), CompressionPolicy::Never, pool, silent).unwrap();
    end.abort(Error::protocol("ended"));
    assert!(end.is_over(), "no lane is up");
    let handle = Arc::new(Unplugged::default());
    let lane = Lane {
        peer: Fingerprint([0; 32]),
        // Sending a frame panics.
        tx: Box::new(DiscardingTx { panics: true }),
        rx: Box::new(ClosedRx { lane: Arc::clone(&handle), panics: true }),
        handle: Arc::clone(&handle) as Arc<dyn LaneHandle>,
    };
    let first = Some(Frame::Welcome(Capabilities::OURS));
    attach(Arc::clone(&end) as Arc<dyn End>, LaneId(1), lane, first, &|| {}).unwrap();
    assert!(handle.is_closed.load(Ordering::Relaxed));
}

/// Lane whose close blocks until every other lane closes too.
struct SlowToClose {
    together: Arc<Barrier>,
    closed: AtomicBool,
}

impl LaneHandle for SlowToClose {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }
    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }
    fn peer_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 2).into()
    }
    fn stats(&self) -> LaneStats {
        LaneStats::default()
    }
    fn close(&self, _: &str) {
        self.together.wait();
        self.closed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_feeder_of_a_lane_that_went_down_before_it_looked_ends() {
    let directory = tempfile::tempdir().unwrap();
    let silent = Arc::new(Silent) as Arc<dyn Observer>;
    let (roots, pool) = (Roots::new(Vec::new()), BufferPool::new());
    let sender =
        Sender::start(roots, LINGER_DEFAULT, false, Arc::default(), CompressionPolicy::Never, pool, silent).unwrap();
    let control = ControlEnd::new(ControlSide::Command, LINGER_DEFAULT, Box::new(|_| {}));
    let ends: [Arc<dyn End>; 3] = [sender, receiver(&directory).0, control];
    for end in ends {
        end.lane_up(LaneId(7));
        end.lane_down(LaneId(7));
        let (fed, fed_end) = channel();
        thread::spawn(move || fed.send(feed(&*end, LaneId(7), Box::new(DiscardingTx { panics: false }), None)));
        fed_end.recv_timeout(Duration::from_secs(120)).expect("the feeder waits for ever").unwrap();
    }
}

#[test]
fn a_query_that_is_stopped_waits_no_longer_for_its_command() {
    const TEXT: usize = 1000;
    let control = ControlEnd::new(ControlSide::Agent, LINGER_DEFAULT, Box::new(|_| {}));
    let (is_stopped, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (answering, stop, count) = (Arc::clone(&control), Arc::clone(&is_stopped), Arc::clone(&sent));
    let (end, ended) = channel();
    thread::spawn(move || {
        let failed = || Answer::Failed(Error::new(ErrorKind::Io, Scope::Source, Phase::Prepare, "x".repeat(TEXT)));
        while answering.answer(failed(), || stop.load(Ordering::Relaxed)) {
            count.fetch_add(TEXT, Ordering::Relaxed);
        }
        let _ = end.send(());
    });
    // Nobody acknowledges: the log fills up. An answer is a little longer than its text.
    wait_until("full log", || sent.load(Ordering::Relaxed) >= LOG_BYTES_MAX - LOG_BYTES_MAX / 16);
    is_stopped.store(true, Ordering::Relaxed);
    control.wake().notify();
    ended.recv_timeout(Duration::from_secs(120)).expect("the query waits for its command");
}

#[test]
fn lanes_that_are_slow_to_close_do_not_wait_for_each_other() {
    let together = Arc::new(Barrier::new(8));
    let lane = || Arc::new(SlowToClose { together: Arc::clone(&together), closed: AtomicBool::new(false) });
    let lanes: Vec<Arc<SlowToClose>> = (0..8).map(|_| lane()).collect();
    close_all(lanes.iter().map(|lane| Arc::clone(lane) as Arc<dyn LaneHandle>), "over");
    assert!(lanes.iter().all(|lane| lane.closed.load(Ordering::Relaxed)));
}

/// Time after which a test gives up on an event. Reason: far above the time on the slowest machine; it is no
/// guarantee.
const PATIENCE: Duration = Duration::from_secs(60);

const LANE: LaneId = LaneId(1);

fn entry(path: &str, kind: EntryKind, size: u64) -> FileEntry {
    let path = RelPath::new(path.as_bytes()).unwrap();
    let mode = if kind == EntryKind::File { 0o644 } else { 0o555 };
    FileEntry {
        path,
        kind,
        size,
        mtime: FileTime::default(),
        mode,
        allocated: size,
        inode: 1,
        version: 1,
        growth: None,
    }
}

/// Returns a receiver that writes beneath a directory and has one lane.
fn receiver(directory: &TempDir) -> (Arc<Receiver>, Destination) {
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let destination = Destination::resolve(&root, b"", Sources::Many).unwrap();
    let options = ReceiverOptions::new(Arc::new(destination.clone()));
    let receiver = Receiver::start(options, Arc::new(Silent)).unwrap();
    receiver.lane_up(LANE);
    (receiver, destination)
}

fn deliver(receiver: &Receiver, first: u64, messages: &[Message]) {
    let encoded = messages.iter().flat_map(Message::encode).collect();
    receiver.handle_frame(Frame::Messages { first, encoded }).unwrap();
}

/// Returns the messages that the receiver has to send now. Panics if the receiver does not answer at all.
fn said(receiver: &Arc<Receiver>) -> Vec<Message> {
    let (answer, answered) = channel();
    let asked = Arc::clone(receiver);
    thread::spawn(move || {
        let mut messages = Vec::new();
        while let Work::Frame(frame) = asked.next_work(LANE) {
            if let Frame::Messages { encoded, .. } = frame {
                messages.extend(Message::decode_all(&encoded).unwrap());
            }
        }
        // Nobody receives the answer when the test is over.
        let _ = answer.send(messages);
    });
    answered.recv_timeout(PATIENCE).expect("a session that answers its lanes")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < until, "no {what} in time");
        thread::yield_now();
    }
}

#[test]
fn a_disk_that_is_slow_to_finish_directories_holds_up_no_lane_and_the_sender_stays_until_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, destination) = receiver(&directory);
    let slow = destination.hold_up();
    let offer = Message::Offer { file: FileId(0), entry: entry("d", EntryKind::Directory, 0) };
    deliver(&receiver, 0, &[offer, Message::OffersEnd { files: 1, bytes: 0 }]);
    let made = directory.path().join("d");
    let mode = || std::fs::metadata(&made).map_or(0, |meta| meta.permissions().mode() & 0o777);
    wait_until("mode of the directory", || mode() == 0o555);
    // Its name is not durable yet.
    let early = said(&receiver);
    assert!(matches!(early[..], [Message::Done { file: FileId(0), .. }]), "{early:?}");
    drop(slow);
    wait_until("last word", || matches!(said(&receiver)[..], [Message::Finished]));
}

#[test]
fn what_is_of_no_use_of_a_file_is_gone_before_its_directory_is_finished() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, _) = receiver(&directory);
    let offers = [entry("d", EntryKind::Directory, 0), entry("d/f", EntryKind::File, 2 << 20)];
    for (file, entry) in offers.into_iter().enumerate() {
        deliver(&receiver, file as u64, &[Message::Offer { file: FileId(file as u64), entry }]);
    }
    let made = directory.path().join("d");
    let names = || std::fs::read_dir(&made).map_or(0, Iterator::count);
    wait_until("part file", || names() == 1);
    let error = Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, "it grew");
    deliver(
        &receiver,
        2,
        &[Message::Withdraw { file: FileId(1), error }, Message::OffersEnd { files: 2, bytes: 2 << 20 }],
    );
    wait_until("last word", || said(&receiver).iter().any(|m| matches!(m, Message::Finished)));
    assert_eq!(names(), 0);
    assert_eq!(std::fs::metadata(&made).unwrap().modified().unwrap(), std::time::UNIX_EPOCH);
}

#[test]
fn a_session_that_waits_for_a_file_does_not_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, destination) = receiver(&directory);
    let wanted = entry("f", EntryKind::File, 2 << 20);
    let terms = Terms { overwrite: Overwrite::Always, checks: Checks::NONE };
    let elsewhere = destination.prepare(&wanted, &terms).unwrap();
    assert!(matches!(elsewhere, Prepared::Incoming(_)));
    let place = destination.place_of(&wanted.path).unwrap();
    deliver(&receiver, 0, &[Message::Offer { file: FileId(0), entry: wanted }]);
    wait_until("word to wait", || said(&receiver).iter().any(|m| matches!(m, Message::Wait { file: FileId(0) })));
    assert!(!receiver.holds(&place), "it would be ended for the sake of itself");
    drop(elsewhere);
    wait_until("word to go on", || said(&receiver).iter().any(|m| matches!(m, Message::Want { file: FileId(0), .. })));
    assert!(receiver.holds(&place));
}

#[test]
fn a_process_that_stops_leaves_no_part_file_without_a_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, _) = receiver(&directory);
    let names = || std::fs::read_dir(directory.path()).map_or(0, Iterator::count);
    let mut sink = Arc::clone(&receiver).block_sink(LANE);
    let header = |file: u64, entry: &FileEntry| {
        BlockHeader::Single { file: FileId(file), entry: entry.clone(), index: 0, data: BlockData::Raw }.encode()
    };
    // One file has a part of a block, which a lane is receiving, and one has nothing.
    let (begun, empty) = (entry("begun", EntryKind::File, 2 << 20), entry("empty", EntryKind::File, 2 << 20));
    for (file, entry) in [&begun, &empty].into_iter().enumerate() {
        deliver(&receiver, file as u64, &[Message::Offer { file: FileId(file as u64), entry: entry.clone() }]);
    }
    wait_until("part files", || names() == 2);
    sink.begin(0, &header(0, &begun), 1 << 20).unwrap();
    sink.data(0, 0, &[7; 1000]).unwrap();
    receiver.end_files();
    assert_eq!(names(), 0, "while a lane still has a file open");
    // Lanes and offers may come until the process has ended.
    sink.data(0, 1000, &[7; 1000]).unwrap();
    let late = entry("late", EntryKind::File, 2 << 20);
    deliver(&receiver, 2, &[Message::Offer { file: FileId(2), entry: late.clone() }]);
    sink.begin(1, &header(2, &late), 1 << 20).unwrap();
    receiver.end_files();
    assert_eq!(names(), 0);
}
