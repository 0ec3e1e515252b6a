//! Fuzzes the block header, including its manifest entries. The decoder never panics, and a decoded header round-trips.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::session::BlockHeader;

fuzz_target!(|input: (u64, &[u8])| {
    let (data_len, bytes) = input;
    let Ok(header) = BlockHeader::decode(bytes, data_len) else { return };
    assert_eq!(BlockHeader::decode(&header.encode(), data_len).ok(), Some(header));
});
