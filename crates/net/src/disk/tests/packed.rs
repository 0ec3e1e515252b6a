use std::os::unix::fs::MetadataExt;

use sterna_proto::{Digest, ErrorKind, FileDigests, FileTime, Scope};

use super::*;
use crate::disk::hidden::HiddenNames;

fn packed<'a>(entry: &'a FileEntry, data: &'a [u8]) -> PackedFile<'a> {
    PackedFile { entry, data, blake3: Some(*blake3::hash(data).as_bytes()), expected: &[], seen: Seen::default() }
}

#[test]
fn small_files_of_any_name_size_and_time_arrive_whole() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(PACKED_FILE_BYTES_MAX);
    let longest = [b'n'; 255];
    let names: [&[u8]; 6] = [b"zero", b"one", b"\xff\xfe", b"deep/er/and/deeper/x", &longest, b"new\nline"];
    let sizes = [0, 1, 4095, 4096, 100_000, PACKED_FILE_BYTES_MAX as usize];
    let times = [(-1, 999_999_999), (-2_000_000_000, 1), (0, 0), (1, 5), (1_700_000_000, 0), (4_000_000_000, 7)];
    let modes = [0o644, 0o600, 0o755, 0o444, 0o640, 0o000];
    let mut entries = Vec::new();
    for i in 0..6 {
        let mtime = FileTime { seconds: times[i].0, nanoseconds: times[i].1 };
        entries.push(FileEntry { mtime, mode: modes[i], ..file_entry(names[i], sizes[i] as u64) });
    }
    let checks = Checks { md5: true, adler32: true, ..Checks::NONE };
    let mut batch = destination.packed(Overwrite::Always, checks);
    entries.iter().zip(sizes).for_each(|(entry, size)| batch.add(packed(entry, &data[..size])));
    assert_eq!(batch.len(), 6);
    assert!(!directory.path().join("one").exists(), "a name before its file is durable");
    let outcomes = batch.publish();
    for ((entry, size), outcome) in entries.iter().zip(sizes).zip(outcomes) {
        assert_eq!(outcome.unwrap(), Some(FileDigests::of(&data[..size], checks)));
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(entry.path.as_bytes());
        if entry.mode != 0 || is_superuser() {
            assert_matches_entry(&directory.path().join(name), entry, &data[..size]);
        }
    }
    assert!(names_in(directory.path()).iter().all(|name| !name.starts_with(".sterna-")));
}

#[test]
fn more_files_than_a_batch_holds_open_arrive_and_answer_in_order() {
    let directory = scratch();
    let destination = writable(&directory);
    let count = OPEN_FILES_MAX * 2 + 10;
    let mut batch = destination.packed(Overwrite::Never, Checks::NONE);
    for i in 0..count {
        let entry = file_entry(format!("{}/{i}", i % 7), 8);
        batch.add(packed(&entry, &(i as u64).to_le_bytes()));
    }
    let twice = file_entry("0/0", 8);
    batch.add(packed(&twice, &[1; 8]));
    let outcomes = batch.publish();
    assert_eq!(outcomes.len(), count + 1);
    for (i, outcome) in outcomes[..count].iter().enumerate() {
        let digests = outcome.as_ref().unwrap().unwrap();
        assert_eq!(digests.blake3, *blake3::hash(&(i as u64).to_le_bytes()).as_bytes());
    }
    assert_eq!(outcomes[count].as_ref().unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(std::fs::read(directory.path().join("0/0")).unwrap(), [0; 8]);
    assert!(batch.publish().is_empty() && batch.is_empty());
}

#[test]
fn a_small_file_that_was_damaged_never_gets_its_name() {
    let directory = scratch();
    let destination = writable(&directory);
    let (good, bad, wrong) = (file_entry("good", 3), file_entry("bad", 3), file_entry("wrong", 3));
    let expected = ["md5:900150983cd24fb0d6963f7d28e17f72".parse::<Digest>().unwrap()];
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { expected: &expected, ..packed(&good, b"abc") });
    batch.add(PackedFile { data: b"abd", ..packed(&bad, b"abc") });
    batch.add(PackedFile { expected: &expected, ..packed(&wrong, b"abd") });
    batch.add(packed(&bad, b"abcd"));
    let outcomes = batch.publish();
    assert!(outcomes[0].as_ref().unwrap().unwrap().md5.is_some());
    let errors: Vec<_> = outcomes[1..].iter().map(|outcome| outcome.as_ref().unwrap_err()).collect();
    assert_eq!((errors[0].kind, errors[0].scope), (ErrorKind::Corrupt, Scope::Path));
    assert_eq!((errors[1].kind, errors[1].scope), (ErrorKind::Corrupt, Scope::Source));
    assert_eq!(errors[2].kind, ErrorKind::Protocol);
    assert_eq!(names_in(directory.path()), ["good"]);
}

