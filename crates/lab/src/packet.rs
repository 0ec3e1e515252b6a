//! IPv4 packet handling of a router between two hosts: parse, segment, answer and edit packets, and nothing else.
//!
//! Kernels pass TCP and UDP in super-packets of up to 64 KiB with one header (segmentation offload). The router decides
//! separately about each segment. It forwards segments that arrive together as one super-packet again, so this module
//! builds the header of any run of segments.
//!
//! Input may be garbage. Every function rejects garbage, and no function panics.

use crate::model::random::mix;
use crate::model::{Flow, LinkModel, StrippedOptions};

/// Length of the header that the kernel puts before each packet on a TUN device (`struct virtio_net_hdr`).
pub(crate) const OFFLOAD_HEADER_BYTES: usize = 10;

/// Length of the longest IPv4 packet, super-packets included.
pub(crate) const PACKET_BYTES_MAX: usize = 65_535;

/// Longest headers of a segment: 60 bytes of IPv4 and 60 bytes of TCP.
pub(crate) const HEADERS_BYTES_MAX: usize = 120;

/// Layout of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of the IPv4 header.
    pub(crate) network_bytes: u16,
    /// Bytes of all headers that every segment repeats.
    pub(crate) header_bytes: u16,
    /// Payload bytes in each segment except the last; zero when the packet is not a super-packet.
    pub(crate) segment_bytes: u16,
    /// Payload bytes of all segments together.
    pub(crate) payload_bytes: u16,
    /// Transport protocol of a super-packet.
    pub(crate) transport: Transport,
}

/// Transport protocols that the router can segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Other,
}

/// Offload metadata that the kernel puts before a packet (`struct virtio_net_hdr`, native byte order).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffloadHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_bytes: u16,
    pub(crate) segment_bytes: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

/// Flag: the checksum field holds the sum over the pseudo-header only. The device computes the rest.
pub(crate) const FLAG_PARTIAL_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

impl OffloadHeader {
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let field = |at| Some(u16::from_ne_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        Some(Self {
            flags: *bytes.first()?,
            gso_type: *bytes.get(1)?,
            header_bytes: field(2)?,
            segment_bytes: field(4)?,
            checksum_start: field(6)?,
            checksum_offset: field(8)?,
        })
    }

