//! Bytes of a file, in order: at a storage by one request, or by several for ranges at the same time; or of this host.
//!
//! One connection over a long path carries its window in a round trip, and several carry more. The memory for ranges
//! that wait for earlier ones has a limit over all transfers. A transfer that gets none of it reads one range at a
//! time, as fast as its bytes are taken: slow storages do not stop the transfers of others. A range that breaks off is
//! asked for again from where it ended. Refuses to write.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONTENT_RANGE, HeaderMap};
use sterna_proto::{Error, ErrorKind, Phase, Retry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::{Client, End, Reply, Request};
use super::local::LocalReader;
use super::storage;

/// Bytes of a range. Reason: a request for each costs a round trip, in which 10 Gbit/s carry 20 MB over 16 ms.
pub(super) const BLOCK_BYTES: u64 = 16 << 20;

/// Ranges at the same time, unless the user asks for another number. Guess: memory of 64 MiB for a transfer.
const RANGES_DEFAULT: u32 = 4;

/// Maximum of ranges at the same time. Reason: more connections slow down a storage, and gain nothing.
const RANGES_MAX: u32 = 16;

/// Pieces of a range without memory of its own that wait to be taken. Reason: a piece has some 16 kB, and a change of
/// tasks for each would cost more than reading it.
const PIECES_MAX: usize = 16;

/// Time for which a storage may be silent. Reason: a tape or another site may be behind it; a dead one is noticed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Further requests for a range that broke off.
const TRIES_MAX: u32 = 3;

/// Wait before such a request.
const TRY_AFTER: Duration = Duration::from_secs(1);

/// Reader of a file.
pub(super) struct Reader(Kind);

enum Kind {
    /// One answer has the whole file.
    Whole {
        reply: Box<Reply>,
        left_bytes: u64,
        tried: String,
        end: End,
    },
    Ranges(Ranges),
    Local(LocalReader),
}

/// Bytes of a range, in order, or the error that ends it.
type Pieces = mpsc::Receiver<Result<Bytes, Error>>;

/// Ranges of a file, each read by a task of its own.
struct Ranges {
    client: Arc<Client>,
    end: End,
    tag: Option<String>,
    size: u64,
    /// Start of the next range that is asked for.
    next: u64,
    most: usize,
    /// Ranges under way or read, in order. The permit stands for the memory of one; a range without one is the first,
    /// and is read as fast as its bytes are taken.
    under_way: VecDeque<(Pieces, Option<OwnedSemaphorePermit>)>,
    /// Ended when this is dropped.
    tasks: JoinSet<()>,
}

impl Reader {
    /// Creates the reader of a file of this host.
    pub fn local(reader: LocalReader) -> Self {
        Self(Kind::Local(reader))
    }

    /// Asks a storage for a file. Errors: the storage refuses, or its file has another size or tag.
    pub async fn open(
        client: &Arc<Client>,
        end: &End,
        size: u64,
        tag: Option<String>,
        ranges: Option<u32>,
    ) -> Result<Self, Error> {
        let most = ranges.unwrap_or(RANGES_DEFAULT).clamp(1, RANGES_MAX) as usize;
        let first = 0..size.min(BLOCK_BYTES);
        let is_whole = first.end == size || most == 1;
        let range = (!is_whole).then(|| first.clone());
        let (reply, is_range) = ask(client, end, range, (size, tag.as_deref())).await?;
        if !is_range {
            let tried = format!("GET {}", end.at);
            let kind = Kind::Whole { reply: Box::new(reply), left_bytes: size, tried, end: end.clone() };
            return Ok(Self(kind));
        }
        let (client, end) = (Arc::clone(client), end.clone());
        let mut ranges =
            Ranges { client, end, tag, size, next: first.end, most, under_way: VecDeque::new(), tasks: JoinSet::new() };
        let permit = ranges.permit();
        ranges.start(first, permit, Some(reply));
        ranges.fill();
        Ok(Self(Kind::Ranges(ranges)))
    }

    /// Returns the next bytes; `None` at the end of the file.
    ///
    /// Errors: the storage breaks off, or sends more or fewer bytes than the file has.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match &mut self.0 {
            Kind::Ranges(ranges) => ranges.next().await,
            Kind::Local(reader) => reader.next().await,
            Kind::Whole { reply, left_bytes, tried, end } => {
                let request = Request {
                    method: "GET",
                    end,
                    headers: Vec::new(),
                    time: SILENCE_MAX,
                    phase: Phase::Transfer,
                    passive_token: None,
                };
                let bytes = read(&request, reply).await?;
                let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                match bytes {
                    None if *left_bytes > 0 => {
                        let text = format!("{tried}: the answer ended {left_bytes} bytes early");
                        Err(super::failure::error(ErrorKind::Unreachable, end.scope, Phase::Transfer, text))
                    }
                    Some(_) if length > *left_bytes => {
                        Err(request.failed(ErrorKind::Changed, "more bytes than the file had"))
                    }
                    bytes => {
                        *left_bytes -= length;
                        Ok(bytes)
                    }
                }
            }
        }
    }
}

