//! Sender of echoes, to an agent or to any reflector of STAMP or TWAMP Light.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::super::dial;
use super::super::message::{EchoPort, EchoReport, EchoSpec};
use super::super::stamp::{BASE_BYTES, NtpTime, Probe, Reply};
use super::plan::{check_echoes, header_bytes};
use super::receive::{Receiver, Silence};
use super::send::unix_time;
use super::socket::{SocketErrors, connect, port_of};

/// Lateness above which the schedule of echoes shifts. Reason: as for trains.
const LATE_MAX: Duration = Duration::from_millis(5);

/// Flags, type and length of a TLV of extra padding (RFC 8972 section 4.1). The first flag is "unrecognized", which a
/// reflector clears that knows the type.
const PADDING_FLAGS: u8 = 0x80;
const PADDING_TYPE: u8 = 1;
const PADDING_HEAD: usize = 4;

/// Sends echoes to a reflector of STAMP or TWAMP Light, and returns its address too. `from`: address of this host,
/// which selects the network. The reflector does not report what it received, so `reflected` counts what returned.
///
/// Errors: `Usage`; `Unreachable`: no reply has come.
pub fn stamp_echoes(
    reflector: &HostPort,
    from: Option<IpAddr>,
    spec: &EchoSpec,
) -> Result<(SocketAddr, EchoReport), Error> {
    dial::first_of(reflector, from, |to| {
        check_echoes(spec, to.is_ipv4()).map_err(|text| Error::usage(&[], text))?;
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let local = SocketAddr::new(from.unwrap_or(any), 0);
        let sockets = (0..spec.ports).map(|_| connect(local, to)).collect::<Result<Vec<_>, _>>().map_err(|e| {
            let text = format!("open UDP ports to {to}");
            Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After).caused_by(e)
        })?;
        let mut report = run(spec, 0, &sockets, to.is_ipv4());
        if report.echoes.iter().any(|port| port.returned > 0) {
            report.echoes.iter_mut().for_each(|port| port.reflected = port.returned);
            return Ok((to, report));
        }
        let sent: u64 = report.echoes.iter().map(|port| port.sent).sum();
        let text = format!("send {sent} STAMP packets to {to} by UDP: no reply; a reflector must run there");
        Err(Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text).retry(Retry::After))
    })
}

/// Sends echoes over connected sockets, and receives the replies. `session`: identifier of the packets.
pub(super) fn run(spec: &EchoSpec, session: u16, sockets: &[UdpSocket], is_ipv4: bool) -> EchoReport {
    let mut echoes = Echoes::new(spec, session, sockets, is_ipv4);
    echoes.run();
    echoes.report()
}

/// Echoes of a client.
struct Echoes<'a> {
    spec: EchoSpec,
    session: u16,
    sockets: &'a [UdpSocket],
    payload: usize,
    ports: Vec<EchoPort>,
    /// Round-trip time of each packet that returned, by its number.
    rtts: Vec<Option<u64>>,
    /// Highest number that returned, by port.
    highest: Vec<Option<u32>>,
}

impl<'a> Echoes<'a> {
    fn new(spec: &EchoSpec, session: u16, sockets: &'a [UdpSocket], is_ipv4: bool) -> Self {
        let ports = sockets.iter().map(|socket| EchoPort { port: port_of(socket), ..EchoPort::default() }).collect();
        Self {
            spec: *spec,
            session,
            sockets,
            payload: (spec.packet_bytes - header_bytes(is_ipv4)) as usize,
            ports,
            rtts: vec![None; spec.ports as usize * spec.per_port as usize],
            highest: vec![None; spec.ports as usize],
        }
    }

    /// Sends all packets and receives the replies.
    fn run(&mut self) {
        let errors = SocketErrors::new();
        let (spec, session, sockets, payload) = (self.spec, self.session, self.sockets, self.payload);
        let sent: OnceLock<Vec<u64>> = OnceLock::new();
        thread::scope(|scope| {
            // The cell is empty before.
            scope.spawn(|| sent.set(send_echoes(&spec, session, sockets, payload)));
            let mut receiver = Receiver::new(sockets, &errors, BASE_BYTES);
            let mut silence = Silence::new(Instant::now());
            loop {
                let count = receiver.receive(|port, inbox, packet| {
                    let packet = inbox.packet(packet);
                    let (Some(reply), Some(at)) = (Reply::read(packet.data), packet.at) else { return };
                    self.handle(port, &reply, NtpTime::of_unix(at), packet.ttl);
                });
                let now = Instant::now();
                silence.handle_packets(count, now);
                let Some(sent) = sent.get() else { continue };
                silence.handle_sender_end(now);
                let returned: u64 = self.ports.iter().map(|port| port.returned).sum();
                if returned >= sent.iter().sum() || silence.is_over(now) {
                    break;
                }
            }
        });
        for (port, sent) in self.ports.iter_mut().zip(sent.into_inner().unwrap_or_default()) {
            port.sent = sent;
        }
    }

