//! Client of iperf3: runs one test with a server, in one direction.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::control::Control;
use super::message::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, Params, Results, State, StreamResult, words};
use super::results::{Ends, tcp_result, udp_result};
use super::udp::{self, Counts, DatagramReport, Datagrams, Times};
use super::{COOKIE_BYTES, Cookie, failed};
use crate::measure::again::until_begun;
use crate::measure::deadline::Deadline;
use crate::measure::dial;
use crate::measure::flow::{self, Role};
use crate::measure::message::{FlowReport, FlowSpec, SocketSettings};
use crate::measure::{STREAMS_MAX, TIME_MAX};

/// Time of the connect and of each message of a server. Reason: some round trips with losses; a server that sends data
/// answers behind its queue.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum size of results in bytes. Reason: 64 streams and the text of the server.
const RESULTS_BYTES_MAX: u32 = 1 << 20;

/// Characters of a cookie. Source: make_cookie of iperf3.
const COOKIE_CHARACTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Test with a server, in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iperf3Test {
    /// Direction of the data, as the client sees it.
    pub direction: DataDirection,
    /// Number of streams, from 1 to [`STREAMS_MAX`].
    pub streams: u32,
    /// Time of the test, in whole seconds, up to [`TIME_MAX`].
    pub time: Duration,
    /// Transport of the data.
    pub transport: Iperf3Transport,
}

/// Transport of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Iperf3Transport {
    /// TCP.
    Tcp {
        /// Settings of the sockets at this end. The server gets the rate and the congestion control too.
        sockets: SocketSettings,
    },
    /// UDP.
    Udp {
        /// Rate of each stream without headers, bit/s.
        rate_bps: u64,
        /// Size of a datagram without headers, bytes.
        datagram_bytes: u64,
    },
}

/// Outcome of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iperf3Outcome {
    /// Address of the server.
    pub server: Option<SocketAddr>,
    /// Observations of this end; without streams if the test was over UDP.
    pub near: FlowReport,
    /// Datagrams of a test over UDP.
    pub datagrams: Option<DatagramReport>,
    /// Bytes that the sender has sent, by its own count.
    pub sent_bytes: u64,
    /// Bytes that the receiver has received, by its own count.
    pub received_bytes: u64,
    /// Time of the receiver.
    pub time: Duration,
    /// Segments that the sender has sent again; `None`: it does not count them.
    pub resent: Option<u64>,
    /// Congestion control of the server's sockets, if it sends it.
    pub server_congestion: Option<String>,
    /// Processor time of the server, as percentage of one processor.
    pub server_cpu_percent: f64,
}

/// Runs a test. `local`: address of this host, which selects the network.
///
/// Errors: `Usage`; `Busy`: the server runs another test; `Denied`: it refuses this one; `Unreachable`; `Protocol`.
pub fn run(server: &HostPort, local: Option<IpAddr>, test: &Iperf3Test) -> Result<Iperf3Outcome, Error> {
    check(test)?;
    let begun = until_begun(|| Session::open(server, local, test));
    let mut session = begun.map_err(|error| error.named(server.clone()))?;
    session.run().map_err(|error| error.named(server.clone()))
}

fn check(test: &Iperf3Test) -> Result<(), Error> {
    let seconds = test.time.as_secs();
    if test.streams == 0 || test.streams > STREAMS_MAX || seconds == 0 || test.time > TIME_MAX {
        let text = format!(
            "an iperf3 test of {} streams for {seconds} s: give 1 to {STREAMS_MAX}, and 1 to {} s",
            test.streams,
            TIME_MAX.as_secs()
        );
        return Err(Error::usage(&[], text));
    }
    match &test.transport {
        Iperf3Transport::Udp { datagram_bytes: bytes, .. }
            if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(bytes) =>
        {
            let text = format!("datagrams of {bytes} bytes: give {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}");
            Err(Error::usage(&[], text))
        }
        _ => Ok(()),
    }
}

