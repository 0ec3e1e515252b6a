//! Grants of a transfer service: an agent that lists nobody lets their holders in, for what they name.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_net::agent::{Commission, CommissionSpec, Work};
use sterna_net::disk::{Access, Root};
use sterna_net::engine::{Cancel, CopySpec, Engine, Granted};
use sterna_net::identity::Identity;
use sterna_net::source::SourcePlace;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{
    ActiveEnd, DeleteDirectories, Grant, GrantedAccess, ListOptions, Overwrite, PassiveAgent, SignedGrant, Target,
    ThirdParty,
};
use sterna_proto::{Algorithm, Checks, Error, ErrorKind, FileDigests, Retry};

use crate::served::{Served, local};

/// Number of the next grant.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Service, an agent that works for it, and the holder of a grant.
struct Scene {
    service: Identity,
    served: Served,
    holder: Identity,
}

impl Scene {
    /// Returns a valid grant for `paths`.
    fn grant(&self, access: GrantedAccess, paths: &[&str]) -> Grant {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Grant {
            service: self.service.fingerprint().0,
            holder: self.holder.fingerprint().0,
            at: self.served.key().0,
            access,
            paths: bytes_of(paths),
            expires: now + 60,
            nonce: self.service.sign(&NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes())[..16].try_into().unwrap(),
        }
    }

    /// Returns an engine of the holder with a grant that the service has signed.
    fn engine(&self, grant: Grant) -> Engine {
        let signature = self.service.sign(&grant.signed_bytes());
        self.with(SignedGrant { grant, signature })
    }

    fn with(&self, grant: SignedGrant) -> Engine {
        Engine::new(self.holder.clone(), self.served.trust()).with_grant(grant)
    }
}

fn scene(directory: &std::path::Path) -> Scene {
    let (service, holder) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let served = Served::for_service(directory, &service);
    Scene { service, served, holder }
}

fn bytes_of(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_bytes().to_vec()).collect()
}

impl Scene {
    /// Returns a copy of files in `here` to exactly these paths at the agent.
    fn push(&self, here: &Path, files: &[&str], to: &[&str]) -> CopySpec {
        let root = Root::open(here, Access::ReadOnly).unwrap();
        let place = |path: &&str| SourcePlace { root: root.clone(), pattern: path.as_bytes().to_vec(), name: None };
        let target = |path: Vec<u8>| Target { path, expect: None };
        CopySpec {
            granted: Some(Granted::Sources(files.iter().map(place).collect())),
            targets: bytes_of(to).into_iter().map(target).collect(),
            ..CopySpec::new(vec![self.served.at("x"); files.len()], self.served.at(""))
        }
    }

    /// Returns a copy of files of the agent to exactly these paths in `here`.
    fn pull(&self, here: &Path, files: &[&str], to: &[&str]) -> CopySpec {
        let root = Root::open(here, Access::ReadWrite).unwrap();
        let target = |path: Vec<u8>| Target { path, expect: None };
        CopySpec {
            granted: Some(Granted::Targets(root, bytes_of(to))),
            targets: bytes_of(to).into_iter().map(target).collect(),
            ..CopySpec::new(files.iter().map(|path| self.served.at(path)).collect(), self.served.at(""))
        }
    }
}

fn outcome(engine: &Engine, spec: CopySpec) -> Result<u64, Error> {
    let summary = engine.start(spec)?.wait().map_err(|failure| failure.error)?;
    summary.failures.first().map_or(Ok(summary.done), |error| Err(error.clone()))
}

