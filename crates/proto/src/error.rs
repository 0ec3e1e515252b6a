//! The one error type: kind of failure, end, phase, and the use of another attempt.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::host_port::HostPort;
use crate::setting::Setting;

/// End of a transfer that a failure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The storage or host that is read from.
    Source,
    /// The storage or host that is written to.
    Destination,
    /// The network between the two.
    Path,
    /// Our own control of the transfer (agent, service).
    Service,
    /// The person or program that asked: usage, credentials.
    Client,
}

/// The phase of a transfer in which a failure was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Names, rights, space and connections are checked; no byte has moved.
    Prepare,
    /// Bytes move.
    Transfer,
    /// Digests are compared.
    Verify,
    /// The file is made durable and gets its name.
    Finalise,
}

/// Use of another attempt, as the code that saw the failure first knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same attempt would fail again.
    Never,
    /// The same attempt may work later.
    After,
    /// Another replica of the file may work.
    OtherReplica,
}

/// Kind of a failure; the wire carries its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The name does not exist, or it is not of a kind that is copied (a fifo, a device).
    NotFound,
    /// The file system or the agent's rules refuse.
    Denied,
    /// The peer is unknown, or has another key than the trusted one.
    Untrusted,
    /// The disk is full, or a quota is reached.
    NoSpace,
    /// Another session writes to the destination.
    Busy,
    /// The destination exists and may not be replaced.
    Exists,
    /// The source changed while it was read.
    Changed,
    /// Bytes do not match their digest.
    Corrupt,
    /// The peer broke the protocol, or speaks another version.
    Protocol,
    /// The network failed: connection refused, reset or timed out.
    Unreachable,
    /// A limit of Sterna was reached.
    Limit,
    /// The request is contradictory or incomplete.
    Usage,
    /// Stopped by the person, or by shutdown.
    Cancelled,
    /// Storage returned an error on read or write.
    Io,
    /// A bug in Sterna.
    Internal,
    /// The peer does not know the session any more (it was restarted): a new one takes over.
    SessionLost,
    /// A kind of a newer release, with its code. Scope and retry say what to do.
    Other(u8),
}

macro_rules! wire_codes {
    ($type:ident { $($variant:ident = $code:literal $name:literal),+ $(,)? } $($other:ident $other_name:literal)?) => {
        impl $type {
            /// The code on the wire; never renumbered.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code,)+ $(Self::$other(code) => code)? }
            }
            /// The value of a code, if there is one.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
            /// The name in JSON; never changed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ $(Self::$other(_) => $other_name)? }
            }
        }
    };
}

wire_codes!(Scope {
    Source = 1 "source", Destination = 2 "destination", Path = 3 "path", Service = 4 "service", Client = 5 "client",
});
wire_codes!(Phase { Prepare = 1 "prepare", Transfer = 2 "transfer", Verify = 3 "verify", Finalise = 4 "finalise" });
wire_codes!(Retry { Never = 1 "never", After = 2 "after", OtherReplica = 3 "other_replica" });
wire_codes!(ErrorKind {
    NotFound = 1 "not_found", Denied = 2 "denied", Untrusted = 3 "untrusted", NoSpace = 4 "no_space", Busy = 5 "busy",
    Exists = 6 "exists", Changed = 7 "changed", Corrupt = 8 "corrupt", Protocol = 9 "protocol",
    Unreachable = 10 "unreachable", Limit = 11 "limit", Usage = 12 "usage", Cancelled = 13 "cancelled", Io = 14 "io",
    Internal = 15 "internal", SessionLost = 16 "session_lost",
} Other "other");

impl ErrorKind {
    /// Returns the kind of a code that a peer sent.
    pub fn of_peer(code: u8) -> Self {
        Self::from_code(code).unwrap_or(Self::Other(code))
    }
}

/// Host that reported a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SaidBy {
    /// This process.
    #[default]
    Us,
    /// The peer: "here" in the text is there.
    Peer,
    /// The peer at this address.
    Host(Box<HostPort>),
}

