//! Files behind each implementation, a manifest that records, and a web server of a few lines.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sterna_proto::follow::EndRule;
use sterna_proto::session::{BlockOrder, FileId};
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, FileEntry, Growth};
use tempfile::TempDir;

use super::super::{Follow, FollowRules, OfferedFile, Offers, Roots, Source, SourcePlace};
use crate::disk::{Access, Root};
use crate::observer::{Observer, SessionEvent};
use crate::wake::Wake;
use crate::web::{Web, WebOptions};

/// Implementation of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Roots,
    OnDemand,
    Followed,
    Web,
}

pub(super) const KINDS: [Kind; 4] = [Kind::Roots, Kind::OnDemand, Kind::Followed, Kind::Web];

/// Directory of files, behind a source of one kind.
pub(super) struct Fixture {
    kind: Kind,
    directory: TempDir,
    server: Server,
}

impl Fixture {
    pub(super) fn new(kind: Kind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(directory.path());
        Self { kind, directory, server }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Returns the source of these files, each named.
    pub(super) fn source(&self, names: &[&str]) -> Arc<dyn Source> {
        let root = Root::open(self.directory.path(), Access::ReadWrite).unwrap();
        let place = |name: &&str| SourcePlace { root: root.clone(), pattern: name.as_bytes().to_vec(), name: None };
        let places: Vec<SourcePlace> = names.iter().map(place).collect();
        match self.kind {
            Kind::Roots => Roots::new(places),
            Kind::OnDemand => Roots::on_demand(places),
            Kind::Followed => {
                let end = EndRule::after(Duration::ZERO);
                let rules = FollowRules { end, growth: Growth::for_rate(None), takes_away: false };
                let roots = places.into_iter().map(|place| (place.root, place.pattern)).collect();
                Arc::new(Follow::new(roots, rules).unwrap()).session().unwrap()
            }
            Kind::Web => {
                let location =
                    |name: &&str| WebLocation::parse(&format!("http://{}/{name}", self.server.addr)).unwrap();
                let patience = Duration::from_secs(1);
                let options = WebOptions {
                    token: None,
                    uses_netrc: true,
                    hosts: None,
                    authority: None,
                    connections: 4,
                    patience,
                    is_expected: false,
                };
                Arc::new(Web::new(&options, names.iter().map(location).collect(), None, Arc::new(Silent)).unwrap())
            }
        }
    }
}

struct Silent;

impl Observer for Silent {
    fn session_event(&self, _: SessionEvent) {}
}

/// File that a source has offered.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) id: FileId,
    pub(super) entry: FileEntry,
    pub(super) file: Arc<dyn OfferedFile>,
}

/// Manifest that records what a source reports. Plays a receiver that has every block of every file.
pub(super) struct Manifest {
    listed: Mutex<Listed>,
    changed: Condvar,
    wake: Wake,
}

#[derive(Default)]
pub(super) struct Listed {
    offers: Vec<Offer>,
    errors: Vec<Error>,
    final_digests: HashMap<FileId, [u8; 32]>,
    /// Number of files that may still be offered.
    room: usize,
    is_closed: bool,
}

impl Listed {
    /// Returns the number of offers and errors.
    pub(super) fn reported(&self) -> usize {
        self.offers.len() + self.errors.len()
    }

    /// True if every growing file has its digest.
    pub(super) fn is_digested(&self) -> bool {
        let needs_none = |offer: &Offer| offer.entry.growth.is_none() || self.final_digests.contains_key(&offer.id);
        self.offers.iter().all(needs_none)
    }

    fn add(&mut self, entry: FileEntry, file: Arc<dyn OfferedFile>) -> FileId {
        let id = FileId(self.offers.len() as u64);
        self.room -= 1;
        self.offers.push(Offer { id, entry, file });
        id
    }
}

impl Manifest {
    pub(super) fn with_room(room: usize) -> Arc<Self> {
        Arc::new(Self {
            listed: Mutex::new(Listed { room, ..Listed::default() }),
            changed: Condvar::new(),
            wake: Wake::default(),
        })
    }