#[test]
fn a_grant_is_enough_for_the_paths_that_it_names() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, scene) = (here.path(), scene(there.path()));
    for name in ["f", "g"] {
        std::fs::write(here.join(name), name).unwrap();
    }
    let read_there = |path: &str| std::fs::read_to_string(there.path().join(path)).unwrap();
    let write = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &["in/f", "out/deep/g"]));
    assert_eq!(outcome(&write, scene.push(here, &["f", "g"], &["in/f", "out/deep/g"])).unwrap(), 2);
    assert_eq!((read_there("in/f"), read_there("out/deep/g")), ("f".to_owned(), "g".to_owned()));
    let read = scene.engine(scene.grant(GrantedAccess::Read, &["in/f", "out/deep/g"]));
    assert_eq!(outcome(&read, scene.pull(here, &["out/deep/g", "in/f"], &["back/1", "2"])).unwrap(), 2);
    assert_eq!(std::fs::read(here.join("back/1")).unwrap(), b"g");
    assert_eq!(std::fs::read(here.join("2")).unwrap(), b"f");
    assert_eq!(read.stat(&scene.served.at("in/f")).unwrap().size, 1);
    std::fs::write(there.path().join("other"), b"secret").unwrap();
    for (engine, spec) in [
        (&read, scene.push(here, &["f"], &["in/f"])),
        (&read, scene.pull(here, &["in/f", "other"], &["3", "4"])),
        (&write, scene.push(here, &["f", "g"], &["in/f", "other"])),
        // Without numbers, a directory could be meant.
        (&read, CopySpec::new(vec![scene.served.at("in/f")], local(&here.join("5")))),
        (&write, CopySpec::new(vec![local(&here.join("f"))], scene.served.at("in/f"))),
    ] {
        let error = outcome(engine, spec).unwrap_err();
        assert!(error.kind == ErrorKind::Denied && error.text().contains("another path"), "{error}");
    }
    let mut deleted = write.delete(&[scene.served.at("in/f")], DeleteDirectories::Empty).unwrap();
    assert_eq!(deleted.try_for_each(|answer| answer.map(drop)).unwrap_err().kind, ErrorKind::Denied);
    assert!(there.path().join("in/f").exists());
    assert_eq!(read_there("other"), "secret");
}

/// The holder of a grant asks for more than its order: to replace the file, and to list a directory.
#[test]
fn a_grant_replaces_and_lists_no_more_than_it_says() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, scene) = (here.path(), scene(there.path()));
    std::fs::write(here.join("first"), "first").unwrap();
    std::fs::write(here.join("second"), "second").unwrap();
    let copy = |granted, overwrite, file| {
        let engine = scene.engine(scene.grant(GrantedAccess::Write(granted), &["f"]));
        outcome(&engine, CopySpec { overwrite, ..scene.push(here, &[file], &["f"]) })
    };
    let read = || std::fs::read_to_string(there.path().join("f")).unwrap();
    assert_eq!(copy(Overwrite::Never, Overwrite::Never, "first").unwrap(), 1);
    for overwrite in [Overwrite::Always, Overwrite::IfChanged] {
        let error = copy(Overwrite::Never, overwrite, "second").unwrap_err();
        assert!(error.kind == ErrorKind::Denied && error.text().contains("replace"), "{error}");
        assert_eq!(read(), "first");
    }
    assert_eq!(copy(Overwrite::Always, Overwrite::Always, "second").unwrap(), 1);
    assert_eq!(read(), "second");
    std::fs::create_dir(there.path().join("d")).unwrap();
    std::fs::write(there.path().join("d/secret"), "bytes").unwrap();
    let engine = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &["d"]));
    for depth in [Some(1), None] {
        let mut answers = engine.list(&[scene.served.at("d")], &ListOptions::new(depth)).unwrap();
        let error = answers.next().unwrap().unwrap_err();
        assert!(error.kind == ErrorKind::Denied && error.text().contains("directory"), "{error}");
    }
    let named = engine.list(&[scene.served.at("d")], &ListOptions::new(Some(0))).unwrap();
    assert_eq!(named.map(Result::unwrap).count(), 1);
}

/// The holder of a grant replaces the files after the service has recorded them as verified.
#[test]
fn a_grant_to_write_starts_one_session() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, scene) = (here.path(), scene(there.path()));
    for name in ["first", "second"] {
        std::fs::write(here.join(name), name).unwrap();
    }
    let engine = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &["f"]));
    let linger = Duration::from_millis(100);
    let copy = |file| CopySpec { overwrite: Overwrite::Always, linger, ..scene.push(here, &[file], &["f"]) };
    assert_eq!(outcome(&engine, copy("first")).unwrap(), 1);
    assert!(outcome(&engine, copy("second")).is_err());
    // Sessions that do not use the grant up leave it used: one that was refused, and a dry run that has no file.
    std::fs::create_dir(here.join("directory")).unwrap();
    assert!(outcome(&engine, CopySpec { dry_run: true, ..copy("directory") }).is_err());
    scene.served.wait_until_idle();
    assert!(outcome(&engine, copy("second")).is_err());
    assert_eq!(std::fs::read_to_string(there.path().join("f")).unwrap(), "first");
    // A session that has published no file leaves the grant: the path was away for long, for instance.
    let again = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &["g"]));
    let to_g = |file| CopySpec { linger, ..scene.push(here, &[file], &["g"]) };
    assert!(outcome(&again, to_g("directory")).is_err());
    scene.served.wait_until_idle();
    assert_eq!(outcome(&again, to_g("second")).unwrap(), 1);
    let read = scene.engine(scene.grant(GrantedAccess::Read, &["f"]));
    for name in ["1", "2"] {
        assert_eq!(outcome(&read, scene.pull(here, &["f"], &[name])).unwrap(), 1, "to read changes nothing");
    }
}

