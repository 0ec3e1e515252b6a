//! The agent's end of measurements.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::net::RecvFlags;
use rustls::ServerConnection;
use rustls::server::{Acceptor, ServerConnectionData};
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::channel::Channel;
use super::deadline::Deadline;
use super::flow::{self, Role};
use super::message::{Answer, Ask, FlowReport, FlowSpec, Occasion, SocketSettings};
use super::{ALPN, STREAMS_MAX, TIME_MAX, host, packets};
use crate::disk::{Root, SPEED_BYTES_MAX, SPEED_TIME_MAX};
use crate::identity::{Fingerprint, Identity, peer_fingerprint};
use crate::lane::tcp::HANDSHAKE_TIME_MAX;

/// Time in which the client takes an answer. Reason: it waits no longer for the report of a flow.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Time without a question after which a measurement ends. Reason: others can measure after a client that hangs.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// The same for a monitor. Reason: its longest test takes 10 s, and an examination waits for its end.
const MONITOR_IDLE_MAX: Duration = Duration::from_secs(20);

/// Time in which the streams of a flow join. Reason: the client has opened all of them before it starts the flow.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a ClientHello that are looked at. Reason: ours has less than 1 KiB.
const HELLO_BYTES_MAX: usize = 4096;

/// Maximum size of a question in bytes. Reason: the record of a packet train has 3760 intervals of up to 20 bytes.
const ASK_BYTES_MAX: u32 = 256 << 10;

/// Time that an examination waits for a place which a monitor holds. Reason: a monitor gives it up after the experiment
/// that runs, or after the time in which its peer must answer. The client of the examination waits 30 s for its first
/// answer.
const YIELD_WITHIN: Duration = Duration::from_secs(25);

/// Maximum number of examinations that wait. Reason: each holds a thread, and the second one waits for the first.
const WAITING_MAX: usize = 4;

/// Finds the root, and the rest of the path, of a directory that a peer may write to.
pub(crate) type DirectoryOf<'a> = dyn Fn(&Fingerprint, &[u8]) -> Result<(Root, Vec<u8>), Error> + 'a;

/// Maximum size of the first question of a connection, in bytes. Reason: it has a version or a token, and the peer is
/// not authorized yet.
const FIRST_ASK_BYTES_MAX: u32 = 1 << 10;

type ServerChannel = Channel<ServerConnection, ServerConnectionData>;

/// Measurements in which an agent takes part: one at a time.
pub(crate) struct Measurements {
    state: Mutex<State>,
    /// Notified when the place is free.
    freed: Condvar,
    /// UDP port of packet trains and echoes; 0: a free one for each measurement.
    port: u16,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// Number of examinations that wait for a monitor to yield.
    waiting: usize,
}

/// Party that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// Peer that examines the path.
    Examiner(Fingerprint),
    /// Peer that monitors the path.
    Monitor(Fingerprint),
    /// Monitor of this agent.
    OwnMonitor,
    /// Client of another tool, which nobody has authenticated.
    Guest,
}

impl Party {
    /// Returns true if it gives up its place for an examination.
    fn yields(self) -> bool {
        matches!(self, Self::Monitor(_) | Self::OwnMonitor)
    }

    fn key(self) -> Option<Fingerprint> {
        match self {
            Self::Examiner(key) | Self::Monitor(key) => Some(key),
            Self::OwnMonitor | Self::Guest => None,
        }
    }
}

/// Measurement under way.
struct Running {
    party: Party,
    /// Address of the other end; `None` for the monitor of this agent.
    from: Option<SocketAddr>,
    /// Token of the flow whose streams join, and the way to it.
    joining: Option<(String, Sender<(u32, TcpStream)>)>,
}

/// Returns true if the ClientHello at the front of a connection is for a measurement. Leaves the bytes in the socket.
pub(crate) fn is_measurement(stream: &TcpStream) -> bool {
    let mut bytes = [0; HELLO_BYTES_MAX];
    let Ok((count, _)) = rustix::net::recv(stream, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) else {
        return false;
    };
    let mut acceptor = Acceptor::default();
    if acceptor.read_tls(&mut &bytes[..count]).is_err() {
        return false;
    }
    let Ok(Some(accepted)) = acceptor.accept() else { return false };
    accepted.client_hello().alpn().is_some_and(|mut protocols| protocols.any(|protocol| protocol == ALPN))
}

