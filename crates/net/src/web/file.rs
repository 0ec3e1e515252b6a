//! File on a web server, as found by the first request for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::BlockOrder;
use sterna_proto::web::WebLocation;
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry};

use super::exchange::{Answer, Ask, Body, Exchange, Fault};
use super::prefix::PrefixDigests;
use super::reply::{Reply, Version};
use crate::wake::Wake;

/// Bytes of files that are held in memory until they are sent. Reason: the first request brings a small file whole.
/// 256 of the largest small files cover what lanes take at once.
const HELD_BYTES_MAX: u64 = 64 << 20;

/// Most attempts of a first request that gets no answer at all. Reason: a mistyped name is reported at once and not
/// after minutes. A server that answers with overload is waited for.
const FIRST_TRIES_MAX: u32 = 3;

/// Wait between these attempts, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest wait before a failed request is repeated. Reason: the end of an outage is noticed within this time.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Bytes that the first request for the only file asks for. Reason: they cover the time until other lanes have
/// their first bytes, on any path. A request for all of the file would have to be broken off at the end of its run.
/// A new connection would then replace one that had reached its full rate.
const FIRST_BYTES: u64 = 4 << 20;

/// Extent of a first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    /// First bytes of the file; a lane continues to read the answer. For the only file, which then costs no further
    /// round trip.
    ReadOn,
    /// As many bytes as a small file may have.
    Head,
}

/// File on a web server.
pub(super) struct WebFile {
    /// Location that the user gave.
    pub(super) named: WebLocation,
    /// Location where it was found, after redirects.
    pub(super) at: Mutex<WebLocation>,
    pub(super) version: Version,
    entry: FileEntry,
    order: BlockOrder,
    notice: Option<String>,
    /// Digests of what was read; `None` if the server identifies the version, or all of the file is in `head`.
    pub(super) digests: Option<PrefixDigests>,
    /// First bytes of the file.
    pub(super) head: HeldBytes,
    /// First answer, for the lane that starts with its next byte.
    pub(super) first: Mutex<Option<Body>>,
}

impl WebFile {
    /// Returns its file entry. The version in the entry is derived from what the server reports.
    pub(super) fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// Returns the order in which its blocks are read.
    pub(super) fn order(&self) -> BlockOrder {
        self.order
    }

    /// Returns a notice for the user about the file.
    pub(super) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Drops the first answer, because its bytes are not needed.
    pub(super) fn drop_first_answer(&self) {
        // Dropped after the lock is released.
        let _first = self.first.lock().take();
    }

    /// Returns true if ranges of it are requested.
    pub(super) fn has_ranges(&self) -> bool {
        self.order == BlockOrder::Runs
    }
}

/// Requests files for the first time.
pub(super) struct Prober {
    exchange: Arc<Exchange>,
    /// Time for which a failed request is retried.
    patience: Duration,
    held: Arc<Held>,
}

impl Prober {
    pub(super) fn new(exchange: &Arc<Exchange>, patience: Duration) -> Self {
        Self { exchange: Arc::clone(exchange), patience, held: Arc::default() }
    }

    /// Waits until the first bytes of one more file may be held, or the session is over.
    pub(super) fn wait_for_room(&self, is_over: &(dyn Fn() -> bool + Sync)) {
        self.held.wait_for_room(is_over);
    }

    /// Ends the waits for room, because the session is over.
    pub(super) fn stop(&self) {
        self.held.freed.notify();
    }

