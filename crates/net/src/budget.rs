//! Budgets of an engine: the parts of rate and memory that its running copies have.
//!
//! Divides when a copy starts or ends, and keeps the part of each copy for its session to read. How a tree of classes
//! is divided is decided in [`sterna_proto::budget`]. Refuses to measure: a copy that is slower than its part lends
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sterna_proto::budget::{Budgets, ClassId};
use sterna_proto::plan::Via;
use sterna_proto::rate::{RATE_LEAST, RateContract};
use sterna_proto::session::PathNumber;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Retry, Scope};

use crate::client::spec::{CopyKind, CopySpec, PathOptions, ViaChoice, rate_together};
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
    /// Rate that the copy can use; `None`: any.
    wanted: Option<BitRate>,
    /// Minimum part: the paths of the copy need it.
    least: BitRate,
    /// Memory that the copy has.
    memory: ByteCount,
    /// Rate that the copy may have now, bits per second.
    rate: Arc<AtomicU64>,
}

/// Part of a copy in the budgets. Dropping it returns the part.
pub(crate) struct Part {
    ledger: Arc<Ledger>,
    number: u64,
    rate: Arc<AtomicU64>,
    memory: ByteCount,
    /// Paths of the specification, with the contracts that were given at the start.
    paths: Vec<PathOptions>,
    /// True if no class limits the rate of the copy.
    is_unlimited: bool,
}

/// Part of a rise that a copy does not follow. Reason: each rise makes the rate control search, and short copies that
/// come and go must not keep the long ones searching.
const RISE_IGNORED: f64 = 0.1;

