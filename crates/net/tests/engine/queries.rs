//! Queries of the engine: lists, digests, deletions and renames.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use sterna_net::disk::{Access, Root};
use sterna_net::engine::{Answers, CopySpec, Engine};
use sterna_net::identity::Identity;
use sterna_proto::session::{
    Answer, DeleteDirectories, Details, DigestQuery, Filter, ListOptions, Listed, ListedKind, Overwrite, Symlinks,
};
use sterna_proto::{Checks, Error, ErrorKind, FileDigests};

use crate::served::{Served, local};

/// Returns the answers; each failure as its error.
fn all(answers: Answers) -> Vec<Result<Answer, Error>> {
    answers.collect()
}

fn listed(answers: Answers) -> Vec<Listed> {
    let listed = |answer| match answer {
        Ok(Answer::Listed(listed)) => *listed,
        other => panic!("{other:?} in a list"),
    };
    answers.map(listed).collect()
}

fn paths(answers: Answers) -> Vec<String> {
    let path = |listed: Listed| listed.path.map_or("the root".to_owned(), |path| path.to_string());
    listed(answers).into_iter().map(path).collect()
}

/// A tree of files, directories and symlinks.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("a/deep")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    fs::write(at.join("a/deep/x.h5"), b"0123456789").unwrap();
    fs::write(at.join("a/y.txt"), b"abc").unwrap();
    fs::write(at.join("z.h5"), b"").unwrap();
    symlink("a/y.txt", at.join("link")).unwrap();
    symlink("/etc/passwd", at.join("out")).unwrap();
    symlink("nowhere", at.join("broken")).unwrap();
}

#[test]
fn a_list_has_every_name_down_to_its_depth_in_order() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    let served = Served::start(directory.path());
    let engine = served.engine();
    let list = |path: &str, depth| paths(engine.list(&[served.at(path)], &ListOptions::new(depth)).unwrap());
    assert_eq!(list("", Some(0)), ["the root"]);
    assert_eq!(list("", Some(1)), ["the root", "a", "broken", "empty", "link", "out", "z.h5"]);
    let below = ["a", "a/deep", "a/deep/x.h5", "a/y.txt"];
    assert_eq!(list("a", None), below);
    assert_eq!(list("a/", Some(1)), ["a", "a/deep", "a/y.txt"]);
    assert_eq!(list("*/deep/*.h5", Some(0)), ["a/deep/x.h5"]);
    // This host lists the same, beneath the directory of the named file.
    let here = engine.list(&[local(&directory.path().join("a"))], &ListOptions::new(None)).unwrap();
    assert_eq!(paths(here), below);
    let missing = all(engine.list(&[served.at("missing")], &ListOptions::new(None)).unwrap());
    assert!(matches!(&missing[..], [Ok(Answer::Failed(error))] if error.kind == ErrorKind::NotFound), "{missing:?}");
}

#[test]
fn attributes_and_digests_are_those_of_the_files() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    fs::hard_link(directory.path().join("z.h5"), directory.path().join("z2.h5")).unwrap();
    let served = Served::start(directory.path());
    let engine = served.engine();
    let stat = |path: &str| engine.stat(&served.at(path)).unwrap();
    let file = stat("a/y.txt");
    let meta = fs::metadata(directory.path().join("a/y.txt")).unwrap();
    let owner = file.attributes.owner.clone().unwrap();
    assert_eq!((file.kind, file.size), (ListedKind::File, 3));
    assert_eq!((owner.user, file.mtime.seconds, u32::from(file.mode)), {
        use std::os::unix::fs::MetadataExt;
        (meta.uid(), meta.mtime(), meta.mode() & 0o7777)
    });
    assert_eq!((stat("a").kind, stat("a").size), (ListedKind::Directory, 0));
    let link = stat("link");
    assert_eq!((link.kind, link.attributes.target.as_deref()), (ListedKind::Symlink, Some(&b"a/y.txt"[..])));
    assert_eq!(stat("z.h5").attributes.hard_link, stat("z2.h5").attributes.hard_link);
    assert!(stat("z.h5").attributes.hard_link.is_some() && file.attributes.hard_link.is_none());
    assert_eq!(engine.stat(&served.at("missing")).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(engine.stat(&served.at("*.h5")).unwrap_err().kind, ErrorKind::Usage);

    let checks = Checks { md5: true, sha256: true, adler32: true, ..Checks::NONE };
    let digest_of = |path: &str, range| {
        let options = ListOptions {
            symlinks: Symlinks::Followed,
            digest: Some(DigestQuery { checks, range }),
            ..ListOptions::new(Some(0))
        };
        all(engine.list(&[served.at(path)], &options).unwrap()).remove(0)
    };
    let computed = |answer| match answer {
        Ok(Answer::Listed(listed)) => listed.digests.unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(computed(digest_of("link", None)), FileDigests::of(b"abc", checks), "a symlink is followed");
    assert_eq!(computed(digest_of("z.h5", None)), FileDigests::of(b"", checks));
    assert_eq!(computed(digest_of("a/deep/x.h5", Some((3, 4)))), FileDigests::of(b"3456", checks));
    let beyond = digest_of("a/deep/x.h5", Some((3, 8)));
    assert!(matches!(&beyond, Ok(Answer::Failed(error)) if error.kind == ErrorKind::Changed), "{beyond:?}");
    // A symlink out of the root is listed as one and not read.
    let out = digest_of("out", None);
    assert!(matches!(&out, Ok(Answer::Listed(out)) if out.kind == ListedKind::Symlink && out.digests.is_none()));
}

#[test]
fn a_large_file_has_the_digest_of_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    sterna_seeded::with_seed("a_large_file_has_the_digest_of_its_bytes", 1, |seed| {
        let mut seeded = sterna_seeded::Seeded::new(seed);
        let size = 3_000_000 + seeded.below(3_000_000) as usize;
        let bytes = seeded.bytes(size);
        fs::write(directory.path().join("large"), &bytes).unwrap();
        let served = Served::start(directory.path());
        let (offset, length) = (seeded.below(1_000_000) as usize, seeded.below(2_000_000) as usize);
        for range in [None, Some((offset as u64, length as u64))] {
            let checks = Checks { md5: true, crc32c: true, ..Checks::NONE };
            let options = ListOptions { digest: Some(DigestQuery { checks, range }), ..ListOptions::new(Some(0)) };
            let found = listed(served.engine().list(&[served.at("large")], &options).unwrap()).remove(0);
            let part = if range.is_some() { &bytes[offset..offset + length] } else { &bytes[..] };
            assert_eq!(found.digests.unwrap(), FileDigests::of(part, checks));
        }
    });
}

