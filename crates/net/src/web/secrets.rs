//! Credentials: a bearer token from a file or a command, or a name and password from `~/.netrc`.
//!
//! Decides which servers get them, and reads a token again when it expires or was refused. Refuses to send them to any
//! other server, send them in clear text to another host, or show them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self, Pid, PidfdFlags, RawPid, Signal};
use serde::Deserialize;
use sterna_proto::web::{WebLocation, canonical_host};
use sterna_proto::{Error, ErrorKind, Phase, Scope, Setting};

use crate::cancel::Cancel;

/// Longest token, in bytes. Reason: servers accept about 8,000 bytes in all headers together.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes that are read of the file of a token. Reason: room for white space around a token.
const TOKEN_FILE_BYTES_MAX: u64 = 2 * TOKEN_BYTES_MAX as u64;

/// Maximum bytes that are read of a `.netrc` file. Reason: ten thousand entries.
const NETRC_BYTES_MAX: u64 = 1 << 20;

/// Time limit for a command to print a token. Reason: a command that queries a server over a slow path takes
/// seconds.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);

/// Time for a command to end by itself after a signal. Reason: a command that asks for a passphrase has to switch the
/// echo of the terminal on again. Guess: that takes a few milliseconds.
const COMMAND_END_TIME_MAX: Duration = Duration::from_millis(500);

/// Time before its expiry at which a token is read again. Reason: a request that waits in a queue must not arrive
/// too late.
const RENEWED_BEFORE: Duration = Duration::from_secs(60);

/// Source of a bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// File that holds the token.
    File(PathBuf),
    /// Command line for `sh` that prints the token.
    Command(String),
    /// The token itself.
    Given(Secret),
}

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

struct Token {
    text: String,
    /// Expiry time, if the token has one.
    expires: Option<SystemTime>,
}

/// Credentials of one copy.
pub(super) struct Secrets {
    source: Option<TokenSource>,
    /// Locked while the token is read.
    token: Mutex<Option<Token>>,
    /// Ends a command that prints the token.
    stopped: Cancel,
    /// Servers that may get them.
    origins: HashSet<String>,
    passwords: HashMap<String, String>,
}

impl Secrets {
    /// Creates the credentials for the servers of `locations`.
    ///
    /// Errors: `Usage`, when a token would have to go to several servers, or in clear text to another host.
    pub(super) fn new(source: Option<TokenSource>, locations: &[WebLocation]) -> Result<Self, Error> {
        let usage = |text: String| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let origins: HashSet<String> = locations.iter().map(|location| location.origin().to_owned()).collect();
        if source.is_some() {
            if origins.len() > 1 {
                return usage("a token is for one server: copy from one at a time".to_owned());
            }
            if let Some(location) = locations.iter().find(|location| !is_private(location)) {
                let origin = location.origin();
                return usage(format!("a token would go to {origin} in clear text: use https, or no token"));
            }
        }
        let netrc = std::env::var_os("NETRC").map(PathBuf::from);
        let netrc = netrc.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".netrc")));
        let text = netrc.filter(|_| source.is_none()).and_then(|path| {
            let bytes = read_up_to(&path, NETRC_BYTES_MAX).ok()?;
            String::from_utf8(bytes).ok()
        });
        let passwords = text.map(|text| passwords(&text)).unwrap_or_default();
        Ok(Self { source, token: Mutex::default(), stopped: Cancel::default(), origins, passwords })
    }

    /// Leaves out the passwords of the user.
    #[must_use]
    pub(super) fn without_passwords(mut self) -> Self {
        self.passwords.clear();
        self
    }

    /// Ends the command that prints the token, and waits for its end: it must not outlive this process. Later calls get
    /// no token.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
        drop(self.token.lock());
    }

    /// Returns true if a token was given.
    pub(super) fn has_token(&self) -> bool {
        self.source.is_some()
    }

    /// Returns the `Authorization` of a request to `at`, if there is one. Errors: the token cannot be read; `Cancelled`
    /// after [`Secrets::stop`].
    pub(super) fn authorization(&self, at: &WebLocation) -> Result<Option<String>, Error> {
        if !self.origins.contains(at.origin()) || !is_private(at) {
            return Ok(None);
        }
        let Some(source) = &self.source else {
            return Ok(self.passwords.get(at.host()).cloned());
        };
        let mut token = self.token.lock();
        let is_fresh = |token: &Token| token.expires.is_none_or(|expires| expires > SystemTime::now() + RENEWED_BEFORE);
        if let Some(known) = token.as_ref().filter(|token| is_fresh(token)) {
            return Ok(Some(format!("Bearer {}", known.text)));
        }
        if self.stopped.is_cancelled() {
            return Err(stopped());
        }
        let text = read_token(source, &self.stopped)?;
        let read = token.insert(Token { expires: expiry(&text), text });
        Ok(Some(format!("Bearer {}", read.text)))
    }

    /// Discards a token that was refused, so that the next request reads it again. Returns true if it has a source.
    pub(super) fn renew(&self, sent: &str) -> bool {
        let mut token = self.token.lock();
        // Another connection may have read it again already.
        if token.as_ref().is_some_and(|token| sent.strip_prefix("Bearer ") == Some(&token.text)) {
            *token = None;
        }
        self.source.is_some()
    }
}

