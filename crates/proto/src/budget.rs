//! Budgets of a process: a tree of classes that divide its rate and its memory.
//!
//! A class has a guarantee and a ceiling for each of the two, as a class of Linux's HTB. It borrows from its parent
//! what other classes do not use. Every copy belongs to one class; a process without classes has the root only.
//! Computes the parts. Refuses to measure what a copy uses, or carry out a part.

use crate::error::{Error, ErrorKind, Phase, Scope};

/// Number of a class among those of its [`Budgets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u16);

impl ClassId {
    /// Root of the tree: the process.
    pub const ROOT: Self = Self(0);
}

/// Bounds of one resource of a class: bits per second on the wire, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Amount that other classes cannot borrow while this class wants it.
    pub guarantee: u64,
    /// Maximum amount, borrowed amounts included; [`Bounds::UNLIMITED`] for none.
    pub ceiling: u64,
}

impl Bounds {
    /// Ceiling that limits nothing.
    pub const UNLIMITED: u64 = u64::MAX;
}

impl Default for Bounds {
    /// Returns bounds without a guarantee and without a ceiling.
    fn default() -> Self {
        Self { guarantee: 0, ceiling: Self::UNLIMITED }
    }
}

/// Class of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Name, for messages.
    pub name: String,
    /// Rate on the wire of all copies of the class together, bits per second.
    pub rate: Bounds,
    /// Memory for data in flight of all copies of the class together, bytes.
    pub memory: Bounds,
}

/// Resource that classes divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Rate, bits per second.
    Rate,
    /// Memory, bytes.
    Memory,
}

