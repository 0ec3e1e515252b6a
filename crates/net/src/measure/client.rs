//! The client of measurements: asks an agent for a flow, and runs its own end of it.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::ClientConnection;
use serde::{Deserialize, Serialize};
use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::again::until_begun;
use super::channel::{Channel, no_measurements};
use super::deadline::Deadline;
use super::flow::{self, Role};
use super::message::{
    Answer, Ask, EchoReport, EchoSpec, FlowReport, FlowSpec, HostFacts, Occasion, SocketSettings, TrainReport,
    TrainSpec, VERSION,
};
use super::{ALPN, STREAMS_MAX, TIME_MAX, dial, packets};
use crate::cancel::{Cancel, OnCancel};
use crate::client::spec::Trust;
use crate::disk::DiskSpeed;
use crate::identity::{self, Fingerprint, Identity, peer_fingerprint};
use crate::lane::tcp::HANDSHAKE_TIME_MAX;

/// Time beyond its end within which a flow reports. Reason: the receiver waits for late data, and the report of many
/// streams takes seconds over a slow path.
const REPORT_WITHIN: Duration = Duration::from_secs(60);

/// Maximum size of an answer in bytes. Reason: the report of a flow of 64 streams over 60 s has 77,000 samples of up to
/// 700 bytes.
const ANSWER_BYTES_MAX: u32 = 64 << 20;

/// Payload of a segment of the connection that controls measurements, in bytes. Reason: it passes where larger packets
/// vanish, which is one of the things that are measured.
const CONTROL_MSS: u32 = 1000;

/// Time in which a disk is measured. Reason: writing, reading, and syncs of a slow disk.
const DISK_WITHIN: Duration = Duration::from_secs(60);

/// Time in which a monitor connects, for TCP and for TLS each. Reason: it holds the place of its own agent meanwhile;
/// two packets may be lost over the longest round trip, 660 ms.
const MONITOR_CONNECT_WITHIN: Duration = Duration::from_secs(5);

type ClientChannel = Channel<ClientConnection, rustls::client::ClientConnectionData>;

/// Observations of both ends of a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowPair {
    /// End that sent.
    pub sender: FlowReport,
    /// End that received.
    pub receiver: FlowReport,
}

/// Measurements with one agent. Dropped, it ends them at the agent too.
pub struct Measurement {
    control: ClientChannel,
    identity: Identity,
    remote: SocketAddr,
    local: Option<IpAddr>,
    peer: Fingerprint,
    facts: HostFacts,
    /// Time of a round trip over the connection, with the turns of both hosts.
    rtt: Duration,
    /// Error that ended the connection.
    lost: Option<Error>,
}

impl Measurement {
    /// Connects to an agent. `local`: address of this host, which selects the network. An examination tries again for a
    /// second: the agent may still end the one before.
    ///
    /// Errors: `Unreachable`; `Untrusted`; `Busy`: the agent takes part in another measurement; `Protocol`: no agent,
    /// or one of a release without measurements; `Denied`, by its operator.
    pub(crate) fn connect(
        agent: &RemoteLocation,
        local: Option<IpAddr>,
        by: (&Identity, &Arc<dyn Trust>),
        occasion: Occasion,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        let begin = || Self::begin(agent, local, by, occasion, cancel);
        match occasion {
            Occasion::Examination => until_begun(begin),
            Occasion::Monitoring => begin(),
        }
    }

    fn begin(
        agent: &RemoteLocation,
        local: Option<IpAddr>,
        (identity, trust): (&Identity, &Arc<dyn Trust>),
        occasion: Occasion,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        let control = SocketSettings { mss: Some(CONTROL_MSS), ..SocketSettings::default() };
        let within = match occasion {
            Occasion::Examination => HANDSHAKE_TIME_MAX,
            Occasion::Monitoring => MONITOR_CONNECT_WITHIN,
        };
        let opened =
            |remote| open(identity, remote, local, &control, within).map(|(channel, rtt)| (channel, rtt, remote));
        let (control, rtt, remote) = dial::first_of(&agent.host_port(), local, opened)?;
        let peer = peer_fingerprint(control.connection().peer_certificates().unwrap_or_default())?;
        trust.check(agent, &peer, cancel)?;
        let facts = HostFacts::default();
        let mut bench = Self { control, identity: identity.clone(), remote, local, peer, facts, rtt, lost: None };
        bench.facts = match bench.ask(&Ask::Hello { version: VERSION, occasion }, within)? {
            Answer::Host(facts) => *facts,
            other => return Err(unexpected(&other)),
        };
        bench.facts.check()?;
        Ok(bench)
    }

