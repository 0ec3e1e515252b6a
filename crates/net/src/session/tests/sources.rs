//! Tests of a sender alone, with a receiver that the test plays: sources that are removed when they have arrived, and
//! files that others write to.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use sterna_proto::FileDigests;
use sterna_proto::session::{BlockOrder, BlockTask, FileOutcome};

use super::*;
use crate::source::{self, Extent, FileReader, OfferedFile, Source, SourceDisposition, SourcePlace};
use crate::sys;

const LANE: LaneId = LaneId(1);
const MIB: usize = 1 << 20;

/// Records the events of a sender.
#[derive(Default)]
struct Reported(Mutex<Vec<SessionEvent>>);

impl Observer for Reported {
    fn session_event(&self, event: SessionEvent) {
        self.0.lock().push(event);
    }
}

/// Lane that keeps the data of blocks.
#[derive(Default)]
struct Taken {
    data: Vec<u8>,
    ended: usize,
}

impl LaneTx for Taken {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_begin(&mut self, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.data.extend_from_slice(&data);
        Ok(())
    }
    fn block_end(&mut self, _: &[u8]) -> Result<(), Error> {
        self.ended += 1;
        Ok(())
    }
    fn block_abandon(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Sender of one file, `source`, in a separate directory.
struct OneFile {
    directory: TempDir,
    sender: Arc<Sender>,
    reported: Arc<Reported>,
    taken: Taken,
    /// True if the file was offered as a held file, which is read again as a whole.
    is_held: bool,
    messages: u64,
}

impl OneFile {
    fn new(bytes: &[u8], disposition: Option<SourceDisposition>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("source"), bytes).unwrap();
        Self::of(directory, disposition)
    }

    fn of(directory: TempDir, disposition: Option<SourceDisposition>) -> Self {
        let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
        let sources = Roots::new(vec![SourcePlace { root, pattern: b"source".to_vec(), name: None }]);
        Self::reading(directory, sources, disposition)
    }

    fn reading(directory: TempDir, sources: Arc<dyn Source>, disposition: Option<SourceDisposition>) -> Self {
        let reported = Arc::<Reported>::default();
        let observer = Arc::clone(&reported) as Arc<dyn Observer>;
        let pool = BufferPool::new();
        let sender =
            Sender::start(sources, LINGER_DEFAULT, false, Arc::default(), CompressionPolicy::Never, pool, observer)
                .unwrap();
        disposition.into_iter().for_each(|disposition| sender.set_disposition(disposition).unwrap());
        sender.lane_up(LANE);
        Self { directory, sender, reported, taken: Taken::default(), is_held: false, messages: 0 }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    /// Returns the next block, which is available now or soon.
    fn next_block(&self) -> BlockTask {
        loop {
            let seen = self.sender.wake().seen();
            match self.sender.next_work(LANE) {
                Work::Block(task) => return task,
                Work::Frame(_) => {}
                Work::Idle(until) => self.sender.wake().wait_to(seen, until),
                Work::Over | Work::Down => panic!("the session is over: {:?}", self.reported.0.lock()),
            }
        }
    }

    /// Sends `count` blocks.
    fn send(&mut self, count: usize) {
        for _ in 0..count {
            let task = self.next_block();
            self.is_held = matches!(&task, BlockTask::Single { entry, .. } if entry.growth.is_some());
            self.sender.send_block(LANE, task, &mut self.taken).unwrap();
        }
    }

    fn hear(&mut self, message: &Message) {
        let frame = Frame::Messages { first: self.messages, encoded: message.encode() };
        self.messages += 1;
        self.sender.handle_frame(frame).unwrap();
    }

    /// Plays the receiver: reports the file as done, with the digests of `bytes`.
    fn hear_done(&mut self, bytes: &[u8]) -> FileOutcome {
        self.hear(&Message::Done { file: FileId(0), digests: FileDigests::of(bytes, Checks::NONE) });
        while !self.sender.has_followed_up() {
            thread::yield_now();
        }
        self.outcome()
    }

    fn outcome(&self) -> FileOutcome {
        let mut reported = self.reported.0.lock();
        let at = reported.iter().position(|event| matches!(event, SessionEvent::Settled { .. }));
        match at.map(|at| reported.swap_remove(at)) {
            Some(SessionEvent::Settled { outcome, .. }) => outcome,
            _ => panic!("no outcome: {reported:?}"),
        }
    }
}

impl OneFile {
    /// Returns the first message with the final digest of the file, or with its withdrawal. It is available now or
    /// soon.
    fn verdict(&self) -> Message {
        loop {
            let seen = self.sender.wake().seen();
            let Work::Frame(Frame::Messages { encoded, .. }) = self.sender.next_work(LANE) else {
                self.sender.wake().wait(seen, Duration::from_millis(25));
                continue;
            };
            let messages = Message::decode_all(&encoded).unwrap();
            let is_verdict =
                |message: &Message| matches!(message, Message::FinalDigest { .. } | Message::Withdraw { .. });
            if let Some(verdict) = messages.into_iter().find(is_verdict) {
                return verdict;
            }
        }
    }

    /// Creates a file of 3 MiB of one byte that a process has mapped. The writer has written to all of it.
    fn mapped(byte: u8) -> (Self, sys::MappedFile) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("source"), vec![0; 3 * MIB]).unwrap();
        let mut writer = sys::MappedFile::new(&directory.path().join("source"));
        writer.fill(byte);
        (Self::of(directory, None), writer)
    }
}

