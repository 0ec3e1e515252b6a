//! Client's end of packet trains and echoes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::super::message::{Answer, Ask, EchoReport, EchoSpec, SentTrain, TrainReport, TrainSpec};
use super::super::stamp::{BASE_BYTES, NtpTime, Probe, Reply};
use super::echo;
use super::log::{Arrival, Log};
use super::plan::{Plan, check_echoes};
use super::receive::{Receiver, Silence, arrival, drops, gather};
use super::send::{Route, send, unix_time};
use super::socket::{SocketErrors, connect, enlarge, port_of, with_port};
use crate::sys::Inbox;

/// Time in which an agent answers a short question.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Time beyond the end of a train in which the agent reports. Reason: the last packets arrive within 10 s.
const REPORT_WITHIN: Duration = Duration::from_secs(60);

/// Attempts to reach the agent from each port. Reason: with half of the packets lost, one port in a thousand is left.
const OPENINGS: u32 = 10;

/// Time for the reply to an opening packet, beyond a round trip.
const OPENING_WITHIN: Duration = Duration::from_millis(100);

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

    /// Runs echoes. See [`super::super::Measurement::echo_from`].
    pub(in crate::measure) fn echo(&mut self, spec: &EchoSpec, first_port: Option<u16>) -> Result<EchoReport, Error> {
        check_echoes(spec, self.is_ipv4()).map_err(|text| Error::usage(&[], text))?;
        let (to, session) = self.prepare(&Ask::Echo(*spec))?;
        let sockets = match first_port {
            None => self.sockets(spec.ports, to)?,
            Some(first) => self.numbered_sockets((first..).take(spec.ports as usize), to)?,
        };
        let mut report = echo::run(spec, session, &sockets, self.is_ipv4());
        let Answer::Echoed { reflected } = (self.ask)(&Ask::FinishEcho, ANSWER_WITHIN)? else {
            return Err(unexpected());
        };
        for (port, reflected) in report.echoes.iter_mut().zip(reflected) {
            port.reflected = reflected;
        }
        Ok(report)
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
        let opened = (0..count).map(|_| connect(with_port(self.local, 0), to)).collect::<Result<_, _>>();
        opened.map_err(|e| failed(&format!("open UDP ports to {to}"), e))
    }

    /// Opens sockets with given ports to the port of the agent. A port that is in use is replaced.
    fn numbered_sockets(&self, ports: impl Iterator<Item = u16>, to: SocketAddr) -> Result<Vec<UdpSocket>, Error> {
        let open = |port| connect(with_port(self.local, port), to);
        let opened = ports.map(|port| open(port).or_else(|_| open(0))).collect::<Result<_, _>>();
        opened.map_err(|e| failed(&format!("open UDP ports to {to}"), e))
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

fn unexpected() -> Error {
    Error::protocol("another answer than to the question of a packet train")
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, what).retry(Retry::After).caused_by(error)
}