    pub(crate) fn write(&self) -> [u8; OFFLOAD_HEADER_BYTES] {
        let mut bytes = [0; OFFLOAD_HEADER_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let fields = [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (index, field) in fields.iter().enumerate() {
            bytes[2 + 2 * index..4 + 2 * index].copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn has_partial_checksum(&self) -> bool {
        self.flags & FLAG_PARTIAL_CHECKSUM != 0
    }
}

impl Shape {
    /// Parses the headers of `packet`. Returns `None` when this is not a consistent IPv4 packet.
    pub(crate) fn read(offload: &OffloadHeader, packet: &[u8]) -> Option<Self> {
        let network_bytes = ipv4_header_bytes(packet)?;
        let whole = Self {
            network_bytes: network_bytes as u16,
            header_bytes: network_bytes as u16,
            segment_bytes: 0,
            payload_bytes: (packet.len() - network_bytes) as u16,
            transport: Transport::Other,
        };
        let (transport, transport_bytes) = match offload.gso_type & !GSO_ECN {
            GSO_NONE => return Some(whole),
            GSO_TCP4 if packet[9] == PROTOCOL_TCP => (Transport::Tcp, tcp_header_bytes(&packet[network_bytes..])?),
            GSO_UDP if packet[9] == PROTOCOL_UDP => (Transport::Udp, UDP_HEADER_BYTES),
            _ => return None,
        };
        let header_bytes = network_bytes + transport_bytes;
        let payload_bytes = packet.len().checked_sub(header_bytes)?;
        if offload.segment_bytes == 0 || payload_bytes == 0 || !offload.has_partial_checksum() {
            return None;
        }
        Some(Self {
            header_bytes: header_bytes as u16,
            segment_bytes: offload.segment_bytes,
            payload_bytes: payload_bytes as u16,
            transport,
            ..whole
        })
    }

    /// Returns the number of packets on the wire.
    pub(crate) fn segment_count(&self) -> u16 {
        if self.segment_bytes == 0 { 1 } else { self.payload_bytes.div_ceil(self.segment_bytes) }
    }

    /// Returns the position of the payload of segments `[first, end)` in the super-packet.
    pub(crate) fn payload_range(&self, first: u16, end: u16) -> std::ops::Range<usize> {
        let header = usize::from(self.header_bytes);
        let payload = usize::from(self.payload_bytes);
        if self.segment_bytes == 0 {
            return header..header + payload;
        }
        let at = |index: u16| header + (usize::from(index) * usize::from(self.segment_bytes)).min(payload);
        at(first)..at(end)
    }

    /// Returns the size of segment `index` as an IP packet on the wire, in bytes.
    pub(crate) fn wire_bytes(&self, index: u16) -> usize {
        usize::from(self.header_bytes) + self.payload_range(index, index + 1).len()
    }

    /// Returns the shape of segments `[first, end)` as a separate packet.
    pub(crate) fn part(&self, first: u16, end: u16) -> Self {
        let payload_bytes = self.payload_range(first, end).len() as u16;
        let segment_bytes = if end - first > 1 { self.segment_bytes } else { 0 };
        Self { segment_bytes, payload_bytes, ..*self }
    }

    /// Writes into `out` the headers of segments `[first, end)` of the super-packet `packet`, as a separate packet.
    /// Returns the length of the headers and the metadata for the kernel.
    ///
    /// Works like a segmenting device. The identification counts up and the sequence number advances. FIN and PSH stay
    /// on the last segment, CWR on the first. The checksum stays partial and covers the new length.
    pub(crate) fn run_header(
        &self,
        packet: &[u8],
        first: u16,
        end: u16,
        out: &mut [u8; HEADERS_BYTES_MAX],
    ) -> (usize, OffloadHeader) {
        let header_bytes = usize::from(self.header_bytes);
        let network_bytes = usize::from(self.network_bytes);
        let header = &mut out[..header_bytes];
        header.copy_from_slice(&packet[..header_bytes]);
        let payload_bytes = self.payload_range(first, end).len();
        let total = (header_bytes + payload_bytes) as u16;
        let identification = read_u16(header, 4).wrapping_add(first);
        write_u16(header, 2, total);
        write_u16(header, 4, identification);
        refresh_network_checksum(&mut header[..network_bytes]);
        let transport_total = total - self.network_bytes;
        let pseudo = pseudo_header_sum(header, transport_total);
        let transport = &mut header[network_bytes..];
        let checksum_offset = match self.transport {
            Transport::Tcp => {
                let sequence = read_u32(transport, 4);
                let moved = sequence.wrapping_add(u32::from(first) * u32::from(self.segment_bytes));
                transport[4..8].copy_from_slice(&moved.to_be_bytes());
                if end < self.segment_count() {
                    transport[13] &= !(TCP_FIN | TCP_PSH);
                }
                if first > 0 {
                    transport[13] &= !TCP_CWR;
                }
                TCP_CHECKSUM_OFFSET
            }
            Transport::Udp | Transport::Other => {
                write_u16(transport, 4, transport_total);
                UDP_CHECKSUM_OFFSET
            }
        };
        write_u16(transport, checksum_offset, pseudo);
        let several = end - first > 1;
        let gso_type = match self.transport {
            Transport::Tcp => GSO_TCP4,
            Transport::Udp | Transport::Other => GSO_UDP,
        };
        let offload = OffloadHeader {
            flags: FLAG_PARTIAL_CHECKSUM,
            gso_type: if several { gso_type } else { GSO_NONE },
            header_bytes: self.header_bytes,
            segment_bytes: if several { self.segment_bytes } else { 0 },
            checksum_start: self.network_bytes,
            checksum_offset: checksum_offset as u16,
        };
        (header_bytes, offload)
    }
}

/// Returns the flow of a packet whose headers `Shape::read` accepted. All fragments of a packet have the same flow.
pub(crate) fn flow(packet: &[u8]) -> Flow {
    let Some(network_bytes) = ipv4_header_bytes(packet) else { return Flow::default() };
    let addresses = (u64::from(read_u32(packet, 12)) << 32) | u64::from(read_u32(packet, 16));
    let protocol = packet[9];
    let fragment = read_u16(packet, 6) & 0x3fff != 0;
    let has_ports = matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP) && !fragment && packet.len() >= network_bytes + 4;
    let ports = if has_ports { read_u32(packet, network_bytes) } else { 0 };
    let hash = mix(addresses ^ mix((u64::from(ports) << 8) | u64::from(protocol)));
    Flow { hash, is_udp: protocol == PROTOCOL_UDP }
}

/// Returns true if the sender sets "don't fragment" (all modern TCP implementations do).
pub(crate) fn forbids_fragments(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| flags & 0x40 != 0)
}

/// Edits that a middlebox makes in SYN packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SynEdit {
    strip: StrippedOptions,
    mss_clamp: Option<u16>,
}

/// Edits that were made in one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SynChange {
    /// An option was replaced by no-operations.
    pub(crate) stripped: bool,
    /// The MSS was lowered.
    pub(crate) clamped: bool,
}

