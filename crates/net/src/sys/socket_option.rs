//! Socket options by number.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::c_int;
use sterna_proto::ByteCount;

/// `SO_MAX_PACING_RATE` and `SO_MEMINFO` of Linux (include/uapi/asm-generic/socket.h).
const SO_MAX_PACING_RATE: c_int = 47;
const SO_MEMINFO: c_int = 55;

/// Largest buffer that a socket takes: half of the largest number, which the kernel doubles.
const BUFFER_BYTES_MAX: u64 = (c_int::MAX / 2) as u64;

/// Caps the rate at which the kernel sends on a socket, in bytes per second; `None` removes the cap.
///
/// If TCP paces by itself, the cap counts bytes of TCP payload (`tcp_update_skb_after_send` in net/ipv4/tcp_output.c).
/// If the queueing discipline of the interface is fq, it counts whole packets.
pub fn set_pacing_rate(socket: &impl AsFd, bytes_per_second: Option<u64>) -> io::Result<()> {
    let rate = bytes_per_second.unwrap_or(u64::MAX).to_ne_bytes();
    set(socket, libc::SOL_SOCKET, SO_MAX_PACING_RATE, &rate)
}

/// Sets the receive buffer of a socket to a size with bookkeeping, also above the maximum of the host. Errors: those of
/// the system; the process lacks `CAP_NET_ADMIN`.
pub fn force_receive_buffer(socket: &impl AsFd, bytes: u64) -> io::Result<()> {
    force(socket, libc::SO_RCVBUFFORCE, bytes)
}

/// Sets the send buffer of a socket to a size with bookkeeping, also above the maximum of the host. Errors: those of
/// the system; the process lacks `CAP_NET_ADMIN`.
pub fn force_send_buffer(socket: &impl AsFd, bytes: u64) -> io::Result<()> {
    force(socket, libc::SO_SNDBUFFORCE, bytes)
}

fn force(socket: &impl AsFd, option: c_int, bytes: u64) -> io::Result<()> {
    // The kernel doubles the number.
    let half = c_int::try_from(bytes.min(BUFFER_BYTES_MAX) / 2).unwrap_or(c_int::MAX / 4);
    set(socket, libc::SOL_SOCKET, option, &half.to_ne_bytes())
}

/// Memory that the kernel holds for a socket (`SO_MEMINFO`, `SK_MEMINFO_*` of include/uapi/linux/sock_diag.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Memory of data that was received and not yet read; well above zero means that the reader is behind.
    pub receive_used: ByteCount,
    /// Limit of the receive buffer, as tuned by the kernel.
    pub receive_limit: ByteCount,
    /// Memory of packets that were handed to the interface.
    pub send_used: ByteCount,
    /// Limit of the send buffer, as tuned by the kernel.
    pub send_limit: ByteCount,
    /// Bytes in the send queue, sent and unsent.
    pub send_queued: ByteCount,
    /// Packets dropped for lack of receive memory.
    pub dropped_packets: u32,
}

impl SocketMemory {
    /// Parses the array of the kernel. Numbers that lie beyond the end of `bytes` are zero.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let value = |index: usize| {
            let number = bytes.get(index * 4..index * 4 + 4).and_then(|bytes| bytes.try_into().ok());
            number.map_or(0, u32::from_ne_bytes)
        };
        let size = |index| ByteCount(u64::from(value(index)));
        Self {
            receive_used: size(0),
            receive_limit: size(1),
            send_used: size(2),
            send_limit: size(3),
            send_queued: size(5),
            dropped_packets: value(8),
        }
    }
}

/// Reads the memory use of a socket. Errors: those of the system; kernels before 4.12 do not have this option.
pub fn socket_memory(socket: &impl AsFd) -> io::Result<SocketMemory> {
    let mut values = [0; 9 * 4];
    let length = get(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut values)?;
    Ok(SocketMemory::parse(&values[..length]))
}

/// Reads an option into `value`. Returns the number of bytes that the kernel wrote.
pub(super) fn get(socket: &impl AsFd, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `value` is writable for `length` bytes; the kernel writes at most that many and returns the number. The
    // file descriptor is borrowed from `socket`, which outlives the call.
    #[allow(unsafe_code)]
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    match status {
        0 => Ok(value.len().min(length as usize)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option.
pub(super) fn set(socket: &impl AsFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `value` is readable for `length` bytes, and the kernel only reads it. The file descriptor is borrowed
    // from `socket`, which outlives the call.
    #[allow(unsafe_code)]
    let status = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn memory_and_pacing_of_a_real_socket() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let memory = socket_memory(&socket).unwrap();
        assert!(memory.receive_limit.0 > 0 && memory.send_limit.0 > 0, "{memory:?}");
        set_pacing_rate(&socket, Some(5_000_000_000)).unwrap();
        let mut rate = [0; 8];
        assert_eq!(get(&socket, libc::SOL_SOCKET, SO_MAX_PACING_RATE, &mut rate).unwrap(), 8);
        assert_eq!(u64::from_ne_bytes(rate), 5_000_000_000, "rates above 34 Gbit/s are not cut to 32 bits");
        set_pacing_rate(&socket, None).unwrap();
    }
}
