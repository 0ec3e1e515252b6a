//! Records sessions between real processes, for the corpus of `sterna-proto` (`crates/proto/tests/corpus`).
//!
//! A relay with its own key stands between the client and the agent. It forwards every frame and block, and records
//! them without the data of blocks. Over QUIC the same frames and blocks travel, so the relay serves TCP only. The
//! command `cargo test -p sterna --test e2e record_real -- --ignored` adds missing recordings and never replaces one.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use sterna_net::identity::Identity;
use sterna_net::lane::tcp::{ConnectOptions, TcpOptions, accept, connect};
use sterna_net::lane::{Lane, LaneHandle, LaneSink, LaneTx};
use sterna_proto::Error;
use sterna_proto::session::LaneId;

use crate::site::{Agent, CopyCommand, Site, wait_until};
use crate::tree::{MIB, Seeded, write};

#[path = "../../../proto/tests/corpus/recording.rs"]
mod recording;

use recording::{Item, Recording, Side, Step};

/// Relay in front of an agent.
struct Relay {
    addr: SocketAddr,
    fingerprint: String,
    recording: Arc<Mutex<Recording>>,
}

impl Relay {
    fn new(agent: SocketAddr) -> Self {
        let identity = Identity::ephemeral().unwrap();
        let fingerprint = identity.fingerprint().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let recording: Arc<Mutex<Recording>> = Arc::default();
        let steps = Arc::clone(&recording);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                let near = accept(stream.unwrap(), &identity, &TcpOptions::default()).unwrap().into_lane();
                let far = connect(&ConnectOptions::new(agent), &identity).unwrap().into_lane();
                pass(LaneId(number), near, far, &steps);
            }
        });
        Self { addr, fingerprint, recording }
    }

    fn url(&self, path: &str) -> String {
        format!("sterna://{}/{path}", self.addr)
    }

    /// Returns a copy by way of the relay, over one lane.
    fn copy(&self, site: &Site) -> CopyCommand {
        let mut copy = site.bare_copy();
        copy.args(["--via", "tcp", "--lanes", "1", "--trust", &self.fingerprint]);
        copy
    }

    /// Adds the recording `name` to the corpus, unless it exists.
    fn add(self, name: &str) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/corpus/v1");
        let path = corpus.join(format!("{name}.session"));
        // Both ends have left: nothing follows.
        wait_until("both directions of the lane have ended", || Arc::strong_count(&self.recording) == 2);
        let recording = self.recording.lock().unwrap();
        assert!(recording.steps.len() > 4, "{recording:?}");
        let bytes = recording.encode();
        assert_eq!(Recording::decode(&bytes).unwrap(), *recording);
        if !path.exists() {
            fs::write(path, bytes).unwrap();
        }
    }
}

/// Starts the threads that pass on what arrives on the two lanes.
fn pass(number: LaneId, near: Lane, far: Lane, recording: &Arc<Mutex<Recording>>) {
    let Lane { tx: to_client, rx: from_client, handle: client, .. } = near;
    let Lane { tx: to_agent, rx: from_agent, handle: agent, .. } = far;
    let directions = [(Side::Client, from_client, to_agent, agent), (Side::Agent, from_agent, to_client, client)];
    for (side, rx, tx, handle) in directions {
        let mut direction = Direction { side, lane: number, tx, block: None, recording: Arc::clone(recording) };
        thread::spawn(move || {
            // An end that leaves may end its lane in the middle of a frame.
            let _ = rx.run(&mut direction);
            close(&*handle);
        });
    }
}

fn close(handle: &dyn LaneHandle) {
    handle.close("the other end has left");
}

/// One direction of a lane.
struct Direction {
    side: Side,
    lane: LaneId,
    tx: Box<dyn LaneTx>,
    /// Header and length of the block that is open.
    block: Option<(Vec<u8>, u64)>,
    recording: Arc<Mutex<Recording>>,
}

impl Direction {
    fn record(&self, item: Item) {
        self.recording.lock().unwrap().steps.push(Step { side: self.side, lane: self.lane, item });
    }
}

impl LaneSink for Direction {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.record(Item::Frame(frame.to_vec()));
        self.tx.control(frame)?;
        self.tx.flush()
    }

    fn block_begin(&mut self, _: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.block = Some((header.to_vec(), data_len));
        self.tx.block_begin(header, data_len)
    }

    fn block_data(&mut self, _: u64, _: u64, data: &[u8]) -> Result<(), Error> {
        self.tx.block_data(Bytes::copy_from_slice(data))
    }

    fn block_end(&mut self, _: u64, trailer: &[u8]) -> Result<(), Error> {
        let (header, data_len) = self.block.take().expect("a block that began");
        self.record(Item::Block { header, data_len, trailer: trailer.to_vec() });
        self.tx.block_end(trailer)?;
        self.tx.flush()
    }

    fn block_abandoned(&mut self, _: u64) -> Result<(), Error> {
        self.block = None;
        self.tx.block_abandon()
    }
}

/// Writes a tree with small files, one that compresses and one with a hole.
fn write_tree(directory: &Path) {
    for index in 0..5 {
        write(&directory.join(format!("tree/d/small{index}")), &Seeded::new(index).bytes(3000));
    }
    write(&directory.join("tree/large"), &Seeded::new(9).bytes(2 * MIB + 7));
    write(&directory.join("tree/text"), &b"0123456789 ".repeat(100_000));
    fs::File::create(directory.join("tree/sparse")).unwrap().set_len(3 << 20).unwrap();
}

#[test]
#[ignore = "records; see the head of this file"]
fn record_real_push_and_pull() {
    let site = Site::new();
    let agent = site.agent();
    write_tree(&site.local());
    let push = Relay::new(agent.addr);
    push.copy(&site).args(["--checksum", "sha256", "--compress", "always", "tree"]).arg(push.url("")).succeed();
    push.add("real-push");
    let pull = Relay::new(agent.addr);
    pull.copy(&site).args(["--compress", "always"]).arg(pull.url("tree")).arg("back").succeed();
    pull.add("real-pull");
}

#[test]
#[ignore = "records; see the head of this file"]
fn record_real_third_party() {
    let (near, far) = (Site::new(), Site::new());
    let root = near.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    let third_party = ["--third-party", "any"].map(std::ffi::OsStr::new);
    let source: Agent = near.agent_with("127.0.0.1:0", &[&flags[..], &third_party[..]].concat());
    let destination = far.agent();
    write_tree(&near.root());
    let relay = Relay::new(source.addr);
    let mut copy = relay.copy(&near);
    copy.args(["--trust", &destination.fingerprint]).arg(relay.url("tree")).arg(destination.url("")).succeed();
    relay.add("real-third-party");
}