    /// Records a reply. Ignores those of no packet of ours.
    fn handle(&mut self, index: usize, reply: &Reply, at: NtpTime, ttl: Option<u8>) {
        let number = reply.sender_number;
        let Some(slot) = self.rtts.get_mut(number as usize) else { return };
        if reply.session != self.session || number as usize % self.ports.len() != index || slot.is_some() {
            return;
        }
        let rtt = at.since(reply.sender_sent).saturating_sub(reply.sent.since(reply.received));
        *slot = Some(u64::try_from(rtt).unwrap_or(0) / 1000);
        let (port, highest) = (&mut self.ports[index], &mut self.highest[index]);
        port.returned += 1;
        if highest.is_some_and(|highest| highest > number) {
            port.reordered += 1;
        } else {
            *highest = Some(number);
        }
        let smaller = |known: Option<u8>, new: Option<u8>| known.into_iter().chain(new).min();
        port.forward_ttl = smaller(port.forward_ttl, Some(reply.sender_ttl).filter(|ttl| *ttl > 0));
        port.reverse_ttl = smaller(port.reverse_ttl, ttl);
    }

    fn report(mut self) -> EchoReport {
        let count = self.ports.len();
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.rtt_us = self.rtts.iter().skip(index).step_by(count).flatten().copied().collect();
        }
        EchoReport { echoes: self.ports }
    }
}

/// Sends echoes over the ports in turn. Returns their number for each port.
fn send_echoes(spec: &EchoSpec, session: u16, sockets: &[UdpSocket], payload: usize) -> Vec<u64> {
    // As for a train.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut sent = vec![0; sockets.len()];
    let mut packet = padded(payload);
    let (start, interval) = (Instant::now(), Duration::from_micros(spec.interval_us));
    let mut due = Duration::ZERO;
    for number in 0..spec.ports.saturating_mul(spec.per_port) {
        let now = start.elapsed();
        match now.checked_sub(due) {
            None => thread::sleep(due - now),
            Some(late) if late > LATE_MAX => due = now,
            Some(_) => {}
        }
        due += interval;
        let port = number as usize % sockets.len();
        let probe = Probe { number, sent: NtpTime::of_unix(unix_time()), session, in_train: 0 };
        if let Some(Ok(head)) = packet.get_mut(..BASE_BYTES).map(TryInto::try_into) {
            probe.write(head);
        }
        // An error may be that of an earlier packet: one more attempt.
        if sockets[port].send(&packet).is_ok() || sockets[port].send(&packet).is_ok() {
            sent[port] += 1;
        }
    }
    sent
}

/// Returns a payload whose bytes after the base packet are a TLV of padding.
fn padded(length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    let padding = packet.get_mut(BASE_BYTES..).unwrap_or_default();
    if let Some(size) = padding.len().checked_sub(PADDING_HEAD) {
        // A payload of UDP is below 64 KiB.
        padding[..2].copy_from_slice(&[PADDING_FLAGS, PADDING_TYPE]);
        padding[2..PADDING_HEAD].copy_from_slice(&(size as u16).to_be_bytes());
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_a_tlv_if_it_has_room_for_one() {
        assert_eq!((padded(44), padded(47)), (vec![0; 44], vec![0; 47]));
        assert_eq!(padded(52)[44..], [0x80, 1, 0, 4, 0, 0, 0, 0]);
        assert_eq!(padded(48)[44..], [0x80, 1, 0, 0]);
    }

    #[test]
    fn replies_count_once_and_in_their_order() {
        let spec = EchoSpec { ports: 2, per_port: 3, interval_us: 1000, packet_bytes: 100 };
        let mut echoes = Echoes::new(&spec, 7, &[], true);
        echoes.ports = vec![EchoPort::default(); 2];
        let at = |millis: u64| NtpTime::of_unix(Duration::from_millis(1_700_000_000_000 + millis));
        let reply = |number: u32, sent: u64| Reply {
            number,
            sent: at(sent + 25),
            session: 7,
            received: at(sent + 20),
            sender_number: number,
            sender_sent: at(sent),
            sender_ttl: 57,
        };
        echoes.handle(0, &reply(2, 2), at(47), Some(60));
        echoes.handle(0, &reply(0, 0), at(50), Some(61));
        echoes.handle(0, &reply(0, 0), at(51), Some(61));
        // Another port, another session, and no packet.
        echoes.handle(0, &reply(1, 0), at(50), None);
        echoes.handle(0, &Reply { session: 8, ..reply(4, 0) }, at(50), None);
        echoes.handle(0, &reply(6, 0), at(50), None);
        echoes.handle(0, &reply(u32::MAX, 0), at(50), None);
        let report = echoes.report();
        let port = &report.echoes[0];
        assert_eq!((port.returned, port.reordered), (2, 1));
        assert!(port.rtt_us[0].abs_diff(45_000) <= 1 && port.rtt_us[1].abs_diff(40_000) <= 1, "{port:?}");
        assert_eq!((port.forward_ttl, port.reverse_ttl), (Some(57), Some(60)));
        assert_eq!(report.echoes[1].returned, 0);
    }
}
