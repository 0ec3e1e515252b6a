//! Budgets of a process: a tree of classes that divide its rate and its memory.
//!
//! A class has a guarantee and a ceiling for each of the two, as a class of Linux's HTB. It borrows from its parent
//! what other classes do not use. Every copy belongs to one class; a process without classes has the root only.
//! Computes the parts. Refuses to measure what a copy uses, or carry out a part.

use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::quantity::{BitRate, ByteCount};

/// Number of a class among those of its [`Budgets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u16);

impl ClassId {
    /// Root of the tree: the process.
    pub const ROOT: Self = Self(0);

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Bounds of a class for one resource: its rate on the wire, or its memory for data in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds<T> {
    /// Amount that other classes cannot borrow while this class wants it.
    pub guarantee: T,
    /// Maximum amount, borrowed amounts included; `None`: no maximum.
    pub ceiling: Option<T>,
}

/// Class of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Name, for messages.
    pub name: String,
    /// Rate of all copies of the class together.
    pub rate: Bounds<BitRate>,
    /// Memory of all copies of the class together.
    pub memory: Bounds<ByteCount>,
}

/// Tree of classes. A parent has a lower number than its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets {
    classes: Vec<(Class, ClassId)>,
}

/// Guarantee and ceiling of a class as numbers; [`NO_LIMIT`] for no ceiling.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    guarantee: u64,
    ceiling: u64,
}

/// Number that stands for an amount without a limit.
const NO_LIMIT: u64 = u64::MAX;

/// Amounts of a class for one resource.
type AmountsOf = fn(&Class) -> Amounts;

fn rates(class: &Class) -> Amounts {
    let Bounds { guarantee, ceiling } = class.rate;
    Amounts { guarantee: guarantee.0, ceiling: ceiling.map_or(NO_LIMIT, |rate| rate.0) }
}

fn memories(class: &Class) -> Amounts {
    let Bounds { guarantee, ceiling } = class.memory;
    Amounts { guarantee: guarantee.0, ceiling: ceiling.map_or(NO_LIMIT, |memory| memory.0) }
}

impl Default for Budgets {
    /// Returns a tree of one class without limits.
    fn default() -> Self {
        Self { classes: vec![(Class { name: "process".to_owned(), ..Class::default() }, ClassId::ROOT)] }
    }
}

impl Budgets {
    /// Returns a tree of one class. Errors: `Usage`: a guarantee is above its ceiling.
    pub fn new(root: Class) -> Result<Self, Error> {
        check(&root)?;
        Ok(Self { classes: vec![(root, ClassId::ROOT)] })
    }

    /// Adds a class below `parent`.
    ///
    /// Errors: `Usage`: no such parent; a name that another class has; a guarantee above the ceiling of the class; more
    /// guarantees than the parent can give, which is its own guarantee, or the ceiling of the root; more than 65,536
    /// classes.
    pub fn add(&mut self, parent: ClassId, class: Class) -> Result<ClassId, Error> {
        check(&class)?;
        let name = &class.name;
        let Some((above, _)) = self.classes.get(parent.index()) else {
            return usage(format!("class {name}: its parent does not exist"));
        };
        if self.find(name).is_some() {
            return usage(format!("class {name}: another class has this name"));
        }
        for (amounts, shown) in [(rates as AmountsOf, rate_text as fn(u64) -> String), (memories, memory_text)] {
            let siblings = self.children(parent).map(|child| self.amounts(child, amounts).guarantee);
            let promised = siblings.fold(amounts(&class).guarantee, u64::saturating_add);
            let available = if parent == ClassId::ROOT { amounts(above).ceiling } else { amounts(above).guarantee };
            if promised > available {
                let (promised, available) = (shown(promised), shown(available));
                return usage(format!("class {name}: {} can guarantee {available}, not {promised}", above.name));
            }
        }
        let Ok(number) = u16::try_from(self.classes.len()) else {
            return usage(format!("class {name}: there are 65,536 classes already"));
        };
        self.classes.push((class, parent));
        Ok(ClassId(number))
    }

