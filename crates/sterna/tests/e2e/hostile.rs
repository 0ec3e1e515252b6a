//! Tests peers that lie, flood, stall and send garbage: the agent stays alive and small, and serves the next honest
//! peer.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use bytes::Bytes;
use sterna_net::identity::Identity;
use sterna_net::lane::tcp::{ConnectOptions, connect};
use sterna_net::lane::{Lane, LaneSink};
use sterna_proto::compress::{CompressionPolicy, Encoder, Method, Slab, SlabEncoding, Width};
use sterna_proto::session::{
    BlockData, BlockHeader, Capabilities, FileId, Frame, Hello, Message, Overwrite, Request, SessionId,
};
use sterna_proto::wire::OPTIONAL_FROM;
use sterna_proto::{Checks, EntryKind, Error, FileEntry, FileTime, RelPath};

use crate::site::{Agent, Site};
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// Most memory of an agent under attack. Reason: an idle agent has about 20 MB and a packed block 1 MiB. An entry has
/// some hundred bytes, and a session keeps at most 131,072 entries. Each attack sends or claims far more.
const MEMORY_BYTES_MAX: u64 = 400 << 20;

/// Agent under attack.
struct Victim {
    site: Site,
    agent: Agent,
}

impl Victim {
    fn new() -> Self {
        let site = Site::new();
        let agent = site.agent();
        Self { site, agent }
    }

    /// Opens a lane of an unknown peer, after its handshake.
    fn lane(&self) -> Lane {
        let mut options = ConnectOptions::new(self.agent.addr);
        options.local = None;
        connect(&options, &Identity::ephemeral().unwrap()).unwrap().into_lane()
    }

    /// Opens a lane that has joined a push session.
    fn joined(&self) -> Lane {
        let mut lane = self.lane();
        lane.tx.control(&hello().encode()).unwrap();
        lane.tx.flush().unwrap();
        lane
    }

    /// Checks that the agent is alive and small, and serves an honest copy.
    fn check(mut self) {
        assert!(self.agent.is_alive());
        write(&self.site.local().join("honest"), &Seeded::new(1).bytes(2 * MIB));
        for via in ["tcp", "quic"] {
            self.site.copy(&self.agent).args(["--via", via, "honest"]).arg(self.agent.url(via)).succeed();
            assert_same_file(&self.site.local().join("honest"), &self.site.root().join(via));
        }
        let peak = self.agent.memory_peak_bytes();
        assert!(peak <= MEMORY_BYTES_MAX, "the agent took {peak} bytes");
        let names = std::fs::read_dir(self.site.path("")).unwrap().count();
        assert!(names <= 5, "something was written beside the root");
    }
}

fn hello() -> Frame {
    static SESSION: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    let id = SESSION.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let request = Request::Push {
        destination: Vec::new(),
        several: true,
        overwrite: Overwrite::Always,
        checks: Checks::NONE,
        expect: None,
        dry_run: false,
        targets: Vec::new(),
    };
    Frame::Hello(Hello::new(SessionId([id; 16]), request))
}

pub fn entry(path: &[u8], size: u64) -> FileEntry {
    FileEntry {
        path: RelPath::new(path).unwrap(),
        kind: EntryKind::File,
        size,
        mtime: FileTime { seconds: 1, nanoseconds: 0 },
        mode: 0o644,
        allocated: size,
        inode: 1,
        version: 1,
        growth: None,
    }
}

fn offer(file: u64, entry: FileEntry) -> Vec<u8> {
    Frame::Messages { first: file, encoded: Message::Offer { file: FileId(file), entry }.encode() }.encode()
}

/// Sink that ignores all frames.
pub struct Deaf;

