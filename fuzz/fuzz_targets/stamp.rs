//! Fuzzes packets of STAMP. The parsers never panic. A reply has the size of its packet and repeats its fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::stamp;

fuzz_target!(|bytes: &[u8]| stamp(bytes));
