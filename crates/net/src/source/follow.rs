//! Sources that are followed: growing files, and directories in which files appear.
//!
//! Watches and looks at sources, offers new files, reports their growth and their end, and remembers settled files
//! over all sessions of a copy. Refuses to decide when a file has ended (`proto::follow` does), and to decide
//! anything about blocks.
//!
//! The loop is [`FollowSession::list`], on the thread that reads directories. It waits for events, at most for [`TURN`]
//! while there are files that have not ended, and up to the next listing otherwise. One turn lists some names, looks at
//! each file that has not ended, and reports to the session. The loop ends with the session, or when only named files
//! were followed and all of them have their outcome.
//!
//! Memory: a file that is followed or in transfer takes about 500 bytes at this end, for at most [`FOLLOWED_MAX`]
//! files. A settled file takes 28 bytes of a table while it remains at the source, and none after its removal.

mod active;
mod offer;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sterna_proto::follow::{EndRule, FileEnd, FollowStep, Followed, Found};
use sterna_proto::session::{FileId, FileOutcome};
use sterna_proto::{EntryKind, Error, ErrorKind, Growth, Phase, RelPath, Retry, Scope};

use self::active::{Active, Sent, version_of, version_of_entry};
use self::offer::Report;
use super::file::{MARKER_ENDING, OpenFiles};
use super::final_digest::FinalDigestQueue;
use super::names::{PathHash, hash_of};
use super::{Offers, Source};
use crate::disk::{DirectoryWatcher, Expansion, HIDDEN_PREFIX, Happened, Noticed, Root, wait};

/// Interval between looks at files that have not ended. Reason: a tenth of the one-second budget for the last byte. No
/// event reports that a file has not changed for some time, or has changed on a network file system.
const TURN: Duration = Duration::from_millis(100);

/// Time in which the events of busy writers are gathered. Reason: a writer with 300 writes a second then costs 50
/// turns a second.
const GATHERED: Duration = Duration::from_millis(20);

/// Interval between listings of directories. Reason: a listing finds files that another host created on a network
/// file system, and files that the kernel did not report.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// Maximum of names that are listed in one turn. Reason: growing files must be looked at between the parts of a
/// listing.
const LISTED_A_TURN: usize = 1000;

/// Maximum of files that are followed or in transfer. Reason: twice the number that a session offers ahead; the
/// others wait in their directory.
const FOLLOWED_MAX: usize = 65_536;

/// Maximum of settled files that are remembered. Reason: as many as one directory may have names; files beyond it are
/// offered again.
const REMEMBERED_MAX: usize = 4_000_000;

/// Rules for followed sources.
#[derive(Clone, Debug)]
pub struct FollowRules {
    /// Time for which a file must remain unchanged to have ended.
    pub end: EndRule,
    /// Block size of growing files.
    pub growth: Growth,
    /// True if sources are removed when they have arrived. A file that a writer has open then does not end by being
    /// idle.
    pub takes_away: bool,
}

/// Followed sources, over all sessions of a copy.
pub struct Follow {
    rules: FollowRules,
    state: Mutex<State>,
}

/// Directory that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Number of the source of this directory.
    source: usize,
    /// Path of the directory beneath the root of its source; empty for the root.
    path: Vec<u8>,
    /// Directory prefix of its files at the destination, without a slash at the end; empty for no prefix.
    target: Vec<u8>,
    /// Name of the only file that is followed in this directory; `None` for all files.
    only: Option<Vec<u8>>,
}

/// File of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: usize,
    path: RelPath,
}

/// Record of a settled file: its version, and the last listing that contained it.
struct Remembered {
    version: u64,
    listing: u32,
}

/// Directories that are being listed.
struct Listing {
    source: usize,
    /// Prefix of the listed paths at the destination.
    target: Vec<u8>,
    items: Expansion,
    /// True if the listed files have appeared just now.
    is_news: bool,
    /// True for the first listing of the source, which reports names that cannot be listed.
    is_first: bool,
}

