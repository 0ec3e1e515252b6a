//! Answers a list: finds names, and describes them with attributes and digests. An agent and this host share it.

use sterna_proto::digest::{FileDigester, InOrder};
use sterna_proto::file::BlockMap;
use sterna_proto::session::{Answer, Attributes, DigestQuery, ListOptions, Listed, ListedKind, Owner};
use sterna_proto::{BlockDigest, Error, ErrorKind, FileDigests, Phase, RelPath, Scope};

use crate::cancel::Cancel;
use crate::disk::{ListedName, Listing, Root, is_meant};

/// Place of a query: a pattern beneath a root.
#[derive(Clone)]
pub(crate) struct QueryPlace {
    /// Root of the pattern.
    pub(crate) root: Root,
    /// Path beneath the root, with wildcards in a list.
    pub(crate) pattern: Vec<u8>,
    /// Name of the root, with which the paths of answers begin; `None`: the root has no name.
    pub(crate) prefix: Option<RelPath>,
    /// Levels of a list above this place: 1 for a root that was found because all roots are listed; otherwise 0.
    pub(crate) levels_above: u32,
}

/// Iterator over the answers to a list. Ends early when the list is cancelled.
pub(crate) struct Lister {
    options: ListOptions,
    cancel: Cancel,
    owners: Owners,
    places: std::vec::IntoIter<QueryPlace>,
    current: Option<(QueryPlace, Listing)>,
}

impl Lister {
    pub(crate) fn new(places: Vec<QueryPlace>, options: ListOptions, cancel: Cancel) -> Self {
        Self { options, cancel, owners: Owners::default(), places: places.into_iter(), current: None }
    }

    /// Begins with `place`. Errors: as [`Root::list`].
    fn begin(&mut self, place: QueryPlace) -> Result<(), Error> {
        let depth = match self.options.depth {
            // Only the level above is listed, which has no name.
            Some(depth) if depth < place.levels_above => return Ok(()),
            depth => depth.map(|depth| depth - place.levels_above),
        };
        let listing = place.root.list(&place.pattern, depth, self.options.symlinks)?;
        self.current = Some((place, listing));
        Ok(())
    }

    /// Returns the next answer; `None`: a name does not pass the filter, or a place has no more names.
    fn step(&mut self) -> Result<Option<Answer>, Error> {
        let Some((place, mut listing)) = self.current.take() else { return Ok(None) };
        let Some(found) = listing.next() else { return Ok(None) };
        let listed = found.and_then(|name| self.describe(&place.root, place.prefix.as_ref(), name));
        self.current = Some((place, listing));
        Ok(listed?.map(|listed| Answer::Listed(Box::new(listed))))
    }

    /// Returns the description of a name beneath `root`; `None`: it does not pass the filter. Its path begins with
    /// `prefix`.
    ///
    /// Errors: attributes or data of the file cannot be read; `Changed`; `Cancelled`.
    fn describe(&mut self, root: &Root, prefix: Option<&RelPath>, name: ListedName) -> Result<Option<Listed>, Error> {
        let mut listed = Listed {
            path: shown_path(prefix, name.path.as_ref())?,
            kind: name.kind,
            size: name.size(),
            mtime: name.mtime(),
            mode: name.mode(),
            allocated: name.allocated(),
            attributes: Attributes { hard_link: name.hard_link(), ..Attributes::default() },
            digests: None,
        };
        let last = listed.path.as_ref().map_or(&b""[..], RelPath::name);
        if !self.options.filter.passes(last, &listed, is_meant) {
            return Ok(None);
        }
        if self.options.details.owner {
            listed.attributes.owner = Some(self.owners.of(name.owner()));
        }
        let is_openable = matches!(name.kind, ListedKind::File | ListedKind::Directory) && name.target.is_none();
        if self.options.details.xattrs && is_openable {
            listed.attributes.xattrs = root.xattrs(name.path.as_ref())?;
        }
        if let (Some(wanted), ListedKind::File, Some(path)) = (self.options.digest, name.kind, &name.path) {
            listed.digests = Some(self.digests(root, path, wanted)?);
        }
        listed.attributes.target = name.target;
        Ok(Some(listed))
    }

    /// Reads a file, or a range of it, and returns its digests.
    ///
    /// Errors: `Changed` if the file changes meanwhile or ends before the range; `Cancelled`.
    fn digests(&self, root: &Root, path: &RelPath, wanted: DigestQuery) -> Result<FileDigests, Error> {
        let file = root.open_source(path)?;
        let entry = file.entry()?;
        let (start, length) = wanted.range.unwrap_or((0, entry.size));
        let blocks = BlockMap::new(length);
        let (mut digester, mut in_order) = (FileDigester::new(blocks), InOrder::new(wanted.checks));
        let mut buffer = Vec::new();
        for index in 0..blocks.count() {
            if self.cancel.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Verify, "the query was stopped"));
            }
            // At most 16 MiB, the largest block.
            buffer.resize(blocks.length(index) as usize, 0);
            file.read_at(start + index * blocks.block_bytes(), &mut buffer)?;
            digester.push(&BlockDigest::of(&blocks, index, wanted.checks, &buffer));
            in_order.update(&buffer);
        }
        file.check_unchanged(&entry)?;
        if length == 0 {
            return Ok(FileDigests::of(b"", wanted.checks));
        }
        let mut digests = digester.finish();
        in_order.finish_into(&mut digests);
        Ok(digests)
    }
}

impl Iterator for Lister {
    type Item = Answer;

    fn next(&mut self) -> Option<Answer> {
        while !self.cancel.is_cancelled() {
            let stepped = match &self.current {
                Some(_) => self.step(),
                None => {
                    let place = self.places.next()?;
                    self.begin(place).map(|()| None)
                }
            };
            match stepped {
                Ok(None) => {}
                Ok(Some(answer)) => return Some(answer),
                Err(error) => return Some(Answer::Failed(error)),
            }
        }
        None
    }
}

/// Returns the path of a name as a location has it: `prefix`, which is the name of the root, then the path beneath it.
pub(crate) fn shown_path(prefix: Option<&RelPath>, path: Option<&RelPath>) -> Result<Option<RelPath>, Error> {
    match (prefix, path) {
        (Some(root), Some(path)) => root.join(path.as_bytes()).map(Some),
        (root, path) => Ok(root.or(path).cloned()),
    }
}

/// Names of users and groups that were looked up. Reason: a lookup may ask a directory server, and the files of a
/// directory mostly have one owner.
#[derive(Default)]
struct Owners(Vec<Owner>);

impl Owners {
    /// Maximum number of remembered owners. Reason: bounds memory; the names of more owners are looked up again.
    const KEPT_MAX: usize = 256;

    fn of(&mut self, (user, group): (u32, u32)) -> Owner {
        if let Some(known) = self.0.iter().find(|known| (known.user, known.group) == (user, group)) {
            return known.clone();
        }
        // A number without a name is not an error: the name stays empty.
        let user_name = nix::unistd::User::from_uid(user.into()).ok().flatten().map(|user| user.name);
        let group_name = nix::unistd::Group::from_gid(group.into()).ok().flatten().map(|group| group.name);
        let bytes = |name: Option<String>| name.unwrap_or_default().into_bytes();
        let owner = Owner { user, group, user_name: bytes(user_name), group_name: bytes(group_name) };
        if self.0.len() == Self::KEPT_MAX {
            self.0.clear();
        }
        self.0.push(owner.clone());
        owner
    }
}
