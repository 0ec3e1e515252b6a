//! Replies of the native interface: its failures, and the caller of a request.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::types::Problem;
use crate::api::app::{caller_of, status_of};
use crate::api::description::failures;
use crate::caller::Caller;

/// Number of entries of a list, unless the request has another.
const PAGE: u32 = 100;

/// Maximum number of entries of a list.
const PAGE_MAX: u32 = 1000;

/// Failure of a request.
pub(in crate::api) struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (status_of(&self.0), Json(Problem::from(&self.0))).into_response()
    }
}

/// Returns the reply to a request that the router has refused.
pub fn failure(status: StatusCode, text: String) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::Limit,
        _ if status.is_server_error() => ErrorKind::Internal,
        _ => ErrorKind::Usage,
    };
    let error = Error::new(kind, Scope::Client, Phase::Prepare, text);
    (status, Json(Problem::from(&error))).into_response()
}

/// Failures that every request can have.
pub(super) enum Refusals {}

impl utoipa::IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
        failures("Problem")
    }
}

/// Reads a body in JSON. `what`: its subject, for the text of the error. Errors: `Usage`.
pub(super) fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|e| usage(format!("{what} is not understood: {e}")))
}

/// Caller of a request of this interface.
pub(super) struct By(pub(super) Caller);

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        caller_of(parts).map(Self).map_err(Failed)
    }
}

/// Returns the error of a request that is not understood.
pub(super) fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Returns the number of entries of a list. Errors: `Usage`.
pub(super) fn page(limit: Option<u32>) -> Result<u32, Error> {
    match limit {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(usage(format!("limit={limit}: expected 1 to {PAGE_MAX}"))),
    }
}
