//! Describes the names of a list: attributes, filter and digests. The same for an agent and for this host.

use sterna_proto::digest::{FileDigester, InOrder};
use sterna_proto::file::BlockMap;
use sterna_proto::session::{Attributes, DigestQuery, ListOptions, Listed, ListedKind, Owner};
use sterna_proto::{BlockDigest, Error, ErrorKind, FileDigests, Phase, RelPath, Scope};

use crate::disk::{ListedName, Root, is_meant};

/// Describes the names of one list.
pub(crate) struct Lister<'a> {
    options: &'a ListOptions,
    /// Returns true if nobody waits for the list any more.
    is_cancelled: &'a dyn Fn() -> bool,
    owners: Owners,
}

impl<'a> Lister<'a> {
    pub(crate) fn new(options: &'a ListOptions, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { options, is_cancelled, owners: Owners::default() }
    }

    /// Returns the description of a name beneath `root`; `None`: it does not pass the filter. Its path begins with
    /// `prefix`.
    ///
    /// Errors: attributes or data of the file cannot be read; `Changed`; `Cancelled`.
    pub(crate) fn describe(
        &mut self,
        root: &Root,
        prefix: Option<&RelPath>,
        name: ListedName,
    ) -> Result<Option<Listed>, Error> {
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
            if (self.is_cancelled)() {
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