    /// Returns a class; `None` if there is none of this number.
    pub fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id.index()).map(|(class, _)| class)
    }

    /// Returns the class of this name.
    pub fn find(&self, name: &str) -> Option<ClassId> {
        self.ids().find(|id| self.classes[id.index()].0.name == name)
    }

    /// Divides the rate among copies: their classes, and the rates that they can use (`None`: any). Returns the part of
    /// each, in order (`None`: not limited); together at most the ceiling of every class.
    ///
    /// Each class first gets its guarantee, as far as its copies can use it. Then classes and copies of one parent
    /// share the rest equally, up to what they can use. Range: every class exists.
    pub fn divide(&self, copies: &[(ClassId, Option<BitRate>)]) -> Vec<Option<BitRate>> {
        let copies: Vec<(ClassId, u64)> =
            copies.iter().map(|(class, rate)| (*class, rate.map_or(NO_LIMIT, |rate| rate.0))).collect();
        // Rate that the copies of each class can use, children included.
        let mut wanted = self.sums(&copies, |id, sum| sum.min(self.amounts(id, rates).ceiling));
        let mut parts = vec![0; copies.len()];
        for id in self.ids() {
            let children: Vec<ClassId> = self.children(id).collect();
            let members: Vec<usize> = (0..copies.len()).filter(|at| copies[*at].0 == id).collect();
            let of_class =
                |id: &ClassId| Claim { guarantee: self.amounts(*id, rates).guarantee, wanted: wanted[id.index()] };
            let of_copy = |at: &usize| Claim { guarantee: 0, wanted: copies[*at].1 };
            let claims: Vec<Claim> = children.iter().map(of_class).chain(members.iter().map(of_copy)).collect();
            let shares = share(wanted[id.index()], &claims);
            let (of_children, of_members) = shares.split_at(children.len());
            // From here on the element of a child is what it has, not what it wants.
            children.iter().zip(of_children).for_each(|(child, part)| wanted[child.index()] = *part);
            members.iter().zip(of_members).for_each(|(at, part)| parts[*at] = *part);
        }
        parts.into_iter().map(|part| (part != NO_LIMIT).then_some(BitRate(part))).collect()
    }

    /// Returns the memory that one more copy of `class` can get beside copies that keep theirs: their classes and
    /// amounts. `None`: not limited. Leaves unused guarantees to the other classes. Range: every class exists.
    pub fn room(&self, class: ClassId, kept: &[(ClassId, ByteCount)]) -> Option<ByteCount> {
        let kept: Vec<(ClassId, u64)> = kept.iter().map(|(class, memory)| (*class, memory.0)).collect();
        let used = self.sums(&kept, |_, sum| sum);
        // Guarantees that nobody uses: of the class itself, or of those below it.
        let mut unused = vec![0u64; self.classes.len()];
        for id in self.ids().rev() {
            let own = self.amounts(id, memories).guarantee.saturating_sub(used[id.index()]);
            let below = self.children(id).map(|child| unused[child.index()]).fold(0, u64::saturating_add);
            unused[id.index()] = own.max(below);
        }
        let mut room = NO_LIMIT;
        let mut reserved = 0u64;
        let (mut below, mut id) = (None, class);
        loop {
            let beside = self.children(id).filter(|child| Some(*child) != below).map(|child| unused[child.index()]);
            reserved = beside.fold(reserved, u64::saturating_add);
            let Amounts { ceiling, .. } = self.amounts(id, memories);
            if ceiling != NO_LIMIT {
                room = room.min(ceiling.saturating_sub(used[id.index()].saturating_add(reserved)));
            }
            if id == ClassId::ROOT {
                return (room != NO_LIMIT).then_some(ByteCount(room));
            }
            (below, id) = (Some(id), self.parent(id));
        }
    }

    /// Returns the sum of the amounts in each class, children included, after `bound` of each.
    fn sums(&self, copies: &[(ClassId, u64)], bound: impl Fn(ClassId, u64) -> u64) -> Vec<u64> {
        let mut sums = vec![0u64; self.classes.len()];
        for (class, amount) in copies {
            sums[class.index()] = sums[class.index()].saturating_add(*amount);
        }
        // Children have higher numbers than their parents.
        for id in self.ids().rev() {
            sums[id.index()] = bound(id, sums[id.index()]);
            if id != ClassId::ROOT {
                let parent = self.parent(id).index();
                sums[parent] = sums[parent].saturating_add(sums[id.index()]);
            }
        }
        sums
    }

    fn ids(&self) -> impl DoubleEndedIterator<Item = ClassId> + use<> {
        (0..self.classes.len()).map(|number| ClassId(number as u16))
    }

    fn parent(&self, id: ClassId) -> ClassId {
        self.classes[id.index()].1
    }

    fn children(&self, parent: ClassId) -> impl Iterator<Item = ClassId> {
        self.ids().skip(1).filter(move |id| self.parent(*id) == parent)
    }

    fn amounts(&self, id: ClassId, of: AmountsOf) -> Amounts {
        of(&self.classes[id.index()].0)
    }
}

