//! Promises of every sink: each test runs against every implementation.

pub(crate) mod fixture;
mod memory;

use std::sync::Arc;
use std::thread;

use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::Overwrite;
use sterna_proto::{
    BlockDigest, Checks, Digest, EntryKind, Error, ErrorKind, FileDigests, FileEntry, FileTime, Growth, RangeSet, Retry,
};
use sterna_seeded::{Seeded, with_seed};

use self::fixture::{Fixture, KINDS, rel};
use super::{DirectoryModes, Inspected, PackedFile, PackedOutcome, Prepared, Seen, Sink, SinkFile, Terms};

const MIB: u64 = 1 << 20;

/// Size of the smallest file that accepts blocks.
const LARGE_MIN: u64 = PACKED_FILE_BYTES_MAX + 1;

const CHECKS: Checks = Checks { adler32: true, crc32c: true, ..Checks::NONE };

fn entry(name: &str, size: u64) -> FileEntry {
    FileEntry {
        path: rel(name),
        kind: EntryKind::File,
        size,
        mtime: FileTime { seconds: 1_700_000_000, nanoseconds: 123_456_789 },
        mode: 0o640,
        allocated: size,
        inode: 4711,
        version: 42,
        growth: None,
    }
}

fn directory(name: &str) -> FileEntry {
    FileEntry { kind: EntryKind::Directory, mode: 0o755, ..entry(name, 0) }
}

fn growing(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None)), ..entry("capture", size) }
}

fn ended(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None).end()), ..growing(size) }
}

/// Returns bytes that differ from block to block and from seed to seed.
fn bytes(seed: u64, size: u64) -> Vec<u8> {
    Seeded::new(seed).bytes(size as usize)
}

fn terms(overwrite: Overwrite) -> Terms {
    Terms { overwrite, checks: CHECKS }
}

fn prepare(sink: &Arc<dyn Sink>, entry: &FileEntry, overwrite: Overwrite) -> Result<Prepared, Error> {
    sink.prepare(entry, &terms(overwrite))
}

/// Prepares a file that must accept blocks.
fn open(sink: &Arc<dyn Sink>, entry: &FileEntry) -> Arc<dyn SinkFile> {
    match prepare(sink, entry, Overwrite::Always).unwrap() {
        Prepared::Incoming(file) => file,
        _ => panic!("{} accepts no blocks", entry.path),
    }
}

/// Returns the error of a preparation that must fail.
fn refusal(sink: &Arc<dyn Sink>, entry: &FileEntry, overwrite: Overwrite) -> Error {
    prepare(sink, entry, overwrite).err().unwrap_or_else(|| panic!("{} is accepted", entry.path))
}

fn blocks(indexes: impl IntoIterator<Item = u64>) -> RangeSet {
    indexes.into_iter().map(|index| index..index + 1).collect()
}

/// Writes a block of `data` in two parts, the last one first, and records it.
fn put(file: &dyn SinkFile, data: &[u8], index: u64) {
    let map = file.blocks();
    let (offset, length) = (map.offset(index), map.length(index));
    let block = &data[offset as usize..(offset + length) as usize];
    let (first, last) = block.split_at(block.len() / 3);
    file.write_at(offset + first.len() as u64, last).unwrap();
    file.write_at(offset, first).unwrap();
    file.record(index, BlockDigest::of(&map, index, CHECKS, block)).unwrap();
}

fn put_all(file: &dyn SinkFile, data: &[u8]) {
    (0..file.blocks().count()).for_each(|index| put(file, data, index));
}

/// Settles every claim of an earlier session as a receiver does. Returns the blocks whose bytes differ.
fn settle_claims(file: &dyn SinkFile) -> Vec<u64> {
    let mut lost = Vec::new();
    while let Some((index, claimed)) = file.next_claim() {
        let map = file.blocks();
        let mut block = vec![0; map.length(index) as usize];
        file.read_at(map.offset(index), &mut block).unwrap();
        let digest = BlockDigest::of(&map, index, CHECKS, &block);
        let is_sound = digest.chaining_value == claimed.chaining_value;
        file.settle_claim(index, is_sound.then_some(digest));
        lost.extend((!is_sound).then_some(index));
    }
    lost
}

