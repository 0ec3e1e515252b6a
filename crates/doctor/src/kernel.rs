//! Window arithmetic of the Linux kernel, by version.
//!
//! A socket buffer holds data with its bookkeeping, so a window is smaller than its buffer. The ratio depends on the
//! version of the kernel and on the network card. Values for a live connection are measured, and these are for
//! connections that do not exist yet.

use std::fmt;
use std::str::FromStr;

use sterna_proto::ByteCount;
use sterna_proto::limit::{RECEIVE_SHARE, SEND_SHARE};

/// Version of a Linux kernel, as in `6.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// Major number.
    pub major: u16,
    /// Minor number.
    pub minor: u16,
}

impl KernelVersion {
    /// Returns a version.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for KernelVersion {
    type Err = String;

    /// Reads `6.1`, and the first two numbers of a release such as `6.1.0-25-amd64`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is no kernel version: give two numbers, as in 6.1");
        let (major, rest) = text.split_once('.').ok_or_else(wrong)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = |text: &str| text.parse().map_err(|_| wrong());
        Ok(Self { major: number(major)?, minor: number(&rest[..digits])? })
    }
}

/// First version that derives windows from the ratio of payload to memory of received packets
/// (`tcp_measure_rcv_mss`). Earlier ones give half of the buffer (`tcp_adv_win_scale` is 1 since 3.4).
const MEASURES_RATIO: KernelVersion = KernelVersion::new(6, 6);

/// First version that receives with up to 32 MB by default (commit 572be9bf9d0d).
const RECEIVES_32_MB: KernelVersion = KernelVersion::new(6, 16);

/// Part of a receive buffer that is window, from 6.6. Measured on 6.18 with packets of 1500 bytes; 0.97 with 9000.
const MEASURED_RATIO: f64 = 0.895;

/// Largest window that TCP can announce (RFC 7323).
pub const WINDOW_MAX: ByteCount = ByteCount(1 << 30);

/// Largest buffer that a setting of the kernel takes.
pub const BUFFER_MAX: ByteCount = ByteCount(i32::MAX as u64);

/// Buffers of a host for TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Maximum of the receive buffer (third value of `net.ipv4.tcp_rmem`).
    pub receive_max: ByteCount,
    /// Maximum of the send buffer (third value of `net.ipv4.tcp_wmem`).
    pub send_max: ByteCount,
}

impl Buffers {
    /// Returns the buffers that a kernel has without settings of an operator.
    pub fn default_of(kernel: KernelVersion) -> Self {
        let receive_max = if kernel >= RECEIVES_32_MB { 33_554_432 } else { 6_291_456 };
        Self { receive_max: ByteCount(receive_max), send_max: ByteCount(4_194_304) }
    }
}

/// Returns the window that a receive buffer gives.
///
/// Source: `tcp_win_from_space` of include/net/tcp.h. Example: 6 MiB give 3 MiB on 6.1.
pub fn window_of(buffer: ByteCount, kernel: KernelVersion) -> ByteCount {
    let window = if kernel >= MEASURES_RATIO { part(buffer, MEASURED_RATIO) } else { part(buffer, RECEIVE_SHARE) };
    ByteCount(window).min(WINDOW_MAX)
}

/// Returns the receive buffer that gives a window; the inverse of [`window_of`], rounded up.
pub fn buffer_for(window: ByteCount, kernel: KernelVersion) -> ByteCount {
    if kernel >= MEASURES_RATIO { whole(window, MEASURED_RATIO) } else { whole(window, RECEIVE_SHARE) }
}

/// Returns the data that a send buffer lets be in flight.
pub fn in_flight_of(buffer: ByteCount) -> ByteCount {
    ByteCount(part(buffer, SEND_SHARE))
}

/// Returns the send buffer for an amount of data in flight; the inverse of [`in_flight_of`], rounded up.
pub fn send_buffer_for(in_flight: ByteCount) -> ByteCount {
    whole(in_flight, SEND_SHARE)
}

