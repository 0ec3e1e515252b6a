//! History of each fact. A fact is never changed: a later one with the same domain, key and direction supersedes it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Case;
use super::entry::Event;
use super::facts::{FactKey, FactValue, name, shown};
use super::moment::EntryTime;
use crate::evidence::Direction;

/// Values of one fact in order of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FactHistory {
    /// Network.
    pub domain: String,
    /// Direction; absent: both.
    pub direction: Option<Direction>,
    /// Property.
    pub key: FactKey,
    /// Values, the current one last.
    pub values: Vec<Stated>,
}

/// Value of a fact from a time on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stated {
    /// Begin.
    pub since: EntryTime,
    /// Author of the entry.
    pub by: String,
    /// Value.
    pub value: FactValue,
}

impl FactHistory {
    /// Returns the value in words, with its unit.
    pub fn shown(&self, value: &FactValue) -> String {
        shown(&self.key, value)
    }

    /// Returns the name with its direction.
    pub fn name(&self) -> String {
        name(&self.key, self.direction)
    }

    /// Returns the values that are known at a time, the current one last.
    pub fn at(&self, time: EntryTime) -> &[Stated] {
        &self.values[..self.values.partition_point(|value| value.since <= time)]
    }

    /// Returns true if the fact is about a direction.
    pub fn is_of(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|one| one == direction)
    }
}

/// Returns the facts of a case by domain and name.
pub fn histories(case: &Case) -> Vec<FactHistory> {
    let mut found: BTreeMap<_, Vec<Stated>> = BTreeMap::new();
    for entry in case.chronology() {
        if let Event::Fact(fact) = &entry.event {
            let stated = Stated { since: entry.time, by: entry.by.clone(), value: fact.value.clone() };
            found.entry((fact.domain.clone(), fact.key.clone(), fact.direction)).or_default().push(stated);
        }
    }
    let of = |((domain, key, direction), values)| FactHistory { domain, direction, key, values };
    found.into_iter().map(of).collect()
}
