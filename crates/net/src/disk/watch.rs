//! Directories that are watched for what appears in them and changes: inotify.
//!
//! What it does: names what has happened in the directories that it was given. What it refuses to do: look at files, or remember them. Changes that another host makes to a
//! network file system are not seen by any kernel here; who needs them lists the directories anew.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind};

use super::fault::LISTING;
use super::root::Root;

/// Bytes of events that are read at once. Guess: some hundred events.
const EVENT_BYTES: usize = 16 << 10;

/// What has happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It was made, or written to.
    Touched,
    /// A file was closed by a writer, or moved here as it is.
    Closed,
    /// A directory has appeared.
    Directory,
    /// It is gone.
    Gone,
    /// A directory is gone, or has another name now.
    DirectoryGone,
}

/// What was seen in the watched directories.
#[derive(Debug)]
pub(crate) enum Noticed<P> {
    /// Something has happened to a name in the directory that was watched as `place`.
    Name {
        /// The watched directory.
        place: P,
        /// The name in it.
        name: Vec<u8>,
        /// What.
        happened: Happened,
    },
    /// The directory that was watched as this is gone.
    Unwatched(P),
    /// The kernel could not keep all of it: the directories must be listed anew.
    Overflow,
}

/// Watched directories, each known by a `P` of the caller's.
pub(crate) struct Watch<P> {
    inotify: OwnedFd,
    places: HashMap<i32, Vec<P>>,
}

impl<P: Clone + PartialEq> Watch<P> {
    /// Watches nothing yet.
    pub(crate) fn new() -> Result<Self, Error> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let inotify = inotify.map_err(|errno| match errno {
            // Also what is left of this process's own files; the kernel does not say which.
            Errno::MFILE => {
                let text = "watch directories: the kernel gives this user no more inotify instances, or this process no more files; a higher \
                            fs.inotify.max_user_instances or ulimit -n allows more";
                LISTING.refused(ErrorKind::Limit, text.to_owned())
            }
            errno => LISTING.failed(errno, "watch directories"),
        })?;
        Ok(Self { inotify, places: HashMap::new() })
    }

    /// What [`wait`] waits for.
    pub(crate) fn events(&self) -> Result<OwnedFd, Error> {
        self.inotify.try_clone().map_err(|error| LISTING.failed(error, "watch directories"))
    }

    /// Watches the directory `path` beneath `root`; watching one again changes nothing.
    ///
    /// Errors: `Limit` when the kernel watches no more for this user.
    pub(crate) fn add(&mut self, root: &Root, path: &[u8], place: P) -> Result<(), Error> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let failed = |errno: Errno| match errno {
            Errno::NOSPC => {
                let text = format!(
                    "watch directory {shown:?} in {root}: the kernel watches no more; what appears in it is found once a minute, or at once with a \
                     higher fs.inotify.max_user_watches"
                );
                LISTING.refused(ErrorKind::Limit, text)
            }
            errno => LISTING.failed(errno, format_args!("watch directory {shown:?} in {root}")),
        };
        let directory = root.open_directory(path).map_err(failed)?;
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        // By its descriptor: what has the path now may be something else, or be too long to be named.
        let by_descriptor = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
        let watched = inotify::add_watch(&self.inotify, by_descriptor, flags).map_err(failed)?;
        let places = self.places.entry(watched).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
        Ok(())
    }

    /// Watches none of the directories any more whose places `is_gone` names.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&P) -> bool) {
        self.places.retain(|watched, places| {
            let before = places.len();
            places.retain(|place| !is_gone(place));
            if places.is_empty() && before > 0 {
                // One that is deleted is not watched any more.
                let _ = inotify::remove_watch(&self.inotify, *watched);
            }
            !places.is_empty()
        });
    }

    /// What has happened since the last call; never waits.
    pub(crate) fn take(&mut self) -> Result<Vec<Noticed<P>>, Error> {
        let mut seen = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(seen),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(LISTING.failed(errno, "read what has happened in watched directories")),
            };
            let (watched, events) = (event.wd(), event.events());
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                seen.push(Noticed::Overflow);
            } else if events.contains(ReadFlags::IGNORED) {
                // The directory is gone, and its number may be given to another.
                seen.extend(self.places.remove(&watched).into_iter().flatten().map(Noticed::Unwatched));
            } else if let (Some(name), Some(happened)) = (event.file_name(), happened(events)) {
                let places = self.places.get(&watched).into_iter().flatten();
                let name = name.to_bytes();
                seen.extend(places.map(|place| Noticed::Name { place: place.clone(), name: name.to_vec(), happened }));
            }
        }
    }
}

/// What the events of a name mean; `None` for nothing.
fn happened(events: ReadFlags) -> Option<Happened> {
    let is_directory = events.contains(ReadFlags::ISDIR);
    if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(if is_directory { Happened::DirectoryGone } else { Happened::Gone });
    }
    match (is_directory, events) {
        (true, events) => events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO).then_some(Happened::Directory),
        (false, events) if events.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) => Some(Happened::Closed),
        (false, events) if events.intersects(ReadFlags::CREATE | ReadFlags::MODIFY) => Some(Happened::Touched),
        _ => None,
    }
}

/// Waits until something has happened in watched directories, no longer than `time`.
pub(crate) fn wait(events: &OwnedFd, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // A signal only ends the wait early.
    let _ = poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&time));
}
