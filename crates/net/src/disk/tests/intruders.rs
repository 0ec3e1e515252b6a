//! Tests with files that others put in place of our hidden files, or that others change.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use sterna_proto::{Checks, ErrorKind, FileDigests, Growth, Retry};

use super::*;
use crate::disk::hidden::HiddenNames;

/// User that is neither ours nor the superuser.
const STRANGER: u32 = 65534;

/// Directory with three of eight blocks of a file, as a killed session leaves it.
struct Left {
    directory: TempDir,
    destination: Destination,
    entry: FileEntry,
    data: Vec<u8>,
    part: PathBuf,
    journal: PathBuf,
}

impl Left {
    fn new() -> Self {
        let directory = scratch();
        let destination = writable(&directory);
        let (entry, data) = (file_entry("d/a.h5", 8 * MIB), pattern(8 * MIB));
        let file = incoming(&destination, &entry);
        [0, 3, 7].into_iter().for_each(|index| put_block(&file, &data, index));
        file.checkpoint().unwrap();
        drop(file);
        let top = directory.path().join("d");
        let (part, journal) = (hidden_file(&top, ".part"), hidden_file(&top, ".journal"));
        Self { directory, destination, entry, data, part, journal }
    }

    fn top(&self) -> PathBuf {
        self.directory.path().join("d")
    }

    fn arrive(&self, file: &IncomingFile) {
        recheck(file);
        let missing: Vec<u64> = file.have().gaps(0..8).flatten().collect();
        missing.into_iter().for_each(|index| put_block(file, &self.data, index));
        file.publish(&[]).unwrap();
        assert_matches_entry(&self.top().join("a.h5"), &self.entry, &self.data);
        assert_eq!(names_in(&self.top()), ["a.h5"]);
    }
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn hidden_files_are_closed_to_others_until_they_get_their_name() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = FileEntry { mode: 0o666, ..file_entry("a.h5", 2 * MIB) };
    let file = incoming(&destination, &entry);
    put_block(&file, &pattern(2 * MIB), 0);
    file.checkpoint().unwrap();
    for ending in [".part", ".journal"] {
        assert_eq!(mode_of(&hidden_file(directory.path(), ending)), 0o600);
    }
    drop(file);
    let small = FileEntry { mode: 0o666, ..file_entry("small", 3) };
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &small, data: b"abc", blake3: None, expected: &[], seen: Seen::default() });
    let hidden = directory.path().join(HiddenNames::of(&small.path).part);
    assert_eq!(mode_of(&hidden), 0o600);
    batch.publish().remove(0).unwrap();
    assert_eq!(mode_of(&directory.path().join("small")), 0o666);
}

#[test]
fn hidden_files_of_another_owner_are_left_alone_and_named() {
    if !is_superuser() {
        println!("left out: only the superuser can give files away");
        return;
    }
    for ending in [".part", ".journal"] {
        let left = Left::new();
        let planted = hidden_file(&left.top(), ending);
        chown(&planted, Some(STRANGER), None).unwrap();
        let before = std::fs::read(&planted).unwrap();
        let error = left.destination.prepare(&left.entry, &terms(Overwrite::Always)).unwrap_err();
        let name = planted.file_name().unwrap().to_str().unwrap();
        assert_eq!((error.kind, error.retry), (ErrorKind::Denied, Retry::Never), "{error}");
        assert!(error.text().contains(name) && error.text().contains("belongs to user 65534"), "{error}");
        // A session that prepares the directory does not delete the file. Nor does a session that finds only this one
        // of both.
        left.destination.prepare(&directory_entry("d"), &terms(Overwrite::Always)).unwrap();
        assert_eq!(names_in(&left.top()).len(), 2);
        std::fs::remove_file(if ending == ".part" { &left.journal } else { &left.part }).unwrap();
        left.destination.prepare(&directory_entry("d"), &terms(Overwrite::Always)).unwrap();
        left.destination.prepare(&left.entry, &terms(Overwrite::Always)).unwrap_err();
        assert!(std::fs::read(&planted).unwrap() == before);
        assert_eq!(names_in(&left.top()).len(), 1);
        std::fs::remove_file(&planted).unwrap();
        left.arrive(&incoming(&left.destination, &left.entry));
    }
}

#[test]
fn a_small_file_does_not_use_a_hidden_file_of_another_owner() {
    if !is_superuser() {
        println!("left out: only the superuser can give files away");
        return;
    }
    let directory = scratch();
    let destination = writable(&directory);
    let entry = FileEntry { mode: 0o600, ..file_entry("secret", 3) };
    let planted = directory.path().join(HiddenNames::of(&entry.path).part);
    std::fs::write(&planted, b"").unwrap();
    chown(&planted, Some(STRANGER), None).unwrap();
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &entry, data: b"abc", blake3: None, expected: &[], seen: Seen::default() });
    assert_eq!(batch.publish().remove(0).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(std::fs::metadata(&planted).unwrap().len(), 0, "the stranger reads what was to be secret");
}

#[test]
fn what_others_could_open_or_name_is_not_gone_on_with() {
    let others: [fn(&Left); 4] = [
        |left| std::fs::set_permissions(&left.part, std::fs::Permissions::from_mode(0o660)).unwrap(),
        |left| std::fs::set_permissions(&left.journal, std::fs::Permissions::from_mode(0o604)).unwrap(),
        |left| std::fs::hard_link(&left.journal, left.top().join("mine")).unwrap(),
        |left| std::fs::remove_file(&left.journal).unwrap(),
    ];
    for (case, change) in others.into_iter().enumerate() {
        let left = Left::new();
        // Opened by someone else before the change.
        let inside = std::fs::File::options().read(true).write(true).open(&left.part).unwrap();
        change(&left);
        let file = incoming(&left.destination, &left.entry);
        assert!(file.have().is_empty(), "case {case}");
        assert_eq!(mode_of(&left.part), 0o600, "case {case}");
        assert_ne!(inside.metadata().unwrap().ino(), std::fs::metadata(&left.part).unwrap().ino(), "case {case}");
        let _ = std::fs::remove_file(left.top().join("mine"));
        left.arrive(&file);
    }
}