#[test]
fn each_file_of_a_numbered_copy_ends_by_itself() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, scene) = (here.path(), scene(there.path()));
    std::fs::create_dir(here.join("directory")).unwrap();
    std::fs::create_dir(there.path().join("taken")).unwrap();
    std::fs::write(here.join("empty"), b"").unwrap();
    std::fs::write(here.join("large"), vec![7; 3_000_000]).unwrap();
    std::fs::write(here.join("f"), b"f").unwrap();
    let targets = ["a", "a", "../b", "taken", "c", "new/d", "e", "g"];
    let sources = ["empty", "f", "f", "f", "large", "f", "directory", "missing"];
    let engine = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &targets));
    let spec = CopySpec { overwrite: Overwrite::Never, ..scene.push(here, &sources, &targets) };
    let summary = engine.start(spec).unwrap().wait().unwrap();
    assert_eq!((summary.done, summary.failed), (3, 5), "{summary:?}");
    assert_eq!(std::fs::read(there.path().join("a")).unwrap(), b"", "the first file has the name");
    assert_eq!(std::fs::metadata(there.path().join("c")).unwrap().len(), 3_000_000);
    assert_eq!(std::fs::read_dir(there.path().join("taken")).unwrap().count(), 0);
    assert!(!there.path().join("e").exists() && !there.path().join("g").exists());
}

#[test]
fn each_file_of_a_numbered_copy_has_its_own_digest() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, scene) = (here.path(), scene(there.path()));
    let adler32 = Checks { adler32: true, ..Checks::NONE };
    let digest = |bytes: &[u8]| FileDigests::of(bytes, adler32).digest(Algorithm::Adler32);
    let large = vec![7; 3_000_000];
    for (name, bytes) in [("f", &b"f"[..]), ("g", b"g"), ("large", &large)] {
        std::fs::write(here.join(name), bytes).unwrap();
        std::fs::write(there.path().join(name), bytes).unwrap();
    }
    let names = ["f", "g", "large", "large"];
    let expected = [digest(b"f"), digest(b"f"), digest(b"g"), digest(&large)];
    let with_digests = |mut spec: CopySpec| {
        spec.targets.iter_mut().zip(&expected).for_each(|(target, expect)| target.expect = *expect);
        CopySpec { checks: adler32, overwrite: Overwrite::Always, ..spec }
    };
    let targets = ["1", "2", "3", "4"];
    let push = with_digests(scene.push(here, &names, &targets));
    let pull = with_digests(scene.pull(here, &names, &targets));
    let write = scene.engine(scene.grant(GrantedAccess::Write(Overwrite::Always), &targets));
    let read = scene.engine(scene.grant(GrantedAccess::Read, &["f", "g", "large"]));
    for (engine, spec, at) in [(write, push, there.path()), (read, pull, here)] {
        let summary = engine.start(spec).unwrap().wait().unwrap();
        assert_eq!((summary.done, summary.failed), (2, 2), "{summary:?}");
        assert!(summary.failures.iter().all(|error| error.kind == ErrorKind::Corrupt), "{summary:?}");
        assert_eq!(targets.map(|name| at.join(name).exists()), [true, false, false, true]);
    }
}

