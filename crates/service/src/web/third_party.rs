//! Third-party copy: a storage moves the bytes to or from another one (WebDAV COPY, WLCG HTTP-TPC).
//!
//! The outcome is the last line of the answer. Success there is not believed: the caller looks at the destination.
//! Refuses to choose the way, and to move bytes itself.

use std::time::{Duration, Instant};

use sterna_proto::limit::Limit;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::time::timeout;

use super::client::{Client, End, Reply, Request};
use super::failure::{self, Party};
use super::macaroon::Rights;
use super::marker::{Markers, Verdict};
use super::modes::Mode;
use super::progress::Progress;
use super::{macaroon, storage};
use crate::credentials::Secret;

/// Time limit to the status. Reason: the active party may look at the other one first, for up to 60 s.
const STATUS_TIME_MAX: Duration = Duration::from_secs(120);

/// Time for which the answer may be silent. Reason: storages send a marker every 5 s; dCache waits for a mover before.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Time for which the number of bytes may stay the same. Reason: a queue for a disk, or a storage that computes a
/// checksum at the end. Guess.
const STALL_MAX: Duration = Duration::from_secs(600);

/// Least size for several streams. Reason: XRootD cuts files into ranges of 16 MiB, and fails with an empty file.
const STREAMS_FROM_BYTES: u64 = 64 << 20;

/// Maximum number of streams. Source: XRootD refuses more.
const STREAMS_MAX: u32 = 100;

/// Answer of a redirector to the first copy to a name that is new to it; the same request is redirected then.
const NEW_TO_REDIRECTOR: &str = "failed to open local resource";

/// Failure of one way to move a file.
#[derive(Debug)]
pub(super) struct Failed {
    /// Error.
    pub error: Error,
    /// Use of another way.
    pub then: Then,
}

/// Use of another way after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The file would fail on every way.
    Ends,
    /// Another way may work for this file.
    NextMode,
    /// This way does not work for these storages.
    Refused,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, then: Then::Ends }
    }
}

/// Copy between two storages.
pub(super) struct ThirdParty<'a> {
    /// Client.
    pub client: &'a Client,
    /// File at the source.
    pub source: &'a End,
    /// File to write at the destination.
    pub target: &'a End,
    /// Size of the file.
    pub size: u64,
    /// A file with that name may be replaced.
    pub may_replace: bool,
    /// Number of streams that the user wants.
    pub streams: Option<u32>,
    /// Gets the bytes that have moved.
    pub progress: &'a Progress,
}

