//! Fuzzes messages of an iperf3 client and server. The parsers never panic, and a plan is within the limits of an
//! agent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::iperf3;

fuzz_target!(|bytes: &[u8]| iperf3(bytes));
