//! The one error vocabulary: what went wrong, at whose end, in which phase, and whether trying again can help.

use std::fmt;

/// Whose end a failure belongs to.
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
    /// Names, rights, space and connections are looked at; no byte has moved.
    Prepare,
    /// Bytes move.
    Transfer,
    /// Digests are compared.
    Verify,
    /// The file is made durable and gets its name.
    Finalise,
}

/// What the one who saw a failure first knows about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same attempt would fail again.
    Never,
    /// The same attempt may work later.
    After,
    /// Another replica of the file may work.
    OtherReplica,
}

/// What kind of failure it is; the wire carries its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A name that does not exist, or of nothing that is copied (a fifo, a device).
    NotFound,
    /// The file system or the agent's rules refuse.
    Denied,
    /// The peer is not the one that is trusted, or is unknown.
    Untrusted,
    /// No space, or a quota is reached.
    NoSpace,
    /// Another session holds the destination.
    Busy,
    /// The destination exists and may not be replaced.
    Exists,
    /// The source changed while it was read.
    Changed,
    /// Bytes do not match their digest.
    Corrupt,
    /// The peer broke the protocol, or speaks another version.
    Protocol,
    /// The network did not carry it: refused, reset, timed out.
    Unreachable,
    /// A limit of ours was reached.
    Limit,
    /// The request makes no sense.
    Usage,
    /// Stopped by the person, or by shutdown.
    Cancelled,
    /// Reading or writing storage gave an error of its own.
    Io,
    /// A bug of ours.
    Internal,
    /// The peer does not know the session any more (it was restarted): a new one takes over.
    SessionLost,
}

macro_rules! wire_codes {
    ($type:ident { $($variant:ident = $code:literal $name:literal),+ $(,)? }) => {
        impl $type {
            /// The code on the wire and in the journal; never renumbered.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code),+ }
            }
            /// The value of a code, if there is one.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
            /// The name in JSON; never changed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
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
});

/// A failure, with everything that the one who handles it needs to know.
///
/// `Display` prints `text` only: what was tried, on what, what came back, what happens next. The reporter in `main`
/// walks `source()`.
#[derive(Debug)]
pub struct Error {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// Whose end.
    pub scope: Scope,
    /// In which phase.
    pub phase: Phase,
    /// Whether trying again can help; set by whoever saw the failure first.
    pub retry: Retry,
    text: String,
    is_refusal: bool,
    is_cut_in_handshake: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure that trying again does not cure; see [`Error::retry`] to say otherwise.
    pub fn new(kind: ErrorKind, scope: Scope, phase: Phase, text: impl Into<String>) -> Self {
        Self {
            kind,
            scope,
            phase,
            retry: Retry::Never,
            text: text.into(),
            is_refusal: false,
            is_cut_in_handshake: false,
            source: None,
        }
    }

    /// The same failure, with another word on trying again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same failure, with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The same failure, as one that a peer refuses us with: "here" in its words is there.
    #[must_use]
    pub fn refused(mut self, is_refusal: bool) -> Self {
        self.is_refusal = is_refusal;
        self
    }

    /// Whether it is in the words of a peer that refuses us.
    pub const fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// The same failure, as one of a connection that the peer ended before it was known who the peer is.
    #[must_use]
    pub fn cut_in_handshake(mut self) -> Self {
        self.is_cut_in_handshake = true;
        self
    }

    /// Whether the peer ended the connection before it was known who the peer is: a busy agent does so, and takes the next.
    pub const fn is_cut_in_handshake(&self) -> bool {
        self.is_cut_in_handshake
    }

    /// A peer that broke the protocol.
    pub fn protocol(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, Scope::Path, Phase::Transfer, text)
    }

    /// The words of this failure, without its causes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The words of this failure and of all its causes, on one line.
    pub fn chain(&self) -> String {
        let mut line = self.text.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }

    /// The exit code of a run that ended with this failure: see the list in `--help`.
    pub fn exit_code(&self) -> u8 {
        match (self.kind, self.scope) {
            (ErrorKind::Cancelled, _) => 130,
            (ErrorKind::Internal, _) => 70,
            (ErrorKind::Usage, _) => 2,
            (ErrorKind::Untrusted, _) => 6,
            (_, Scope::Source) => 3,
            (_, Scope::Destination) => 4,
            (_, Scope::Path | Scope::Service) => 5,
            (_, Scope::Client) => 74,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| &**s as _)
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
}
