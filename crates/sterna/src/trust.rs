//! Keys of agents: the recorded ones, those given with `--trust`, and the question to the user about a new one.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sterna_net::engine::{Cancel, Trust};
use sterna_net::identity::{Fingerprint, KnownHost, KnownHosts};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Trust in agents that the user decides.
pub struct AskedTrust {
    known: KnownHosts,
    given: Vec<Fingerprint>,
    /// True if the command has several agents: `given` then does not show which agent a key belongs to.
    has_several_agents: bool,
    /// True if nobody answers a question, even if there is a terminal.
    is_silent: bool,
    /// Held while a question is open, so that there is one question at a time.
    asking: Mutex<()>,
}

impl AskedTrust {
    /// Returns the trust with the recorded keys of a state directory, and those given with `--trust`.
    pub fn new(state: &Path, given: Vec<Fingerprint>, has_several_agents: bool) -> Self {
        Self { known: KnownHosts::new(state), given, has_several_agents, is_silent: false, asking: Mutex::new(()) }
    }

    /// Returns the trust of a program without a user: an unknown key is an error.
    pub fn without_questions(state: &Path, given: Vec<Fingerprint>) -> Self {
        Self { is_silent: true, ..Self::new(state, given, true) }
    }
}

/// Place where the operator finds the fingerprint of an agent, as text for messages. `sterna id` without `--state` is
/// not enough: if the agent has its own `--state`, that command creates another identity and prints its fingerprint.
const SHOWN_AT_AGENT: &str = "the line that the agent printed at its start (listening … fingerprint SHA256:…), or the \
                              output of `sterna id --state DIR` at its host, where DIR is the --state of the agent";

impl Trust for AskedTrust {
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, cancel: &Cancel) -> Result<(), Error> {
        let name = KnownHosts::name_of(remote);
        let _one = self.asking.lock();
        match self.given.first() {
            Some(_) if self.given.contains(peer) => return self.known.add(&name, peer),
            Some(expected) if !self.has_several_agents => {
                return Err(untrusted(format!(
                    "{name} has the key {peer}, not {expected} as given with --trust: not connected"
                )));
            }
            _ => {}
        }
        match self.known.lookup(&name, peer)? {
            KnownHost::Match => Ok(()),
            KnownHost::Changed { expected } => Err(untrusted(format!(
                "the key of {name} has changed from {expected} to {peer}: somebody may be in between, or the agent was set up \
                 anew. Remove its line from {} only if you know that it was set up anew, and try again; the new key must be in \
                 {SHOWN_AT_AGENT}",
                self.known.path().display()
            ))),
            KnownHost::Unknown => self.ask(&name, peer, cancel),
        }
    }

    fn expected_keys(&self, remote: &RemoteLocation, beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        let name = KnownHosts::name_of(remote);
        let known = self.known.keys(&name)?;
        let mut others = self.given.iter().filter(|key| *key != beside);
        match (known.is_empty(), others.next(), others.next()) {
            // The only other key belongs to the other agent.
            (true, Some(key), None) => self.known.add(&name, key).map(|()| vec![*key]),
            _ => Ok(known),
        }
    }
}

impl AskedTrust {
    fn ask(&self, name: &str, peer: &Fingerprint, cancel: &Cancel) -> Result<(), Error> {
        if self.is_silent || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(untrusted(format!(
                "the key {peer} of {name} is unknown to this host: compare it with {SHOWN_AT_AGENT}; if both are the same, give --trust {peer}"
            )));
        }
        let mut terminal = std::io::stderr().lock();
        let question = format!(
            "The key of {name} is not recorded at this host:\n  {peer}\nCompare it with {SHOWN_AT_AGENT}.\nTrust this key and remember it? [y/N] "
        );
        let mut answer = String::new();
        write!(terminal, "{question}").and_then(|()| terminal.flush()).map_err(|e| this_host("ask").caused_by(e))?;
        // A read would continue after a signal.
        wait_for_input(cancel)?;
        if cancel.is_cancelled() {
            let text = "stopped: nothing was sent";
            return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, text));
        }
        match std::io::stdin().lock().read_line(&mut answer) {
            Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => self.known.add(name, peer),
            _ => Err(untrusted(format!("{name} is not trusted: nothing was sent"))),
        }
    }
}

/// Cancels the copy at SIGTERM or SIGINT. A second signal ends the process at once; the journal has the received data.
pub fn cancel_at_signal(cancel: &Cancel) -> std::io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&is_second))?;
        signal_hook::flag::register(signal, Arc::clone(&is_second))?;
    }
    let cancel = cancel.clone();
    let wait = move || signals.forever().for_each(|_| cancel.cancel());
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// Waits until standard input has data or has ended, or until the cancellation. Errors: no descriptor is free.
fn wait_for_input(cancel: &Cancel) -> Result<(), Error> {
    let failed = |e: std::io::Error| this_host("wait for an answer").caused_by(e);
    let (cancelled, writer) = std::io::pipe().map_err(failed)?;
    // The end of the writer makes the pipe readable.
    let _cancel = cancel.on_cancel(move || drop(writer));
    let stdin = std::io::stdin();
    loop {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&cancelled, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

fn this_host(text: &str) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text)
}

fn untrusted(text: String) -> Error {
    Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text)
}
