//! Names that a session has given to its files, so that it does not replace one of its own files with another.
//!
//! Two names such as `a` and `A` can mean one file. Either the directory ignores case or Unicode forms, or a symlink
//! leads two paths to one place. Without this check, the second file would replace the first, and both would count as
//! copied.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FileType, Stat};
use sterna_proto::{Error, ErrorKind, RelPath};

use super::fault::PREPARING;

/// Maximum number of files in one generation of [`Claims`]; the last two generations are kept. Reason: 7/8 of 2^18, the
/// capacity of a hash table of 6.5 MB. Sources are listed directory by directory, so two names of one file come close
/// together.
const GENERATION_MAX: usize = 229_376;

/// Device and inode of a file.
type Key = (u64, u64);

/// Files that a session has published or found up to date: their inodes, each with a hash of its path.
#[derive(Debug, Default)]
pub(super) struct Claims {
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
pub(super) struct Generations {
    young: HashMap<Key, u64>,
    old: HashMap<Key, u64>,
}

impl Claims {
    /// Locks the claims for a check and the rename that follows. No other thread of the session publishes in between.
    pub(super) fn lock(&self) -> MutexGuard<'_, Generations> {
        // Consistent between any two statements, so it stays valid after a panic in another thread.
        self.generations.lock()
    }
}

impl Generations {
    /// Records that `path` names the file `stat`.
    pub(super) fn insert(&mut self, stat: &Stat, path: &RelPath) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key_of(stat), hash_of(path.as_bytes()));
    }

    /// Removes a file that is about to lose its name to another file. Its inode may be reused.
    pub(super) fn remove(&mut self, stat: &Stat) {
        self.young.remove(&key_of(stat));
        self.old.remove(&key_of(stat));
    }

    /// Checks that `stat`, the file under the name `path`, is not a file that this session has under another name.
    ///
    /// Errors: `Exists` if it is. A file with several hard links is accepted: replacing one of its names leaves the
    /// others.
    pub(super) fn check(&self, stat: &Stat, path: &RelPath) -> Result<(), Error> {
        let claimed = self.young.get(&key_of(stat)).or_else(|| self.old.get(&key_of(stat)));
        let is_other = claimed.is_some_and(|hash| *hash != hash_of(path.as_bytes()));
        if !is_other || stat.st_nlink != 1 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let text = format!(
            "write {path}: another file of this copy has this place already, because the destination takes both names for \
             one (upper and lower case, Unicode forms, or a symlink); that file stays, and this one needs another name"
        );
        Err(PREPARING.refused(ErrorKind::Exists, text))
    }
}

fn key_of(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// Returns 64 bits of a BLAKE3. Reason: only paths that share an inode are compared.
pub(super) fn hash_of(path: &[u8]) -> u64 {
    let mut hash = [0; 8];
    hash.copy_from_slice(&blake3::hash(path).as_bytes()[..8]);
    u64::from_le_bytes(hash)
}