    pub(super) fn add_room(&self) {
        self.listed.lock().room += 1;
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        self.listed.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(super) fn wait_until(&self, is_reached: impl Fn(&Listed) -> bool) {
        self.changed.wait_while(&mut self.listed.lock(), |listed| !is_reached(listed));
    }

    pub(super) fn offers(&self) -> Vec<Offer> {
        self.listed.lock().offers.clone()
    }

    pub(super) fn errors(&self) -> Vec<String> {
        self.listed.lock().errors.iter().map(ToString::to_string).collect()
    }

    pub(super) fn take_errors(&self) -> Vec<Error> {
        std::mem::take(&mut self.listed.lock().errors)
    }

    fn change(&self, change: impl FnOnce(&mut Listed)) {
        change(&mut self.listed.lock());
        self.changed.notify_all();
        self.wake.notify();
    }
}

impl Offers for Manifest {
    fn offer(&self, entry: FileEntry, _order: BlockOrder, file: Arc<dyn OfferedFile>) -> FileId {
        let mut listed = self.listed.lock();
        self.changed.wait_while(&mut listed, |listed| listed.room == 0 && !listed.is_closed);
        // An offer after the end is ignored.
        let id = if listed.is_closed { FileId(u64::MAX) } else { listed.add(entry, file) };
        drop(listed);
        self.changed.notify_all();
        id
    }

    fn try_offer(&self, entry: FileEntry, file: Arc<dyn OfferedFile>) -> Option<FileId> {
        let mut listed = self.listed.lock();
        let id = (listed.room > 0 && !listed.is_closed).then(|| listed.add(entry, file));
        drop(listed);
        self.changed.notify_all();
        id
    }

    fn has_room(&self) -> bool {
        self.listed.lock().room > 0
    }

    fn unreadable(&self, error: Error) {
        self.change(|listed| listed.errors.push(error));
    }

    fn notice(&self, _: String) {}

    fn has_settled(&self, _: &FileEntry) -> bool {
        false
    }

    fn is_dry_run(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.listed.lock().is_closed
    }

    fn wake(&self) -> &Wake {
        &self.wake
    }

    fn grow(&self, file: FileId, entry: FileEntry) {
        self.change(|listed| listed.offers[file.0 as usize].entry = entry);
    }

    fn set_tail(&self, _: FileId, _: u64) {}

    fn final_digest(&self, file: FileId, blake3: [u8; 32]) {
        self.change(|listed| {
            listed.final_digests.insert(file, blake3);
        });
    }

    fn withdraw(&self, _: FileId, error: Error) {
        self.unreadable(error);
    }

    fn has_arrived(&self, _: FileId) -> bool {
        true
    }

    fn is_unsettled(&self, _: FileId) -> bool {
        true
    }

    fn deliver(&self) {}

    fn fail(&self, error: Error) {
        self.unreadable(error);
        self.close();
    }
}

/// HTTP/1.1 server of the files of a directory: one range a request, strong ETags, one request a connection.
struct Server {
    addr: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start(directory: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let is_stopped = Arc::<AtomicBool>::default();
        let (stopped, directory) = (Arc::clone(&is_stopped), directory.to_owned());
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, directory) = (stream.unwrap(), directory.clone());
                // The client may have gone.
                thread::spawn(move || drop(answer(&stream, &directory)));
            }
        });
        Self { addr, is_stopped, accepting: Some(accepting) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.addr));
        self.accepting.take().into_iter().for_each(|accepting| drop(accepting.join()));
    }
}

fn answer(mut stream: &TcpStream, directory: &Path) -> std::io::Result<()> {
    let head: Vec<String> =
        BufReader::new(stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
    let value = |name: &str| {
        let is_named = |line: &&String| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        head.iter().find(is_named).map(|line| line[name.len() + 1..].trim().to_owned())
    };
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let Ok(bytes) = fs::read(directory.join(path.trim_start_matches('/'))) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let tag = format!("\"{}\"", blake3::hash(&bytes).to_hex());
    let range = value("range").filter(|_| value("if-range").is_none_or(|version| version == tag));
    let range = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let size = bytes.len();
    let (status, part) = match range.map(|(start, last)| (start.parse().unwrap_or(0), last.parse().unwrap_or(size))) {
        None => ("200 OK", 0..size),
        Some((start, _)) if start >= size => ("416 Range Not Satisfiable", 0..0),
        Some((start, last)) => ("206 Partial Content", start..size.min(last + 1)),
    };
    write!(stream, "HTTP/1.1 {status}\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nConnection: close\r\n")?;
    match &status[..3] {
        "206" => write!(stream, "Content-Range: bytes {}-{}/{size}\r\n", part.start, part.end - 1)?,
        "416" => write!(stream, "Content-Range: bytes */{size}\r\n")?,
        _ => {}
    }
    write!(stream, "Content-Length: {}\r\n\r\n", part.len())?;
    stream.write_all(&bytes[part])
}
