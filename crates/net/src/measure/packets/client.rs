//! Client's end of packet trains and echoes.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::super::message::{Answer, Ask, EchoPort, EchoReport, EchoSpec, SentTrain, TrainReport, TrainSpec};
use super::super::stamp::{BASE_BYTES, NtpTime, Probe, Reply};
use super::log::{Arrival, Log};
use super::plan::{Plan, check_echoes, header_bytes};
use super::receive::{Receiver, Silence, arrival, drops, gather};
use super::send::{Route, send, unix_time};
use super::socket::{SocketErrors, enlarge, open, with_port};
use crate::sys::Inbox;

/// Time in which an agent answers a short question.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Time beyond the end of a train in which the agent reports. Reason: the last packets arrive within 10 s.
const REPORT_WITHIN: Duration = Duration::from_secs(60);

/// Attempts to reach the agent from each port. Reason: with half of the packets lost, one port in a thousand is left.
const OPENINGS: u32 = 10;

/// Time for the reply to an opening packet, beyond a round trip.
const OPENING_WITHIN: Duration = Duration::from_millis(100);

/// Lateness above which the schedule of echoes shifts. Reason: as for trains.
const LATE_MAX: Duration = Duration::from_millis(5);

/// Client of an agent for trains and echoes.
pub(in crate::measure) struct Client<'a> {
    /// Asks the agent, and returns its answer within a time. A refusal is an error.
    pub(in crate::measure) ask: &'a mut dyn FnMut(&Ask, Duration) -> Result<Answer, Error>,
    /// Address of this host on the control connection.
    pub(in crate::measure) local: SocketAddr,
    /// Address of the agent on the control connection.
    pub(in crate::measure) remote: SocketAddr,
    /// Time of a round trip.
    pub(in crate::measure) rtt: Duration,
}

