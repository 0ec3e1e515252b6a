//! Errors of the engine as errors of this project.

use std::io;
use std::net::SocketAddr;

use noq::ConnectionError;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::close::{CODE_LEFT, CODE_ORDERLY};

/// Returns true if a lane that ended for `reason` ended in order.
pub(super) fn is_orderly(reason: &ConnectionError) -> bool {
    match reason {
        ConnectionError::ApplicationClosed(close) => close.error_code == CODE_ORDERLY,
        ConnectionError::LocallyClosed => true,
        _ => false,
    }
}

/// Returns the error of an established lane that ended. `ours`: reason why this end closed it, if it did.
pub(super) fn lane_error(reason: &ConnectionError, peer: SocketAddr, ours: Option<&str>) -> Error {
    error(reason, peer, Phase::Transfer, ours)
}

/// Returns the error of a lane whose handshake failed.
pub(super) fn handshake_error(reason: &ConnectionError, peer: SocketAddr) -> Error {
    let error = error(reason, peer, Phase::Prepare, None);
    // Refusals that no retry changes (TLS) have another kind.
    match reason {
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) | ConnectionError::Reset
            if error.kind == ErrorKind::Unreachable =>
        {
            error.cut_in_handshake()
        }
        _ => error,
    }
}

/// Returns the error for a peer that the socket reports as unreachable.
pub(super) fn unreachable(kind: io::ErrorKind, peer: SocketAddr) -> Error {
    let text = match kind {
        io::ErrorKind::PermissionDenied => format!("connect to {peer} by QUIC: a firewall refuses UDP"),
        _ => format!("connect to {peer} by QUIC"),
    };
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text)
        .retry(Retry::After)
        .caused_by(io::Error::from(kind))
}

/// Returns the error for a failed operation of the socket itself.
pub(super) fn socket_error(what: &str, addr: SocketAddr, source: io::Error) -> Error {
    let kind = match source.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::AddrInUse => ErrorKind::Busy,
        _ => ErrorKind::Io,
    };
    Error::new(kind, Scope::Client, Phase::Prepare, format!("{what} UDP {addr}")).caused_by(source)
}

/// Returns the error for a peer that did not answer in time.
pub(super) fn timed_out(peer: SocketAddr, after: std::time::Duration) -> Error {
    let text = format!("connect to {peer} by QUIC: no answer in {:.1} s", after.as_secs_f64());
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After)
}

fn error(reason: &ConnectionError, peer: SocketAddr, phase: Phase, ours: Option<&str>) -> Error {
    let (kind, retry, what) = match reason {
        ConnectionError::VersionMismatch => {
            (ErrorKind::Protocol, Retry::Never, "the peer uses another QUIC version".into())
        }
        ConnectionError::TransportError(error) if is_tls(u64::from(error.code)) => {
            (ErrorKind::Untrusted, Retry::Never, format!("TLS: {}", error.reason))
        }
        ConnectionError::ConnectionClosed(close) if is_tls(u64::from(close.error_code)) => {
            (ErrorKind::Untrusted, Retry::Never, format!("the peer refused us: {}", close.to_string().escape_debug()))
        }
        ConnectionError::TransportError(error) => (ErrorKind::Protocol, Retry::After, error.to_string()),
        ConnectionError::ConnectionClosed(close) if phase == Phase::Prepare => (
            ErrorKind::Unreachable,
            Retry::After,
            format!("the peer takes no more connections: {}", close.to_string().escape_debug()),
        ),
        ConnectionError::ConnectionClosed(close) => {
            (ErrorKind::Protocol, Retry::After, format!("ended by the peer: {}", close.to_string().escape_debug()))
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == CODE_LEFT && phase != Phase::Prepare => {
            let said = String::from_utf8_lossy(&close.reason).into_owned();
            let text = format!("QUIC lane to {peer}: the peer has left: {}", said.escape_debug());
            // The peer chose this code: it must not count as a stop by the user of this end.
            return Error::new(ErrorKind::Cancelled, Scope::Path, phase, text).retry(Retry::After).from_peer();
        }
        ConnectionError::ApplicationClosed(close) => {
            let said = String::from_utf8_lossy(&close.reason).into_owned();
            (ErrorKind::Unreachable, Retry::After, format!("closed by the peer: {}", said.escape_debug()))
        }
        ConnectionError::Reset => (ErrorKind::Unreachable, Retry::After, "the peer has no record of the lane".into()),
        ConnectionError::TimedOut => (ErrorKind::Unreachable, Retry::After, "the path fell silent".into()),
        ConnectionError::LocallyClosed => {
            (ErrorKind::Cancelled, Retry::After, format!("closed: {}", ours.unwrap_or("by this end")))
        }
        ConnectionError::CidsExhausted => (ErrorKind::Limit, Retry::After, "no connection numbers left".into()),
    };
    Error::new(kind, Scope::Path, phase, format!("QUIC lane to {peer}: {what}")).retry(retry)
}

/// Returns true for the codes of TLS alerts (RFC 9001, section 4.8).
fn is_tls(code: u64) -> bool {
    (0x100..0x200).contains(&code)
}
