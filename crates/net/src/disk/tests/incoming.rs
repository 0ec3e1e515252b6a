use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

use sterna_proto::journal::{HEADER_BYTES, RECORD_BYTES};
use sterna_proto::{Digest, ErrorKind, FileDigests, RangeSet, Retry};
use sterna_seeded::{Seeded, for_seeds};

use super::*;
use crate::disk::hidden::HiddenNames;

fn fill(file: &IncomingFile, data: &[u8]) {
    assert_eq!(recheck(file), [0u64; 0]);
    for gap in file.have().gaps(0..file.blocks().count()).collect::<Vec<_>>() {
        gap.for_each(|index| put_block(file, data, index));
    }
}

#[test]
fn blocks_in_any_order_from_many_threads_make_the_file() {
    let directory = scratch();
    let destination = writable(&directory);
    for size in [ONE_BLOCK, MIB, MIB + 1, 9 * MIB + 12_345] {
        let data = pattern(size);
        let entry = file_entry(format!("d/{size}"), size);
        let file = incoming(&destination, &entry);
        let count = file.blocks().count();
        std::thread::scope(|scope| {
            for lane in 0..3 {
                let (file, data) = (&file, &data);
                scope.spawn(move || {
                    (0..count).rev().filter(|index| index % 3 == lane).for_each(|index| put_block(file, data, index));
                });
            }
            file.checkpoint().unwrap();
        });
        assert!(file.is_complete());
        let checks = Checks { adler32: true, crc32c: true, md5: true, sha256: true };
        let whole = FileDigests::of(&data, checks);
        let expected: Vec<Digest> = whole.iter().collect();
        assert_eq!(file.publish(&expected).unwrap(), whole);
        assert_matches_entry(&directory.path().join(format!("d/{size}")), &entry, &data);
        assert_eq!(file.publish(&[]).unwrap_err().retry, Retry::After, "a second time");
    }
    assert_eq!(names_in(&directory.path().join("d")).len(), 4);
}

#[test]
fn the_end_of_a_session_leaves_a_journal_or_no_part_file() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(3 * MIB);
    let entry = file_entry("a.h5", 3 * MIB);
    let young = incoming(&destination, &entry);
    young.write_at(0, &data[..1000]).unwrap();
    young.end();
    // The process may end before anyone drops the file.
    assert_eq!(names_in(directory.path()), [""; 0]);
    assert_eq!(young.checkpoint().unwrap_err().retry, Retry::After);
    drop(young);
    let file = incoming(&destination, &entry);
    put_block(&file, &data, 1);
    file.end();
    assert_eq!(names_in(directory.path()).len(), 2, "part file and journal");
    drop(file);
    let file = incoming(&destination, &entry);
    assert!(file.have().len() == 1 && file.have().contains(1), "the journal has the block");
    fill(&file, &data);
    file.publish(&[]).unwrap();
    file.end();
    assert_eq!(names_in(directory.path()), ["a.h5"]);
}

#[test]
fn what_a_crash_left_with_the_mode_of_a_read_only_source_is_gone_on_with() {
    let directory = scratch();
    let resume = || {
        if is_superuser() {
            // Modes do not bind the superuser. Changes the user of this thread only.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let destination = writable(&directory);
        let entry = FileEntry { mode: 0o444, ..file_entry("a.h5", 3 * MIB) };
        let file = incoming(&destination, &entry);
        [0, 2].into_iter().for_each(|index| put_block(&file, &pattern(3 * MIB), index));
        file.checkpoint().unwrap();
        drop(file);
        let part = names_in(directory.path()).into_iter().find(|name| name.ends_with(".part")).unwrap();
        let part = directory.path().join(part);
        std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o444)).unwrap();
        assert!(std::fs::OpenOptions::new().write(true).open(&part).is_err(), "the mode binds");
        let file = incoming(&destination, &entry);
        assert_eq!((file.restarted(), file.have()), (None, [0..1, 2..3].into_iter().collect()));
    };
    if is_superuser() {
        std::os::unix::fs::chown(directory.path(), Some(65534), None).unwrap();
    }
    std::thread::scope(|scope| scope.spawn(resume).join().unwrap());
}