fn packed<'a>(entry: &'a FileEntry, data: &'a [u8], seen: Seen) -> PackedFile<'a> {
    PackedFile { entry, data, blake3: Some(*blake3::hash(data).as_bytes()), expected: &[], seen }
}

/// Prepares and publishes a small file.
fn publish_small(sink: &Arc<dyn Sink>, entry: &FileEntry, data: &[u8]) -> PackedOutcome {
    let Prepared::Packed(seen) = prepare(sink, entry, Overwrite::Always)? else { panic!("{} is large", entry.path) };
    publish_one(sink, packed(entry, data, seen), Overwrite::Always)
}

fn publish_one(sink: &Arc<dyn Sink>, file: PackedFile<'_>, overwrite: Overwrite) -> PackedOutcome {
    let mut outcomes = sink.publish_packed(&[file], &terms(overwrite));
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

#[test]
fn blocks_in_any_order_from_many_threads_make_the_file() {
    for kind in KINDS {
        println!("{kind:?}");
        with_seed("blocks_in_any_order_from_many_threads_make_the_file", 1, |seed| {
            let (fixture, mut random) = (Fixture::new(kind), Seeded::new(seed));
            let sink = fixture.sink();
            // One short block, one whole block, a block and a byte, several blocks.
            for size in [LARGE_MIN, MIB, MIB + 1, 9 * MIB + 12_345] {
                let (name, data) = (format!("d/{size}"), bytes(seed + size, size));
                let file = open(&sink, &entry(&name, size));
                let mut order: Vec<u64> = (0..file.blocks().count()).collect();
                random.shuffle(&mut order);
                thread::scope(|scope| {
                    for lane in order.chunks(order.len().div_ceil(3)) {
                        let (file, data) = (&file, &data);
                        scope.spawn(move || lane.iter().for_each(|index| put(&**file, data, *index)));
                    }
                    file.checkpoint().unwrap();
                });
                assert_eq!(fixture.read(&name), None, "an incomplete file has its name");
                let checks = Checks { adler32: true, crc32c: true, md5: true, sha256: true };
                let whole = FileDigests::of(&data, checks);
                let expected: Vec<Digest> = whole.iter().collect();
                file.verify(&expected).unwrap();
                assert_eq!(fixture.read(&name), None, "a file has its name before it is published");
                assert_eq!(file.publish(&expected).unwrap(), whole);
                assert!(fixture.read(&name).unwrap() == data, "{name}");
                assert_eq!(fixture.metadata(&name), Some((0o640, entry(&name, size).mtime)));
                assert_eq!(file.publish(&[]).unwrap_err().retry, Retry::After, "a second time");
            }
        });
    }
}

#[test]
fn the_next_session_finds_exactly_the_blocks_of_checkpoints_and_reads_them_before_they_count() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data) = (Fixture::new(kind), bytes(1, 10 * MIB + 1));
        let (sink, entry) = (fixture.sink(), entry("a.h5", 10 * MIB + 1));
        let file = open(&sink, &entry);
        assert_eq!((file.restarted(), file.have(), file.checkpoint().unwrap()), (None, blocks([]), 0));
        [0, 3, 10].into_iter().for_each(|index| put(&*file, &data, index));
        assert_eq!(file.checkpoint().unwrap(), 3);
        [3, 7].into_iter().for_each(|index| put(&*file, &data, index));
        assert_eq!(file.checkpoint().unwrap(), 1, "a block that came twice is recorded once");
        put(&*file, &data, 5);
        assert_eq!(file.have(), blocks([0, 3, 5, 7, 10]));
        drop(file);

        let file = open(&fixture.sink(), &entry);
        assert_eq!((file.restarted(), file.have()), (None, blocks([0, 3, 7, 10])));
        [1, 2, 4, 5, 6, 8, 9].into_iter().for_each(|index| put(&*file, &data, index));
        assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Internal, "claims count before they are read");
        assert_eq!(settle_claims(&*file), [0u64; 0]);
        assert_eq!(file.publish(&[]).unwrap(), FileDigests::of(&data, CHECKS));
        assert!(fixture.read("a.h5").unwrap() == data);
    }
}

