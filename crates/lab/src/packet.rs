//! IPv4 packets as a router between two hosts sees them: reading, cutting, answering, editing; never more than that.
//!
//! Kernels hand over TCP and UDP in super-packets of up to 64 KiB with one header (segmentation offload). The router
//! decides over each segment by itself and hands on what arrives together as one super-packet again, so this module
//! knows how to make the header of any run of segments. Input may be garbage: every function refuses it, none panics.

use crate::model::random::mix;
use crate::model::{Flow, StrippedOptions};

/// Length of the header that the kernel puts before each packet on a TUN device (`struct virtio_net_hdr`).
pub(crate) const OFFLOAD_HEADER_BYTES: usize = 10;

/// Longest IPv4 packet, super-packets included.
pub(crate) const PACKET_BYTES_MAX: usize = 65_535;

/// Longest run of headers that a segment can carry: 60 bytes of IPv4 and 60 of TCP.
pub(crate) const HEADERS_BYTES_MAX: usize = 120;

/// How a packet is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of the IPv4 header.
    pub(crate) network_bytes: u16,
    /// Bytes of all headers that every segment repeats.
    pub(crate) header_bytes: u16,
    /// Payload bytes in each segment but the last; zero when the packet is whole.
    pub(crate) segment_bytes: u16,
    /// Payload bytes of all segments together.
    pub(crate) payload_bytes: u16,
    /// Transport protocol of a super-packet.
    pub(crate) transport: Transport,
}

/// What the router knows how to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Other,
}

/// What the kernel says of a packet in the header before it (`struct virtio_net_hdr`, native byte order).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffloadHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_bytes: u16,
    pub(crate) segment_bytes: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

/// The checksum field holds the sum over the pseudo-header only; the rest is left to the device.
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
    /// Reads the headers of `packet`; `None` when it is no IPv4 packet that holds together.
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

    /// How many packets there will be on the wire.
    pub(crate) fn segment_count(&self) -> u16 {
        if self.segment_bytes == 0 { 1 } else { self.payload_bytes.div_ceil(self.segment_bytes) }
    }

    /// Where the payload of segments `[first, end)` lies in the super-packet.
    pub(crate) fn payload_range(&self, first: u16, end: u16) -> std::ops::Range<usize> {
        let header = usize::from(self.header_bytes);
        let payload = usize::from(self.payload_bytes);
        if self.segment_bytes == 0 {
            return header..header + payload;
        }
        let at = |index: u16| header + (usize::from(index) * usize::from(self.segment_bytes)).min(payload);
        at(first)..at(end)
    }

    /// Bytes of the IP packet that segment `index` is on the wire.
    pub(crate) fn wire_bytes(&self, index: u16) -> usize {
        usize::from(self.header_bytes) + self.payload_range(index, index + 1).len()
    }

    /// The shape of segments `[first, end)` as a packet by themselves.
    pub(crate) fn part(&self, first: u16, end: u16) -> Self {
        let payload_bytes = self.payload_range(first, end).len() as u16;
        let segment_bytes = if end - first > 1 { self.segment_bytes } else { 0 };
        Self { segment_bytes, payload_bytes, ..*self }
    }

    /// Writes into `out` the headers of segments `[first, end)` of the super-packet `packet`, as one packet by
    /// themselves, and returns their length and what the kernel must know of them.
    ///
    /// As a segmenting device does: the identification counts, the sequence number moves on, FIN and PSH stay with the
    /// last segment and CWR with the first. The checksum stays partial, over the new length.
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

/// The flow that a packet belongs to, from the headers that `Shape::read` accepted; the same for every fragment.
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

/// Whether the sender forbids cutting the packet (every modern TCP does).
pub(crate) fn forbids_fragments(packet: &[u8]) -> bool {
    packet.get(6).is_some_and(|flags| flags & 0x40 != 0)
}

/// Removes options from the SYN of a TCP connection, as a middle box does: no-operations take their place.
///
/// Returns whether the packet was changed. A complete checksum is kept right; a partial one covers no option.
pub(crate) fn strip_syn_options(offload: &OffloadHeader, packet: &mut [u8], strip: StrippedOptions) -> bool {
    let Some(network_bytes) = ipv4_header_bytes(packet) else { return false };
    if packet[9] != PROTOCOL_TCP || read_u16(packet, 6) & 0x1fff != 0 {
        return false;
    }
    let Some(header_bytes) = tcp_header_bytes(&packet[network_bytes..]) else { return false };
    let tcp = &mut packet[network_bytes..network_bytes + header_bytes];
    if tcp[13] & TCP_SYN == 0 {
        return false;
    }
    let before = sum(&tcp[TCP_HEADER_BYTES_MIN..], 0);
    let mut changed = false;
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
        let stripped = match kind {
            OPTION_SACK_PERMITTED => strip.sack,
            OPTION_WINDOW_SCALE => strip.window_scale,
            OPTION_TIMESTAMPS => strip.timestamps,
            _ => false,
        };
        if stripped {
            tcp[at..at + len].fill(OPTION_NOP);
            changed = true;
        }
        at += len;
    }
    if changed && !offload.has_partial_checksum() {
        let after = sum(&tcp[TCP_HEADER_BYTES_MIN..], 0);
        // RFC 1624, equation 3: the new checksum from the old one and the two sums.
        let old = !read_u16(tcp, TCP_CHECKSUM_OFFSET);
        write_u16(tcp, TCP_CHECKSUM_OFFSET, !fold(u64::from(old) + u64::from(!fold(before)) + u64::from(fold(after))));
    }
    changed
}

