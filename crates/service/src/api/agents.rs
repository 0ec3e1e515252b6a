//! Agents that dial out to the service: one WebSocket carries all work of an agent.
//!
//! An agent authenticates by its key, in the TLS handshake. Passes its messages to the runner, and those of the runner
//! to it. Refuses agents of no site, and to decide what an agent does.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use sterna_net::identity::Fingerprint;
use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::queue::FileNumber;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};
use uuid::Uuid;

use super::app::{App, Authenticated};
use super::native::Failed;
use crate::caller::Method;
use crate::listing::{BATCH_FILES_MAX, Batch, FoundFile, decoded};
use crate::worker::{
    AgentReports, Connection, FromAgent, Hello, MESSAGE_BYTES_MAX, PATH, RUNNING_MAX, Report, SILENCE_MAX, ToAgent,
    decode, encode, worker_name,
};

/// Maximum characters of the release that an agent names.
const RELEASE_CHARS_MAX: usize = 64;

/// Time limit for sending one message. Reason: as that for silence; the agent reads at once.
const SEND_TIME_MAX: Duration = SILENCE_MAX;

/// Returns the routes.
pub(super) fn routes() -> Router<App> {
    Router::new().route(PATH, get(connect))
}

/// Accepts the connection of an agent. Errors: `Denied`.
async fn connect(
    Extension(Authenticated(caller)): Extension<Authenticated>,
    State(app): State<App>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failed> {
    let caller = caller?;
    let denied = |text: String| Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text);
    let agent = Some(&caller).filter(|caller| caller.method == Method::Key).and_then(|one| one.name.parse().ok());
    let agent: Fingerprint =
        agent.ok_or_else(|| denied("only agents connect here, with the certificate of their key".to_owned()))?;
    if app.service.applied().sites_of(&agent).is_empty() {
        let text = format!("{agent} is the agent of no site: `sterna config site NAME --add {agent}` adds it to one");
        return Err(denied(text).into());
    }
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, agent, app.agents)))
}

/// Serves a connection to its end.
async fn serve(mut socket: WebSocket, agent: Fingerprint, reports: AgentReports) {
    let (id, (messages, mut to_agent)) = (Uuid::new_v4(), mpsc::unbounded_channel());
    let hello = match hello(&mut socket).await {
        Ok(hello) => hello,
        Err(error) => return warn!("connection of {agent}: {}", error.chain()),
    };
    let worker = worker_name(&agent, hello.run);
    let Hello { release, address, running, lists, .. } = hello;
    let connected = Connection { id, agent, release, address, running, lists, messages };
    // The service is ending if nobody receives.
    if reports.send((worker.clone(), Report::Connected(Box::new(connected)))).await.is_err() {
        return;
    }
    let mut silent_at = Instant::now() + SILENCE_MAX;
    let ended = loop {
        let turn = tokio::select! {
            message = to_agent.recv() => match message {
                Some(message) => send(&mut socket, &message).await,
                None => Err(failed("another connection of the agent has replaced it")),
            },
            received = timeout_at(silent_at, socket.recv()) => {
                silent_at = Instant::now() + SILENCE_MAX;
                match received {
                    Err(_) => Err(failed(&format!("nothing has arrived for {SILENCE_MAX:?}"))),
                    Ok(None) => Err(failed("the agent has closed it")),
                    Ok(Some(Err(e))) => Err(failed("receive").caused_by(e)),
                    Ok(Some(Ok(message))) => match report_in(&message) {
                        Ok(Some(report)) => {
                            let sent = reports.send((worker.clone(), report)).await;
                            sent.map_err(|_| failed("the service ends"))
                        }
                        Ok(None) => Ok(()),
                        Err(error) => Err(error),
                    },
                }
            }
        };
        if let Err(error) = turn {
            break error;
        }
    };
    debug!("connection of {agent}: {}", ended.chain());
    let _ = reports.send((worker, Report::Disconnected(id))).await;
}