#[test]
fn a_claimed_block_that_was_damaged_is_missing_again() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data) = (Fixture::new(kind), bytes(1, 3 * MIB));
        let (sink, entry) = (fixture.sink(), entry("a.h5", 3 * MIB));
        let file = open(&sink, &entry);
        put_all(&*file, &data);
        file.checkpoint().unwrap();
        drop(file);
        fixture.damage("a.h5", MIB + 5);
        let file = open(&sink, &entry);
        assert_eq!((file.have().len(), settle_claims(&*file)), (3, vec![1]));
        assert_eq!(file.have(), blocks([0, 2]));
        assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Internal, "a block is missing");
        put(&*file, &data, 1);
        file.publish(&[]).unwrap();
        assert!(fixture.read("a.h5").unwrap() == data);
    }
}

#[test]
fn another_version_of_the_source_starts_over_with_a_reason() {
    let old = entry("a.h5", 3 * MIB);
    let later = FileTime { seconds: old.mtime.seconds + 1, ..old.mtime };
    let versions = [
        FileEntry { mtime: later, ..old.clone() },
        FileEntry { inode: 1, ..old.clone() },
        FileEntry { version: 1, ..old.clone() },
        entry("a.h5", 4 * MIB),
        entry("a.h5", 2 * MIB),
    ];
    for (kind, new) in KINDS.into_iter().flat_map(|kind| versions.iter().map(move |new| (kind, new))) {
        println!("{kind:?}, {new:?}");
        let fixture = Fixture::new(kind);
        let file = open(&fixture.sink(), &old);
        put_all(&*file, &bytes(1, old.size));
        file.checkpoint().unwrap();
        drop(file);
        let (file, data) = (open(&fixture.sink(), new), bytes(2, new.size));
        assert!(file.have().is_empty() && file.next_claim().is_none());
        assert!(file.restarted().is_some_and(|reason| reason.contains("a.h5")), "{:?}", file.restarted());
        put_all(&*file, &data);
        file.publish(&[]).unwrap();
        assert!(fixture.read("a.h5").unwrap() == data);
    }
}

#[test]
fn an_ended_file_keeps_its_recorded_blocks_and_is_published_no_more() {
    for kind in KINDS {
        let fixture = Fixture::new(kind);
        let (size, data) = (3 * MIB, bytes(5, 3 * MIB));
        let file = open(&fixture.sink(), &entry("kept", size));
        put_all(&*file, &data);
        file.end();
        assert!(file.publish(&[]).is_err(), "{kind:?}");
        let empty = open(&fixture.sink(), &entry("empty", size));
        empty.end();
        drop((file, empty));
        let again = open(&fixture.sink(), &entry("kept", size));
        assert!(settle_claims(&*again).is_empty());
        assert_eq!(again.have(), blocks(0..3), "{kind:?}");
        again.publish(&[]).unwrap();
        assert_eq!(open(&fixture.sink(), &entry("empty", size)).have(), RangeSet::default(), "{kind:?}");
    }
}

#[test]
fn a_file_belongs_to_one_session_until_it_is_dropped_published_or_discarded() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, entry) = (Fixture::new(kind), entry("a.h5", 2 * MIB));
        let (one, two) = (fixture.sink(), fixture.sink());
        let held = |sink| {
            let error = refusal(sink, &entry, Overwrite::Always);
            assert_eq!((error.kind, error.retry), (ErrorKind::Busy, Retry::After), "{error}");
        };
        let file = open(&one, &entry);
        held(&one);
        held(&two);
        drop(file);
        let file = open(&two, &entry);
        held(&one);
        file.discard().unwrap();
        let next = open(&one, &entry);
        drop(file);
        held(&two);
        put_all(&*next, &bytes(1, entry.size));
        next.publish(&[]).unwrap();
        let other = open(&two, &entry);
        drop(next);
        held(&one);
        drop(other);
    }
}