#[test]
fn resume_asks_only_for_blocks_that_no_checkpoint_made_durable() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(10 * MIB + 1);
    let entry = file_entry("a.h5", 10 * MIB + 1);
    let file = incoming(&destination, &entry);
    assert_eq!((file.restarted(), file.checkpoint().unwrap()), (None, 0));
    [0, 3, 10].into_iter().for_each(|index| put_block(&file, &data, index));
    assert_eq!(file.checkpoint().unwrap(), 3);
    put_block(&file, &data, 3);
    put_block(&file, &data, 7);
    assert_eq!(file.checkpoint().unwrap(), 1, "a block that came twice is recorded once");
    put_block(&file, &data, 5);
    drop(file);

    let file = incoming(&destination, &entry);
    assert_eq!(file.restarted(), None);
    assert_eq!(file.have(), [0..1, 3..4, 7..8, 10..11].into_iter().collect());
    assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Internal, "blocks are missing");
    fill(&file, &data);
    file.checkpoint().unwrap();
    drop(file);
    // Everything was durable when the session was killed, so no block is missing.
    let file = incoming(&destination, &entry);
    assert!(file.is_complete());
    assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Internal, "no byte of it was read yet");
    assert_eq!(recheck(&file), [0u64; 0]);
    let digests = file.publish(&[]).unwrap();
    assert_eq!(digests, FileDigests::of(&data, file.checks()));
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
    assert_eq!(names_in(directory.path()), ["a.h5"]);
}

#[test]
fn digests_that_an_earlier_session_did_not_keep_are_computed_at_the_end() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(3 * MIB);
    let entry = file_entry("a.h5", 3 * MIB);
    let prepare = |checks| {
        let terms = Terms { overwrite: Overwrite::Always, checks };
        match destination.prepare(&entry, &terms).unwrap() {
            Prepared::Incoming(file) => file,
            other => panic!("{other:?}"),
        }
    };
    let file = prepare(Checks::NONE);
    put_block(&file, &data, 1);
    file.checkpoint().unwrap();
    drop(file);
    let file = prepare(Checks { adler32: true, ..Checks::NONE });
    assert_eq!(file.have().len(), 1);
    fill(&file, &data);
    assert_eq!(file.publish(&[]).unwrap(), FileDigests::of(&data, file.checks()));
}

#[test]
fn another_version_of_the_source_starts_over_and_says_so() {
    let directory = scratch();
    let destination = writable(&directory);
    let (old, new) = (pattern(4 * MIB), vec![7u8; 4 * MIB as usize]);
    let entry = file_entry("a.h5", 4 * MIB);
    let later = FileTime { seconds: entry.mtime.seconds + 1, ..entry.mtime };
    let versions = [
        FileEntry { mtime: later, ..entry.clone() },
        FileEntry { inode: 1, ..entry.clone() },
        FileEntry { version: 43, ..entry.clone() },
        FileEntry { size: 4 * MIB - 1, ..entry.clone() },
    ];
    for version in versions {
        let file = incoming(&destination, &entry);
        fill(&file, &old);
        file.checkpoint().unwrap();
        drop(file);
        let file = incoming(&destination, &version);
        assert!(file.restarted().unwrap().contains("a.h5 starts over"), "{:?}", file.restarted());
        assert!(file.have().is_empty());
        // Data of the old version must not show through a hole of the new one.
        let mut bytes = vec![1u8; MIB as usize];
        file.read_at(MIB, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        fill(&file, &new);
        file.publish(&[]).unwrap();
        assert_matches_entry(&directory.path().join("a.h5"), &version, &new[..version.size as usize]);
        assert_eq!(names_in(directory.path()), ["a.h5"]);
    }
}

#[test]
fn blocks_that_rotted_are_missing_again_and_their_new_records_count() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(4 * MIB);
    let entry = file_entry("a.h5", 4 * MIB);
    let file = incoming(&destination, &entry);
    fill(&file, &data);
    file.checkpoint().unwrap();
    drop(file);
    let part = std::fs::File::options().write(true).open(hidden_file(directory.path(), ".part")).unwrap();
    part.write_all_at(b"rot", 2 * MIB + 77).unwrap();
    let file = incoming(&destination, &entry);
    assert_eq!(file.have().len(), 4, "the journal claims them all");
    assert_eq!(recheck(&file), [2]);
    assert_eq!(file.have(), [0..2, 3..4].into_iter().collect());
    put_block(&file, &data, 2);
    assert_eq!(file.checkpoint().unwrap(), 1);
    drop(file);
    // The block has two records; the later one counts.
    let file = incoming(&destination, &entry);
    assert_eq!(recheck(&file), [0u64; 0]);
    file.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
}

