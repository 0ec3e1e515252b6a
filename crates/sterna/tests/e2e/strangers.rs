//! Tests refusals of unauthorized peers: each is clear and immediate, and costs the agent little.

use std::ffi::OsStr;
use std::fs;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use sterna_net::identity::Identity;
use sterna_net::lane::quic::{QuicOptions, SharedRate};
use sterna_net::lane::tcp::ConnectOptions;
use sterna_net::lane::{Lane, LaneSink, LaneTx, quic, tcp};
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::file::drives_terminal;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{Frame, Hello, Message, Overwrite, Request, SessionId};
use sterna_proto::{Checks, Error, ErrorKind};

use crate::site::{Agent, PATIENCE, Site, wait_until, with_descriptors};
use crate::tree::write;

/// Starts an agent that authorizes the peers in `lines`.
pub fn agent_for(site: &Site, lines: &str) -> Agent {
    let (authorize, root) = (site.path("authorize"), site.root());
    fs::write(&authorize, lines).unwrap();
    let flags: [&OsStr; 4] = ["--root".as_ref(), root.as_os_str(), "--authorize".as_ref(), authorize.as_os_str()];
    site.agent_with("127.0.0.1:0", &flags)
}

/// Lane that receives frames from the agent until the lane ends.
struct Heard {
    tx: Box<dyn LaneTx>,
    frames: Receiver<Frame>,
}

struct Ear(std::sync::mpsc::Sender<Frame>);

