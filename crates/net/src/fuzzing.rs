//! Entries for the fuzz targets into parsers that are private. No part of the API.

use sterna_proto::Error;

use crate::lane::quic::{FuzzStep, fuzz_stretches};

/// One step of a peer on QUIC streams: stream, the front of a new stretch (block, length of its data, index, length of its header), bytes, how many
/// zeros follow, and whether the stream ends.
pub type StreamStep<'a> = (u8, Option<(u64, u64, u32, u32)>, &'a [u8], usize, bool);

/// Takes what a peer sends on QUIC streams; panics when the contract of a sink is broken.
pub fn quic_streams<'a>(steps: impl IntoIterator<Item = StreamStep<'a>>) -> Result<(), Error> {
    let step = |(stream, front, bytes, zeros, ends)| FuzzStep { stream, front, bytes, zeros, ends };
    fuzz_stretches(steps.into_iter().map(step))
}

/// Reads the head of an answer of a web server; panics when what is read contradicts itself.
pub fn web_reply(input: &[u8]) {
    crate::web::fuzz_reply(input);
}

/// Follows a redirect from an encrypted server; panics when it leads to one that is not.
pub fn web_redirect(location: &str) {
    crate::web::fuzz_redirect(location);
}
