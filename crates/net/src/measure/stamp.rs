//! Packets of the Simple Two-way Active Measurement Protocol (STAMP, RFC 8762), without authentication.
//!
//! A sender's packet and its reply have the same size, 44 bytes at least; that of TWAMP Light (RFC 5357, appendix I)
//! has the same fields in its first 41 bytes. The bytes of a packet after the first 44 are padding, which the reply
//! repeats.

use std::time::Duration;

/// Port of STAMP (RFC 8762 section 4.1).
pub const STAMP_PORT: u16 = 862;

/// Size of the base packet (RFC 8762 section 4.2.1).
pub(super) const BASE_BYTES: usize = 44;

/// Size of the smallest packet that gets a reply: one of TWAMP Light with as much padding as a reply needs. Reason: no
/// reply is larger than its packet, so that nobody can multiply traffic by a forged origin.
pub(super) const REFLECTED_BYTES_MIN: usize = 41;

/// Error estimate: no external synchronization of the clock, NTP format, error of 1 s (RFC 4656 section 4.1.2). Reason:
/// nothing here depends on synchronized clocks.
const ERROR_ESTIMATE: u16 = 32 << 8 | 1;

/// Seconds from 1900, where NTP begins, to 1970.
const NTP_UNIX_OFFSET: u64 = 2_208_988_800;

/// Time stamp of NTP: seconds since 1900, and 32 bits of their fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NtpTime(pub(super) u64);

impl NtpTime {
    /// Converts a time since 1970. The seconds wrap in 2036, as those of NTP.
    pub(super) fn of_unix(time: Duration) -> Self {
        let seconds = time.as_secs().wrapping_add(NTP_UNIX_OFFSET);
        let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
        Self(seconds << 32 | fraction)
    }

    /// Returns the time from `earlier` to this one, in nanoseconds, negative if this one is earlier.
    pub(super) fn since(self, earlier: Self) -> i64 {
        let difference = i128::from(self.0.wrapping_sub(earlier.0).cast_signed());
        i64::try_from((difference * 1_000_000_000) >> 32).unwrap_or(i64::MAX)
    }
}

/// Packet of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    /// Number of the packet.
    pub(super) number: u32,
    /// Time of sending.
    pub(super) sent: NtpTime,
    /// Identifier of the session (SSID, RFC 8972); 0: none.
    pub(super) session: u16,
    /// In a packet train: nanoseconds since its start, and 1. It is in bytes that STAMP leaves zero, so that no
    /// reflector and no train takes one for the other. 0 in a packet of STAMP.
    pub(super) in_train: u64,
}

impl Probe {
    /// Writes the base packet.
    pub(super) fn write(&self, to: &mut [u8; BASE_BYTES]) {
        to.fill(0);
        to[..4].copy_from_slice(&self.number.to_be_bytes());
        to[4..12].copy_from_slice(&self.sent.0.to_be_bytes());
        to[12..14].copy_from_slice(&ERROR_ESTIMATE.to_be_bytes());
        to[14..16].copy_from_slice(&self.session.to_be_bytes());
        to[16..24].copy_from_slice(&self.in_train.to_be_bytes());
    }

    /// Reads a packet; `None`: too short.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        Some(Self {
            number: u32_at(packet, 0)?,
            sent: NtpTime(u64_at(packet, 4)?),
            session: u16_at(packet, 14)?,
            in_train: u64_at(packet, 16)?,
        })
    }
}

/// Reply of a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Number that the reflector gave: that of the packet (stateless), or its own count (stateful).
    pub(super) number: u32,
    /// Time at which the reflector sent the reply.
    pub(super) sent: NtpTime,
    /// Identifier of the session.
    pub(super) session: u16,
    /// Time at which the reflector received the packet.
    pub(super) received: NtpTime,
    /// Number of the packet.
    pub(super) sender_number: u32,
    /// Time of sending of the packet.
    pub(super) sender_sent: NtpTime,
    /// TTL or hop limit with which the packet arrived.
    pub(super) sender_ttl: u8,
}

impl Reply {
    /// Reads a reply; `None`: too short.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        Some(Self {
            number: u32_at(packet, 0)?,
            sent: NtpTime(u64_at(packet, 4)?),
            session: u16_at(packet, 14)?,
            received: NtpTime(u64_at(packet, 16)?),
            sender_number: u32_at(packet, 24)?,
            sender_sent: NtpTime(u64_at(packet, 28)?),
            sender_ttl: *packet.get(40)?,
        })
    }
}

/// Facts of a reply that are not in the packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reflection {
    /// Number of the reply.
    pub(super) number: u32,
    /// Time at which the packet arrived.
    pub(super) received: NtpTime,
    /// Time at which the reply is sent.
    pub(super) sent: NtpTime,
    /// TTL or hop limit with which the packet arrived; 0: not known.
    pub(super) ttl: u8,
}

