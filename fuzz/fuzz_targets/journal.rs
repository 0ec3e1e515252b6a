//! Fuzzes the journal as read from a damaged disk. The decoder never panics, and decoded headers and records
//! round-trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_proto::journal::{HEADER_BYTES, JournalHeader, RECORD_BYTES};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = JournalHeader::decode(bytes) else { return };
    assert_eq!(JournalHeader::decode(&header.encode()).ok().as_ref(), Some(&header));
    let codec = header.records();
    for record in bytes[HEADER_BYTES..].chunks(RECORD_BYTES).filter_map(|bytes| codec.decode(bytes)) {
        assert_eq!(codec.decode(&codec.encode(&record)).as_ref(), Some(&record));
    }
});