#[test]
fn a_file_with_a_wrong_digest_or_of_no_use_is_deleted_and_never_gets_its_name() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data, entry) = (Fixture::new(kind), bytes(1, 2 * MIB), entry("a.h5", 2 * MIB));
        let wrong: Vec<Digest> = FileDigests::of(b"other", Checks { sha256: true, ..CHECKS }).iter().collect();
        for digest in wrong {
            let file = open(&fixture.sink(), &entry);
            put_all(&*file, &data);
            file.checkpoint().unwrap();
            for error in [file.verify(&[digest]).unwrap_err(), file.publish(&[digest]).unwrap_err()] {
                assert_eq!((error.kind, error.retry), (ErrorKind::Corrupt, Retry::OtherReplica), "{error}");
            }
            drop(file);
            let file = open(&fixture.sink(), &entry);
            assert_eq!((file.have(), file.restarted()), (blocks([]), None));
            put_all(&*file, &data);
            file.checkpoint().unwrap();
            file.discard().unwrap();
            assert_eq!(file.checkpoint().unwrap_err().retry, Retry::After, "after it was discarded");
            drop(file);
            assert!(open(&fixture.sink(), &entry).have().is_empty());
            assert_eq!(fixture.names(), [""; 0]);
        }
    }
}

#[test]
fn a_name_that_is_taken_is_kept_skipped_or_replaced_as_the_terms_order() {
    for (kind, size) in KINDS.into_iter().flat_map(|kind| [(kind, 9), (kind, 2 * MIB)]) {
        println!("{kind:?}, {size} bytes");
        let (fixture, data) = (Fixture::new(kind), bytes(1, size));
        let (sink, entry) = (fixture.sink(), entry("f", size));
        let publish = |entry: &FileEntry, data: &[u8]| match prepare(&sink, entry, Overwrite::Always).unwrap() {
            Prepared::Packed(seen) => {
                publish_one(&sink, packed(entry, data, seen), Overwrite::Always).unwrap();
            }
            Prepared::Incoming(file) => {
                put_all(&*file, data);
                file.publish(&[]).unwrap();
            }
            _ => panic!("there is nothing to write"),
        };
        for overwrite in [Overwrite::Never, Overwrite::IfChanged, Overwrite::Always] {
            assert_eq!(sink.inspect(&entry, overwrite).unwrap(), Inspected::Wanted);
        }
        assert_eq!(fixture.names(), [""; 0], "an inspection writes");
        publish(&entry, &data);
        assert_eq!(refusal(&sink, &entry, Overwrite::Never).kind, ErrorKind::Exists);
        assert_eq!(sink.inspect(&entry, Overwrite::Never).unwrap_err().kind, ErrorKind::Exists);
        assert!(matches!(prepare(&sink, &entry, Overwrite::IfChanged).unwrap(), Prepared::UpToDate));
        assert_eq!(sink.inspect(&entry, Overwrite::IfChanged).unwrap(), Inspected::UpToDate);
        let newer = FileEntry { mtime: FileTime { seconds: 1, nanoseconds: 0 }, ..entry.clone() };
        for (entry, overwrite) in [(&newer, Overwrite::IfChanged), (&entry, Overwrite::Always)] {
            let prepared = prepare(&sink, entry, overwrite).unwrap();
            assert!(matches!(prepared, Prepared::Packed(_) | Prepared::Incoming(_)), "{overwrite:?}");
            assert_eq!(sink.inspect(entry, overwrite).unwrap(), Inspected::Wanted);
        }
        assert!(fixture.read("f").unwrap() == data, "a file is replaced before its successor is complete");
        let other = bytes(2, size);
        publish(&newer, &other);
        assert!(fixture.read("f").unwrap() == other);
        assert_eq!(fixture.metadata("f"), Some((0o640, newer.mtime)));
    }
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_replaced_under_never() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data) = (Fixture::new(kind), bytes(1, 2 * MIB));
        let (sink, large, small) = (fixture.sink(), entry("large", 2 * MIB), entry("small", 3));
        let prepare = |entry| prepare(&sink, entry, Overwrite::Never).unwrap();
        let (Prepared::Incoming(file), Prepared::Packed(seen)) = (prepare(&large), prepare(&small)) else {
            panic!("a name is taken already");
        };
        put_all(&*file, &data);
        file.checkpoint().unwrap();
        ["large", "small"].iter().for_each(|name| fixture.write(name, b"of somebody else"));
        let error = file.publish(&[]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exists, "{error}");
        let error = publish_one(&sink, packed(&small, b"abc", seen), Overwrite::Never).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exists, "{error}");
        for name in ["large", "small"] {
            assert_eq!(fixture.read(name).unwrap(), b"of somebody else");
        }
        drop(file);
        assert_eq!(open(&sink, &large).have().len(), 2, "the blocks are lost");
    }
}

