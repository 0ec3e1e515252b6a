//! Environment of one test: directories, agents and copies. All end with the test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for an event. Reason: far longer than the slowest machine needs; the value is not a promise.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Lowest port of servers, and the number of ports. Linux gives connections ports from 32,768 on.
const PORT_MIN: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Program under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_sterna");

/// Returns the program under test, limited to `count` open files and sockets.
pub fn with_descriptors(count: u32) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -n {count} && exec \"$0\" \"$@\"")).arg(BINARY);
    command
}

/// Returns the program under test, restricted by file modes: the superuser can otherwise read and write any file.
pub fn held_to_modes() -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(BINARY);
    }
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(BINARY);
    command
}

/// Returns a free port of `host`. It is none of those that the system gives to connections: a server that is started
/// again needs its port, and a connection of another test would take it in between.
pub fn free_port(host: &str) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Another test process begins elsewhere.
    let first = (std::process::id().wrapping_mul(61) % u32::from(PORTS)) as u16;
    loop {
        let port = PORT_MIN + (first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS;
        if TcpListener::bind((host, port)).is_ok() && UdpSocket::bind((host, port)).is_ok() {
            return port;
        }
    }
}

/// Directories of one test: `root` is served by agents, `local` belongs to the client.
pub struct Site {
    directory: TempDir,
    /// Address that agents of the site listen on.
    host: &'static str,
}

impl Site {
    pub fn new() -> Self {
        Self::on("127.0.0.1")
    }

