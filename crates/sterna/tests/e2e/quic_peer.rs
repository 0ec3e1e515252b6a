//! Minimal QUIC client for attacks: sends packets that no honest engine sends, and acknowledges only what the handshake
//! requires.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{ClientConnection, KeyChange, Keys, Secrets, Version};
use sterna_net::identity::{Identity, server_name};

use crate::site::PATIENCE;

/// The three packet number spaces (RFC 9000, section 12.3).
const INITIAL: usize = 0;
const HANDSHAKE: usize = 1;
const DATA: usize = 2;

/// Packets between two waits for an acknowledgement of the agent. Reason: the buffer of a socket holds this number.
const BURST: u64 = 64;

/// Largest payload of a packet that this client sends.
pub const PAYLOAD_MAX: usize = 1150;

#[derive(Default)]
struct Space {
    keys: Option<Keys>,
    next: u64,
    largest: Option<u64>,
    acknowledged: Option<u64>,
    /// TLS bytes for the peer.
    out: Vec<u8>,
    /// TLS bytes of the peer that arrived out of order, by offset; `read` is the offset up to which TLS has read them.
    pieces: BTreeMap<u64, Vec<u8>>,
    read: u64,
}

/// QUIC connection.
pub struct RawQuic {
    socket: UdpSocket,
    tls: ClientConnection,
    remote_id: Vec<u8>,
    token: Vec<u8>,
    spaces: [Space; 3],
    /// Secrets of the next key phase, and the current phase (RFC 9001, section 6). The agent updates its keys early.
    secrets: Option<Secrets>,
    phase: u8,
    is_confirmed: bool,
    /// Bytes that the agent accepts on all streams together.
    pub max_data: u64,
    /// Bytes that the agent accepts on one stream.
    pub max_stream_data: u64,
    /// Unidirectional streams that the agent accepts.
    pub max_streams: u64,
    /// Reason of the agent for closing the connection.
    pub closed: Option<String>,
}

