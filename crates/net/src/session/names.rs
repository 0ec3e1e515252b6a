//! Names in a session: paths that have settled, first names in a manifest, and names that a pull has asked for.

use std::collections::HashSet;

use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};

use super::Source;
use crate::disk::{SourceItem, has_wildcards, is_meant, last_name};

/// Maximum of paths in [`SettledPaths`]. Reason: 17 bytes each, 70 MB in total, for a client that runs once. A peer
/// that settles files without end cannot use more memory.
pub const SETTLED_PATHS_MAX: usize = 3_500_000;

/// Maximum of first names in a manifest of several sources. Reason: all of them go to one directory, and one
/// directory lists no more names than this (`DIRECTORY_NAMES_MAX`). Each takes 17 bytes.
pub const FIRST_NAMES_MAX: usize = 4_000_000;

/// First half of a BLAKE3. Two paths with the same half do not occur in practice.
pub(super) type PathHash = [u8; 16];

pub(super) fn hash_of(path: &[u8]) -> PathHash {
    let mut hash = [0; 16];
    blake3::Hasher::new().update(path).finalize_xof().fill(&mut hash);
    hash
}

/// Returns the first name of a path.
fn first_name(path: &RelPath) -> &[u8] {
    path.as_bytes().split(|&b| b == b'/').next().unwrap_or_default()
}

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

/// First names in a manifest. A second source with the same name is refused, as `cp` does.
///
/// Names in one directory differ. All entries with one first name come from one place at the source, one after the
/// other. So two entries with the same path share a first name and come from two places. It is thus enough to keep
/// first names, and none at all if only one directory provides them.
pub(super) struct FirstNames {
    /// First names, as hashes; `None` if one directory provides all of them.
    taken: Option<HashSet<PathHash>>,
    /// Place of the last entry: the number of its source and its path there.
    place: Option<(usize, Box<[u8]>)>,
    is_refused: bool,
}

/// Decision on an entry of the manifest.
pub(super) enum Admittance {
    /// The entry joins the manifest.
    Offered,
    /// The entry is refused: another source has its first name.
    Refused(Error),
    /// The entry is refused, and the refusal of its first name is already reported.
    RefusedBefore,
    /// The entry is refused: the maximum of first names is reached.
    Full(Error),
}

impl FirstNames {
    /// Creates the set for a manifest of `sources`.
    pub(super) fn new(sources: &[Source]) -> Self {
        let lists_several = |source: &Source| {
            let slash = source.pattern.iter().rposition(|&b| b == b'/');
            slash.is_some_and(|slash| has_wildcards(&source.pattern[..slash]))
        };
        let taken = (sources.len() > 1 || sources.iter().any(lists_several)).then(HashSet::new);
        Self { taken, place: None, is_refused: false }
    }

    /// Decides on the next entry, which comes from `source`, number `index`.
    pub(super) fn admit(&mut self, index: usize, source: &Source, item: &SourceItem) -> Admittance {
        let Some(taken) = &mut self.taken else { return Admittance::Offered };
        let first = first_name(&item.entry.path);
        let place = source.place_of(item, first);
        if self.place.as_ref().is_some_and(|(i, p)| (*i, &**p) == (index, place)) {
            return if self.is_refused { Admittance::RefusedBefore } else { Admittance::Offered };
        }
        self.place = Some((index, place.into()));
        let refused = |kind, text| Error::new(kind, Scope::Source, Phase::Prepare, text);
        if taken.len() >= FIRST_NAMES_MAX {
            let text =
                format!("the sources have more than {FIRST_NAMES_MAX} names for one directory; the rest is not copied");
            return Admittance::Full(refused(ErrorKind::Limit, text));
        }
        self.is_refused = !taken.insert(hash_of(first));
        if !self.is_refused {
            return Admittance::Offered;
        }
        let text = format!(
            "two sources have the name {}: {} in {} is the second and is not copied; give it a destination of its own",
            item.entry.path, item.source, source.root
        );
        Admittance::Refused(refused(ErrorKind::Exists, text))
    }
}

#[cfg(test)]
mod tests {
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
