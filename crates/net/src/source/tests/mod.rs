//! Promises of every source: each test runs against every implementation.

mod fixture;

use std::fs;
use std::sync::Arc;
use std::thread;

use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::{FileId, FileOutcome, LaneId};
use sterna_proto::{Error, ErrorKind, Scope};

use self::fixture::{Fixture, KINDS, Kind, Manifest, Offer};
use super::{Extent, LaneChange, Offers, Source, SourceDisposition};

const LANE: LaneId = LaneId(1);

/// Bytes of a file of more than one block, at any block size of a file that small.
const LARGE: usize = (3 << 20) + 7;

/// Returns `count` bytes that differ at neighbouring offsets and for different seeds.
fn pattern(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|at| (at + 1).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7])
        .collect()
}

/// Lists a source to its end. Files get the outcome *skipped* as soon as all are offered.
fn list(source: &Arc<dyn Source>, manifest: &Arc<Manifest>, count: usize) {
    let listing = start_listing(source, manifest);
    manifest.wait_until(|listed| listed.reported() == count && listed.is_digested());
    for offer in manifest.offers() {
        source.handle_settled(offer.id, &FileOutcome::Skipped);
    }
    listing.join().unwrap();
}

fn start_listing(source: &Arc<dyn Source>, manifest: &Arc<Manifest>) -> thread::JoinHandle<()> {
    let (source, offers) = (Arc::clone(source), Arc::clone(manifest) as Arc<dyn Offers>);
    thread::spawn(move || source.list(&offers))
}

/// Lists files that all exist, and returns their offers.
fn offers_of(fixture: &Fixture, names: &[&str]) -> (Arc<dyn Source>, Vec<Offer>) {
    let (source, manifest) = (fixture.source(names), Manifest::with_room(usize::MAX));
    list(&source, &manifest, names.len());
    assert_eq!(manifest.errors(), [""; 0]);
    (source, manifest.offers())
}

/// Reads a file as a whole, as a lane reads a small file.
fn read_whole(offer: &Offer) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; offer.entry.size as usize];
    let mut reader = offer.file.open(Some(LANE), Extent::Whole)?;
    reader.read_at(0, &mut bytes)?;
    reader.check_whole(&offer.entry, &bytes)?;
    Ok(bytes)
}

/// Reads a file block by block, as one lane reads a large file.
fn read_blocks(offer: &Offer, blocks: impl Iterator<Item = u64>) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let map = offer.entry.blocks();
    let mut read = Vec::new();
    for index in blocks {
        let (offset, length) = (map.offset(index), map.length(index));
        let extent = Extent::Run { until: offset + length, is_start_wanted: index == 0 };
        let mut reader = offer.file.open(Some(LANE), extent)?;
        let mut bytes = vec![0; length as usize];
        if reader.is_hole(offset, length)? {
            reader.check_block(&offer.entry)?;
        } else {
            let (first, last) = bytes.split_at_mut(length as usize / 3);
            reader.read_at(offset, first)?;
            reader.read_at(offset + first.len() as u64, last)?;
            reader.check_block(&offer.entry)?;
        }
        read.push((offset, bytes));
    }
    Ok(read)
}

#[test]
fn every_file_is_offered_once_and_its_bytes_are_read_in_any_order() {
    // No byte, one, the largest small file, the smallest large file, several blocks.
    let small = PACKED_FILE_BYTES_MAX as usize;
    let sizes = [("empty", 0), ("one", 1), ("small", small), ("larger", small + 1), ("large", LARGE)];
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        for (seed, (name, size)) in sizes.iter().enumerate() {
            fixture.write(name, &pattern(seed as u64, *size));
        }
        let (source, offers) = offers_of(&fixture, &sizes.map(|(name, _)| name));
        for (seed, (name, size)) in sizes.iter().enumerate() {
            let bytes = pattern(seed as u64, *size);
            let named: Vec<&Offer> =
                offers.iter().filter(|offer| offer.entry.path.as_bytes() == name.as_bytes()).collect();
            let [offer] = named[..] else { panic!("{name} was offered {} times", named.len()) };
            assert_eq!(offer.entry.size, *size as u64);
            assert!(read_whole(offer).unwrap() == bytes, "{name} as a whole");
            source.handle_lane(LANE, LaneChange::Idle);
            let count = offer.entry.blocks().count();
            for order in [(0..count).collect::<Vec<_>>(), (0..count).rev().collect()] {
                for (offset, read) in read_blocks(offer, order.into_iter()).unwrap() {
                    assert!(bytes[offset as usize..].starts_with(&read), "{name} at {offset}");
                }
            }
        }
    }
}

#[test]
fn a_missing_file_is_reported_and_the_others_are_offered() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        fixture.write("there", b"x");
        let (source, manifest) = (fixture.source(&["missing", "there"]), Manifest::with_room(usize::MAX));
        list(&source, &manifest, 2);
        assert_eq!(manifest.offers().len(), 1);
        let errors = manifest.take_errors();
        assert_eq!((errors[0].kind, errors[0].scope), (ErrorKind::NotFound, Scope::Source), "{}", errors[0]);
        assert!(errors[0].to_string().contains("missing"), "{}", errors[0]);
    }
}