#[test]
fn a_torn_or_damaged_journal_loses_blocks_and_never_the_file() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(6 * MIB);
    let entry = file_entry("a.h5", 6 * MIB);
    let file = incoming(&destination, &entry);
    fill(&file, &data);
    file.checkpoint().unwrap();
    drop(file);
    let journal = hidden_file(directory.path(), ".journal");
    let mut whole = std::fs::read(&journal).unwrap();
    let whole_len = HEADER_BYTES + 6 * RECORD_BYTES;
    assert_eq!(whole.len(), whole_len);
    for length in (0..whole_len).step_by(7) {
        std::fs::write(&journal, &whole[..length]).unwrap();
        let file = incoming(&destination, &entry);
        let records = length.saturating_sub(HEADER_BYTES) / RECORD_BYTES;
        assert_eq!(file.have().len(), records as u64, "{length} bytes of journal");
        assert_eq!(file.restarted().is_some(), (1..HEADER_BYTES).contains(&length));
        // The torn tail is overwritten, and the records behind it are found again. A new journal has the order of the
        // first one.
        put_block(&file, &data, if length < HEADER_BYTES { 0 } else { 5 });
        file.checkpoint().unwrap();
        drop(file);
        let file = incoming(&destination, &entry);
        assert_eq!(file.have().len(), records as u64 + 1, "{length} bytes of journal");
        fill(&file, &data);
        file.checkpoint().unwrap();
        drop(file);
        // The next round cuts this journal. A journal that was begun again belongs to another part file than before.
        let now = std::fs::read(&journal).unwrap();
        assert_eq!(now.len(), whole_len);
        if length < HEADER_BYTES {
            continue_with(&now, &whole, &journal, directory.path());
            whole = now;
        }
    }
    let file = incoming(&destination, &entry);
    fill(&file, &data);
    file.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
}

/// Checks that a new journal has another nonce, so that records of the old journal are not accepted under it.
fn continue_with(now: &[u8], before: &[u8], journal: &Path, directory: &Path) {
    assert_ne!(now[..HEADER_BYTES], before[..HEADER_BYTES]);
    let mixed = [&now[..HEADER_BYTES], &before[HEADER_BYTES..]].concat();
    std::fs::write(journal, mixed).unwrap();
    let root = Root::open(directory, Access::ReadWrite).unwrap();
    let destination = Destination::resolve(&root, b"", Sources::Many).unwrap();
    assert!(incoming(&destination, &file_entry("a.h5", 6 * MIB)).have().is_empty());
    std::fs::write(journal, now).unwrap();
}

#[test]
fn a_journal_speaks_only_of_its_own_part_file() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(2 * MIB);
    let entry = file_entry("a.h5", 2 * MIB);
    for damage in ["replaced", "gone"] {
        let file = incoming(&destination, &entry);
        fill(&file, &data);
        file.checkpoint().unwrap();
        drop(file);
        let part = hidden_file(directory.path(), ".part");
        match damage {
            "replaced" => {
                std::fs::copy(&part, directory.path().join("copy")).unwrap();
                std::fs::rename(directory.path().join("copy"), &part).unwrap();
            }
            _ => std::fs::remove_file(&part).unwrap(),
        }
        let file = incoming(&destination, &entry);
        assert!(file.have().is_empty(), "{damage}");
        // The leftover journal of a published file is not reported.
        assert_eq!(file.restarted().is_some(), damage != "gone");
        assert_eq!(names_in(directory.path()).len(), 1, "{damage}: the journal is deleted");
        file.discard().unwrap();
        assert_eq!(names_in(directory.path()).len(), 0);
    }
}