impl Measurements {
    /// Makes the measurements of an agent. `port`: UDP port of packet trains and echoes; `None`: a free one for each
    /// measurement.
    pub(crate) fn new(port: Option<u16>) -> Self {
        Self { state: Mutex::default(), freed: Condvar::new(), port: port.unwrap_or(0) }
    }

    /// Serves a connection until it ends. `may_measure` refuses peers, and `directory` paths. Returns the number of
    /// flows, packet trains and echoes; `None`: the connection is a stream of a flow.
    ///
    /// Errors: those of the connection, and refusals, which the peer has received.
    pub(crate) fn serve(
        self: &Arc<Self>,
        stream: TcpStream,
        identity: &Identity,
        may_measure: impl FnOnce(&Fingerprint) -> Result<(), Error>,
        directory: &DirectoryOf<'_>,
    ) -> Result<Option<u32>, Error> {
        let gone =
            |e| Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, "accept a measurement").caused_by(e);
        let from = stream.peer_addr().map_err(gone)?;
        stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).map_err(gone)?;
        let mut config = (*identity.server_config()).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let connection = ServerConnection::new(Arc::new(config))
            .map_err(|e| Error::protocol("start TLS for a measurement").caused_by(e))?;
        let deadline = || Deadline::after(HANDSHAKE_TIME_MAX);
        let mut channel = Channel::open(connection, stream, deadline())?;
        let peer = peer_fingerprint(channel.connection().peer_certificates().unwrap_or_default())?;
        // The refusal of a peer follows its first message: a connection that is closed before would reset, and the peer
        // would not read why.
        let first = channel.receive(FIRST_ASK_BYTES_MAX, deadline());
        let outcome = first.and_then(|ask| may_measure(&peer).map(|()| ask)).and_then(|ask| match ask {
            Ask::Hello { occasion, .. } => {
                let party = match occasion {
                    Occasion::Examination => Party::Examiner(peer),
                    Occasion::Monitoring => Party::Monitor(peer),
                };
                let place = self.enter(party, Some(from))?;
                channel.send(&Answer::Host(Box::new(host::facts())), deadline())?;
                let control = Control { peer, directory, flow: None, packets: None, started: 0, place };
                control.run(&mut channel).map(Served::Control)
            }
            Ask::Join { token, stream } => {
                let way = self.way_of(Some(peer), &token)?;
                channel.send(&Answer::Joined, deadline()).map(|()| Served::Stream(way, stream))
            }
            _ => Err(Error::protocol("a question of a measurement before its first message")),
        });
        match outcome {
            Ok(Served::Control(flows)) => Ok(Some(flows)),
            Ok(Served::Stream(way, stream)) => {
                // If the flow has ended, the connection is dropped.
                let _ = way.send((stream, channel.into_bare()));
                Ok(None)
            }
            Err(error) => {
                // The peer may be gone.
                let _ = channel.send(&refusal(&error), deadline());
                Err(error)
            }
        }
    }

    /// Begins a measurement. An examination waits for a monitor to yield. Errors: `Busy`.
    pub(crate) fn enter(self: &Arc<Self>, party: Party, from: Option<SocketAddr>) -> Result<Place, Error> {
        let mut state = self.state.lock();
        let waits = matches!(party, Party::Examiner(_)) && state.waiting < WAITING_MAX;
        if waits {
            let until = Instant::now() + YIELD_WITHIN;
            state.waiting += 1;
            while state.running.as_ref().is_some_and(|running| running.party.yields()) {
                if self.freed.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            state.waiting -= 1;
        }
        // A monitor that comes back does not take the place of those that wait for it.
        let is_promised = party.yields() && state.waiting > 0;
        if state.running.is_some() || is_promised {
            return Err(busy(state.running.as_ref()));
        }
        state.running = Some(Running { party, from, joining: None });
        Ok(Place { of: Arc::clone(self), party })
    }

    /// Returns the way to the flow with a token. Errors: `Denied`.
    pub(super) fn way_of(&self, peer: Option<Fingerprint>, token: &str) -> Result<Sender<(u32, TcpStream)>, Error> {
        let state = self.state.lock();
        let joining = state.running.as_ref().filter(|running| running.party.key() == peer);
        let joining = joining.and_then(|running| running.joining.as_ref());
        let way = joining.filter(|(expected, _)| expected == token).map(|(_, way)| way.clone());
        way.ok_or_else(|| {
            let text = "no flow with this token waits for a stream";
            Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text)
        })
    }
}