impl RawQuic {
    /// Connects to `agent` as `identity`; `None` if the agent does not accept the connection.
    pub fn connect(agent: SocketAddr, identity: &Identity) -> Option<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(agent).unwrap();
        let config = Arc::new((*identity.client_config()).clone());
        let tls = ClientConnection::new(config, Version::V1, server_name(), parameters()).unwrap();
        // Different for each connection.
        let remote_id = BEGUN.fetch_add(1, Ordering::Relaxed).to_be_bytes().to_vec();
        let mut peer = Self {
            socket,
            tls,
            remote_id,
            token: Vec::new(),
            spaces: Default::default(),
            secrets: None,
            phase: 0,
            is_confirmed: false,
            max_data: 0,
            max_stream_data: 0,
            max_streams: 0,
            closed: None,
        };
        peer.start();
        peer.wait(|peer| peer.is_confirmed.then_some(()))?;
        let parameters = peer.tls.quic_transport_parameters().unwrap().to_vec();
        peer.read_parameters(&mut Reader(&parameters));
        Some(peer)
    }

    /// Sends a packet with these frames.
    pub fn send(&mut self, frames: &[u8]) {
        self.send_in(DATA, frames);
        if self.spaces[DATA].next.is_multiple_of(BURST) {
            self.sync();
        }
    }

    /// Waits until the agent has acknowledged all packets or closed the connection. Returns true if the connection is
    /// open.
    pub fn sync(&mut self) -> bool {
        // Two packets, so that the agent acknowledges at once.
        self.send_in(DATA, &[1]);
        self.send_in(DATA, &[1]);
        let last = self.spaces[DATA].next - 1;
        self.wait(|peer| (peer.spaces[DATA].acknowledged >= Some(last)).then_some(())).is_some()
    }

    /// Waits until `wanted` returns a value; probes again after each silence of [`ASK_AGAIN`]. `None` if the connection
    /// is closed, or after [`PATIENCE`].
    pub fn wait<T>(&mut self, wanted: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let asks = PATIENCE.as_millis() / ASK_AGAIN.as_millis();
        self.socket.set_read_timeout(Some(ASK_AGAIN)).unwrap();
        for _ in 0..asks {
            loop {
                if let Some(value) = wanted(self) {
                    return Some(value);
                }
                if self.closed.is_some() {
                    return None;
                }
                let mut datagram = vec![0; 1 << 16];
                let Ok(length) = self.socket.recv(&mut datagram) else { break };
                self.receive(&mut datagram[..length]);
            }
            self.repeat();
        }
        None
    }

    fn start(&mut self) {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
        self.spaces[INITIAL].keys = Some(suite.keys(&self.remote_id, Side::Client, Version::V1));
        self.write_tls();
        self.repeat();
    }

    /// Retransmits all TLS bytes of the handshake; sends a PING once the handshake is confirmed.
    fn repeat(&mut self) {
        if self.is_confirmed {
            return self.send_in(DATA, &[1]);
        }
        for space in [INITIAL, HANDSHAKE] {
            let out = self.spaces[space].out.clone();
            for (index, piece) in out.chunks(PAYLOAD_MAX - 50).enumerate() {
                let mut frame = vec![6];
                varint(&mut frame, (index * (PAYLOAD_MAX - 50)) as u64);
                varint(&mut frame, piece.len() as u64);
                frame.extend(piece);
                self.send_in(space, &frame);
            }
        }
    }

    fn write_tls(&mut self) {
        let mut space = if self.spaces[HANDSHAKE].keys.is_some() { HANDSHAKE } else { INITIAL };
        loop {
            let mut bytes = Vec::new();
            let change = self.tls.write_hs(&mut bytes);
            let is_done = bytes.is_empty() && change.is_none();
            self.spaces[space].out.extend(bytes);
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    space = HANDSHAKE;
                    self.spaces[HANDSHAKE].keys = Some(keys);
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.spaces[DATA].keys = Some(keys);
                    self.secrets = Some(next);
                }
                None if is_done => return,
                None => {}
            }
        }
    }

    fn send_in(&mut self, space: usize, frames: &[u8]) {
        let Space { keys, next, .. } = &mut self.spaces[space];
        let Some(keys) = keys else { return };
        let number = *next;
        *next += 1;
        let mut payload = frames.to_vec();
        if space == INITIAL {
            payload.resize(payload.len().max(1200), 0);
        }
        let mut packet = match space {
            DATA => [&[0x43 | self.phase << 2], &self.remote_id[..]].concat(),
            _ => {
                let first = if space == INITIAL { 0xc3 } else { 0xe3 };
                let mut header = vec![first, 0, 0, 0, 1, self.remote_id.len() as u8];
                header.extend(&self.remote_id);
                header.push(0);
                if space == INITIAL {
                    varint(&mut header, self.token.len() as u64);
                    header.extend(&self.token);
                }
                varint(&mut header, (4 + payload.len() + 16) as u64);
                header
            }
        };
        let at = packet.len();
        packet.extend((number as u32).to_be_bytes());
        let tag = keys.local.packet.encrypt_in_place(number, &packet, &mut payload).unwrap();
        packet.extend(payload);
        packet.extend(tag.as_ref());
        let sample = packet[at + 4..at + 20].to_vec();
        let (first, rest) = packet.split_at_mut(1);
        keys.local.header.encrypt_in_place(&sample, &mut first[0], &mut rest[at - 1..at + 3]).unwrap();
        // The agent can be gone; the caller that waits detects this.
        let _ = self.socket.send(&packet);
    }

    /// Processes a datagram with one or several packets.
    fn receive(&mut self, mut datagram: &mut [u8]) {
        let mut answered = [false; 3];
        while let Some(&first) = datagram.first() {
            let (space, at, end) = match self.read_header(datagram) {
                Some(found) => found,
                None => return,
            };
            let (packet, rest) = datagram.split_at_mut(end);
            datagram = rest;
            if let Some((number, payload)) = self.open(space, first, at, packet) {
                let largest = &mut self.spaces[space].largest;
                *largest = (*largest).max(Some(number));
                answered[space] |= self.take_frames(space, &mut Reader(&payload));
            }
        }
        for (space, _) in answered.iter().enumerate().filter(|(_, answered)| **answered) {
            let mut frame = vec![2];
            varint(&mut frame, self.spaces[space].largest.unwrap_or_default());
            // No delay, no further ranges, only the largest packet number.
            frame.extend([0, 0, 0]);
            self.send_in(space, &frame);
        }
        self.write_tls();
        if answered[INITIAL] || answered[HANDSHAKE] {
            self.repeat();
        }
    }

    /// Returns the space of a packet, the offset of its number, and its end. `None` for a Retry packet, after it was
    /// handled.
    fn read_header(&mut self, datagram: &[u8]) -> Option<(usize, usize, usize)> {
        if datagram[0] & 0x80 == 0 {
            return Some((DATA, 1, datagram.len()));
        }
        let mut reader = Reader(&datagram[1..]);
        reader.bytes(4);
        let length = reader.byte();
        reader.bytes(length.into());
        let length = reader.byte();
        let remote_id = reader.bytes(length.into()).to_vec();
        let space = match (datagram[0] >> 4) & 3 {
            0 => INITIAL,
            2 => HANDSHAKE,
            _ => {
                self.token = reader.0[..reader.0.len() - 16].to_vec();
                self.remote_id = remote_id;
                let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
                self.spaces[INITIAL].keys = Some(suite.keys(&self.remote_id, Side::Client, Version::V1));
                self.repeat();
                return None;
            }
        };
        self.remote_id = remote_id;
        if space == INITIAL {
            let length = reader.varint();
            reader.bytes(length as usize);
        }
        let length = reader.varint() as usize;
        let at = datagram.len() - reader.0.len();
        Some((space, at, at + length))
    }

    fn open(&mut self, space: usize, first: u8, at: usize, packet: &mut [u8]) -> Option<(u64, Vec<u8>)> {
        let Space { keys, largest, .. } = &mut self.spaces[space];
        let keys = keys.as_mut()?;
        let sample = packet.get(at + 4..at + 20)?.to_vec();
        let (mut first, mut number) = (first, packet[at..at + 4].to_vec());
        keys.remote.header.decrypt_in_place(&sample, &mut first, &mut number).ok()?;
        if space == DATA && (first >> 2) & 1 != self.phase {
            let next = self.secrets.as_mut()?.next_packet_keys();
            (keys.local.packet, keys.remote.packet) = (next.local, next.remote);
            self.phase ^= 1;
        }
        let length = usize::from(first & 3) + 1;
        let window = 1 << (8 * length);
        let low = number[..length].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let expected = largest.map_or(0, |largest| largest + 1);
        // The nearest number with these low bits (RFC 9000, appendix A.3).
        let candidate = (expected & !(window - 1)) | low;
        let number_full = [candidate.checked_sub(window), Some(candidate), Some(candidate + window)]
            .into_iter()
            .flatten()
            .min_by_key(|candidate| candidate.abs_diff(expected))?;
        packet[0] = first;
        packet[at..at + length].copy_from_slice(&number[..length]);
        let (header, payload) = packet.split_at_mut(at + length);
        let payload = keys.remote.packet.decrypt_in_place(number_full, header, payload).ok()?;
        Some((number_full, payload.to_vec()))
    }

    /// Processes the frames of a packet. Returns true if one of them requires an acknowledgement.
    fn take_frames(&mut self, space: usize, reader: &mut Reader<'_>) -> bool {
        let mut wants = false;
        while !reader.0.is_empty() {
            let kind = reader.varint();
            wants |= !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d);
            match kind {
                0 | 1 => {}
                2 | 3 => self.take_acknowledgement(space, kind, reader),
                6 => self.take_crypto(space, reader),
                7 => {
                    let length = reader.varint();
                    reader.bytes(length as usize);
                }
                0x08..=0x0f => {
                    reader.skip(1 + usize::from(kind & 4 != 0));
                    let length = if kind & 2 == 0 { reader.0.len() } else { reader.varint() as usize };
                    reader.bytes(length);
                }
                0x10 => self.max_data = self.max_data.max(reader.varint()),
                0x12 => reader.skip(1),
                0x13 => self.max_streams = self.max_streams.max(reader.varint()),
                0x14 | 0x16 | 0x17 | 0x19 => reader.skip(1),
                0x05 | 0x11 | 0x15 => reader.skip(2),
                0x04 => reader.skip(3),
                0x18 => {
                    reader.skip(2);
                    let length = reader.byte();
                    reader.bytes(usize::from(length) + 16);
                }
                0x1a | 0x1b => {
                    reader.bytes(8);
                }
                0x1c | 0x1d => {
                    let code = reader.varint();
                    reader.skip(usize::from(kind == 0x1c));
                    let length = reader.varint();
                    let reason = String::from_utf8_lossy(reader.bytes(length as usize)).into_owned();
                    self.closed = Some(format!("{kind:#x} {code}: {reason}"));
                }
                0x1e => self.is_confirmed = true,
                other => panic!("the agent sent frame {other:#x}"),
            }
        }
        wants
    }

    fn take_acknowledgement(&mut self, space: usize, kind: u64, reader: &mut Reader<'_>) {
        let acknowledged = &mut self.spaces[space].acknowledged;
        *acknowledged = (*acknowledged).max(Some(reader.varint()));
        reader.skip(1);
        let ranges = reader.varint() as usize;
        reader.skip(1 + 2 * ranges + if kind == 3 { 3 } else { 0 });
    }

    fn take_crypto(&mut self, space: usize, reader: &mut Reader<'_>) {
        let (offset, length) = (reader.varint(), reader.varint() as usize);
        let bytes = reader.bytes(length).to_vec();
        let Space { pieces, read, .. } = &mut self.spaces[space];
        pieces.insert(offset, bytes);
        while let Some((offset, bytes)) = pieces.pop_first() {
            if offset > *read {
                pieces.insert(offset, bytes);
                return;
            }
            let known = (*read - offset) as usize;
            if known < bytes.len() {
                self.tls.read_hs(&bytes[known..]).unwrap();
                *read = offset + bytes.len() as u64;
            }
        }
    }

    fn read_parameters(&mut self, reader: &mut Reader<'_>) {
        while !reader.0.is_empty() {
            let (name, length) = (reader.varint(), reader.varint());
            let mut value = Reader(reader.bytes(length as usize));
            match name {
                4 => self.max_data = self.max_data.max(value.varint()),
                7 => self.max_stream_data = value.varint(),
                9 => self.max_streams = self.max_streams.max(value.varint()),
                _ => {}
            }
        }
    }
}