#[test]
fn what_is_left_beside_a_published_file_is_swept() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(2 * MIB);
    let entry = file_entry("a.h5", 2 * MIB);
    let file = incoming(&destination, &entry);
    fill(&file, &data);
    file.checkpoint().unwrap();
    let journal = hidden_file(directory.path(), ".journal");
    let kept = std::fs::read(&journal).unwrap();
    file.publish(&[]).unwrap();
    // State after a power cut between the rename and the deletion of the journal.
    std::fs::write(&journal, kept).unwrap();
    let found = destination.prepare(&entry, &terms(Overwrite::IfChanged)).unwrap();
    assert!(matches!(found, Prepared::UpToDate));
    assert_eq!(names_in(directory.path()), ["a.h5"]);
}

#[test]
fn what_was_left_of_files_whose_sources_are_gone_goes_unless_a_journal_or_a_session_speaks_for_it() {
    let directory = scratch();
    let top = directory.path().join("d");
    let destination = writable(&directory);
    let prepare = || {
        assert!(matches!(
            destination.prepare(&directory_entry("d"), &terms(Overwrite::Always)),
            Ok(Prepared::Directory)
        ))
    };
    prepare();
    let data = pattern(2 * MIB);
    let hidden = |name: &str, ending: &str| {
        let names = HiddenNames::of(&rel(name));
        top.join(if ending == "part" { names.part } else { names.journal })
    };
    // Killed before the first checkpoint, and killed between the rename and the deletion of the journal.
    std::fs::write(hidden("killed", "part"), b"bytes").unwrap();
    std::fs::write(hidden("published", "journal"), b"records").unwrap();
    // Killed after a checkpoint.
    let resumed = incoming(&destination, &file_entry("d/resumed", 2 * MIB));
    put_block(&resumed, &data, 0);
    resumed.checkpoint().unwrap();
    drop(resumed);
    let live = incoming(&destination, &file_entry("d/live", 2 * MIB));
    // Not a hidden file of ours, whatever it is.
    std::fs::write(top.join(".sterna-notes"), b"").unwrap();
    prepare();
    let mut left =
        [hidden("resumed", "part"), hidden("resumed", "journal"), hidden("live", "part"), top.join(".sterna-notes")];
    left.sort();
    assert_eq!(names_in(&top).into_iter().map(|name| top.join(name)).collect::<Vec<_>>(), left);
    fill(&live, &data);
    live.publish(&[]).unwrap();
    assert_eq!(incoming(&destination, &file_entry("d/resumed", 2 * MIB)).have().len(), 1);
}

#[test]
fn a_file_of_which_nothing_is_durable_leaves_nothing() {
    let directory = scratch();
    let destination = writable(&directory);
    let file = incoming(&destination, &file_entry("a.h5", 2 * MIB));
    put_block(&file, &pattern(2 * MIB), 0);
    drop(file);
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_corrupt_file_is_never_published_and_keeps_the_old_one() {
    let directory = scratch();
    let destination = writable(&directory);
    std::fs::write(directory.path().join("a.h5"), b"old").unwrap();
    let entry = file_entry("a.h5", 2 * MIB);
    let file = incoming(&destination, &entry);
    fill(&file, &pattern(2 * MIB));
    file.checkpoint().unwrap();
    for wrong in ["adler32:00000001", "md5:d41d8cd98f00b204e9800998ecf8427e"] {
        let file = if wrong.starts_with('a') { &file } else { &incoming(&destination, &entry) };
        fill(file, &pattern(2 * MIB));
        let error = file.publish(&[wrong.parse().unwrap()]).unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Corrupt, Retry::OtherReplica), "{error}");
        assert_eq!(names_in(directory.path()), ["a.h5"]);
    }
    assert_eq!(std::fs::read(directory.path().join("a.h5")).unwrap(), b"old");
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_replaced() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = file_entry("a.h5", ONE_BLOCK);
    let Prepared::Incoming(file) = destination.prepare(&entry, &terms(Overwrite::Never)).unwrap() else {
        panic!("it is not there yet");
    };
    put_block(&file, &pattern(ONE_BLOCK), 0);
    std::fs::write(directory.path().join("a.h5"), b"mine").unwrap();
    assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(std::fs::read(directory.path().join("a.h5")).unwrap(), b"mine");
}

