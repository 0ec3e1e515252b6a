//! Comparison of blocks that several replicas have sent, to find replicas that have another file.

use std::collections::BTreeMap;

/// Number of blocks of a file that are compared between replicas. Reason: replicas of another version differ nearly
/// everywhere, so one block shows it. Files that were truncated or overwritten from some offset on differ at their end.
/// Two more random blocks cost little.
const COMPARED_MAX: u64 = 3;

/// Number of blocks from which a file has more than its last block compared. Reason: a compared block travels once for
/// each replica.
const COMPARED_MORE_FROM: u64 = 16;

/// A replica, numbered from 0 in the order of the names given by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u32);

impl ReplicaId {
    /// Returns the place of the replica among all replicas.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Digests reported by the replicas for the compared blocks.
#[derive(Debug, Default)]
pub(super) struct Votes {
    by_block: BTreeMap<u64, BTreeMap<ReplicaId, [u8; 32]>>,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) block: u64,
    /// Replicas that differ from the trusted one.
    pub(super) wrong: Vec<ReplicaId>,
    /// True if most replicas agree. Otherwise the replica named first is trusted.
    pub(super) by_majority: bool,
}

impl Votes {
    /// Selects the compared blocks of a file of `count` blocks: the last one, and some chosen by `seed`.
    pub(super) fn of_file(count: u64, seed: u64) -> Self {
        let mut by_block = BTreeMap::new();
        if count > 0 {
            by_block.insert(count - 1, BTreeMap::new());
        }
        let mut state = seed;
        while count >= COMPARED_MORE_FROM && (by_block.len() as u64) < COMPARED_MAX {
            by_block.insert(scramble(&mut state) % count, BTreeMap::new());
        }
        Self { by_block }
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_block.keys().copied()
    }

    pub(super) fn is_compared(&self, block: u64) -> bool {
        self.by_block.contains_key(&block)
    }

    pub(super) fn has_voted(&self, replica: ReplicaId, block: u64) -> bool {
        self.by_block.get(&block).is_some_and(|votes| votes.contains_key(&replica))
    }

    /// Records the digest of a block that a replica has sent. Ignored if the block is not compared.
    pub(super) fn vote(&mut self, replica: ReplicaId, block: u64, digest: [u8; 32]) {
        if let Some(votes) = self.by_block.get_mut(&block) {
            votes.insert(replica, digest);
        }
    }

    /// Removes the votes of a replica.
    pub(super) fn forget(&mut self, replica: ReplicaId) {
        for votes in self.by_block.values_mut() {
            votes.remove(&replica);
        }
    }

    /// Returns the number of votes for the compared block that has the most.
    pub(super) fn voters(&self) -> usize {
        self.by_block.values().map(BTreeMap::len).max().unwrap_or_default()
    }

    /// Returns the number of compared blocks where a replica differs from another one.
    pub(super) fn differences(&self, replica: ReplicaId) -> usize {
        let differs = |votes: &&BTreeMap<ReplicaId, [u8; 32]>| {
            let own = votes.get(&replica);
            own.is_some_and(|own| votes.values().any(|other| other != own))
        };
        self.by_block.values().filter(differs).count()
    }

    /// Returns true if two replicas differ from others and nowhere from each other.
    pub(super) fn differ_alike(&self, one: ReplicaId, other: ReplicaId) -> bool {
        let both = self.by_block.values().filter_map(|votes| votes.get(&one).zip(votes.get(&other)));
        let mut alike = both.map(|(one, other)| one == other).peekable();
        self.differences(one) > 0 && alike.peek().is_some() && alike.all(|is_same| is_same)
    }

    /// Returns the verdict on the first block with different digests, if it can be decided. `voters` is the number of
    /// replicas that may vote. While `more` votes may come, only a majority of all voters decides.
    pub(super) fn verdict(&self, voters: usize, more: bool) -> Option<Verdict> {
        self.by_block.iter().find_map(|(block, votes)| {
            let count = |digest: &[u8; 32]| votes.values().filter(|other| *other == digest).count();
            let first = votes.values().next()?;
            if count(first) == votes.len() {
                return None;
            }
            let of = if more { voters } else { votes.len() };
            let majority = votes.values().find(|digest| count(digest) * 2 > of);
            let believed = match majority {
                Some(digest) => digest,
                None if more => return None,
                // Replicas are numbered in the order of their names.
                None => first,
            };
            let wrong = votes.iter().filter(|(_, digest)| *digest != believed).map(|(replica, _)| *replica).collect();
            Some(Verdict { block: *block, wrong, by_majority: majority.is_some() })
        })
    }

    /// Returns the replicas that differ from the origin of a block in the file, each with its first such block. `giver`
    /// returns that origin.
    pub(super) fn against(&self, giver: impl Fn(u64) -> Option<ReplicaId>) -> Vec<(ReplicaId, u64)> {
        let mut found: Vec<(ReplicaId, u64)> = Vec::new();
        for (block, votes) in &self.by_block {
            let Some(right) = giver(*block).and_then(|giver| votes.get(&giver)) else { continue };
            found.extend(votes.iter().filter(|(_, digest)| *digest != right).map(|(replica, _)| (*replica, *block)));
        }
        found.dedup_by_key(|(replica, _)| *replica);
        found
    }

    /// Returns the first replica, in the order of names, that has sent `block`.
    pub(super) fn first_voter(&self, block: u64) -> Option<ReplicaId> {
        self.by_block.get(&block)?.keys().next().copied()
    }
}

/// Returns the next pseudo-random number. Source: splitmix64, Steele, Lea and Flood, 2014.
fn scramble(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(said: &[(u32, u8)]) -> Votes {
        let mut votes = Votes::of_file(4, 1);
        said.iter().for_each(|(replica, digest)| votes.vote(ReplicaId(*replica), 3, [*digest; 32]));
        votes
    }

    #[test]
    fn most_replicas_are_believed_and_otherwise_the_first_that_was_named() {
        let wrong = |said: &[(u32, u8)], more| {
            let verdict = votes(said).verdict(3, more)?;
            Some((verdict.wrong.iter().map(|replica| replica.0).collect::<Vec<_>>(), verdict.by_majority))
        };
        assert_eq!(wrong(&[(0, 1), (1, 1), (2, 1)], false), None);
        assert_eq!(wrong(&[(0, 2), (1, 1), (2, 1)], false), Some((vec![0], true)));
        assert_eq!(wrong(&[(0, 2), (1, 1)], true), None, "the third has not spoken");
        assert_eq!(wrong(&[(0, 2), (1, 1)], false), Some((vec![1], false)));
        assert_eq!(wrong(&[(1, 2), (2, 1)], false), Some((vec![2], false)));
        assert_eq!(wrong(&[(0, 1), (1, 2), (2, 3)], false), Some((vec![1, 2], false)));
    }

    #[test]
    fn the_last_block_is_compared_and_two_more_of_a_long_file() {
        for count in [0, 1, 2, 15, 16, 300_000] {
            for seed in 0..50 {
                let blocks: Vec<u64> = Votes::of_file(count, seed).blocks().collect();
                let expected = if count >= 16 { 3 } else { count.min(1) };
                assert_eq!(blocks.len() as u64, expected, "{count} {seed}");
                assert!(blocks.iter().all(|block| *block < count));
                assert_eq!(blocks.last().copied(), count.checked_sub(1));
            }
        }
    }
}