struct State {
    roots: Vec<(Root, Vec<u8>)>,
    watch: DirectoryWatcher<Place>,
    /// Watched directories, by source and path.
    places: HashMap<(usize, Vec<u8>), Place>,
    active: HashMap<Key, Active>,
    by_id: HashMap<FileId, Key>,
    remembered: HashMap<PathHash, Remembered>,
    listings: VecDeque<Listing>,
    listing: u32,
    listed_at: Option<Instant>,
    /// Number of sessions up to now. Outcomes from earlier sessions are ignored.
    session: u32,
    /// The current session.
    current: Weak<FollowSession>,
    is_spool: bool,
    open_files: Arc<OpenFiles>,
    /// Errors that are not reported yet. A report may wait for room in the manifest, and under this lock there would
    /// never be room.
    unreported: Vec<Error>,
}

impl Follow {
    /// Follows `sources`: roots, and paths beneath them. Errors: the kernel cannot watch directories.
    pub fn new(sources: Vec<(Root, Vec<u8>)>, rules: FollowRules) -> Result<Self, Error> {
        let state = State {
            roots: sources,
            watch: DirectoryWatcher::new()?,
            places: HashMap::new(),
            active: HashMap::new(),
            by_id: HashMap::new(),
            remembered: HashMap::new(),
            listings: VecDeque::new(),
            listing: 0,
            listed_at: None,
            session: 0,
            current: Weak::new(),
            is_spool: false,
            open_files: Arc::default(),
            unreported: Vec::new(),
        };
        Ok(Self { rules, state: Mutex::new(state) })
    }

    /// Begins a session, which offers files without an outcome again. Earlier sessions stop to offer files.
    ///
    /// Errors: no descriptor is free.
    pub fn session(self: &Arc<Self>) -> Result<Arc<FollowSession>, Error> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let end = end.map_err(no_descriptor)?;
        let mut state = self.state.lock();
        state.current.upgrade().into_iter().for_each(|earlier| earlier.stop());
        state.session += 1;
        state.by_id.clear();
        for active in state.active.values_mut() {
            active.sent = Sent::Nothing;
        }
        let session = Arc::new(FollowSession { follow: Arc::clone(self), number: state.session, end });
        state.current = Arc::downgrade(&session);
        Ok(session)
    }
}

/// Returns the error of an event descriptor that the kernel does not give.
fn no_descriptor(errno: Errno) -> Error {
    let text = "watch directories: create an event descriptor; if this process has too many open files, a higher ulimit -n \
                allows more";
    let kind = if errno == Errno::MFILE { ErrorKind::Limit } else { ErrorKind::Io };
    Error::new(kind, Scope::Source, Phase::Prepare, text).caused_by(errno)
}

impl State {
    fn settle(&mut self, key: Key, outcome: &FileOutcome) {
        let Some(active) = self.active.get_mut(&key) else { return };
        if let FileOutcome::Failed(error) = outcome
            && (!lasts(error) || !matches!(active.sent, Sent::Whole(..)))
            && !active.is_named
        {
            active.sent = Sent::Nothing;
            active.not_before = Instant::now() + active.pause_after(error);
            return;
        }
        // The version that was sent is recorded. The present version differs if the file has changed since then.
        let version = match active.sent {
            Sent::Whole(_, version) => version,
            _ => version_of(active),
        };
        if !active.is_named && self.remembered.len() < REMEMBERED_MAX {
            self.remembered.insert(hash_of_key(&key), Remembered { version, listing: self.listing });
        }
        let target = active.target.clone();
        let is_named = active.is_named;
        self.active.remove(&key);
        if !is_named {
            // The file may have changed after its end, when its events had no effect.
            self.touch(key, target, Found::Appeared, false);
        }
    }