fn busy(running: Option<&Running>) -> Error {
    let what = match running.map(|running| running.from) {
        Some(Some(other)) => format!("takes part in a measurement with {other} already"),
        Some(None) => "measures one of its paths (--monitor)".to_owned(),
        None => "is about to take part in an examination".to_owned(),
    };
    let text = format!("this agent {what}; try again in a minute");
    Error::new(ErrorKind::Busy, Scope::Service, Phase::Prepare, text).retry(Retry::After)
}

/// Connection of a client of another tool that was served.
pub(crate) enum Guest {
    /// It is a stream of the test under way.
    Stream,
    /// A test has ended, with this line for the log.
    Test(String),
    /// Another measurement is under way.
    Busy,
}

/// Place of the measurement under way, until it is dropped.
pub(crate) struct Place {
    of: Arc<Measurements>,
    party: Party,
}

impl Place {
    /// Lets streams with a token join by `way`.
    pub(super) fn announce(&self, token: String, way: Sender<(u32, TcpStream)>) {
        if let Some(running) = &mut self.of.state.lock().running {
            running.joining = Some((token, way));
        }
    }

    /// Lets no more streams join.
    pub(super) fn withdraw(&self) {
        if let Some(running) = &mut self.of.state.lock().running {
            running.joining = None;
        }
    }

    /// Returns true if a monitor holds the place and an examination waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.party.yields() && self.of.state.lock().waiting > 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.state.lock().running = None;
        self.of.freed.notify_all();
    }
}

/// Connection that was served.
enum Served {
    /// It controlled a measurement with this number of flows, packet trains and echoes.
    Control(u32),
    /// It is a stream of a flow, with its number.
    Stream(Sender<(u32, TcpStream)>, u32),
}

/// Flow of a measurement.
enum Flow {
    /// Its streams join.
    Joining(FlowSpec, Receiver<(u32, TcpStream)>),
    /// Its data moves. The clones of its streams end it early.
    Moving(JoinHandle<FlowReport>, Arc<Mutex<Vec<TcpStream>>>),
}

/// Connection that controls a measurement.
struct Control<'a> {
    peer: Fingerprint,
    directory: &'a DirectoryOf<'a>,
    flow: Option<Flow>,
    /// Packet trains and echoes, from the first on.
    packets: Option<packets::Agent>,
    /// Number of flows, packet trains and echoes that were started.
    started: u32,
    /// Last, since fields are dropped in order: the next measurement opens the UDP port that `packets` holds.
    place: Place,
}

