//! Macaroons: tokens that a storage makes for a user with a certificate, for one file and a few hours.
//!
//! The active party of a third-party copy cannot have the certificate of the user. It gets a macaroon of the passive
//! party instead, as gfal2 does. A storage that makes none is left alone: the copy then shows what it allows.

use std::time::Duration;

use hyper::body::Bytes;
use serde::Deserialize;
use sterna_proto::Phase;
use tokio::time::timeout;

use super::client::{Client, End, Request, Route};
use super::payload::Payload;
use crate::credentials::Secret;

/// Time limit of the request. Reason: the storage only computes.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// Validity. Reason: a large file is opened again for each of its ranges, and the copy may wait in a queue.
const VALIDITY: &str = "PT12H";

/// Rights that a macaroon gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// To read the file.
    Read,
    /// To write a new file.
    Write,
}

/// Answer of a storage. Source: the macaroon requests of dCache and XRootD.
#[derive(Deserialize)]
struct Answer {
    macaroon: String,
}

/// Asks a storage for a macaroon. `None`: it makes none, or the user has no certificate for it.
pub(super) async fn request(client: &Client, end: &End, rights: Rights) -> Option<Secret> {
    if end.identity.proxy.is_none() || !end.at.is_encrypted() {
        return None;
    }
    let activities = match rights {
        Rights::Read => "DOWNLOAD,LIST",
        Rights::Write => "UPLOAD,LIST",
    };
    let body = serde_json::json!({"caveats": [format!("activity:{activities}")], "validity": VALIDITY}).to_string();
    let headers = vec![("content-type", "application/macaroon-request".to_owned())];
    let request =
        Request { method: "POST", end, headers, time: REQUEST_TIME_MAX, phase: Phase::Prepare, passive_token: None };
    let payload = Payload::Whole(Some(Bytes::from(body)));
    let route = Route::new(end.at.clone());
    let reply = timeout(REQUEST_TIME_MAX, client.exchange(&request, &route, payload, |_, _| {})).await.ok()?;
    let reply = reply.inspect_err(|error| tracing::debug!("{}", error.chain())).ok()?;
    let is_success = reply.is_success();
    let text = client.text(reply).await;
    let answer: Answer = serde_json::from_str(&text).ok().filter(|_| is_success)?;
    Secret::new(&answer.macaroon)
}