    /// Follows a file, unless it is followed already or has settled in its present version.
    fn touch(&mut self, key: Key, target: RelPath, found: Found, is_named: bool) {
        if self.active.contains_key(&key) || self.active.len() >= FOLLOWED_MAX {
            return;
        }
        let Ok(Some(look)) = self.roots[key.source].0.look(&key.path) else { return };
        let now = Instant::now();
        let active = Active {
            target,
            followed: Followed::new(now, look, found),
            sent: Sent::Nothing,
            is_named,
            not_before: now,
            failures: 0,
        };
        if let Some(known) = self.remembered.get_mut(&hash_of_key(&key)) {
            known.listing = self.listing;
            if known.version == version_of(&active) {
                return;
            }
        }
        let is_marked = self.is_marked(&key);
        let active = self.active.entry(key).or_insert(active);
        if is_marked {
            active.followed.handle_marked();
        }
    }

    fn is_marked(&self, key: &Key) -> bool {
        let marker = RelPath::new(&[key.path.as_bytes(), MARKER_ENDING].concat());
        marker.is_ok_and(|marker| matches!(self.roots[key.source].0.look(&marker), Ok(Some(_))))
    }

    /// Begins to list every source. The end of the listing forgets files that have disappeared.
    fn begin_listing(&mut self, offers: &dyn Offers) {
        let is_first = self.listing == 0;
        self.listed_at = Some(Instant::now());
        self.listing += 1;
        for source in 0..self.roots.len() {
            let (root, pattern) = self.roots[source].clone();
            let items = match root.expand(&pattern) {
                Ok(items) => items,
                Err(error) if is_first => {
                    self.unreported.push(error);
                    continue;
                }
                Err(_) => continue,
            };
            if pattern == b"." {
                self.watch_place(offers, Place { source, path: Vec::new(), target: Vec::new(), only: None });
            }
            self.listings.push_back(Listing { source, target: Vec::new(), items, is_news: false, is_first });
        }
    }

    fn watch_place(&mut self, offers: &dyn Offers, place: Place) {
        self.is_spool |= place.only.is_none();
        let known = (place.source, place.path.clone());
        if place.only.is_none() && self.places.contains_key(&known) {
            return;
        }
        if let Err(error) = self.watch.add(&self.roots[place.source].0, &place.path, place.clone())
            && error.kind != ErrorKind::NotFound
        {
            offers.notice(error.chain());
        }
        if place.only.is_none() {
            self.places.insert(known, place);
        }
    }

    /// Stops watching a directory that was removed or moved, and everything beneath it.
    fn unwatch(&mut self, source: usize, path: &[u8]) {
        let is_beneath = |place: &Place| {
            let rest = place.path.strip_prefix(path).filter(|_| place.source == source);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.watch.remove(is_beneath);
        self.places.retain(|_, place| !is_beneath(place));
    }

    /// Lists at most [`LISTED_A_TURN`] names.
    fn list(&mut self, offers: &dyn Offers) {
        for _ in 0..LISTED_A_TURN {
            if self.active.len() >= FOLLOWED_MAX {
                return;
            }
            let Some(listing) = self.listings.front_mut() else { return };
            let Some(item) = listing.items.next() else {
                self.listings.pop_front();
                if self.listings.is_empty() {
                    self.forget_what_is_gone();
                    // The interval counts from the end of the listing, so a slow listing does not follow directly on
                    // another.
                    self.listed_at = self.listed_at.map(|_| Instant::now());
                }
                continue;
            };
            let (source, is_news, is_first) = (listing.source, listing.is_news, listing.is_first);
            match item.and_then(|item| Ok((beneath(&listing.target, item.entry.path.as_bytes())?, item))) {
                Ok((target, item)) if item.entry.kind == EntryKind::Directory => {
                    let (path, target) = (item.source.as_bytes().to_vec(), target.as_bytes().to_vec());
                    self.watch_place(offers, Place { source, path, target, only: None });
                }
                Ok((target, item)) => self.found(offers, Key { source, path: item.source }, target, is_news),
                Err(error) if is_first => self.unreported.push(error),
                Err(_) => {}
            }
        }
    }

    /// Handles a listed file.
    fn found(&mut self, offers: &dyn Offers, key: Key, target: RelPath, is_news: bool) {
        let parent = key.path.parent().map_or(Vec::new(), |parent| parent.as_bytes().to_vec());
        let is_named = !self.places.contains_key(&(key.source, parent.clone()));
        if is_named && self.listing > 1 {
            // A named file is followed only once.
            return;
        }
        if let Some(base) = key.path.as_bytes().strip_suffix(MARKER_ENDING).filter(|_| !is_named) {
            if let Some(active) = RelPath::new(base).ok().and_then(|path| self.active.get_mut(&Key { path, ..key })) {
                active.followed.handle_marked();
            }
            return;
        }
        if is_named {
            let only = Some(key.path.name().to_vec());
            self.watch_place(offers, Place { source: key.source, path: parent, target: Vec::new(), only });
        }
        let age = || {
            let look = self.roots[key.source].0.look(&key.path).ok().flatten()?;
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(look.mtime.seconds).ok()?);
            SystemTime::now().duration_since(at).ok()
        };
        let found = match (is_news, is_named) {
            (true, _) => Found::Appeared,
            (false, true) => Found::Named(age().unwrap_or_default()),
            (false, false) => Found::There(age().unwrap_or_default()),
        };
        self.touch(key, target, found, is_named);
    }

