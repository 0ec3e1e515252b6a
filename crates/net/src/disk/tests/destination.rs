use std::os::unix::fs::{PermissionsExt, symlink};

use sterna_proto::{ErrorKind, Scope};

use super::*;

fn placed(root: &Root, path: &[u8], sources: Sources, entry: &str) -> String {
    Destination::resolve(root, path, sources).unwrap().place(&rel(entry)).unwrap().to_string()
}

#[test]
fn destinations_are_named_as_cp_names_them() {
    let directory = scratch();
    std::fs::create_dir(directory.path().join("there")).unwrap();
    std::fs::write(directory.path().join("file"), b"").unwrap();
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let one = |path: &[u8]| placed(&root, path, Sources::One, "pass/x.h5");
    assert_eq!(one(b""), "pass/x.h5");
    assert_eq!(one(b"there"), "there/pass/x.h5");
    assert_eq!(one(b"new"), "new/x.h5");
    assert_eq!(one(b"new/"), "new/pass/x.h5");
    assert_eq!(one(b"deep/er"), "deep/er/x.h5");
    assert_eq!(placed(&root, b"file", Sources::One, "x.h5"), "file");
    assert_eq!(placed(&root, b"new", Sources::Many, "x.h5"), "new/x.h5");
    for (path, sources) in [(&b"file"[..], Sources::Many), (b"file/", Sources::One), (b"file/x", Sources::One)] {
        let error = Destination::resolve(&root, path, sources).unwrap_err();
        assert_eq!((error.kind, error.scope), (ErrorKind::Exists, Scope::Destination), "{path:?}");
    }
}

#[test]
fn a_local_destination_starts_at_the_deepest_directory_there_is() {
    let directory = scratch();
    std::fs::create_dir(directory.path().join("there")).unwrap();
    let local = |ending: &str| {
        let path = format!("{}{ending}", directory.path().display());
        let (root, rest) = Root::for_local_destination(path.as_bytes()).unwrap();
        (root.to_string(), String::from_utf8(rest).unwrap())
    };
    let base = directory.path().display();
    assert_eq!(local("/there/"), (format!("{base}/there/"), String::new()));
    assert_eq!(local("/there"), (format!("{base}/there"), String::new()));
    assert_eq!(local("/there/x"), (format!("{base}/there/"), "x".to_owned()));
    assert_eq!(local("/there/x/y/"), (format!("{base}/there/"), "x/y/".to_owned()));
    let (root, rest) = Root::for_local_destination(b"surely-not-here").unwrap();
    assert_eq!((root.to_string().as_str(), rest.as_slice()), ("the current directory", &b"surely-not-here"[..]));
}

#[test]
fn nothing_outside_the_root_can_be_written() {
    let outside = scratch();
    let directory = scratch();
    symlink(outside.path(), directory.path().join("out")).unwrap();
    symlink("..", directory.path().join("up")).unwrap();
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    for path in [&b"out"[..], b"out/x", b"up/x"] {
        let error = Destination::resolve(&root, path, Sources::One).and_then(|destination| {
            let entry = file_entry("x", 1);
            destination.prepare(&entry, &terms(Overwrite::Always)).map(drop)
        });
        assert_eq!(error.unwrap_err().kind, ErrorKind::Denied, "{path:?}");
    }
    for path in [&b"../x"[..], b"a/../../x"] {
        assert_eq!(Destination::resolve(&root, path, Sources::One).unwrap_err().kind, ErrorKind::Usage, "{path:?}");
    }
    let destination = writable(&directory);
    for path in ["out/x", "up/x", "out/new/x"] {
        for entry in [file_entry(path, ONE_BLOCK), file_entry(path, 1), directory_entry(path)] {
            let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Denied, "{path}");
        }
    }
    for path in [".sterna-x.part", "a/.sterna-y/b"] {
        let entry = file_entry(path, 1);
        let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{path}");
    }
    assert_eq!(names_in(outside.path()), Vec::<String>::new());
}

#[test]
fn two_sources_never_get_the_one_name_of_a_destination() {
    let directory = scratch();
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let destination = Destination::resolve(&root, b"new", Sources::One).unwrap();
    assert_eq!(destination.place(&rel("a")).unwrap(), rel("new"));
    assert_eq!(destination.place(&rel("a/x")).unwrap(), rel("new/x"));
    for second in ["b", "b/x", "ab"] {
        assert_eq!(destination.place(&rel(second)).unwrap_err().kind, ErrorKind::Exists, "{second}");
    }
}

#[test]
fn a_symlink_with_the_files_name_is_replaced_and_not_followed() {
    let outside = scratch();
    let directory = scratch();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, b"keep").unwrap();
    symlink(&victim, directory.path().join("a.h5")).unwrap();
    let destination = writable(&directory);
    let data = pattern(ONE_BLOCK);
    let entry = file_entry("a.h5", ONE_BLOCK);
    // The hidden name may be a trap too.
    let file = incoming(&destination, &entry);
    let part = hidden_file(directory.path(), ".part");
    drop(file);
    symlink(&victim, &part).unwrap();
    let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    std::fs::remove_file(&part).unwrap();
    std::fs::hard_link(&victim, &part).unwrap();
    let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    std::fs::remove_file(&part).unwrap();

    let file = incoming(&destination, &entry);
    put_block(&file, &data, 0);
    file.publish(&[]).unwrap();
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
    assert_eq!(std::fs::read(&victim).unwrap(), b"keep");
}