fn cookie() -> Result<Cookie, Error> {
    let mut cookie = [0; COOKIE_BYTES];
    // The last byte is the zero.
    getrandom::fill(&mut cookie[..COOKIE_BYTES - 1])
        .map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    cookie[..COOKIE_BYTES - 1].iter_mut().for_each(|byte| *byte = COOKIE_CHARACTERS[usize::from(*byte) % 32]);
    Ok(cookie)
}

fn connect(remote: SocketAddr, local: Option<IpAddr>, settings: &SocketSettings) -> Result<TcpStream, Error> {
    let deadline = Deadline::after(MESSAGE_TIME_MAX);
    dial::connect("the iperf3 server", remote, local, settings, deadline).map(|(stream, _)| stream)
}

/// Test under way.
struct Session<'a> {
    control: Control,
    remote: SocketAddr,
    local: Option<IpAddr>,
    cookie: Cookie,
    test: &'a Iperf3Test,
}

impl<'a> Session<'a> {
    /// Connects to a server that has a place for the test.
    fn open(server: &HostPort, local: Option<IpAddr>, test: &'a Iperf3Test) -> Result<Self, Error> {
        let cookie = cookie()?;
        let connected = |remote| connect(remote, local, &SocketSettings::default()).map(|stream| (stream, remote));
        let (stream, remote) = dial::first_of(server, local, connected)?;
        let mut session = Self { control: Control::new(stream, MESSAGE_TIME_MAX)?, remote, local, cookie, test };
        session.control.send_cookie(&session.cookie)?;
        session.wait_for(State::ParamExchange)?;
        Ok(session)
    }

    fn run(&mut self) -> Result<Iperf3Outcome, Error> {
        self.control.send(&self.params())?;
        self.wait_for(State::CreateStreams)?;
        let mut outcome = match &self.test.transport {
            Iperf3Transport::Tcp { sockets } => {
                let streams = (0..self.test.streams).map(|_| self.join(sockets)).collect::<Result<Vec<_>, _>>()?;
                self.begin()?;
                self.move_by_tcp(&streams)?
            }
            Iperf3Transport::Udp { rate_bps, datagram_bytes } => {
                // Checked to be small.
                let bytes = usize::try_from(*datagram_bytes).unwrap_or(usize::MAX);
                let datagrams = Datagrams::new(bytes, *rate_bps, self.test.streams.into(), true);
                let until = Instant::now() + MESSAGE_TIME_MAX;
                let open = |_| udp::open(self.remote, self.local, until);
                let sockets = (0..self.test.streams).map(open).collect::<Result<Vec<_>, _>>()?;
                self.begin()?;
                self.move_by_udp(&sockets, &datagrams)?
            }
        };
        self.wait_for(State::DisplayResults)?;
        // The server has nothing left to do for this test.
        let _ = self.control.send_state(State::Done);
        outcome.server = Some(self.remote);
        Ok(outcome)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.wait_for(State::TestStart)?;
        self.wait_for(State::TestRunning)
    }

    fn params(&self) -> Params {
        let params = Params {
            time: self.test.time.as_secs(),
            parallel: u64::from(self.test.streams),
            reverse: self.role() == Role::Receives,
            client_version: Some(format!("sterna {}", env!("CARGO_PKG_VERSION"))),
            ..Params::default()
        };
        match &self.test.transport {
            Iperf3Transport::Tcp { sockets } => Params {
                tcp: true,
                // The default of iperf3.
                len: 128 << 10,
                bandwidth: sockets.pacing_bps.unwrap_or(0),
                congestion: sockets.congestion.clone(),
                ..params
            },
            Iperf3Transport::Udp { rate_bps, datagram_bytes } => {
                Params { udp: true, len: *datagram_bytes, bandwidth: *rate_bps, udp_counters_64bit: true, ..params }
            }
        }
    }

    fn role(&self) -> Role {
        match self.test.direction {
            DataDirection::Out => Role::Sends,
            DataDirection::In => Role::Receives,
        }
    }

    /// Waits for a state. Errors: the server sends another one, or ends the test.
    fn wait_for(&mut self, expected: State) -> Result<(), Error> {
        let state = self.control.receive_state()?;
        self.match_state(state, expected)
    }

