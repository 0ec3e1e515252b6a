//! Shares of a link: divides its bytes among queues by deficit round robin, level by level (VO, then activity).
//!
//! A queue with a weight of 70 gets 70 parts of the bytes while others wait, and all of them otherwise. A queue with a
//! guarantee gets at least that fraction. The order is determined by the names of the queues and the sizes of the
//! files: the same input gives the same decisions. No queue starves, because every queue with files gains credit in
//! each round. Refuses to know what a file is, or which limits allow a start.

use std::collections::BTreeMap;

/// Share of a queue among the queues of its level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Part of the bytes, relative to the weights of the queues that have files. At least 0.
    pub weight: f64,
    /// Minimum fraction of the bytes while the queue has files, from 0 to 1.
    pub guarantee: f64,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1.0, guarantee: 0.0 }
    }
}

/// Bytes that all queues of a level gain together in a round. Reason: a large file, so that most choices need one or
/// two rounds. The rounds are computed and not walked through, so that the value does not change the cost.
const ROUND_BYTES: f64 = 1e9;

/// Minimum fraction of a queue with files, whatever its weight. Reason: a weight of 0 must delay, and never starve.
const FRACTION_LEAST: f64 = 1e-3;

/// Credits of the queues of one level.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRobin<K> {
    /// Bytes that each queue may send; only queues that had files at the last choice.
    credits: BTreeMap<K, f64>,
}

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self { credits: BTreeMap::new() }
    }
}

/// Queue that has files.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting<K> {
    /// Name.
    pub queue: K,
    /// Share among the queues of its level.
    pub share: Share,
    /// Size of its first file in bytes.
    pub first: u64,
}

/// Chosen queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<K> {
    /// Queue whose first file starts.
    pub queue: K,
    /// Fraction of the link that the queue has beside the other queues with files.
    pub fraction: f64,
}

impl<K: Ord + Clone> RoundRobin<K> {
    /// Chooses the queue whose first file starts next, and takes its bytes from the credit. Queues without files lose
    /// their credit: nobody saves up. `None`: no queue has files.
    ///
    /// The queue that reaches the size of its first file after the fewest rounds goes first; of equal queues, the one
    /// with the lowest name. Source: Shreedhar and Varghese, 1995, with the rounds computed at once.
    pub fn choose(&mut self, waiting: &[Waiting<K>]) -> Option<Choice<K>> {
        let shares: Vec<Share> = waiting.iter().map(|waiting| waiting.share).collect();
        let fractions = fractions(&shares);
        let credit = |waiting: &Waiting<K>| self.credits.get(&waiting.queue).copied().unwrap_or(0.0);
        let rounds = |(waiting, fraction): (&Waiting<K>, &f64)| {
            ((waiting.first as f64 - credit(waiting)) / (fraction * ROUND_BYTES)).max(0.0)
        };
        let needed: Vec<f64> = waiting.iter().zip(&fractions).map(rounds).collect();
        let first = |one: &usize, other: &usize| {
            needed[*one].total_cmp(&needed[*other]).then_with(|| waiting[*one].queue.cmp(&waiting[*other].queue))
        };
        let chosen = (0..waiting.len()).min_by(first)?;
        let gained = needed[chosen] * ROUND_BYTES;
        let after: BTreeMap<K, f64> = waiting
            .iter()
            .zip(&fractions)
            .enumerate()
            .map(|(at, (waiting, fraction))| {
                let taken = if at == chosen { waiting.first as f64 } else { 0.0 };
                (waiting.queue.clone(), credit(waiting) + fraction * gained - taken)
            })
            .collect();
        self.credits = after;
        Some(Choice { queue: waiting[chosen].queue.clone(), fraction: fractions[chosen] })
    }

    /// Takes more bytes of a queue from its credit, which may become negative.
    pub fn take(&mut self, queue: &K, bytes: u64) {
        if let Some(credit) = self.credits.get_mut(queue) {
            *credit -= bytes as f64;
        }
    }

    /// Chooses a queue although it may not be its turn. Its credit pays, also below 0, so that its next turns come
    /// later. `None`: the queue has no files.
    pub fn choose_queue(&mut self, waiting: &[Waiting<K>], queue: &K) -> Option<Choice<K>> {
        let at = waiting.iter().position(|waiting| waiting.queue == *queue)?;
        let shares: Vec<Share> = waiting.iter().map(|waiting| waiting.share).collect();
        let credit = |waiting: &Waiting<K>| self.credits.get(&waiting.queue).copied().unwrap_or(0.0);
        let mut after: BTreeMap<K, f64> =
            waiting.iter().map(|waiting| (waiting.queue.clone(), credit(waiting))).collect();
        after.insert(queue.clone(), credit(&waiting[at]) - waiting[at].first as f64);
        self.credits = after;
        Some(Choice { queue: queue.clone(), fraction: fractions(&shares)[at] })
    }