    /// Creates a site whose agents listen on `host`. Sites with one client need different addresses: a port that is
    /// free again may go to the next agent, and the client remembers the key of the first one under that address.
    pub fn on(host: &'static str) -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap(), host };
        fs::create_dir(site.root()).unwrap();
        fs::create_dir(site.local()).unwrap();
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub fn local(&self) -> PathBuf {
        self.path("local")
    }

    /// Returns an address to listen on.
    pub fn any_port(&self) -> String {
        format!("{}:{}", self.host, free_port(self.host))
    }

    /// Starts an agent that serves `root` to all peers.
    pub fn agent(&self) -> Agent {
        self.agent_at(&self.any_port())
    }

    /// Starts an agent that serves `root` to all peers, at the address `listen`.
    pub fn agent_at(&self, listen: &str) -> Agent {
        let root = self.root();
        self.agent_with(listen, &["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()])
    }

    /// Starts an agent with `flags`.
    pub fn agent_with(&self, listen: &str, flags: &[&OsStr]) -> Agent {
        self.agent_by(Command::new(BINARY), listen, flags)
    }

    /// Uses `command`, which starts the binary elsewhere, with these arguments added.
    pub fn agent_by(&self, mut command: Command, listen: &str, flags: &[&OsStr]) -> Agent {
        let log = self.path("agent.log");
        command.args(["agent", "--listen", listen, "--state"]).arg(self.path("agent-state")).args(flags);
        Agent::start(command, log)
    }

    /// Returns a copy by the client, with `--json`, that trusts the key of the agent.
    pub fn copy(&self, agent: &Agent) -> CopyCommand {
        let mut copy = self.bare_copy();
        copy.arg("--trust").arg(&agent.fingerprint);
        copy.log = Some(agent.log.clone());
        copy
    }

    /// Returns a copy that trusts no agent yet.
    pub fn bare_copy(&self) -> CopyCommand {
        self.copy_by(Command::new(BINARY))
    }

    /// Uses `command`, which starts the binary elsewhere, with these arguments added.
    pub fn copy_by(&self, mut command: Command) -> CopyCommand {
        command.args(["copy", "--json", "--state"]).arg(self.path("client-state"));
        command.current_dir(self.local());
        CopyCommand { command, log: None }
    }
}

/// Running agent; killed when dropped.
pub struct Agent {
    child: Child,
    pub addr: SocketAddr,
    pub fingerprint: String,
    pub log: PathBuf,
}

impl Agent {
    fn start(mut command: Command, log: PathBuf) -> Self {
        let stderr = File::options().create(true).append(true).open(&log).unwrap();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().expect("start an agent");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["listening", url, "fingerprint", fingerprint] = words[..] else {
            panic!("the agent said {line:?}; its log:\n{}", fs::read_to_string(&log).unwrap_or_default());
        };
        let addr = url.strip_prefix("sterna://").unwrap().parse().unwrap();
        Self { child, addr, fingerprint: fingerprint.to_owned(), log }
    }

    /// Returns the location of `path` at this agent.
    pub fn url(&self, path: &str) -> String {
        format!("sterna://{}/{path}", self.addr)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        send(&self.child, Signal::TERM);
        self.child.wait().unwrap()
    }

    /// Sends SIGSTOP. The kernel still answers for the sockets of the process.
    pub fn freeze(&self) {
        send(&self.child, Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        send(&self.child, Signal::CONT);
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the largest resident memory until now, in bytes.
    pub fn memory_peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Waits until the log has `words`.
    pub fn wait_for_log(&self, words: &str) {
        let what = format!("{words:?} in the log of the agent");
        wait_until(&what, || fs::read_to_string(&self.log).unwrap().contains(words));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Copy that is not started yet.
pub struct CopyCommand {
    command: Command,
    log: Option<PathBuf>,
}

impl CopyCommand {
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.command.args(args);
        self
    }

    pub fn start(&mut self) -> Copying {
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start a copy");
        let (events, received) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let line = line.expect("--json prints text");
                let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
                if events.send(event).is_err() {
                    return;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        Copying { child, received, events: Vec::new(), said: Some(said), log: self.log.clone() }
    }

    /// Runs the copy to the end.
    pub fn run(&mut self) -> Outcome {
        self.start().finish()
    }

    /// Runs the copy to the end; fails unless the exit code is 0.
    pub fn succeed(&mut self) -> Outcome {
        self.run().expect(0)
    }
}

/// Running copy; killed when dropped.
pub struct Copying {
    child: Child,
    received: Receiver<Value>,
    events: Vec<Value>,
    said: Option<std::thread::JoinHandle<String>>,
    log: Option<PathBuf>,
}

impl Copying {
    /// Waits for an event that `wanted` accepts.
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(event) = self.events.iter().find(|event| wanted(event)) {
            return event.clone();
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match self.received.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => {
                    self.events.push(event.clone());
                    if wanted(&event) {
                        return event;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => panic!("the copy ended before {what}: {:#?}", self.events),
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in time: {:#?}", self.events),
            }
        }
    }

    /// Returns the events received until now.
    pub fn events_so_far(&mut self) -> &[Value] {
        self.events.extend(self.received.try_iter());
        &self.events
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends SIGSTOP. The kernel still answers for the sockets of the process.
    pub fn freeze(&self) {
        send(&self.child, Signal::STOP);
    }

    pub fn interrupt(&mut self) {
        send(&self.child, Signal::INT);
    }

    /// Waits for the end of the copy.
    pub fn finish(mut self) -> Outcome {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.received.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the copy does not end: {}\nthreads:\n{}", self.describe(), threads());
                }
            }
        }
        let code = self.child.wait().unwrap().code();
        let stderr = self.said.take().unwrap().join().unwrap();
        let events = std::mem::take(&mut self.events);
        Outcome { code, events, stderr, log: self.log.clone() }
    }

    fn describe(&self) -> String {
        format!("{}\nlog of the agent:\n{}", shown(&self.events), agent_log(self.log.as_deref()))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        // The process may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Result of a copy; `code` is `None` if a signal ended the process.
pub struct Outcome {
    pub code: Option<i32>,
    pub events: Vec<Value>,
    pub stderr: String,
    log: Option<PathBuf>,
}

impl Outcome {
    /// Returns the outcome if the exit code is `code`; fails otherwise.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert!(self.code == Some(code), "exit code {:?} where {code} was due\n{}", self.code, self.describe());
        self
    }

    /// Returns the last event of this kind.
    #[track_caller]
    pub fn last(&self, kind: &str) -> &Value {
        let found = self.events.iter().rev().find(|event| event["event"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} event\n{}", self.describe()))
    }

    #[track_caller]
    pub fn summary(&self) -> &Value {
        self.last("summary")
    }

    pub fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event["event"] == kind).count()
    }

    /// Returns stderr and all events, for a search.
    pub fn text(&self) -> String {
        let events: Vec<String> = self.events.iter().map(Value::to_string).collect();
        format!("{}\n{}", self.stderr, events.join("\n"))
    }

    /// Fails unless stderr or the events contain `words`.
    #[track_caller]
    pub fn says(&self, words: &str) -> &Self {
        assert!(self.text().contains(words), "nothing about {words:?}\n{}", self.describe());
        self
    }

    pub fn describe(&self) -> String {
        let (events, log) = (shown(&self.events), agent_log(self.log.as_deref()));
        format!("stderr:\n{}\nevents:\n{events}\nlog of the agent:\n{log}", self.stderr)
    }
}

/// Returns the last 40 events. Progress events are left out, except as the very last event.
fn shown(events: &[Value]) -> String {
    let last = events.len().saturating_sub(1);
    let told = events.iter().enumerate().filter(|(index, event)| *index == last || event["event"] != "progress");
    let lines: Vec<String> = told.map(|(_, event)| event.to_string()).collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

fn agent_log(path: Option<&Path>) -> String {
    let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(600)..].join("\n")
}

/// Returns the threads of the test and of the programs under test. Fields: process, name, state, wait channel in the
/// kernel, CPU time in ticks. Distinguishes a blocked thread from one that lacks CPU time.
fn threads() -> String {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let listed = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut lines = vec![read("/proc/stat".into()).lines().next().unwrap_or_default().to_owned()];
    for process in listed("/proc".as_ref()) {
        let is_ours = process.ends_with(std::process::id().to_string());
        if is_ours || read(process.join("comm")).trim_end() == "sterna" {
            for thread in listed(&process.join("task")) {
                let (stat, wchan) = (read(thread.join("stat")), read(thread.join("wchan")));
                let (name, rest) = stat.rsplit_once(')').unwrap_or_default();
                let fields: Vec<&str> = rest.split_whitespace().collect();
                if let [state, .., user, system] = fields[..fields.len().min(13)] {
                    lines.push(format!("{} {name}) {state} {wchan} {user}+{system}", process.display()));
                }
            }
        }
    }
    lines.join("\n")
}

fn send(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for a condition that has no event, such as a file left by a killed process.
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let (never, bell) = (Mutex::new(()), Condvar::new());
    let until = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < until, "{what} did not happen");
        drop(bell.wait_timeout(never.lock().unwrap(), Duration::from_millis(2)).unwrap());
    }
}