#[test]
fn the_far_end_filters() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    let served = Served::start(directory.path());
    let engine = served.engine();
    let list = |filter| {
        let options = ListOptions { filter, details: Details { owner: true, xattrs: true }, ..ListOptions::new(None) };
        paths(engine.list(&[served.at("")], &options).unwrap())
    };
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(list(Filter { names: names(&["*.h5"]), ..Filter::default() }), ["a/deep/x.h5", "z.h5"]);
    assert_eq!(list(Filter { size_min: Some(4), ..Filter::default() }), ["a/deep/x.h5"]);
    let sized = Filter { size_min: Some(1), size_max: Some(3), names: names(&["*"]), ..Filter::default() };
    assert_eq!(list(sized), ["a/y.txt"]);
    let future = sterna_proto::FileTime { seconds: i64::MAX, nanoseconds: 0 };
    assert!(list(Filter { modified_from: Some(future), ..Filter::default() }).is_empty());
    assert_eq!(list(Filter { modified_before: Some(future), names: names(&["z*"]), ..Filter::default() }), ["z.h5"]);
}

#[test]
fn more_names_than_buffers_hold_arrive_and_a_reader_that_leaves_ends_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let count = 30_000;
    for index in 0..count {
        fs::write(directory.path().join(format!("{index:05}")), b"").unwrap();
    }
    let served = Served::start(directory.path());
    let engine = served.engine();
    let options = ListOptions::new(Some(1));
    let mut few = engine.list(&[served.at("")], &options).unwrap();
    assert!(few.by_ref().take(10).all(|answer| answer.is_ok()));
    drop(few);
    let names = paths(engine.list(&[served.at("")], &options).unwrap());
    assert_eq!(names.len(), count + 1);
    assert!(names[1..].is_sorted());
    // The list that nobody read has let go of its session and its threads.
    served.wait_until_idle();
}

#[test]
fn only_the_right_to_manage_deletes_and_renames() {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    let served = Served::start(directory.path());
    let engine = served.engine();
    let refused = all(engine.delete(&[served.at("a")], DeleteDirectories::WithContents).unwrap());
    assert!(matches!(&refused[..], [Err(error)] if error.kind == ErrorKind::Denied), "{refused:?}");
    let renamed = engine.rename(&served.at("z.h5"), &served.at("new"), Overwrite::Never).unwrap_err();
    assert_eq!(renamed.kind, ErrorKind::Denied);
    assert!(directory.path().join("a/y.txt").exists() && directory.path().join("z.h5").exists());
}