#[test]
fn overwrite_decides_what_happens_to_a_file_that_is_there() {
    let directory = scratch();
    let destination = writable(&directory);
    for size in [10, ONE_BLOCK] {
        let entry = file_entry(format!("{size}"), size);
        let prepare = |overwrite| destination.prepare(&entry, &terms(overwrite));
        let wanted =
            |prepared: Prepared<Box<IncomingFile>>| matches!(prepared, Prepared::Packed(_) | Prepared::Incoming(_));
        assert!(wanted(prepare(Overwrite::Never).unwrap()));
        let path = directory.path().join(format!("{size}"));
        std::fs::write(&path, vec![0; size as usize]).unwrap();
        assert_eq!(prepare(Overwrite::Never).unwrap_err().kind, ErrorKind::Exists);
        assert!(wanted(prepare(Overwrite::IfChanged).unwrap()), "the time differs");
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert!(matches!(prepare(Overwrite::IfChanged).unwrap(), Prepared::UpToDate));
        assert!(wanted(prepare(Overwrite::Always).unwrap()));
        std::fs::write(&path, b"").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert!(wanted(prepare(Overwrite::IfChanged).unwrap()), "the size differs");
    }
    std::fs::create_dir(directory.path().join("d")).unwrap();
    let entry = file_entry("d", 1);
    let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exists);
}

#[test]
fn directories_arrive_with_mode_and_time_after_what_is_in_them() {
    let directory = scratch();
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let destination = Destination::resolve(&root, b"new/place", Sources::Many).unwrap();
    let closed = FileEntry { mode: 0o555, ..directory_entry("closed") };
    let inner = FileEntry { mode: 0o500, ..directory_entry("closed/inner") };
    for entry in [&closed, &inner, &directory_entry("empty")] {
        assert!(matches!(destination.prepare(entry, &terms(Overwrite::Never)).unwrap(), Prepared::Directory));
    }
    let entry = file_entry("closed/inner/x", 3);
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    batch.add(PackedFile { entry: &entry, data: b"abc", blake3: None, expected: &[], seen: Seen::default() });
    assert!(batch.publish().iter().all(Result::is_ok));
    destination.finish(DirectoryModes::OfSource).unwrap();
    for (path, mode) in [("closed", 0o555), ("closed/inner", 0o500), ("empty", 0o755)] {
        let meta = std::fs::metadata(directory.path().join("new/place").join(path)).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.mtime()), (mode, closed.mtime.seconds), "{path}");
    }
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path().join("new/place/closed"), open.clone()).unwrap();
    std::fs::set_permissions(directory.path().join("new/place/closed/inner"), open).unwrap();
}

#[test]
fn a_directory_that_lacks_files_stays_open_to_its_owner() {
    let directory = scratch();
    let destination = writable(&directory);
    for (path, mode) in [("d", 0o555), ("d/e", 0o2), ("d/f", 0o750)] {
        let entry = FileEntry { mode, ..directory_entry(path) };
        assert!(matches!(destination.prepare(&entry, &terms(Overwrite::Never)).unwrap(), Prepared::Directory));
    }
    destination.finish(DirectoryModes::Writable).unwrap();
    for (path, mode) in [("d", 0o755), ("d/e", 0o702), ("d/f", 0o750)] {
        let meta = std::fs::metadata(directory.path().join(path)).unwrap();
        assert_eq!(meta.mode() & 0o777, mode, "{path}");
    }
}