impl SynEdit {
    /// Returns the edits of a path.
    pub(crate) fn of(model: &LinkModel) -> Self {
        Self { strip: model.strip, mss_clamp: model.mss_clamp }
    }

    /// Returns true if SYN packets can change.
    pub(crate) fn any(&self) -> bool {
        self.strip.any() || self.mss_clamp.is_some()
    }

    /// Edits one option. `option` begins with its kind.
    fn apply(&self, option: &mut [u8], change: &mut SynChange) {
        let stripped = match option[0] {
            OPTION_SACK_PERMITTED => self.strip.sack,
            OPTION_WINDOW_SCALE => self.strip.window_scale,
            OPTION_TIMESTAMPS => self.strip.timestamps,
            _ => false,
        };
        if stripped {
            option.fill(OPTION_NOP);
            change.stripped = true;
        }
        let clamp = self.mss_clamp.filter(|_| option[0] == OPTION_MSS && option.len() == OPTION_MSS_BYTES);
        if let Some(most) = clamp.filter(|most| read_u16(option, 2) > *most) {
            write_u16(option, 2, most);
            change.clamped = true;
        }
    }
}

/// Edits the options in the SYN of a TCP connection, as a middlebox does: replaces them by no-operations, or lowers the
/// MSS.
///
/// Returns the edits made. Updates a complete checksum; a partial checksum does not cover options.
pub(crate) fn edit_syn(offload: &OffloadHeader, packet: &mut [u8], edit: &SynEdit) -> SynChange {
    let mut change = SynChange::default();
    let Some(network_bytes) = ipv4_header_bytes(packet) else { return change };
    if packet[9] != PROTOCOL_TCP || read_u16(packet, 6) & 0x1fff != 0 {
        return change;
    }
    let Some(header_bytes) = tcp_header_bytes(&packet[network_bytes..]) else { return change };
    let tcp = &mut packet[network_bytes..network_bytes + header_bytes];
    if tcp[13] & TCP_SYN == 0 {
        return change;
    }
    let before = sum(&tcp[TCP_HEADER_BYTES_MIN..], 0);
    let mut at = TCP_HEADER_BYTES_MIN;
    while at < tcp.len() {
        let kind = tcp[at];
        let len = match kind {
            OPTION_END => break,
            OPTION_NOP => 1,
            _ => usize::from(tcp.get(at + 1).copied().unwrap_or(0)),
        };
        if len == 0 || (kind != OPTION_NOP && len < 2) || at + len > tcp.len() {
            break;
        }
        edit.apply(&mut tcp[at..at + len], &mut change);
        at += len;
    }
    if change != SynChange::default() && !offload.has_partial_checksum() {
        let after = sum(&tcp[TCP_HEADER_BYTES_MIN..], 0);
        // RFC 1624, equation 3: computes the new checksum from the old checksum and the two sums.
        let old = !read_u16(tcp, TCP_CHECKSUM_OFFSET);
        write_u16(tcp, TCP_CHECKSUM_OFFSET, !fold(u64::from(old) + u64::from(!fold(before)) + u64::from(fold(after))));
    }
    change
}