    /// Requests a file for the first time. Errors: the file is not available, or not with a known size.
    pub(super) fn probe(&self, named: &WebLocation, kind: ProbeKind) -> Result<WebFile, Error> {
        let (mut tries, mut pause, mut waited) = (0, FIRST_PAUSE, Duration::ZERO);
        loop {
            let fault = match self.probe_once(named, kind) {
                Ok(file) => return Ok(file),
                Err(fault) => fault,
            };
            tries += 1;
            // A server that has answered, even with a refusal, exists and recovers.
            let is_there = fault.error.scope == sterna_proto::Scope::Source;
            waited += pause + fault.wait + fault.tried;
            let may_try = waited < self.patience && (is_there || tries < FIRST_TRIES_MAX);
            if !fault.again || !may_try || !self.exchange.hosts.wait(pause, None) {
                let mut error = fault.error;
                error.phase = sterna_proto::Phase::Prepare;
                return Err(error);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn probe_once(&self, named: &WebLocation, kind: ProbeKind) -> Result<WebFile, Fault> {
        let range = match kind {
            ProbeKind::ReadOn => (0, Some(FIRST_BYTES)),
            ProbeKind::Head => (0, Some(PACKED_FILE_BYTES_MAX)),
        };
        let wrong = |text: &str| Fault::never(ErrorKind::Protocol, format!("GET {named}: {text}"));
        let ask = Ask { named, at: named, range: Some(range), version: None, lane: None };
        let Answer { reply, at, body } = match self.exchange.get(&ask)? {
            // An empty file has no first byte. This answer returns its permit before the next request needs it.
            Answer { reply, body, .. } if reply.status == 416 => {
                body.read_past();
                let answer = self.exchange.get(&Ask { range: None, ..ask })?;
                if answer.reply.status != 200 {
                    let status = answer.reply.status;
                    return Err(wrong(&format!(
                        "{status} to a request for the whole file, after 416 to one for its first bytes"
                    )));
                }
                answer
            }
            answer => answer,
        };
        if reply.status == 206 && (reply.start != 0 || reply.size.is_none()) {
            return Err(wrong("the answer to a request for its first bytes names no size, or begins elsewhere"));
        }
        let is_range = reply.status == 206;
        let is_large = reply.size.is_some_and(|size| size > PACKED_FILE_BYTES_MAX);
        if kind == ProbeKind::ReadOn && is_large && !is_range && reply.takes_ranges {
            // The server announces ranges. It may have sent the whole file only because all of it was requested.
            drop(body);
            return self.probe_once(named, ProbeKind::Head);
        }
        let mut body = Some(body);
        let (size, head) = match reply.size {
            Some(size) if size <= PACKED_FILE_BYTES_MAX => (size, self.read_head(named, &mut body, size)?),
            Some(size) => {
                // The rest of the head of a large file is not worth a connection.
                let head = if kind == ProbeKind::Head && is_range { PACKED_FILE_BYTES_MAX } else { 0 };
                (size, self.read_head(named, &mut body, head)?)
            }
            None if reply.is_chunked => self.read_unmeasured(named, &mut body)?,
            None => return Err(wrong(UNPROVEN)),
        };
        if reply.begins_page(&head.bytes) {
            self.exchange.refuse_page(named, &at)?;
        }
        let is_small = size <= PACKED_FILE_BYTES_MAX;
        // Two answers may be of two versions if nothing identifies the version.
        let may_mix = is_range && !is_small && !reply.version.is_named();
        if kind == ProbeKind::Head || is_small || may_mix {
            body = None;
        }
        let head = if may_mix { self.held.hold(Vec::new()) } else { head };
        let name = named.name()?;
        let is_split = is_range && !may_mix;
        let order = if is_split || is_small { BlockOrder::Runs } else { BlockOrder::OneLane };
        let version = version_number(&reply.version)?;
        let entry = FileEntry {
            path: name,
            kind: EntryKind::File,
            size,
            mtime: reply.version.time(version),
            mode: 0o644,
            allocated: size,
            inode: number_of(&[named.origin().as_bytes(), named.path().as_bytes()]),
            version,
            growth: None,
        };
        let notice = weakness(&entry, &reply, order);
        let digests = (!is_small && !reply.version.is_named()).then(|| PrefixDigests::new(entry.blocks()));
        let (at, first) = (Mutex::new(at), Mutex::new(body));
        Ok(WebFile { named: named.clone(), at, version: reply.version, entry, order, notice, digests, head, first })
    }

    /// Reads the first `count` bytes. Errors: the body is shorter.
    fn read_head(&self, named: &WebLocation, body: &mut Option<Body>, count: u64) -> Result<HeldBytes, Fault> {
        let mut bytes = vec![0; count as usize];
        let mut done = 0;
        while let Some(body) = body.as_mut().filter(|_| done < bytes.len()) {
            done += match body.read(&mut bytes[done..]) {
                Ok(count) if count > 0 => count,
                Ok(_) => return Err(Fault::cut(named, done as u64, "the body ended")),
                Err(error) => return Err(Fault::cut(named, done as u64, &error.to_string())),
            };
        }
        Ok(self.held.hold(bytes))
    }

    /// Reads a body of unknown length, to the end that its framing proves. Errors: it is too long to be held.
    fn read_unmeasured(&self, named: &WebLocation, body: &mut Option<Body>) -> Result<(u64, HeldBytes), Fault> {
        let mut bytes = vec![0; PACKED_FILE_BYTES_MAX as usize + 1];
        let mut done = 0;
        while let Some(body) = body.as_mut() {
            match body.read(&mut bytes[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => return Err(Fault::cut(named, done as u64, &error.to_string())),
            }
            if done == bytes.len() {
                return Err(Fault::never(ErrorKind::Protocol, format!("GET {named}: {UNMEASURED}")));
            }
        }
        bytes.truncate(done);
        Ok((done as u64, self.held.hold(bytes)))
    }
}

/// Reason why a body that ends with its connection is refused.
const UNPROVEN: &str = "the server sends neither its length nor a mark of its end (no Content-Length, no chunks), so that a cut \
                        could not be told from its end; not copied";

/// Reason why a body whose size comes with its end is refused.
const UNMEASURED: &str = "the server does not say how long it is (no Content-Length) and it is longer than 256 KiB; files are \
                          copied in blocks, for which their size must be known; not copied";

/// Returns a notice for the user about a version that the server does not guarantee.
fn weakness(entry: &FileEntry, reply: &Reply, order: BlockOrder) -> Option<String> {
    let path = &entry.path;
    if entry.is_packed() {
        return None;
    }
    if !reply.version.is_named() {
        return Some(format!(
            "{path}: the server gives neither an ETag nor a Last-Modified, so that parts of two versions could not be told \
             apart: one request, from the first byte to the last; a copy that is interrupted starts over"
        ));
    }
    if order == BlockOrder::OneLane {
        return Some(format!(
            "{path}: the server sends no ranges of it: one connection, from the first byte to the last"
        ));
    }
    match (reply.version.strong_tag(), &reply.version.modified) {
        (Some(_), _) => None,
        (None, Some(_)) => Some(format!(
            "{path}: the server gives no strong ETag; a change within the second of its Last-Modified would not be noticed"
        )),
        // A weak tag alone.
        (None, None) => Some(format!("{path}: the server gives no strong ETag and no Last-Modified")),
    }
}

/// Returns a number for the version: equal for equal versions, and random where the server names no version.
fn version_number(version: &Version) -> Result<u64, Error> {
    if !version.is_named() {
        return getrandom::u64().map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e));
    }
    Ok(number_of(&[version.opaque_tag().unwrap_or_default().as_bytes()]))
}

/// Returns 64 bits of a BLAKE3 digest, for numbers that are only compared.
fn number_of(words: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for word in words {
        hasher.update(&(word.len() as u64).to_le_bytes()).update(word);
    }
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    u64::from_le_bytes(number)
}

/// Count of file bytes that are held in memory.
#[derive(Default)]
struct Held {
    bytes: Mutex<u64>,
    /// Notified when there is room, and at the end of the session.
    freed: Wake,
}

impl Held {
    /// Waits until there is room for more, or the session is over.
    fn wait_for_room(&self, is_over: &(dyn Fn() -> bool + Sync)) {
        loop {
            let seen = self.freed.seen();
            if *self.bytes.lock() < HELD_BYTES_MAX || is_over() {
                return;
            }
            self.freed.wait_to(seen, None);
        }
    }

    fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> HeldBytes {
        *self.bytes.lock() += bytes.len() as u64;
        HeldBytes { bytes, held: Arc::clone(self) }
    }
}

/// File bytes in memory, counted until dropped.
pub(super) struct HeldBytes {
    pub(super) bytes: Vec<u8>,
    held: Arc<Held>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        *self.held.bytes.lock() -= self.bytes.len() as u64;
        self.held.freed.notify();
    }
}
