//! Budgets of an engine: the parts of rate and memory that its running copies have.
//!
//! Divides when a copy starts or ends, and keeps the part of each copy for its session to read. How a tree of classes
//! is divided is decided in [`sterna_proto::budget`]. Refuses to measure: a copy that is slower than its part lends
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sterna_proto::budget::{Bounds, Budgets, ClassId, Resource};
use sterna_proto::rate::{RATE_LEAST, RateContract};
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Retry, Scope};

use crate::client::spec::{CopyKind, CopySpec, PathOptions};
use crate::lane::quic;

/// Budgets, and the copies that have a part of them.
#[derive(Default)]
pub(crate) struct Ledger {
    budgets: Budgets,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    added: u64,
    of_copies: BTreeMap<u64, Entry>,
}

/// Part of one copy.
struct Entry {
    class: ClassId,
    /// Rate that the copy can use, bits per second.
    wanted: u64,
    /// Memory that the copy has, bytes.
    memory: u64,
    /// Rate that the copy may have now, bits per second.
    rate: Arc<AtomicU64>,
}

/// Part of a copy in the budgets. Dropping it returns the part.
pub(crate) struct Part {
    ledger: Arc<Ledger>,
    number: u64,
    rate: Arc<AtomicU64>,
    memory: ByteCount,
    /// Rate contracts of the specification, and for each path the number of paths that share the part with it.
    given: Vec<(RateContract, u64)>,
    /// True if no class limits the rate of the copy.
    is_unlimited: bool,
}

impl Ledger {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self { budgets, parts: Mutex::default() }
    }

    /// Gives a part to a copy that starts.
    ///
    /// Errors: `Usage`: there is no such class, or it limits the rate and the rate of a copy of this kind cannot
    /// change. `Limit`: the other copies of the class have its memory.
    pub(crate) fn admit(self: &Arc<Self>, spec: &CopySpec, kind: CopyKind) -> Result<Part, Error> {
        let id = spec.class;
        let usage = |text: String| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let Some(class) = self.budgets.class(id) else { return usage(format!("the engine has no class {id:?}")) };
        let alone = self.budgets.divide(Resource::Rate, &[(id, Bounds::UNLIMITED)]);
        let is_unlimited = alone == [Bounds::UNLIMITED];
        if !is_unlimited && matches!(kind, CopyKind::Direct | CopyKind::Replicas) {
            return usage(format!(
                "class {} has a maximum rate, and the rate of a copy from web servers or replicas cannot be divided",
                class.name
            ));
        }
        let mut parts = self.parts.lock();
        let kept: Vec<(ClassId, u64)> = parts.of_copies.values().map(|entry| (entry.class, entry.memory)).collect();
        let memory = self.budgets.room(Resource::Memory, id, &kept).min(spec.memory.0);
        if memory < spec.memory.0.min(quic::MEMORY_MIN.0) {
            let text =
                format!("the running copies have all but {} of the memory of class {}", ByteCount(memory), class.name);
            return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text).retry(Retry::After));
        }
        let number = parts.added;
        parts.added += 1;
        let rate = Arc::new(AtomicU64::new(0));
        let wanted = spec.ceiling().map_or(Bounds::UNLIMITED, |ceiling| ceiling.0);
        parts.of_copies.insert(number, Entry { class: id, wanted, memory, rate: Arc::clone(&rate) });
        self.divide(&parts);
        let together = |path: &PathOptions| spec.paths.iter().filter(|other| other.standby == path.standby).count();
        let given = spec.paths.iter().map(|path| (path.contract, together(path) as u64)).collect();
        Ok(Part { ledger: Arc::clone(self), number, rate, memory: ByteCount(memory), given, is_unlimited })
    }

    fn divide(&self, parts: &Parts) {
        let wanted: Vec<(ClassId, u64)> = parts.of_copies.values().map(|entry| (entry.class, entry.wanted)).collect();
        let rates = self.budgets.divide(Resource::Rate, &wanted);
        parts.of_copies.values().zip(rates).for_each(|(entry, rate)| entry.rate.store(rate, Ordering::Relaxed));
    }
}

impl Part {
    /// Returns the memory of the copy.
    pub(crate) fn memory(&self) -> ByteCount {
        self.memory
    }