#[test]
fn a_small_file_waits_for_the_session_that_writes_a_large_one_of_its_name() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, small) = (Fixture::new(kind), entry("f", 3));
        let (one, two) = (fixture.sink(), fixture.sink());
        let file = open(&one, &entry("f", 2 * MIB));
        let error = publish_small(&two, &small, b"abc").unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Busy, Retry::After), "{error}");
        put_all(&*file, &bytes(1, 2 * MIB));
        file.publish(&[]).unwrap();
        publish_small(&two, &small, b"abc").unwrap();
        assert_eq!(fixture.read("f").unwrap(), b"abc");
    }
}

#[test]
fn small_files_have_one_outcome_each_in_their_order() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let sink = fixture.sink();
        let largest = bytes(1, PACKED_FILE_BYTES_MAX);
        let content: [(&str, &[u8]); 5] =
            [("d/empty", b""), ("d/one", b"1"), ("largest", &largest), ("deep/er/same", b"1"), ("wrong", b"x")];
        let entries = content.map(|(name, data)| entry(name, data.len() as u64));
        let expected = [FileDigests::of(b"1", Checks { md5: true, ..Checks::NONE }).iter().last().unwrap()];
        let mut files: Vec<PackedFile<'_>> =
            entries.iter().zip(content).map(|(entry, (_, data))| packed(entry, data, Seen::default())).collect();
        files[1].expected = &expected;
        files[3].blake3 = Some([0; 32]);
        files[4].expected = &expected;
        let outcomes = sink.publish_packed(&files, &terms(Overwrite::Always));
        assert_eq!(outcomes.len(), files.len());
        for ((name, data), outcome) in content.into_iter().zip(outcomes) {
            match name {
                "deep/er/same" | "wrong" => {
                    let error = outcome.unwrap_err();
                    let retry = if name == "wrong" { Retry::OtherReplica } else { Retry::After };
                    assert_eq!((error.kind, error.retry), (ErrorKind::Corrupt, retry), "{error}");
                    assert_eq!(fixture.read(name), None);
                }
                _ => {
                    assert_eq!(outcome.unwrap().unwrap().blake3, *blake3::hash(data).as_bytes(), "{name}");
                    assert!(fixture.read(name).unwrap() == data, "{name}");
                    assert_eq!(fixture.metadata(name), Some((0o640, entries[0].mtime)));
                }
            }
        }
        assert!(sink.publish_packed(&[], &terms(Overwrite::Always)).is_empty());
        let short = entry("short", 2);
        assert!(publish_one(&sink, packed(&short, b"x", Seen::default()), Overwrite::Always).is_err());
        assert_eq!(fixture.read("short"), None);
    }
}

#[test]
fn a_small_file_replaces_only_the_file_that_its_session_has_seen() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let (one, two) = (fixture.sink(), fixture.sink());
        let (old, new) = (entry("f", 3), FileEntry { mtime: FileTime { seconds: 1, nanoseconds: 0 }, ..entry("f", 3) });
        publish_small(&one, &entry("f", 4), b"base").unwrap();
        let Prepared::Packed(seen) = prepare(&one, &old, Overwrite::IfChanged).unwrap() else { panic!("not small") };
        publish_small(&two, &new, b"new").unwrap();
        let error = publish_one(&one, packed(&old, b"old", seen), Overwrite::IfChanged).unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Busy, Retry::After), "{error}");
        assert_eq!(fixture.read("f").unwrap(), b"new");
        // Another session has completed the same version: nothing is left to do.
        assert_eq!(publish_one(&one, packed(&new, b"new", seen), Overwrite::IfChanged).unwrap(), None);
    }
}

