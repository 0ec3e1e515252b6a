//! Server of iperf3: carries out the tests of clients that nobody has authenticated, one at a time.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::control::Control;
use super::message::{Code, Params, Plan, Refusal, Results, State, StreamResult};
use super::results::{Ends, tcp_result, udp_result};
use super::udp::{self, Counts, Datagrams, Door, Times};
use super::{COOKIE_BYTES, Cookie};
use crate::measure::deadline::Deadline;
use crate::measure::flow::{self, Role};
use crate::measure::host;
use crate::measure::message::{FlowReport, FlowSpec, SocketSettings};
use crate::measure::serve::{Guest, Measurements, Party, Place};

/// Time of each message of a client, and in which its streams join. Reason: some round trips with losses. A stranger
/// holds the place no longer.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time after the end of a test in which the client must end it. Reason: the client stops the time, some round trips
/// later than this end.
const GRACE: Duration = Duration::from_secs(5);

/// Maximum size of the parameters in bytes. Source: MAX_PARAMS_JSON_STRING of iperf3.
const PARAMS_BYTES_MAX: u32 = 8 << 10;

/// Maximum size of the results in bytes. Reason: 64 streams have some 200 bytes each.
const RESULTS_BYTES_MAX: u32 = 256 << 10;

/// Server of iperf3, at the place of an agent's measurements.
pub(crate) struct Iperf3Server(pub(crate) Arc<Measurements>);

/// Streams of a test.
enum Streams {
    Tcp(Vec<TcpStream>),
    Udp(Vec<UdpSocket>, Datagrams),
}

/// Outcome of the streams of a test.
enum Moved {
    /// Streams stay open until their client has its results: it takes an earlier end as a failure.
    Tcp(FlowReport, #[expect(dead_code, reason = "they are held open")] Vec<TcpStream>),
    Udp(Vec<Counts>, Duration),
}

impl Iperf3Server {
    /// Serves a connection until it ends. `log` gets a line when a test begins.
    ///
    /// Errors: `Protocol`, `Unreachable`; `Limit`: the client asks for more than the agent gives, which it has been
    /// sent.
    pub(crate) fn serve(&self, stream: TcpStream, from: SocketAddr, log: &dyn Fn(&str)) -> Result<Guest, Error> {
        let mut control = Control::new(stream, MESSAGE_TIME_MAX)?;
        let cookie = control.receive_cookie()?;
        if let Ok(way) = self.0.way_of(None, &token(&cookie)) {
            // If the test has ended, the connection is dropped.
            let _ = way.send((0, control.into_stream()));
            return Ok(Guest::Stream);
        }
        let place = match self.0.enter(Party::Guest, Some(from)) {
            Ok(place) => place,
            Err(_) => {
                control.send_state(State::AccessDenied)?;
                return Ok(Guest::Busy);
            }
        };
        control.send_state(State::ParamExchange)?;
        let plan = match control.receive::<Params>(PARAMS_BYTES_MAX) {
            Ok(params) => params.plan().and_then(with_allowed_congestion),
            Err(error) => {
                // The client may be gone.
                let _ = control.send_error(Code::Parameters);
                return Err(error);
            }
        };
        let plan = plan.map_err(|refusal| refused(&mut control, refusal))?;
        log(&format!("an iperf3 test begins: {}", description(&plan)));
        Test { control, plan, place }.run(&cookie).map(Guest::Test)
    }
}

/// Refuses a test with a congestion control that not every user of this host may choose, as iperf3 does without
/// privileges. Reason for no test with the default: its client would measure something else than it asked for.
fn with_allowed_congestion(plan: Plan) -> Result<Plan, Refusal> {
    match &plan.congestion {
        Some(name) if !host::allows_congestion(name) => {
            let reason = format!(
                "the congestion control {name:?}, which net.ipv4.tcp_allowed_congestion_control of this host does not \
                 list"
            );
            Err(Refusal { code: Code::Congestion, reason })
        }
        _ => Ok(plan),
    }
}

/// Tells the client the reason of a refusal.
fn refused(control: &mut Control, Refusal { code, reason }: Refusal) -> Error {
    // The client may be gone.
    let _ = control.send_error(code);
    Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, reason)
}

fn token(cookie: &Cookie) -> String {
    String::from_utf8_lossy(&cookie[..COOKIE_BYTES - 1]).into_owned()
}

fn description(plan: &Plan) -> String {
    let action = match plan.role {
        Role::Sends => "sends",
        Role::Receives => "receives",
    };
    let protocol = if plan.datagrams.is_some() { "UDP" } else { "TCP" };
    let streams = if plan.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", plan.streams) };
    format!("this end {action} {streams} over {protocol} for up to {} s", plan.time.as_secs())
}

