//! Replies of the FTS3 interface: JSON, and the shape of its failures.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::api::app::{caller_of, status_of};
use crate::caller::Caller;

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
        let reason = self.status.canonical_reason().unwrap_or("Error");
        let status = format!("{} {reason}", self.status.as_u16());
        json_reply(self.status, &json!({"status": status, "message": self.message}))
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