impl LaneSink for Deaf {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
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

/// Runs `attack` and waits until the agent has ended the lane.
fn until_cut_off(lane: Lane, attack: impl FnOnce(&mut dyn sterna_net::lane::LaneTx) -> Result<(), Error>) {
    let Lane { mut tx, rx, .. } = lane;
    // The agent can end the lane during the attack; the test expects this.
    let _ = attack(&mut *tx).and_then(|()| tx.flush());
    let _ = rx.run(&mut Deaf);
}

#[test]
fn garbage_on_the_port_hurts_nobody() {
    let victim = Victim::new();
    let mut seeded = Seeded::new(1);
    for size in [1, 5, 100, 5000, 100_000] {
        let mut stream = TcpStream::connect(victim.agent.addr).unwrap();
        // The agent can close the connection before it has received all bytes.
        let _ = stream.write_all(&seeded.bytes(size));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read(&mut [0; 100]);
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 0..3000 {
        let size = 1 + seeded.below(1400) as usize;
        let mut data = seeded.bytes(size);
        // Some look like the first packet of a QUIC connection.
        if round % 2 == 0 && data.len() > 5 {
            data[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
        }
        let _ = socket.send_to(&data, victim.agent.addr);
    }
    victim.check();
}

#[test]
fn half_open_connections_do_not_lock_honest_peers_out() {
    let victim = Victim::new();
    // More than the agent handles handshakes for at once; they stay open to the end.
    let idle: Vec<TcpStream> = (0..200).filter_map(|_| TcpStream::connect(victim.agent.addr).ok()).collect();
    assert!(idle.len() > 64);
    victim.check();
    drop(idle);
}

#[test]
fn a_first_frame_that_is_no_hello_ends_the_lane() {
    let victim = Victim::new();
    let mut seeded = Seeded::new(2);
    for size in [1, 10, 1000, 100_000] {
        let garbage = seeded.bytes(size);
        until_cut_off(victim.lane(), |tx| tx.control(&garbage));
    }
    until_cut_off(victim.lane(), |tx| tx.control(&Frame::Welcome(Capabilities::OURS).encode()));
    until_cut_off(victim.lane(), |tx| tx.block_begin(b"", 1000));
    victim.check();
}

#[test]
fn garbage_after_the_hello_ends_the_lane() {
    let victim = Victim::new();
    let mut seeded = Seeded::new(3);
    for size in [1, 10, 1000, 100_000] {
        let mut garbage = seeded.bytes(size);
        // From here on a frame would be optional.
        garbage[0] %= OPTIONAL_FROM;
        until_cut_off(victim.joined(), |tx| tx.control(&garbage));
        until_cut_off(victim.joined(), |tx| {
            tx.block_begin(&garbage[..size.min(1000)], 100).and_then(|()| tx.block_data(vec![0; 100].into()))
        });
    }
    until_cut_off(victim.joined(), |tx| {
        tx.control(&Frame::Messages { first: 1 << 40, encoded: Message::Bye.encode() }.encode())
    });
    until_cut_off(victim.joined(), |tx| tx.control(&Frame::Acknowledge { next: u64::MAX }.encode()));
    victim.check();
}

#[test]
fn optional_frames_and_messages_in_any_number_take_no_memory() {
    let victim = Victim::new();
    let skipped = [OPTIONAL_FROM, 0].repeat(100_000);
    until_cut_off(victim.joined(), |tx| {
        for round in 0..100 {
            tx.control(&vec![0xff; 256 << 10])?;
            tx.control(&Frame::Messages { first: round * 100_000, encoded: skipped.clone() }.encode())?;
        }
        // A number that cannot be skipped.
        tx.control(&[OPTIONAL_FROM - 1])
    });
    victim.check();
}

#[test]
fn blocks_that_were_never_offered_or_cannot_be_end_the_lane_or_are_read_past() {
    let victim = Victim::new();
    let claim = |file: u64, entry: FileEntry, index: u64, data_len: u64| {
        let header = BlockHeader::Single { file: FileId(file), entry, index, data: BlockData::Raw }.encode();
        until_cut_off(victim.joined(), |tx| {
            tx.block_begin(&header, data_len)?;
            let mut left = data_len;
            while left > 0 {
                let size = left.min(128 << 10);
                tx.block_data(Bytes::from(vec![1; size as usize]))?;
                left -= size;
            }
            tx.block_end(&[0; 32])?;
            // Ends the lane in any case.
            tx.control(b"\x7f\xff")
        });
    };
    claim(u64::MAX, entry(b"far", 2 * MIB as u64), 0, MIB as u64);
    claim(0, entry(b"beyond", 2 * MIB as u64), 7, MIB as u64);
    claim(0, entry(b"short", 2 * MIB as u64), 0, 10);
    claim(0, entry(b"wrong-digest", 2 * MIB as u64), 0, MIB as u64);
    claim(0, entry(b"huge", 1 << 61), (1 << 37) - 1, 16 * MIB as u64);
    assert!(!victim.site.root().join("wrong-digest").exists());
    victim.check();
}

/// A slab with a false header ends the lane. A slab with a false frame is requested again several times, and its file
/// is not published.
#[test]
fn slabs_that_lie_write_no_more_than_their_block() {
    let victim = Victim::new();
    let slab = |encoding, length| Slab { encoding, length };
    let push = |name: &[u8], files: u64, slabs: Vec<Slab>, bytes: &[u8]| {
        let data_len = slabs.iter().map(|slab| u64::from(slab.length)).sum();
        let claim = entry(name, 2 * MIB as u64);
        until_cut_off(victim.joined(), |tx| {
            for index in 0..files {
                let (file, entry, data) = (FileId(0), claim.clone(), BlockData::Slabs(slabs.clone()));
                let header = BlockHeader::Single { file, entry, index: index % 2, data }.encode();
                tx.block_begin(&header, data_len)?;
                for data in bytes.chunks(1000) {
                    tx.block_data(Bytes::copy_from_slice(data))?;
                }
                tx.block_end(&[0; 32])?;
            }
            tx.control(b"\x7f\xff")
        });
        assert!(!victim.site.root().join(std::str::from_utf8(name).unwrap()).exists());
    };
    let zeros = vec![0; MIB];
    let mut frame = vec![0; MIB];
    let bomb = Encoder::default().encode(Method::Zstd { level: 1 }, &zeros, &mut frame);
    let frame = &frame[..bomb.length as usize];
    // Decompression bombs with other bytes than in their digest, many times; then two in one slab, which decode to more
    // than its length.
    push(b"bomb", 2000, vec![bomb], frame);
    push(b"twice", 20, vec![slab(bomb.encoding, 2 * bomb.length)], &[frame, frame].concat());
    push(b"cut", 20, vec![slab(bomb.encoding, bomb.length - 3)], &frame[..frame.len() - 3]);
    let garbage = Seeded::new(4).bytes(100_000);
    for encoding in [SlabEncoding::Zstd, SlabEncoding::Shuffled(Width::Eight)] {
        push(b"garbage", 20, vec![slab(encoding, 100_000)], &garbage);
    }
    // As long as the block, and longer: the header is refused.
    push(b"long", 1, vec![slab(SlabEncoding::Zstd, MIB as u32)], &zeros);
    push(b"many", 1, vec![bomb, bomb], &[frame, frame].concat());
    let packed = BlockHeader::Packed { files: vec![(FileId(0), entry(b"packed", 200 << 10))], slab: Some(bomb) };
    until_cut_off(victim.joined(), |tx| {
        tx.block_begin(&packed.encode(), u64::from(bomb.length))?;
        tx.block_data(Bytes::copy_from_slice(frame))?;
        tx.block_end(&[0; 32])?;
        tx.control(b"\x7f\xff")
    });
    assert!(!victim.site.root().join("packed").exists());
    victim.check();
}

/// Replaces the file path in an encoded entry with another one of the same length.
fn with_path(mut frame: Vec<u8>, honest: &[u8], lie: &[u8]) -> Vec<u8> {
    assert_eq!(honest.len(), lie.len());
    let at = frame.windows(honest.len()).position(|window| window == honest).unwrap();
    frame[at..at + lie.len()].copy_from_slice(lie);
    frame
}

#[test]
fn entries_that_would_leave_the_root_are_refused() {
    let victim = Victim::new();
    let honest = b"aaaaaaaaaaaaaaaaaaa";
    let lies: [&[u8]; 6] = [
        b"../aaaaaaaaaaaaaaaa",
        b"/tmp/sterna-e2e-lie",
        b"a/../../../aaaaaaaa",
        b"aaaaaaaa//aaaaaaaaa",
        b"aaaaaaa\0aaaaaaaaaaa",
        b"./aaaaaaaaaaaaaaaaa",
    ];
    for lie in lies {
        for size in [10, 2 * MIB as u64] {
            let offered = with_path(offer(0, entry(honest, size)), honest, lie);
            until_cut_off(victim.joined(), |tx| tx.control(&offered));
            let header = BlockHeader::Packed { files: vec![(FileId(0), entry(honest, 10))], slab: None }.encode();
            let header = with_path(header, honest, lie);
            until_cut_off(victim.joined(), |tx| {
                tx.block_begin(&header, 10)?;
                tx.block_data(vec![7; 10].into())?;
                tx.block_end(blake3::hash(&[7; 10]).as_bytes())
            });
        }
    }
    // The hidden names of Sterna are not accepted as names from a peer.
    let hidden = BlockHeader::Packed { files: vec![(FileId(0), entry(b".sterna-00.part", 10))], slab: None }.encode();
    until_cut_off(victim.joined(), |tx| {
        tx.block_begin(&hidden, 10)?;
        tx.block_data(vec![7; 10].into())?;
        tx.block_end(blake3::hash(&[7; 10]).as_bytes())?;
        tx.control(b"\x7f\xff")
    });
    assert_eq!(std::fs::read_dir(victim.site.root()).unwrap().count(), 0);
    assert!(!std::path::Path::new("/tmp/sterna-e2e-lie").exists());
    victim.check();
}

#[test]
fn a_setuid_setgid_or_sticky_bit_of_a_peer_reaches_no_disk() {
    let victim = Victim::new();
    for mode in [0o4755, 0o2755, 0o1777] {
        let with_mode = |entry| FileEntry { mode, ..entry };
        let directory = FileEntry { kind: EntryKind::Directory, ..entry(b"directory", 0) };
        until_cut_off(victim.joined(), |tx| tx.control(&offer(0, with_mode(directory))));
        let small = vec![(FileId(0), with_mode(entry(b"small", 10)))];
        until_cut_off(victim.joined(), |tx| {
            tx.block_begin(&BlockHeader::Packed { files: small, slab: None }.encode(), 10)?;
            tx.block_data(vec![7; 10].into())?;
            tx.block_end(blake3::hash(&[7; 10]).as_bytes())
        });
        let large = with_mode(entry(b"large", MIB as u64));
        let header = BlockHeader::Single { file: FileId(0), entry: large, index: 0, data: BlockData::Raw };
        until_cut_off(victim.joined(), |tx| {
            tx.block_begin(&header.encode(), MIB as u64)?;
            tx.block_data(vec![7; MIB].into())?;
            tx.block_end(blake3::hash(&vec![7; MIB]).as_bytes())
        });
        victim.agent.wait_for_log(&format!("has mode {mode:o}; modes above 777 (setuid, setgid, sticky) are refused"));
    }
    assert_eq!(std::fs::read_dir(victim.site.root()).unwrap().count(), 0);
    victim.check();
}

#[test]
fn a_flood_of_offers_is_cut_off_before_it_fills_memory() {
    let victim = Victim::new();
    let long = "l".repeat(250);
    until_cut_off(victim.joined(), |tx| {
        // A gigabyte of file paths, if the agent stored them.
        for file in 0..300_000u64 {
            let path = format!("{long}/{long}/{long}/{long}/{long}/{long}/{long}/{long}/{file}");
            tx.control(&offer(file, entry(path.as_bytes(), 1 << 40)))?;
            if file == 299_999 {
                tx.control(b"\x7f\xff")?;
            }
        }
        Ok(())
    });
    victim.check();
}

#[test]
fn a_flood_of_small_frames_is_taken_one_by_one() {
    let victim = Victim::new();
    until_cut_off(victim.joined(), |tx| {
        let frame = Frame::Acknowledge { next: 0 }.encode();
        for _ in 0..200_000 {
            tx.control(&frame)?;
        }
        tx.control(b"\x7f\xff")
    });
    victim.check();
}

#[test]
fn many_open_blocks_and_stalled_lanes_hold_little() {
    let victim = Victim::new();
    let mut stalled = Vec::new();
    for index in 0..40u64 {
        let mut lane = victim.joined();
        let name = format!("stalled-{index}");
        let header =
            BlockHeader::Packed { files: vec![(FileId(0), entry(name.as_bytes(), 200 << 10))], slab: None }.encode();
        // The block is announced and never sent.
        let _ = lane.tx.block_begin(&header, 200 << 10).and_then(|()| lane.tx.flush());
        stalled.push(lane);
    }
    victim.check();
    drop(stalled);
}

#[test]
fn a_peer_that_never_reads_holds_nobody_up() {
    let victim = Victim::new();
    write(&victim.site.root().join("big"), &Seeded::new(4).bytes(40 * MIB));
    let mut lane = victim.lane();
    let request = Request::Pull {
        sources: vec![b"big".to_vec()],
        dry_run: false,
        compress: CompressionPolicy::Never,
        on_demand: false,
        numbered: false,
    };
    let hello = Frame::Hello(Hello::new(SessionId([200; 16]), request));
    lane.tx.control(&hello.encode()).and_then(|()| lane.tx.flush()).unwrap();
    victim.agent.wait_for_log("pull of");
    victim.check();
    drop(lane);
}
