//! Tests QUIC peers that misuse what the protocol allows: they fill their credit without an end, leave gaps, and flood
//! frames. The memory of an agent for such peers is bounded.

use sterna_net::identity::Identity;
use sterna_proto::Checks;
use sterna_proto::session::{Frame, Hello, Overwrite, Request, SessionId};

use crate::quic_peer::{PAYLOAD_MAX, RawQuic, stream_frame, varint};
use crate::site::{Agent, Site};
use crate::strangers::agent_for;
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// Most memory of an agent for all unauthorized peers. Reason: 64 MiB of credit and 40 MiB of gaps in its streams. Each
/// handshake of the test adds 16 KiB of window and the connection state. An idle agent has 30 MB.
const STRANGERS_BYTES_MAX: u64 = 220 << 20;

/// Most memory of an agent for one lane of an authorized peer that uses its credit in the worst way. Reason: 20 MiB of
/// window, and 64 KiB of list entries for each of 1,024 streams with gaps. An idle agent has 30 MB.
const LANE_BYTES_MAX: u64 = 160 << 20;

/// Most bytes that a test sends: far more than each maximum.
const SENT_MAX: u64 = 600 << 20;

/// Starts an agent that authorizes no peer.
fn closed_agent(site: &Site) -> Agent {
    agent_for(site, "# nobody\n")
}

/// Fills the window with data after a byte that is never sent. Returns the number of bytes.
fn fill(peer: &mut RawQuic, most: u64) -> u64 {
    let data = vec![7; PAYLOAD_MAX - 24];
    let mut left = peer.max_data.min(most);
    let granted = left;
    for stream in 0..peer.max_streams {
        // The first byte is missing, so the agent can read nothing.
        let mut offset = 1;
        while left > offset && offset + (data.len() as u64) < peer.max_stream_data.min(left) && peer.closed.is_none() {
            peer.send(&stream_frame(4 * stream + 2, offset, &data));
            offset += data.len() as u64;
        }
        left = left.saturating_sub(offset);
    }
    granted - left
}

#[test]
fn strangers_who_fill_what_they_are_granted_and_never_finish_hold_little() {
    const STRANGERS: usize = 600;
    let site = Site::new();
    let mut agent = closed_agent(&site);
    let identity = Identity::ephemeral().unwrap();
    let (mut peers, mut sent) = (Vec::new(), 0);
    for _ in 0..STRANGERS {
        // Sends nothing on its control stream, so that the agent does not examine the peer yet.
        let Some(mut peer) = RawQuic::connect(agent.addr, &identity) else { continue };
        sent += fill(&mut peer, SENT_MAX - sent);
        peers.push(peer);
    }
    assert!(agent.is_alive());
    assert!(sent >= 30 << 20, "only {sent} bytes were granted: a first flight has no room");
    let peak = agent.memory_peak_bytes();
    assert!(peak <= STRANGERS_BYTES_MAX, "the agent took {peak} bytes for {} strangers who sent {sent}", peers.len());
}

#[test]
fn strangers_who_leave_gaps_hold_little() {
    const STRANGERS: usize = 40;
    let site = Site::new();
    let mut agent = closed_agent(&site);
    let identity = Identity::ephemeral().unwrap();
    let mut peers = Vec::new();
    for _ in 0..STRANGERS {
        let Some(mut peer) = RawQuic::connect(agent.addr, &identity) else { continue };
        send_gaps(&mut peer, 64);
        peers.push(peer);
    }
    assert!(agent.is_alive());
    let peak = agent.memory_peak_bytes();
    assert!(peak <= STRANGERS_BYTES_MAX, "the agent took {peak} bytes for {} strangers with gaps", peers.len());
}

/// Sends single bytes with gaps between them, on the control stream and on all others: as many per stream as the engine
/// stores.
fn send_gaps(peer: &mut RawQuic, streams_max: u64) {
    /// Most separate byte ranges of a stream that the engine stores, with a reserve.
    const PIECES: u64 = 1000;
    let streams: Vec<u64> = (0..peer.max_streams.min(streams_max)).map(|index| 4 * index + 2).collect();
    let pieces = PIECES.min((peer.max_data / streams.len().max(1) as u64).saturating_sub(1) / 2);
    let mut packet = Vec::new();
    for piece in 0..pieces {
        for stream in &streams {
            let frame = stream_frame(*stream, 2 * piece + 1, &[7]);
            if packet.len() + frame.len() > PAYLOAD_MAX {
                peer.send(&std::mem::take(&mut packet));
            }
            packet.extend(frame);
            if peer.closed.is_some() {
                return;
            }
        }
    }
    peer.send(&packet);
    peer.sync();
}