#[test]
fn a_part_file_that_someone_removed_gives_no_other_the_name() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = file_entry("a.h5", 2 * MIB);
    let data = pattern(2 * MIB);
    let robbed = incoming(&destination, &entry);
    put_block(&robbed, &data, 0);
    std::fs::remove_file(hidden_file(directory.path(), ".part")).unwrap();
    // Another session finds nothing, and has received one block.
    let other = incoming(&destination, &entry);
    put_block(&other, &data, 0);
    other.checkpoint().unwrap();
    put_block(&robbed, &data, 1);
    assert_eq!(robbed.publish(&[]).unwrap_err().kind, ErrorKind::NotFound);
    assert!(!directory.path().join("a.h5").exists());
    drop(robbed);
    put_block(&other, &data, 1);
    other.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
}

#[test]
fn what_could_not_get_its_name_stays_hidden_from_others() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = FileEntry { mode: 0o644, ..file_entry("a.h5", ONE_BLOCK) };
    let file = incoming(&destination, &entry);
    put_block(&file, &pattern(ONE_BLOCK), 0);
    std::fs::create_dir_all(directory.path().join("a.h5/inner")).unwrap();
    file.publish(&[]).unwrap_err();
    let part = hidden_file(directory.path(), ".part");
    assert_eq!(std::fs::metadata(&part).unwrap().mode() & 0o777, 0o600);
    std::fs::remove_dir_all(directory.path().join("a.h5")).unwrap();
    file.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &pattern(ONE_BLOCK));
}

#[test]
fn what_has_the_name_of_a_journal_and_is_none_is_deleted_or_named() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(2 * MIB);
    let entry = file_entry("a.h5", 2 * MIB);
    let file = incoming(&destination, &entry);
    put_block(&file, &data, 0);
    file.checkpoint().unwrap();
    drop(file);
    let journal = hidden_file(directory.path(), ".journal");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&journal).unwrap();
    let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    let name = journal.file_name().unwrap().to_str().unwrap();
    assert!(error.text().contains(name) && error.text().contains("is a directory"), "{error}");
    std::fs::remove_dir(&journal).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &journal).unwrap();
    let file = incoming(&destination, &entry);
    fill(&file, &data);
    file.checkpoint().unwrap();
    assert!(std::fs::symlink_metadata(&journal).unwrap().is_file());
    file.publish(&[]).unwrap();
    assert_eq!(names_in(directory.path()), ["a.h5"]);
}

#[test]
fn of_two_sessions_on_one_name_the_second_waits_its_turn() {
    let directory = scratch();
    let data = pattern(2 * MIB);
    let entry = file_entry("a.h5", 2 * MIB);
    let (first, second) = (writable(&directory), writable(&directory));
    let file = incoming(&first, &entry);
    let error = second.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    assert_eq!((error.kind, error.retry), (ErrorKind::Busy, Retry::After));
    fill(&file, &data);
    file.publish(&[]).unwrap();
    // The descriptor is still open, on the published file; the name of the part file is free.
    drop(incoming(&second, &entry));

    // Several sessions at once: one wins each round, and no file is torn.
    let entry = file_entry("race.h5", 2 * MIB);
    let published: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let destination = writable(&directory);
                    let mut published = 0;
                    for _ in 0..20 {
                        match destination.prepare(&entry, &terms(Overwrite::Always)) {
                            Ok(Prepared::Incoming(file)) => {
                                fill(&file, &data);
                                file.publish(&[]).unwrap();
                                published += 1;
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
                        }
                    }
                    published
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(published > 0);
    assert_matches_entry(&directory.path().join("race.h5"), &entry, &data);
}

#[test]
fn a_session_that_waited_for_another_finds_what_that_one_published() {
    let directory = scratch();
    let data = pattern(2 * MIB);
    for round in 0..200 {
        let name = format!("{round}.h5");
        let entry = file_entry(&name, 2 * MIB);
        let file = incoming(&writable(&directory), &entry);
        fill(&file, &data);
        let waiter = writable(&directory);
        let found = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    match waiter.prepare(&entry, &terms(Overwrite::IfChanged)) {
                        Err(error) if error.kind == ErrorKind::Busy => {}
                        other => return other.unwrap(),
                    }
                }
            });
            file.publish(&[]).unwrap();
            waiting.join().unwrap()
        });
        assert!(matches!(found, Prepared::UpToDate), "round {round}: {found:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), round + 1, "something is left beside {name}");
    }
}

