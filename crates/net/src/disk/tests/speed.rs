//! Measurements, run by hand: `cargo test --release -p sterna-net disk::tests::speed -- --ignored --nocapture`.
//! `STERNA_SPEED_DIRECTORY` selects the file system.

use std::time::Instant;

use sterna_proto::BlockHasher;

use super::*;

fn directory() -> TempDir {
    match std::env::var_os("STERNA_SPEED_DIRECTORY") {
        Some(path) => tempfile::Builder::new().prefix("speed-").tempdir_in(path).unwrap(),
        None => scratch(),
    }
}

#[test]
#[ignore = "a measurement"]
fn digests_of_slices_of_256_kib() {
    let data = pattern(256 << 10);
    let blocks = BlockMap::new(1 << 40);
    let rounds = 8192u64;
    for (name, checks) in [
        ("blake3", Checks::NONE),
        ("blake3 + adler32", Checks { adler32: true, ..Checks::NONE }),
        ("blake3 + crc32c", Checks { crc32c: true, ..Checks::NONE }),
        ("blake3 + adler32 + crc32c", Checks { adler32: true, crc32c: true, ..Checks::NONE }),
    ] {
        let began = Instant::now();
        for index in 0..rounds / 64 {
            let mut hasher = BlockHasher::new(&blocks, index, checks);
            (0..64).for_each(|_| hasher.update(&data));
            std::hint::black_box(hasher.finish());
        }
        let rate = (rounds * data.len() as u64) as f64 / began.elapsed().as_secs_f64() / 1e9;
        println!("{name}: {rate:.2} GB/s");
    }
}

#[test]
#[ignore = "a measurement"]
fn ten_thousand_files_of_100_kb() {
    let data = pattern(100_000);
    for batch_files in [10, 80, 256, 10_000] {
        let directory = directory();
        let destination = writable(&directory);
        let began = Instant::now();
        let mut batch = destination.packed(Overwrite::IfChanged, Checks::NONE);
        let blake3 = Some(*blake3::hash(&data).as_bytes());
        for i in 0..10_000 {
            let entry = file_entry(format!("{:02}/{i:05}", i % 10), 100_000);
            batch.add(PackedFile { entry: &entry, data: &data, blake3, expected: &[], seen: Seen::default() });
            if i % batch_files == batch_files - 1 {
                assert!(batch.publish().iter().all(Result::is_ok));
            }
        }
        assert!(batch.publish().iter().all(Result::is_ok));
        let seconds = began.elapsed().as_secs_f64();
        println!("published every {batch_files} files: {seconds:.2} s, {:.2} GB/s", 1.0 / seconds);
    }
}

#[test]
#[ignore = "a measurement"]
fn one_file_of_2_gib_with_a_checkpoint_every_64_blocks() {
    let directory = directory();
    let destination = writable(&directory);
    let entry = file_entry("a.h5", 2 << 30);
    let file = incoming(&destination, &entry);
    let data = pattern(file.blocks().block_bytes());
    let digest = BlockDigest::of(&file.blocks(), 0, file.checks(), &data);
    let began = Instant::now();
    for index in 0..file.blocks().count() {
        let start = file.blocks().offset(index);
        data.chunks(256 << 10).enumerate().for_each(|(i, d)| file.write_at(start + i as u64 * (256 << 10), d).unwrap());
        file.record(index, digest).unwrap();
        if index % 64 == 63 {
            file.checkpoint().unwrap();
        }
    }
    let written = began.elapsed().as_secs_f64();
    file.publish(&[]).unwrap();
    let published = began.elapsed().as_secs_f64();
    println!("written in {written:.2} s, published in {published:.2} s: {:.2} GB/s", 2.147 / published);
}