#[test]
fn directories_exist_at_once_and_get_mode_and_time_at_the_end() {
    for (kind, modes) in
        KINDS.into_iter().flat_map(|kind| [(kind, DirectoryModes::OfSource), (kind, DirectoryModes::Writable)])
    {
        println!("{kind:?}, {modes:?}");
        let fixture = Fixture::new(kind);
        let (sink, mtime) = (fixture.sink(), FileTime { seconds: 9, nanoseconds: 7 });
        let entries = ["d", "d/e"].map(|name| FileEntry { mode: 0o550, mtime, ..directory(name) });
        for entry in &entries {
            assert_eq!(sink.inspect(entry, Overwrite::Never).unwrap(), Inspected::Wanted);
            assert!(matches!(prepare(&sink, entry, Overwrite::Never).unwrap(), Prepared::Directory));
            assert_eq!(sink.inspect(entry, Overwrite::Never).unwrap(), Inspected::UpToDate);
        }
        publish_small(&sink, &entry("d/e/f", 1), b"x").unwrap();
        publish_small(&sink, &entry("g/f", 1), b"x").unwrap();
        assert_eq!(fixture.names(), ["d", "d/e", "d/e/f", "g", "g/f"]);
        sink.finish(modes).unwrap();
        sink.sync_names().unwrap();
        let mode = if modes == DirectoryModes::OfSource { 0o550 } else { 0o750 };
        assert_eq!(["d", "d/e"].map(|name| fixture.metadata(name)), [Some((mode, mtime)); 2]);
        for size in [1, 2 * MIB] {
            let error = refusal(&sink, &entry("d", size), Overwrite::Always);
            assert_eq!(error.kind, ErrorKind::Exists, "{error}");
        }
        // A later session can write to directories whose owner may not.
        let next = fixture.sink();
        entries.iter().for_each(|entry| drop(prepare(&next, entry, Overwrite::Never).unwrap()));
        publish_small(&next, &entry("d/e/g", 1), b"x").unwrap();
        next.finish(DirectoryModes::Writable).unwrap();
    }
}

#[test]
fn a_hole_holds_zeros_also_over_written_bytes() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, mut data) = (Fixture::new(kind), bytes(1, 3 * MIB + 5));
        let file = open(&fixture.sink(), &entry("f", 3 * MIB + 5));
        file.write_at(0, &data).unwrap();
        file.write_hole(MIB, MIB).unwrap();
        file.write_hole(3 * MIB, 5).unwrap();
        file.write_hole(7, 0).unwrap();
        data[MIB as usize..2 * MIB as usize].fill(0);
        data[3 * MIB as usize..].fill(0);
        let mut read = vec![1; data.len()];
        file.read_at(0, &mut read).unwrap();
        assert!(read == data);
    }
}

#[test]
fn nothing_is_written_read_or_recorded_beyond_the_end() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, size) = (Fixture::new(kind), 2 * MIB + 1);
        let file = open(&fixture.sink(), &entry("f", size));
        let digest = BlockDigest { chaining_value: [0; 32], adler32: None, crc32c: None };
        for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1)] {
            let mut buffer = vec![0; length];
            let refused = [
                file.write_at(offset, &buffer),
                file.write_hole(offset, length as u64),
                file.read_at(offset, &mut buffer),
                file.record(3, digest),
            ];
            for error in refused.map(Result::unwrap_err) {
                assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
            }
        }
        assert!(file.have().is_empty());
    }
}

