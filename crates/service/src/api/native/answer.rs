//! Replies of the native interface: its failures, and the caller of a request.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::types::Problem;
use crate::api::app::{caller_of, status_of};
use crate::caller::Caller;

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
