//! Files beneath roots of this host, each listed once.

use std::sync::Arc;

use sterna_proto::Error;
use sterna_proto::session::BlockOrder;

use super::file::{DiskFile, Listed, OpenFiles};
use super::held::{self, HeldFiles};
use super::names::{Admittance, FirstNames};
use super::{Offers, Source, SourcePlace};
use crate::disk::SourceItem;

/// Files beneath roots of this host.
pub struct Roots {
    places: Vec<SourcePlace>,
    order: BlockOrder,
    open_files: Arc<OpenFiles>,
}

impl Roots {
    /// Creates the source of the files at `places`.
    pub fn new(places: Vec<SourcePlace>) -> Arc<Self> {
        Self::in_order(places, BlockOrder::Next)
    }

    /// Creates the source of files whose large files travel only on demand of the receiver, which compares replicas.
    pub fn on_demand(places: Vec<SourcePlace>) -> Arc<Self> {
        Self::in_order(places, BlockOrder::OnDemand)
    }

    fn in_order(places: Vec<SourcePlace>, order: BlockOrder) -> Arc<Self> {
        Arc::new(Self { places, order, open_files: Arc::default() })
    }

    fn offer(&self, offers: &Arc<dyn Offers>, place: &SourcePlace, item: SourceItem, held: &mut HeldFiles) {
        if offers.has_settled(&item.entry) {
            return;
        }
        let held_entry = held::entry_of(&**offers, &place.root, &item, self.order);
        let file = DiskFile::new(&place.root, item.source, Listed::Once, &self.open_files);
        match held_entry {
            Some(entry) => held.offer(offers, file, entry),
            None => drop(offers.offer(item.entry, self.order, file)),
        }
    }
}

impl Source for Roots {
    fn list(self: Arc<Self>, offers: &Arc<dyn Offers>) {
        let mut held = HeldFiles::default();
        let mut names = FirstNames::new(&self.places);
        'places: for (index, place) in self.places.iter().enumerate() {
            let items = match place.items() {
                Ok(items) => items,
                Err(error) => {
                    offers.unreadable(error);
                    continue;
                }
            };
            for item in items {
                if offers.is_closed() {
                    return;
                }
                let admitted: Result<_, Error> = item.map(|item| (names.admit(index, place, &item), item));
                match admitted {
                    Ok((Admittance::Offered, item)) => self.offer(offers, place, item, &mut held),
                    Ok((Admittance::RefusedBefore, _)) => {}
                    Ok((Admittance::Refused(error), _)) | Err(error) => offers.unreadable(error),
                    Ok((Admittance::Full(error), _)) => {
                        offers.unreadable(error);
                        break 'places;
                    }
                }
            }
        }
    }
}