#[test]
fn a_growing_file_is_resumed_and_published_with_the_digest_of_its_end() {
    for (kind, size) in KINDS.into_iter().flat_map(|kind| [3 * MIB + 17, 3 * MIB, MIB / 2, 0].map(|size| (kind, size)))
    {
        println!("{kind:?}, {size} bytes");
        let (fixture, data, whole) = (Fixture::new(kind), bytes(1, size), size / MIB);
        for have in 0..whole {
            let file = open(&fixture.sink(), &growing(have * MIB));
            assert_eq!((file.have().len(), settle_claims(&*file)), (have, Vec::new()), "{:?}", file.restarted());
            file.grow(&growing((have + 1) * MIB)).unwrap();
            put(&*file, &data, have);
            // The beginning of the next block does not count.
            file.write_tail((have + 1) * MIB, b"tail").unwrap();
            file.checkpoint().unwrap();
        }
        let file = open(&fixture.sink(), &growing(whole * MIB));
        settle_claims(&*file);
        file.grow(&ended(size)).unwrap();
        file.grow(&growing(0)).unwrap();
        (whole..file.blocks().count()).for_each(|index| put(&*file, &data, index));
        file.check_final_digest(*blake3::hash(&data).as_bytes()).unwrap();
        file.publish(&[]).unwrap();
        assert!(fixture.read("capture").unwrap() == data);
    }
}

#[test]
fn a_grown_file_that_is_not_its_source_is_deleted() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data) = (Fixture::new(kind), bytes(1, 2 * MIB));
        let file = open(&fixture.sink(), &growing(2 * MIB));
        put_all(&*file, &data);
        file.checkpoint().unwrap();
        file.grow(&ended(2 * MIB)).unwrap();
        let error = file.check_final_digest([0; 32]).unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Changed, Retry::After), "{error}");
        assert!(file.publish(&[]).is_err());
        drop(file);
        assert_eq!(fixture.names(), [""; 0]);
        assert!(open(&fixture.sink(), &growing(2 * MIB)).have().is_empty());
    }
}

#[test]
fn a_source_that_is_shorter_than_what_was_received_of_it_starts_over() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let file = open(&fixture.sink(), &growing(3 * MIB));
        put_all(&*file, &bytes(1, 3 * MIB));
        file.checkpoint().unwrap();
        drop(file);
        let file = open(&fixture.sink(), &growing(MIB));
        assert!(file.have().is_empty() && file.restarted().is_some(), "{:?}", file.restarted());
    }
}

#[test]
fn a_forgotten_block_is_never_found_again() {
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, data) = (Fixture::new(kind), bytes(1, 5 * MIB));
        let (sink, entry, other) = (fixture.sink(), entry("f", 5 * MIB), bytes(2, 5 * MIB));
        let file = open(&sink, &entry);
        file.keep_digests();
        (0..4).for_each(|index| put(&*file, if index == 2 { &other } else { &data }, index));
        file.checkpoint().unwrap();
        file.forget(&blocks([1, 2])).unwrap();
        assert_eq!(file.have(), blocks([0, 3]));
        drop(file);
        let file = open(&sink, &entry);
        file.keep_digests();
        assert_eq!(file.have(), blocks([0, 3]));
        // A claim that was not read yet is forgotten too.
        file.forget(&blocks([3])).unwrap();
        assert_eq!(settle_claims(&*file), [0u64; 0]);
        [1, 2, 3, 4].into_iter().for_each(|index| put(&*file, &data, index));
        let digests = FileDigests::of(&data, CHECKS);
        assert_eq!(file.publish(&digests.iter().collect::<Vec<_>>()).unwrap(), digests);
        assert!(fixture.read("f").unwrap() == data);
    }
}

#[test]
fn a_place_is_the_same_in_all_sessions_and_differs_by_name_and_storage() {
    let (a, b) = (rel("d/a"), rel("d/b"));
    for kind in KINDS {
        println!("{kind:?}");
        let (fixture, elsewhere) = (Fixture::new(kind), Fixture::new(kind));
        let (one, two) = (fixture.sink(), fixture.sink());
        let place = one.place_of(&a).unwrap();
        assert_eq!(place, two.place_of(&a).unwrap());
        assert_ne!(place, two.place_of(&b).unwrap());
        assert_ne!(place, elsewhere.sink().place_of(&a).unwrap());
    }
}