#[test]
fn writes_and_blocks_beyond_the_file_are_refused() {
    let directory = scratch();
    let destination = writable(&directory);
    let file = incoming(&destination, &file_entry("a.h5", 2 * MIB + 1));
    for (offset, length) in [(2 * MIB, 2), (2 * MIB + 2, 0), (u64::MAX, 1), (u64::MAX - 1, 4)] {
        let data = vec![0; length];
        assert_eq!(file.write_at(offset, &data).unwrap_err().kind, ErrorKind::Protocol, "{offset}");
        assert_eq!(file.write_hole(offset, length as u64).unwrap_err().kind, ErrorKind::Protocol, "{offset}");
        assert!(file.read_at(offset, &mut vec![0; length]).is_err());
    }
    let digest = BlockDigest { chaining_value: [0; 32], adler32: None, crc32c: None };
    assert_eq!(file.record(3, digest).unwrap_err().kind, ErrorKind::Protocol);
}

#[test]
fn a_file_of_5_tb_with_holes_stays_sparse() {
    let directory = scratch();
    let destination = writable(&directory);
    let size = 5_000_000_000_000;
    let entry = file_entry("sparse", size);
    let entry = FileEntry { allocated: 16 << 20, ..entry };
    let terms = terms(Overwrite::Always);
    let Prepared::Incoming(file) = destination.prepare(&entry, &terms).unwrap() else {
        panic!("it is not there yet");
    };
    let blocks = file.blocks();
    let last = blocks.count() - 1;
    let bytes = pattern(blocks.length(last));
    file.write_at(blocks.offset(last), &bytes).unwrap();
    file.record(last, BlockDigest::of(&blocks, last, file.checks(), &bytes)).unwrap();
    // A block that arrived as data before, and arrives as a hole now.
    file.write_at(0, &bytes).unwrap();
    file.write_hole(0, blocks.length(0)).unwrap();
    file.checkpoint().unwrap();
    let meta = std::fs::metadata(hidden_file(directory.path(), ".part")).unwrap();
    assert_eq!(meta.len(), size);
    assert!(meta.blocks() * 512 < 2 * blocks.block_bytes(), "{} bytes are occupied", meta.blocks() * 512);
    let mut zeros = vec![1u8; 4096];
    file.read_at(0, &mut zeros).unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0));
    drop(file);
    let Prepared::Incoming(file) = destination.prepare(&entry, &terms).unwrap() else {
        panic!("it is not whole yet");
    };
    assert_eq!(file.have(), RangeSet::from_iter(std::iter::once(last..last + 1)));
}

const CHILD_DIRECTORY: &str = "STERNA_TEST_DIRECTORY";
const KILLED_BYTES: u64 = 24 * MIB + 77;

/// Session that is killed: writes blocks in random order with occasional checkpoints, and prints each step.
#[test]
#[ignore = "run by a_session_killed_at_any_moment_is_gone_on_with"]
fn session_to_be_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let root = Root::open(Path::new(&directory), Access::ReadWrite).unwrap();
    let destination = Destination::resolve(&root, b"", Sources::Many).unwrap();
    let data = pattern(KILLED_BYTES);
    let file = incoming(&destination, &file_entry("a.h5", KILLED_BYTES));
    assert_eq!(recheck(&file), [0u64; 0]);
    let mut out = std::fs::File::options().append(true).open("/dev/stdout").unwrap();
    let mut random = Seeded::new(u64::from(std::process::id()));
    let mut wanted: Vec<u64> = file.have().gaps(0..file.blocks().count()).flatten().collect();
    while !wanted.is_empty() {
        let index = wanted.swap_remove(random.index(wanted.len()));
        put_block(&file, &data, index);
        writeln!(out, "put {index}").unwrap();
        if random.below(4) == 0 {
            file.checkpoint().unwrap();
            writeln!(out, "durable {}", file.have().len()).unwrap();
        }
    }
    file.publish(&[]).unwrap();
    writeln!(out, "published").unwrap();
}