#[test]
fn a_source_that_waits_for_room_loses_no_file() {
    let names = ["a", "b", "c", "d"];
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        names.iter().for_each(|name| fixture.write(name, name.as_bytes()));
        let (source, manifest) = (fixture.source(&names), Manifest::with_room(0));
        let listing = start_listing(&source, &manifest);
        for count in 1..=names.len() {
            manifest.add_room();
            manifest.wait_until(|listed| listed.reported() == count);
        }
        manifest.offers().iter().for_each(|offer| source.handle_settled(offer.id, &FileOutcome::Skipped));
        listing.join().unwrap();
        let mut offered: Vec<_> = manifest.offers().iter().map(|offer| offer.entry.path.to_string()).collect();
        offered.sort();
        assert_eq!(offered, names);
    }
}

#[test]
fn a_listing_ends_when_the_session_is_over_even_without_room() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        ["a", "b", "c"].iter().for_each(|name| fixture.write(name, b"x"));
        let (source, manifest) = (fixture.source(&["a", "b", "c"]), Manifest::with_room(1));
        let listing = start_listing(&source, &manifest);
        manifest.wait_until(|listed| listed.reported() == 1);
        manifest.close();
        source.stop();
        listing.join().unwrap();
        assert_eq!((manifest.offers().len(), manifest.errors()), (1, Vec::new()));
    }
}

#[test]
fn a_file_that_changed_after_its_offer_never_passes_as_the_offered_one() {
    for (kind, size) in KINDS.into_iter().flat_map(|kind| [(kind, 9), (kind, LARGE)]) {
        println!("{kind:?}, {size} bytes");
        let fixture = Fixture::new(kind);
        let (before, after) = (pattern(1, size), pattern(2, size));
        fixture.write("file", &before);
        let (_source, offers) = offers_of(&fixture, &["file"]);
        let offer = &offers[0];
        let early = read_blocks(offer, 0..1).unwrap();
        fixture.write("file", &after);
        let last = offer.entry.blocks().count() - 1;
        let whole = read_whole(offer).map(|bytes| vec![(0, bytes)]);
        for read in [Ok(early), whole, read_blocks(offer, last..last + 1)] {
            match read {
                Ok(parts) => {
                    let is_offered = |(at, bytes): &(u64, Vec<u8>)| before[*at as usize..].starts_with(bytes);
                    assert!(parts.iter().all(is_offered), "bytes of two versions");
                }
                Err(error) => assert_eq!((error.kind, error.scope), (ErrorKind::Changed, Scope::Source), "{error}"),
            }
        }
        fixture.write("file", b"short");
        assert!(offer.file.settle(&SourceDisposition::Delete, &offer.entry).is_err(), "another version was deleted");
        assert_eq!(fs::read(fixture.path("file")).unwrap(), b"short");
    }
}

#[test]
fn a_file_that_has_arrived_is_deleted_or_the_source_refuses() {
    for (kind, size) in KINDS.into_iter().flat_map(|kind| [(kind, 9), (kind, LARGE)]) {
        println!("{kind:?}, {size} bytes");
        let fixture = Fixture::new(kind);
        fixture.write("file", &pattern(1, size));
        let (_source, offers) = offers_of(&fixture, &["file"]);
        read_blocks(&offers[0], 0..1).unwrap();
        let settled = offers[0].file.settle(&SourceDisposition::Delete, &offers[0].entry);
        match kind {
            Kind::Web => assert_eq!(settled.unwrap_err().kind, ErrorKind::Usage),
            Kind::Roots | Kind::OnDemand | Kind::Followed => settled.unwrap(),
        }
        assert_eq!(fixture.path("file").exists(), kind == Kind::Web);
    }
}

#[test]
fn a_read_for_a_lane_that_is_down_ends_and_another_lane_reads_the_same() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        let bytes = pattern(1, LARGE);
        fixture.write("file", &bytes);
        let (source, offers) = offers_of(&fixture, &["file"]);
        let last = offers[0].entry.blocks().count() - 1;
        let is_read = |read: Result<Vec<(u64, Vec<u8>)>, Error>| match read {
            Ok(parts) => parts.iter().all(|(at, part)| bytes[*at as usize..].starts_with(part)),
            Err(error) => error.kind == ErrorKind::Cancelled,
        };
        source.handle_lane(LANE, LaneChange::Down);
        assert!(is_read(read_blocks(&offers[0], last..last + 1)), "while the lane is down");
        source.handle_lane(LANE, LaneChange::Ended);
        assert!(read_blocks(&offers[0], last..last + 1).is_ok(), "after the lane has ended");
        source.stop();
        assert!(is_read(read_blocks(&offers[0], 0..1)), "after the end of the session");
    }
}

#[test]
fn a_source_reports_the_outcome_of_an_unknown_file_to_nobody() {
    for kind in KINDS {
        println!("{kind:?}");
        let fixture = Fixture::new(kind);
        fixture.write("file", b"x");
        let (source, offers) = offers_of(&fixture, &["file"]);
        source.handle_settled(FileId(u64::from(u32::MAX)), &FileOutcome::Skipped);
        assert_eq!(read_whole(&offers[0]).unwrap(), b"x");
    }
}