#[test]
fn a_file_that_is_written_through_a_map_while_it_is_read_is_not_published() {
    let (mut copy, mut writer) = OneFile::mapped(1);
    copy.send(1);
    // No time of the file shows this write: its pages are dirty already.
    writer.fill(2);
    copy.send(2);
    copy.hear(&Message::Have { file: FileId(0), blocks: vec![(0, 3)] });
    // The receiver compares this digest with that of its file.
    assert!(copy.is_held, "it is not read once more");
    let Message::FinalDigest { blake3, .. } = copy.verdict() else { panic!("it cannot be sent") };
    assert!(blake3 != *blake3::hash(&copy.taken.data).as_bytes(), "a torn copy is published");
}

#[test]
fn a_file_that_nobody_writes_to_is_copied_though_it_is_mapped() {
    let (mut copy, writer) = OneFile::mapped(1);
    copy.send(3);
    copy.hear(&Message::Have { file: FileId(0), blocks: vec![(0, 3)] });
    assert!(copy.is_held, "it is not read once more");
    let Message::FinalDigest { blake3, .. } = copy.verdict() else { panic!("it cannot be sent") };
    assert_eq!(blake3, *blake3::hash(&copy.taken.data).as_bytes());
    drop(writer);
}

#[test]
fn a_file_that_is_opened_for_writing_after_it_was_listed_has_changed() {
    let mut copy = OneFile::new(&pattern(3 * MIB), None);
    copy.send(1);
    let writer = fs::File::options().append(true).open(copy.path()).unwrap();
    copy.send(1);
    assert_eq!((copy.taken.ended, copy.is_held), (1, false), "the second block counts");
    let Message::Withdraw { error, .. } = copy.verdict() else { panic!("it is sent on") };
    assert_eq!((error.kind, error.scope), (ErrorKind::Changed, Scope::Source));
    assert!(error.text().contains("opened it for writing"), "{error}");
    drop(writer);
}

#[test]
fn a_small_file_that_is_open_for_writing_is_read_twice() {
    let copy = OneFile::new(b"as it is", None);
    let root = Root::open(copy.directory.path(), Access::ReadOnly).unwrap();
    let source = root.open_source(&RelPath::new(b"source").unwrap()).unwrap();
    // Without a writer, the file is not checked by content.
    source.check_steady(0, b"as it was").unwrap();
    let writer = fs::File::options().append(true).open(copy.path()).unwrap();
    assert_eq!(source.check_steady(0, b"as it was").unwrap_err().kind, ErrorKind::Changed);
    source.check_steady(0, b"as it is").unwrap();
    drop(writer);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]).collect()
}