impl Client<'_> {
    /// Runs a train. See [`super::super::Measurement::train`].
    pub(in crate::measure) fn train(&mut self, spec: &TrainSpec) -> Result<TrainReport, Error> {
        let plan = Plan::new(spec, self.is_ipv4()).map_err(|text| Error::usage(&[], text))?;
        let (to, session) = self.prepare(&Ask::Train(spec.clone()))?;
        let sockets = self.sockets(plan.ports, to)?;
        let errors = SocketErrors::new();
        self.open_ports(&sockets, &errors, session)?;
        let mut report = match spec.direction {
            DataDirection::Out => self.send_train(&plan, &sockets, &errors, session)?,
            DataDirection::In => self.receive_train(&plan, &sockets, &errors, session)?,
        };
        for (count, socket) in report.ports.iter_mut().zip(&sockets) {
            count.port = port_of(socket);
        }
        Ok(report)
    }

    fn send_train(
        &mut self,
        plan: &Plan,
        sockets: &[UdpSocket],
        errors: &SocketErrors,
        session: u16,
    ) -> Result<TrainReport, Error> {
        self.start()?;
        // A thread of its own, for its timers.
        let sent = thread::scope(|scope| {
            let stop = AtomicBool::new(false);
            scope.spawn(move || send(plan, session, &Route::FromPorts(sockets), errors, &stop)).join()
        });
        let sent = sent.map_err(|_| crate::internal("a packet train has panicked"))??;
        let Answer::Train(mut report) = (self.ask)(&Ask::TrainSent(Box::new(sent)), REPORT_WITHIN)? else {
            return Err(unexpected());
        };
        let mut inbox = Inbox::new(1, BASE_BYTES);
        sockets.iter().for_each(|socket| errors.take(socket, &mut inbox));
        report.too_big_mtu = errors.too_big_mtu();
        Ok(*report)
    }

    fn receive_train(
        &mut self,
        plan: &Plan,
        sockets: &[UdpSocket],
        errors: &SocketErrors,
        session: u16,
    ) -> Result<TrainReport, Error> {
        for socket in sockets {
            enlarge(socket).map_err(|e| failed("set up a UDP socket", e))?;
        }
        let sent: OnceLock<Option<SentTrain>> = OnceLock::new();
        let drops_before = drops(sockets);
        let log = thread::scope(|scope| {
            let receiver = scope.spawn(|| collect(sockets, errors, Log::new(plan.clone()), session, &sent));
            let outcome =
                self.start().and_then(|()| match (self.ask)(&Ask::FinishTrain, plan.time_max() + REPORT_WITHIN)? {
                    Answer::TrainSent(sent) => Ok(*sent),
                    _ => Err(unexpected()),
                });
            // The cell is empty before.
            let _ = sent.set(outcome.as_ref().ok().cloned());
            let log = receiver.join().map_err(|_| crate::internal("the receiver of a packet train has panicked"))?;
            outcome.map(|sent| (log, sent))
        });
        let (log, sent) = log?;
        Ok(log.report(&sent, drops(sockets).saturating_sub(drops_before)))
    }

    /// Runs echoes. See [`super::super::Measurement::echo`].
    pub(in crate::measure) fn echo(&mut self, spec: &EchoSpec) -> Result<EchoReport, Error> {
        check_echoes(spec, self.is_ipv4()).map_err(|text| Error::usage(&[], text))?;
        let (to, session) = self.prepare(&Ask::Echo(*spec))?;
        let sockets = self.sockets(spec.ports, to)?;
        let mut echoes = Echoes::new(spec, session, &sockets, self.is_ipv4());
        echoes.run();
        let reflected = match (self.ask)(&Ask::FinishEcho, ANSWER_WITHIN)? {
            Answer::Echoed { reflected } => reflected,
            _ => return Err(unexpected()),
        };
        Ok(echoes.report(&reflected))
    }

    fn prepare(&mut self, ask: &Ask) -> Result<(SocketAddr, u16), Error> {
        match (self.ask)(ask, ANSWER_WITHIN)? {
            Answer::Packets { port, session } => Ok((with_port(self.remote, port), session)),
            _ => Err(unexpected()),
        }
    }

    fn start(&mut self) -> Result<(), Error> {
        match (self.ask)(&Ask::StartTrain, ANSWER_WITHIN)? {
            Answer::Started => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn is_ipv4(&self) -> bool {
        self.remote.ip().to_canonical().is_ipv4()
    }

    /// Opens sockets to the port of the agent.
    fn sockets(&self, count: u32, to: SocketAddr) -> Result<Vec<UdpSocket>, Error> {
        let opened = |_| {
            let socket = open(with_port(self.local, 0))?;
            socket.connect(to)?;
            Ok(socket)
        };
        (0..count).map(opened).collect::<Result<_, _>>().map_err(|e| failed(&format!("open UDP ports to {to}"), e))
    }

    /// Sends a packet from each port until its reply has come: this opens the firewalls and address translations on the
    /// way back. Ports without a reply are no error, since only that way may be closed; the agent decides.
    fn open_ports(&self, sockets: &[UdpSocket], errors: &SocketErrors, session: u16) -> Result<(), Error> {
        let mut is_open = vec![false; sockets.len()];
        let mut receiver = Receiver::new(sockets, errors, BASE_BYTES);
        for _ in 0..OPENINGS {
            for (index, socket) in sockets.iter().enumerate().filter(|(index, _)| !is_open[*index]) {
                let number = u32::try_from(index).unwrap_or(u32::MAX);
                let mut packet = [0; BASE_BYTES];
                Probe { number, sent: NtpTime::of_unix(unix_time()), session, in_train: 0 }.write(&mut packet);
                // An error is one of an earlier packet, or a lost packet.
                let _ = socket.send(&packet);
            }
            let end = Instant::now() + self.rtt + OPENING_WITHIN;
            while is_open.contains(&false) && Instant::now() < end {
                receiver.receive(|index, inbox, packet| {
                    let reply = Reply::read(inbox.packet(packet).data);
                    is_open[index] |= reply.is_some_and(|reply| reply.session == session);
                });
            }
            if !is_open.contains(&false) {
                break;
            }
        }
        Ok(())
    }
}

/// Records the packets of a train until it has ended. `sent`: the record of the sender, once it has ended; `None`: the
/// train is given up.
fn collect(
    sockets: &[UdpSocket],
    errors: &SocketErrors,
    mut log: Log,
    session: u16,
    sent: &OnceLock<Option<SentTrain>>,
) -> Log {
    let mut receiver = Receiver::new(sockets, errors, BASE_BYTES);
    let mut silence = Silence::new(Instant::now());
    let (header, mut arrivals) = (log.header(), Vec::new());
    loop {
        let count =
            receiver.receive(|_, inbox, packet| arrivals.extend(arrival(session, header, &inbox.packet(packet))));
        arrivals.sort_by_key(|packet: &Arrival| packet.arrived_ns);
        arrivals.drain(..).for_each(|packet| log.handle(&packet));
        let now = Instant::now();
        silence.handle_packets(count, now);
        match sent.get() {
            None => {}
            Some(None) => return log,
            Some(Some(sent)) => {
                silence.handle_sender_end(now);
                if log.is_complete(sent) || silence.is_over(now) {
                    return log;
                }
            }
        }
        gather(count);
    }
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

    fn report(mut self, reflected: &[u64]) -> EchoReport {
        let count = self.ports.len();
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.reflected = reflected.get(index).copied().unwrap_or(0);
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
    let mut packet = vec![0; payload];
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

fn port_of(socket: &UdpSocket) -> u16 {
    socket.local_addr().map_or(0, |address| address.port())
}

fn unexpected() -> Error {
    Error::protocol("another answer than to the question of a packet train")
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, what).retry(Retry::After).caused_by(error)
}
