//! Settings of the scheduler: limits of the transfers under way, and shares of links.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::order::Order;
use crate::share::Share;

/// Name of a storage endpoint, of a VO or of an activity.
pub type Name = Arc<str>;

/// Link: a source and a destination endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Source endpoint.
    pub source: Name,
    /// Destination endpoint.
    pub destination: Name,
}

/// Name that stands for every endpoint in the settings of links and endpoints.
pub const ANY: &str = "*";

/// Returns the most precise setting of a link: for both endpoints, the source, the destination, or all links. Source of
/// the order: FTS3.
fn most_precise<'a, T>(settings: &'a BTreeMap<Link, T>, link: &Link) -> Option<&'a T> {
    if settings.is_empty() {
        return None;
    }
    let any = || Name::from(ANY);
    let (source, destination) = (|| Arc::clone(&link.source), || Arc::clone(&link.destination));
    settings
        .get(link)
        .or_else(|| settings.get(&Link { source: source(), destination: any() }))
        .or_else(|| settings.get(&Link { source: any(), destination: destination() }))
        .or_else(|| settings.get(&Link { source: any(), destination: any() }))
}

/// Limits of an endpoint: transfers under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Maximum to the endpoint.
    pub inbound: usize,
    /// Maximum from the endpoint.
    pub outbound: usize,
}

/// Limits of the transfers under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum of all together; 0: an operator has drained the service.
    pub all: usize,
    /// Maximum of a link that no setting names.
    pub link: usize,
    /// Maximum of links; [`ANY`] stands for every endpoint, and the most precise setting counts.
    pub links: BTreeMap<Link, usize>,
    /// Limits of an endpoint that no setting names.
    pub endpoint: EndpointLimits,
    /// Limits of endpoints.
    pub endpoints: BTreeMap<Name, EndpointLimits>,
    /// Maximum of named VOs; the others have none.
    pub vos: BTreeMap<Name, usize>,
}

impl Default for Limits {
    /// Returns the limits that FTS3 begins with: 66 transfers on a link, 200 at an endpoint.
    fn default() -> Self {
        Self {
            all: 10_000,
            link: 66,
            links: BTreeMap::new(),
            endpoint: EndpointLimits { inbound: 200, outbound: 200 },
            endpoints: BTreeMap::new(),
            vos: BTreeMap::new(),
        }
    }
}

impl Limits {
    /// Returns the maximum of a link.
    pub(crate) fn of_link(&self, link: &Link) -> usize {
        most_precise(&self.links, link).copied().unwrap_or(self.link)
    }
}

/// Shares of links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// Shares of VOs on links; [`ANY`] stands for every endpoint, and the most precise setting counts. A VO that it
    /// does not name has the share of [`PUBLIC`], or an equal one.
    pub links: BTreeMap<Link, BTreeMap<Name, Share>>,
    /// Shares of the activities of a VO; the others have that of `default`, or an equal one.
    pub activities: BTreeMap<Name, BTreeMap<Name, Share>>,
    /// VOs whose files start in order of submission: neither priorities nor activities count.
    pub in_order: BTreeSet<Name>,
}

/// Activity whose share the activities without one have. Source: FTS3.
pub const ACTIVITY_DEFAULT: &str = "default";

/// VO whose share the VOs without one have. Source: FTS3.
pub const PUBLIC: &str = "public";

impl Shares {
    /// Returns the order of the files of a VO.
    pub(crate) fn order_of(&self, vo: &Name) -> Order {
        if self.in_order.contains(vo) { Order::Submission } else { Order::Priority }
    }

    /// Returns the name of the queue of a file within its VO: its activity, or for a VO in order that of the VO.
    pub(crate) fn queue_in_vo<'a>(&self, queue: &'a QueueName) -> &'a Name {
        if self.in_order.contains(&queue.vo) { &queue.vo } else { &queue.activity }
    }

    /// Returns the share of a VO on a link.
    pub(crate) fn of_vo(&self, link: &Link, vo: &Name) -> Share {
        let Some(shares) = most_precise(&self.links, link) else { return Share::default() };
        shares.get(vo).or_else(|| shares.get(PUBLIC)).copied().unwrap_or_default()
    }

    /// Returns the share of an activity of a VO.
    pub(crate) fn of_activity(&self, vo: &Name, activity: &Name) -> Share {
        if self.in_order.contains(vo) {
            // All files of the VO are in one queue.
            return Share::default();
        }
        let shares = self.activities.get(vo);
        let share = |name: &str| shares.and_then(|shares| shares.get(name)).copied();
        share(activity).or_else(|| share(ACTIVITY_DEFAULT)).unwrap_or_default()
    }
}

/// Queue in which a file waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName {
    /// Link.
    pub link: Link,
    /// VO.
    pub vo: Name,
    /// Activity.
    pub activity: Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_precise_setting_of_a_link_counts() {
        let mut settings = BTreeMap::new();
        let link = |source: &str, destination: &str| Link { source: source.into(), destination: destination.into() };
        let ab = link("a", "b");
        assert_eq!(most_precise(&settings, &ab), None);
        for (number, (source, destination)) in [(ANY, ANY), (ANY, "b"), ("a", ANY), ("a", "b")].into_iter().enumerate()
        {
            settings.insert(link(source, destination), number);
            assert_eq!(most_precise(&settings, &ab), Some(&number));
        }
        assert_eq!(most_precise(&settings, &link("x", "b")), Some(&1));
        assert_eq!(most_precise(&settings, &link("a", "x")), Some(&2));
        assert_eq!(most_precise(&settings, &link("b", "a")), Some(&0));
    }
}