    /// Ends the measurements at the cancellation: a question without an answer fails at once. A flow under way ends
    /// with its time.
    pub fn end_at(&self, cancel: &Cancel) -> OnCancel {
        let control = self.control.socket().try_clone();
        cancel.on_cancel(move || {
            if let Ok(control) = control {
                // Fails only if the connection is gone.
                let _ = control.shutdown(Shutdown::Both);
            }
        })
    }

    /// Returns the facts of the agent's host.
    pub fn far_host(&self) -> &HostFacts {
        &self.facts
    }

    /// Returns the address of the agent.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the address of this host on the connection that controls the measurements; `None` if it is lost.
    pub fn local(&self) -> Option<SocketAddr> {
        self.control.socket().local_addr().ok()
    }

    /// Returns the fingerprint of the agent's key.
    pub fn agent_key(&self) -> Fingerprint {
        self.peer
    }

    /// Returns the time in which the agent accepted the connection: a round trip, and the turns of both hosts.
    pub fn connect_time(&self) -> Duration {
        self.rtt
    }

    /// Returns true if the connection that controls the measurements is lost: every further question fails too.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Runs a flow to its end. Returns what both ends have observed.
    ///
    /// Errors: `Usage`; `Denied`: a host refuses a setting; `Unreachable`.
    pub fn flow(&mut self, spec: &FlowSpec) -> Result<FlowPair, Error> {
        if spec.streams == 0 || spec.streams > STREAMS_MAX || spec.time().is_zero() || spec.time() > TIME_MAX {
            let text = format!(
                "a flow of {} streams for {} ms: give 1 to {STREAMS_MAX}, and up to {} s",
                spec.streams,
                spec.time_ms,
                TIME_MAX.as_secs()
            );
            return Err(Error::usage(&[], text));
        }
        let token = match self.ask(&Ask::Flow(spec.clone()), HANDSHAKE_TIME_MAX)? {
            Answer::Token { token } => token,
            other => return Err(unexpected(&other)),
        };
        let (role, own) = match spec.direction {
            DataDirection::Out => (Role::Sends, &spec.sender),
            DataDirection::In => (Role::Receives, &spec.receiver),
        };
        let streams = self.join_all(&token, spec.streams, own)?;
        match self.ask(&Ask::Start, HANDSHAKE_TIME_MAX)? {
            Answer::Started => {}
            other => return Err(unexpected(&other)),
        }
        let near = flow::run(role, streams, spec);
        let far = match self.ask(&Ask::Finish, spec.time() + REPORT_WITHIN)? {
            Answer::Flow(report) => report,
            other => return Err(unexpected(&other)),
        };
        far.check(spec)?;
        Ok(match role {
            Role::Sends => FlowPair { sender: near, receiver: far },
            Role::Receives => FlowPair { sender: far, receiver: near },
        })
    }

