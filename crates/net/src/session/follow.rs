//! Sources that are followed: files that still grow, and directories into which files come.
//!
//! What it does: watches and looks at sources, offers what appears, says how far it has grown and when it has ended, and remembers what has settled,
//! over all the sessions of a copy. What it refuses to do: decide when a file has ended (`proto::follow` does), or anything about blocks.
//!
//! The loop is [`Sender::scan_followed`], on the thread that reads directories: it waits for something to happen for [`TURN`] at most, and one
//! turn lists a little, looks at each file that has not ended, and tells the session. It ends with the session, or when only named files were
//! followed and all of them have their outcome.
//!
//! Memory: a file that is followed or on its way takes some 500 bytes at this end, and at most [`FOLLOWED_MAX`] are; one that has settled takes 28 bytes of
//! a table for as long as it stays at the source, and none once it is gone.

mod offer;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sterna_proto::follow::{EndRule, FileEnd, FollowStep, Followed, Found, Look};
use sterna_proto::session::{FileId, FileOutcome};
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, Growth, Phase, RelPath, Retry, Scope};

use self::offer::{end, grow};
use super::names::{PathHash, hash_of};
use super::seal::SealQueue;
use super::sender::Sender;
use super::{End, lock};
use crate::disk::{Expansion, HIDDEN_PREFIX, Happened, Noticed, Root, Watch, wait};

/// How often files that have not ended are looked at. Reason: a tenth of the second that the last byte has.
const TURN: Duration = Duration::from_millis(100);

/// How long the events of busy writers gather. Reason: one that writes 300 times a second costs 50 turns.
const GATHERED: Duration = Duration::from_millis(20);

/// How often directories are listed anew. Reason: what another host puts on a network file system, and what the kernel did not watch, is found by it.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// Names that are listed in one turn. Reason: growing files are looked at meanwhile.
const LISTED_A_TURN: usize = 1000;

/// Files that are followed or on their way. Reason: twice what a session offers ahead; the rest waits in its directory.
const FOLLOWED_MAX: usize = 65_536;

/// Files that have settled and are remembered. Reason: as many as one directory may have names; later ones are asked for again.
const REMEMBERED_MAX: usize = 4_000_000;

/// How long a file of a spool that has failed waits for its next attempt; doubled up to [`AGAIN_AFTER_MAX`]. Guess: a disk that is full does not
/// empty faster.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Longest wait for the next attempt. Reason: what a person has put right is noticed within this, and few words of it are said until then.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How long a file of a spool that changed while it was sent waits. Guess: its writer may be at it still.
const CHANGED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How the name of a marker ends: it says that the file whose name is in front of it has ended.
pub(super) const MARKER_ENDING: &[u8] = b".done";

/// How sources are followed.
#[derive(Clone, Debug)]
pub struct FollowRules {
    /// How long a file must stay as it is to have ended.
    pub end: EndRule,
    /// How growing files are cut.
    pub growth: Growth,
    /// Sources are taken away when they have arrived: those that a writer has open have not ended by being idle.
    pub takes_away: bool,
}

/// Sources that are followed, over all the sessions of a copy.
pub struct Follow {
    rules: FollowRules,
    state: Mutex<State>,
}

/// A directory that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Number of its source.
    source: usize,
    /// Its path beneath the root of the source; empty for the root.
    path: Vec<u8>,
    /// What its files go by at the destination: this, a slash, and their names; empty for their names alone.
    target: Vec<u8>,
    /// Only this file of it is followed.
    only: Option<Vec<u8>>,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: usize,
    path: RelPath,
}

/// A file that is followed or on its way.
struct Active {
    target: RelPath,
    followed: Followed,
    sent: Sent,
    /// It was named, and is not one of a spool.
    is_named: bool,
    not_before: Instant,
    /// Attempts that have failed.
    failures: u32,
}

impl Active {
    /// How long it waits after another attempt that failed.
    fn pause_after(&mut self, error: &Error) -> Duration {
        if error.kind == ErrorKind::Changed {
            return CHANGED_AGAIN_AFTER;
        }
        self.failures += 1;
        AGAIN_AFTER_MAX.min(AGAIN_AFTER * 2u32.saturating_pow(self.failures - 1))
    }
}

/// What the session knows of a file.
enum Sent {
    Nothing,
    /// It was offered as it grows.
    Growing(FileId, FileEntry),
    /// It was offered, or was said to have ended, in this version; its outcome is waited for.
    Whole(FileId, u64),
}

/// What is kept of a file that has settled: its version, and the listing that has seen it last.
struct Remembered {
    version: u64,
    listing: u32,
}

