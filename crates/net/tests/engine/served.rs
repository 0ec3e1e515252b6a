//! An agent in this process, for the tests of the engine.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sterna_net::agent::{
    Admission, Agent, AgentOptions, Commission, CommissionSpec, NamedRoot, Reachable, ThirdPartyRules, WebServers,
};
use sterna_net::disk::{Access, Root};
use sterna_net::engine::{Cancel, Engine, Trust};
use sterna_net::identity::{Authorized, Fingerprint, Identity};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};
use tempfile::TempDir;

/// Time after which a test fails that would hang.
const HANG: Duration = Duration::from_secs(120);

/// Port below those that the kernel gives to programs that ask for any.
const PORT: u16 = 7381;

/// Number of addresses of loopback for each process. Reason: 127.0.0.0/8 has four for each of 2^22 processes.
const ADDRESSES: u32 = 4;

/// Returns an address that no other test uses, and a port that nobody else can take. A port that was free a moment ago
/// may be that of another program now.
pub fn own_address() -> SocketAddrV4 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let number = GIVEN.fetch_add(1, Ordering::Relaxed);
    assert!(number < ADDRESSES, "more tests need their own address");
    let host = process::id() * ADDRESSES + number;
    SocketAddrV4::new(Ipv4Addr::from_bits(127 << 24 | host & 0xff_ffff), PORT)
}

/// Trust in these keys.
pub struct Keys(pub Vec<Fingerprint>);

impl Trust for Keys {
    fn check(&self, _: &RemoteLocation, peer: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        if self.0.contains(peer) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, "another key"))
    }

    fn expected_keys(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(self.0.clone())
    }
}

/// An agent that serves a directory to everybody, until it is dropped.
pub struct Served {
    addr: SocketAddr,
    key: Fingerprint,
    agent: Arc<Agent>,
    thread: Option<JoinHandle<()>>,
    /// Directory of the list of authorized keys.
    keys: Option<TempDir>,
}

impl Served {
    pub fn start(directory: &Path) -> Self {
        let root = NamedRoot { name: None, root: Root::open(directory, Access::ReadWrite).unwrap() };
        Self::with(vec![root], Admission::Anybody, None)
    }

    /// Starts an agent that serves a directory to everybody, on an address with a UDP port for packet trains.
    pub fn with_measure_port(directory: &Path, at: SocketAddrV4) -> Self {
        let root = NamedRoot { name: None, root: Root::open(directory, Access::ReadWrite).unwrap() };
        Self::with(vec![root], Admission::Anybody, Some(at))
    }

    fn with(roots: Vec<NamedRoot>, admission: Admission, measure: Option<SocketAddrV4>) -> Self {
        let identity = Identity::ephemeral().unwrap();
        let key = identity.fingerprint();
        let options = AgentOptions {
            roots,
            listen: (measure.map_or(Ipv4Addr::LOCALHOST, |at| *at.ip()), 0).into(),
            admission,
            linger: Duration::from_secs(60),
            third_party: ThirdPartyRules { reachable: Reachable::Any, path_cache: None },
            web: WebServers::Any,
            measure_port: measure.map(|at| at.port()),
        };
        let agent = Arc::new(Agent::start(options, identity).unwrap());
        let addr = agent.local_addr();
        let running = Arc::clone(&agent);
        let thread = Some(thread::spawn(move || running.run()));
        Self { addr, key, agent, thread, keys: None }
    }

    /// Starts an agent that grants `words` to `client`, as a line of its list of authorized keys.
    pub fn with_rights(roots: Vec<(&str, Root)>, client: &Identity, words: &str) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let list = keys.path().join("authorized");
        std::fs::write(&list, format!("{} {words}\n", client.fingerprint())).unwrap();
        let names = roots.iter().map(|(name, _)| (*name).to_owned()).collect();
        let listed = Admission::Listed(Authorized::open(&list, names).unwrap());
        let named = |(name, root): (&str, Root)| NamedRoot { name: Some(name.to_owned()), root };
        let mut served = Self::with(roots.into_iter().map(named).collect(), listed, None);
        served.keys = Some(keys);
        served
    }

    /// Starts an agent that serves a directory to holders of grants of a service.
    pub fn for_service(directory: &Path, service: &Identity) -> Self {
        let root = NamedRoot { name: None, root: Root::open(directory, Access::ReadWrite).unwrap() };
        let served = Self::with(vec![root], Admission::Granted, None);
        served.agent.trust_service("service", service.public_key());
        served
    }

    /// Prepares a copy for a service.
    pub fn commission(&self, spec: CommissionSpec) -> Commission {
        self.agent.commission(spec).unwrap()
    }

    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    pub fn key(&self) -> Fingerprint {
        self.key
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn trust(&self) -> Arc<Keys> {
        Arc::new(Keys(vec![self.key]))
    }

    /// Waits until the agent has no session.
    pub fn wait_until_idle(&self) {
        let until = Instant::now() + HANG;
        while self.agent.session_count() > 0 {
            assert!(Instant::now() < until, "the agent keeps a session");
            thread::yield_now();
        }
    }

    pub fn at(&self, path: &str) -> Location {
        Location::parse(format!("sterna://{}/{path}", self.addr).as_ref()).unwrap()
    }

    pub fn engine(&self) -> Engine {
        Engine::new(Identity::ephemeral().unwrap(), self.trust())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.agent.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn local(path: &Path) -> Location {
    Location::Local(path.to_owned())
}