    /// Forgets files that neither this listing nor the previous one contains.
    fn forget_what_is_gone(&mut self) {
        let listing = self.listing;
        self.remembered.retain(|_, known| known.listing + 1 >= listing);
    }

    /// Handles the events of the watched directories.
    fn hear(&mut self, offers: &dyn Offers) -> Result<(), Error> {
        for seen in self.watch.take()? {
            match seen {
                Noticed::Overflow => self.listed_at = None,
                Noticed::Unwatched(place) => drop(self.places.remove(&(place.source, place.path))),
                Noticed::Name { place, name, happened } => {
                    // A name that cannot be copied is reported when it is listed.
                    let path = beneath(&place.path, &name);
                    if let (Ok(path), Ok(target)) = (path, beneath(&place.target, &name)) {
                        self.heard(offers, &place, (path, target), happened);
                    }
                }
            }
        }
        Ok(())
    }

    fn heard(&mut self, offers: &dyn Offers, place: &Place, (path, target): (RelPath, RelPath), happened: Happened) {
        let marked = path.as_bytes().strip_suffix(MARKER_ENDING).and_then(|base| RelPath::new(base).ok());
        let file = marked.clone().unwrap_or_else(|| path.clone());
        let is_ours = place.only.as_ref().is_none_or(|only| only == file.name());
        if !is_ours || is_hidden(path.name()) {
            return;
        }
        let key = Key { source: place.source, path: file };
        if marked.is_some() {
            if let Some(active) = self.active.get_mut(&key).filter(|_| happened != Happened::Gone) {
                active.followed.handle_marked();
            }
            return;
        }
        match happened {
            Happened::Directory if place.only.is_none() => {
                let root = self.roots[place.source].0.clone();
                self.watch_place(
                    offers,
                    Place {
                        source: place.source,
                        path: path.as_bytes().to_vec(),
                        target: target.as_bytes().to_vec(),
                        only: None,
                    },
                );
                // If the directory is gone again or unreadable, there is nothing to list.
                if let Ok(items) = root.expand(path.as_bytes()) {
                    let (source, target) = (place.source, place.target.clone());
                    self.listings.push_front(Listing { source, target, items, is_news: true, is_first: false });
                }
            }
            Happened::DirectoryGone if place.only.is_none() => self.unwatch(place.source, path.as_bytes()),
            Happened::Directory | Happened::DirectoryGone => {}
            Happened::Gone => drop(self.remembered.remove(&hash_of_key(&key))),
            Happened::Touched | Happened::Closed => {
                if place.only.is_none() {
                    self.touch(key.clone(), target, Found::Appeared, false);
                    self.tell_other(&key);
                }
                self.look_at(&key);
                // Events are applied after the look: the data that the look finds may be newer than any of them.
                match (self.active.get_mut(&key), happened) {
                    (Some(active), Happened::Closed) => active.followed.handle_closed(Instant::now()),
                    (Some(active), _) => active.followed.handle_open(),
                    (None, _) => {}
                }
            }
        }
    }

