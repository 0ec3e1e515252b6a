//! Watches directories for new names and for changes, with inotify.
//!
//! Reports what happened in the directories that it was given. Refuses to read files, or remember them. No kernel
//! reports the changes that another host makes to a network file system. A caller that needs them must list the
//! directories again.

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

/// Bytes of events per read. Guess: a few hundred events.
const EVENT_BYTES: usize = 16 << 10;

/// Kind of change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The file was created, or written to.
    Touched,
    /// A writer closed the file, or a file was moved here.
    Closed,
    /// A directory appeared.
    Directory,
    /// The file is gone.
    Gone,
    /// The directory is gone, or was renamed.
    DirectoryGone,
}

/// Change in the watched directories.
#[derive(Debug)]
pub(crate) enum Noticed<P> {
    /// A name changed in the directory that is watched as `place`.
    Name {
        /// Watched directory.
        place: P,
        /// Name in this directory.
        name: Vec<u8>,
        /// Kind of change.
        happened: Happened,
    },
    /// The directory that was watched as this place is gone.
    Unwatched(P),
    /// The kernel dropped events: the directories must be listed again.
    Overflow,
}

/// Watched directories, each identified by a `P` of the caller.
pub(crate) struct DirectoryWatcher<P> {
    inotify: OwnedFd,
    places: HashMap<i32, Vec<P>>,
}

impl<P: Clone + PartialEq> DirectoryWatcher<P> {
    /// Creates an instance that watches nothing yet.
    pub(crate) fn new() -> Result<Self, Error> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let inotify = inotify.map_err(|errno| match errno {
            // The cause may also be this process's own limit of open files; the kernel does not report which limit was
            // reached.
            Errno::MFILE => {
                let text = "watch directories: the kernel gives this user no more inotify instances, or this process no more files; a higher \
                            fs.inotify.max_user_instances or ulimit -n allows more";
                LISTING.refused(ErrorKind::Limit, text.to_owned())
            }
            errno => LISTING.failed(errno, "watch directories"),
        })?;
        Ok(Self { inotify, places: HashMap::new() })
    }

    /// Returns the descriptor that [`wait`] waits for.
    pub(crate) fn events(&self) -> Result<OwnedFd, Error> {
        self.inotify.try_clone().map_err(|error| LISTING.failed(error, "watch directories"))
    }

    /// Watches the directory `path` beneath `root`. A second call for the same directory changes nothing.
    ///
    /// Errors: `Limit` if the kernel allows this user no more watches.
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
        // Watched by its descriptor: the path may name something else by now, or be too long.
        let by_descriptor = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
        let watched = inotify::add_watch(&self.inotify, by_descriptor, flags).map_err(failed)?;
        let places = self.places.entry(watched).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
        Ok(())
    }

    /// Stops watching the directories whose places match `is_gone`.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&P) -> bool) {
        self.places.retain(|watched, places| {
            let before = places.len();
            places.retain(|place| !is_gone(place));
            if places.is_empty() && before > 0 {
                // Fails for a deleted directory, which is not watched any more.
                let _ = inotify::remove_watch(&self.inotify, *watched);
            }
            !places.is_empty()
        });
    }

    /// Returns the changes since the last call. Never blocks.
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
                // The directory is gone, and its number may be given to another one.
                seen.extend(self.places.remove(&watched).into_iter().flatten().map(Noticed::Unwatched));
            } else if let (Some(name), Some(happened)) = (event.file_name(), happened(events)) {
                let places = self.places.get(&watched).into_iter().flatten();
                let name = name.to_bytes();
                seen.extend(places.map(|place| Noticed::Name { place: place.clone(), name: name.to_vec(), happened }));
            }
        }
    }
}

/// Returns the kind of change for the events of a name; `None` for events that are not reported.
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

/// Waits for a change in the watched directories or for `end` to be readable, at most for `time`.
pub(crate) fn wait(events: &OwnedFd, end: &OwnedFd, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // A signal only ends the wait early.
    let _ = poll(&mut [PollFd::new(events, PollFlags::IN), PollFd::new(end, PollFlags::IN)], Some(&time));
}