#[test]
fn a_part_file_with_a_second_name_is_refused() {
    let left = Left::new();
    std::fs::hard_link(&left.part, left.top().join("mine")).unwrap();
    let error = left.destination.prepare(&left.entry, &terms(Overwrite::Always)).unwrap_err();
    assert!(error.kind == ErrorKind::Denied && error.text().contains("second name"), "{error}");
}

#[test]
fn a_small_file_never_uses_what_an_earlier_session_left() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = file_entry("x", 3);
    let hidden = directory.path().join(HiddenNames::of(&entry.path).part);
    std::fs::write(&hidden, b"").unwrap();
    let inside = std::fs::File::options().read(true).write(true).open(&hidden).unwrap();
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &entry, data: b"abc", blake3: None, expected: &[], seen: Seen::default() });
    batch.publish().remove(0).unwrap();
    inside.set_len(0).unwrap();
    assert_matches_entry(&directory.path().join("x"), &entry, b"abc");
}

#[test]
fn a_directory_is_never_open_to_more_people_than_its_source() {
    let directory = scratch();
    let destination = writable(&directory);
    std::fs::create_dir(directory.path().join("old")).unwrap();
    std::fs::set_permissions(directory.path().join("old"), std::fs::Permissions::from_mode(0o777)).unwrap();
    // The block of a file may arrive before the entry of its directory.
    destination.prepare(&file_entry("overtaken/x", 3), &terms(Overwrite::Always)).unwrap();
    for name in ["new", "old", "overtaken"] {
        let entry = FileEntry { mode: 0o500, ..directory_entry(name) };
        destination.prepare(&entry, &terms(Overwrite::Always)).unwrap();
        assert_eq!(mode_of(&directory.path().join(name)), 0o700, "{name}");
    }
    destination.finish(DirectoryModes::OfSource).unwrap();
    assert_eq!(mode_of(&directory.path().join("old")), 0o500);
}

#[test]
fn blocks_of_a_part_file_that_was_cut_between_sessions_are_wanted_again() {
    for (length, kept) in [(0, vec![]), (3 * MIB + 5, vec![0]), (4 * MIB, vec![0, 3]), (8 * MIB - 1, vec![0, 3])] {
        let left = Left::new();
        std::fs::File::options().write(true).open(&left.part).unwrap().set_len(length).unwrap();
        let file = incoming(&left.destination, &left.entry);
        assert_eq!(file.have().iter().flatten().collect::<Vec<_>>(), kept, "cut to {length}");
        let told = file.restarted().unwrap();
        assert!(told.contains(&format!("cut its unfinished data to {length} bytes")), "{told}");
        left.arrive(&file);
    }
}

#[test]
fn a_part_file_that_is_cut_while_blocks_come_is_not_published_with_zeros() {
    for length in [0, 3 * MIB, 8 * MIB - 1] {
        let left = Left::new();
        let file = incoming(&left.destination, &left.entry);
        recheck(&file);
        (0..7).for_each(|index| put_block(&file, &left.data, index));
        std::fs::File::options().write(true).open(&left.part).unwrap().set_len(length).unwrap();
        // First a block in the middle, which does not hide the truncation; then the last one, which would.
        put_block(&file, &left.data, 1);
        let error = file.write_at(7 * MIB, &left.data[7 * MIB as usize..]).unwrap_err();
        assert_eq!((error.kind, error.retry), (ErrorKind::Corrupt, Retry::After), "{error}");
        assert!(error.text().contains("something cut its unfinished data"), "{error}");
        assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Corrupt);
        file.checkpoint().unwrap();
        drop(file);
        left.arrive(&incoming(&left.destination, &left.entry));
    }
}

#[test]
fn a_growing_part_file_that_is_cut_is_not_made_whole_with_zeros() {
    let directory = scratch();
    let destination = writable(&directory);
    let entry = |blocks: u64| {
        let growth = Growth::for_rate(None);
        FileEntry { growth: Some(growth), ..file_entry("capture", blocks * growth.block_bytes()) }
    };
    let file = incoming(&destination, &entry(2));
    let data = pattern(entry(2).size);
    (0..2).for_each(|index| put_block(&file, &data, index));
    std::fs::File::options().write(true).open(hidden_file(directory.path(), ".part")).unwrap().set_len(MIB).unwrap();
    assert_eq!(file.grow(&entry(4)).unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(file.write_tail(entry(2).size, b"tail").unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_small_file_that_is_cut_before_its_name_gets_none() {
    let directory = scratch();
    let destination = writable(&directory);
    let (cut, whole) = (file_entry("cut", 3), file_entry("whole", 3));
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    for entry in [&cut, &whole] {
        batch.add(PackedFile { entry, data: b"abc", blake3: None, expected: &[], seen: Seen::default() });
    }
    let hidden = directory.path().join(HiddenNames::of(&cut.path).part);
    std::fs::File::options().write(true).open(hidden).unwrap().set_len(1).unwrap();
    let outcomes = batch.publish();
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(outcomes[1].as_ref().unwrap().unwrap(), FileDigests::of(b"abc", Checks::NONE));
    assert_eq!(names_in(directory.path()), ["whole"]);
}