    /// Measures the disk of a directory of the agent. `path` is that of a location.
    ///
    /// Errors: `Denied`, `NotFound`: no directory that this host may write to; `Io`.
    pub fn disk(&mut self, path: &str) -> Result<DiskSpeed, Error> {
        match self.ask(&Ask::Disk { path: path.to_owned() }, DISK_WITHIN)? {
            Answer::Disk(speed) => speed.check().map(|()| speed),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a packet train to its end. Returns what the receiver counted.
    ///
    /// Errors: `Usage`; `Unreachable`: no UDP packet arrived; `Denied`.
    pub fn train(&mut self, spec: &TrainSpec) -> Result<TrainReport, Error> {
        let report = self.with_packets(|packets| packets.train(spec))?;
        report.check(spec).map(|()| report)
    }

    /// Sends packets that the agent sends back.
    ///
    /// Errors: `Usage`; `Unreachable`: no UDP packet arrived; `Denied`.
    pub fn echo(&mut self, spec: &EchoSpec) -> Result<EchoReport, Error> {
        self.echo_of(spec, None)
    }

    /// Sends packets that the agent sends back, from given ports: `first_port` and those after it, unless others use
    /// them. Routers that spread flows by their ports then take the same ways each time, if the agent has the same port
    /// too.
    ///
    /// Errors: as [`Measurement::echo`].
    pub fn echo_from(&mut self, spec: &EchoSpec, first_port: u16) -> Result<EchoReport, Error> {
        self.echo_of(spec, Some(first_port))
    }

    fn echo_of(&mut self, spec: &EchoSpec, first_port: Option<u16>) -> Result<EchoReport, Error> {
        let report = self.with_packets(|packets| packets.echo(spec, first_port))?;
        report.check(spec).map(|()| report)
    }

    fn with_packets<T>(&mut self, run: impl FnOnce(&mut packets::Client<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let local = self.control.socket().local_addr().map_err(|e| {
            let text = "read the address of the connection of a measurement";
            Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After).caused_by(e)
        })?;
        let (remote, rtt) = (self.remote, self.rtt);
        let mut ask = |ask: &Ask, within| match self.ask(ask, within)? {
            refused @ Answer::Refused { .. } => Err(unexpected(&refused)),
            answer => Ok(answer),
        };
        run(&mut packets::Client { ask: &mut ask, local, remote, rtt })
    }

    /// Opens the streams of a flow, at the same time: one after the other they would take several round trips each.
    fn join_all(&self, token: &str, streams: u32, settings: &SocketSettings) -> Result<Vec<TcpStream>, Error> {
        let (identity, remote, local) = (&self.identity, self.remote, self.local);
        let join = |stream| join(open(identity, remote, local, settings, HANDSHAKE_TIME_MAX)?.0, token, stream);
        thread::scope(|scope| {
            let joining: Vec<_> = (0..streams).map(|stream| scope.spawn(move || join(stream))).collect();
            let joined = joining.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(crate::internal("the dial of a stream has panicked")))
            });
            joined.collect()
        })
    }

    /// Asks the agent. An error ends the measurements: the answer may come later, to another question.
    fn ask(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let deadline = Deadline::after(within);
        let sent = self.control.send(ask, deadline);
        let answer = sent.and_then(|()| self.control.receive(ANSWER_BYTES_MAX, deadline));
        self.lost = answer.as_ref().err().cloned();
        answer
    }
}

/// Makes a connection a stream of a flow.
fn join(mut channel: ClientChannel, token: &str, stream: u32) -> Result<TcpStream, Error> {
    let deadline = Deadline::after(HANDSHAKE_TIME_MAX);
    channel.send(&Ask::Join { token: token.to_owned(), stream }, deadline)?;
    match channel.receive(ANSWER_BYTES_MAX, deadline)? {
        Answer::Joined => Ok(channel.into_bare()),
        other => Err(unexpected(&other)),
    }
}

/// Opens a connection to an agent, with settings of its socket and a time for each handshake. Returns the time of the
/// TCP handshake too.
fn open(
    identity: &Identity,
    remote: SocketAddr,
    local: Option<IpAddr>,
    settings: &SocketSettings,
    within: Duration,
) -> Result<(ClientChannel, Duration), Error> {
    let (socket, rtt) = dial::connect("the agent", remote, local, settings, Deadline::after(within))?;
    let mut config = (*identity.client_config()).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let connection = ClientConnection::new(Arc::new(config), identity::server_name())
        .map_err(|e| Error::protocol("start TLS for a measurement").caused_by(e))?;
    let channel = Channel::open(connection, socket, Deadline::after(within))?;
    if channel.connection().alpn_protocol() != Some(ALPN) {
        return Err(no_measurements());
    }
    Ok((channel, rtt))
}

fn unexpected(answer: &Answer) -> Error {
    match answer {
        Answer::Refused { code, reason } => {
            let kind = ErrorKind::of_peer(*code);
            let retry = if kind == ErrorKind::Busy { Retry::After } else { Retry::Never };
            Error::new(kind, Scope::Service, Phase::Prepare, reason.clone()).retry(retry).from_peer()
        }
        _ => Error::protocol("another answer than to the question of a measurement"),
    }
}
