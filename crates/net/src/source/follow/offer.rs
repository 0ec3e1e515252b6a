//! Reports of one followed file to the session.

use std::sync::Arc;

use sterna_proto::follow::FollowStep;
use sterna_proto::session::FileId;
use sterna_proto::{Error, ErrorKind, FileEntry, Growth, Phase, RelPath, Retry, Scope};

use super::super::Offers;
use super::super::file::{DiskFile, Listed, OpenFiles};
use super::super::final_digest::FinalDigestQueue;
use super::active::{Active, Sent, version_of_entry};
use crate::disk::Root;

/// Followed file, and the session to which it is reported.
pub(super) struct Report<'a> {
    pub(super) offers: &'a dyn Offers,
    pub(super) root: &'a Root,
    pub(super) path: &'a RelPath,
    pub(super) open_files: &'a Arc<OpenFiles>,
}

impl Report<'_> {
    /// Offers the complete blocks of a file, or reports its growth. Returns the number of the file if it was offered
    /// now.
    pub(super) fn grow(&self, active: &mut Active, growth: Growth, step: FollowStep) -> Result<Option<FileId>, Error> {
        let Self { offers, root, path, .. } = *self;
        let size = active.followed.look().size;
        let whole = growth.whole_bytes(size);
        if let (FollowStep::Pause, Sent::Growing(id, _)) = (step, &active.sent) {
            offers.set_tail(*id, size);
        }
        let known = match &active.sent {
            Sent::Growing(_, entry) => {
                check_grown(entry, active, path)?;
                Some(entry.size)
            }
            _ => None,
        };
        let is_worth_it = match known {
            Some(known) => whole > known,
            None => whole > 0 || step == FollowStep::Pause && active.followed.look().size > 0,
        };
        if !is_worth_it {
            return Ok(None);
        }
        let entry = root.open_source(path)?.growing_entry(active.target.clone(), growth)?;
        if let Sent::Growing(id, before) = &mut active.sent {
            if !before.grows_into(&entry) {
                return Err(changed(path, "it was cut, or another file has its name"));
            }
            offers.grow(*id, entry.clone());
            *before = entry;
            return Ok(None);
        }
        let Some(id) = self.offer(entry.clone()) else { return Ok(None) };
        active.sent = Sent::Growing(id, entry);
        Ok(Some(id))
    }

    /// Offers a file that has ended, or reports its end. Returns the number of the file if it was offered now.
    pub(super) fn end(
        &self,
        active: &mut Active,
        growth: Growth,
        seals: &FinalDigestQueue,
    ) -> Result<Option<FileId>, Error> {
        let Self { offers, root, path, .. } = *self;
        let source = root.open_source(path)?;
        let look = active.followed.look();
        let whole = FileEntry { path: active.target.clone(), ..source.entry()? };
        // A file that a process has open is read again as a whole. A small file is read twice when it is sent.
        let is_held = || !whole.is_packed() && source.is_being_written();
        let is_growing = matches!(active.sent, Sent::Growing(..)) || look.size > growth.block_bytes() || is_held();
        let entry = match is_growing {
            true => source.growing_entry(active.target.clone(), growth.end())?,
            false => whole,
        };
        if (entry.size, entry.mtime, entry.inode) != (look.size, look.mtime, look.inode) {
            // The file changes at this moment; the next look decides.
            return Ok(None);
        }
        let (id, is_new) = match &active.sent {
            Sent::Growing(id, before) => {
                check_grown(before, active, path)?;
                if !before.grows_into(&entry) {
                    return Err(changed(path, "it was cut, or another file has its name"));
                }
                offers.grow(*id, entry.clone());
                (*id, false)
            }
            _ => match self.offer(entry.clone()) {
                Some(id) => (id, true),
                None => return Ok(None),
            },
        };
        active.sent = Sent::Whole(id, version_of_entry(&entry));
        if is_growing {
            // The open file is closed before the wait in the queue: thousands of files may wait there.
            drop(source);
            seals.push(id, (root.clone(), path.clone()), entry);
        }
        Ok(is_new.then_some(id))
    }

    /// Offers the file; `None` if the manifest has no room now.
    fn offer(&self, entry: FileEntry) -> Option<FileId> {
        let file = DiskFile::new(self.root, self.path.clone(), Listed::Followed, self.open_files);
        self.offers.try_offer(entry, file)
    }
}

/// Checks a followed file. Errors: the file was truncated, or another file has its name.
fn check_grown(before: &FileEntry, active: &Active, path: &RelPath) -> Result<(), Error> {
    let look = active.followed.look();
    let what = match () {
        () if look.inode != before.inode => "another file has its name".to_owned(),
        () if look.size < before.size => {
            format!("it was cut to {} bytes when {} had been sent", look.size, before.size)
        }
        () => return Ok(()),
    };
    Err(changed(path, &what))
}

fn changed(path: &RelPath, what: &str) -> Error {
    let text = format!(
        "{path} changed while it was followed: {what}; nothing of it is published, and the next attempt copies the file from its start"
    );
    Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, text).retry(Retry::After)
}