    /// Returns the contract of path number `path` within the part, for `asked` or for the contract that was given at
    /// the start; `None` if neither an owner nor a class changes that contract.
    pub(crate) fn contract(&self, path: usize, asked: Option<RateContract>) -> Option<RateContract> {
        if self.is_unlimited {
            return asked;
        }
        let (given, together) = self.given.get(path)?;
        let contract = asked.unwrap_or(*given);
        // Less than the minimum of a path would not carry what detects the end of an outage.
        let part = BitRate((self.rate.load(Ordering::Relaxed) / together).max(RATE_LEAST.0));
        let within = |rate: Option<BitRate>| rate.map(|rate| rate.min(part));
        let (minimum, target) = (within(contract.minimum), within(contract.target));
        Some(RateContract { ceiling: within(contract.ceiling).or(Some(part)), minimum, target, ..contract })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = self.ledger.parts.lock();
        parts.of_copies.remove(&self.number);
        self.ledger.divide(&parts);
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::Location;
    use sterna_proto::budget::Class;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn spec(class: ClassId, rate: Option<u64>) -> CopySpec {
        let location = |text: &str| Location::parse(text.as_ref()).unwrap();
        let mut spec = CopySpec::new(vec![location("/x")], location("sterna://host/"));
        spec.paths[0].contract = RateContract::of_rate(rate.map(BitRate));
        CopySpec { class, memory: ByteCount(64 * MIB), ..spec }
    }

    fn ledger() -> (Arc<Ledger>, ClassId) {
        let mut budgets = Budgets::default();
        let bounds = |ceiling| Bounds { guarantee: 0, ceiling };
        let class = Class { name: "bulk".to_owned(), rate: bounds(80_000_000), memory: bounds(100 * MIB) };
        let class = budgets.add(ClassId::ROOT, class).unwrap();
        (Arc::new(Ledger::new(budgets)), class)
    }

    #[test]
    fn copies_of_a_class_share_its_rate_while_they_run() {
        let (ledger, class) = ledger();
        let ceiling = |part: &Part| part.contract(0, None).and_then(|contract| contract.ceiling).map(|rate| rate.0);
        let one = ledger.admit(&spec(class, None), CopyKind::Agent).unwrap();
        assert_eq!(ceiling(&one), Some(80_000_000));
        let other =
            ledger.admit(&CopySpec { memory: ByteCount(0), ..spec(class, Some(10_000_000)) }, CopyKind::Agent).unwrap();
        assert_eq!((ceiling(&one), ceiling(&other)), (Some(70_000_000), Some(10_000_000)));
        // A new contract of the owner stays within the part.
        let asked = RateContract::of_rate(Some(BitRate(1_000_000_000)));
        let contract = one.contract(0, Some(asked)).unwrap();
        assert_eq!((contract.ceiling, contract.target), (Some(BitRate(70_000_000)), Some(BitRate(70_000_000))));
        drop(other);
        assert_eq!(ceiling(&one), Some(80_000_000));
    }

    #[test]
    fn paths_that_are_used_together_share_the_part_of_their_copy() {
        let (ledger, class) = ledger();
        let mut spec = spec(class, None);
        spec.paths =
            vec![PathOptions::default(), PathOptions::default(), PathOptions { standby: true, ..Default::default() }];
        let part = ledger.admit(&spec, CopyKind::Agent).unwrap();
        let ceilings = [0, 1, 2, 3].map(|path| part.contract(path, None).and_then(|contract| contract.ceiling));
        let rates = [Some(40_000_000), Some(40_000_000), Some(80_000_000), None];
        assert_eq!(ceilings, rates.map(|rate| rate.map(BitRate)));
    }

    #[test]
    fn a_class_without_limits_changes_nothing() {
        let ledger = Arc::new(Ledger::default());
        let part = ledger.admit(&spec(ClassId::ROOT, None), CopyKind::Replicas).unwrap();
        assert_eq!((part.contract(0, None), part.memory()), (None, ByteCount(64 * MIB)));
        let asked = RateContract::of_rate(Some(BitRate(1_000_000)));
        assert_eq!(part.contract(0, Some(asked)), Some(asked));
    }

    #[test]
    fn memory_goes_to_the_copies_that_started_first() {
        let (ledger, class) = ledger();
        let one = ledger.admit(&spec(class, None), CopyKind::Agent).unwrap();
        let other = ledger.admit(&spec(class, None), CopyKind::Agent).unwrap();
        assert_eq!((one.memory(), other.memory()), (ByteCount(64 * MIB), ByteCount(36 * MIB)));
        let refused = ledger.admit(&spec(class, None), CopyKind::Agent).err().unwrap();
        assert_eq!((refused.kind, refused.retry), (ErrorKind::Limit, Retry::After));
        assert_eq!(refused.text(), "the running copies have all but 0 B of the memory of class bulk");
        drop(one);
        assert_eq!(ledger.admit(&spec(class, None), CopyKind::Agent).unwrap().memory(), ByteCount(64 * MIB));
    }

    #[test]
    fn what_a_class_cannot_hold_is_refused_with_the_reason() {
        let (ledger, class) = ledger();
        let refusal = |spec, kind| ledger.admit(&spec, kind).err().unwrap().text().to_owned();
        assert!(refusal(spec(class, None), CopyKind::Direct).contains("class bulk has a maximum rate"));
        let (mut other, root) = (Budgets::default(), ClassId::ROOT);
        let unknown =
            (0..3).map(|n| other.add(root, Class { name: n.to_string(), ..Class::default() }).unwrap()).last();
        assert!(refusal(spec(unknown.unwrap(), None), CopyKind::Agent).contains("no class"));
    }
}
