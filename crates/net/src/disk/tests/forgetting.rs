use sterna_proto::RangeSet;

use super::*;

fn blocks(range: std::ops::Range<u64>) -> RangeSet {
    let mut blocks = RangeSet::new();
    blocks.insert(range);
    blocks
}

#[test]
fn a_block_that_was_forgotten_is_in_no_journal_and_not_in_the_digest() {
    let directory = scratch();
    let destination = writable(&directory);
    let (data, mut other) = (pattern(6 * MIB + 1), pattern(6 * MIB + 1));
    other[2 * MIB as usize] ^= 1;
    let entry = file_entry("a.h5", 6 * MIB + 1);
    let file = incoming(&destination, &entry);
    file.keep_digests();
    (0..5).for_each(|index| put_block(&file, if index == 2 { &other } else { &data }, index));
    assert_eq!(file.checkpoint().unwrap(), 5);
    put_block(&file, &data, 6);
    file.forget(&blocks(1..3)).unwrap();
    drop(file);

    // The next session finds the correct blocks, also those that no earlier checkpoint made durable.
    let file = incoming(&destination, &entry);
    file.keep_digests();
    assert_eq!(file.have(), [0..1, 3..5, 6..7].into_iter().collect());
    // Blocks that were not read yet are forgotten too.
    file.forget(&blocks(3..4)).unwrap();
    assert_eq!(recheck(&file), [0u64; 0]);
    [1, 2, 3, 5].into_iter().for_each(|index| put_block(&file, &data, index));
    let whole = sterna_proto::FileDigests::of(&data, Checks::NONE);
    let expected: Vec<_> = whole.iter().collect();
    file.verify(&expected).unwrap();
    assert_eq!(file.publish(&expected).unwrap().blake3, whole.blake3);
    assert_matches_entry(&directory.path().join("a.h5"), &entry, &data);
}