/// Returns in words the setting of a host that follows from the shift count of its windows.
///
/// Source: `tcp_select_initial_window`: the shift is that of the largest buffer, for windows of 16 bits. Example: 7 is
/// that of 4 MiB to 8 MiB.
pub fn setting_of_scale(scale: u8) -> String {
    let of = |shift: u8| ByteCount(1 << (15 + u32::from(shift)));
    match scale {
        0 => format!("below {}", of(1)),
        SCALE_MAX.. => format!("{} or more", of(SCALE_MAX)),
        _ => format!("{} to {}", of(scale), of(scale + 1)),
    }
}

/// Returns the largest window that a host can announce with a shift count.
pub fn window_of_scale(scale: u8) -> ByteCount {
    ByteCount(WINDOW_FIELD_MAX << scale.min(SCALE_MAX))
}

/// Largest shift count of windows (RFC 7323).
const SCALE_MAX: u8 = 14;

/// Largest number of the window field of a segment (RFC 9293): the largest window without window scaling, in bytes.
pub const WINDOW_FIELD_MAX: u64 = 65_535;

/// Returns the command that sets the maximum of the receive buffer.
pub fn receive_setting(max: ByteCount) -> String {
    format!("sysctl -w net.ipv4.tcp_rmem='4096 131072 {}'", max.0)
}

/// Returns the command that sets the maximum of the send buffer.
pub fn send_setting(max: ByteCount) -> String {
    format!("sysctl -w net.ipv4.tcp_wmem='4096 16384 {}'", max.0)
}

fn part(of: ByteCount, ratio: f64) -> u64 {
    (of.0 as f64 * ratio) as u64
}

fn whole(part: ByteCount, ratio: f64) -> ByteCount {
    ByteCount((part.0 as f64 / ratio).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const OLD: KernelVersion = KernelVersion::new(6, 1);
    const NEW: KernelVersion = KernelVersion::new(6, 18);

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!("6.1.0-25-amd64".parse(), Ok(OLD));
        assert_eq!("6.18".parse(), Ok(NEW));
        assert_eq!("5.14.0-427.el9".parse(), Ok(KernelVersion::new(5, 14)));
        assert!(OLD < NEW && NEW.to_string() == "6.18");
        for wrong in ["", "6", "six.one", "6.", "-1.2"] {
            let error = wrong.parse::<KernelVersion>().unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("as in 6.1"), "{error}");
        }
    }

    #[test]
    fn windows_are_those_that_engineers_have_measured() {
        // GRNET: 6 MB of buffer gave 3072 KB of window.
        assert_eq!(window_of(ByteCount(6 << 20), OLD), ByteCount(3072 << 10));
        // CERN and GRNET: 256 MB of buffer give 128 MB of window.
        assert_eq!(window_of(ByteCount(256 << 20), OLD), ByteCount(128 << 20));
        assert_eq!(window_of(ByteCount(4 << 30), OLD), WINDOW_MAX);
        let window = window_of(Buffers::default_of(NEW).receive_max, NEW).0;
        assert!((29_900_000..30_100_000).contains(&window), "{window}");
        assert_eq!(Buffers::default_of(OLD).receive_max, ByteCount(6 << 20));
    }

    #[test]
    fn a_scale_shows_the_buffers_of_a_host() {
        let words = [0, 7, 10, 14, 15].map(setting_of_scale);
        assert_eq!(
            words,
            ["below 65.5 kB", "4.19 MB to 8.39 MB", "33.6 MB to 67.1 MB", "537 MB or more", "537 MB or more"]
        );
        assert_eq!((window_of_scale(7), window_of_scale(15)), (ByteCount(8_388_480), ByteCount(65_535 << 14)));
    }

    #[test]
    fn a_buffer_for_a_window_gives_it() {
        for_seeds("doctor: buffers of windows", 1000, |seed| {
            let wanted = ByteCount(Seeded::new(seed).below(1 << 29));
            for kernel in [OLD, NEW] {
                let window = window_of(buffer_for(wanted, kernel), kernel).0;
                assert!((wanted.0..=wanted.0 + 1).contains(&window), "{wanted:?} on {kernel}: {window}");
            }
            let in_flight = in_flight_of(send_buffer_for(wanted)).0;
            assert!((wanted.0..=wanted.0 + 1).contains(&in_flight), "{wanted:?}: {in_flight}");
        });
    }
}