impl LaneSink for Ear {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        // The test that received the frames can be over.
        let _ = self.0.send(Frame::decode(frame)?.expect("no frame of a later version"));
        Ok(())
    }
    fn block_begin(&mut self, _: u64, _: &[u8], _: u64) -> Result<(), Error> {
        Ok(())
    }
    fn block_data(&mut self, _: u64, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_end(&mut self, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn block_abandoned(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

fn heard(lane: Lane) -> Heard {
    let Lane { tx, rx, handle, .. } = lane;
    let (ear, frames) = channel();
    thread::spawn(move || {
        let _ = rx.run(&mut Ear(ear));
        drop(handle);
    });
    Heard { tx, frames }
}

fn by_tcp(agent: &Agent, identity: &Identity) -> Heard {
    heard(tcp::connect(&ConnectOptions::new(agent.addr), identity).unwrap().into_lane())
}

fn by_quic(agent: &Agent, identity: &Identity) -> Heard {
    heard(quic::connect(&QuicOptions::new(agent.addr, SharedRate::new(RateContract::default())), identity).unwrap())
}

impl Heard {
    fn says(mut self, frame: &Frame) -> Self {
        self.tx.control(&frame.encode()).and_then(|()| self.tx.flush()).unwrap();
        self
    }

    /// Returns the next frame that is no report. Reports arrive whenever the agent has nothing else to send.
    fn next(&self) -> Frame {
        loop {
            let frame = self.frames.recv_timeout(PATIENCE).expect("a frame from the agent");
            if !matches!(frame, Frame::Receiver(_) | Frame::Limits(_)) {
                return frame;
            }
        }
    }

    fn refusal(&self) -> Error {
        match self.next() {
            Frame::Refuse(error) => error,
            other => panic!("a refusal was due, not {other:?}"),
        }
    }

    /// Waits until the agent ends the lane.
    fn ends(self) {
        while self.frames.recv_timeout(PATIENCE).map_err(|e| assert_eq!(e.to_string(), CLOSED)).is_ok() {}
    }
}

const CLOSED: &str = "channel is empty and sending half is closed";

fn push_hello() -> Frame {
    let request = Request::Push {
        destination: b"to/".to_vec(),
        several: true,
        overwrite: Overwrite::Always,
        checks: Checks::NONE,
        expect: None,
        dry_run: false,
        targets: Vec::new(),
    };
    Frame::Hello(Hello::new(SessionId([1; 16]), request))
}

#[test]
fn a_stranger_is_refused_before_it_says_a_word() {
    let site = Site::new();
    let agent = agent_for(&site, "# nobody\n");
    let stranger = Identity::ephemeral().unwrap();
    for lane in [by_tcp(&agent, &stranger), by_quic(&agent, &stranger)] {
        let refusal = lane.refusal();
        assert_eq!(refusal.kind, ErrorKind::Untrusted);
        assert!(refusal.text().contains(&stranger.fingerprint().to_string()), "{refusal}");
        lane.ends();
    }
}

#[test]
fn lanes_that_never_say_hello_are_ended_when_they_are_many() {
    let site = Site::new();
    let root = site.root();
    let flags: [&OsStr; 3] = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    // An eighth of its descriptors is for lanes without a hello: 64.
    let agent = site.agent_by(with_descriptors(512), "127.0.0.1:0", &flags);
    let mute = Identity::ephemeral().unwrap();
    let mut lanes: Vec<Heard> = (0..100).map(|_| by_tcp(&agent, &mute)).collect();
    lanes.extend((0..30).map(|_| by_quic(&agent, &mute)));
    wait_until("the end of the lanes that are too many", || {
        lanes.retain(|lane| !matches!(lane.frames.try_recv(), Err(TryRecvError::Disconnected)));
        lanes.len() <= 64
    });
    write(&site.local().join("honest"), b"bytes");
    for via in ["tcp", "quic"] {
        site.copy(&agent).args(["--via", via, "honest"]).arg(agent.url(via)).succeed();
    }
}

#[test]
fn rights_are_looked_at_for_each_lane_and_their_loss_ends_the_session() {
    let site = Site::new();
    let peer = Identity::ephemeral().unwrap();
    let line = |rights: &str| format!("{} {rights}\n", peer.fingerprint());
    let agent = agent_for(&site, &line("rw"));
    for (loss, kind) in [(line("ro"), ErrorKind::Denied), (String::new(), ErrorKind::Untrusted)] {
        fs::write(site.path("authorize"), line("rw")).unwrap();
        let first = by_tcp(&agent, &peer).says(&push_hello());
        assert!(matches!(first.next(), Frame::Welcome(_)));
        fs::write(site.path("authorize"), loss).unwrap();
        let second = by_tcp(&agent, &peer);
        let second = if kind == ErrorKind::Denied { second.says(&push_hello()) } else { second };
        assert_eq!(second.refusal().kind, kind);
        let Frame::Messages { encoded, .. } = first.next() else { panic!("an abort was due") };
        let messages = Message::decode_all(&encoded).unwrap();
        assert!(matches!(&messages[..], [Message::Abort { error }] if error.kind == kind), "{messages:?}");
        first.ends();
        agent.wait_for_log("ended early");
    }
}

#[test]
fn rights_that_are_taken_away_end_a_session_whose_lanes_are_up() {
    let site = Site::new();
    let peer = Identity::ephemeral().unwrap();
    let line = |rights: &str| format!("{} {rights}\n", peer.fingerprint());
    let agent = agent_for(&site, &line("rw"));
    for (loss, kind) in [(line("ro"), ErrorKind::Denied), (String::new(), ErrorKind::Untrusted)] {
        fs::write(site.path("authorize"), line("rw")).unwrap();
        // A peer that is listed again is accepted again.
        let lane = by_tcp(&agent, &peer).says(&push_hello());
        assert!(matches!(lane.next(), Frame::Welcome(_)));
        // Editors save like this: a new file replaces the old one.
        fs::write(site.path("edited"), loss).unwrap();
        fs::rename(site.path("edited"), site.path("authorize")).unwrap();
        let Frame::Messages { encoded, .. } = lane.next() else { panic!("an abort was due") };
        let messages = Message::decode_all(&encoded).unwrap();
        let [Message::Abort { error }] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(error.kind, kind);
        assert!(error.text().starts_with("no longer authorized: "), "{error}");
        lane.ends();
        agent.wait_for_log("ended early: no longer authorized: ");
    }
}

#[test]
fn a_change_of_the_list_leaves_other_sessions_as_they_are() {
    let site = Site::new();
    let (peer, other) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let agent = agent_for(&site, &format!("{}\n{}\n", peer.fingerprint(), other.fingerprint()));
    let stays = by_tcp(&agent, &peer).says(&push_hello());
    let ends = by_tcp(&agent, &other).says(&push_hello());
    assert!(matches!((stays.next(), ends.next()), (Frame::Welcome(_), Frame::Welcome(_))));
    fs::write(site.path("authorize"), format!("{} # the other one has left\n", peer.fingerprint())).unwrap();
    assert!(matches!(ends.next(), Frame::Messages { .. }));
    ends.ends();
    // The next frame that the agent sends answers this message.
    let offers_end = Frame::Messages { first: 0, encoded: Message::OffersEnd { files: 0, bytes: 0 }.encode() };
    match stays.says(&offers_end).next() {
        Frame::Acknowledge { .. } => {}
        Frame::Messages { encoded, .. } => {
            let messages = Message::decode_all(&encoded).unwrap();
            assert!(!matches!(&messages[..], [Message::Abort { .. }, ..]), "{messages:?}");
        }
        other => panic!("an answer was due, not {other:?}"),
    }
}

#[test]
fn strangers_that_break_the_protocol_fill_no_log() {
    let site = Site::new();
    let agent = site.agent();
    for _ in 0..60 {
        let mut lane = by_tcp(&agent, &Identity::ephemeral().unwrap());
        // A block before the hello; the agent can end the lane during the block.
        let _ = lane.tx.block_begin(b"", 1000).and_then(|()| lane.tx.block_data(vec![0; 1000].into()));
        let _ = lane.tx.flush();
        lane.ends();
    }
    let log = fs::read_to_string(&agent.log).unwrap();
    assert!(log.lines().count() <= 22, "{log}");
}

#[test]
fn a_refusal_has_a_short_line_whatever_the_peer_asked_for() {
    let site = Site::new();
    let agent = site.agent();
    let name = [&b"\xc2\x9b31m\xe2\x80\xae"[..], &[b'n'; 200]].concat();
    let sources = vec![[&name[..]; 15].join(&b"/"[..]); 3];
    let request = Request::Pull {
        sources,
        dry_run: false,
        compress: CompressionPolicy::Never,
        on_demand: false,
        numbered: false,
    };
    let hello = Frame::Hello(Hello::new(SessionId([2; 16]), request));
    let lane = by_tcp(&agent, &Identity::ephemeral().unwrap()).says(&hello);
    // Each failure has one line.
    wait_until("three failures", || fs::read_to_string(&agent.log).unwrap().matches("(os error ").count() >= 3);
    drop(lane);
    let log = fs::read_to_string(&agent.log).unwrap();
    for line in log.lines() {
        assert!(line.chars().count() <= 1010 && !line.chars().any(drives_terminal), "{line:?}");
    }
}