    /// Reports a new name that cannot be copied, such as a pipe or a symbolic link to nothing. Reports it once, as
    /// long as it remains.
    fn tell_other(&mut self, key: &Key) {
        let hash = hash_of_key(key);
        let is_known = self.active.contains_key(key) || self.remembered.contains_key(&hash);
        if is_known || self.remembered.len() >= REMEMBERED_MAX {
            return;
        }
        if let Some(error) = self.roots[key.source].0.refusal(&key.path) {
            // No file has this version.
            self.remembered.insert(hash, Remembered { version: 0, listing: self.listing });
            self.unreported.push(error);
        }
    }

    /// Looks at a file again; returns false if the file is gone. A file that cannot be looked at now counts as
    /// unchanged: a lasting error appears when the file is read.
    fn look_at(&mut self, key: &Key) -> bool {
        let look = match self.roots[key.source].0.look(&key.path) {
            Ok(Some(look)) => look,
            Ok(None) => return false,
            Err(_) => return true,
        };
        if let Some(active) = self.active.get_mut(key) {
            active.followed.handle_look(Instant::now(), look);
        }
        true
    }

    /// Looks at every file that has not ended, and reports to the session.
    fn advance(&mut self, offers: &dyn Offers, rules: &FollowRules, seals: &FinalDigestQueue) {
        let now = Instant::now();
        let open = |active: &&Active| !matches!(active.sent, Sent::Whole(..)) && active.not_before <= now;
        let keys: Vec<Key> = self.active.iter().filter(|(_, a)| open(a)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            // A file that cannot be offered now is not looked at either. Reason: there may be many such files.
            let waits = |active: &Active| {
                let is_unreported = matches!(active.sent, Sent::Nothing);
                is_unreported && (active.followed.step(now, rules.end) == FollowStep::Wait || !offers.has_room())
            };
            if self.active.get(&key).is_none_or(waits) {
                continue;
            }
            if !self.look_at(&key) {
                self.lose(offers, &key);
                continue;
            }
            let Some(active) = self.active.get_mut(&key) else { continue };
            let root = &self.roots[key.source].0;
            let mut step = active.followed.step(now, rules.end);
            let is_open = || root.is_being_written(&key.path);
            match step {
                // A process still has the file open, or has opened it again and not written yet.
                FollowStep::End(FileEnd::Closed) if is_open() => {
                    active.followed.handle_open();
                    step = FollowStep::Pause;
                }
                // The source is not removed yet: later data of its writer would be lost.
                FollowStep::End(FileEnd::Idle) if rules.takes_away && is_open() => step = FollowStep::Pause,
                _ => {}
            }
            let report = Report { offers, root, path: &key.path, open_files: &self.open_files };
            let grown = match step {
                FollowStep::Wait => continue,
                FollowStep::Grow | FollowStep::Pause => report.grow(active, rules.growth, step),
                FollowStep::End(_) => report.end(active, rules.growth, seals),
            };
            match grown {
                Ok(Some(id)) => drop(self.by_id.insert(id, key)),
                Ok(None) => {}
                Err(error) => self.fail(offers, &key, error),
            }
        }
    }

    /// Handles the loss of a followed file.
    fn lose(&mut self, offers: &dyn Offers, key: &Key) {
        let Some(active) = self.active.get(key) else { return };
        if matches!(active.sent, Sent::Nothing) && !active.is_named {
            // The session does not have this file yet.
            self.active.remove(key);
            return;
        }
        let text = format!("{} was removed or renamed while it was followed; nothing of it is published", key.path);
        self.fail(offers, key, Error::new(ErrorKind::NotFound, Scope::Source, Phase::Transfer, text));
    }