/// Directories that are being listed.
struct Listing {
    source: usize,
    /// In front of the paths that the listing gives.
    target: Vec<u8>,
    items: Expansion,
    /// What it finds has appeared just now.
    is_news: bool,
    /// It is the first of its source: what cannot be listed is told.
    is_first: bool,
}

struct State {
    roots: Vec<(Root, Vec<u8>)>,
    watch: Watch<Place>,
    /// Directories that are watched, by source and path.
    places: HashMap<(usize, Vec<u8>), Place>,
    active: HashMap<Key, Active>,
    by_id: HashMap<FileId, Key>,
    remembered: HashMap<PathHash, Remembered>,
    listings: VecDeque<Listing>,
    listing: u32,
    listed_at: Option<Instant>,
    /// Sessions so far: what an earlier one says counts no more.
    session: u32,
    is_spool: bool,
    /// What cannot be sent and was not told yet: telling may wait for room, which this lock would keep from coming.
    untold: Vec<Error>,
}

impl Follow {
    /// Follows `sources`: roots, and paths beneath them. Errors: the kernel watches nothing.
    pub fn new(sources: Vec<(Root, Vec<u8>)>, rules: FollowRules) -> Result<Self, Error> {
        let state = State {
            roots: sources,
            watch: Watch::new()?,
            places: HashMap::new(),
            active: HashMap::new(),
            by_id: HashMap::new(),
            remembered: HashMap::new(),
            listings: VecDeque::new(),
            listing: 0,
            listed_at: None,
            session: 0,
            is_spool: false,
            untold: Vec::new(),
        };
        Ok(Self { rules, state: Mutex::new(state) })
    }

    /// A session begins: what had no outcome is offered again. Returns its number.
    pub(super) fn begin_session(&self) -> u32 {
        let mut state = lock(&self.state);
        state.session += 1;
        state.by_id.clear();
        for active in state.active.values_mut() {
            active.sent = Sent::Nothing;
        }
        state.session
    }