/// Tree of classes. A parent has a lower number than its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets {
    classes: Vec<(Class, ClassId)>,
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
    /// Errors: `Usage`: no such parent; a name that another class has; a guarantee above the ceiling of the class, or
    /// more guarantees than the ceiling of the parent; more than 65,535 classes.
    pub fn add(&mut self, parent: ClassId, class: Class) -> Result<ClassId, Error> {
        check(&class)?;
        let name = &class.name;
        let Some((above, _)) = self.classes.get(usize::from(parent.0)) else {
            return usage(format!("class {name}: its parent does not exist"));
        };
        if self.find(name).is_some() {
            return usage(format!("class {name}: another class has this name"));
        }
        for resource in [Resource::Rate, Resource::Memory] {
            let siblings = self.children(parent).map(|child| self.bounds(child, resource).guarantee);
            let promised = siblings.fold(bounds_of(&class, resource).guarantee, u64::saturating_add);
            let ceiling = bounds_of(above, resource).ceiling;
            if promised > ceiling {
                return usage(format!(
                    "class {name}: the guarantees below {} are {promised} together, and its ceiling is {ceiling}",
                    above.name
                ));
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
        self.classes.get(usize::from(id.0)).map(|(class, _)| class)
    }

    /// Returns the class of this name.
    pub fn find(&self, name: &str) -> Option<ClassId> {
        self.ids().find(|id| self.classes[usize::from(id.0)].0.name == name)
    }

    /// Divides a resource among copies: their classes, and the amounts that they can use. Returns the part of each, in
    /// order; together at most the ceiling of every class.
    ///
    /// Each class first gets its guarantee, as far as its copies can use it. Then classes and copies of one parent
    /// share the rest equally, up to what they can use. Range: every class exists.
    pub fn divide(&self, resource: Resource, copies: &[(ClassId, u64)]) -> Vec<u64> {
        // Amount that the copies of each class can use, children included. Children have higher numbers.
        let mut wanted = vec![0u64; self.classes.len()];
        for (class, amount) in copies {
            wanted[usize::from(class.0)] = wanted[usize::from(class.0)].saturating_add(*amount);
        }
        for id in self.ids().rev() {
            let at = usize::from(id.0);
            wanted[at] = wanted[at].min(self.bounds(id, resource).ceiling);
            if id != ClassId::ROOT {
                let parent = usize::from(self.classes[at].1.0);
                wanted[parent] = wanted[parent].saturating_add(wanted[at]);
            }
        }
        let mut parts = vec![0; copies.len()];
        let mut granted = wanted.clone();
        for id in self.ids() {
            let children: Vec<ClassId> = self.children(id).collect();
            let members: Vec<usize> = (0..copies.len()).filter(|at| copies[*at].0 == id).collect();
            let of_class = |id: &ClassId| Claim {
                guarantee: self.bounds(*id, resource).guarantee,
                wanted: wanted[usize::from(id.0)],
            };
            let of_copy = |at: &usize| Claim { guarantee: 0, wanted: copies[*at].1 };
            let claims: Vec<Claim> = children.iter().map(of_class).chain(members.iter().map(of_copy)).collect();
            let shares = share(granted[usize::from(id.0)], &claims);
            let (of_children, of_members) = shares.split_at(children.len());
            children.iter().zip(of_children).for_each(|(child, part)| granted[usize::from(child.0)] = *part);
            members.iter().zip(of_members).for_each(|(at, part)| parts[*at] = *part);
        }
        parts
    }

    /// Returns the amount that one more copy of `class` can get beside copies that keep theirs: their classes and
    /// amounts. Leaves unused guarantees to the other classes. Range: every class exists.
    pub fn room(&self, resource: Resource, class: ClassId, kept: &[(ClassId, u64)]) -> u64 {
        let mut used = vec![0u64; self.classes.len()];
        for (class, amount) in kept {
            used[usize::from(class.0)] = used[usize::from(class.0)].saturating_add(*amount);
        }
        for id in self.ids().rev().filter(|id| *id != ClassId::ROOT) {
            let (at, parent) = (usize::from(id.0), usize::from(self.classes[usize::from(id.0)].1.0));
            used[parent] = used[parent].saturating_add(used[at]);
        }
        let mut room = u64::MAX;
        // Unused guarantees of the classes beside those above the copy.
        let mut reserved = 0u64;
        let mut below = None;
        let mut id = class;
        loop {
            let unused =
                |child: ClassId| self.bounds(child, resource).guarantee.saturating_sub(used[usize::from(child.0)]);
            let beside = self.children(id).filter(|child| Some(*child) != below);
            reserved = beside.map(unused).fold(reserved, u64::saturating_add);
            let taken = used[usize::from(id.0)].saturating_add(reserved);
            let ceiling = self.bounds(id, resource).ceiling;
            if ceiling != Bounds::UNLIMITED {
                room = room.min(ceiling.saturating_sub(taken));
            }
            if id == ClassId::ROOT {
                return room;
            }
            (below, id) = (Some(id), self.classes[usize::from(id.0)].1);
        }
    }

    fn ids(&self) -> impl DoubleEndedIterator<Item = ClassId> + use<> {
        (0..self.classes.len() as u16).map(ClassId)
    }

    fn children(&self, parent: ClassId) -> impl Iterator<Item = ClassId> {
        self.ids().skip(1).filter(move |id| self.classes[usize::from(id.0)].1 == parent)
    }

    fn bounds(&self, id: ClassId, resource: Resource) -> Bounds {
        bounds_of(&self.classes[usize::from(id.0)].0, resource)
    }
}

fn bounds_of(class: &Class, resource: Resource) -> Bounds {
    match resource {
        Resource::Rate => class.rate,
        Resource::Memory => class.memory,
    }
}

fn usage<T>(text: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

fn check(class: &Class) -> Result<(), Error> {
    for (what, Bounds { guarantee, ceiling }) in [("rate", class.rate), ("memory", class.memory)] {
        if guarantee > ceiling {
            return usage(format!(
                "class {}: the guaranteed {what} {guarantee} is above its ceiling {ceiling}",
                class.name
            ));
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
        let equal = left / (order.len() - done) as u64;
        let more = (claims[*at].wanted - parts[*at]).min(equal);
        parts[*at] += more;
        left -= more;
    }
    parts
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const UNLIMITED: u64 = Bounds::UNLIMITED;

    fn class(name: &str, guarantee: u64, ceiling: u64) -> Class {
        let bounds = Bounds { guarantee, ceiling };
        Class { name: name.to_owned(), rate: bounds, memory: bounds }
    }

    /// Returns a tree of 100: `nrt` with 60, `bulk` with 20 and a ceiling of 50, below it `replay` with 5.
    fn station() -> (Budgets, [ClassId; 3]) {
        let mut budgets = Budgets::new(class("process", 0, 100)).unwrap();
        let nrt = budgets.add(ClassId::ROOT, class("nrt", 60, UNLIMITED)).unwrap();
        let bulk = budgets.add(ClassId::ROOT, class("bulk", 20, 50)).unwrap();
        let replay = budgets.add(bulk, class("replay", 5, 30)).unwrap();
        (budgets, [nrt, bulk, replay])
    }

    #[test]
    fn one_class_divides_its_ceiling_equally_up_to_what_each_can_use() {
        let budgets = Budgets::new(class("process", 0, 90)).unwrap();
        let parts = |wanted: &[u64]| {
            budgets.divide(Resource::Rate, &wanted.iter().map(|wanted| (ClassId::ROOT, *wanted)).collect::<Vec<_>>())
        };
        assert_eq!(parts(&[]), []);
        assert_eq!(parts(&[UNLIMITED]), [90]);
        assert_eq!(parts(&[UNLIMITED, 10, UNLIMITED]), [40, 10, 40]);
        assert_eq!(parts(&[10, 20]), [10, 20]);
        let unlimited = Budgets::default();
        assert_eq!(unlimited.divide(Resource::Rate, &[(ClassId::ROOT, 7)]), [7]);
        assert_eq!(unlimited.divide(Resource::Rate, &[(ClassId::ROOT, UNLIMITED)]), [UNLIMITED]);
    }

    #[test]
    fn guarantees_come_first_and_what_is_not_used_is_lent() {
        let (budgets, [nrt, bulk, replay]) = station();
        let parts = |copies: &[(ClassId, u64)]| budgets.divide(Resource::Rate, copies);
        // 60 and 20 are guaranteed, and the other 20 are shared equally.
        assert_eq!(parts(&[(nrt, UNLIMITED), (bulk, UNLIMITED)]), [70, 30]);
        assert_eq!(parts(&[(nrt, UNLIMITED)]), [100]);
        assert_eq!(parts(&[(bulk, UNLIMITED)]), [50], "its ceiling");
        assert_eq!(parts(&[(replay, UNLIMITED)]), [30], "its ceiling below that of its parent");
        assert_eq!(parts(&[(nrt, 30), (bulk, UNLIMITED)]), [30, 50]);
        // The copy of `bulk` and the class `replay` share what `bulk` has, after the guarantee of `replay`.
        assert_eq!(parts(&[(bulk, UNLIMITED), (replay, UNLIMITED), (nrt, UNLIMITED)]), [13, 17, 70]);
        assert_eq!(parts(&[(replay, 2), (bulk, UNLIMITED), (nrt, UNLIMITED)]), [2, 28, 70]);
    }

    #[test]
    fn the_parts_of_a_random_tree_keep_every_ceiling_and_every_guarantee() {
        for_seeds("the_parts_of_a_random_tree_keep_every_ceiling_and_every_guarantee", 500, |seed| {
            let mut random = Seeded::new(seed);
            let mut budgets = Budgets::new(class("process", 0, 1000 + random.below(1000))).unwrap();
            for number in 0..random.below(8) {
                let parent = ClassId(random.index(budgets.classes.len()) as u16);
                let (guarantee, ceiling) = (random.below(100), 100 + random.below(1000));
                // A guarantee that the parent cannot give is refused.
                let _ = budgets.add(parent, class(&format!("class {number}"), guarantee, ceiling));
            }
            let copy = |random: &mut Seeded| {
                let class = ClassId(random.index(budgets.classes.len()) as u16);
                (class, if random.chance(300) { UNLIMITED } else { random.below(800) })
            };
            let copies: Vec<(ClassId, u64)> = (0..random.below(12)).map(|_| copy(&mut random)).collect();
            let parts = budgets.divide(Resource::Rate, &copies);
            for id in budgets.ids() {
                let of_class = |amounts: &dyn Fn(usize) -> u64| {
                    let members = (0..copies.len()).filter(|at| is_within(&budgets, copies[*at].0, id));
                    members.map(amounts).fold(0, u64::saturating_add)
                };
                let (got, wanted) = (of_class(&|at| parts[at]), of_class(&|at| copies[at].1));
                let Bounds { guarantee, ceiling } = budgets.bounds(id, Resource::Rate);
                assert!(got <= ceiling.min(wanted), "{id:?} of {budgets:?}: {copies:?} get {parts:?}");
                // Below other classes a guarantee holds as far as that of its parent covers it. Divisions round down.
                if id != ClassId::ROOT && budgets.classes[usize::from(id.0)].1 == ClassId::ROOT {
                    let lacks = guarantee.min(wanted).saturating_sub(got);
                    assert!(lacks <= copies.len() as u64, "{id:?} of {budgets:?}: {copies:?} get {parts:?}");
                }
            }
        });
    }

    /// Returns true if `class` is `above`, or below it.
    fn is_within(budgets: &Budgets, class: ClassId, above: ClassId) -> bool {
        class == above || class != ClassId::ROOT && is_within(budgets, budgets.classes[usize::from(class.0)].1, above)
    }

    #[test]
    fn one_more_copy_gets_what_others_neither_have_nor_are_guaranteed() {
        let (budgets, [nrt, bulk, replay]) = station();
        let room = |class, kept: &[(ClassId, u64)]| budgets.room(Resource::Memory, class, kept);
        assert_eq!([nrt, bulk, replay, ClassId::ROOT].map(|class| room(class, &[])), [80, 35, 30, 20]);
        assert_eq!(room(nrt, &[(nrt, 80)]), 0, "the guarantee of `bulk`");
        assert_eq!(room(bulk, &[(nrt, 80)]), 15, "less the guarantee of `replay`");
        assert_eq!(room(replay, &[(nrt, 80), (bulk, 15)]), 5);
        assert_eq!(room(replay, &[(replay, 30)]), 0);
        assert_eq!(Budgets::default().room(Resource::Memory, ClassId::ROOT, &[(ClassId::ROOT, 7)]), UNLIMITED);
    }

    #[test]
    fn classes_that_cannot_be_are_refused_with_the_reason() {
        let (mut budgets, [_, bulk, _]) = station();
        let mut refusal = |parent, class| budgets.add(parent, class).unwrap_err().text().to_owned();
        assert_eq!(refusal(ClassId::ROOT, class("x", 2, 1)), "class x: the guaranteed rate 2 is above its ceiling 1");
        assert_eq!(refusal(ClassId::ROOT, class("nrt", 0, 1)), "class nrt: another class has this name");
        assert_eq!(refusal(ClassId(9), class("x", 0, 1)), "class x: its parent does not exist");
        assert_eq!(
            refusal(ClassId::ROOT, class("x", 21, 30)),
            "class x: the guarantees below process are 101 together, and its ceiling is 100"
        );
        assert!(refusal(bulk, class("x", 46, 50)).contains("the guarantees below bulk are 51 together"));
        assert!(Budgets::new(class("x", 2, 1)).is_err());
        assert_eq!((budgets.find("bulk"), budgets.class(bulk).map(|class| class.rate.ceiling)), (Some(bulk), Some(50)));
    }
}