    /// Returns credit for bytes that were taken and not sent: the file was smaller than announced, or did not start.
    pub fn give_back(&mut self, queue: &K, bytes: u64) {
        if let Some(credit) = self.credits.get_mut(queue) {
            *credit += bytes as f64;
        }
    }
}

/// Returns the fraction of each queue: its weight among all, but at least its guarantee; together 1.
///
/// Guarantees above 1 together are scaled down. Example: weights 1 and 1 with a guarantee of 0.7 for the first give 0.7
/// and 0.3.
pub fn fractions(shares: &[Share]) -> Vec<f64> {
    if shares.is_empty() {
        return Vec::new();
    }
    let clean = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let guarantees: f64 = shares.iter().map(|share| clean(share.guarantee)).sum();
    let scale = if guarantees > 1.0 { guarantees.recip() } else { 1.0 };
    let least: Vec<f64> = shares.iter().map(|share| (clean(share.guarantee) * scale).max(FRACTION_LEAST)).collect();
    // Queues below their minimum are fixed there, and the rest is divided by weight among the others, until nobody is
    // below its minimum any more. Each turn fixes at least one queue.
    let mut is_fixed = vec![false; shares.len()];
    let mut fractions = least.clone();
    loop {
        let left = 1.0 - (0..shares.len()).filter(|at| is_fixed[*at]).map(|at| least[at]).sum::<f64>();
        let weights: f64 = (0..shares.len()).filter(|at| !is_fixed[*at]).map(|at| clean(shares[at].weight)).sum();
        let mut has_fixed = false;
        for at in (0..shares.len()).filter(|at| !is_fixed[*at]).collect::<Vec<_>>() {
            fractions[at] = if weights > 0.0 { left * clean(shares[at].weight) / weights } else { 0.0 };
            if fractions[at] <= least[at] {
                (fractions[at], is_fixed[at], has_fixed) = (least[at], true, true);
            }
        }
        if !has_fixed {
            break;
        }
    }
    let sum: f64 = fractions.iter().sum();
    fractions.iter().map(|fraction| fraction / sum).collect()
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const MB: u64 = 1_000_000;

    fn share(weight: f64, guarantee: f64) -> Share {
        Share { weight, guarantee }
    }

    /// Returns the bytes of each queue after `count` files, for queues that always have files of these sizes.
    fn served(queues: &[(&'static str, Share, u64)], count: usize) -> BTreeMap<&'static str, u64> {
        let mut robin = RoundRobin::default();
        let waiting =
            queues.iter().map(|(queue, share, first)| Waiting { queue: *queue, share: *share, first: *first });
        let waiting: Vec<_> = waiting.collect();
        let mut bytes = BTreeMap::new();
        for _ in 0..count {
            let choice = robin.choose(&waiting).unwrap();
            let size = waiting.iter().find(|waiting| waiting.queue == choice.queue).unwrap().first;
            *bytes.entry(choice.queue).or_default() += size;
        }
        bytes
    }

    #[test]
    fn bytes_follow_the_weights_whatever_the_sizes_of_files() {
        let queues = [("a", share(70.0, 0.0), 10 * MB), ("b", share(30.0, 0.0), 5000 * MB)];
        let bytes = served(&queues, 20_000);
        let part = bytes["a"] as f64 / (bytes["a"] + bytes["b"]) as f64;
        assert!((part - 0.7).abs() < 0.03, "{bytes:?}");
    }

    #[test]
    fn no_queue_is_ahead_of_its_part_by_more_than_a_file() {
        for_seeds("no_queue_is_ahead_of_its_part_by_more_than_a_file", 200, |seed| {
            let mut random = Seeded::new(seed);
            let names = ["a", "b", "c", "d", "e"];
            let count = 2 + random.index(names.len() - 1);
            let shares: Vec<Share> = (0..count).map(|_| share((1 + random.below(99)) as f64, 0.0)).collect();
            let expected = fractions(&shares);
            let (mut robin, mut sent) = (RoundRobin::default(), vec![0u64; count]);
            let mut heads: Vec<u64> = (0..count).map(|_| 1 + random.below(4000 * MB)).collect();
            let mut largest = 0;
            for _ in 0..500 {
                let waiting: Vec<Waiting<usize>> =
                    (0..count).map(|queue| Waiting { queue, share: shares[queue], first: heads[queue] }).collect();
                let Choice { queue, .. } = robin.choose(&waiting).unwrap();
                sent[queue] += heads[queue];
                largest = largest.max(heads[queue]);
                heads[queue] = 1 + random.below(4000 * MB);
                let all: u64 = sent.iter().sum();
                for queue in 0..count {
                    let ahead = sent[queue] as f64 - expected[queue] * all as f64;
                    assert!(ahead < 1.01 * largest as f64 * count as f64, "{sent:?} of {expected:?}");
                }
            }
            let all: u64 = sent.iter().sum();
            for queue in 0..count {
                let lacks = expected[queue] * all as f64 - sent[queue] as f64;
                assert!(lacks < 1.01 * (largest + 4000 * MB) as f64 * count as f64, "{sent:?} of {expected:?}");
            }
        });
    }

    #[test]
    fn a_queue_that_was_empty_has_saved_nothing() {
        let mut robin = RoundRobin::default();
        let waiting = |queue, first| Waiting { queue, share: Share::default(), first };
        (0..100).for_each(|_| assert_eq!(robin.choose(&[waiting("a", MB)]).unwrap().queue, "a"));
        let both = [waiting("a", MB), waiting("b", MB)];
        let turns: String = (0..6).map(|_| robin.choose(&both).unwrap().queue).collect();
        assert_eq!(turns, "ababab");
    }

    #[test]
    fn a_weight_of_zero_delays_and_does_not_starve() {
        let queues = [("a", share(1.0, 0.0), 100 * MB), ("b", share(0.0, 0.0), 100 * MB)];
        let bytes = served(&queues, 5000);
        assert!(bytes["b"] > 0 && bytes["b"] * 500 < bytes["a"], "{bytes:?}");
    }

    #[test]
    fn credit_comes_back_for_a_file_that_did_not_start() {
        let mut robin = RoundRobin::default();
        let both = ["a", "b"].map(|queue| Waiting { queue, share: Share::default(), first: MB });
        assert_eq!(robin.choose(&both).unwrap().queue, "a");
        robin.give_back(&"a", MB);
        assert_eq!(robin.choose(&both).unwrap().queue, "a");
        assert_eq!(RoundRobin::<&str>::default().choose(&[]), None);
    }

    #[test]
    fn a_queue_that_goes_out_of_turn_pays_with_later_turns() {
        let mut robin = RoundRobin::default();
        let both = ["a", "b"].map(|queue| Waiting { queue, share: Share::default(), first: MB });
        assert_eq!(robin.choose_queue(&both, &"c"), None);
        for _ in 0..3 {
            assert_eq!(robin.choose_queue(&both, &"b").unwrap(), Choice { queue: "b", fraction: 0.5 });
        }
        let turns: String = (0..8).map(|_| robin.choose(&both).unwrap().queue).collect();
        assert_eq!(turns, "aaaababa", "with the 3 before, 6 files of one and 5 of the other");
    }

    #[test]
    fn fractions_are_weights_above_guarantees() {
        let near = |shares: &[Share], expected: &[f64]| {
            let fractions = fractions(shares);
            let differs = fractions.iter().zip(expected).any(|(one, other)| (one - other).abs() > 2e-3);
            assert!(fractions.len() == expected.len() && !differs, "{fractions:?} instead of {expected:?}");
        };
        near(&[], &[]);
        near(&[share(7.0, 0.0), share(3.0, 0.0)], &[0.7, 0.3]);
        near(&[share(1.0, 0.7), share(1.0, 0.0)], &[0.7, 0.3]);
        near(&[share(1.0, 0.2), share(9.0, 0.0)], &[0.2, 0.8]);
        near(&[share(9.0, 0.2), share(1.0, 0.0)], &[0.9, 0.1]);
        near(&[share(0.0, 0.0), share(0.0, 0.0)], &[0.5, 0.5]);
        near(&[share(1.0, 0.9), share(1.0, 0.9)], &[0.5, 0.5]);
        near(&[share(1.0, 0.5), share(0.0, 0.0), share(3.0, 0.0)], &[0.5, 0.0, 0.5]);
        near(&[share(f64::NAN, f64::INFINITY), share(1.0, -1.0)], &[0.0, 1.0]);
    }
}