#[test]
fn named_roots_are_listed_and_managed_by_right() {
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(data.path());
    fs::write(other.path().join("kept"), b"").unwrap();
    let identity = Identity::ephemeral().unwrap();
    let roots = [("data", data.path()), ("other", other.path()), ("hidden", other.path())]
        .map(|(name, path)| (name, Root::open(path, Access::ReadWrite).unwrap()));
    let served = Served::with_rights(roots.into(), &identity, "data=manage other=ro");
    let engine = Engine::new(identity, served.trust());
    let list = |path: &str, depth| paths(engine.list(&[served.at(path)], &ListOptions::new(depth)).unwrap());
    assert_eq!(list("", Some(1)), ["data", "other"], "the roots that the client may read");
    assert_eq!(list("", Some(2)).len(), 2 + 6 + 1);
    assert_eq!(list("data/a", Some(1)), ["data/a", "data/a/deep", "data/a/y.txt"]);

    let delete = |path: &str, directories| all(engine.delete(&[served.at(path)], directories).unwrap());
    let deleted = |answers: Vec<Result<Answer, Error>>| -> Vec<String> {
        let path = |answer| match answer {
            Ok(Answer::Deleted { path }) => path.to_string(),
            other => panic!("{other:?}"),
        };
        answers.into_iter().map(path).collect()
    };
    let denied = delete("other/kept", DeleteDirectories::Empty);
    assert!(matches!(&denied[..], [Err(error)] if error.kind == ErrorKind::Denied), "{denied:?}");
    let full = delete("data/a", DeleteDirectories::Empty);
    assert!(matches!(&full[..], [Ok(Answer::Failed(error))] if error.kind == ErrorKind::Exists), "{full:?}");
    for root in ["data", "data/", "data/."] {
        let root = delete(root, DeleteDirectories::WithContents);
        assert!(matches!(&root[..], [Err(error)] if error.kind == ErrorKind::Usage), "{root:?}");
    }
    let upward = delete("data/a/../../other/kept", DeleteDirectories::Empty);
    assert!(upward.iter().all(|answer| matches!(answer, Err(_) | Ok(Answer::Failed(_)))), "{upward:?}");
    assert!(other.path().join("kept").exists());
    assert_eq!(deleted(delete("data/link", DeleteDirectories::Empty)), ["data/link"]);
    assert!(data.path().join("a/y.txt").exists(), "a symlink is deleted, not its target");

    // A directory with a symlink to a directory elsewhere: the contents of the target stay.
    symlink("../empty", data.path().join("a/door")).unwrap();
    fs::write(data.path().join("empty/inside"), b"").unwrap();
    let mut names = deleted(delete("data/a", DeleteDirectories::WithContents));
    assert_eq!(names.pop().as_deref(), Some("data/a"), "the directory goes last");
    names.sort();
    assert_eq!(names, ["data/a/deep", "data/a/deep/x.h5", "data/a/door", "data/a/y.txt"]);
    assert!(!data.path().join("a").exists() && data.path().join("empty/inside").exists());

    fs::write(data.path().join("empty/new"), b"new").unwrap();
    let rename = |from: &str, to: &str, overwrite| engine.rename(&served.at(from), &served.at(to), overwrite);
    assert_eq!(rename("data/empty/new", "data/z.h5", Overwrite::Never).unwrap_err().kind, ErrorKind::Exists);
    rename("data/empty/new", "data/z.h5", Overwrite::Always).unwrap();
    assert_eq!(fs::read(data.path().join("z.h5")).unwrap(), b"new");
    assert_eq!(rename("data/z.h5", "other/z.h5", Overwrite::Never).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(rename("data/empty", "data/empty/in", Overwrite::Never).unwrap_err().kind, ErrorKind::Usage);
    assert_eq!(rename("data/missing", "data/x", Overwrite::Never).unwrap_err().kind, ErrorKind::NotFound);
    rename("data/empty", "data/full", Overwrite::Never).unwrap();
    assert!(data.path().join("full/inside").exists());
}

#[test]
fn a_read_only_root_is_not_managed_whatever_the_right() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("kept"), b"").unwrap();
    let identity = Identity::ephemeral().unwrap();
    let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
    let served = Served::with_rights(vec![("r", root)], &identity, "manage");
    let engine = Engine::new(identity, served.trust());
    let refused = all(engine.delete(&[served.at("r/kept")], DeleteDirectories::Empty).unwrap());
    assert!(matches!(&refused[..], [Err(error)] if error.text().contains("read-only")), "{refused:?}");
    assert!(engine.rename(&served.at("r/kept"), &served.at("r/gone"), Overwrite::Never).is_err());
    assert!(directory.path().join("kept").exists());
}

#[test]
fn unfinished_files_of_copies_are_never_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity::ephemeral().unwrap();
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    let served = Served::with_rights(vec![("r", root)], &identity, "manage");
    let engine = Engine::new(identity, served.trust());
    fs::create_dir(directory.path().join("d")).unwrap();
    let part = directory.path().join("d/.sterna-00000000000000000000000000000000.part");
    fs::write(&part, b"half").unwrap();
    fs::write(directory.path().join("d/whole"), b"whole").unwrap();
    let answers = all(engine.delete(&[served.at("r/d")], DeleteDirectories::WithContents).unwrap());
    let failed =
        answers.iter().filter(|answer| matches!(answer, Ok(Answer::Failed(error)) if error.kind == ErrorKind::Busy));
    assert_eq!((answers.len(), failed.count()), (2, 1), "{answers:?}");
    assert!(part.exists() && !directory.path().join("d/whole").exists());
    // A copy into a directory that was emptied works as before.
    let source = directory.path().join("source");
    fs::write(&source, b"again").unwrap();
    let copied = engine.start(CopySpec::new(vec![local(&source)], served.at("r/d/whole"))).unwrap().wait().unwrap();
    assert_eq!(copied.done, 1);
}
