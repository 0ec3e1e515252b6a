//! Replies of the FTS3 interface: JSON, and the shape of its failures.

use std::collections::BTreeMap;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::ext::ReasonPhrase;
use serde_json::Value;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::types::{Failure, fields};
use crate::api::app::{caller_of, status_of};
use crate::api::description::failures;
use crate::caller::Caller;

/// Status of a request without a proxy. Source: FTS3; it is in no standard.
pub const NEEDS_DELEGATION: u16 = 419;

/// Its reason. Source: FTS3.
const NEEDS_DELEGATION_REASON: &str = "Authentication Timeout";

/// Failure, as a reply.
pub struct Failed {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Failed {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.chain())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let is_delegation = self.status.as_u16() == NEEDS_DELEGATION;
        let reason =
            if is_delegation { NEEDS_DELEGATION_REASON } else { self.status.canonical_reason().unwrap_or("Error") };
        let status = format!("{} {reason}", self.status.as_u16());
        let mut reply = json_reply(self.status, &Value::Object(fields(&Failure { status, message: self.message })));
        if is_delegation {
            // No list of the HTTP library has it.
            reply.extensions_mut().insert(ReasonPhrase::from_static(NEEDS_DELEGATION_REASON.as_bytes()));
        }
        reply
    }
}

/// Returns the reply to a request that the router has refused.
pub fn failure(status: StatusCode, text: String) -> Response {
    Failed::new(status, text).into_response()
}

/// Failures that every request can have.
pub(super) enum Refusals {}

impl utoipa::IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
        failures("Failure")
    }
}

/// Reply of a request.
pub(super) type Reply = Result<Response, Failed>;

/// Returns a reply with a JSON body.
pub(super) fn json_reply(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Returns the error of a request that needs more permissions.
pub(super) fn denied() -> Error {
    Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, "Not enough permissions")
}

/// Caller of a request. Refuses a request whose credentials are wrong.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        caller_of(parts).map_err(Failed::from)
    }
}

/// Returns an endpoint: a scheme and a host, or `*`.
pub(super) fn endpoint(name: &str) -> Result<String, Failed> {
    let is_endpoint =
        name == "*" || name.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty());
    match is_endpoint {
        true => Ok(name.trim_end_matches('/').to_owned()),
        false => {
            Err(Failed::new(StatusCode::BAD_REQUEST, format!("{name} is not a storage: expected SCHEME://HOST, or *")))
        }
    }
}
