//! Grants of a transfer service: an agent that lists nobody lets their holders in, for what they name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_net::engine::{CopySpec, Engine};
use sterna_net::identity::Identity;
use sterna_proto::session::{DeleteDirectories, Grant, GrantedAccess, SignedGrant};
use sterna_proto::{Error, ErrorKind};

use crate::served::{Served, local};

/// Service, an agent that works for it, and the holder of a grant.
struct Scene {
    service: Identity,
    served: Served,
    holder: Identity,
}

impl Scene {
    /// Returns a valid grant for `path`.
    fn grant(&self, access: GrantedAccess, path: &str) -> Grant {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Grant {
            service: self.service.fingerprint().0,
            holder: self.holder.fingerprint().0,
            at: self.served.key().0,
            access,
            path: path.as_bytes().to_vec(),
            expires: now + 60,
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

fn outcome(engine: &Engine, spec: CopySpec) -> Result<u64, Error> {
    let summary = engine.start(spec)?.wait().map_err(|failure| failure.error)?;
    summary.failures.first().map_or(Ok(summary.done), |error| Err(error.clone()))
}

#[test]
fn a_grant_is_enough_for_the_path_that_it_names() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let scene = scene(there.path());
    std::fs::write(here.path().join("f"), b"pushed").unwrap();
    let push = |to: &str| CopySpec::new(vec![local(&here.path().join("f"))], scene.served.at(to));
    let pull = |from: &str| CopySpec::new(vec![scene.served.at(from)], local(&here.path().join("back")));
    let write = scene.engine(scene.grant(GrantedAccess::Write, "in/f"));
    assert_eq!(outcome(&write, push("in/f")).unwrap(), 1);
    assert_eq!(std::fs::read(there.path().join("in/f")).unwrap(), b"pushed");
    let read = scene.engine(scene.grant(GrantedAccess::Read, "in/f"));
    assert_eq!(outcome(&read, pull("in/f")).unwrap(), 1);
    assert_eq!(read.stat(&scene.served.at("in/f")).unwrap().size, 6);
    std::fs::write(there.path().join("other"), b"secret").unwrap();
    for (engine, spec) in [(&read, push("in/f")), (&read, pull("other")), (&write, push("other"))] {
        let error = outcome(engine, spec).unwrap_err();
        assert!(error.kind == ErrorKind::Denied && error.text().contains("another path"), "{error}");
    }
    let deleted = |engine: &Engine, path: &str| {
        let mut answers = engine.delete(&[scene.served.at(path)], DeleteDirectories::Empty).unwrap();
        answers.try_for_each(|answer| answer.map(drop))
    };
    assert_eq!(deleted(&write, "in/f").unwrap_err().kind, ErrorKind::Denied);
    assert!(there.path().join("in/f").exists());
    deleted(&scene.engine(scene.grant(GrantedAccess::ReadDelete, "in/f")), "in/f").unwrap();
    assert!(!there.path().join("in/f").exists());
    assert_eq!(std::fs::read(there.path().join("other")).unwrap(), b"secret");
}

#[test]
fn a_grant_of_another_service_or_holder_or_time_is_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let scene = scene(there.path());
    std::fs::write(there.path().join("f"), b"bytes").unwrap();
    // A refusal that another attempt may not meet is tried again for this time.
    let linger = Duration::from_millis(100);
    let pull = || CopySpec { linger, ..CopySpec::new(vec![scene.served.at("f")], local(&here.path().join("f"))) };
    let good = || scene.grant(GrantedAccess::Read, "f");
    let other = Identity::ephemeral().unwrap();
    let stranger = Engine::new(scene.holder.clone(), scene.served.trust());
    let forged = |grant: Grant| scene.with(SignedGrant { signature: other.sign(&grant.signed_bytes()), grant });
    let changed = || {
        let signature = scene.service.sign(&good().signed_bytes());
        scene.with(SignedGrant { grant: scene.grant(GrantedAccess::Write, "f"), signature })
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
