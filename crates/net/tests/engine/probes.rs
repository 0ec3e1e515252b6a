//! Probes of the engine: generated data in both directions.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_net::disk::{Access, Root};
use sterna_net::engine::{CopyEvent, CopySpec, Engine, Next, ProbeSpec, ViaChoice};
use sterna_net::identity::Identity;
use sterna_net::lane::{Lane, LaneSink, LaneTx, tcp};
use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::plan::Via;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{Frame, ListOptions, PATHS_MAX, PROBE_BYTES_MAX, PROBE_BYTES_MIN, PathNumber};
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Location};

use crate::served::{Keys, Served, local};

/// Time after which a test fails that would hang.
const HANG: Duration = Duration::from_secs(120);

const DIRECTIONS: [DataDirection; 2] = [DataDirection::Out, DataDirection::In];

fn agent(location: Location) -> RemoteLocation {
    match location {
        Location::Remote(remote) => remote,
        other => panic!("{other} is at no agent"),
    }
}

fn probe(served: &Served, direction: DataDirection, bytes: u64) -> ProbeSpec {
    ProbeSpec::new(agent(served.at("")), direction, ByteCount(bytes))
}

#[test]
fn a_probe_carries_its_budget_and_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    let served = Served::start(root.path());
    // The least, an incomplete last block, two files.
    for bytes in [PROBE_BYTES_MIN, 20_000_001, (1 << 30) + 1] {
        for direction in DIRECTIONS {
            for via in [Via::Tcp, Via::Quic] {
                println!("{bytes} bytes, {direction:?}, {via}");
                let mut spec = probe(&served, direction, bytes);
                spec.paths[0].via = ViaChoice::Only(via);
                let probe = served.engine().probe(spec).unwrap();
                let mut is_up = false;
                loop {
                    match probe.next(HANG) {
                        Next::Event(CopyEvent::LaneUp { .. }) => is_up = true,
                        Next::Event(_) => {}
                        Next::Nothing => panic!("the probe hangs"),
                        Next::Ended => break,
                    }
                }
                let summary = probe.wait().unwrap();
                let files = bytes.div_ceil(1 << 30);
                assert!(is_up && (summary.done, summary.failed) == (files, 0), "{summary:?}");
                assert_eq!((summary.bytes, summary.counters.bytes_done), (bytes, bytes));
                // Data that compresses proves nothing.
                let (carried, encoded) = (summary.counters.bytes_carried, summary.counters.bytes_encoded);
                assert!(carried >= bytes && encoded == carried, "{summary:?}");
            }
        }
    }
    served.wait_until_idle();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_probe_measures_afresh_and_teaches_no_copy() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = Served::start(root.path());
    let engine = served.engine().with_path_cache(cache.path().to_owned());
    for direction in DIRECTIONS {
        engine.probe(probe(&served, direction, 50_000_000)).unwrap().wait().unwrap();
    }
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn every_authorized_peer_may_probe_and_no_other() {
    let root = tempfile::tempdir().unwrap();
    let named = || vec![("data", Root::open(root.path(), Access::ReadOnly).unwrap())];
    let listed = Identity::ephemeral().unwrap();
    let served = Served::with_rights(named(), &listed, "ro");
    for direction in DIRECTIONS {
        let ours = Engine::new(listed.clone(), served.trust());
        assert_eq!(ours.probe(probe(&served, direction, PROBE_BYTES_MIN)).unwrap().wait().unwrap().done, 1);
        let failure = served.engine().probe(probe(&served, direction, PROBE_BYTES_MIN)).unwrap().wait().unwrap_err();
        assert_eq!(failure.error.kind, ErrorKind::Untrusted);
        let locked_out = Identity::ephemeral().unwrap();
        let served = Served::with_rights(named(), &locked_out, "none");
        let theirs = Engine::new(locked_out, served.trust());
        let failure = theirs.probe(probe(&served, direction, PROBE_BYTES_MIN)).unwrap().wait().unwrap_err();
        assert_eq!(failure.error.kind, ErrorKind::Denied);
    }
}

