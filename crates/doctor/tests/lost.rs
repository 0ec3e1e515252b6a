//! Examinations whose connection to the agent is lost.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sterna_doctor::run::examine;
use sterna_doctor::steps::Bounds;
use sterna_net::agent::{Admission, Agent, AgentOptions, NamedRoot, Reachable, ThirdPartyRules, WebServers};
use sterna_net::disk::{Access, Root};
use sterna_net::engine::{Cancel, Engine, Trust};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{BitRate, Error, ErrorKind, Location};

/// Trust in every agent.
struct Everybody;

impl Trust for Everybody {
    fn check(&self, _: &RemoteLocation, _: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        Ok(())
    }

    fn expected_keys(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(Vec::new())
    }
}

/// Starts an agent that measures with everybody until the test ends. Returns its address.
fn agent() -> SocketAddr {
    let root = Root::open(Path::new(env!("CARGO_TARGET_TMPDIR")), Access::ReadOnly).unwrap();
    let options = AgentOptions {
        roots: vec![NamedRoot { name: None, root }],
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        admission: Admission::Anybody,
        linger: Duration::from_secs(60),
        third_party: ThirdPartyRules { reachable: Reachable::Any, path_cache: None },
        web: WebServers::Any,
        measure_port: None,
    };
    let agent = Agent::start(options, Identity::ephemeral().unwrap()).unwrap();
    let at = agent.local_addr();
    thread::spawn(move || agent.run());
    at
}

/// Relay of TCP connections that can cut them.
struct Relay {
    at: SocketAddr,
    relayed: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, relayed) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let held = Arc::clone(&relayed);
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let far = TcpStream::connect(to).unwrap();
                held.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    // Ends by the cut.
                    thread::spawn(move || io::copy(&mut from, &mut to));
                }
            }
        });
        Self { at, relayed }
    }

    fn cut(&self) {
        for stream in self.relayed.lock().unwrap().drain(..) {
            // The other end may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn an_examination_ends_with_its_connection() {
    let relay = Relay::start(agent());
    let Ok(Location::Remote(remote)) = Location::parse(format!("sterna://{}/", relay.at).as_ref()) else {
        panic!("{}", relay.at)
    };
    let cancel = Cancel::default();
    let engine = Engine::new(Identity::ephemeral().unwrap(), Arc::new(Everybody));
    let mut measurement = engine.measure(&remote, None, &cancel).unwrap();
    assert!(!measurement.is_lost());
    let bounds = Bounds {
        time: Some(Duration::from_secs(30)),
        rate_max: Some(BitRate(10_000_000)),
        near_disk: None,
        far_disk: None,
    };
    let mut experiments = 0;
    let outcome = examine(&mut measurement, &bounds, &cancel, |_| {
        experiments += 1;
        relay.cut();
    });
    let error = outcome.unwrap_err();
    assert!(measurement.is_lost() && error.kind == ErrorKind::Unreachable, "{error}");
    assert_eq!(experiments, 1, "further experiments meet the same error");
    // Later questions return the error that ended the connection.
    assert_eq!(measurement.disk("/").unwrap_err().chain(), error.chain());
}

#[test]
fn an_examination_ends_when_it_is_cancelled() {
    let Ok(Location::Remote(remote)) = Location::parse(format!("sterna://{}/", agent()).as_ref()) else {
        panic!("an agent is remote")
    };
    let cancel = Cancel::default();
    let engine = Engine::new(Identity::ephemeral().unwrap(), Arc::new(Everybody));
    let mut measurement = engine.measure(&remote, None, &cancel).unwrap();
    let bounds = Bounds {
        time: Some(Duration::from_secs(30)),
        rate_max: Some(BitRate(10_000_000)),
        near_disk: None,
        far_disk: None,
    };
    let error = examine(&mut measurement, &bounds, &cancel, |_| cancel.cancel()).unwrap_err();
    assert!(error.kind == ErrorKind::Cancelled && !measurement.is_lost(), "{error}");
}
