//! Parts of an interval by limit.

use super::Limit;

/// Parts of an interval by limit; the sum is 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Split(pub [f64; Limit::ALL.len()]);

impl Split {
    pub fn all(limit: Limit) -> Self {
        let mut split = Self::default();
        split.add(limit, 1.0);
        split
    }

    pub fn add(&mut self, limit: Limit, part: f64) {
        self.0[limit.index()] += part;
    }

    pub fn blend(&mut self, other: &Self, weight: f64) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs * weight);
    }

    pub fn largest(&self) -> Limit {
        let largest = Limit::ALL.into_iter().max_by(|a, b| self.0[a.index()].total_cmp(&self.0[b.index()]));
        largest.unwrap_or(Limit::NothingToSend)
    }
}