/// Silence after which the client probes again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Number of connections that were started.
static BEGUN: AtomicU64 = AtomicU64::new(1);

/// Returns the transport parameters of this client: an empty connection ID, and enough credit for the frames of the
/// agent.
fn parameters() -> Vec<u8> {
    let mut bytes = vec![0x0f, 0];
    for (name, value) in [(1, 60_000), (4, 1 << 24), (5, 1 << 24), (6, 1 << 24), (7, 1 << 24), (8, 100), (9, 100)] {
        let mut encoded = Vec::new();
        varint(&mut encoded, value);
        bytes.extend([name, encoded.len() as u8]);
        bytes.extend(encoded);
    }
    bytes
}

/// Returns a STREAM frame with an offset and a length.
pub fn stream_frame(id: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x0e];
    varint(&mut frame, id);
    varint(&mut frame, offset);
    varint(&mut frame, data.len() as u64);
    frame.extend(data);
    frame
}

/// Writes a variable-length integer of QUIC (RFC 9000, section 16).
pub fn varint(bytes: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => bytes.push(value as u8),
        0x40..0x4000 => bytes.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => bytes.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => bytes.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    fn varint(&mut self) -> u64 {
        let length = 1 << (self.0[0] >> 6);
        let value = self.bytes(length).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        value & (u64::MAX >> (64 - 8 * length + 2))
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.varint();
        }
    }
}