/// Returns true if no host on the path can read a request to this server. For this host that requires a direct
/// connection, without a proxy.
fn is_private(at: &WebLocation) -> bool {
    at.is_encrypted() || at.is_this_host()
}

/// Reads a file, or its first `bytes_max` bytes.
fn read_up_to(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, "read the token: the copy was stopped")
}

fn read_token(source: &TokenSource, cancel: &Cancel) -> Result<String, Error> {
    let setting: &[Setting] = match source {
        TokenSource::File(_) => &[Setting::WebToken],
        TokenSource::Command(_) => &[Setting::WebTokenCommand],
        TokenSource::Given(_) => &[],
    };
    let wrong = |text: String| Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text).about(setting);
    let (bytes, from) = match source {
        TokenSource::File(path) => {
            let from = format!("the token file {}", path.display());
            let bytes = read_up_to(path, TOKEN_FILE_BYTES_MAX);
            (bytes.map_err(|e| wrong(format!("read {from}")).caused_by(e))?, from)
        }
        TokenSource::Command(line) => (run_command(line, cancel)?, "the output of the token command".to_owned()),
        TokenSource::Given(token) => (token.0.clone().into_bytes(), "the token of the job".to_owned()),
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
        // The error shows nothing of the text.
        return Err(wrong(format!("{from} is no token: expected one word of letters, digits and signs")));
    }
    Ok(text.to_owned())
}

/// Returns the output of a command until its shell has ended. A background process of the shell holds the pipe too.
/// It is waited for only while there is no output. Ends the command at the cancellation.
fn run_command(line: &str, cancel: &Cancel) -> Result<Vec<u8>, Error> {
    let wrong = |text: String| {
        let error = Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text);
        error.about(&[Setting::WebTokenCommand])
    };
    let tried = "run the token command";
    let failed = |e: std::io::Error| wrong(tried.to_owned()).caused_by(e);
    let (mut out, writer) = std::io::pipe().map_err(failed)?;
    rustix::io::ioctl_fionbio(&out, true).map_err(|e| failed(e.into()))?;
    let (cancelled, open) = std::io::pipe().map_err(failed)?;
    // The end of the writer makes the pipe readable.
    let _at_cancel = cancel.on_cancel(move || drop(open));
    let mut command = Command::new("sh");
    command.arg("-c").arg(std::ffi::OsStr::from_bytes(line.as_bytes())).stdin(Stdio::null()).stdout(writer);
    let mut child = command.spawn().map_err(failed)?;
    // It holds an end of the pipe, which would never be closed.
    drop(command);
    let ended = process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let ended = ended.map_err(|e| failed(e.into())).inspect_err(|_| end(&mut child))?;
    let mut bytes = Vec::new();
    let started = Instant::now();
    loop {
        // Checked before the read: all output of an ended shell is then in the pipe.
        let status = child.try_wait().map_err(failed)?;
        let is_closed = read_what_came(&mut out, &mut bytes)
            .map_err(|e| wrong(format!("{tried}: read what it prints")).caused_by(e))?;
        let left = COMMAND_TIME_MAX.saturating_sub(started.elapsed());
        match status {
            Some(status) if !status.success() => return Err(wrong(format!("{tried}: it ended with {status}"))),
            Some(_) if is_closed || !bytes.is_empty() => return Ok(bytes),
            _ if cancel.is_cancelled() => {
                end(&mut child);
                return Err(stopped());
            }
            _ if bytes.len() > TOKEN_BYTES_MAX => {
                end(&mut child);
                // The caller refuses it for its length, and does not show it.
                return Ok(bytes);
            }
            _ if left.is_zero() => {
                end(&mut child);
                let seconds = COMMAND_TIME_MAX.as_secs();
                return Err(wrong(format!("{tried}: it printed no token within {seconds} s and was ended")));
            }
            Some(_) => wait_for(&[cancelled.as_fd(), out.as_fd()], left),
            None if is_closed => wait_for(&[cancelled.as_fd(), ended.as_fd()], left),
            None => wait_for(&[cancelled.as_fd(), ended.as_fd(), out.as_fd()], left),
        }
    }
}