impl Ranges {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some((range, _)) = self.under_way.front_mut() else {
                if self.next >= self.size {
                    return Ok(None);
                }
                let permit = self.permit();
                self.start_next(permit);
                self.fill();
                continue;
            };
            match range.recv().await {
                Some(bytes) => return bytes.map(Some),
                None => {
                    self.under_way.pop_front();
                    self.fill();
                }
            }
        }
    }

    /// Starts ranges as far as their number and the memory allow.
    fn fill(&mut self) {
        while self.under_way.len() < self.most && self.next < self.size {
            let Some(permit) = self.permit() else { return };
            self.start_next(Some(permit));
        }
    }

    /// Returns memory for a range, if some is free.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.client.memory).try_acquire_owned().ok()
    }

    fn start_next(&mut self, permit: Option<OwnedSemaphorePermit>) {
        let range = self.next..self.size.min(self.next + BLOCK_BYTES);
        self.next = range.end;
        self.start(range, permit, None);
    }

    fn start(&mut self, range: Range<u64>, permit: Option<OwnedSemaphorePermit>, reply: Option<Reply>) {
        // With a permit, all pieces of the range may wait: it has at most BLOCK_BYTES.
        let pieces = if permit.is_some() { Semaphore::MAX_PERMITS } else { PIECES_MAX };
        let (sender, receiver) = mpsc::channel(pieces);
        let fetch = Fetch {
            client: Arc::clone(&self.client),
            end: self.end.clone(),
            tag: self.tag.clone(),
            size: self.size,
            sender,
        };
        self.tasks.spawn(fetch.run(range, reply));
        // Those that have ended leave the set.
        while self.tasks.try_join_next().is_some() {}
        self.under_way.push_back((receiver, permit));
    }
}

/// Task that reads one range.
struct Fetch {
    client: Arc<Client>,
    end: End,
    tag: Option<String>,
    size: u64,
    sender: mpsc::Sender<Result<Bytes, Error>>,
}