/// Starts an agent whose service asks it to push `files` to the same names at the agent of the scene.
fn commissioned(scene: &Scene, here: &Path, files: &[&str]) -> (Served, Commission) {
    let near = Served::for_service(here, &scene.service);
    let grant = Grant { holder: near.key().0, ..scene.grant(GrantedAccess::Write(Overwrite::Never), files) };
    let signature = scene.service.sign(&grant.signed_bytes());
    let (host, port) = (scene.served.addr().ip().to_string(), scene.served.addr().port());
    let request = ThirdParty {
        active: ActiveEnd::Source,
        passive: PassiveAgent { host, port, keys: vec![scene.served.key().0] },
        sources: bytes_of(files),
        destination: files[0].into(),
        overwrite: Overwrite::Never,
        checks: Checks::NONE,
        expect: None,
        dry_run: false,
        compress: CompressionPolicy::Auto,
        via: None,
        lanes: None,
        congestion: None,
        contract: RateContract::default(),
        linger: Duration::from_secs(60),
        settled: Vec::new(),
    };
    let targets = bytes_of(files).into_iter().map(|path| Target { path, expect: None }).collect();
    let grant = Box::new(SignedGrant { grant, signature });
    let work = Work::WithAgent { request: Box::new(request), targets, grant };
    let spec = CommissionSpec { service: scene.service.fingerprint(), from: scene.served.addr(), work };
    let commission = near.commission(spec);
    (near, commission)
}

#[test]
fn a_comparison_says_different_only_if_it_knows() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let scene = scene(there.path());
    let files = ["same", "other", "directory", "missing here", "missing there"];
    for (name, at_source, at_destination) in
        [("same", "bytes", "bytes"), ("other", "bytes", "bites"), ("missing here", "", "x"), ("missing there", "x", "")]
    {
        for (directory, bytes) in [(&here, at_source), (&there, at_destination)] {
            if !bytes.is_empty() {
                std::fs::write(directory.path().join(name), bytes).unwrap();
            }
        }
    }
    std::fs::write(here.path().join("directory"), "bytes").unwrap();
    std::fs::create_dir(there.path().join("directory")).unwrap();
    let (_near, commission) = commissioned(&scene, here.path(), &files);
    let same = commission.are_same(&[0, 1, 2, 3, 4], &Cancel::default()).unwrap();
    let known: Vec<Option<bool>> = same.iter().map(|same| same.as_ref().ok().copied()).collect();
    assert_eq!(known, [Some(true), Some(false), Some(false), None, None]);
    let unknown = same.into_iter().filter_map(Result::err);
    assert!(unknown.clone().all(|error| error.retry == Retry::After), "{:?}", unknown.collect::<Vec<_>>());
    let cancelled = Cancel::default();
    cancelled.cancel();
    assert_eq!(commission.are_same(&[0, 1], &cancelled).unwrap_err().kind, ErrorKind::Cancelled);
    assert_eq!(commission.digests_here(0, Checks::NONE, &cancelled).unwrap_err().kind, ErrorKind::Cancelled);
}

#[test]
fn a_grant_of_another_service_or_holder_or_time_is_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let scene = scene(there.path());
    std::fs::write(there.path().join("f"), b"bytes").unwrap();
    // A refusal that another attempt may not meet is tried again for this time.
    let linger = Duration::from_millis(100);
    let pull = || CopySpec { linger, ..scene.pull(here.path(), &["f"], &["f"]) };
    let good = || scene.grant(GrantedAccess::Read, &["f"]);
    let other = Identity::ephemeral().unwrap();
    let stranger = Engine::new(scene.holder.clone(), scene.served.trust());
    let forged = |grant: Grant| scene.with(SignedGrant { signature: other.sign(&grant.signed_bytes()), grant });
    let changed = || {
        let signature = scene.service.sign(&good().signed_bytes());
        scene.with(SignedGrant { grant: scene.grant(GrantedAccess::Write(Overwrite::Always), &["f"]), signature })
    };
    // Engine; kind of the refusal, and its words.
    for (engine, kind, words) in [
        (stranger, ErrorKind::Untrusted, "not authorized"),
        (forged(good()), ErrorKind::Untrusted, "signature"),
        (changed(), ErrorKind::Untrusted, "signature"),
        (scene.engine(Grant { holder: other.fingerprint().0, ..good() }), ErrorKind::Untrusted, "pair"),
        (scene.engine(Grant { at: other.fingerprint().0, ..good() }), ErrorKind::Untrusted, "pair"),
        // These two are tried again: the agent may connect to that service, and an hour is long.
        (forged(Grant { service: other.fingerprint().0, ..good() }), ErrorKind::Unreachable, ""),
        (scene.engine(Grant { expires: 1_700_000_000, ..good() }), ErrorKind::Unreachable, ""),
    ] {
        let error = outcome(&engine, pull()).unwrap_err();
        assert!(error.kind == kind && error.text().contains(words), "{words}: {error}");
    }
    assert!(!here.path().join("f").exists());
    assert_eq!(outcome(&scene.engine(good()), pull()).unwrap(), 1);
}
