//! Names in a session: paths that have settled, and names that a pull has asked for.

use std::collections::HashSet;

use sterna_proto::{Error, RelPath};

use crate::disk::{has_wildcards, is_meant, last_name};
use crate::source::{PathHash, first_name, hash_of};

/// Maximum of paths in [`SettledPaths`]. Reason: 17 bytes each, 70 MB in total, for a client that runs once. A peer
/// that settles files without end cannot use more memory.
pub const SETTLED_PATHS_MAX: usize = 3_500_000;

/// Files that the sessions of one copy have settled successfully, so that a takeover session leaves them out.
///
/// Keeps every path up to [`SETTLED_PATHS_MAX`]. The next session looks up the files beyond that maximum again.
#[derive(Clone, Debug, Default)]
pub struct SettledPaths(HashSet<PathHash>);

impl SettledPaths {
    /// Adds a path, if there is room.
    pub fn insert(&mut self, path: &RelPath) {
        if self.0.len() < SETTLED_PATHS_MAX {
            self.0.insert(hash_of(path.as_bytes()));
        }
    }

    /// Adds the paths of `others`, as far as there is room.
    pub fn extend(&mut self, others: Self) {
        let room = SETTLED_PATHS_MAX - self.0.len();
        self.0.extend(others.0.into_iter().take(room));
    }

    /// Creates the set from the first 16 bytes of the BLAKE3 of each path, as far as there is room.
    pub fn of_hashes(hashes: impl Iterator<Item = [u8; 16]>) -> Self {
        Self(hashes.take(SETTLED_PATHS_MAX).collect())
    }

    /// Returns the first 16 bytes of the BLAKE3 of each path in the set.
    pub fn hashes(&self) -> impl ExactSizeIterator<Item = [u8; 16]> + '_ {
        self.0.iter().copied()
    }

    /// True if the set contains this path.
    pub fn contains(&self, path: &RelPath) -> bool {
        !self.0.is_empty() && self.0.contains(&hash_of(path.as_bytes()))
    }
}

/// First names that entries of a session may have: the names that a pull asked for.
///
/// The peer of a pull names the files that this end writes. Without this check, a peer that was asked for
/// `report.txt` could send `.bashrc`.
#[derive(Clone, Debug)]
pub enum AskedNames {
    /// Any name: for a push, or for a pull of the contents of a directory.
    Any,
    /// Last names of the sources.
    These {
        /// Literal names.
        plain: HashSet<Box<[u8]>>,
        /// Names with wildcards.
        patterns: Vec<Box<[u8]>>,
    },
}

impl AskedNames {
    /// Returns the names that a pull of `sources` asks for.
    pub fn of<'a>(sources: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (mut plain, mut patterns) = (HashSet::new(), Vec::new());
        for source in sources {
            let Some(name) = last_name(source) else { return Self::Any };
            if has_wildcards(name) {
                patterns.push(name.into());
            } else {
                plain.insert(name.into());
            }
        }
        Self::These { plain, patterns }
    }

    /// Checks that an entry may have this path. Errors: `Protocol` if the peer offers a file that was not asked for.
    pub fn check(&self, path: &RelPath) -> Result<(), Error> {
        let first = first_name(path);
        match self {
            Self::These { plain, patterns }
                if !plain.contains(first) && !patterns.iter().any(|pattern| is_meant(pattern, first)) =>
            {
                let text = format!(
                    "the agent offers {path}, which was not asked for: it is broken or hostile; nothing was written there, \
                     and the copy ends"
                );
                Err(Error::protocol(text))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::ErrorKind;

    use super::*;

    fn rel(path: &str) -> RelPath {
        RelPath::new(path.as_bytes()).unwrap()
    }

    #[test]
    fn a_pull_takes_only_the_names_that_it_asked_for() {
        let cases: &[(&[&str], &[&str], &[&str])] = &[
            (
                &["report.txt"],
                &["report.txt", "report.txt/x"],
                &[".bashrc", ".ssh/authorized_keys", "report.txt2", "x/report.txt"],
            ),
            (&["a/b/tree/"], &["tree", "tree/deep/x"], &["a/b/tree", "b", "x"]),
            (&["p*/data.h5", "q/x"], &["data.h5", "x", "x/y"], &["p1/data.h5", "q"]),
            (&["in/*.h5"], &["a.h5", "a.h5/x"], &[".h5", "a.h4", ".bashrc"]),
            (&["in/*"], &["a"], &[".bashrc", ".ssh/authorized_keys"]),
            (&["a[b"], &["a[b"], &["a", "b"]),
            (&["a\\*b"], &["a*b", "a\\*b"], &["axb"]),
            // The contents of a directory have their own names.
            (&["tree/."], &["anything", ".bashrc"], &[]),
            (&[""], &["anything"], &[]),
            (&["report.txt", "tree/."], &["anything"], &[]),
        ];
        for (sources, taken, refused) in cases {
            let asked = AskedNames::of(sources.iter().map(|source| source.as_bytes()));
            for path in *taken {
                assert!(asked.check(&rel(path)).is_ok(), "{sources:?} {path}");
            }
            for path in *refused {
                let error = asked.check(&rel(path)).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Protocol, "{sources:?} {path}");
            }
        }
    }

    #[test]
    fn settled_paths_take_no_more_than_their_limit() {
        let mut settled = SettledPaths::default();
        assert!(!settled.contains(&rel("a/b")));
        settled.insert(&rel("a/b"));
        assert!(settled.contains(&rel("a/b")) && !settled.contains(&rel("a")));
        let full = SettledPaths((0..SETTLED_PATHS_MAX as u64).map(|i| hash_of(&i.to_le_bytes())).collect());
        settled.extend(full);
        settled.insert(&rel("one too many"));
        assert!(settled.contains(&rel("a/b")) && !settled.contains(&rel("one too many")));
        assert_eq!(settled.0.len(), SETTLED_PATHS_MAX);
    }
}