#[test]
fn a_session_killed_at_any_moment_is_gone_on_with() {
    let data = pattern(KILLED_BYTES);
    let entry = file_entry("a.h5", KILLED_BYTES);
    for_seeds("a_session_killed_at_any_moment_is_gone_on_with", 8, |seed| {
        let directory = scratch();
        let destination = writable(&directory);
        let mut random = Seeded::new(seed);
        for _ in 0..3 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "--nocapture", "disk::tests::incoming::session_to_be_killed"])
                .env(CHILD_DIRECTORY, directory.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = random.below(20) + 1;
            let (mut durable, mut seen) = (0, 0);
            for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
                if let Some(count) = line.strip_prefix("durable ") {
                    durable = count.parse().unwrap();
                }
                if line == "published" {
                    break;
                }
                seen += u64::from(line.starts_with("put "));
                if seen == 1 && child.try_wait().unwrap().is_none() {
                    // While the child lives, no other process may write. The child may be done by now, and then there
                    // is no lock.
                    if let Err(error) = destination.prepare(&entry, &terms(Overwrite::IfChanged)) {
                        assert_eq!(error.kind, ErrorKind::Busy, "{error}");
                    }
                }
                if seen == lines {
                    break;
                }
            }
            child.kill().unwrap();
            child.wait().unwrap();
            match destination.prepare(&entry, &terms(Overwrite::IfChanged)).unwrap() {
                Prepared::UpToDate => break,
                Prepared::Incoming(file) => {
                    assert!(file.have().len() >= durable, "{durable} blocks were durable");
                    assert_eq!(file.restarted(), None);
                    check_claims(&file, &data);
                }
                other => panic!("{other:?}"),
            }
        }
        if let Prepared::Incoming(file) = destination.prepare(&entry, &terms(Overwrite::IfChanged)).unwrap() {
            fill(&file, &data);
            file.publish(&[]).unwrap();
        }
        assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
        assert_eq!(names_in(directory.path()), ["a.h5"]);
    });
}

/// Checks that every block that the journal claims is on disk.
fn check_claims(file: &IncomingFile, data: &[u8]) {
    for index in file.have().iter().flatten() {
        let (start, length) = (file.blocks().offset(index) as usize, file.blocks().length(index) as usize);
        let mut bytes = vec![0; length];
        file.read_at(start as u64, &mut bytes).unwrap();
        assert!(bytes == data[start..start + length], "block {index} is claimed and is not there");
    }
}

#[test]
fn each_checkpoint_appends_only_what_is_new() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(8 * MIB);
    let file = incoming(&destination, &file_entry("a.h5", 8 * MIB));
    put_block(&file, &data, 0);
    assert_eq!(file.checkpoint().unwrap(), 1);
    put_block(&file, &data, 1);
    let journal = hidden_file(directory.path(), ".journal");
    assert_eq!(std::fs::metadata(&journal).unwrap().len() as usize, HEADER_BYTES + RECORD_BYTES);
    assert_eq!(file.checkpoint().unwrap(), 1);
    assert_eq!(std::fs::metadata(&journal).unwrap().len() as usize, HEADER_BYTES + 2 * RECORD_BYTES);
    // New records do not go to the end of a journal that someone made longer.
    std::fs::File::options()
        .write(true)
        .open(&journal)
        .unwrap()
        .write_all_at(b"torn", (HEADER_BYTES + 2 * RECORD_BYTES) as u64)
        .unwrap();
    drop(file);
    assert_eq!(incoming(&destination, &file_entry("a.h5", 8 * MIB)).have().len(), 2);
}