/// Returns an authorized peer whose hello was accepted.
fn joined(agent: &Agent, session: u8) -> RawQuic {
    let mut peer = RawQuic::connect(agent.addr, &Identity::ephemeral().unwrap()).unwrap();
    let request = Request::Push {
        destination: Vec::new(),
        several: true,
        overwrite: Overwrite::Always,
        checks: Checks::NONE,
        expect: None,
        dry_run: false,
        targets: Vec::new(),
    };
    let hello = Frame::Hello(Hello::new(SessionId([session; 16]), request)).encode();
    let control = [&b"STQ1"[..], &(hello.len() as u32).to_be_bytes(), &hello].concat();
    let (window, streams) = (peer.max_data, peer.max_streams);
    peer.send(&stream_frame(0, 0, &control));
    peer.wait(|peer| (peer.max_streams > streams || peer.max_data > window).then_some(())).unwrap();
    peer
}

/// Checks that the agent is alive, has used at most `bytes_max` of memory, and serves an honest copy.
fn check(site: &Site, agent: &mut Agent, bytes_max: u64) {
    assert!(agent.is_alive());
    let peak = agent.memory_peak_bytes();
    assert!(peak <= bytes_max, "the agent took {peak} bytes");
    write(&site.local().join("honest"), &Seeded::new(1).bytes(2 * MIB));
    site.copy(agent).args(["--via", "quic", "honest"]).arg(agent.url("")).succeed();
    assert_same_file(&site.local().join("honest"), &site.root().join("honest"));
}

#[test]
fn a_known_peer_that_leaves_gaps_holds_no_more_than_its_lane_may() {
    let site = Site::new();
    let mut agent = site.agent();
    let mut peer = joined(&agent, 1);
    fill(&mut peer, SENT_MAX);
    let mut other = joined(&agent, 2);
    send_gaps(&mut other, u64::MAX);
    check(&site, &mut agent, 2 * LANE_BYTES_MAX);
    drop((peer, other));
}

#[test]
fn floods_of_frames_that_want_answers_hold_little() {
    let site = Site::new();
    let mut agent = site.agent();
    let mut peer = joined(&agent, 1);
    let repeated = |frame: &[u8]| frame.repeat(PAYLOAD_MAX / frame.len());
    let challenge = repeated(&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8]);
    let blocked: Vec<u8> = repeated(&[0x14, 0x05, 0x16, 0x05, 0x17, 0x05, 0x15, 0x02, 0x05]);
    let credit = {
        // The largest values of MAX_DATA and MAX_STREAMS.
        let mut frames = Vec::new();
        for kind in [0x10, 0x12, 0x13] {
            frames.push(kind);
            varint(&mut frames, 1 << 59);
        }
        repeated(&frames)
    };
    for round in 0..400u64 {
        peer.send(&challenge);
        peer.send(&blocked);
        peer.send(&credit);
        // TLS bytes after a gap: memory for TLS messages after the handshake is bounded too.
        let mut crypto = vec![6];
        varint(&mut crypto, 10 + 2 * (round % 100));
        crypto.extend([1, 7]);
        peer.send(&crypto);
        if peer.closed.is_some() {
            break;
        }
    }
    check(&site, &mut agent, LANE_BYTES_MAX);
}

#[test]
fn streams_that_are_opened_and_reset_by_the_thousand_hold_little() {
    let site = Site::new();
    let mut agent = site.agent();
    let mut peer = joined(&agent, 1);
    let mut packet = Vec::new();
    for stream in 0..20_000u64 {
        if peer.wait(|peer| (stream < peer.max_streams).then_some(())).is_none() {
            break;
        }
        let id = 4 * stream + 2;
        packet.extend(stream_frame(id, 0, &[7; 8]));
        let mut reset = vec![4];
        varint(&mut reset, id);
        reset.push(1);
        varint(&mut reset, 8);
        packet.extend(reset);
        if packet.len() > PAYLOAD_MAX - 40 {
            peer.send(&std::mem::take(&mut packet));
        }
        if stream + 1 == peer.max_streams && !packet.is_empty() {
            peer.send(&std::mem::take(&mut packet));
            peer.sync();
        }
    }
    assert!(peer.closed.is_none(), "{:?}", peer.closed);
    check(&site, &mut agent, LANE_BYTES_MAX);
}
