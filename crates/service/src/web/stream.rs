//! Streamed transfer: this worker reads from the source and writes to the destination.
//!
//! For storages that cannot copy to each other, and for files of this host. The body of the PUT starts after the
//! destination agrees to it (`Expect: 100-continue`): a redirector answers with another place first, and a full storage
//! refuses. Refuses to keep a file in memory or on disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::ext::on_informational;
use sterna_proto::digest::InOrder;
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, FileDigests, Phase};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::client::{Client, End, Reply, Request, Route};
use super::meter::{Meter, Wait};
use super::payload::Payload;
use super::progress::Progress;
use super::reader::{Reader, SILENCE_MAX};
use super::source::Source;
use super::storage;

/// Time for which the destination may be silent about the beginning. Source: RFC 9110, section 10.1.1, asks for a
/// limit; curl waits 1 s. Reason: a redirector that looks for a disk server takes longer.
const EXPECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Number of frames between the reader and the connection. Reason: both find work; a frame has up to some 100 KB.
const FRAMES_MAX: usize = 8;

/// Time limit from the last byte to the answer, for an empty file. Reason: a storage flushes and computes a checksum.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(300);

/// Rate at which a storage may compute that checksum.
const ANSWER_BYTES_PER_S: u64 = 50_000_000;

/// Streamed transfer.
pub(super) struct Stream<'a> {
    /// Client.
    pub client: &'a Arc<Client>,
    /// Source.
    pub source: &'a Source,
    /// Entity tag of that file.
    pub tag: Option<String>,
    /// File to write at the destination.
    pub target: &'a End,
    /// A file with that name may be replaced.
    pub may_replace: bool,
    /// Size of the file.
    pub size: u64,
    /// Number of ranges that the user wants to be read at the same time.
    pub ranges: Option<u32>,
    /// Digests that are computed.
    pub checks: Checks,
    /// Gets the bytes that have moved.
    pub progress: &'a Progress,
}

/// Bytes that are read once, with their digest.
struct Feed<'a> {
    reader: Reader,
    digests: InOrder,
    /// Bytes that were read.
    bytes: u64,
    progress: &'a Progress,
    meter: &'a Meter<'a>,
}

impl Feed<'_> {
    /// Reads the whole file into a connection, or until that is gone.
    async fn pump(&mut self, to: mpsc::Sender<Bytes>, request: &Request<'_>) -> Result<(), Error> {
        while let Some(bytes) = self.meter.during(Wait::Source, self.reader.next()).await? {
            self.digests.update(&bytes);
            self.bytes += bytes.len() as u64;
            match self.meter.during(Wait::Destination, timeout(SILENCE_MAX, to.send(bytes))).await {
                Ok(Ok(())) => self.progress.handle(self.bytes, Instant::now()),
                // The connection has ended; its request has the reason.
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    let text = format!("no byte was taken for {} s", SILENCE_MAX.as_secs());
                    return Err(request.failed(ErrorKind::Unreachable, &text));
                }
            }
        }
        Ok(())
    }
}

