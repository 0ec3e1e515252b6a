//! First names in a manifest, and hashes of paths.

use std::collections::HashSet;

use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};

use super::SourcePlace;
use crate::disk::{SourceItem, has_wildcards};

/// Maximum of first names in a manifest of several sources. Reason: all of them go to one directory, and one
/// directory lists no more names than this (`DIRECTORY_NAMES_MAX`). Each takes 17 bytes.
pub const FIRST_NAMES_MAX: usize = 4_000_000;

/// First half of a BLAKE3. Two paths with the same half do not occur in practice.
pub(crate) type PathHash = [u8; 16];

/// Returns the first half of the BLAKE3 of a path.
pub(crate) fn hash_of(path: &[u8]) -> PathHash {
    let mut hash = [0; 16];
    blake3::Hasher::new().update(path).finalize_xof().fill(&mut hash);
    hash
}

/// Returns the first name of a path.
pub(crate) fn first_name(path: &RelPath) -> &[u8] {
    path.as_bytes().split(|&b| b == b'/').next().unwrap_or_default()
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
    pub(super) fn new(sources: &[SourcePlace]) -> Self {
        let lists_several = |source: &SourcePlace| {
            let slash = source.pattern.iter().rposition(|&b| b == b'/');
            slash.is_some_and(|slash| has_wildcards(&source.pattern[..slash]))
        };
        let taken = (sources.len() > 1 || sources.iter().any(lists_several)).then(HashSet::new);
        Self { taken, place: None, is_refused: false }
    }

    /// Decides on the next entry, which comes from `from`, number `index`.
    pub(super) fn admit(&mut self, index: usize, from: &SourcePlace, item: &SourceItem) -> Admittance {
        let Some(taken) = &mut self.taken else { return Admittance::Offered };
        let first = first_name(&item.entry.path);
        let place = from.place_of(item, first);
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
            item.entry.path, item.source, from.root
        );
        Admittance::Refused(refused(ErrorKind::Exists, text))
    }
}
