//! Reflector of STAMP that stands alone: it sends every packet back to its origin.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::receive::Receiver;
use super::reflector::{Allowance, ROOM, answer};
use super::socket::{SocketErrors, open};

/// Origins that get replies within a second. Reason: 400 kB; more are an attack, and get none.
const ORIGINS_MAX: usize = 4096;

/// Time between two sweeps of a full table. Reason: an allowance is full again after a second, and a sweep for every
/// packet of a flood costs more than the replies.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Reflector of STAMP (RFC 8762, stateless, unauthenticated) and TWAMP Light. Dropped, it ends.
///
/// Each origin gets up to 1000 replies a second, none of which is larger than its packet.
pub struct StampReflector {
    local: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StampReflector {
    /// Starts a reflector at an address. With an unspecified address, a host with several addresses may reply from
    /// another one than the packet was sent to, which senders ignore.
    ///
    /// Errors: `Io`: the address or the port cannot be used.
    pub fn start(local: SocketAddr) -> Result<Self, Error> {
        let failed = |e| {
            let text = format!("open UDP port {local} for STAMP");
            Error::new(ErrorKind::Io, Scope::Service, Phase::Prepare, text).caused_by(e)
        };
        let socket = open(local).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("stamp".to_owned()).spawn(move || reply(&socket, &of_thread));
        let thread = thread.map_err(|e| crate::no_thread("start the thread of the STAMP reflector", e))?;
        Ok(Self { local, is_over, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for StampReflector {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is a bug of ours that its message names.
            let _ = thread.join();
        }
    }
}

/// Sends packets back until it is over.
fn reply(socket: &UdpSocket, is_over: &AtomicBool) {
    let (errors, mut origins) = (SocketErrors::new(), Origins::default());
    let mut receiver = Receiver::new(slice::from_ref(socket), &errors, ROOM);
    while !is_over.load(Ordering::Relaxed) {
        receiver.receive(|_, inbox, index| {
            let Some(from) = inbox.packet(index).from else { return };
            if origins.may_reply(from.ip(), Instant::now()) {
                answer(socket, inbox, index, from);
            }
        });
    }
}

/// Allowances of the origins that have sent lately.
#[derive(Debug, Default)]
struct Origins {
    allowances: HashMap<IpAddr, Allowance>,
    /// Time at which those with a full allowance were forgotten last; `None`: never.
    swept: Option<Instant>,
}

impl Origins {
    /// Returns true if an origin may get a reply now.
    fn may_reply(&mut self, from: IpAddr, now: Instant) -> bool {
        let from = network(from);
        if !self.allowances.contains_key(&from) && self.allowances.len() >= ORIGINS_MAX {
            self.sweep(now);
            if self.allowances.len() >= ORIGINS_MAX {
                return false;
            }
        }
        self.allowances.entry(from).or_insert_with(|| Allowance::new(now)).take(now)
    }

    /// Forgets the origins with a full allowance, once in [`SWEEP_EVERY`].
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_EVERY) {
            self.swept = Some(now);
            self.allowances.retain(|_, allowance| !allowance.is_full(now));
        }
    }
}

/// Returns the host of IPv4, or the network of IPv6, of which one host has all addresses.
fn network(from: IpAddr) -> IpAddr {
    match from {
        IpAddr::V4(_) => from,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn many_origins_and_much_of_one_get_no_replies() {
        let (start, mut origins) = (Instant::now(), Origins::default());
        let one = |index: u128| IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | index));
        assert_eq!((0..5000).filter(|index| origins.may_reply(one(*index), start)).count(), 1000, "one network");
        let host = |index: u32| IpAddr::from(Ipv4Addr::from_bits(index));
        assert_eq!((0..5000).filter(|index| origins.may_reply(host(*index), start)).count(), ORIGINS_MAX - 1);
        assert!(origins.allowances.len() <= ORIGINS_MAX);
        assert!(origins.may_reply(host(9999), start + Duration::from_secs(1)), "old origins are forgotten");
    }

    #[test]
    fn a_full_table_is_swept_once_a_second() {
        let (start, mut origins) = (Instant::now(), Origins::default());
        let host = |index: u32| IpAddr::from(Ipv4Addr::from_bits(index));
        let full = u32::try_from(ORIGINS_MAX).unwrap();
        assert!((0..full).all(|index| origins.may_reply(host(index), start)));
        let mut at = |millis| origins.may_reply(host(full), start + Duration::from_millis(millis));
        assert!(!at(500), "the first sweep finds none to forget");
        assert!(!at(1200), "all can be forgotten, but the next sweep is not due");
        assert!(at(1500));
    }
}