impl Control<'_> {
    /// Answers questions until the client ends the measurement. Returns the number of flows, packet trains and echoes.
    fn run(mut self, channel: &mut ServerChannel) -> Result<u32, Error> {
        let idle = if self.place.party.yields() { MONITOR_IDLE_MAX } else { IDLE_MAX };
        loop {
            let ask = match channel.receive(ASK_BYTES_MAX, Deadline::after(idle)) {
                Ok(ask) => ask,
                // The client has ended the measurement.
                Err(error) if error.kind == ErrorKind::Unreachable => return Ok(self.started),
                Err(error) => return Err(error),
            };
            if begins_experiment(&ask) && self.place.is_wanted() {
                channel.send(&refusal(&busy(None)), Deadline::after(ANSWER_WITHIN))?;
                return Ok(self.started);
            }
            let answer = match ask {
                Ask::Flow(spec) => self.prepare(spec),
                Ask::Start => self.start(),
                Ask::Finish => self.finish(),
                Ask::Hello { .. } | Ask::Join { .. } => return Err(Error::protocol("a second first message")),
                Ask::Disk { path } => self.disk(&path),
                packets => self.packets(packets, channel.socket()),
            };
            channel.send(&answer.unwrap_or_else(|error| refusal(&error)), Deadline::after(ANSWER_WITHIN))?;
        }
    }

    fn prepare(&mut self, spec: FlowSpec) -> Result<Answer, Error> {
        if spec.streams == 0 || spec.streams > STREAMS_MAX || spec.time().is_zero() || spec.time() > TIME_MAX {
            let text = format!("a flow of {} streams for {} ms: beyond the limits", spec.streams, spec.time_ms);
            return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text));
        }
        let random = || getrandom::u64().map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e));
        let token = format!("{:016x}{:016x}", random()?, random()?);
        let (way, joined) = channel();
        self.place.announce(token.clone(), way);
        self.flow = Some(Flow::Joining(spec, joined));
        Ok(Answer::Token { token })
    }

    fn start(&mut self) -> Result<Answer, Error> {
        let Some(Flow::Joining(spec, joined)) = self.flow.take() else {
            return Err(Error::protocol("the start of a flow that is not prepared"));
        };
        let (mut streams, end) = (Vec::new(), Instant::now() + JOIN_WITHIN);
        while streams.len() < spec.streams as usize {
            let left = end.saturating_duration_since(Instant::now());
            let (number, stream) = joined.recv_timeout(left).map_err(|_| {
                let text = format!("{} of {} streams have joined the flow", streams.len(), spec.streams);
                Error::new(ErrorKind::Unreachable, Scope::Client, Phase::Prepare, text)
            })?;
            streams.push((number, stream));
        }
        self.place.withdraw();
        streams.sort_by_key(|(number, _)| *number);
        let streams: Vec<TcpStream> = streams.into_iter().map(|(_, stream)| stream).collect();
        let (role, settings) = role_of(&spec);
        for stream in &streams {
            flow::apply(settings, stream)?;
        }
        let cloned = streams.iter().map(TcpStream::try_clone).collect::<Result<Vec<_>, _>>();
        let cloned = cloned.map_err(|e| crate::internal("duplicate a socket").caused_by(e))?;
        let held = Arc::new(Mutex::new(cloned));
        let of_thread = Arc::clone(&held);
        let thread = thread::Builder::new().name("flow".to_owned()).spawn(move || {
            let report = flow::run(role, streams, &spec);
            // Closes the connections, so that the other end sees the end of the flow.
            of_thread.lock().clear();
            report
        });
        let thread = thread.map_err(|e| crate::no_thread("start the thread of a flow", e))?;
        self.flow = Some(Flow::Moving(thread, held));
        self.started = self.started.saturating_add(1);
        Ok(Answer::Started)
    }

    /// Answers a question of packet trains and echoes.
    fn packets(&mut self, ask: Ask, client: &TcpStream) -> Result<Answer, Error> {
        let packets = match &mut self.packets {
            Some(packets) => packets,
            none => none.insert(packets::Agent::open(client, self.place.of.port)?),
        };
        match ask {
            Ask::Train(spec) => packets.prepare_train(&spec),
            Ask::StartTrain => {
                self.started = self.started.saturating_add(1);
                packets.start_train()
            }
            Ask::TrainSent(sent) => packets.finish_receiving(&sent, client),
            Ask::FinishTrain => packets.finish_sending(client),
            Ask::Echo(spec) => {
                self.started = self.started.saturating_add(1);
                packets.prepare_echo(&spec)
            }
            Ask::FinishEcho => packets.finish_echo(),
            Ask::Hello { .. } | Ask::Join { .. } | Ask::Flow(_) | Ask::Start | Ask::Finish | Ask::Disk { .. } => {
                Err(crate::internal("a question of flows goes to packet trains"))
            }
        }
    }

    fn disk(&mut self, path: &str) -> Result<Answer, Error> {
        let (root, rest) = (self.directory)(&self.peer, path.as_bytes())?;
        self.started = self.started.saturating_add(1);
        root.speed(&rest, SPEED_BYTES_MAX, SPEED_TIME_MAX).map(Answer::Disk)
    }

    fn finish(&mut self) -> Result<Answer, Error> {
        match self.flow.take() {
            Some(Flow::Moving(thread, _)) => match thread.join() {
                Ok(report) => Ok(Answer::Flow(report)),
                Err(_) => Err(crate::internal("a flow has panicked")),
            },
            _ => Err(Error::protocol("the end of a flow that does not run")),
        }
    }
}

impl Drop for Control<'_> {
    fn drop(&mut self) {
        if let Some(Flow::Moving(thread, streams)) = self.flow.take() {
            flow::cut(&streams.lock());
            // It has no reader.
            let _ = thread.join();
        }
    }
}

fn begins_experiment(ask: &Ask) -> bool {
    matches!(ask, Ask::Flow(_) | Ask::Train(_) | Ask::Echo(_) | Ask::Disk { .. })
}

/// Returns the role of the agent, and the settings of its sockets.
fn role_of(spec: &FlowSpec) -> (Role, &SocketSettings) {
    match spec.direction {
        DataDirection::Out => (Role::Receives, &spec.receiver),
        DataDirection::In => (Role::Sends, &spec.sender),
    }
}

fn refusal(error: &Error) -> Answer {
    Answer::Refused { code: error.kind.code(), reason: error.chain() }
}