/// Builds the ICMP "fragmentation needed" answer to `packet` from a router at `router`, with next-hop MTU `mtu` (RFC
/// 1191).
///
/// Returns `None` for packets that a router never answers (RFC 1812, 4.3.2.7): garbage, ICMP errors, later fragments.
pub(crate) fn fragmentation_needed(packet: &[u8], wire_bytes: usize, router: [u8; 4], mtu: u16) -> Option<Vec<u8>> {
    let network_bytes = ipv4_header_bytes(packet)?;
    let is_error =
        packet[9] == PROTOCOL_ICMP && packet.get(network_bytes).is_none_or(|kind| ICMP_ERRORS.contains(kind));
    if is_error || read_u16(packet, 6) & 0x1fff != 0 {
        return None;
    }
    let quoted_bytes = (network_bytes + ICMP_QUOTED_PAYLOAD_BYTES).min(packet.len());
    let mut reply = vec![0; 28 + quoted_bytes];
    let total = reply.len() as u16;
    reply[0] = 0x45;
    write_u16(&mut reply, 2, total);
    reply[8] = 64;
    reply[9] = PROTOCOL_ICMP;
    reply[12..16].copy_from_slice(&router);
    reply[16..20].copy_from_slice(&packet[12..16]);
    refresh_network_checksum(&mut reply[..20]);
    reply[20] = 3;
    reply[21] = 4;
    write_u16(&mut reply, 26, mtu);
    reply[28..].copy_from_slice(&packet[..quoted_bytes]);
    // The answer quotes the header of the segment, not of its super-packet.
    write_u16(&mut reply, 30, wire_bytes as u16);
    refresh_network_checksum(&mut reply[28..28 + network_bytes]);
    let checksum = !fold(sum(&reply[20..], 0));
    write_u16(&mut reply, 22, checksum);
    Some(reply)
}

/// Returns the length of the IPv4 header, if `packet` has one and its total length field matches.
fn ipv4_header_bytes(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let header_bytes = usize::from(first & 0x0f) * 4;
    let holds = first >> 4 == 4
        && header_bytes >= 20
        && packet.len() >= header_bytes
        && usize::from(read_u16(packet, 2)) == packet.len();
    holds.then_some(header_bytes)
}

fn tcp_header_bytes(segment: &[u8]) -> Option<usize> {
    let header_bytes = usize::from(*segment.get(12)? >> 4) * 4;
    (header_bytes >= TCP_HEADER_BYTES_MIN && segment.len() >= header_bytes).then_some(header_bytes)
}

fn refresh_network_checksum(header: &mut [u8]) {
    write_u16(header, 10, 0);
    let checksum = !fold(sum(header, 0));
    write_u16(header, 10, checksum);
}

/// Returns the folded sum over the pseudo-header for `transport_bytes` of transport data in a packet with this
/// `header`.
fn pseudo_header_sum(header: &[u8], transport_bytes: u16) -> u16 {
    fold(sum(&header[12..20], u64::from(header[9]) + u64::from(transport_bytes)))
}

/// Returns the ones' complement sum of RFC 1071, not folded.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |last| u64::from(*last) << 8);
    start + odd + pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u64>()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

