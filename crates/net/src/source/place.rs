//! Pattern beneath a root, as a place of sources.

use sterna_proto::{EntryKind, Error, ErrorKind, Phase, RelPath, Scope};

use crate::disk::{Root, SourceItem};

/// Place of files of this host: a pattern beneath a root.
#[derive(Clone)]
pub struct SourcePlace {
    /// Root of the pattern.
    pub root: Root,
    /// File path beneath the root, with wildcards.
    pub pattern: Vec<u8>,
    /// Name under which the root itself is sent; the pattern is then empty.
    pub name: Option<RelPath>,
}

impl SourcePlace {
    /// Returns the matching items in the order of the manifest. Errors: those of [`Root::expand`].
    pub(super) fn items(&self) -> Result<impl Iterator<Item = Result<SourceItem, Error>> + '_, Error> {
        let itself = self.name.as_ref().map(|name| self.root.as_item(name));
        let beneath = self.root.expand(&self.pattern)?.map(|item| {
            let mut item = item?;
            if let Some(name) = &self.name {
                item.entry.path = name.join(item.entry.path.as_bytes())?;
            }
            Ok(item)
        });
        Ok(itself.into_iter().chain(beneath))
    }

    /// Returns the file of a place that must be a single one. Errors: `Usage`: it is not; those of [`Root::expand`].
    pub(super) fn only_file(&self) -> Result<SourceItem, Error> {
        let mut items = self.items()?;
        let first = items.next().transpose()?.filter(|item| item.entry.kind == EntryKind::File);
        match (first, items.next()) {
            (Some(file), None) => Ok(file),
            _ => {
                let text = "the source is no single file: a transfer moves one file";
                Err(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text))
            }
        }
    }

    /// Returns the source place behind the first name `first` of `item`. The rest of the name is the same at the
    /// source.
    pub(super) fn place_of<'a>(&self, item: &'a SourceItem, first: &[u8]) -> &'a [u8] {
        if self.name.is_some() {
            return b"";
        }
        let source = item.source.as_bytes();
        let behind = item.entry.path.as_bytes().len() - first.len();
        &source[..source.len() - behind]
    }
}
