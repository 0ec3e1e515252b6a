//! Sink that verifies files and keeps nothing of them: the receiving end of a probe.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sterna_proto::session::{Overwrite, Probe};
use sterna_proto::{
    BlockDigest, BlockMap, Digest, EntryKind, Error, ErrorKind, FileDigester, FileDigests, FileEntry, Phase, RangeSet,
    RelPath, Scope,
};

use super::{DirectoryModes, Inspected, PackedFile, PackedOutcome, Place, Prepared, Sink, SinkFile, Terms};

/// Sink of the files of a probe, whose data is verified and discarded. Refuses every other entry.
///
/// Nothing is durable: a later session starts at zero.
pub struct Discard {
    /// Files of the probe, with their sizes.
    announced: BTreeMap<RelPath, u64>,
    /// Files that have been prepared.
    taken: Mutex<BTreeSet<RelPath>>,
    storage: Arc<dyn Any + Send + Sync>,
}

impl Discard {
    /// Creates a sink of the files of `probe`.
    pub fn new(probe: Probe) -> Self {
        Self { announced: probe.files().collect(), taken: Mutex::default(), storage: Arc::new(()) }
    }

    /// Checks that an entry is an announced file. Errors: `Denied`.
    fn check(&self, entry: &FileEntry) -> Result<(), Error> {
        let is_announced = entry.kind == EntryKind::File
            && entry.growth.is_none()
            && self.announced.get(&entry.path) == Some(&entry.size);
        if is_announced {
            return Ok(());
        }
        let text = format!("receive {} with {} bytes: no such file of the probe was announced", entry.path, entry.size);
        Err(refused(ErrorKind::Denied, text))
    }
}

impl Sink for Discard {
    fn place_of(&self, path: &RelPath) -> Result<Place, Error> {
        Ok(Place::new(Arc::clone(&self.storage), path.clone()))
    }

    fn prepare(&self, entry: &FileEntry, terms: &Terms) -> Result<Prepared, Error> {
        self.check(entry)?;
        if !terms.checks.is_none() {
            let text = "compute more digests than BLAKE3: the data of a probe is not kept";
            return Err(refused(ErrorKind::Usage, text.to_owned()));
        }
        if !self.taken.lock().insert(entry.path.clone()) {
            return Err(refused(ErrorKind::Exists, format!("receive {}: the probe has it already", entry.path)));
        }
        let blocks = entry.blocks();
        Ok(Prepared::Incoming(Arc::new(Discarded { path: entry.path.clone(), blocks, verified: Mutex::default() })))
    }

    fn inspect(&self, entry: &FileEntry, _overwrite: Overwrite) -> Result<Inspected, Error> {
        self.check(entry).map(|()| Inspected::Wanted)
    }

    fn claim_settled(&self, _entry: &FileEntry) {}

    fn publish_packed(&self, files: &[PackedFile<'_>], _terms: &Terms) -> Vec<PackedOutcome> {
        let unannounced = |file: &PackedFile<'_>| {
            let text = format!("receive {}: no packed file of the probe was announced", file.entry.path);
            Err(refused(ErrorKind::Denied, text))
        };
        files.iter().map(unannounced).collect()
    }

    fn finish(&self, _modes: DirectoryModes) -> Result<(), Error> {
        Ok(())
    }

    fn sync_names(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// File whose data is discarded, and the digests of its verified blocks.
struct Discarded {
    path: RelPath,
    blocks: BlockMap,
    verified: Mutex<BTreeMap<u64, BlockDigest>>,
}

impl Discarded {
    fn check_range(&self, offset: u64, length: u64) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.blocks.size() => Ok(()),
            _ => Err(Error::protocol(format!("{length} bytes at {offset} of {}, which has fewer", self.path))),
        }
    }

    fn digests(&self) -> Result<FileDigests, Error> {
        let verified = self.verified.lock();
        if verified.len() as u64 != self.blocks.count() {
            return Err(crate::internal("publish a probe of which blocks are missing"));
        }
        let mut digester = FileDigester::new(self.blocks);
        verified.values().for_each(|digest| digester.push(digest));
        Ok(digester.finish())
    }
}

impl SinkFile for Discarded {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn blocks(&self) -> BlockMap {
        self.blocks
    }

    fn restarted(&self) -> Option<&str> {
        None
    }

    fn have(&self) -> RangeSet {
        self.verified.lock().keys().map(|index| *index..index + 1).collect()
    }

    fn grow(&self, _entry: &FileEntry) -> Result<(), Error> {
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(offset, data.len() as u64)
    }

    fn write_hole(&self, _offset: u64, _length: u64) -> Result<(), Error> {
        Err(Error::protocol(format!("a hole in {}, which has none", self.path)))
    }