    /// A file of session `session` has its outcome.
    pub(super) fn handle_settled(&self, session: u32, id: FileId, outcome: &FileOutcome) {
        let mut state = lock(&self.state);
        if state.session == session
            && let Some(key) = state.by_id.remove(&id)
        {
            state.settle(key, outcome);
        }
    }
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
        // What was sent, which is not what is there when it has changed since.
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
            // It may have changed since it had ended, and nobody listened then.
            self.touch(key, target, Found::Appeared, false);
        }
    }

    /// Follows a file of a spool, unless it is followed or has settled as it is.
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

    /// Begins to list every source, and with it to forget what is not there any more.
    fn begin_listing(&mut self, sender: &Sender) {
        let is_first = self.listing == 0;
        self.listed_at = Some(Instant::now());
        self.listing += 1;
        for source in 0..self.roots.len() {
            let (root, pattern) = self.roots[source].clone();
            let items = match root.expand(&pattern) {
                Ok(items) => items,
                Err(error) if is_first => {
                    self.untold.push(error);
                    continue;
                }
                Err(_) => continue,
            };
            if pattern == b"." {
                self.watch_place(sender, Place { source, path: Vec::new(), target: Vec::new(), only: None });
            }
            self.listings.push_back(Listing { source, target: Vec::new(), items, is_news: false, is_first });
        }
    }

    fn watch_place(&mut self, sender: &Sender, place: Place) {
        self.is_spool |= place.only.is_none();
        let known = (place.source, place.path.clone());
        if place.only.is_none() && self.places.contains_key(&known) {
            return;
        }
        if let Err(error) = self.watch.add(&self.roots[place.source].0, &place.path, place.clone())
            && error.kind != ErrorKind::NotFound
        {
            sender.notice(error.chain());
        }
        if place.only.is_none() {
            self.places.insert(known, place);
        }
    }

    /// A directory is gone from where it was, with all that is in it.
    fn unwatch(&mut self, source: usize, path: &[u8]) {
        let is_beneath = |place: &Place| {
            let rest = place.path.strip_prefix(path).filter(|_| place.source == source);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.watch.remove(is_beneath);
        self.places.retain(|_, place| !is_beneath(place));
    }

    /// Lists a little.
    fn list(&mut self, sender: &Sender) {
        for _ in 0..LISTED_A_TURN {
            if self.active.len() >= FOLLOWED_MAX {
                return;
            }
            let Some(listing) = self.listings.front_mut() else { return };
            let Some(item) = listing.items.next() else {
                self.listings.pop_front();
                if self.listings.is_empty() {
                    self.forget_what_is_gone();
                    // From its end: however long a listing takes, as much time goes by without one.
                    self.listed_at = self.listed_at.map(|_| Instant::now());
                }
                continue;
            };
            let (source, is_news, is_first) = (listing.source, listing.is_news, listing.is_first);
            match item.and_then(|item| Ok((beneath(&listing.target, item.entry.path.as_bytes())?, item))) {
                Ok((target, item)) if item.entry.kind == EntryKind::Directory => {
                    let (path, target) = (item.source.as_bytes().to_vec(), target.as_bytes().to_vec());
                    self.watch_place(sender, Place { source, path, target, only: None });
                }
                Ok((target, item)) => self.found(sender, Key { source, path: item.source }, target, is_news),
                Err(error) if is_first => self.untold.push(error),
                Err(_) => {}
            }
        }
    }

    /// A file was listed.
    fn found(&mut self, sender: &Sender, key: Key, target: RelPath, is_news: bool) {
        let parent = key.path.parent().map_or(Vec::new(), |parent| parent.as_bytes().to_vec());
        let is_named = !self.places.contains_key(&(key.source, parent.clone()));
        if is_named && self.listing > 1 {
            // A named file is followed once.
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
            self.watch_place(sender, Place { source: key.source, path: parent, target: Vec::new(), only });
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

    /// Forgets files that no listing has seen since the one before the last.
    fn forget_what_is_gone(&mut self) {
        let listing = self.listing;
        self.remembered.retain(|_, known| known.listing + 1 >= listing);
    }

    /// Takes what has happened in the watched directories.
    fn hear(&mut self, sender: &Sender) -> Result<(), Error> {
        for seen in self.watch.take()? {
            match seen {
                Noticed::Overflow => self.listed_at = None,
                Noticed::Unwatched(place) => drop(self.places.remove(&(place.source, place.path))),
                Noticed::Name { place, name, happened } => {
                    // A name that cannot be copied is told when it is listed.
                    let path = beneath(&place.path, &name);
                    if let (Ok(path), Ok(target)) = (path, beneath(&place.target, &name)) {
                        self.heard(sender, &place, (path, target), happened);
                    }
                }
            }
        }
        Ok(())
    }

    fn heard(&mut self, sender: &Sender, place: &Place, (path, target): (RelPath, RelPath), happened: Happened) {
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
                    sender,
                    Place {
                        source: place.source,
                        path: path.as_bytes().to_vec(),
                        target: target.as_bytes().to_vec(),
                        only: None,
                    },
                );
                // Gone again, or not for us to read: then there is nothing to list.
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
                // By the order of events: what a look shows may have been written after any of them.
                match (self.active.get_mut(&key), happened) {
                    (Some(active), Happened::Closed) => active.followed.handle_closed(Instant::now()),
                    (Some(active), _) => active.followed.handle_open(),
                    (None, _) => {}
                }
            }
        }
    }

    /// Tells of what has appeared and cannot be copied: a pipe, a symlink to nothing; once, as long as it is there.
    fn tell_other(&mut self, key: &Key) {
        let hash = hash_of_key(key);
        let is_known = self.active.contains_key(key) || self.remembered.contains_key(&hash);
        if is_known || self.remembered.len() >= REMEMBERED_MAX {
            return;
        }
        if let Some(error) = self.roots[key.source].0.refusal(&key.path) {
            // No file has this version.
            self.remembered.insert(hash, Remembered { version: 0, listing: self.listing });
            self.untold.push(error);
        }
    }

    /// Looks at a file again; whether it is there. One that cannot be looked at now is taken for what it was: what lasts of the
    /// trouble shows when it is read.
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

    /// Looks at every file that has not ended and tells the session.
    fn advance(&mut self, sender: &Sender, rules: &FollowRules, seals: &SealQueue) {
        let now = Instant::now();
        let open = |active: &&Active| !matches!(active.sent, Sent::Whole(..)) && active.not_before <= now;
        let keys: Vec<Key> = self.active.iter().filter(|(_, a)| open(a)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            // What is not to be told now is not looked at either: there may be many of it.
            let waits = |active: &Active| {
                let is_untold = matches!(active.sent, Sent::Nothing);
                is_untold && (active.followed.step(now, rules.end) == FollowStep::Wait || !sender.has_room())
            };
            if self.active.get(&key).is_none_or(waits) {
                continue;
            }
            if !self.look_at(&key) {
                self.lose(sender, &key);
                continue;
            }
            let Some(active) = self.active.get_mut(&key) else { continue };
            let root = &self.roots[key.source].0;
            let mut step = active.followed.step(now, rules.end);
            let is_open = || root.is_being_written(&key.path);
            match step {
                // Another has it still, or has opened it again and not written yet.
                FollowStep::End(FileEnd::Closed) if is_open() => {
                    active.followed.handle_open();
                    step = FollowStep::Pause;
                }
                // What its writer has yet to write would go where nobody finds it.
                FollowStep::End(FileEnd::Idle) if rules.takes_away && is_open() => step = FollowStep::Pause,
                _ => {}
            }
            let grown = match step {
                FollowStep::Wait => continue,
                FollowStep::Grow | FollowStep::Pause => grow(sender, root, &key.path, active, rules.growth, step),
                FollowStep::End(_) => end(sender, root, &key.path, active, rules.growth, seals),
            };
            match grown {
                Ok(Some(id)) => drop(self.by_id.insert(id, key)),
                Ok(None) => {}
                Err(error) => self.fail(sender, &key, error),
            }
        }
    }

    /// A file that is followed is gone.
    fn lose(&mut self, sender: &Sender, key: &Key) {
        let Some(active) = self.active.get(key) else { return };
        if matches!(active.sent, Sent::Nothing) && !active.is_named {
            // Nobody has heard of it.
            self.active.remove(key);
            return;
        }
        let text = format!("{} was removed or renamed while it was followed; nothing of it is published", key.path);
        self.fail(sender, key, Error::new(ErrorKind::NotFound, Scope::Source, Phase::Transfer, text));
    }

    /// A file cannot be sent.
    fn fail(&mut self, sender: &Sender, key: &Key, error: Error) {
        let Some(active) = self.active.get_mut(key) else { return };
        match std::mem::replace(&mut active.sent, Sent::Nothing) {
            Sent::Growing(id, entry) => {
                // Its outcome comes when the receiver has heard.
                active.sent = Sent::Whole(id, version_of_entry(&entry));
                sender.withdraw_now(id, error);
            }
            Sent::Whole(id, version) => {
                active.sent = Sent::Whole(id, version);
                sender.withdraw_now(id, error);
            }
            Sent::Nothing => {
                let outcome = FileOutcome::Failed(error.clone());
                self.untold.push(error);
                self.settle(key.clone(), &outcome);
            }
        }
    }
}