/// Test under way.
struct Test {
    control: Control,
    plan: Plan,
    place: Place,
}

impl Test {
    /// Carries out the test. Returns a line for the log.
    fn run(mut self, cookie: &Cookie) -> Result<String, Error> {
        let streams = match self.plan.datagrams.clone() {
            None => Streams::Tcp(self.join(cookie)?),
            Some(datagrams) => Streams::Udp(self.join_by_udp()?, datagrams),
        };
        self.control.send_state(State::TestStart)?;
        self.control.send_state(State::TestRunning)?;
        let (moved, ended) = match streams {
            Streams::Tcp(streams) => self.move_by_tcp(streams)?,
            Streams::Udp(sockets, datagrams) => self.move_by_udp(&sockets, &datagrams)?,
        };
        match ended {
            State::TestEnd => {}
            State::ClientTerminate => return Ok("an iperf3 test has ended: stopped by its client".to_owned()),
            _ => {
                // The client may be gone.
                let _ = self.control.send_state(State::ServerTerminate);
                return Ok("an iperf3 test has ended: its time is over, and its client did not end it".to_owned());
            }
        }
        let results = self.results(&moved);
        self.control.send_state(State::ExchangeResults)?;
        // The client has its own view of the test.
        let _: Results = self.control.receive(RESULTS_BYTES_MAX)?;
        self.control.send(&results)?;
        self.control.send_state(State::DisplayResults)?;
        // Clients that leave at once have their results.
        let _ = self.control.receive_state();
        let bytes: u64 = results.streams.iter().map(|stream| stream.bytes).sum();
        let action = if self.plan.role == Role::Sends { "sent" } else { "received" };
        Ok(format!("an iperf3 test has ended: {bytes} bytes {action} in {:.1} s", moved.time().as_secs_f64()))
    }

    /// Waits for the streams of a test over TCP.
    fn join(&mut self, cookie: &Cookie) -> Result<Vec<TcpStream>, Error> {
        let (way, joined) = channel();
        self.place.announce(token(cookie), way);
        self.control.send_state(State::CreateStreams)?;
        let until = Instant::now() + MESSAGE_TIME_MAX;
        let mut streams = Vec::new();
        while streams.len() < self.plan.streams as usize {
            let left = until.saturating_duration_since(Instant::now());
            let (_, stream) = joined.recv_timeout(left).map_err(|_| {
                let text = format!("{} of {} streams have joined the iperf3 test", streams.len(), self.plan.streams);
                Error::new(ErrorKind::Unreachable, Scope::Client, Phase::Prepare, text)
            })?;
            streams.push(stream);
        }
        self.place.withdraw();
        let settings = SocketSettings {
            congestion: self.plan.congestion.clone(),
            pacing_bps: self.plan.rate_bps,
            ..SocketSettings::default()
        };
        for stream in &streams {
            if let Err(error) = flow::apply(&settings, stream) {
                // The client may be gone.
                let _ = self.control.send_error(Code::Congestion);
                return Err(error);
            }
            if let Some(bytes) = self.plan.window {
                // Not forced: a stranger gets no more memory than the maximum of the host.
                let (socket, bytes) = (SockRef::from(stream), bytes as usize);
                let set = socket.set_recv_buffer_size(bytes).and_then(|()| socket.set_send_buffer_size(bytes));
                set.map_err(|e| crate::internal("set the buffers of a socket").caused_by(e))?;
            }
        }
        Ok(streams)
    }

    /// Waits for the streams of a test over UDP.
    fn join_by_udp(&mut self) -> Result<Vec<UdpSocket>, Error> {
        let (local, peer) = self.control.addresses()?;
        let mut door = match Door::open(local) {
            Ok(door) => door,
            Err(error) => {
                // The client may be gone.
                let _ = self.control.send_error(Code::Stream);
                return Err(error);
            }
        };
        self.control.send_state(State::CreateStreams)?;
        let until = Instant::now() + MESSAGE_TIME_MAX;
        let mut sockets = Vec::new();
        while sockets.len() < self.plan.streams as usize {
            let (socket, next) = door.welcome(peer.ip(), until)?;
            sockets.push(socket);
            door = next;
        }
        Ok(sockets)
    }