/// A failure, with everything that its handler needs to decide what to do.
///
/// `Display` prints the peer that reported it, if it is known, and the text: what was tried, on what, what came back, what happens
/// next. [`Error::chain`] adds the causes.
/// Clones share the causes.
#[derive(Clone, Debug)]
pub struct Error {
    /// Kind of failure.
    pub kind: ErrorKind,
    /// End of the transfer that it belongs to.
    pub scope: Scope,
    /// Phase of the transfer.
    pub phase: Phase,
    /// Use of another attempt; set by the code that saw the failure first.
    pub retry: Retry,
    /// Host that reported it.
    pub said_by: SaidBy,
    text: Arc<str>,
    is_cut_in_handshake: bool,
    /// Values that few failures have. Reason for the box: a result with an error stays small.
    details: Option<Box<Details>>,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Values that few failures have.
#[derive(Clone, Debug, Default)]
struct Details {
    /// Settings that the user can change to avoid the failure.
    settings: Cow<'static, [Setting]>,
    /// Error number that a peer reported. A failure of this host has it in its causes.
    peer_os_code: Option<i32>,
    /// Fingerprint of the key that is not authorized.
    refused_key: Option<[u8; 32]>,
    /// Time for which the end wants no other attempt.
    wait: Option<Duration>,
}

impl Error {
    /// Creates a failure that another attempt would meet again; [`Error::retry`] changes that.
    pub fn new(kind: ErrorKind, scope: Scope, phase: Phase, text: impl Into<String>) -> Self {
        Self {
            kind,
            scope,
            phase,
            retry: Retry::Never,
            said_by: SaidBy::Us,
            text: text.into().into(),
            is_cut_in_handshake: false,
            details: None,
            cause: None,
        }
    }

    /// Sets the use of another attempt.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// Creates the failure of a request that is contradictory or incomplete, because of these settings.
    pub fn usage(settings: impl Into<Cow<'static, [Setting]>>, text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text).about(settings)
    }

    /// Names the settings that the user can change to avoid the failure.
    #[must_use]
    pub fn about(mut self, settings: impl Into<Cow<'static, [Setting]>>) -> Self {
        let settings = settings.into();
        if !settings.is_empty() || !self.settings().is_empty() {
            self.details.get_or_insert_default().settings = settings;
        }
        self
    }

    /// Settings that the user can change to avoid the failure. Empty for most failures.
    pub fn settings(&self) -> &[Setting] {
        self.details.as_ref().map_or(&[], |details| &details.settings)
    }

    /// Marks the failure as reported by the peer.
    #[must_use]
    pub fn from_peer(mut self) -> Self {
        self.said_by = SaidBy::Peer;
        self
    }

    /// Sets the error number (Linux errno) that the peer reported with the failure.
    #[must_use]
    pub fn with_peer_os_code(mut self, code: Option<i32>) -> Self {
        if code.is_some() {
            self.details.get_or_insert_default().peer_os_code = code;
        }
        self
    }

    /// Sets the key that is not authorized.
    #[must_use]
    pub fn refusing_key(mut self, fingerprint: Option<[u8; 32]>) -> Self {
        if fingerprint.is_some() {
            self.details.get_or_insert_default().refused_key = fingerprint;
        }
        self
    }

    /// Fingerprint of the key that is not authorized: its SHA-256 digest. `None`: the failure is another one.
    pub fn refused_key(&self) -> Option<[u8; 32]> {
        self.details.as_ref()?.refused_key
    }

    /// Sets the time for which the end that failed wants no other attempt (`Retry-After` of HTTP).
    #[must_use]
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.details.get_or_insert_default().wait = Some(time);
        self
    }

    /// Time for which the end that failed wants no other attempt, if it asked for one.
    pub fn wait(&self) -> Option<Duration> {
        self.details.as_ref()?.wait
    }

    /// Names the peer that reported the failure. Does nothing when this process reported it, or the peer is known.
    #[must_use]
    pub fn named(mut self, peer: HostPort) -> Self {
        if self.said_by == SaidBy::Peer {
            self.said_by = SaidBy::Host(Box::new(peer));
        }
        self
    }

    /// Returns true if a peer reported the failure.
    pub fn is_from_peer(&self) -> bool {
        self.said_by != SaidBy::Us
    }

    /// Marks the failure as a connection that the peer closed before either end was authenticated.
    #[must_use]
    pub fn cut_in_handshake(mut self) -> Self {
        self.is_cut_in_handshake = true;
        self
    }

    /// Returns true if the peer closed the connection before either end was authenticated. A busy agent does so and accepts the next one.
    pub const fn is_cut_in_handshake(&self) -> bool {
        self.is_cut_in_handshake
    }

    /// Puts the location of an end before the text. Reason: the text of a failure at another host has only the path
    /// beneath that location.
    #[must_use]
    pub fn at(self, location: impl fmt::Display) -> Self {
        Self { text: format!("{location}: {}", self.text).into(), ..self }
    }

    /// Replaces the text; it holds those of the causes, which are dropped.
    #[must_use]
    pub fn reworded(self, text: impl Into<String>) -> Self {
        Self { text: text.into().into(), cause: None, ..self }
    }