    fn write_tail(&self, _offset: u64, _data: &[u8]) -> Result<(), Error> {
        Err(Error::protocol(format!("a tail of {}, which does not grow", self.path)))
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> Result<(), Error> {
        Err(crate::internal("read back the data of a probe"))
    }

    fn record(&self, index: u64, digest: BlockDigest) -> Result<(), Error> {
        let count = self.blocks.count();
        if index >= count {
            return Err(Error::protocol(format!("block {index} of {}, which has {count} blocks", self.path)));
        }
        self.verified.lock().entry(index).or_insert(digest);
        Ok(())
    }

    fn checkpoint(&self) -> Result<u64, Error> {
        Ok(0)
    }

    fn next_claim(&self) -> Option<(u64, BlockDigest)> {
        None
    }

    fn settle_claim(&self, _index: u64, _digest: Option<BlockDigest>) {}

    fn keep_digests(&self) {}

    fn forget(&self, blocks: &RangeSet) -> Result<(), Error> {
        self.verified.lock().retain(|index, _| !blocks.contains(*index));
        Ok(())
    }

    fn verify(&self, expected: &[Digest]) -> Result<(), Error> {
        let digests = self.digests()?;
        expected.iter().try_for_each(|digest| digest.check(&digests, &self.path))
    }

    fn check_final_digest(&self, _blake3: [u8; 32]) -> Result<(), Error> {
        Err(Error::protocol(format!("a final digest of {}, which does not grow", self.path)))
    }

    fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error> {
        self.verify(expected)?;
        self.digests()
    }

    fn discard(&self) -> Result<(), Error> {
        self.verified.lock().clear();
        Ok(())
    }

    fn end(&self) {}
}

fn refused(kind: ErrorKind, text: String) -> Error {
    Error::new(kind, Scope::Destination, Phase::Prepare, text)
}

#[cfg(test)]
mod tests {
    use sterna_proto::path_cache::DataDirection;
    use sterna_proto::{Checks, FileTime, Growth};

    use super::*;
    use crate::sink::Seen;

    const BYTES: u64 = (3 << 20) + 7;
    const TERMS: Terms = Terms { overwrite: Overwrite::IfChanged, checks: Checks::NONE };

    fn sink() -> Discard {
        Discard::new(Probe { direction: DataDirection::In, bytes: BYTES })
    }

    fn announced() -> FileEntry {
        FileEntry {
            path: RelPath::new(b"probe0").unwrap(),
            kind: EntryKind::File,
            size: BYTES,
            mtime: FileTime::default(),
            mode: 0o600,
            allocated: BYTES,
            inode: 0,
            version: 1,
            growth: None,
        }
    }

    fn refusal(sink: &Discard, entry: &FileEntry) -> ErrorKind {
        sink.prepare(entry, &TERMS).err().unwrap_or_else(|| panic!("{entry:?} is accepted")).kind
    }

    fn open(sink: &Discard) -> Arc<dyn SinkFile> {
        match sink.prepare(&announced(), &TERMS).unwrap() {
            Prepared::Incoming(file) => file,
            _ => panic!("the file takes no blocks"),
        }
    }

    #[test]
    fn the_digest_of_the_data_is_that_of_its_blocks() {
        let (file, data) = (open(&sink()), vec![7; BYTES as usize]);
        let map = file.blocks();
        assert_eq!(file.publish(&[]).unwrap_err().kind, ErrorKind::Internal, "blocks are missing");
        for index in [3, 1, 0, 2] {
            let block = &data[map.offset(index) as usize..][..map.length(index) as usize];
            file.write_at(map.offset(index), block).unwrap();
            file.record(index, BlockDigest::of(&map, index, Checks::NONE, block)).unwrap();
        }
        assert_eq!(file.have(), std::iter::once(0..4).collect());
        assert_eq!(file.publish(&[]).unwrap().blake3, *blake3::hash(&data).as_bytes());
    }

    #[test]
    fn only_the_announced_file_is_accepted_and_only_once() {
        let sink = sink();
        let named = |name: &[u8]| FileEntry { path: RelPath::new(name).unwrap(), ..announced() };
        let others = [
            named(b"other"),
            named(b"probe1"),
            named(b"probe0/probe0"),
            FileEntry { size: BYTES + 1, ..announced() },
            FileEntry { size: BYTES - 1, ..announced() },
            FileEntry { size: 0, kind: EntryKind::Directory, ..announced() },
            FileEntry { growth: Some(Growth::for_rate(None)), ..announced() },
        ];
        for other in &others {
            assert_eq!(refusal(&sink, other), ErrorKind::Denied, "{other:?}");
            assert_eq!(sink.inspect(other, Overwrite::Always).unwrap_err().kind, ErrorKind::Denied, "{other:?}");
        }
        let small = FileEntry { size: 5, ..announced() };
        let packed = PackedFile { entry: &small, data: b"small", blake3: None, expected: &[], seen: Seen::default() };
        assert_eq!(sink.publish_packed(&[packed], &TERMS).remove(0).unwrap_err().kind, ErrorKind::Denied);
        let file = open(&sink);
        assert_eq!(refusal(&sink, &announced()), ErrorKind::Exists);
        assert_eq!(file.write_at(BYTES - 1, b"xy").unwrap_err().kind, ErrorKind::Protocol);
        assert_eq!(file.write_at(u64::MAX, b"x").unwrap_err().kind, ErrorKind::Protocol);
        assert_eq!(file.write_hole(0, 1 << 20).unwrap_err().kind, ErrorKind::Protocol);
        let digest = BlockDigest::of(&file.blocks(), 3, Checks::NONE, &[7; 7]);
        assert_eq!(file.record(4, digest).unwrap_err().kind, ErrorKind::Protocol);
    }
}