/// ICMP "fragmentation needed" for `packet` from a router at `router`, announcing `mtu` (RFC 1191).
///
/// `None` for what is never answered (RFC 1812, 4.3.2.7): garbage, ICMP errors, later fragments.
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
    // The quoted header is that of the segment, not of the super-packet it came in.
    write_u16(&mut reply, 30, wire_bytes as u16);
    refresh_network_checksum(&mut reply[28..28 + network_bytes]);
    let checksum = !fold(sum(&reply[20..], 0));
    write_u16(&mut reply, 22, checksum);
    Some(reply)
}

/// Bytes of the IPv4 header, when the packet has one and is exactly as long as it says.
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

/// The folded sum over the pseudo-header of a transport of `transport_bytes` in the IPv4 packet with this `header`.
fn pseudo_header_sum(header: &[u8], transport_bytes: u16) -> u16 {
    fold(sum(&header[12..20], u64::from(header[9]) + u64::from(transport_bytes)))
}

/// The ones' complement sum of RFC 1071, not folded.
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
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_TIMESTAMPS: u8 = 8;
/// Destination unreachable, source quench, redirect, time exceeded, parameter problem.
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// RFC 792: the internet header plus the first 64 bits of the data.
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

    /// A TCP packet with these option bytes (a multiple of 4) and payload, checksum complete.
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

    /// The complete checksum of the transport, as if its field were zero; fields must be zero on entry.
    fn transport_checksum(packet: &[u8]) -> u16 {
        let length = (packet.len() - 20) as u16;
        !fold(sum(&packet[20..], u64::from(pseudo_header_sum(packet, length))))
    }

    fn network_checksum_holds(packet: &[u8]) -> bool {
        fold(sum(&packet[..20], 0)) == 0xffff
    }

    /// What a device does with a partial checksum: sums from the transport header on and puts the complement in place.
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

    /// Segments `[first, end)` as the router writes them, headers and payload.
    fn cut(shape: &Shape, packet: &[u8], first: u16, end: u16) -> (OffloadHeader, Vec<u8>) {
        let mut header = [0; HEADERS_BYTES_MAX];
        let (header_bytes, offload) = shape.run_header(packet, first, end, &mut header);
        let mut part = header[..header_bytes].to_vec();
        part.extend(&packet[shape.payload_range(first, end)]);
        (offload, part)
    }

    #[test]
    fn a_known_header_has_the_checksum_of_the_textbook() {
        // The example of RFC 1071 turned into a header; the expected value is that of Wikipedia's "IPv4 header checksum".
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
        // It reads again as what it is, and its parts are the parts of the whole.
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
        // MSS, SACK permitted, timestamps, no-operation, window scale: what Linux sends.
        let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 14];
        let strip = StrippedOptions { sack: true, window_scale: true, timestamps: false };
        let mut packet = tcp(TCP_SYN, &options, &[]);
        assert!(strip_syn_options(&OffloadHeader::default(), &mut packet, strip));
        assert_eq!(packet[40..60], [2, 4, 5, 0xb4, 1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert!(transport_checksum_holds(&packet));
        assert!(!strip_syn_options(&OffloadHeader::default(), &mut packet, strip), "nothing is left to strip");
        let mut data = tcp(0x10, &options, &[]);
        assert!(!strip_syn_options(&OffloadHeader::default(), &mut data, strip), "only SYN packets are edited");
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
        // First fragment (more to come), then a later one with other bytes where the ports were.
        assert_eq!(flow(&fragment(one, 0x2000)), flow(&fragment(other_port, 0x00b9)));
    }

    #[test]
    fn garbage_is_refused_and_never_panics() {
        let mut random = crate::model::random::Random::new(11, 0);
        let strip = StrippedOptions { sack: true, window_scale: true, timestamps: true };
        let good = tcp(TCP_SYN, &[2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 14], &payload(200));
        for _ in 0..200_000 {
            let mut packet = good.clone();
            for _ in 0..random.up_to(6) {
                let at = random.up_to(packet.len() as u64 - 1) as usize;
                packet[at] = random.draw() as u8;
            }
            packet.truncate(random.up_to(packet.len() as u64) as usize);
            if random.up_to(1) == 0 && packet.len() >= 4 {
                // Let more of them past the first check.
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
            strip_syn_options(&offload, &mut packet, strip);
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