/// Makes a packet its reply, in place. Returns false for a packet that is too short.
pub(super) fn reflect(packet: &mut [u8], by: &Reflection) -> bool {
    if packet.len() < REFLECTED_BYTES_MIN {
        return false;
    }
    let mut reply = [0; BASE_BYTES];
    reply[..4].copy_from_slice(&by.number.to_be_bytes());
    reply[4..12].copy_from_slice(&by.sent.0.to_be_bytes());
    reply[12..14].copy_from_slice(&ERROR_ESTIMATE.to_be_bytes());
    // Identifier of the session.
    reply[14..16].copy_from_slice(&packet[14..16]);
    reply[16..24].copy_from_slice(&by.received.0.to_be_bytes());
    // Number, time and error estimate of the sender.
    reply[24..38].copy_from_slice(&packet[..14]);
    reply[40] = by.ttl;
    let length = packet.len().min(BASE_BYTES);
    packet[..length].copy_from_slice(&reply[..length]);
    true
}

/// See [`crate::fuzzing::stamp`].
pub(crate) fn fuzz(input: &[u8]) {
    if let Some(reply) = Reply::read(input) {
        // Any two times have a difference.
        let _ = reply.sent.since(reply.sender_sent).saturating_sub(reply.sent.since(reply.received));
    }
    let mut packet = input.to_vec();
    let by = Reflection { number: 7, received: NtpTime(1), sent: NtpTime(2), ttl: 61 };
    if !reflect(&mut packet, &by) {
        assert_eq!(packet, input, "a packet without a reply stays");
        return;
    }
    assert_eq!(packet.len(), input.len(), "a reply multiplies traffic");
    assert_eq!(packet.get(BASE_BYTES..), input.get(BASE_BYTES..), "padding");
    let (probe, reply) = (Probe::read(input), Reply::read(&packet));
    let of_sender = reply.map(|reply| (reply.sender_number, reply.sender_sent, reply.session, reply.sender_ttl));
    assert_eq!(of_sender, probe.map(|probe| (probe.number, probe.sent, probe.session, 61)));
}

fn u16_at(bytes: &[u8], start: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(start..start + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(start..start + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], start: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(start..start + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes by the figures of RFC 8762, sections 4.2.1 and 4.3.1.
    #[test]
    fn a_reply_has_the_layout_of_the_rfc() {
        let mut packet = [0; 48];
        packet[..16].copy_from_slice(&[0, 0, 1, 2, 0xe9, 1, 2, 3, 0x80, 0, 0, 0, 0x8f, 0x07, 0xab, 0xcd]);
        packet[44..].copy_from_slice(b"pads");
        let by = Reflection { number: 7, received: NtpTime(0x1122_3344_5566_7788), sent: NtpTime(0x99), ttl: 61 };
        assert!(reflect(&mut packet, &by));
        let expected = [
            &[0, 0, 0, 7][..],
            &[0, 0, 0, 0, 0, 0, 0, 0x99],
            &[0x20, 0x01],
            &[0xab, 0xcd],
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            &[0, 0, 1, 2],
            &[0xe9, 1, 2, 3, 0x80, 0, 0, 0],
            &[0x8f, 0x07],
            &[0, 0],
            &[61],
            &[0, 0, 0],
            b"pads",
        ]
        .concat();
        assert_eq!(packet.to_vec(), expected);
        let reply = Reply::read(&packet).unwrap();
        assert_eq!((reply.sender_number, reply.sender_ttl, reply.session), (258, 61, 0xabcd));
        // TWAMP Light with 27 bytes of padding gets 41 bytes back, and less padding no reply.
        assert!(reflect(&mut [0; 41], &by) && !reflect(&mut [0; 40], &by) && !reflect(&mut [], &by));
    }

    #[test]
    fn a_packet_is_read_as_it_was_written() {
        let probe = Probe { number: u32::MAX, sent: NtpTime(u64::MAX - 1), session: 3, in_train: 1 << 40 };
        let mut packet = [0xff; BASE_BYTES];
        probe.write(&mut packet);
        assert_eq!(Probe::read(&packet), Some(probe));
        assert_eq!((Probe::read(&packet[..23]), Reply::read(&packet[..40])), (None, None));
    }

    #[test]
    fn times_of_ntp_differ_by_nanoseconds_over_their_wrap() {
        let early = NtpTime::of_unix(Duration::new(1_700_000_000, 999_999_999));
        let late = NtpTime::of_unix(Duration::new(1_700_000_001, 1_000));
        assert!((1000..=1001).contains(&late.since(early)) && (-1002..=-1000).contains(&early.since(late)));
        assert_eq!(NtpTime::of_unix(Duration::ZERO).0 >> 32, NTP_UNIX_OFFSET);
        // NTP wraps on 2036-02-07 at 06:28:16.
        let (before, after) = (Duration::new(2_085_978_495, 0), Duration::new(2_085_978_496, 0));
        assert_eq!(NtpTime::of_unix(after).since(NtpTime::of_unix(before)), 1_000_000_000);
    }
}
