use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};

use sterna_proto::{ErrorKind, Retry, Scope};

use super::*;

fn touch(root: &Path, path: &[u8], bytes: &[u8]) {
    let path = root.join(OsStr::from_bytes(path));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Returns the target paths that a source means, and the kinds of its errors.
fn expanded(root: &Root, path: &[u8]) -> (Vec<String>, Vec<ErrorKind>) {
    let (mut paths, mut errors) = (Vec::new(), Vec::new());
    for item in root.expand(path).unwrap() {
        match item {
            Ok(item) => paths.push(item.entry.path.to_string()),
            Err(error) => errors.push(error.kind),
        }
    }
    (paths, errors)
}

/// Name in the form of our unfinished files.
const UNFINISHED: &str = ".sterna-0123456789abcdef0123456789abcdef.part";

fn sample() -> (TempDir, Root) {
    let directory = scratch();
    for path in [&b"a/b/c.h5"[..], b"a/b/d.h5", b"a/b/e.txt", b"a/pass/1/x.h5", b"a/pass/2/y.h5", b"z.h5", b".dot.h5"] {
        touch(directory.path(), path, path);
    }
    std::fs::create_dir(directory.path().join("a/pass/empty")).unwrap();
    touch(directory.path(), format!("a/{UNFINISHED}").as_bytes(), b"half");
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    (directory, root)
}

#[test]
fn sources_are_named_as_cp_names_them() {
    let (_directory, root) = sample();
    let cases: &[(&[u8], &[&str])] = &[
        (b"a/b/c.h5", &["c.h5"]),
        (b"a//b/./c.h5", &["c.h5"]),
        (b"a/pass", &["pass", "pass/1", "pass/1/x.h5", "pass/2", "pass/2/y.h5", "pass/empty"]),
        (b"a/pass/", &["pass", "pass/1", "pass/1/x.h5", "pass/2", "pass/2/y.h5", "pass/empty"]),
        (b"a/pass/.", &["1", "1/x.h5", "2", "2/y.h5", "empty"]),
        (b"a/b/*.h5", &["c.h5", "d.h5"]),
        (b"a/*/[cd].h5", &["c.h5", "d.h5"]),
        (b"a/pass/*", &["1", "1/x.h5", "2", "2/y.h5", "empty"]),
        (b"a/pass/?/*.h5", &["x.h5", "y.h5"]),
        (b"a/pass/*/x.h5", &["x.h5"]),
        (b"*.h5", &["z.h5"]),
        (b".*.h5", &[".dot.h5"]),
    ];
    for (path, expected) in cases {
        assert_eq!(expanded(&root, path), (expected.iter().map(|s| s.to_string()).collect(), vec![]), "{path:?}");
    }
    let all = expanded(&root, b"");
    assert_eq!(all, expanded(&root, b"."));
    assert_eq!((all.0.len(), all.1.len()), (13, 0));
    assert_eq!(root.expand(b"a/b/c.h5").unwrap().sources(), Sources::One);
    assert_eq!(root.expand(b"a/b/c*").unwrap().sources(), Sources::Many);
    assert_eq!(root.expand(b"a/.").unwrap().sources(), Sources::Many);
}

#[test]
fn what_is_not_there_or_is_ours_is_not_found() {
    let (_directory, root) = sample();
    for path in [&b"nothing"[..], b"a/b/c.h5/x", b"nothing/*.h5"] {
        match root.expand(path) {
            Err(error) => assert_eq!((error.kind, error.scope), (ErrorKind::NotFound, Scope::Source), "{path:?}"),
            Ok(mut found) => assert_eq!(found.next().unwrap().unwrap_err().kind, ErrorKind::NotFound, "{path:?}"),
        }
    }
    assert_eq!(expanded(&root, b"*.nc"), (vec![], vec![ErrorKind::NotFound]));
    assert_eq!(expanded(&root, b"a/.sterna-*"), (vec![], vec![ErrorKind::NotFound]));
    // A name that the user gives literally is reported.
    assert_eq!(expanded(&root, format!("a/{UNFINISHED}").as_bytes()), (vec![], vec![ErrorKind::NotFound]));
}

#[test]
fn a_name_that_begins_as_ours_and_is_not_is_reported_with_the_reason() {
    let (directory, root) = sample();
    touch(directory.path(), b"a/b/.sterna-notes", b"mine");
    touch(directory.path(), b"a/b/.sterna-dir/f", b"mine");
    for (source, count) in [(&b"a/b"[..], 2), (b"a/b/.sterna-*", 2), (b"a/b/.sterna-notes", 1)] {
        let errors: Vec<_> = root.expand(source).unwrap().filter_map(Result::err).collect();
        assert_eq!(errors.len(), count, "{errors:?}");
        for error in errors {
            assert!(error.kind == ErrorKind::NotFound && error.text().contains("our unfinished files"), "{error}");
        }
    }
}

#[test]
fn a_symlink_that_leads_nowhere_is_called_that() {
    let (directory, root) = sample();
    symlink("nowhere", directory.path().join("a/b/dangling")).unwrap();
    let said = root.expand(b"a/b/dangling").unwrap_err();
    assert_eq!(said.kind, ErrorKind::NotFound);
    assert!(said.text().starts_with("a/b/dangling in ") && said.text().ends_with("target does not exist"), "{said}");
    let said = root.expand(b"a").unwrap().find_map(Result::err).unwrap();
    assert_eq!(said.text(), "a/b/dangling is a symlink whose target does not exist; skipped");
}

#[test]
fn a_name_that_exists_as_written_is_no_wildcard() {
    let (directory, root) = sample();
    touch(directory.path(), b"a[1].h5", b"1");
    touch(directory.path(), b"a1.h5", b"2");
    assert_eq!(expanded(&root, b"a[1].h5").0, ["a[1].h5"]);
    assert_eq!(root.expand(b"a[1].h5").unwrap().sources(), Sources::One);
    assert_eq!(expanded(&root, b"a[12].h5").0, ["a1.h5"]);
}

#[test]
fn nothing_outside_the_root_can_be_read() {
    let outside = scratch();
    touch(outside.path(), b"secret", b"secret");
    let (directory, root) = sample();
    let at = |name: &str| directory.path().join(name);
    symlink(outside.path().join("secret"), at("absolute")).unwrap();
    symlink("../../etc/passwd", at("upwards")).unwrap();
    symlink(outside.path(), at("out")).unwrap();
    symlink("/proc/self/root/etc/passwd", at("magic")).unwrap();
    symlink("round", at("round")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    for path in [&b"absolute"[..], b"upwards", b"out/secret", b"magic", b"round"] {
        assert_eq!(root.open_source(&rel(path)).unwrap_err().kind, ErrorKind::Denied, "{path:?}");
        assert_eq!(root.expand(path).unwrap_err().kind, ErrorKind::Denied, "{path:?}");
    }
    for path in [&b"../x"[..], b"a/../../x", b".."] {
        assert_eq!(root.expand(path).unwrap_err().kind, ErrorKind::Usage, "{path:?}");
    }
    // A listing reports each of them as a name that no run will copy, and the rest is sent.
    let (paths, errors) = expanded(&root, b".");
    assert_eq!(paths.len(), 13);
    assert_eq!(errors.len(), 6);
    assert!(errors.iter().all(|kind| *kind == ErrorKind::NotFound), "{errors:?}");
}

#[test]
fn symlinks_inside_the_root_lead_to_files_and_not_to_directories() {
    let (directory, root) = sample();
    symlink("b/c.h5", directory.path().join("a/link.h5")).unwrap();
    symlink("pass", directory.path().join("a/turn")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.path().join("a/fifo"), rustix::fs::Mode::from_raw_mode(0o600))
        .unwrap();
    let (paths, errors) = expanded(&root, b"a");
    assert!(paths.contains(&"a/link.h5".to_owned()));
    assert_eq!(errors, [ErrorKind::NotFound, ErrorKind::NotFound]);
    let link = root.expand(b"a/link.h5").unwrap().next().unwrap().unwrap();
    assert_eq!((link.entry.size, link.source.to_string()), (8, "a/link.h5".to_owned()));
    let mut bytes = [0; 8];
    root.open_source(&link.source).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"a/b/c.h5");
    // A symlink that the user names literally is followed.
    assert_eq!(expanded(&root, b"a/turn").0.len(), 6);
    // A FIFO is refused at once, without waiting for its writer.
    assert_eq!(root.open_source(&rel(b"a/fifo")).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn names_of_any_bytes_and_deep_trees_are_listed_in_order() {
    let directory = scratch();
    let longest = [b'n'; 255];
    for name in [&b"\xff\xfe"[..], b"new\nline", b"-rf", b" ", &longest, "é".as_bytes()] {
        touch(directory.path(), name, b"");
    }
    // 400 levels: a walk that keeps a descriptor for each level would exceed a limit of 256.
    let deep: Vec<u8> = b"d/".repeat(400);
    touch(directory.path(), &[&deep[..], b"leaf"].concat(), b"leaf");
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let items: Vec<SourceItem> = root.expand(b"").unwrap().map(Result::unwrap).collect();
    assert_eq!(items.len(), 6 + 400 + 1);
    let top: Vec<&[u8]> = items.iter().map(|i| i.entry.path.as_bytes()).filter(|p| !p.contains(&b'/')).collect();
    assert!(top.is_sorted() && top.len() == 7);
    let leaf = items.iter().find(|item| item.entry.path.name() == b"leaf").unwrap();
    assert_eq!(root.open_source(&leaf.source).unwrap().entry().unwrap().size, 4);
}

#[test]
fn a_directory_of_100_000_files_is_listed_and_may_be_left_early() {
    let directory = scratch();
    for i in 0..100_000 {
        std::fs::File::create(directory.path().join(format!("{i:06}"))).unwrap();
    }
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let first = root.expand(b".").unwrap().take(3).map(|item| item.unwrap().entry.path.to_string());
    assert_eq!(first.collect::<Vec<_>>(), ["000000", "000001", "000002"]);
    assert_eq!(root.expand(b"*").unwrap().filter(Result::is_ok).count(), 100_000);
}

#[test]
fn a_source_that_changes_while_it_is_read_is_reported() {
    let directory = scratch();
    touch(directory.path(), b"a.h5", &pattern(3 * MIB));
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let item = root.expand(b"a.h5").unwrap().next().unwrap().unwrap();
    let source = root.open_source(&item.source).unwrap();
    source.check_unchanged(&item.entry).unwrap();
    let mut block = vec![1u8; MIB as usize];
    source.read_at(2 * MIB, &mut block).unwrap();
    assert!(block == pattern(3 * MIB)[2 * MIB as usize..]);

    let at = directory.path().join("a.h5");
    let writer = std::fs::File::options().write(true).open(&at).unwrap();
    writer.set_len(3 * MIB - 1).unwrap();
    let error = source.read_at(2 * MIB, &mut block).unwrap_err();
    assert_eq!((error.kind, error.retry), (ErrorKind::Changed, Retry::After));
    assert_eq!(source.check_unchanged(&item.entry).unwrap_err().kind, ErrorKind::Changed);

    // Other bytes, with the size and time restored.
    let entry = source.entry().unwrap();
    let time = std::fs::metadata(&at).unwrap().modified().unwrap();
    // Repeats until the clock of the file system has ticked.
    while source.entry().unwrap().version == entry.version {
        writer.write_all_at(b"other", MIB).unwrap();
        writer.set_modified(time).unwrap();
    }
    let error = source.check_unchanged(&entry).unwrap_err();
    assert!(error.kind == ErrorKind::Changed && error.text().contains("change time"), "{error}");

    // The same size and time, in another file with that name.
    let entry = source.entry().unwrap();
    std::fs::copy(&at, directory.path().join("other")).unwrap();
    let time = std::fs::metadata(&at).unwrap().modified().unwrap();
    std::fs::File::options().write(true).open(directory.path().join("other")).unwrap().set_modified(time).unwrap();
    source.check_unchanged(&entry).unwrap();
    std::fs::rename(directory.path().join("other"), &at).unwrap();
    let error = source.check_unchanged(&entry).unwrap_err();
    assert!(error.kind == ErrorKind::Changed && error.text().contains("inode"), "{error}");
    std::fs::remove_file(&at).unwrap();
    assert!(source.check_unchanged(&entry).unwrap_err().text().contains("gone"));
}

#[test]
fn holes_are_seen_without_reading_and_data_is_never_one() {
    let directory = scratch();
    let file = std::fs::File::create(directory.path().join("sparse")).unwrap();
    file.set_len(5_000_000_000_000).unwrap();
    file.write_all_at(b"x", 10 * MIB + 5).unwrap();
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let item = root.expand(b"sparse").unwrap().next().unwrap().unwrap();
    assert!(item.entry.size == 5_000_000_000_000 && item.entry.allocated < MIB, "{item:?}");
    let source = root.open_source(&item.source).unwrap();
    assert!(!source.is_hole(10 * MIB, MIB).unwrap());
    // File systems store holes in units of their own blocks, at most 64 KiB.
    assert!(source.is_hole(0, MIB).unwrap() && source.is_hole(11 * MIB, MIB).unwrap());
    assert!(source.is_hole(4_999_999_000_000, 1_000_000).unwrap());
    assert!(source.is_hole(4_999_999_000_000, 1_000_001).is_err());
}

#[test]
fn a_local_source_is_the_persons_own_authority() {
    let outside = scratch();
    touch(outside.path(), b"real.h5", b"real");
    let directory = scratch();
    touch(directory.path(), b"a/x.h5", b"x");
    symlink(outside.path().join("real.h5"), directory.path().join("a/away.h5")).unwrap();
    let local = |ending: &str| {
        let path = format!("{}{ending}", directory.path().display());
        let (root, pattern) = Root::for_local_source(path.as_bytes()).unwrap();
        expanded(&root, &pattern)
    };
    assert_eq!(local("/a/*.h5").0, ["away.h5", "x.h5"]);
    assert_eq!(local("/a/away.h5").0, ["away.h5"]);
    assert_eq!(local("/*/x.h5").0, ["x.h5"]);
    assert_eq!(local("/a").0, ["a", "a/away.h5", "a/x.h5"]);
    assert_eq!(local("/a//").0, ["a", "a/away.h5", "a/x.h5"]);
    assert_eq!(local("/a/.").0, ["away.h5", "x.h5"]);
    assert_eq!(local("/a/..").0, ["a", "a/away.h5", "a/x.h5"]);
    assert!(Root::for_local_source(b"/nothing-here/x").is_err());
    let (here, pattern) = Root::for_local_source(b"surely-not-here").unwrap();
    let missing = here.expand(&pattern).unwrap_err();
    assert_eq!(missing.text(), "look for surely-not-here in the current directory");
}