fn failed(text: &str) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Service, Phase::Transfer, text)
}

/// Receives the first message. Errors: it does not arrive in time, or is another one.
async fn hello(socket: &mut WebSocket) -> Result<Hello, Error> {
    let first = timeout(SILENCE_MAX, socket.recv()).await;
    let first = first.map_err(|_| failed(&format!("no hello has arrived for {SILENCE_MAX:?}")))?;
    let first = first.ok_or_else(|| failed("closed before the hello"))?;
    let Message::Text(text) = first.map_err(|e| failed("receive the hello").caused_by(e))? else {
        return Err(Error::protocol("the first message is no text"));
    };
    let FromAgent::Hello(hello) = decode(&text)? else { return Err(Error::protocol("the first message is no hello")) };
    let is_release = hello.release.chars().count() <= RELEASE_CHARS_MAX && !hello.release.chars().any(char::is_control);
    if !is_release || hello.running.len() > RUNNING_MAX {
        return Err(Error::protocol("the hello has a release or a number of transfers that cannot be"));
    }
    if let Some(address) = &hello.address {
        address.parse::<HostPort>().map_err(|why| Error::protocol(format!("the address {address:?}: {why}")))?;
    }
    Ok(hello)
}

/// Returns the report in a message; `None`: it has none. Errors: the message is not understood.
fn report_in(message: &Message) -> Result<Option<Report>, Error> {
    let text = match message {
        Message::Text(text) => text,
        // The library answers pings. A close is followed by the end of the stream.
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
        Message::Binary(_) => return Err(Error::protocol("a message that is no text")),
    };
    match decode(text)? {
        FromAgent::Progress { transfers } => Ok(Some(Report::Progress(transfers))),
        FromAgent::Ended { key, moved, failure } => {
            let failure = failure.map(|failure| failure.to_error());
            Ok(Some(Report::Ended { key, moved: moved.clipped(), failure }))
        }
        FromAgent::Found { files, .. } if files.len() > BATCH_FILES_MAX => {
            Err(Error::protocol(format!("a batch of a listing with {} files", files.len())))
        }
        FromAgent::Found { listing, files } => {
            // An agent that names a file outside of the prefix is no agent of ours.
            let found = |(path, size): &(String, u64)| Ok(FoundFile { path: decoded(path)?, size: Some(*size) });
            let files = files.iter().map(found).collect::<Result<_, Error>>();
            let files = files.map_err(|e| Error::protocol("a file of a listing").caused_by(e))?;
            Ok(Some(Report::Listing { id: listing, batch: Batch::Files(files) }))
        }
        FromAgent::Listed { listing, failure } => {
            let outcome = failure.map_or(Ok(()), |failure| Err(failure.to_error()));
            Ok(Some(Report::Listing { id: listing, batch: Batch::Ended(outcome) }))
        }
        FromAgent::Deleted { file, failure } => {
            let failure = failure.map(|failure| failure.to_error());
            Ok(Some(Report::Deleted { file: FileNumber(file), failure }))
        }
        FromAgent::Visited { visit } => match visit.decode() {
            Ok(visited) => Ok(Some(Report::Visited(Box::new(visited)))),
            Err(error) => {
                debug!("skip a visit: {}", error.chain());
                Ok(None)
            }
        },
        FromAgent::Hello(_) => Err(Error::protocol("a second hello")),
        FromAgent::Unknown => Ok(None),
    }
}

async fn send(socket: &mut WebSocket, message: &ToAgent) -> Result<(), Error> {
    let text = encode(message)?;
    let sent = timeout(SEND_TIME_MAX, socket.send(Message::Text(text.into()))).await;
    let sent = sent.map_err(|_| failed(&format!("the agent has read nothing for {SEND_TIME_MAX:?}")))?;
    sent.map_err(|e| failed("send").caused_by(e))
}