#[test]
fn two_sessions_on_one_small_file_do_not_mix() {
    let directory = scratch();
    let (first, second) = (writable(&directory), writable(&directory));
    let entry = file_entry("x", 3);
    let mut one = first.packed(Overwrite::Always, Checks::NONE);
    one.add(packed(&entry, b"one"));
    let mut two = second.packed(Overwrite::Always, Checks::NONE);
    two.add(packed(&entry, b"two"));
    assert_eq!(two.publish()[0].as_ref().unwrap_err().kind, ErrorKind::Busy);
    one.publish().remove(0).unwrap();
    assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"one");
    // The name was checked before the first file arrived, so this file may be older.
    let late = FileEntry { mtime: FileTime { seconds: 1, nanoseconds: 0 }, ..entry.clone() };
    two.add(packed(&late, b"two"));
    assert_eq!(two.publish()[0].as_ref().unwrap_err().kind, ErrorKind::Busy);
    assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"one");
    assert_eq!(names_in(directory.path()), ["x"]);
    let Prepared::Packed(seen) = second.prepare(&late, &terms(Overwrite::Always)).unwrap() else { panic!("not small") };
    two.add(PackedFile { seen, ..packed(&late, b"two") });
    two.publish().remove(0).unwrap();
    assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"two");
    // A batch that is dropped leaves no files.
    one.add(packed(&entry, b"one"));
    drop(one);
    assert_eq!(names_in(directory.path()), ["x"]);
}

#[test]
fn a_small_file_that_another_session_has_brought_meanwhile_is_not_written_again() {
    let directory = scratch();
    let (first, second) = (writable(&directory), writable(&directory));
    let entry = file_entry("x", 3);
    let bring = |destination: &Destination| {
        let mut batch = destination.packed(Overwrite::IfChanged, Checks::NONE);
        batch.add(packed(&entry, b"abc"));
        let outcome = batch.publish().remove(0).unwrap();
        (outcome.is_some(), std::fs::metadata(directory.path().join("x")).unwrap().ino())
    };
    let (is_written, inode) = bring(&first);
    assert!(is_written);
    assert_eq!(bring(&second), (false, inode));
    assert_eq!(names_in(directory.path()), ["x"]);
}

#[test]
fn what_a_killed_session_left_of_a_small_file_goes_when_the_file_is_found_up_to_date() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = file_entry("x", 3);
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(packed(&entry, b"abc"));
    batch.publish().remove(0).unwrap();
    // Killed while it wrote the file again.
    let part = HiddenNames::of(&entry.path).part;
    std::fs::write(directory.path().join(&part), b"abc").unwrap();
    let prepared = destination.prepare(&entry, &terms(Overwrite::IfChanged)).unwrap();
    assert!(matches!(prepared, Prepared::UpToDate));
    assert_eq!(names_in(directory.path()), ["x"]);
}

#[test]
fn what_a_killed_session_left_is_taken_over_by_a_small_file() {
    let directory = scratch();
    let destination = writable(&directory);
    // Half of an earlier, larger version of the file was received.
    let large = file_entry("x", 3 * MIB);
    let file = incoming(&destination, &large);
    put_block(&file, &pattern(3 * MIB), 1);
    file.checkpoint().unwrap();
    drop(file);
    assert_eq!(names_in(directory.path()).len(), 2);
    let entry = file_entry("x", 3);
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(packed(&entry, b"now"));
    batch.publish().remove(0).unwrap();
    assert_eq!(names_in(directory.path()), ["x"]);
    assert_matches_entry(&directory.path().join("x"), &entry, b"now");
}