impl Fetch {
    async fn run(self, mut range: Range<u64>, mut reply: Option<Reply>) {
        for tried in 0.. {
            match self.fetch(&mut range, reply.take()).await {
                Ok(()) => return,
                Err(error) if error.retry == Retry::After && tried < TRIES_MAX => {
                    tracing::debug!("{}; asking again from byte {}", error.chain(), range.start);
                    sleep(TRY_AFTER).await;
                }
                Err(error) => {
                    // The transfer has ended if nobody receives.
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    /// Reads the rest of a range, and moves its start.
    async fn fetch(&self, range: &mut Range<u64>, reply: Option<Reply>) -> Result<(), Error> {
        let request = Request {
            method: "GET",
            end: &self.end,
            headers: Vec::new(),
            time: SILENCE_MAX,
            phase: Phase::Transfer,
            passive_token: None,
        };
        let (mut reply, is_range) = match reply {
            Some(reply) => (reply, true),
            None => ask(&self.client, &self.end, Some(range.clone()), (self.size, self.tag.as_deref())).await?,
        };
        if !is_range {
            return Err(request.failed(ErrorKind::Protocol, "the whole file instead of a range"));
        }
        while range.start < range.end {
            let Some(bytes) = read(&request, &mut reply).await? else {
                let text = format!("the answer ended at byte {} of {}", range.start, self.size);
                return Err(request.failed(ErrorKind::Unreachable, &text));
            };
            if bytes.len() as u64 > range.end - range.start {
                return Err(request.failed(ErrorKind::Protocol, "more bytes than the range has"));
            }
            range.start += bytes.len() as u64;
            let _ = self.sender.send(Ok(bytes)).await;
        }
        self.client.finish(reply).await;
        Ok(())
    }
}

/// Reads the next bytes of an answer.
async fn read(request: &Request<'_>, reply: &mut Reply) -> Result<Option<Bytes>, Error> {
    match timeout(SILENCE_MAX, reply.bytes()).await {
        Ok(read) => read.map_err(|e| request.failed(ErrorKind::Unreachable, "the answer broke off").caused_by(e)),
        Err(_) => {
            let text = format!("nothing came for {} s", SILENCE_MAX.as_secs());
            Err(request.failed(ErrorKind::Unreachable, &text))
        }
    }
}

/// Asks for a file or a range of it. Returns false beside the answer if that has the whole file.
async fn ask(
    client: &Client,
    end: &End,
    range: Option<Range<u64>>,
    (size, tag): (u64, Option<&str>),
) -> Result<(Reply, bool), Error> {
    // Both ends of a range are given: XRootD 5 reads an open one wrongly.
    let header = range.as_ref().map(|range| ("range", format!("bytes={}-{}", range.start, range.end - 1)));
    let headers = header.into_iter().collect();
    let request =
        Request { method: "GET", end, headers, time: SILENCE_MAX, phase: Phase::Transfer, passive_token: None };
    let reply = client.send(&request).await?;
    let changed = |what: &str| request.failed(ErrorKind::Changed, what);
    match (reply.status, &range) {
        (200, _) => {
            if storage::size_in(&reply.headers).is_some_and(|now| now != size) {
                return Err(changed("the file has another size now"));
            }
        }
        (206, Some(range)) => {
            let found = range_in(&reply.headers);
            let is_same = found.is_some_and(|(start, end, whole)| {
                start == range.start && end == range.end && whole.is_none_or(|whole| whole == size)
            });
            if !is_same {
                return Err(request.failed(ErrorKind::Protocol, "another range than the one that was asked for"));
            }
        }
        _ => return Err(client.refused(&request, reply).await),
    }
    let now = storage::tag_in(&reply.headers);
    if tag.is_some() && now.is_some() && now.as_deref() != tag {
        return Err(changed("the file has another ETag now"));
    }
    let is_range = reply.status == 206;
    Ok((reply, is_range))
}

/// Returns start, end (exclusive) and size of the whole file in `Content-Range: bytes 0-99/200`.
fn range_in(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim();
    let (unit, rest) = text.split_once(' ')?;
    let (range, whole) = rest.split_once('/').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, whole.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let read = |text: &'static str| range_in(&HeaderMap::from_iter([(CONTENT_RANGE, text.parse().unwrap())]));
        assert_eq!(read("bytes 0-99/200"), Some((0, 100, Some(200))));
        assert_eq!(read("Bytes 5-5/*"), Some((5, 6, None)));
        for wrong in ["bytes 5--1/20", "0-99/200", "bytes a-b/c", "bytes 0-18446744073709551615/*", ""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