    /// Creates the failure of a peer that broke the protocol.
    pub fn protocol(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, Scope::Path, Phase::Transfer, text)
    }

    /// Text without the peer that reported it and without the causes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// [`Display`](fmt::Display) form and all causes, on one line.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        for cause in self.causes() {
            line.push_str(": ");
            line.push_str(&cause.to_string());
        }
        line
    }

    /// Error number of the operating system (errno), if a cause has one or the peer reported one.
    pub fn os_code(&self) -> Option<i32> {
        let of_cause =
            |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>()?.raw_os_error();
        let of_peer = self.details.as_ref().and_then(|details| details.peer_os_code);
        of_peer.or_else(|| self.causes().find_map(of_cause))
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
        std::iter::successors(std::error::Error::source(self), |cause| cause.source())
    }

    /// Exit code of a run that ends with this failure: see the list in `--help`.
    ///
    /// No peer can choose a code that describes this process: 2, 70, 74 and 130. Such a failure of a peer is a failure
    /// of the agent.
    pub fn exit_code(&self) -> u8 {
        match (self.kind, self.scope) {
            (ErrorKind::Untrusted, _) => 6,
            (ErrorKind::Cancelled | ErrorKind::Internal | ErrorKind::Usage, _) | (_, Scope::Client)
                if self.is_from_peer() =>
            {
                5
            }
            (ErrorKind::Cancelled, _) => 130,
            (ErrorKind::Internal, _) => 70,
            (ErrorKind::Usage, _) => 2,
            (_, Scope::Source) => 3,
            (_, Scope::Destination) => 4,
            (_, Scope::Path | Scope::Service) => 5,
            (_, Scope::Client) => 74,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let SaidBy::Host(peer) = &self.said_by {
            write!(f, "{peer} reports: ")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| &**cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_code_reads_back() {
        for code in 0..=255 {
            for read in [
                ErrorKind::from_code(code).map(ErrorKind::code),
                Scope::from_code(code).map(Scope::code),
                Phase::from_code(code).map(Phase::code),
                Retry::from_code(code).map(Retry::code),
            ] {
                assert!(read.is_none_or(|c| c == code));
            }
        }
    }

    #[test]
    fn the_chain_names_every_cause_once() {
        let io = std::io::Error::from_raw_os_error(28);
        let error =
            Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "write block 3 of a.h5").caused_by(io);
        assert_eq!(error.chain(), "write block 3 of a.h5: No space left on device (os error 28)");
        assert_eq!(error.exit_code(), 4);
        assert_eq!((error.os_code(), error.clone().os_code()), (Some(28), Some(28)));
    }

    #[test]
    fn a_failure_names_the_peer_that_reported_it_once() {
        let peer = |host: &str| HostPort { host: host.to_owned(), port: 7373 };
        let error = Error::new(ErrorKind::Denied, Scope::Destination, Phase::Prepare, "write to /x: not allowed");
        assert_eq!(error.clone().named(peer("hub")).chain(), error.chain(), "our own");
        let theirs = error.from_peer().named(peer("hub"));
        assert_eq!(theirs.chain(), "hub:7373 reports: write to /x: not allowed");
        assert_eq!(theirs.clone().named(peer("gate")).said_by, theirs.said_by);
    }

    #[test]
    fn only_wrong_usage_ends_with_the_code_of_wrong_usage() {
        let code = |kind, scope| Error::new(kind, scope, Phase::Prepare, "").exit_code();
        assert_eq!(code(ErrorKind::Usage, Scope::Client), 2);
        for kind in [ErrorKind::Io, ErrorKind::Denied, ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Limit] {
            assert_eq!(code(kind, Scope::Client), 74);
        }
        assert_eq!(code(ErrorKind::Corrupt, Scope::Service), 5);
    }

    #[test]
    fn no_peer_chooses_a_code_that_describes_this_process() {
        for (kind, ours) in [(ErrorKind::Cancelled, 130), (ErrorKind::Internal, 70), (ErrorKind::Usage, 2)] {
            let error = Error::new(kind, Scope::Client, Phase::Transfer, "");
            assert_eq!((error.exit_code(), error.from_peer().exit_code()), (ours, 5), "{kind:?}");
            let named = Error::new(kind, Scope::Source, Phase::Transfer, "").from_peer();
            assert_eq!(named.named(HostPort { host: "hub".to_owned(), port: 7373 }).exit_code(), 5, "{kind:?}");
        }
        let error = Error::new(ErrorKind::Io, Scope::Client, Phase::Transfer, "");
        assert_eq!((error.exit_code(), error.from_peer().exit_code()), (74, 5));
        let refused = Error::new(ErrorKind::Denied, Scope::Destination, Phase::Prepare, "").from_peer();
        assert_eq!(refused.exit_code(), 4, "the end of the copy that failed");
    }
}