#[test]
fn a_read_only_destination_is_denied_before_a_byte_moves() {
    let directory = scratch();
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let error = Destination::resolve(&root, b"x", Sources::One).unwrap_err();
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::Denied, 4));
    if is_superuser() {
        // The superuser may write anywhere; the tests of full disks contain a read-only mount.
        return;
    }
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let destination = writable(&directory);
    for size in [1, ONE_BLOCK] {
        let entry = file_entry("x/y", size);
        let error = destination.prepare(&entry, &terms(Overwrite::Always)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied);
    }
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A large and a small file, each through two paths that lead to one place.
#[test]
fn a_file_does_not_replace_another_of_its_session_where_two_names_are_one() {
    let directory = scratch();
    std::fs::create_dir(directory.path().join("a")).unwrap();
    std::os::unix::fs::symlink("a", directory.path().join("A")).unwrap();
    for size in [3, 2 * MIB] {
        let data = pattern(size);
        let name = |top: &str| format!("{top}/{size}");
        let entry = |top: &str, seconds| FileEntry {
            mtime: FileTime { seconds, nanoseconds: 0 },
            ..file_entry(name(top), size)
        };
        for overwrite in [Overwrite::IfChanged, Overwrite::Always] {
            let destination = writable(&directory);
            let bring = |entry: &FileEntry| match destination.prepare(entry, &terms(overwrite))? {
                Prepared::UpToDate => Ok(()),
                Prepared::Packed(seen) => {
                    let mut batch = destination.packed(overwrite, Checks::NONE);
                    batch.add(PackedFile { entry, data: &data, blake3: None, expected: &[], seen });
                    batch.publish().remove(0).map(drop)
                }
                Prepared::Incoming(file) => {
                    (0..file.blocks().count()).for_each(|index| put_block(&file, &data, index));
                    file.publish(&[]).map(drop)
                }
                Prepared::Directory => panic!("no directory"),
            };
            // In the second round under `IfChanged`, the first file is found up to date. It still blocks the name.
            for _ in 0..2 {
                bring(&entry("a", 1)).unwrap();
                let error = bring(&entry("A", 2)).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Exists, "{error}");
                assert!(error.text().contains(&name("A")) && error.text().contains("one (upper"), "{error}");
                assert_eq!(bring(&entry("A", 1)).unwrap_err().kind, ErrorKind::Exists, "of the same size and time");
                assert_matches_entry(&directory.path().join(name("a")), &entry("a", 1), &data);
            }
        }
        // Another session may replace the file: it does not know of the first copy.
        let other = writable(&directory);
        let Ok(Prepared::Packed(_) | Prepared::Incoming(_)) = other.prepare(&entry("A", 2), &terms(Overwrite::Always))
        else {
            panic!("a file of another session is in the way");
        };
    }
}

#[test]
fn of_two_names_that_are_one_only_one_file_of_a_batch_gets_it() {
    let directory = scratch();
    std::fs::create_dir(directory.path().join("a")).unwrap();
    std::os::unix::fs::symlink("a", directory.path().join("A")).unwrap();
    let destination = writable(&directory);
    let (first, second) = (file_entry("a/x", 3), file_entry("A/x", 3));
    let mut batch = destination.packed(Overwrite::Always, Checks::NONE);
    for (entry, data) in [(&first, b"abc"), (&second, b"def")] {
        batch.add(PackedFile { entry, data, blake3: None, expected: &[], seen: Seen::default() });
    }
    let outcomes = batch.publish();
    assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "{outcomes:?}");
    assert_matches_entry(&directory.path().join("a/x"), &first, b"abc");
    assert_eq!(names_in(&directory.path().join("a")), ["x"]);
}

#[test]
fn hard_links_at_the_destination_are_names_of_their_own() {
    let directory = scratch();
    std::fs::write(directory.path().join("a"), b"abc").unwrap();
    std::fs::hard_link(directory.path().join("a"), directory.path().join("b")).unwrap();
    let meta = std::fs::metadata(directory.path().join("a")).unwrap();
    let mtime = FileTime { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 };
    let destination = writable(&directory);
    for name in ["a", "b"] {
        let entry = FileEntry { mtime, ..file_entry(name, 3) };
        let found = destination.prepare(&entry, &terms(Overwrite::IfChanged)).unwrap();
        assert!(matches!(found, Prepared::UpToDate), "{name}");
    }
    let changed = file_entry("b", 4);
    let Ok(Prepared::Packed(seen)) = destination.prepare(&changed, &terms(Overwrite::IfChanged)) else {
        panic!("b has changed");
    };
    let mut batch = destination.packed(Overwrite::IfChanged, Checks::NONE);
    batch.add(PackedFile { entry: &changed, data: b"defg", blake3: None, expected: &[], seen });
    batch.publish().remove(0).unwrap();
    assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"abc");
    assert_eq!(std::fs::read(directory.path().join("b")).unwrap(), b"defg");
}

#[test]
fn a_rename_does_not_replace_what_the_session_has_just_renamed() {
    use crate::disk::claims::Claims;
    use crate::disk::hidden::{Finished, rename_into_place};
    let directory = scratch();
    let opened = std::fs::File::open(directory.path()).unwrap();
    let claims = Claims::default();
    // Both files are written before either gets its name, as in a batch.
    let rename = |name: &str, path: &str, overwrite| {
        std::fs::write(directory.path().join(name), name).unwrap();
        let file = std::fs::File::open(directory.path().join(name)).unwrap();
        let part = Finished { name, file: &file, size: name.len() as u64 };
        rename_into_place(std::os::fd::AsFd::as_fd(&opened), part, &rel(path), (overwrite, &claims))
    };
    std::fs::write(directory.path().join("x"), "of an earlier session").unwrap();
    rename("first", "a/x", Overwrite::Always).unwrap();
    for overwrite in [Overwrite::Always, Overwrite::IfChanged, Overwrite::Never] {
        assert_eq!(rename("second", "A/x", overwrite).unwrap_err().kind, ErrorKind::Exists);
        assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"first");
    }
    // A file that is sent again replaces its earlier version.
    rename("third", "a/x", Overwrite::Always).unwrap();
    assert_eq!(std::fs::read(directory.path().join("x")).unwrap(), b"third");
}
