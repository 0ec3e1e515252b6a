//! A place for one test: directories, agents and copies that end with it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// When a test gives up on an event. Reason: far beyond what the slowest machine takes; no promise is made of it.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The program under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_sterna");

/// The program under test with at most `count` files and sockets open.
pub fn with_descriptors(count: u32) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -n {count} && exec \"$0\" \"$@\"")).arg(BINARY);
    command
}

/// The program under test, held to the modes of files: the superuser may otherwise read and write what he likes.
pub fn held_to_modes() -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(BINARY);
    }
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(BINARY);
    command
}

/// Directories of one test: `root` is what agents serve, `local` is the client's.
pub struct Site {
    directory: TempDir,
}

impl Site {
    pub fn new() -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap() };
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

    /// An agent that serves `root` to everybody.
    pub fn agent(&self) -> Agent {
        self.agent_at("127.0.0.1:0")
    }

    /// The same at an address of the caller's.
    pub fn agent_at(&self, listen: &str) -> Agent {
        let root = self.root();
        self.agent_with(listen, &["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()])
    }

    /// An agent with these flags.
    pub fn agent_with(&self, listen: &str, flags: &[&OsStr]) -> Agent {
        self.agent_by(Command::new(BINARY), listen, flags)
    }

    /// The same by `command`, which starts the binary somewhere else.
    pub fn agent_by(&self, mut command: Command, listen: &str, flags: &[&OsStr]) -> Agent {
        let log = self.path("agent.log");
        command.args(["agent", "--listen", listen, "--state"]).arg(self.path("agent-state")).args(flags);
        Agent::start(command, log)
    }

    /// A copy by the client, with `--json` and the agent's key trusted.
    pub fn copy(&self, agent: &Agent) -> CopyCommand {
        let mut copy = self.bare_copy();
        copy.arg("--trust").arg(&agent.fingerprint);
        copy.log = Some(agent.log.clone());
        copy
    }

    /// A copy that trusts nobody yet.
    pub fn bare_copy(&self) -> CopyCommand {
        self.copy_by(Command::new(BINARY))
    }

    /// The same by `command`, which starts the binary somewhere else.
    pub fn copy_by(&self, mut command: Command) -> CopyCommand {
        command.args(["copy", "--json", "--state"]).arg(self.path("client-state"));
        command.current_dir(self.local());
        CopyCommand { command, log: None }
    }
}

/// A running agent; killed when dropped.
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

    /// The location of `path` at this agent.
    pub fn url(&self, path: &str) -> String {
        format!("sterna://{}/{path}", self.addr)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and the end.
    pub fn terminate(&mut self) -> ExitStatus {
        send(&self.child, Signal::TERM);
        self.child.wait().unwrap()
    }

    /// SIGSTOP: its kernel goes on to answer for it.
    pub fn freeze(&self) {
        send(&self.child, Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        send(&self.child, Signal::CONT);
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Largest resident memory so far, in bytes.
    pub fn memory_peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Waits until its log has a line with `words`.
    pub fn wait_for_log(&self, words: &str) {
        let what = format!("{words:?} in the log of the agent");
        wait_until(&what, || fs::read_to_string(&self.log).unwrap().contains(words));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A copy that is about to be started.
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

    /// Runs it to its end.
    pub fn run(&mut self) -> Outcome {
        self.start().finish()
    }

    /// Runs it to its end, which has to be a good one.
    pub fn succeed(&mut self) -> Outcome {
        self.run().expect(0)
    }
}

/// A running copy; killed when dropped.
pub struct Copying {
    child: Child,
    received: Receiver<Value>,
    events: Vec<Value>,
    said: Option<std::thread::JoinHandle<String>>,
    log: Option<PathBuf>,
}

impl Copying {
    /// Waits for an event that `wanted` takes.
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

    /// The events that have come by now.
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

    /// SIGSTOP: its kernel goes on to answer for it.
    pub fn freeze(&self) {
        send(&self.child, Signal::STOP);
    }

    pub fn interrupt(&mut self) {
        send(&self.child, Signal::INT);
    }

    /// Waits for its end.
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
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a copy ended; `code` is `None` when a signal ended it.
pub struct Outcome {
    pub code: Option<i32>,
    pub events: Vec<Value>,
    pub stderr: String,
    log: Option<PathBuf>,
}

impl Outcome {
    /// Itself, if it ended with `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert!(self.code == Some(code), "exit code {:?} where {code} was due\n{}", self.code, self.describe());
        self
    }

    /// The last event of this kind.
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

    /// Everything that was said, for a search.
    pub fn text(&self) -> String {
        let events: Vec<String> = self.events.iter().map(Value::to_string).collect();
        format!("{}\n{}", self.stderr, events.join("\n"))
    }

    /// Fails unless `words` were said.
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

/// The last events, but for progress of which only the last counts.
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

/// What every thread of the test and of the programs under test is about: process, name, state, the kernel's function that it waits in, and
/// the processor time it has had in ticks. It tells what stands still from what has too little of the machine.
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

/// Waits for something that has no event to wait for, such as a file that a killed process leaves.
#[track_caller]
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let (never, bell) = (Mutex::new(()), Condvar::new());
    let until = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < until, "{what} did not happen");
        drop(bell.wait_timeout(never.lock().unwrap(), Duration::from_millis(2)).unwrap());
    }
}
