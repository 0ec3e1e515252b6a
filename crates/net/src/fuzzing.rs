//! Entry points of the fuzz targets into private parsers. Not part of the API.

use sterna_proto::Error;

use crate::lane::quic::{FuzzStep, fuzz_stretches};

/// One step of a peer on QUIC streams. The fields are the stream, the front of a new stretch, bytes, the number of
/// zeros that follow, and true if the stream ends. A front has the block, the length of its data, the index, and the
/// length of its header.
pub type StreamStep<'a> = (u8, Option<(u64, u64, u32, u32)>, &'a [u8], usize, bool);

/// Processes the steps of a peer on QUIC streams. Panics if the contract of a sink is broken.
pub fn quic_streams<'a>(steps: impl IntoIterator<Item = StreamStep<'a>>) -> Result<(), Error> {
    let step = |(stream, front, bytes, zeros, ends)| FuzzStep { stream, front, bytes, zeros, ends };
    fuzz_stretches(steps.into_iter().map(step))
}

/// Parses the head of a web server's response. Panics if the result contradicts itself.
pub fn web_reply(input: &[u8]) {
    crate::web::fuzz_reply(input);
}

/// Follows a redirect from an encrypted server. Panics if it leads to an unencrypted one.
pub fn web_redirect(location: &str) {
    crate::web::fuzz_redirect(location);
}

/// Parses the messages of a test of iperf3: a state, parameters, results, and the head of a datagram. Panics if a plan
/// exceeds the limits of an agent.
pub fn iperf3(input: &[u8]) {
    crate::measure::iperf3::fuzz(input);
}

/// Parses a packet of STAMP, as a reflector and as a sender. Panics if a reply differs from its packet where it may
/// not.
pub fn stamp(input: &[u8]) {
    crate::measure::fuzz_stamp(input);
}

/// Reads the frames of a peer of NDT7, as a client (true) or as a server, and the measurements in them. Panics if there
/// are more or larger ones than a test has.
pub fn ndt7(input: &[u8], is_client: bool) {
    crate::measure::ndt7::fuzz(input, is_client);
}
