//! Agent's end of packet trains and echoes: one UDP socket for the trains and echoes of a measurement.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::super::message::{Answer, EchoSpec, SentTrain, TrainSpec};
use super::super::stamp::Probe;
use super::log::Log;
use super::plan::{Plan, check_echoes};
use super::receive::{Receiver, Silence, arrival, drops, gather};
use super::reflector::{Allowance, ROOM, answer};
use super::send::{Route, send};
use super::socket::{SocketErrors, enlarge, open, with_port};
use crate::sys::Inbox;

/// Time between two looks at a train that runs and at its client. Reason: a train ends within a second after its client
/// is gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Trains and echoes of a measurement. Dropped, it ends them.
pub(in crate::measure) struct Agent {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    sender: Option<Sending>,
}

/// Train that this end sends.
struct Sending {
    thread: JoinHandle<Result<SentTrain, Error>>,
    stop: Arc<AtomicBool>,
}

/// Socket that the threads of an agent share.
struct Shared {
    socket: UdpSocket,
    local: SocketAddr,
    peer: IpAddr,
    errors: SocketErrors,
    mode: Mutex<Mode>,
    is_over: AtomicBool,
}

/// Use of the socket. Packets of a session have its identifier; plain STAMP has 0.
enum Mode {
    /// Only plain STAMP gets replies.
    Idle,
    /// The client sends a packet from each port, and gets replies. The addresses are recorded.
    Opening { session: u16, plan: Plan, direction: DataDirection, ports: Vec<Option<SocketAddr>> },
    /// The packets of a train are recorded.
    Recording { session: u16, log: Box<Log>, silence: Silence, drops_before: u64 },
    /// Packets get replies. Those seen are recorded by their number.
    Echoing { session: u16, ports: usize, seen: Vec<bool> },
}