#[test]
fn a_wrong_probe_is_refused_with_its_reason() {
    let root = tempfile::tempdir().unwrap();
    let served = Served::start(root.path());
    let refusal = |spec| match served.engine().probe(spec) {
        Ok(_) => panic!("the probe starts"),
        Err(error) => error.to_string(),
    };
    for bytes in [0, PROBE_BYTES_MIN - 1, PROBE_BYTES_MAX + 1] {
        let text = refusal(probe(&served, DataDirection::Out, bytes));
        assert!(text.ends_with("give 1.05 MB to 68.7 GB"), "{text}");
    }
    let mut spec = probe(&served, DataDirection::In, PROBE_BYTES_MIN);
    spec.paths = vec![spec.paths[0].clone(); usize::from(PATHS_MAX) + 1];
    assert_eq!(refusal(spec.clone()), "a probe over 9 paths: give 1 to 8");
    spec.paths.clear();
    assert_eq!(refusal(spec), "a probe over 0 paths: give 1 to 8");
}

#[test]
fn a_probe_takes_another_rate_and_ends_when_it_is_cancelled() {
    let root = tempfile::tempdir().unwrap();
    let served = Served::start(root.path());
    for direction in DIRECTIONS {
        let mut spec = probe(&served, direction, PROBE_BYTES_MAX);
        // Three months.
        spec.paths[0].contract = RateContract::of_rate(Some(BitRate(64_000)));
        let probe = served.engine().probe(spec).unwrap();
        while !matches!(probe.next(HANG), Next::Event(CopyEvent::LaneUp { .. })) {}
        probe.set_rate(PathNumber(0), RateContract::default()).unwrap();
        let until = Instant::now() + HANG;
        while probe.snapshot().is_none_or(|now| now.session.counters.bytes_done < 100 << 20) {
            assert!(!matches!(probe.next(Duration::from_millis(10)), Next::Ended));
            assert!(Instant::now() < until, "the probe keeps its rate: {:?}", probe.snapshot());
        }
        probe.cancel();
        assert_eq!(probe.wait().unwrap_err().error.kind, ErrorKind::Cancelled);
        served.wait_until_idle();
    }
}

/// Agent of an earlier release: refuses every hello as a request that it does not know.
struct Refusing {
    tx: Box<dyn LaneTx>,
}

impl LaneSink for Refusing {
    fn control(&mut self, _frame: &[u8]) -> Result<(), Error> {
        self.tx.control(&Frame::Refuse(Error::protocol("request from the peer: unknown kind")).encode())?;
        self.tx.flush()
    }

    fn block_begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Ok(())
    }

    fn block_data(&mut self, _block: u64, _offset: u64, _data: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn block_end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn block_abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_request_that_the_agent_does_not_know_ends_at_once_with_its_reason() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (addr, identity) = (listener.local_addr().unwrap(), Identity::ephemeral().unwrap());
    let engine = Engine::new(Identity::ephemeral().unwrap(), Arc::new(Keys(vec![identity.fingerprint()])));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let identity = identity.clone();
            thread::spawn(move || {
                let Ok(lane) = tcp::accept(stream, &identity, &tcp::TcpOptions::default()) else { return };
                let Lane { tx, rx, .. } = lane.into_lane();
                drop(rx.run(&mut Refusing { tx }));
            });
        }
    });
    let there = || Location::parse(format!("sterna://{addr}/x").as_ref()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = |error: Error| {
        assert_eq!((error.kind, error.is_from_peer()), (ErrorKind::Protocol, true), "{error}");
    };
    let spec = ProbeSpec::new(agent(there()), DataDirection::Out, ByteCount(PROBE_BYTES_MIN));
    refused(engine.probe(spec).unwrap().wait().unwrap_err().error);
    refused(engine.stat(&there()).unwrap_err());
    refused(engine.list(&[there()], &ListOptions::new(None)).unwrap().next().unwrap().unwrap_err());
    refused(engine.start(CopySpec::new(vec![local(file.path())], there())).unwrap().wait().unwrap_err().error);
}