impl ThirdParty<'_> {
    /// Copies. `Ok`: the active party reports success, or nothing; then the destination shows the outcome.
    pub async fn run(&self, mode: Mode) -> Result<(), Failed> {
        let mut has_made_parents = false;
        let mut has_repeated = false;
        let (passive, rights) = match mode {
            Mode::Push => (self.target, Rights::Write),
            _ => (self.source, Rights::Read),
        };
        let token = match &passive.identity.token {
            Some(token) => Some(token.clone()),
            None => macaroon::request(self.client, passive, rights).await,
        };
        loop {
            let request = self.request(mode, token.as_ref());
            // Without an answer the copy may have begun, and nobody else may write to the same name.
            let unanswered = |e: Error| match e.kind {
                ErrorKind::Denied | ErrorKind::Protocol => next_mode(e),
                _ => e.into(),
            };
            let reply = self.client.send(&request).await.map_err(unanswered)?;
            if reply.is_success() {
                return self.follow(&request, reply, mode).await;
            }
            let (status, headers) = (reply.status, reply.headers.clone());
            let text = request.hide_in(&self.client.text(reply).await);
            if !has_repeated && text.to_ascii_lowercase().contains(NEW_TO_REDIRECTOR) {
                has_repeated = true;
                continue;
            }
            let is_missing_parent = mode == Mode::Pull
                && (status == 409
                    || matches!(failure::kind_of_text(&text), Some((ErrorKind::NotFound, Party::Active))));
            if is_missing_parent && !has_made_parents {
                has_made_parents = true;
                storage::make_parents(self.client, self.target).await?;
                continue;
            }
            let place = (request.end.scope, request.phase);
            let plain = failure::of_status(&request.tried(), place, status, &headers, &text);
            return Err(self.classified(mode, plain, &text, status));
        }
    }

    /// Returns the request. `token`: that of the passive party.
    fn request<'r>(&'r self, mode: Mode, token: Option<&'r Secret>) -> Request<'r> {
        let (active, passive, header) = match mode {
            Mode::Push => (self.source, self.target, "destination"),
            _ => (self.target, self.source, "source"),
        };
        let mut headers = vec![
            (header, passive.at.url().to_owned()),
            ("credential", "none".to_owned()),
            ("secure-redirection", "1".to_owned()),
            // dCache would refuse a source without digests; they are compared afterwards.
            ("requirechecksumverification", "false".to_owned()),
            // A server that takes a push for a copy within itself must not replace a file of its own.
            ("overwrite", if self.may_replace && mode == Mode::Pull { "T" } else { "F" }.to_owned()),
        ];
        let streams = self.streams.filter(|streams| *streams > 1 && self.size >= STREAMS_FROM_BYTES);
        if let Some(streams) = streams.filter(|_| mode == Mode::Pull) {
            headers.push(("x-number-of-streams", streams.min(STREAMS_MAX).to_string()));
        }
        Request {
            method: "COPY",
            end: active,
            headers,
            time: STATUS_TIME_MAX,
            phase: Phase::Transfer,
            passive_token: token,
        }
    }

    /// Reads the answer until its verdict.
    async fn follow(&self, request: &Request<'_>, mut reply: Reply, mode: Mode) -> Result<(), Failed> {
        let status = reply.status;
        let mut markers = Markers::default();
        let (mut bytes, mut grown) = (0, Instant::now());
        let (mut count, mut counted) = (0, Instant::now());
        let cut = loop {
            match timeout(SILENCE_MAX, reply.bytes()).await {
                Ok(Ok(Some(read))) => markers.handle_bytes(&read),
                Ok(Ok(None)) => break None,
                Ok(Err(e)) => {
                    break Some(request.failed(ErrorKind::Unreachable, "the answer ended early").caused_by(e));
                }
                Err(_) => {
                    let text = format!("no marker for {} s", SILENCE_MAX.as_secs());
                    break Some(request.failed(ErrorKind::Unreachable, &text));
                }
            }
            let now = Instant::now();
            let has_grown = markers.bytes() > bytes;
            // A verdict without a marker before it stands for the time since the last one.
            if markers.count > count {
                count = markers.count;
                self.count(has_grown, now.saturating_duration_since(std::mem::replace(&mut counted, now)));
            }
            markers.stripes().into_iter().for_each(|stripes| self.progress.set_stripes(stripes));
            if has_grown {
                (bytes, grown) = (markers.bytes(), now);
                self.progress.handle(bytes.min(self.size), now);
            } else if now.saturating_duration_since(grown) >= STALL_MAX {
                let text = format!("no progress for {} s, after {bytes} bytes", STALL_MAX.as_secs());
                return Err(request.failed(ErrorKind::Unreachable, &text).into());
            }
        };
        markers.handle_end();
        // A success stands for the rest of the bytes, which no marker has.
        let has_grown = markers.verdict == Some(Verdict::Success) && bytes < self.size;
        self.count(has_grown, counted.elapsed());
        if cut.is_none() {
            self.client.finish(reply).await;
        }
        match (markers.verdict, cut) {
            (Some(Verdict::Success), _) => Ok(()),
            (Some(Verdict::Failure(text)), _) => {
                let text = request.hide_in(&text);
                let plain = request.failed(ErrorKind::Io, &failure::shown(&text));
                Err(self.classified(mode, plain, &text, status))
            }
            (None, Some(error)) => Err(error.into()),
            // The end without a verdict: the state of the destination tells.
            (None, None) if markers.is_third_party => Ok(()),
            (None, None) => {
                self.remove_stray(mode).await;
                let text = format!("{status} without a marker: the server copies nothing to or from others");
                Err(Failed { error: request.failed(ErrorKind::Usage, &text), then: Then::Refused })
            }
        }
    }

    /// Counts time between two looks at the markers, which say nothing else about its limit.
    fn count(&self, has_grown: bool, time: Duration) {
        self.progress.add(if has_grown { Limit::ServerOrPath } else { Limit::Silence }, time);
    }

    /// Removes the file that nginx and Apache made: they take a push for a copy within themselves. The name is a
    /// temporary one of ours.
    async fn remove_stray(&self, mode: Mode) {
        if mode != Mode::Push {
            return;
        }
        let path = &self.target.at.url()[self.target.at.origin().len()..];
        let Ok(stray) = self.source.at.join(path) else { return };
        if let Err(error) = storage::delete(self.client, &self.source.with(stray)).await {
            tracing::warn!("{}; a copy of the file may stay there", error.chain());
        }
    }

    /// Returns the failure that a text describes, at the end that has failed.
    fn classified(&self, mode: Mode, plain: Error, text: &str, status: u16) -> Failed {
        let (active, passive) = match mode {
            Mode::Push => (Scope::Source, Scope::Destination),
            _ => (Scope::Destination, Scope::Source),
        };
        let refused = |error| Failed { error, then: Then::Refused };
        let Some((kind, party)) = failure::kind_of_text(text) else {
            // Without a text that is known, these are statuses of servers that do not copy.
            return match status {
                400 | 404 | 405 | 501 => refused(plain),
                // It has looked for a name of its own.
                412 if mode == Mode::Push => refused(plain),
                401 | 403 | 502 => next_mode(plain),
                _ => match plain.kind {
                    ErrorKind::Usage => refused(plain),
                    _ => plain.into(),
                },
            };
        };
        let scope = match party {
            Party::Active => active,
            Party::Passive => passive,
            Party::Between => Scope::Path,
        };
        let error = failure::error(kind, scope, Phase::Transfer, plain.text());
        let error = plain.wait().into_iter().fold(error, Error::wait_for);
        match (kind, party) {
            // The storages do not reach or trust each other; this worker reaches both.
            (_, Party::Between) => refused(error),
            // This worker has seen the file with the same token: the header does not get through.
            (ErrorKind::Denied, _) | (ErrorKind::Usage, _) => next_mode(error),
            _ => error.into(),
        }
    }
}

fn next_mode(error: Error) -> Failed {
    Failed { error, then: Then::NextMode }
}