impl Agent {
    /// Opens the socket on the address of a control connection, for packets of its client. `port`: 0 for a free one.
    ///
    /// Errors: `Denied`: the port is in use; `Unreachable`: the connection is gone.
    pub(in crate::measure) fn open(client: &TcpStream, port: u16) -> Result<Self, Error> {
        let addresses = client.local_addr().and_then(|local| Ok((local, client.peer_addr()?)));
        let (local, peer) = addresses.map_err(|e| {
            let text = "read the addresses of the connection of a measurement";
            Error::new(ErrorKind::Unreachable, Scope::Client, Phase::Prepare, text).caused_by(e)
        })?;
        let local = with_port(local, port);
        let failed = |e| {
            let text = format!("open UDP port {local} for packet trains");
            Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text).retry(Retry::After).caused_by(e)
        };
        let socket = open(local).map_err(failed)?;
        enlarge(&socket).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            socket,
            local,
            peer: peer.ip().to_canonical(),
            errors: SocketErrors::new(),
            mode: Mutex::new(Mode::Idle),
            is_over: AtomicBool::new(false),
        });
        let of_reader = Arc::clone(&shared);
        let reader = thread::Builder::new().name("packets".to_owned()).spawn(move || of_reader.read());
        let reader = reader.map_err(|e| crate::no_thread("start the thread of packet trains", e))?;
        Ok(Self { shared, reader: Some(reader), sender: None })
    }

    /// Prepares a train. Errors: `Limit`.
    pub(in crate::measure) fn prepare_train(&mut self, spec: &TrainSpec) -> Result<Answer, Error> {
        let plan = Plan::new(spec, self.shared.local.is_ipv4()).map_err(limit)?;
        let ports = vec![None; plan.ports as usize];
        let session = new_session()?;
        self.begin(Mode::Opening { session, plan, direction: spec.direction, ports });
        Ok(self.expects(session))
    }

    /// Starts the train. Errors: `Unreachable`: no packet has arrived from the ports of the client.
    pub(in crate::measure) fn start_train(&mut self) -> Result<Answer, Error> {
        let mut mode = self.shared.mode.lock();
        let Mode::Opening { session, plan, direction, ports } = std::mem::replace(&mut *mode, Mode::Idle) else {
            return Err(Error::protocol("the start of a packet train that is not prepared"));
        };
        let known: Vec<SocketAddr> = ports.iter().flatten().copied().collect();
        if known.is_empty() || (direction == DataDirection::In && known.len() < ports.len()) {
            return Err(self.shared.unreachable(known.len(), ports.len()));
        }
        if direction == DataDirection::Out {
            let drops_before = drops(slice::from_ref(&self.shared.socket));
            let (log, silence) = (Box::new(Log::new(plan)), Silence::new(Instant::now()));
            *mode = Mode::Recording { session, log, silence, drops_before };
            return Ok(Answer::Started);
        }
        drop(mode);
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, is_stopped) = (Arc::clone(&self.shared), Arc::clone(&stop));
        let send = move || send(&plan, session, &Route::ToPorts(&shared.socket, &known), &shared.errors, &is_stopped);
        let thread = thread::Builder::new().name("train".to_owned()).spawn(send);
        let thread = thread.map_err(|e| crate::no_thread("start the thread of a packet train", e))?;
        self.sender = Some(Sending { thread, stop });
        Ok(Answer::Started)
    }

    /// Waits for the packets of a train that the client has sent. Returns the report.
    ///
    /// Errors: `Protocol`; `Unreachable`: the client is gone.
    pub(in crate::measure) fn finish_receiving(&self, sent: &SentTrain, client: &TcpStream) -> Result<Answer, Error> {
        loop {
            let mut mode = self.shared.mode.lock();
            let Mode::Recording { log, silence, drops_before, .. } = &mut *mode else {
                return Err(Error::protocol("the end of a packet train that does not run"));
            };
            let now = Instant::now();
            silence.handle_sender_end(now);
            if log.is_complete(sent) || silence.is_over(now) {
                let dropped = drops(slice::from_ref(&self.shared.socket)).saturating_sub(*drops_before);
                let report = log.report(sent, dropped);
                *mode = Mode::Idle;
                return Ok(Answer::Train(Box::new(report)));
            }
            drop(mode);
            look(client)?;
        }
    }

    /// Waits for the end of a train that this end sends.
    ///
    /// Errors: those of the sender; `Protocol`; `Unreachable`: the client is gone.
    pub(in crate::measure) fn finish_sending(&mut self, client: &TcpStream) -> Result<Answer, Error> {
        let Some(sender) = &self.sender else {
            return Err(Error::protocol("the end of a packet train that does not run"));
        };
        while !sender.thread.is_finished() {
            look(client)?;
        }
        match self.sender.take().map(|sender| sender.thread.join()) {
            Some(Ok(sent)) => sent.map(|sent| Answer::TrainSent(Box::new(sent))),
            _ => Err(crate::internal("a packet train has panicked")),
        }
    }

    /// Prepares echoes. Errors: `Limit`.
    pub(in crate::measure) fn prepare_echo(&mut self, spec: &EchoSpec) -> Result<Answer, Error> {
        check_echoes(spec, self.shared.local.is_ipv4()).map_err(limit)?;
        let session = new_session()?;
        let ports = spec.ports as usize;
        self.begin(Mode::Echoing { session, ports, seen: vec![false; ports * spec.per_port as usize] });
        Ok(self.expects(session))
    }

    /// Ends echoes. Errors: `Protocol`; `Unreachable`: no packet has arrived.
    pub(in crate::measure) fn finish_echo(&self) -> Result<Answer, Error> {
        match std::mem::replace(&mut *self.shared.mode.lock(), Mode::Idle) {
            Mode::Echoing { ports, seen, .. } if !seen.contains(&true) => Err(self.shared.unreachable(0, ports)),
            Mode::Echoing { ports, seen, .. } => {
                let count = |port| seen.iter().skip(port).step_by(ports).filter(|is_seen| **is_seen).count() as u64;
                Ok(Answer::Echoed { reflected: (0..ports).map(count).collect() })
            }
            _ => Err(Error::protocol("the end of echoes that do not run")),
        }
    }

    /// Ends what runs, and begins another use of the socket.
    fn begin(&mut self, mode: Mode) {
        self.end_sender();
        *self.shared.mode.lock() = mode;
    }

    fn end_sender(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.stop.store(true, Ordering::Relaxed);
            // Nobody reads its outcome.
            let _ = sender.thread.join();
        }
    }

    fn expects(&self, session: u16) -> Answer {
        Answer::Packets { port: self.shared.local.port(), session }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end_sender();
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // A panic of the reader is a bug of ours that its log line names.
            let _ = reader.join();
        }
    }
}

impl Shared {
    /// Reads packets until the measurement is over.
    fn read(&self) {
        let mut receiver = Receiver::new(slice::from_ref(&self.socket), &self.errors, ROOM);
        let mut plain = Allowance::new(Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let count = receiver.receive(|_, inbox, index| self.handle(inbox, index, &mut plain));
            let is_train = match &mut *self.mode.lock() {
                Mode::Recording { silence, .. } => {
                    silence.handle_packets(count, Instant::now());
                    true
                }
                _ => false,
            };
            if is_train {
                gather(count);
            }
        }
    }

