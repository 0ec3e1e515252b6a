//! Tests on small file systems of their own. They need the superuser, and print a message when they are skipped.

use std::process::Command;

use sterna_proto::{ErrorKind, RangeSet};

use super::*;

/// A tmpfs that is unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        if !is_superuser() {
            println!("skipped: mounting a small tmpfs needs the superuser");
            return None;
        }
        let directory = scratch();
        let option = format!("size={size}");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(directory.path()).output();
        match done {
            Ok(output) if output.status.success() => Some(Self(directory)),
            other => {
                println!("skipped: no tmpfs can be mounted here: {other:?}");
                None
            }
        }
    }

    fn remount_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_file_that_has_no_room_is_refused_before_a_byte_moves() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let destination = writable(&disk.0);
    let entry = file_entry("a.h5", 8 * MIB);
    let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::NoSpace, 4));
    assert!(error.text().contains("8.39 MB"), "{error}");
    assert_eq!(names_in(disk.0.path()), Vec::<String>::new());
    // A file of the same size with holes fits.
    let entry = FileEntry { allocated: MIB, ..entry };
    let sparse = terms(Overwrite::Always);
    assert!(destination.prepare(&entry, &sparse).is_ok());
}

#[test]
fn a_disk_that_fills_up_keeps_what_was_durable_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount("6m") else { return };
    let destination = writable(&disk.0);
    let data = pattern(4 * MIB);
    let entry = file_entry("a.h5", 4 * MIB);
    let file = incoming(&destination, &entry);
    put_block(&file, &data, 0);
    file.checkpoint().unwrap();
    let hog = disk.0.path().join("hog");
    let filled = std::fs::write(&hog, pattern(8 * MIB));
    assert!(filled.is_err(), "the disk is full now");
    let error = file.write_at(MIB, &data[MIB as usize..2 * MIB as usize]).unwrap_err();
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::NoSpace, 4), "{}", error.chain());
    let small = file_entry("small", 100_000);
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &small, data: &data[..100_000], blake3: None, expected: &[], seen: Seen::default() });
    assert_eq!(batch.publish()[0].as_ref().unwrap_err().kind, ErrorKind::NoSpace);
    drop(file);
    // Emptied first: a child process that another test forks holds the file open until its `exec`.
    std::fs::write(&hog, b"").unwrap();
    std::fs::remove_file(&hog).unwrap();
    let file = incoming(&destination, &entry);
    assert_eq!(file.have(), RangeSet::from_iter(std::iter::once(0..1)));
    assert_eq!(recheck(&file), [0u64; 0]);
    (1..4).for_each(|index| put_block(&file, &data, index));
    file.publish(&[]).unwrap();
    assert_matches_entry(&disk.0.path().join("a.h5"), &entry, &data);
    assert_eq!(names_in(disk.0.path()), ["a.h5"]);
}

#[test]
fn a_read_only_file_system_is_denied() {
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let destination = writable(&disk.0);
    disk.remount_read_only();
    for entry in [file_entry("a.h5", ONE_BLOCK), file_entry("d/x", 1), directory_entry("d")] {
        let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
        assert_eq!((error.kind, error.exit_code()), (ErrorKind::Denied, 4), "{}", error.chain());
    }
    let small = file_entry("x", 1);
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &small, data: b"x", blake3: None, expected: &[], seen: Seen::default() });
    assert_eq!(batch.publish()[0].as_ref().unwrap_err().kind, ErrorKind::Denied);
}