    /// Handles a file that cannot be sent.
    fn fail(&mut self, offers: &dyn Offers, key: &Key, error: Error) {
        let Some(active) = self.active.get_mut(key) else { return };
        match std::mem::replace(&mut active.sent, Sent::Nothing) {
            Sent::Growing(id, entry) => {
                // The outcome follows when the receiver has handled the withdrawal.
                active.sent = Sent::Whole(id, version_of_entry(&entry));
                offers.withdraw(id, error);
            }
            Sent::Whole(id, version) => {
                active.sent = Sent::Whole(id, version);
                offers.withdraw(id, error);
            }
            Sent::Nothing => {
                let outcome = FileOutcome::Failed(error.clone());
                self.unreported.push(error);
                self.settle(key.clone(), &outcome);
            }
        }
    }
}

/// True if a failure remains until the file changes at its source. A destination that is full or write-protected can
/// be repaired.
fn lasts(error: &Error) -> bool {
    error.retry != Retry::After && error.scope == Scope::Source || error.kind == ErrorKind::Exists
}

/// Returns the path of `name` beneath `directory`, which is empty for the top.
fn beneath(directory: &[u8], name: &[u8]) -> Result<RelPath, Error> {
    match directory.is_empty() {
        true => RelPath::new(name),
        false => RelPath::new(&[directory, b"/", name].concat()),
    }
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX)
}

fn hash_of_key(key: &Key) -> PathHash {
    hash_of(&[&key.source.to_le_bytes(), key.path.as_bytes()].concat())
}

/// Followed sources, as the source of one session.
pub struct FollowSession {
    follow: Arc<Follow>,
    /// Number of the session.
    number: u32,
    /// Event descriptor that ends the wait for events.
    end: OwnedFd,
}

impl Source for FollowSession {
    /// Follows the sources until the session is over or every named file has its outcome.
    fn list(self: Arc<Self>, offers: &Arc<dyn Offers>) {
        let Follow { state, rules } = &*self.follow;
        let events = state.lock().watch.events();
        let (events, seals) = match events.and_then(|events| Ok((events, FinalDigestQueue::start(offers)?))) {
            Ok(ready) => ready,
            Err(error) => return offers.fail(error),
        };
        while !offers.is_closed() {
            let mut state = state.lock();
            // A takeover session now follows the sources.
            if state.session != self.number {
                return;
            }
            if state.listed_at.is_none_or(|at| at.elapsed() >= LIST_EVERY) && state.listings.is_empty() {
                state.begin_listing(&**offers);
            }
            state.list(&**offers);
            if let Err(error) = state.hear(&**offers) {
                drop(state);
                return offers.fail(error);
            }
            state.advance(&**offers, rules, &seals);
            let unreported = std::mem::take(&mut state.unreported);
            let is_idle = state.active.is_empty() && state.listings.is_empty();
            let turn = match state.listed_at {
                Some(at) if is_idle => LIST_EVERY.saturating_sub(at.elapsed()),
                _ => TURN,
            };
            let is_done = !state.is_spool && is_idle;
            drop(state);
            unreported.into_iter().for_each(|error| offers.unreadable(error));
            offers.deliver();
            if is_done {
                return;
            }
            thread::sleep(GATHERED);
            wait(&events, &self.end, turn.saturating_sub(GATHERED));
        }
    }

    /// Ends the wait for events.
    fn stop(&self) {
        // The write fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }

    fn handle_settled(&self, file: FileId, outcome: &FileOutcome) {
        let mut state = self.follow.state.lock();
        if state.session == self.number
            && let Some(key) = state.by_id.remove(&file)
        {
            state.settle(key, outcome);
        }
    }
}
