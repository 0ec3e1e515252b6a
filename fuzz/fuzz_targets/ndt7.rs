//! Fuzzes frames of NDT7, and the measurements in them. They never panic, and exceed no limit of a test.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::ndt7;

fuzz_target!(|bytes: &[u8]| {
    for is_client in [true, false] {
        ndt7(bytes, is_client);
    }
});
