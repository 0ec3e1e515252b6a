//! Tests of received files whose source grows, and of sources after their transfer.

use std::fs;

use sterna_proto::{ErrorKind, Growth, Retry};

use super::*;

fn growing(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None)), ..file_entry("capture", size) }
}

fn ended(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None).end()), ..growing(size) }
}

#[test]
fn a_file_that_grows_is_resumed_at_any_size_and_gets_the_digest_of_its_end() {
    for size in [5 * MIB + 17, 6 * MIB, MIB / 2, 0] {
        let directory = scratch();
        let destination = writable(&directory);
        let data = pattern(size);
        let mut have = 0;
        for whole in (0..size / MIB).map(|blocks| blocks * MIB) {
            let file = incoming(&destination, &growing(whole.saturating_sub(MIB)));
            assert_eq!((file.have().len(), recheck(&file)), (have, Vec::new()), "{:?}", file.restarted());
            file.grow(&growing(whole)).unwrap();
            (have..whole / MIB).for_each(|index| put_block(&file, &data, index));
            have = whole / MIB;
            // The beginning of the next block, which does not count.
            file.write_tail(whole, &data[whole as usize..][..5]).unwrap();
            file.checkpoint().unwrap();
        }
        let file = incoming(&destination, &growing(have * MIB));
        recheck(&file);
        file.grow(&ended(size)).unwrap();
        file.grow(&growing(0)).unwrap();
        (have..file.blocks().count()).for_each(|index| put_block(&file, &data, index));
        let blake3 = *blake3::hash(&data).as_bytes();
        file.check_final_digest(blake3).unwrap();
        assert_eq!(file.publish(&[]).unwrap().blake3, blake3);
        assert_matches_entry(&directory.path().join("capture"), &ended(size), &data);
    }
}

#[test]
fn what_is_not_the_whole_of_its_source_is_deleted_and_never_published() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(2 * MIB + 1);
    let file = incoming(&destination, &growing(2 * MIB));
    (0..2).for_each(|index| put_block(&file, &data, index));
    file.checkpoint().unwrap();
    file.grow(&ended(2 * MIB + 1)).unwrap();
    put_block(&file, &data, 2);
    let error = file.check_final_digest([0; 32]).unwrap_err();
    assert_eq!((error.kind, error.retry), (ErrorKind::Changed, Retry::After));
    assert!(names_in(directory.path()).is_empty());
}

#[test]
fn a_source_that_is_shorter_than_what_was_received_starts_over() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(4 * MIB);
    let file = incoming(&destination, &growing(3 * MIB));
    (0..3).for_each(|index| put_block(&file, &data, index));
    file.checkpoint().unwrap();
    drop(file);
    let file = incoming(&destination, &growing(MIB));
    assert!(file.have().is_empty() && file.restarted().unwrap().contains("shorter"), "{:?}", file.restarted());
    drop(file);
    // Another file of the same name starts over too, and so does the same file if it is not followed.
    for other in [FileEntry { version: 1, ..growing(3 * MIB) }, file_entry("capture", 4 * MIB)] {
        let file = incoming(&destination, &growing(3 * MIB));
        (0..3).for_each(|index| put_block(&file, &data, index));
        file.checkpoint().unwrap();
        drop(file);
        assert!(incoming(&destination, &other).have().is_empty());
    }
}

#[test]
fn what_was_taken_for_the_end_of_a_file_that_grows_on_is_forgotten_alone() {
    let directory = scratch();
    let destination = writable(&directory);
    let data = pattern(4 * MIB);
    let file = incoming(&destination, &ended(2 * MIB + 17));
    (0..3).for_each(|index| put_block(&file, &data[..(2 * MIB + 17) as usize], index));
    file.checkpoint().unwrap();
    drop(file);
    // The source has not grown by a whole block yet.
    let file = incoming(&destination, &growing(2 * MIB));
    assert_eq!((file.have().len(), recheck(&file)), (2, Vec::new()), "{:?}", file.restarted());
    file.checkpoint().unwrap();
    drop(file);
    // The source has grown: its former last block is not a block of the file any more.
    let file = incoming(&destination, &growing(3 * MIB));
    assert_eq!(recheck(&file), [2], "{:?}", file.restarted());
    put_block(&file, &data, 2);
    file.grow(&ended(4 * MIB)).unwrap();
    put_block(&file, &data, 3);
    // The tail of a block that was expected.
    file.write_tail(4 * MIB, b"behind the end").unwrap();
    file.check_final_digest(*blake3::hash(&data).as_bytes()).unwrap();
    file.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("capture"), &ended(4 * MIB), &data);
}