#[test]
fn a_source_stays_when_the_receiver_reports_other_bytes() {
    // Files in a packed block, in one block, and in several blocks.
    for (length, blocks) in [(5, 1), (MIB, 1), (3 * MIB + 7, 4)] {
        let bytes = pattern(length);
        let mut other = bytes.clone();
        other[length / 2] ^= 1;
        let mut copy = OneFile::new(&bytes, Some(SourceDisposition::Delete));
        copy.send(blocks);
        let FileOutcome::Failed(error) = copy.hear_done(&other) else { panic!("{length} bytes count as arrived") };
        assert_eq!((error.kind, error.scope), (ErrorKind::Corrupt, Scope::Destination));
        let hex = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..8].to_owned();
        assert!(error.text().contains(&hex(&bytes)) && error.text().contains(&hex(&other)), "{error}");
        assert_eq!(fs::read(copy.path()).unwrap(), bytes);

        let mut copy = OneFile::new(&bytes, Some(SourceDisposition::Delete));
        copy.send(blocks);
        assert!(matches!(copy.hear_done(&bytes), FileOutcome::Done(_)), "{length} bytes");
        assert!(!copy.path().exists(), "{length} bytes stay");
    }
}

/// Source of one file whose reads were cancelled.
struct Cancelled;

impl Source for Cancelled {
    fn list(self: Arc<Self>, offers: &Arc<dyn source::Offers>) {
        offers.offer(entry("source", EntryKind::File, 2 * MIB as u64), BlockOrder::Next, self);
    }
}

impl OfferedFile for Cancelled {
    fn open(&self, _: Option<LaneId>, _: Extent) -> Result<Box<dyn FileReader>, Error> {
        Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped"))
    }
    fn settle(&self, _: &SourceDisposition, _: &FileEntry) -> Result<(), Error> {
        Ok(())
    }
}

impl std::fmt::Display for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("source")
    }
}

#[test]
fn a_lane_whose_source_stops_with_the_session_sends_the_abort() {
    let begin = || OneFile::reading(tempfile::tempdir().unwrap(), Arc::new(Cancelled), None);
    let mut copy = begin();
    let task = copy.next_block();
    // The lane is down: another lane reads the block.
    let error = copy.sender.send_block(LANE, task, &mut copy.taken).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    let mut copy = begin();
    let task = copy.next_block();
    copy.sender.abort(Error::protocol("ended"));
    copy.sender.send_block(LANE, task, &mut copy.taken).unwrap();
    let mut messages = Vec::new();
    loop {
        match copy.sender.next_work(LANE) {
            Work::Frame(Frame::Messages { encoded, .. }) => messages.extend(Message::decode_all(&encoded).unwrap()),
            Work::Frame(_) => {}
            Work::Over => break,
            Work::Block(_) | Work::Idle(_) | Work::Down => panic!("the lane goes on after {messages:?}"),
        }
    }
    assert!(messages.iter().any(|message| matches!(message, Message::Abort { .. })), "{messages:?}");
}

#[test]
fn blocks_of_an_earlier_run_are_read_before_their_source_is_deleted() {
    let bytes = pattern(4 * MIB + 1);
    let mut planted = bytes.clone();
    planted[MIB + 3] ^= 1;
    let copy = || {
        let mut copy = OneFile::new(&bytes, Some(SourceDisposition::Delete));
        // This session sends the last block and perhaps one before it; the other blocks, which it did not send, are
        // read again.
        copy.send(1);
        copy.hear(&Message::Have { file: FileId(0), blocks: vec![(0, 3)] });
        copy.send(2);
        copy
    };
    let mut fooled = copy();
    assert!(matches!(fooled.hear_done(&planted), FileOutcome::Failed(_)));
    assert_eq!(fs::read(fooled.path()).unwrap(), bytes);
    let mut honest = copy();
    assert!(matches!(honest.hear_done(&bytes), FileOutcome::Done(_)));
    assert!(!honest.path().exists());
}

#[test]
fn a_source_that_is_deleted_is_read_where_its_file_system_reports_a_hole() {
    let sent = |disposition: Option<SourceDisposition>| {
        let mut copy = OneFile::new(&pattern(2 * MIB), disposition);
        copy.send(2);
        copy.taken.data
    };
    // The setting applies only to this thread, on which the blocks are read.
    thread::spawn(move || {
        sys::report_only_holes();
        assert!(sent(None).is_empty(), "the file system reports no hole: this test shows nothing");
        assert_eq!(sent(Some(SourceDisposition::Delete)), pattern(2 * MIB));
    })
    .join()
    .unwrap();
}
