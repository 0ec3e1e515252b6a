//! Fuzzes input from a peer on QUIC streams. It never panics and never violates the contract of a sink: no byte twice
//! and no byte beyond its block.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_net::fuzzing::quic_streams;

const STRETCH_BYTES: u64 = 1 << 20;

/// Stream, kind of step, block, length of the block's data, index of the stretch, number of bytes that follow.
type Step = (u8, u8, u8, u32, u8, u16);

fuzz_target!(|input: (Vec<Step>, &[u8])| {
    let (steps, mut rest) = input;
    let steps = steps.into_iter().map(|(stream, kind, block, length, index, count)| {
        let count = usize::from(count);
        // Few streams and blocks, so that they collide. Blocks have less than 3 MiB: up to three stretches.
        let (block, data_len) = (u64::from(block % 8), u64::from(length % (3 << 20)));
        let index = if index == 255 { u32::MAX } else { u32::from(index % 4) };
        let stretch = data_len.saturating_sub(u64::from(index).saturating_mul(STRETCH_BYTES)).min(STRETCH_BYTES);
        let (head, tail) = rest.split_at(count.min(rest.len()));
        let (bytes, zeros) = match kind % 4 {
            // All data of the stretch.
            0 => (&[][..], stretch as usize),
            1 => (&[][..], count),
            _ => (head, 0),
        };
        rest = if kind % 4 >= 2 { tail } else { rest };
        let header = if kind & 16 == 0 { 0 } else { u32::try_from(bytes.len()).unwrap_or(0) };
        let front = (kind & 4 == 0).then_some((block, data_len, index, header));
        (stream % 8, front, bytes, zeros, kind & 8 == 0)
    });
    let _ = quic_streams(steps);
});
