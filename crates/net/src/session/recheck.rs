//! Verifies the blocks that a journal of an earlier session claims, before they count.

use sterna_proto::{BlockHasher, Checks, RangeSet};

use crate::sink::SinkFile;

/// Bytes per read: as for a source, so that they are hashed while they are in the CPU cache.
const RECHECK_BYTES: usize = 128 << 10;

/// Reads every block that only the journal claims, and computes its `checks`. Returns the blocks with another digest or
/// a read error.
///
/// Returns `None` once `is_moot` returns true. Holds no lock while it reads. Cost: one pass over those blocks, and a
/// buffer.
pub(super) fn recheck(incoming: &dyn SinkFile, checks: Checks, is_moot: impl Fn() -> bool) -> Option<RangeSet> {
    let mut lost = RangeSet::new();
    let mut buffer = vec![0; RECHECK_BYTES];
    while let Some((index, claimed)) = incoming.next_claim() {
        if is_moot() {
            return None;
        }
        let blocks = incoming.blocks();
        let (offset, length) = (blocks.offset(index), blocks.length(index));
        let mut hasher = BlockHasher::new(&blocks, index, checks);
        let mut done = 0;
        while done < length {
            let piece = &mut buffer[..RECHECK_BYTES.min((length - done) as usize)];
            if incoming.read_at(offset + done, piece).is_err() {
                break;
            }
            hasher.update(piece);
            done += piece.len() as u64;
        }
        let digest = (done == length).then(|| hasher.finish());
        let sound = digest.filter(|digest| digest.chaining_value == claimed.chaining_value);
        incoming.settle_claim(index, sound);
        if sound.is_none() {
            lost.insert(index..index + 1);
        }
    }
    Some(lost)
}