    /// Runs the streams of a test over TCP until the client ends it. Returns the state that ended it.
    fn move_by_tcp(&mut self, streams: Vec<TcpStream>) -> Result<(Moved, State), Error> {
        let limit = self.plan.time + GRACE;
        let spec = FlowSpec {
            direction: DataDirection::Out,
            streams: self.plan.streams,
            // At most some minutes.
            time_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            bytes_max: self.plan.bytes.unwrap_or(u64::MAX),
            sender: SocketSettings::default(),
            receiver: SocketSettings::default(),
        };
        let cloned: Vec<TcpStream> = streams
            .iter()
            .map(TcpStream::try_clone)
            .collect::<Result<_, _>>()
            .map_err(|e| crate::internal("duplicate a socket").caused_by(e))?;
        let role = self.plan.role;
        let flow = thread::Builder::new().name("flow".to_owned()).spawn(move || flow::run(role, streams, &spec));
        let flow = flow.map_err(|e| crate::no_thread("start the thread of a flow", e))?;
        let ended = self.control.state_before(Deadline::after(limit));
        flow::cut(&cloned);
        let report = flow.join().map_err(|_| crate::internal("a flow has panicked"))?;
        Ok((Moved::Tcp(report, cloned), ended?.unwrap_or(State::ServerTerminate)))
    }

    /// Runs the streams of a test over UDP until the client ends it. Returns the state that ended it.
    fn move_by_udp(&mut self, sockets: &[UdpSocket], datagrams: &Datagrams) -> Result<(Moved, State), Error> {
        let start = Instant::now();
        let times = Times { begin: start + self.plan.omit, end: start + self.plan.time + GRACE };
        let (is_over, role) = (AtomicBool::new(false), self.plan.role);
        let control = &mut self.control;
        let (counts, ended) = thread::scope(|scope| {
            let streams: Vec<_> = sockets
                .iter()
                .map(|socket| {
                    let is_over = &is_over;
                    scope.spawn(move || udp::run(role, socket, datagrams, times, is_over))
                })
                .collect();
            let ended = control.state_before(Deadline(times.end));
            is_over.store(true, Ordering::Relaxed);
            // A stream that the kernel has ended counts nothing.
            let counts: Vec<Counts> = streams
                .into_iter()
                .map(|stream| stream.join().map_or_else(|_| Counts::default(), Result::unwrap_or_default))
                .collect();
            (counts, ended)
        });
        Ok((Moved::Udp(counts, start.elapsed()), ended?.unwrap_or(State::ServerTerminate)))
    }

    /// Returns the results of this end.
    fn results(&self, moved: &Moved) -> Results {
        let sends = self.plan.role == Role::Sends;
        let end_time = moved.time().saturating_sub(self.plan.omit).as_secs_f64();
        let streams: Vec<StreamResult> = match moved {
            Moved::Tcp(report, _) => {
                let result = |(index, stream)| tcp_result(index, stream, self.plan.role, self.plan.omit, Ends::Server);
                report.streams.iter().enumerate().map(result).collect()
            }
            Moved::Udp(counts, _) => {
                let result = |(index, counts)| StreamResult { end_time, ..udp_result(index, counts) };
                counts.iter().enumerate().map(result).collect()
            }
        };
        let (cpu, congestion) = match moved {
            Moved::Tcp(report, _) => {
                let share = report.cpu_us as f64 / report.time_us.max(1) as f64;
                (share * 100.0, report.streams.first().map(|stream| stream.congestion.clone()))
            }
            Moved::Udp(..) => (0.0, None),
        };
        Results {
            cpu_util_total: cpu,
            // The kernel counts the time of this process as a whole, and moving data is work of the system.
            cpu_util_user: 0.0,
            cpu_util_system: cpu,
            sender_has_retransmits: if sends { i64::from(congestion.is_some()) } else { -1 },
            congestion_used: congestion,
            server_output_text: self.plan.wants_output.then(|| output(&self.plan, &streams)),
            streams,
        }
    }
}

impl Moved {
    fn time(&self) -> Duration {
        match self {
            Self::Tcp(report, _) => Duration::from_micros(report.time_us),
            Self::Udp(_, time) => *time,
        }
    }
}

/// Returns the report of the server as text, for `--get-server-output`.
fn output(plan: &Plan, streams: &[StreamResult]) -> String {
    let mut lines = vec![format!("sterna {}: {}", env!("CARGO_PKG_VERSION"), description(plan))];
    for stream in streams {
        let rate = stream.bytes as f64 * 8.0 / stream.end_time.max(f64::MIN_POSITIVE) / 1e6;
        lines.push(format!("[{:3}] {} bytes in {:.2} s, {rate:.0} Mbit/s", stream.id, stream.bytes, stream.end_time));
    }
    lines.push(String::new());
    lines.join("\n")
}