const UDP_HEADER_BYTES: usize = 8;
const UDP_CHECKSUM_OFFSET: usize = 6;
const TCP_HEADER_BYTES_MIN: usize = 20;
const TCP_CHECKSUM_OFFSET: usize = 16;
const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_MSS: u8 = 2;
const OPTION_MSS_BYTES: usize = 4;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_TIMESTAMPS: u8 = 8;
/// ICMP error types: destination unreachable, source quench, redirect, time exceeded, parameter problem.
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// RFC 792: an ICMP error quotes the IP header and the first 64 bits of the data.
const ICMP_QUOTED_PAYLOAD_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 4] = [10, 77, 0, 1];
    const DESTINATION: [u8; 4] = [10, 77, 1, 1];

    fn ipv4(protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
        packet.extend(SOURCE);
        packet.extend(DESTINATION);
        packet.extend(transport);
        let total = packet.len() as u16;
        write_u16(&mut packet, 2, total);
        refresh_network_checksum(&mut packet[..20]);
        packet
    }

    /// Builds a TCP packet with these option bytes (a multiple of 4), this payload and a complete checksum.
    fn tcp(flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut segment =
            vec![0x9c, 0x40, 0x14, 0x51, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 1, 0, flags, 0xff, 0xff, 0, 0, 0, 0];
        segment[12] = (((20 + options.len()) / 4) << 4) as u8;
        segment.extend(options);
        segment.extend(payload);
        let mut packet = ipv4(PROTOCOL_TCP, &segment);
        let checksum = transport_checksum(&packet);
        write_u16(&mut packet, 20 + TCP_CHECKSUM_OFFSET, checksum);
        packet
    }

    /// Returns the complete checksum of the transport. The checksum field must be zero on entry.
    fn transport_checksum(packet: &[u8]) -> u16 {
        let length = (packet.len() - 20) as u16;
        !fold(sum(&packet[20..], u64::from(pseudo_header_sum(packet, length))))
    }

    fn network_checksum_holds(packet: &[u8]) -> bool {
        fold(sum(&packet[..20], 0)) == 0xffff
    }

    /// Completes a partial checksum as a device does: sums from the transport header on and writes the complement.
    fn completed(offload: &OffloadHeader, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let start = usize::from(offload.checksum_start);
        let checksum = !fold(sum(&packet[start..], 0));
        write_u16(&mut packet, start + usize::from(offload.checksum_offset), checksum);
        packet
    }

    fn transport_checksum_holds(packet: &[u8]) -> bool {
        let length = (packet.len() - 20) as u16;
        fold(sum(&packet[20..], u64::from(pseudo_header_sum(packet, length)))) == 0xffff
    }

    fn offload(gso_type: u8, segment_bytes: u16) -> OffloadHeader {
        OffloadHeader { flags: FLAG_PARTIAL_CHECKSUM, gso_type, segment_bytes, ..OffloadHeader::default() }
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index * 7 % 251) as u8).collect()
    }

    /// Returns segments `[first, end)`, headers and payload, as the router writes them.
    fn cut(shape: &Shape, packet: &[u8], first: u16, end: u16) -> (OffloadHeader, Vec<u8>) {
        let mut header = [0; HEADERS_BYTES_MAX];
        let (header_bytes, offload) = shape.run_header(packet, first, end, &mut header);
        let mut part = header[..header_bytes].to_vec();
        part.extend(&packet[shape.payload_range(first, end)]);
        (offload, part)
    }

    #[test]
    fn a_known_header_has_the_checksum_of_the_textbook() {
        // Example of RFC 1071 as a header. The expected value is from Wikipedia's "IPv4 header checksum".
        let mut header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        refresh_network_checksum(&mut header);
        assert_eq!(read_u16(&header, 10), 0xb861);
    }

    #[test]
    fn segments_of_a_super_packet_are_whole_packets_with_right_checksums() {
        let data = payload(4000);
        let flags = TCP_FIN | TCP_PSH | TCP_CWR | 0x10;
        let packet = tcp(flags, &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], &data);
        let shape = Shape::read(&offload(GSO_TCP4, 1448), &packet).unwrap();
        assert_eq!(shape.segment_count(), 3);
        assert_eq!([0, 1, 2].map(|index| shape.wire_bytes(index)), [1500, 1500, 52 + 4000 - 2896]);
        let mut joined: Vec<u8> = Vec::new();
        for index in 0..3 {
            let (offload, part) = cut(&shape, &packet, index, index + 1);
            assert_eq!((offload.gso_type, offload.segment_bytes), (GSO_NONE, 0));
            let wire = completed(&offload, &part);
            assert!(network_checksum_holds(&wire) && transport_checksum_holds(&wire), "segment {index}");
            assert_eq!(usize::from(read_u16(&wire, 2)), wire.len());
            assert_eq!(read_u16(&wire, 4), 0x1234 + index);
            // The sequence number wraps within this super-packet.
            assert_eq!(read_u32(&wire, 24), 0xffff_fe00_u32.wrapping_add(u32::from(index) * 1448));
            let expected = [TCP_CWR | 0x10, 0x10, TCP_FIN | TCP_PSH | 0x10][usize::from(index)];
            assert_eq!(wire[33], expected, "flags of segment {index}");
            joined.extend(&wire[52..]);
        }
        assert_eq!(joined, data);
    }

    #[test]
    fn a_run_of_segments_stays_a_super_packet() {
        let packet = tcp(0x18, &[], &payload(10_000));
        let shape = Shape::read(&offload(GSO_TCP4, 1460), &packet).unwrap();
        let (offload, part) = cut(&shape, &packet, 2, 5);
        assert_eq!((offload.gso_type, offload.segment_bytes, offload.header_bytes), (GSO_TCP4, 1460, 40));
        assert_eq!(part.len(), 40 + 3 * 1460);
        // The run parses as a packet again, and its parts equal the parts of the original super-packet.
        let again = Shape::read(&offload, &part).unwrap();
        assert_eq!(again, shape.part(2, 5));
        assert_eq!(cut(&again, &part, 1, 2), cut(&shape, &packet, 3, 4));
    }

    #[test]
    fn datagrams_of_a_super_packet_get_their_own_length_and_checksum() {
        let data = payload(3000);
        let mut segment = vec![0x9c, 0x40, 0x1c, 0xcd, 0, 0, 0, 0];
        write_u16(&mut segment, 4, 3008);
        segment.extend(&data);
        let packet = ipv4(PROTOCOL_UDP, &segment);
        let shape = Shape::read(&offload(GSO_UDP, 1200), &packet).unwrap();
        assert_eq!(shape.segment_count(), 3);
        for (index, bytes) in [1200, 1200, 600].into_iter().enumerate() {
            let (offload, part) = cut(&shape, &packet, index as u16, index as u16 + 1);
            let wire = completed(&offload, &part);
            assert!(network_checksum_holds(&wire) && transport_checksum_holds(&wire));
            assert_eq!(usize::from(read_u16(&wire, 24)), bytes + 8);
            assert_eq!(wire[28..], data[index * 1200..index * 1200 + bytes]);
        }
    }

    #[test]
    fn stripped_options_become_no_operations_and_the_checksum_stays_right() {
        // MSS, SACK permitted, timestamps, no-operation, window scale: the options that Linux sends.
        let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 14];
        let strip = StrippedOptions { sack: true, window_scale: true, timestamps: false };
        let edit = SynEdit { strip, mss_clamp: None };
        let stripped = SynChange { stripped: true, clamped: false };
        let mut packet = tcp(TCP_SYN, &options, &[]);
        assert_eq!(edit_syn(&OffloadHeader::default(), &mut packet, &edit), stripped);
        assert_eq!(packet[40..60], [2, 4, 5, 0xb4, 1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert!(transport_checksum_holds(&packet));
        let again = edit_syn(&OffloadHeader::default(), &mut packet, &edit);
        assert_eq!(again, SynChange::default(), "nothing is left to strip");
        let mut data = tcp(0x10, &options, &[]);
        let data = edit_syn(&OffloadHeader::default(), &mut data, &edit);
        assert_eq!(data, SynChange::default(), "only SYN packets are edited");
    }

    #[test]
    fn a_clamp_lowers_the_mss_of_both_syn_packets_and_never_raises_it() {
        let clamped = SynChange { stripped: false, clamped: true };
        // The option begins at an even and at an odd position. The second packet is the SYN of the passive side.
        let even: &[u8] = &[2, 4, 5, 0xb4, 4, 2, 1, 1];
        let odd: &[u8] = &[1, 2, 4, 5, 0xb4, 4, 2, 1];
        for (flags, options, at) in [(TCP_SYN, even, 42), (TCP_SYN | 0x10, odd, 43)] {
            let mut packet = tcp(flags, options, &[]);
            let lower = SynEdit { strip: StrippedOptions::default(), mss_clamp: Some(1200) };
            assert_eq!(edit_syn(&OffloadHeader::default(), &mut packet, &lower), clamped);
            assert_eq!(packet[at..at + 2], 1200u16.to_be_bytes());
            assert!(transport_checksum_holds(&packet));
            let higher = SynEdit { mss_clamp: Some(1201), ..lower };
            assert_eq!(edit_syn(&OffloadHeader::default(), &mut packet, &higher), SynChange::default());
        }
    }

    #[test]
    fn the_answer_to_a_packet_that_is_too_large_quotes_it_and_names_the_mtu() {
        let packet = tcp(0x10, &[], &payload(5000));
        let reply = fragmentation_needed(&packet, 1500, [10, 77, 255, 254], 1400).unwrap();
        assert_eq!((reply[9], reply[20], reply[21]), (PROTOCOL_ICMP, 3, 4));
        assert_eq!(read_u16(&reply, 26), 1400);
        assert_eq!(reply[12..20], [10, 77, 255, 254, 10, 77, 0, 1]);
        assert!(network_checksum_holds(&reply) && network_checksum_holds(&reply[28..]));
        assert_eq!(fold(sum(&reply[20..], 0)), 0xffff);
        assert_eq!(read_u16(&reply, 30), 1500, "the quoted length is the segment's");
        assert_eq!(fragmentation_needed(&reply, 1500, [0; 4], 1400), None, "an ICMP error is never answered");
        let echo = ipv4(PROTOCOL_ICMP, &payload(100));
        assert!(fragmentation_needed(&echo, 120, [0; 4], 68).is_some(), "an echo is");
    }

    #[test]
    fn a_flow_is_its_five_values_and_fragments_fall_together() {
        let one = tcp(0x10, &[], b"one");
        let mut other_port = one.clone();
        other_port[21] ^= 1;
        assert_eq!(flow(&one), flow(&tcp(0x18, &[], b"another payload")));
        assert_ne!(flow(&one), flow(&other_port));
        let fragment = |mut packet: Vec<u8>, offset: u16| {
            write_u16(&mut packet, 6, offset);
            packet
        };
        // First fragment (more follow), then a later fragment with other bytes at the position of the ports.
        assert_eq!(flow(&fragment(one, 0x2000)), flow(&fragment(other_port, 0x00b9)));
    }

    #[test]
    fn garbage_is_refused_and_never_panics() {
        let mut random = crate::model::random::Random::new(11, 0);
        let strip = StrippedOptions { sack: true, window_scale: true, timestamps: true };
        let edit = SynEdit { strip, mss_clamp: Some(600) };
        let good = tcp(TCP_SYN, &[2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 14], &payload(200));
        for _ in 0..200_000 {
            let mut packet = good.clone();
            for _ in 0..random.up_to(6) {
                let at = random.up_to(packet.len() as u64 - 1) as usize;
                packet[at] = random.draw() as u8;
            }
            packet.truncate(random.up_to(packet.len() as u64) as usize);
            if random.up_to(1) == 0 && packet.len() >= 4 {
                // A correct total length lets more packets pass the first check.
                let total = packet.len() as u16;
                write_u16(&mut packet, 2, total);
            }
            let [a, b, ..] = random.draw().to_ne_bytes();
            let offload = OffloadHeader {
                flags: a & 1,
                gso_type: [GSO_NONE, GSO_TCP4, GSO_UDP, b][usize::from(b & 3)],
                segment_bytes: random.up_to(300) as u16,
                ..OffloadHeader::default()
            };
            edit_syn(&offload, &mut packet, &edit);
            flow(&packet);
            fragmentation_needed(&packet, 9000, SOURCE, 1400);
            if let Some(shape) = Shape::read(&offload, &packet) {
                let count = shape.segment_count();
                let total: usize = (0..count).map(|index| shape.payload_range(index, index + 1).len()).sum();
                assert_eq!(total, usize::from(shape.payload_bytes));
                if shape.segment_bytes > 0 {
                    let first = random.up_to(u64::from(count) - 1) as u16;
                    cut(&shape, &packet, first, count);
                }
            }
        }
    }
}