fn usage<T>(text: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

fn rate_text(rate: u64) -> String {
    BitRate(rate).to_string()
}

fn memory_text(memory: u64) -> String {
    ByteCount(memory).to_string()
}

fn check(class: &Class) -> Result<(), Error> {
    for (amounts, shown) in [(rates(class), rate_text as fn(u64) -> String), (memories(class), memory_text)] {
        if amounts.guarantee > amounts.ceiling {
            let (guarantee, ceiling) = (shown(amounts.guarantee), shown(amounts.ceiling));
            return usage(format!("class {}: the guarantee {guarantee} is above the ceiling {ceiling}", class.name));
        }
    }
    Ok(())
}

/// Claim of a class or a copy on the amount of its parent.
struct Claim {
    guarantee: u64,
    wanted: u64,
}

/// Divides an amount: first the guarantees, then the rest equally.
fn share(amount: u64, claims: &[Claim]) -> Vec<u64> {
    let mut left = amount;
    let mut parts: Vec<u64> = Vec::with_capacity(claims.len());
    for claim in claims {
        let part = claim.guarantee.min(claim.wanted).min(left);
        left -= part;
        parts.push(part);
    }
    // In the order of what each lacks: one that lacks little leaves more to the others.
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|at| claims[*at].wanted - parts[*at]);
    for (done, at) in order.iter().enumerate() {
        // Nothing is taken from an amount without a limit.
        let equal = if amount == NO_LIMIT { NO_LIMIT } else { left / (order.len() - done) as u64 };
        let more = (claims[*at].wanted - parts[*at]).min(equal);
        parts[*at] += more;
        left = left.saturating_sub(more);
    }
    parts
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    fn class(name: &str, guarantee: u64, ceiling: Option<u64>) -> Class {
        Class {
            name: name.to_owned(),
            rate: Bounds { guarantee: BitRate(guarantee), ceiling: ceiling.map(BitRate) },
            memory: Bounds { guarantee: ByteCount(guarantee), ceiling: ceiling.map(ByteCount) },
        }
    }

    /// Returns a tree of 100: `nrt` with 60, `bulk` with 20 and a ceiling of 50, below it `replay` with 5.
    fn station() -> (Budgets, [ClassId; 3]) {
        let mut budgets = Budgets::new(class("process", 0, Some(100))).unwrap();
        let nrt = budgets.add(ClassId::ROOT, class("nrt", 60, None)).unwrap();
        let bulk = budgets.add(ClassId::ROOT, class("bulk", 20, Some(50))).unwrap();
        let replay = budgets.add(bulk, class("replay", 5, Some(30))).unwrap();
        (budgets, [nrt, bulk, replay])
    }

    fn parts(budgets: &Budgets, copies: &[(ClassId, Option<u64>)]) -> Vec<Option<u64>> {
        let copies: Vec<_> = copies.iter().map(|(class, rate)| (*class, rate.map(BitRate))).collect();
        budgets.divide(&copies).into_iter().map(|part| part.map(|rate| rate.0)).collect()
    }

    #[test]
    fn one_class_divides_its_ceiling_equally_up_to_what_each_can_use() {
        let budgets = Budgets::new(class("process", 0, Some(90))).unwrap();
        let of_root = |budgets: &Budgets, rates: &[Option<u64>]| {
            parts(budgets, &rates.iter().map(|rate| (ClassId::ROOT, *rate)).collect::<Vec<_>>())
        };
        assert_eq!(of_root(&budgets, &[]), []);
        assert_eq!(of_root(&budgets, &[None]), [Some(90)]);
        assert_eq!(of_root(&budgets, &[None, Some(10), None]), [40, 10, 40].map(Some));
        assert_eq!(of_root(&budgets, &[Some(10), Some(20)]), [10, 20].map(Some));
        assert_eq!(of_root(&Budgets::default(), &[Some(7), None, None]), [Some(7), None, None]);
    }

    #[test]
    fn guarantees_come_first_and_what_is_not_used_is_lent() {
        let (budgets, [nrt, bulk, replay]) = station();
        let parts = |copies: &[(ClassId, Option<u64>)]| -> Vec<u64> {
            parts(&budgets, copies).into_iter().map(Option::unwrap).collect()
        };
        // 60 and 20 are guaranteed, and the other 20 are shared equally.
        assert_eq!(parts(&[(nrt, None), (bulk, None)]), [70, 30]);
        assert_eq!(parts(&[(nrt, None)]), [100]);
        assert_eq!(parts(&[(bulk, None)]), [50], "its ceiling");
        assert_eq!(parts(&[(replay, None)]), [30], "its ceiling below that of its parent");
        assert_eq!(parts(&[(nrt, Some(30)), (bulk, None)]), [30, 50]);
        // The copy of `bulk` and the class `replay` share what `bulk` has, after the guarantee of `replay`.
        assert_eq!(parts(&[(bulk, None), (replay, None), (nrt, None)]), [13, 17, 70]);
        assert_eq!(parts(&[(replay, Some(2)), (bulk, None), (nrt, None)]), [2, 28, 70]);
    }

    /// Returns a tree with random classes, all guarantees of which can be given.
    fn random_tree(random: &mut Seeded) -> Budgets {
        let mut budgets = Budgets::new(class("process", 0, Some(1000 + random.below(1000)))).unwrap();
        for number in 0..random.below(9) {
            let parent = ClassId(random.index(budgets.classes.len()) as u16);
            let (guarantee, ceiling) = (random.below(100), random.chance(500).then(|| 100 + random.below(1000)));
            // A guarantee that the parent cannot give is refused.
            let _ = budgets.add(parent, class(&format!("class {number}"), guarantee, ceiling));
        }
        budgets
    }

    /// Returns the sum of the amounts of the copies in `above` and below it.
    fn of_class(budgets: &Budgets, above: ClassId, copies: impl Iterator<Item = (ClassId, u64)>) -> u64 {
        let is_within = |mut class: ClassId| loop {
            if class == above || class == ClassId::ROOT {
                return class == above;
            }
            class = budgets.parent(class);
        };
        copies.filter(|(class, _)| is_within(*class)).map(|(_, amount)| amount).fold(0, u64::saturating_add)
    }

    #[test]
    fn the_parts_of_a_random_tree_keep_every_ceiling_and_every_guarantee() {
        for_seeds("the_parts_of_a_random_tree_keep_every_ceiling_and_every_guarantee", 500, |seed| {
            let mut random = Seeded::new(seed);
            let budgets = random_tree(&mut random);
            let copy = |random: &mut Seeded| {
                let class = ClassId(random.index(budgets.classes.len()) as u16);
                (class, (!random.chance(300)).then(|| random.below(800)))
            };
            let copies: Vec<(ClassId, Option<u64>)> = (0..random.below(12)).map(|_| copy(&mut random)).collect();
            let parts = parts(&budgets, &copies);
            for id in budgets.ids() {
                let got = of_class(&budgets, id, copies.iter().zip(&parts).map(|(copy, part)| (copy.0, part.unwrap())));
                let wanted = copies.iter().map(|(class, rate)| (*class, rate.unwrap_or(NO_LIMIT)));
                let wanted = of_class(&budgets, id, wanted);
                let Amounts { guarantee, ceiling } = budgets.amounts(id, rates);
                assert!(got <= ceiling.min(wanted), "{id:?} of {budgets:?}: {copies:?} get {parts:?}");
                // Divisions round down. The guarantees of copies with less below them are not used.
                let usable = wanted.min(ceiling);
                let lacks = guarantee.min(usable).saturating_sub(got);
                let slack = (copies.len() * budgets.classes.len()) as u64;
                assert!(lacks <= slack, "{id:?} of {budgets:?}: {copies:?} get {parts:?}");
            }
        });
    }

    fn room(budgets: &Budgets, class: ClassId, kept: &[(ClassId, u64)]) -> Option<u64> {
        let kept: Vec<_> = kept.iter().map(|(class, memory)| (*class, ByteCount(*memory))).collect();
        budgets.room(class, &kept).map(|room| room.0)
    }

    #[test]
    fn one_more_copy_gets_what_others_neither_have_nor_are_guaranteed() {
        let (budgets, [nrt, bulk, replay]) = station();
        let room = |class, kept: &[(ClassId, u64)]| room(&budgets, class, kept).unwrap();
        assert_eq!([nrt, bulk, replay, ClassId::ROOT].map(|class| room(class, &[])), [80, 35, 30, 20]);
        assert_eq!(room(nrt, &[(nrt, 80)]), 0, "the guarantee of `bulk`");
        assert_eq!(room(bulk, &[(nrt, 80)]), 15, "less the guarantee of `replay`");
        assert_eq!(room(replay, &[(nrt, 80), (bulk, 15)]), 5);
        assert_eq!(room(nrt, &[(bulk, 35)]), 60, "`bulk` has borrowed, and the guarantee of `replay` is kept");
        assert_eq!(room(replay, &[(bulk, 35), (nrt, 60)]), 5);
        assert_eq!(room(replay, &[(replay, 30)]), 0);
        assert_eq!(super::tests::room(&Budgets::default(), ClassId::ROOT, &[(ClassId::ROOT, 7)]), None);
    }

    /// Returns the guarantee that nobody in a class uses, or that nobody in the classes below it uses.
    fn unused(budgets: &Budgets, id: ClassId, kept: &[(ClassId, u64)]) -> u64 {
        let used = of_class(budgets, id, kept.iter().copied());
        let below: u64 = budgets.children(id).map(|child| unused(budgets, child, kept)).sum();
        budgets.amounts(id, memories).guarantee.saturating_sub(used).max(below)
    }

    #[test]
    fn copies_that_start_one_after_the_other_leave_every_guarantee() {
        for_seeds("copies_that_start_one_after_the_other_leave_every_guarantee", 500, |seed| {
            let mut random = Seeded::new(seed);
            let budgets = random_tree(&mut random);
            let mut kept: Vec<(ClassId, u64)> = Vec::new();
            for _ in 0..20 {
                let class = ClassId(random.index(budgets.classes.len()) as u16);
                let room = room(&budgets, class, &kept).unwrap();
                kept.push((class, if random.chance(300) { room } else { random.below(room + 1) }));
                if random.chance(200) {
                    kept.swap_remove(random.index(kept.len()));
                }
                for id in budgets.ids() {
                    let used = of_class(&budgets, id, kept.iter().copied());
                    let Amounts { guarantee, ceiling } = budgets.amounts(id, memories);
                    assert!(used <= ceiling, "{id:?} of {budgets:?}: {kept:?}");
                    let left = super::tests::room(&budgets, id, &kept).unwrap();
                    // Less what it has promised to the classes below it.
                    let below: u64 = budgets.children(id).map(|child| unused(&budgets, child, &kept)).sum();
                    let promised = guarantee.saturating_sub(used + below);
                    assert!(left >= promised, "{id:?} of {budgets:?}: {kept:?} leave {left} of {promised}");
                }
            }
        });
    }

    #[test]
    fn classes_that_cannot_be_are_refused_with_the_reason() {
        let (mut budgets, [_, bulk, _]) = station();
        let mut refusal = |parent, class| budgets.add(parent, class).unwrap_err().text().to_owned();
        assert_eq!(
            refusal(ClassId::ROOT, class("x", 2, Some(1))),
            "class x: the guarantee 2 bit/s is above the ceiling 1 bit/s"
        );
        assert_eq!(refusal(ClassId::ROOT, class("nrt", 0, None)), "class nrt: another class has this name");
        assert_eq!(refusal(ClassId(9), class("x", 0, None)), "class x: its parent does not exist");
        assert_eq!(
            refusal(ClassId::ROOT, class("x", 21, None)),
            "class x: process can guarantee 100 bit/s, not 101 bit/s"
        );
        assert_eq!(refusal(bulk, class("x", 16, None)), "class x: bulk can guarantee 20 bit/s, not 21 bit/s");
        assert!(Budgets::new(class("x", 2, Some(1))).is_err());
        let ceiling = budgets.class(bulk).and_then(|class| class.rate.ceiling);
        assert_eq!((budgets.find("bulk"), ceiling), (Some(bulk), Some(BitRate(50))));
    }
}