impl Stream<'_> {
    /// Moves the file. Returns the digests of the bytes that were read. `Ok`: the storage has reported success.
    pub async fn run(self) -> Result<FileDigests, Error> {
        let meter = Meter::new(self.progress, self.source.storage().is_none());
        let outcome = tokio::select! {
            outcome = self.run_measured(&meter) => outcome,
            never = meter.run() => match never {},
        };
        meter.finish();
        outcome
    }

    async fn run_measured(&self, meter: &Meter<'_>) -> Result<FileDigests, Error> {
        let began = Instant::now();
        let opened = self.source.open(self.client, self.size, self.tag.clone(), self.ranges).await;
        meter.opened(began.elapsed());
        let (reader, digests) = (opened?, InOrder::new(self.checks));
        let mut feed = Feed { reader, digests, bytes: 0, progress: self.progress, meter };
        let mut route = Route::new(self.target.at.clone());
        let request = self.request();
        let (mut has_made_parents, mut has_restarted) = (false, false);
        loop {
            let reply = self.put(&request, &route, &mut feed).await?;
            if let Some(next) = self.client.redirected(&request, &route, &reply)? {
                self.client.finish(reply).await;
                // Some servers say 100-continue before they redirect. The place of the redirect knows better.
                if feed.bytes > 0 && std::mem::replace(&mut has_restarted, true) {
                    let text = "another redirect after the beginning of the file";
                    return Err(request.failed(ErrorKind::Protocol, text));
                }
                self.restart(&mut feed).await?;
                route = next;
                continue;
            }
            // Servers without 100-continue may refuse after the beginning: then the next attempt finds the directory.
            if matches!(reply.status, 404 | 409) && !has_made_parents {
                self.client.finish(reply).await;
                storage::make_parents(self.client, self.target).await?;
                self.restart(&mut feed).await?;
                has_made_parents = true;
                continue;
            }
            if !reply.is_success() {
                return Err(self.client.refused(&request, reply).await);
            }
            self.client.finish(reply).await;
            if feed.bytes < self.size {
                return Err(request.failed(ErrorKind::Protocol, "an answer before the end of the file"));
            }
            return Ok(computed(feed.digests));
        }
    }

    fn request(&self) -> Request<'_> {
        let mut headers =
            vec![("content-length", self.size.to_string()), ("content-type", "application/octet-stream".to_owned())];
        if self.size > 0 {
            headers.push(("expect", "100-continue".to_owned()));
        }
        if !self.may_replace {
            // Somebody may have written there since the last look. A server that knows the condition answers 412.
            headers.push(("if-none-match", "*".to_owned()));
        }
        let time = ANSWER_TIME_MIN + Duration::from_secs(self.size / ANSWER_BYTES_PER_S);
        Request { method: "PUT", end: self.target, headers, time, phase: Phase::Transfer, passive_token: None }
    }

    /// Reads the file from its beginning again, if some of it was read.
    async fn restart(&self, feed: &mut Feed<'_>) -> Result<(), Error> {
        if feed.bytes > 0 {
            feed.reader = self.source.open(self.client, self.size, self.tag.clone(), self.ranges).await?;
            (feed.bytes, feed.digests) = (0, InOrder::new(self.checks));
        }
        Ok(())
    }

    /// Sends the file once. Returns the answer, which may come before the end of the file.
    async fn put(&self, request: &Request<'_>, route: &Route, feed: &mut Feed<'_>) -> Result<Reply, Error> {
        let (sender, receiver) = mpsc::channel(FRAMES_MAX);
        let meter = feed.meter;
        let agreed = Arc::new(Notify::new());
        let payload = if self.size > 0 { Payload::Stream(receiver) } else { Payload::Empty };
        let prepare = |head: &mut hyper::Request<()>, connection: &Arc<TcpStream>| {
            meter.watch(connection);
            let agreed = Arc::clone(&agreed);
            on_informational(head, move |answer| {
                if answer.status() == hyper::StatusCode::CONTINUE {
                    agreed.notify_one();
                }
            });
        };
        let mut sending = std::pin::pin!(self.client.exchange(request, route, payload, prepare));
        if self.size > 0 {
            let answer = async {
                tokio::select! {
                    reply = &mut sending => Some(reply),
                    () = agreed.notified() => None,
                    () = sleep(EXPECT_TIME_MAX) => None,
                }
            };
            if let Some(reply) = meter.during(Wait::Answer, answer).await {
                return reply;
            }
            tokio::select! {
                reply = &mut sending => return reply,
                pumped = feed.pump(sender, request) => pumped?,
            }
        }
        match meter.during(Wait::Answer, timeout(request.time, sending)).await {
            Ok(reply) => reply,
            Err(_) => {
                let text = format!("no answer within {} s after the last byte", request.time.as_secs());
                Err(request.failed(ErrorKind::Unreachable, &text))
            }
        }
    }
}

/// Reads a whole file, and returns its digest: of a storage that computes none, or of this host.
pub(super) async fn read_digest(mut reader: Reader, algorithm: Algorithm) -> Result<Option<Digest>, Error> {
    let mut digests = InOrder::new(Checks::NONE.with(algorithm));
    while let Some(bytes) = reader.next().await? {
        digests.update(&bytes);
    }
    Ok(computed(digests).digest(algorithm))
}

/// Returns the digests that were computed. BLAKE3 never is: storages do not have it.
fn computed(in_order: InOrder) -> FileDigests {
    let mut digests = FileDigests { blake3: [0; 32], adler32: None, crc32c: None, md5: None, sha256: None };
    in_order.finish_into(&mut digests);
    digests
}