    /// Handles a packet. Ignores those of other hosts and of other sessions.
    fn handle(&self, inbox: &mut Inbox, index: usize, plain: &mut Allowance) {
        let packet = inbox.packet(index);
        let Some(from) = packet.from.filter(|from| from.ip().to_canonical() == self.peer) else { return };
        let Some(probe) = Probe::read(packet.data) else { return };
        let is_probe = probe.in_train == 0;
        match &mut *self.mode.lock() {
            Mode::Recording { session, log, .. } if probe.session == *session => {
                if let Some(arrival) = arrival(*session, log.header(), &packet) {
                    log.handle(&arrival);
                }
                return;
            }
            Mode::Opening { session, ports, .. } if probe.session == *session && is_probe => {
                let Some(port) = ports.get_mut(probe.number as usize) else { return };
                *port = Some(from);
            }
            Mode::Echoing { session, seen, .. } if probe.session == *session && is_probe => {
                let Some(is_seen) = seen.get_mut(probe.number as usize) else { return };
                *is_seen = true;
            }
            _ if probe.session == 0 && plain.take(Instant::now()) => {}
            _ => return,
        }
        answer(&self.socket, inbox, index, from);
    }

    /// Returns the error of a client whose packets do not arrive.
    fn unreachable(&self, known: usize, ports: usize) -> Error {
        let (local, peer) = (self.local, self.peer);
        let which = match known {
            0 => "no UDP packet".to_owned(),
            _ => format!("UDP packets from only {known} of {ports} ports"),
        };
        let text = format!(
            "{which} of {peer} arrived at {local}: open UDP port {} for {peer} in the firewalls before the agent; \
             --measure-port of the agent sets the port",
            local.port()
        );
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After)
    }
}

fn limit(text: String) -> Error {
    Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text)
}

/// Returns a random identifier of a session. It is not 0, which plain STAMP has.
fn new_session() -> Result<u16, Error> {
    let random = getrandom::u32().map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    // The remainder and 1 are below 2^16.
    Ok((random % u32::from(u16::MAX)) as u16 + 1)
}

/// Waits a moment. Errors: `Unreachable`: the client has closed its connection.
fn look(client: &TcpStream) -> Result<(), Error> {
    let mut polled = [PollFd::new(client, PollFlags::RDHUP)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    match poll(&mut polled, Some(&timeout)) {
        Ok(1..) => {
            let text = "wait for the end of a packet train: the client is gone";
            Err(Error::new(ErrorKind::Unreachable, Scope::Client, Phase::Transfer, text))
        }
        // An interrupted wait is a short one.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::measure::message::SentSize;

    /// Train of 30 s.
    fn spec(direction: DataDirection) -> TrainSpec {
        TrainSpec { direction, rate_bps: 1_000_000, time_ms: 30_000, packet_bytes: vec![1500], ports: 1 }
    }

    /// Starts a train with a client. Returns the agent, and both ends of the control connection.
    fn started(spec: &TrainSpec) -> (Agent, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (control, _) = listener.accept().unwrap();
        let mut agent = Agent::open(&control, 0).unwrap();
        let Answer::Packets { port, session } = agent.prepare_train(spec).unwrap() else { panic!("no packets") };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        let mut packet = [0; 44];
        packet[14..16].copy_from_slice(&session.to_be_bytes());
        socket.send(&packet).unwrap();
        assert_eq!(socket.recv(&mut packet).unwrap(), 44);
        assert!(matches!(agent.start_train().unwrap(), Answer::Started));
        (agent, control, client)
    }

    /// A train that goes on would end with its report.
    #[test]
    fn a_train_ends_when_its_client_is_gone() {
        for direction in [DataDirection::In, DataDirection::Out] {
            let (mut agent, control, client) = started(&spec(direction));
            drop(client);
            let all = SentSize { sent: 2500, ..SentSize::default() };
            let sent = SentTrain { packets: 2500, sizes: vec![all], ..SentTrain::default() };
            let end = match direction {
                DataDirection::In => agent.finish_sending(&control),
                DataDirection::Out => agent.finish_receiving(&sent, &control),
            };
            let Err(error) = end else { panic!("{direction:?}: it goes on to its end") };
            assert!(error.kind == ErrorKind::Unreachable && error.text().contains("the client is gone"), "{error}");
        }
    }
}