    fn match_state(&mut self, state: State, expected: State) -> Result<(), Error> {
        let refused = |kind, text: String, retry| {
            Err(Error::new(kind, Scope::Service, Phase::Prepare, text).retry(retry).from_peer())
        };
        match state {
            state if state == expected => Ok(()),
            State::AccessDenied => {
                let text = "the iperf3 server runs another test; try again in a minute".to_owned();
                refused(ErrorKind::Busy, text, Retry::After)
            }
            State::ServerError => {
                let (number, system) = self.control.receive_error()?;
                let text = match i32::try_from(system) {
                    Ok(code) if code != 0 => {
                        format!("{} ({})", words(number), io::Error::from_raw_os_error(code))
                    }
                    _ => words(number),
                };
                refused(ErrorKind::Denied, format!("the iperf3 server refuses the test: {text}"), Retry::Never)
            }
            State::ServerTerminate => {
                refused(ErrorKind::Cancelled, "the iperf3 server has stopped the test".to_owned(), Retry::After)
            }
            other => Err(Error::protocol(format!("the iperf3 server sends {other:?}, and not {expected:?}"))),
        }
    }

    /// Opens a stream over TCP.
    fn join(&self, settings: &SocketSettings) -> Result<TcpStream, Error> {
        let stream = connect(self.remote, self.local, settings)?;
        io::Write::write_all(&mut &stream, &self.cookie).map_err(|e| failed("join the iperf3 test", e))?;
        Ok(stream)
    }

    /// Moves data over TCP, and exchanges the results. The streams stay open until the server has ended the test: it
    /// takes an earlier end as a failure.
    fn move_by_tcp(&mut self, streams: &[TcpStream]) -> Result<Iperf3Outcome, Error> {
        let (role, time) = (self.role(), self.test.time);
        let spec = FlowSpec {
            direction: self.test.direction,
            streams: self.test.streams,
            // At most TIME_MAX.
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            bytes_max: u64::MAX,
            sender: SocketSettings::default(),
            receiver: SocketSettings::default(),
        };
        let cloned: Vec<TcpStream> = streams
            .iter()
            .map(TcpStream::try_clone)
            .collect::<Result<_, _>>()
            .map_err(|e| crate::internal("duplicate a socket").caused_by(e))?;
        let until = Instant::now() + time;
        let near = thread::scope(|scope| {
            let flow = scope.spawn(move || flow::run(role, cloned, &spec));
            let ended = self.end(until);
            if ended.is_err() {
                flow::cut(streams);
            }
            let report = flow.join().map_err(|_| crate::internal("a flow has panicked"))?;
            ended.map(|()| report)
        })?;
        let result = |(index, stream)| tcp_result(index, stream, role, Duration::ZERO, Ends::Client);
        let results = near.streams.iter().enumerate().map(result).collect();
        let cpu = near.cpu_us as f64 / near.time_us.max(1) as f64 * 100.0;
        let congestion = near.streams.first().map(|stream| stream.congestion.clone());
        let (ours, theirs) = self.exchange(results, cpu, congestion)?;
        Ok(Iperf3Outcome { near, ..outcome(role, &ours, &theirs) })
    }