/// Waits until one of the descriptors has something to read, at most for `time`.
fn wait_for(descriptors: &[BorrowedFd<'_>], time: Duration) {
    let mut waited_for: Vec<PollFd<'_>> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    // Every duration in this program fits into a `Timespec`. A signal only ends the wait early.
    let _ = poll(&mut waited_for, Timespec::try_from(time).ok().as_ref());
}

/// Ends a command with every process that it has started, and waits for their end.
///
/// The command stays in the process group of Sterna, although a new group would be simpler to end. Reason: the kernel
/// stops a group that reads the terminal in the background, and the command may ask for a passphrase there. A daemon
/// that has left the command stays.
fn end(child: &mut Child) {
    // The number of a shell that has ended may belong to another process.
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let processes = with_descendants(Pid::from_child(child));
    for signal in [Signal::TERM, Signal::KILL] {
        for one in &processes {
            // Fails if the process has ended, or belongs to another user.
            let _ = process::pidfd_send_signal(one, signal);
        }
        let until = Instant::now() + COMMAND_END_TIME_MAX;
        for one in &processes {
            wait_for(&[one.as_fd()], until.saturating_duration_since(Instant::now()));
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns a process and its descendants, as far as the processes between them live.
fn with_descendants(root: Pid) -> Vec<OwnedFd> {
    let mut others = parents();
    let mut found = vec![root];
    let mut looked_at = 0;
    while let Some(parent) = found.get(looked_at).copied() {
        found.extend(others.extract_if(.., |(_, of)| *of == parent).map(|(child, _)| child));
        looked_at += 1;
    }
    found.into_iter().filter_map(|pid| process::pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

/// Returns every process of this host that `/proc` shows, with its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let pid = |word: &str| word.parse::<RawPid>().ok().and_then(Pid::from_raw);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let with_parent = |entry: std::fs::DirEntry| {
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        // The name of the program is in parentheses, and may contain any byte. State and parent follow it.
        let behind = stat.iter().rposition(|&b| b == b')')? + 1;
        let parent = std::str::from_utf8(&stat[behind..]).ok()?.split_ascii_whitespace().nth(1)?;
        Some((pid(entry.file_name().to_str()?)?, pid(parent)?))
    };
    entries.filter_map(with_parent).collect()
}

/// Reads all that is in a pipe now, or more than a token has. Returns true if no process can write to the pipe any
/// more.
fn read_what_came(out: &mut PipeReader, bytes: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut buffer = [0; 4096];
    while bytes.len() <= TOKEN_BYTES_MAX {
        match out.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

/// Returns when a token expires, if it is a JSON Web Token with that time (RFC 7519, section 4.1.4). The server
/// verifies the token.
fn expiry(token: &str) -> Option<SystemTime> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?.trim_end_matches('=')).ok()?;
    // Some tokens have a fraction of a second.
    let seconds = serde_json::from_slice::<Claims>(&payload).ok()?.exp;
    (0.0..EXPIRY_MAX_S).contains(&seconds).then(|| UNIX_EPOCH + Duration::from_secs(seconds as u64))
}

/// Claims of a JSON Web Token that Sterna reads.
#[derive(Deserialize)]
struct Claims {
    /// Time of expiry, in seconds since 1970-01-01 UTC.
    exp: f64,
}

/// End of the expiry times that are taken, in seconds since 1970-01-01 UTC. Reason: a later time is wrong, and could
/// exceed what a `SystemTime` holds.
const EXPIRY_MAX_S: f64 = (1u64 << 40) as f64;

/// Returns the `Authorization` of each host in a netrc file.
fn passwords(text: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    // Comment lines are dropped; macros are not credentials.
    let lines = text.lines().map(|line| if line.trim_start().starts_with('#') { "" } else { line });
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let (mut host, mut login) = (None, None);
    for pair in words.windows(2) {
        match pair[0] {
            "machine" => (host, login) = (Some(pair[1]), None),
            "login" => login = Some(pair[1]),
            "password" => {
                if let (Some(host), Some(login)) = (host, login) {
                    let basic = STANDARD.encode(format!("{login}:{}", pair[1]));
                    found.entry(canonical_host(host)).or_insert(format!("Basic {basic}"));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn web(text: &str) -> WebLocation {
        WebLocation::parse(text).unwrap()
    }

    #[test]
    fn a_token_goes_to_its_server_and_to_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let source = Some(TokenSource::File(file.clone()));
        let secrets = Secrets::new(source.clone(), &[web("https://a/x"), web("https://a/y")]).unwrap();
        assert_eq!(secrets.authorization(&web("https://a/z")).unwrap().as_deref(), Some("Bearer secret"));
        for other in ["https://b/x", "https://a:444/x", "http://a/x", "https://sub.a/x"] {
            assert_eq!(secrets.authorization(&web(other)).unwrap(), None, "{other}");
        }
        // The token is read again only after a refusal.
        std::fs::write(&file, "fresh").unwrap();
        assert_eq!(secrets.authorization(&web("https://a/z")).unwrap().as_deref(), Some("Bearer secret"));
        assert!(secrets.renew("Bearer secret"));
        assert_eq!(secrets.authorization(&web("https://a/z")).unwrap().as_deref(), Some("Bearer fresh"));
        for wrong in [&["http://a/x"][..], &["https://a/x", "https://b/x"]] {
            let locations: Vec<WebLocation> = wrong.iter().map(|text| web(text)).collect();
            assert_eq!(Secrets::new(source.clone(), &locations).err().map(|e| e.kind), Some(ErrorKind::Usage));
        }
        assert!(Secrets::new(source, &[web("http://127.0.0.1:8080/x")]).is_ok());
    }

    #[test]
    fn a_token_that_runs_out_is_read_anew() {
        let token = |exp: u64| {
            let payload = URL_SAFE_NO_PAD.encode(format!("{{\"sub\":\"x\",\"exp\": {exp}}}"));
            format!("e30.{payload}.c2ln")
        };
        assert_eq!(expiry(&token(1_000)), Some(UNIX_EPOCH + Duration::from_secs(1000)));
        let of_claims = |claims: &str| expiry(&format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims)));
        let fraction = of_claims(r#"{"sub":"\"exp\":7","exp":1000.9}"#);
        assert_eq!(fraction, Some(UNIX_EPOCH + Duration::from_secs(1000)));
        for claims in
            [r#"{"sub":"\"exp\":7"}"#, r#"{"exp":-1}"#, r#"{"exp":1e300}"#, r#"{"exp":"1000"}"#, r#"{"exp":1"#]
        {
            assert_eq!(of_claims(claims), None, "{claims}");
        }
        for opaque in ["opaque", "a.b.c", "a..c", "a.e30.c"] {
            assert_eq!(expiry(opaque), None, "{opaque}");
        }
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count");
        let line = format!("echo x >> {0}; echo {1}", count.display(), token(1_000));
        let secrets = Secrets::new(Some(TokenSource::Command(line)), &[web("https://a/x")]).unwrap();
        for _ in 0..2 {
            secrets.authorization(&web("https://a/x")).unwrap();
        }
        assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 2);
    }

    #[test]
    fn what_a_token_command_leaves_in_the_background_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (go, late) = (directory.path().join("go"), directory.path().join("late"));
        // The background process holds the pipe until `go` exists, and for 20 s if it never does.
        let background = format!(
            "for i in $(seq 200); do [ -e {} ] && exit; sleep 0.1; done; touch {}",
            go.display(),
            late.display()
        );
        let never = Cancel::default();
        let token = run_command(&format!("({background}) & echo secret"), &never);
        assert!(!late.exists(), "it was waited for");
        std::fs::write(go, "").unwrap();
        assert_eq!(token.unwrap(), b"secret\n");
        // A background process that prints the token is waited for.
        assert_eq!(run_command("(sleep 0.1; echo secret) &", &never).unwrap(), b"secret\n");
    }

    /// Returns true if a process has ended, whether its parent knows that or not.
    fn has_ended(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap().trim_start().get(..1).is_none_or(|state| state == "Z")
    }

    #[test]
    fn a_token_command_that_prints_without_end_is_ended_with_its_processes() {
        let directory = tempfile::tempdir().unwrap();
        let child = directory.path().join("child");
        let line = format!("sleep 3600 & echo $! > {}; yes", child.display());
        assert!(read_token(&TokenSource::Command(line), &Cancel::default()).is_err());
        assert!(has_ended(std::fs::read_to_string(child).unwrap().trim()));
    }

    #[test]
    fn a_token_command_ends_with_the_copy_and_so_do_its_processes() {
        let directory = tempfile::tempdir().unwrap();
        let (started, new) = (directory.path().join("started"), directory.path().join("new"));
        // The shell ignores the first signal.
        let line =
            format!("trap '' TERM; sleep 3600 & echo $$ $! > {0}; mv {0} {1}; wait", new.display(), started.display());
        let secrets = Arc::new(Secrets::new(Some(TokenSource::Command(line)), &[web("https://a/x")]).unwrap());
        let asking = Arc::clone(&secrets);
        let asked = thread::spawn(move || asking.authorization(&web("https://a/x")));
        let processes = loop {
            match std::fs::read_to_string(&started) {
                Ok(processes) => break processes,
                Err(_) => thread::yield_now(),
            }
            assert!(!asked.is_finished(), "the command has ended");
        };
        secrets.stop();
        for pid in processes.split_whitespace() {
            assert!(has_ended(pid), "process {pid} of {processes}");
        }
        assert_eq!(asked.join().unwrap().unwrap_err().kind, ErrorKind::Cancelled);
        // A connection that waited for the token starts no other command.
        std::fs::remove_file(&started).unwrap();
        assert_eq!(secrets.authorization(&web("https://a/x")).unwrap_err().kind, ErrorKind::Cancelled);
        assert!(!started.exists());
    }

    #[test]
    fn files_of_credentials_are_read_up_to_their_maximum() {
        let endless = Path::new("/dev/zero");
        assert_eq!(read_up_to(endless, NETRC_BYTES_MAX).unwrap().len() as u64, NETRC_BYTES_MAX);
        let never = Cancel::default();
        assert!(read_token(&TokenSource::File(endless.to_owned()), &never).is_err());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        for (bytes, is_token) in [(TOKEN_BYTES_MAX, true), (TOKEN_BYTES_MAX + 1, false)] {
            std::fs::write(&file, "t".repeat(bytes)).unwrap();
            let token = read_token(&TokenSource::File(file.clone()), &never);
            assert_eq!(token.is_ok(), is_token, "{bytes} bytes");
            if let Err(error) = token {
                assert_eq!(error.settings(), [Setting::WebToken]);
            }
        }
    }

    #[test]
    fn no_error_shows_a_token() {
        for line in ["echo 'top secret'", "echo top-secret; exit 3", "true"] {
            let source = Some(TokenSource::Command(line.to_owned()));
            let secrets = Secrets::new(source, &[web("https://a/x")]).unwrap();
            let said = secrets.authorization(&web("https://a/x")).unwrap_err().chain();
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn netrc_gives_a_password_for_each_host() {
        let found =
            passwords("# password x\nmachine A.example login me password pw\nmachine b\n login you password two\n");
        assert_eq!(found["a.example"], format!("Basic {}", STANDARD.encode("me:pw")));
        assert_eq!(found["b"], format!("Basic {}", STANDARD.encode("you:two")));
        assert_eq!(found.len(), 2);
    }
}
