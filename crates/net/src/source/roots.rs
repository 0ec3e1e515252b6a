//! Files beneath roots of this host, each listed once.

use std::sync::Arc;

use sterna_proto::session::BlockOrder;
use sterna_proto::{Error, RelPath};

use super::file::{DiskFile, Listed, OpenFiles};
use super::held::{self, HeldFiles};
use super::names::{Admittance, FirstNames};
use super::{Offers, Source, SourcePlace};
use crate::disk::SourceItem;

/// Names of the files in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// Their own.
    Own,
    /// The number of their place. Each place is one file.
    Numbers,
}

/// Files beneath roots of this host.
pub struct Roots {
    places: Vec<SourcePlace>,
    order: BlockOrder,
    names: Names,
    open_files: Arc<OpenFiles>,
}

impl Roots {
    /// Creates the source of the files at `places`.
    pub fn new(places: Vec<SourcePlace>) -> Arc<Self> {
        Self::with(places, BlockOrder::Next, Names::Own)
    }

    /// Creates the source of a numbered copy. Each place must be one file.
    pub fn numbered(places: Vec<SourcePlace>) -> Arc<Self> {
        Self::with(places, BlockOrder::Next, Names::Numbers)
    }

    /// Creates the source of files whose large files travel only on demand of the receiver, which compares replicas.
    pub fn on_demand(places: Vec<SourcePlace>) -> Arc<Self> {
        Self::with(places, BlockOrder::OnDemand, Names::Own)
    }

    fn with(places: Vec<SourcePlace>, order: BlockOrder, names: Names) -> Arc<Self> {
        Arc::new(Self { places, order, names, open_files: Arc::default() })
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

    /// Offers the file of each place under its number. Every place without one is reported once: the reader of the
    /// reports counts them.
    fn list_numbered(&self, offers: &Arc<dyn Offers>) {
        let mut held = HeldFiles::default();
        for (number, place) in self.places.iter().enumerate() {
            if offers.is_closed() {
                return;
            }
            match place.only_file() {
                Ok(mut item) => {
                    item.entry.path = RelPath::of_number(number);
                    self.offer(offers, place, item, &mut held);
                }
                Err(error) => offers.unreadable(error),
            }
        }
    }
}

impl Source for Roots {
    fn list(self: Arc<Self>, offers: &Arc<dyn Offers>) {
        if self.names == Names::Numbers {
            return self.list_numbered(offers);
        }
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