fn source_of(directory: &TempDir, name: &str) -> (Root, FileEntry) {
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let entry = root.open_source(&rel(name)).unwrap().entry().unwrap();
    (root, entry)
}

#[test]
fn a_source_that_has_changed_since_it_was_sent_is_neither_deleted_nor_moved() {
    let directory = scratch();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), b"sent").unwrap();
    let (root, entry) = source_of(&directory, "file");
    let refused = |why: &str| {
        for done in [
            root.delete_source(&rel("file"), &entry),
            root.move_source(&rel("file"), &entry, (directory.path(), &rel("moved"))),
        ] {
            assert_eq!(done.unwrap_err().kind, ErrorKind::Changed, "{why}");
        }
        assert!(fs::symlink_metadata(at("file")).is_ok() && !at("moved").exists(), "{why}");
    };
    fs::write(at("file"), b"sent, and more").unwrap();
    refused("it has grown");
    assert_eq!(root.same_source(&rel("file"), &entry).unwrap_err().kind, ErrorKind::Changed);
    fs::rename(at("file"), at("old")).unwrap();
    fs::write(at("file"), b"sent").unwrap();
    refused("another file has its name");
    fs::remove_file(at("file")).unwrap();
    std::os::unix::fs::symlink("old", at("file")).unwrap();
    let (root, entry) = source_of(&directory, "old");
    for done in [
        root.delete_source(&rel("file"), &entry),
        root.move_source(&rel("file"), &entry, (directory.path(), &rel("moved"))),
    ] {
        assert_eq!(done.unwrap_err().kind, ErrorKind::Changed, "a symlink");
    }
    root.move_source(&rel("old"), &entry, (directory.path(), &rel("deep/er/moved"))).unwrap();
    assert!(at("deep/er/moved").exists() && !at("old").exists());
}

#[test]
fn a_symlink_beneath_the_place_for_moved_sources_leads_nowhere_else() {
    let (directory, outside) = (scratch(), scratch());
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("sent/inside")).unwrap();
    std::os::unix::fs::symlink(outside.path(), at("sent/absolute")).unwrap();
    std::os::unix::fs::symlink("../..", at("sent/upwards")).unwrap();
    std::os::unix::fs::symlink("inside", at("sent/link")).unwrap();
    for (name, is_allowed) in [("absolute/f", false), ("upwards/f", false), ("absolute/new/f", false), ("link/f", true)]
    {
        fs::write(at("file"), b"sent").unwrap();
        let (root, entry) = source_of(&directory, "file");
        let moved = root.move_source(&rel("file"), &entry, (&at("sent"), &rel(name)));
        assert_eq!(moved.as_ref().err().map(|error| error.kind), (!is_allowed).then_some(ErrorKind::Denied), "{name}");
        assert_eq!(at("file").exists(), !is_allowed, "{name}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{name}");
    }
    assert!(at("sent/inside/f").exists());
    // The user may give the place itself by a symlink.
    std::os::unix::fs::symlink("sent", at("place")).unwrap();
    fs::write(at("file"), b"sent").unwrap();
    let (root, entry) = source_of(&directory, "file");
    root.move_source(&rel("file"), &entry, (&at("place"), &rel("g"))).unwrap();
    assert!(at("sent/g").exists());
}

#[test]
fn a_source_that_somebody_else_took_away_is_deleted_already_and_cannot_be_moved() {
    let directory = scratch();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), b"sent").unwrap();
    let (root, entry) = source_of(&directory, "sub/file");
    let gone = |why: &str| {
        root.delete_source(&rel("sub/file"), &entry).unwrap_or_else(|error| panic!("{why}: {error}"));
        let error = root.move_source(&rel("sub/file"), &entry, (directory.path(), &rel("moved"))).unwrap_err();
        assert!(error.kind == ErrorKind::NotFound && error.chain().contains("is gone"), "{why}: {error}");
        assert!(!error.chain().contains("it stays"), "{why}: {error}");
    };
    fs::remove_file(at("sub/file")).unwrap();
    gone("the file");
    fs::remove_dir(at("sub")).unwrap();
    gone("its directory");
}