/// Whether a failure lasts as long as the file is what it is: only something at its source can cure it. A destination that is full,
/// or not to be written to, may be put right.
fn lasts(error: &Error) -> bool {
    error.retry != Retry::After && error.scope == Scope::Source || error.kind == ErrorKind::Exists
}

/// The path of `name` beneath `directory`, which is empty for the top.
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

/// What tells a file from the same file changed.
fn version_of(active: &Active) -> u64 {
    version(active.followed.look())
}

/// The same of what was sent of it.
fn version_of_entry(entry: &FileEntry) -> u64 {
    version(Look { size: entry.size, mtime: entry.mtime, inode: entry.inode })
}

fn version(look: Look) -> u64 {
    let parts = [look.size, look.mtime.seconds as u64, look.mtime.nanoseconds.into(), look.inode];
    let hash = hash_of(&parts.map(u64::to_le_bytes).concat());
    u64::from_le_bytes(std::array::from_fn(|index| hash[index]))
}

impl Sender {
    /// Follows the sources until the session is over, or every named file has its outcome.
    pub(super) fn scan_followed(self: &Arc<Self>, follow: &Follow) {
        let (events, session) = {
            let state = lock(&follow.state);
            (state.watch.events(), state.session)
        };
        let (events, seals) = match events.and_then(|events| Ok((events, SealQueue::start(self)?))) {
            Ok(ready) => ready,
            Err(error) => return self.abort(error),
        };
        while !self.is_over() {
            let mut state = lock(&follow.state);
            // A session that took over follows them now.
            if state.session != session {
                return;
            }
            if state.listed_at.is_none_or(|at| at.elapsed() >= LIST_EVERY) && state.listings.is_empty() {
                state.begin_listing(self);
            }
            state.list(self);
            if let Err(error) = state.hear(self) {
                drop(state);
                return self.abort(error);
            }
            state.advance(self, &follow.rules, &seals);
            let untold = std::mem::take(&mut state.untold);
            let is_done = !state.is_spool && state.active.is_empty() && state.listings.is_empty();
            drop(state);
            untold.into_iter().for_each(|error| self.unreadable(error));
            self.after_change();
            if is_done {
                return;
            }
            thread::sleep(GATHERED);
            wait(&events, TURN - GATHERED);
        }
    }
}