impl Ledger {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self { budgets, parts: Mutex::default() }
    }

    /// Checks whether the class of a copy can hold it at all.
    ///
    /// Errors: `Usage`: there is no such class; its rate is limited, and the rate of a copy of this kind cannot change;
    /// it has never enough memory for the copy.
    pub(crate) fn check(&self, spec: &CopySpec, kind: CopyKind) -> Result<(), Error> {
        let usage = |text: String| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let Some(class) = self.budgets.class(spec.class) else {
            return usage("the class of the copy is none of its engine".to_owned());
        };
        if self.limits_rate(spec.class) && matches!(kind, CopyKind::Direct | CopyKind::Replicas) {
            return usage(format!(
                "the rate of class {} is limited, and the rate of a copy from web servers or replicas cannot change",
                class.name
            ));
        }
        let (_, least) = memory_of(spec, kind);
        match self.budgets.room(spec.class, &[]).filter(|room| *room < least) {
            Some(room) => usage(format!("class {} has {room} of memory, and the copy needs {least}", class.name)),
            None => Ok(()),
        }
    }

    /// Gives a part to a copy that starts.
    ///
    /// Errors: as [`Ledger::check`]. `Limit`: the other copies of the class have its memory, or so many parts of its
    /// rate that each would be too small.
    pub(crate) fn admit(self: &Arc<Self>, spec: &CopySpec, kind: CopyKind) -> Result<Part, Error> {
        self.check(spec, kind)?;
        let class = self.budgets.class(spec.class).map(|class| class.name.as_str()).unwrap_or_default();
        let limit =
            |text: String| Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text).retry(Retry::After));
        let (wanted, least) = memory_of(spec, kind);
        let mut parts = self.parts.lock();
        let kept: Vec<(ClassId, ByteCount)> =
            parts.of_copies.values().map(|entry| (entry.class, entry.memory)).collect();
        let memory = self.budgets.room(spec.class, &kept).map_or(wanted, |room| room.min(wanted));
        if memory < least {
            return limit(format!(
                "class {class} has {memory} of memory left, and the copy needs {least}: start it later"
            ));
        }
        let number = parts.added;
        parts.added += 1;
        let rate = Arc::new(AtomicU64::new(0));
        let together = spec.paths.iter().map(|path| together(&spec.paths, path)).max().unwrap_or(1);
        let entry = Entry {
            class: spec.class,
            wanted: spec.ceiling(),
            least: BitRate(RATE_LEAST.0 * together),
            memory,
            rate: Arc::clone(&rate),
        };
        parts.of_copies.insert(number, entry);
        let is_too_little = |(entry, part): (&Entry, &Option<BitRate>)| part.is_some_and(|part| part < entry.least);
        let rates = self.rates(&parts);
        if parts.of_copies.values().zip(&rates).any(is_too_little) {
            parts.of_copies.remove(&number);
            return limit(format!(
                "class {class} has {} copies, and the rate of one more would be below {RATE_LEAST}: start it later",
                parts.of_copies.len()
            ));
        }
        self.divide(&parts);
        let is_unlimited = !self.limits_rate(spec.class);
        let memory = if wanted.0 == 0 { spec.memory } else { memory };
        Ok(Part { ledger: Arc::clone(self), number, rate, memory, paths: spec.paths.clone(), is_unlimited })
    }

    /// Returns true if the class or one above it has a maximum rate.
    fn limits_rate(&self, class: ClassId) -> bool {
        self.budgets.divide(&[(class, None)]) != [None]
    }

    fn rates(&self, parts: &Parts) -> Vec<Option<BitRate>> {
        let wanted: Vec<_> = parts.of_copies.values().map(|entry| (entry.class, entry.wanted)).collect();
        self.budgets.divide(&wanted)
    }

    fn divide(&self, parts: &Parts) {
        for (entry, rate) in parts.of_copies.values().zip(self.rates(parts)) {
            let (before, rate) = (entry.rate.load(Ordering::Relaxed), rate.map_or(u64::MAX, |rate| rate.0));
            let is_small_rise = rate >= before && (rate - before) as f64 <= RISE_IGNORED * before as f64;
            if !is_small_rise {
                entry.rate.store(rate, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the memory that a copy takes from its class, and the least with which it starts. Both are zero if it has no
/// QUIC lane at this host.
fn memory_of(spec: &CopySpec, kind: CopyKind) -> (ByteCount, ByteCount) {
    let is_all_tcp = spec.paths.iter().all(|path| path.via == ViaChoice::Only(Via::Tcp));
    let sessions = match kind {
        CopyKind::ThirdParty | CopyKind::Direct => 0,
        CopyKind::Agent => 1,
        CopyKind::Replicas => spec.sources.len() as u64,
    };
    if is_all_tcp || sessions == 0 {
        return (ByteCount(0), ByteCount(0));
    }
    let lanes = spec.paths.iter().map(|path| path.lanes.unwrap_or(1).max(1)).max().unwrap_or(1);
    let least = quic::MEMORY_MIN.0 * sessions * spec.paths.len() as u64 * u64::from(lanes);
    // Less than that was given: the copy itself reports this.
    (spec.memory, ByteCount(least.min(spec.memory.0)))
}

/// Returns the number of paths that are used together with a path, that path included. Standby paths are used only
/// while no other is up.
fn together(paths: &[PathOptions], path: &PathOptions) -> u64 {
    paths.iter().filter(|other| other.standby == path.standby).count() as u64
}

impl Part {
    /// Returns the memory of the copy.
    pub(crate) fn memory(&self) -> ByteCount {
        self.memory
    }

    /// Records the contracts that the owner of the copy has changed: what the copy cannot use any more is divided among
    /// the others.
    pub(crate) fn handle_contracts(&self, asked: &BTreeMap<PathNumber, RateContract>) {
        let mut paths = self.paths.clone();
        for (path, contract) in asked {
            paths.get_mut(usize::from(path.0)).into_iter().for_each(|path| path.contract = *contract);
        }
        let mut parts = self.ledger.parts.lock();
        if let Some(entry) = parts.of_copies.get_mut(&self.number) {
            entry.wanted = rate_together(&paths, |path| path.contract.ceiling);
        }
        self.ledger.divide(&parts);
    }

    /// Returns the contract of a path within the part, for `asked` or for the contract that was given at the start;
    /// `None` if neither an owner nor a class changes that contract.
    pub(crate) fn contract(&self, path: PathNumber, asked: Option<RateContract>) -> Option<RateContract> {
        if self.is_unlimited {
            return asked;
        }
        let given = self.paths.get(usize::from(path.0))?;
        let contract = asked.unwrap_or(given.contract);
        let part = BitRate(self.rate.load(Ordering::Relaxed) / together(&self.paths, given));
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
    use sterna_proto::budget::{Bounds, Class};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn spec(class: ClassId, rate: Option<u64>) -> CopySpec {
        let location = |text: &str| Location::parse(text.as_ref()).unwrap();
        let mut spec = CopySpec::new(vec![location("/x")], location("sterna://host/"));
        spec.paths[0].contract = RateContract::of_rate(rate.map(BitRate));
        CopySpec { class, memory: ByteCount(64 * MIB), ..spec }
    }

    /// Returns a ledger with a class of 80 Mbit/s and 100 MiB.
    fn ledger() -> (Arc<Ledger>, ClassId) {
        let mut budgets = Budgets::default();
        let rate = Bounds { guarantee: BitRate(0), ceiling: Some(BitRate(80_000_000)) };
        let memory = Bounds { guarantee: ByteCount(0), ceiling: Some(ByteCount(100 * MIB)) };
        let class = budgets.add(ClassId::ROOT, Class { name: "bulk".to_owned(), rate, memory }).unwrap();
        (Arc::new(Ledger::new(budgets)), class)
    }

    fn ceiling(part: &Part, asked: Option<RateContract>) -> Option<u64> {
        part.contract(PathNumber(0), asked).and_then(|contract| contract.ceiling).map(|rate| rate.0)
    }

    #[test]
    fn copies_of_a_class_share_its_rate_while_they_run() {
        let (ledger, class) = ledger();
        let one = ledger.admit(&spec(class, None), CopyKind::Agent).unwrap();
        assert_eq!(ceiling(&one, None), Some(80_000_000));
        let small = CopySpec { memory: ByteCount(0), ..spec(class, Some(10_000_000)) };
        let other = ledger.admit(&small, CopyKind::Agent).unwrap();
        assert_eq!((ceiling(&one, None), ceiling(&other, None)), (Some(70_000_000), Some(10_000_000)));
        // A new contract of the owner stays within the part.
        let asked = RateContract::of_rate(Some(BitRate(1_000_000_000)));
        let contract = one.contract(PathNumber(0), Some(asked)).unwrap();
        assert_eq!((contract.ceiling, contract.target), (Some(BitRate(70_000_000)), Some(BitRate(70_000_000))));
        drop(other);
        assert_eq!(ceiling(&one, None), Some(80_000_000));
    }

    #[test]
    fn a_new_contract_of_an_owner_changes_what_the_copy_can_use() {
        let (ledger, class) = ledger();
        let one = ledger.admit(&spec(class, Some(10_000_000)), CopyKind::ThirdParty).unwrap();
        let other = ledger.admit(&spec(class, None), CopyKind::ThirdParty).unwrap();
        let faster = RateContract::of_rate(Some(BitRate(100_000_000)));
        one.handle_contracts(&BTreeMap::from([(PathNumber(0), faster)]));
        assert_eq!((ceiling(&one, Some(faster)), ceiling(&other, None)), (Some(40_000_000), Some(40_000_000)));
        let slower = RateContract::of_rate(Some(BitRate(1_000_000)));
        one.handle_contracts(&BTreeMap::from([(PathNumber(0), slower)]));
        assert_eq!((ceiling(&one, Some(slower)), ceiling(&other, None)), (Some(1_000_000), Some(79_000_000)));
    }

    #[test]
    fn copies_do_not_follow_small_rises() {
        let (ledger, class) = ledger();
        let one = ledger.admit(&spec(class, None), CopyKind::ThirdParty).unwrap();
        let short = ledger.admit(&spec(class, Some(4_000_000)), CopyKind::ThirdParty).unwrap();
        assert_eq!(ceiling(&one, None), Some(76_000_000));
        drop(short);
        assert_eq!(ceiling(&one, None), Some(76_000_000));
    }

    #[test]
    fn paths_that_are_used_together_share_the_part_of_their_copy() {
        let (ledger, class) = ledger();
        let mut spec = spec(class, None);
        let standby = PathOptions { standby: true, ..PathOptions::default() };
        spec.paths = vec![PathOptions::default(), PathOptions::default(), standby];
        let part = ledger.admit(&spec, CopyKind::Agent).unwrap();
        let ceilings =
            [0, 1, 2, 3].map(|path| part.contract(PathNumber(path), None).and_then(|contract| contract.ceiling));
        let rates = [Some(40_000_000), Some(40_000_000), Some(80_000_000), None];
        assert_eq!(ceilings, rates.map(|rate| rate.map(BitRate)));
    }

    #[test]
    fn a_class_without_limits_changes_nothing() {
        let ledger = Arc::new(Ledger::default());
        let part = ledger.admit(&spec(ClassId::ROOT, None), CopyKind::Replicas).unwrap();
        assert_eq!((part.contract(PathNumber(0), None), part.memory()), (None, ByteCount(64 * MIB)));
        let asked = RateContract::of_rate(Some(BitRate(1_000_000)));
        assert_eq!(part.contract(PathNumber(0), Some(asked)), Some(asked));
    }

    #[test]
    fn memory_goes_to_the_copies_that_started_first_and_need_it() {
        let (ledger, class) = ledger();
        let admit = |kind| ledger.admit(&spec(class, None), kind);
        let one = admit(CopyKind::Agent).unwrap();
        let other = admit(CopyKind::Agent).unwrap();
        assert_eq!((one.memory(), other.memory()), (ByteCount(64 * MIB), ByteCount(36 * MIB)));
        let refused = admit(CopyKind::Agent).err().unwrap();
        assert_eq!((refused.kind, refused.retry), (ErrorKind::Limit, Retry::After));
        assert!(refused.text().starts_with("class bulk has 0 B of memory left, and the copy needs "), "{refused}");
        // The data of this copy does not pass this host.
        assert_eq!(admit(CopyKind::ThirdParty).unwrap().memory(), ByteCount(64 * MIB));
        drop(one);
        assert_eq!(admit(CopyKind::Agent).unwrap().memory(), ByteCount(64 * MIB));
    }

    #[test]
    fn a_class_takes_no_more_copies_than_its_rate_can_carry() {
        let mut budgets = Budgets::default();
        let rate = Bounds { guarantee: BitRate(0), ceiling: Some(BitRate(200_000)) };
        let class = budgets.add(ClassId::ROOT, Class { name: "thin".to_owned(), rate, ..Class::default() }).unwrap();
        let ledger = Arc::new(Ledger::new(budgets));
        let copies: Vec<_> = (0..3).map(|_| ledger.admit(&spec(class, None), CopyKind::ThirdParty).unwrap()).collect();
        let refused = ledger.admit(&spec(class, None), CopyKind::ThirdParty).err().unwrap();
        assert_eq!((refused.kind, refused.retry), (ErrorKind::Limit, Retry::After));
        assert!(refused.text().starts_with("class thin has 3 copies"), "{refused}");
        assert_eq!(ceiling(&copies[0], None), Some(66_666));
    }

    #[test]
    fn what_a_class_can_never_hold_is_refused_with_the_reason() {
        let (ledger, class) = ledger();
        let refusal = |spec: CopySpec, kind| {
            let refused = ledger.admit(&spec, kind).err().unwrap();
            assert_eq!(refused.kind, ErrorKind::Usage);
            refused.text().to_owned()
        };
        assert!(refusal(spec(class, None), CopyKind::Direct).contains("the rate of class bulk is limited"));
        let mut wide = spec(class, None);
        wide.memory = ByteCount(4096 * MIB);
        wide.paths[0].lanes = Some(1000);
        assert!(refusal(wide, CopyKind::Agent).starts_with("class bulk has 105 MB of memory, and the copy needs "));
        let mut others = Budgets::default();
        let named = |number: u32| Class { name: number.to_string(), ..Class::default() };
        let unknown = (0..3).map(|number| others.add(ClassId::ROOT, named(number)).unwrap()).last().unwrap();
        assert!(refusal(spec(unknown, None), CopyKind::Agent).contains("none of its engine"));
    }
}
