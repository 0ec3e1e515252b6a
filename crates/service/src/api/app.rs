//! State that the routes of all interfaces share.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{self, StatusCode};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::access::Access;
use crate::caller::Caller;
use crate::delegation::Delegations;
use crate::service::Service;
use crate::worker::AgentReports;

/// Maximum bytes of a request body. Reason: an FTS3 client sends a job at once; 100,000 files are about 50 MB.
pub const BODY_BYTES_MAX: usize = 256 << 20;

/// State that routes share.
#[derive(Clone)]
pub struct App {
    /// Service.
    pub service: Arc<Service>,
    /// Rules of access.
    pub access: Arc<Access>,
    /// Way of agents to the runner.
    pub agents: AgentReports,
    /// Proxies of users.
    pub delegations: Arc<Delegations>,
}

/// Returns the caller of a request. The body of a request from nobody is not read: only `GET` is for everybody.
///
/// Errors: the credentials were refused; `Denied`.
pub(super) fn caller_of(parts: &Parts) -> Result<Caller, Error> {
    let denied = || Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, "Not enough permissions");
    let Some(Authenticated(caller)) = parts.extensions.get() else { return Err(denied()) };
    match caller {
        Ok(caller) if !caller.is_user() && parts.method != http::Method::GET => Err(denied()),
        caller => caller.clone(),
    }
}

/// Returns the status of a failed request.
pub(super) fn status_of(error: &Error) -> StatusCode {
    match error.kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Untrusted => StatusCode::UNAUTHORIZED,
        ErrorKind::Usage => StatusCode::BAD_REQUEST,
        ErrorKind::Exists => StatusCode::CONFLICT,
        ErrorKind::Limit => StatusCode::PAYLOAD_TOO_LARGE,
        // Clients try again after this one only.
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Caller of a request, or the reason why its credentials were refused.
#[derive(Clone)]
pub struct Authenticated(pub Result<Caller, Error>);