    /// Moves datagrams, and exchanges the results.
    fn move_by_udp(&mut self, sockets: &[UdpSocket], datagrams: &Datagrams) -> Result<Iperf3Outcome, Error> {
        let (role, time, start) = (self.role(), self.test.time, Instant::now());
        let is_over = AtomicBool::new(false);
        let times = Times { begin: start, end: start + time };
        let counts = thread::scope(|scope| {
            let streams: Vec<_> = sockets
                .iter()
                .map(|socket| {
                    let is_over = &is_over;
                    scope.spawn(move || udp::run(role, socket, datagrams, times, is_over))
                })
                .collect();
            let ended = self.end(start + time);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let moved = |stream: thread::ScopedJoinHandle<'_, io::Result<Counts>>| {
                let counts = stream.join().map_err(|_| crate::internal("a stream has panicked"))?;
                counts.map_err(|e| failed("move datagrams of an iperf3 test", e))
            };
            let counts = streams.into_iter().map(moved).collect::<Result<Vec<Counts>, Error>>();
            ended.and(counts)
        })?;
        let end_time = start.elapsed().min(time).as_secs_f64();
        let result = |(index, counts)| StreamResult { end_time, ..udp_result(index, counts) };
        let (ours, theirs) = self.exchange(counts.iter().enumerate().map(result).collect(), 0.0, None)?;
        let at_receiver = if role == Role::Sends { &theirs } else { &ours };
        let mut outcome = outcome(role, &ours, &theirs);
        let out_of_order = counts.iter().map(|counts| counts.out_of_order).sum();
        outcome.datagrams = Some(datagrams_of(at_receiver, (role == Role::Receives).then_some(out_of_order)));
        outcome.time = start.elapsed().min(time);
        Ok(outcome)
    }

    /// Waits for the end of the time, and ends the test. Errors: the server ends it before.
    fn end(&mut self, until: Instant) -> Result<(), Error> {
        if let Some(state) = self.control.state_before(Deadline(until))? {
            return self
                .match_state(state, State::TestEnd)
                .and_then(|()| Err(Error::protocol("the iperf3 server ends the test, which is up to its client")));
        }
        self.control.send_state(State::TestEnd)?;
        self.wait_for(State::ExchangeResults)
    }

    /// Sends the results of this end. Returns those of both ends.
    fn exchange(
        &mut self,
        streams: Vec<StreamResult>,
        cpu: f64,
        congestion: Option<String>,
    ) -> Result<(Results, Results), Error> {
        let sends = self.role() == Role::Sends;
        let ours = Results {
            cpu_util_total: cpu,
            cpu_util_user: 0.0,
            cpu_util_system: cpu,
            sender_has_retransmits: if sends { i64::from(congestion.is_some()) } else { -1 },
            congestion_used: congestion,
            server_output_text: None,
            streams,
        };
        self.control.send(&ours)?;
        let theirs = self.control.receive(RESULTS_BYTES_MAX)?;
        Ok((ours, theirs))
    }
}

/// Returns the outcome by the results of both ends.
pub(super) fn outcome(role: Role, ours: &Results, theirs: &Results) -> Iperf3Outcome {
    let (sender, receiver) = if role == Role::Sends { (ours, theirs) } else { (theirs, ours) };
    let bytes = |of: &Results| of.streams.iter().fold(0_u64, |sum, stream| sum.saturating_add(stream.bytes));
    // A negative number: not counted.
    let resent = sender.streams.iter().map(|stream| u64::try_from(stream.retransmits).ok()).sum::<Option<u64>>();
    let seconds = receiver.streams.iter().map(|stream| stream.end_time - stream.start_time).fold(0.0, f64::max);
    Iperf3Outcome {
        sent_bytes: bytes(sender),
        received_bytes: bytes(receiver),
        time: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        resent: resent.filter(|_| sender.sender_has_retransmits > 0),
        server_congestion: theirs.congestion_used.clone(),
        server_cpu_percent: theirs.cpu_util_total,
        ..Iperf3Outcome::default()
    }
}

/// Sums the datagrams of the streams, by the results of the receiver.
pub(super) fn datagrams_of(receiver: &Results, out_of_order: Option<u64>) -> DatagramReport {
    let sum = |of: fn(&StreamResult) -> i64| {
        // A sum of hostile numbers saturates.
        receiver.streams.iter().map(of).fold(0_u64, |sum, count| sum.saturating_add(u64::try_from(count).unwrap_or(0)))
    };
    let jitter: f64 = receiver.streams.iter().map(|stream| stream.jitter).sum();
    DatagramReport {
        packets: sum(|stream| stream.packets),
        lost: sum(|stream| stream.errors),
        out_of_order,
        // Saturates.
        jitter_us: (jitter / receiver.streams.len().max(1) as f64 * 1e6) as u64,
    }
}
