//! Entry point of the fuzz target, see [`crate::fuzzing::iperf3`].

use super::client::{datagrams_of, outcome};
use super::message::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, Params, Results, State};
use super::udp::{Counts, read_head};
use crate::measure::flow::Role;
use crate::measure::{STREAMS_MAX, TIME_MAX};

/// Parses the messages of a hostile peer.
pub(crate) fn fuzz(input: &[u8]) {
    if let Some(byte) = input.first() {
        assert!(State::of(*byte).is_none_or(|state| state.byte() == *byte));
    }
    for is_long in [false, true] {
        if let Some((departure, number)) = read_head(input, is_long) {
            let mut counts = Counts::default();
            counts.add(number, departure, input.len() as u64);
            counts.add(number.wrapping_add(1), 0.0, input.len() as u64);
        }
    }
    if let Ok(params) = serde_json::from_slice::<Params>(input)
        && let Ok(plan) = params.plan()
    {
        assert!((1..=STREAMS_MAX).contains(&plan.streams) && plan.omit < TIME_MAX && plan.time <= TIME_MAX, "{plan:?}");
        let sizes = DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX;
        assert!(plan.datagrams.is_none_or(|of| sizes.contains(&(of.bytes as u64)) && of.rate_bps > 0));
    }
    if let Ok(results) = serde_json::from_slice::<Results>(input) {
        for (role, ours) in [(Role::Sends, &Results::default()), (Role::Receives, &results)] {
            outcome(role, ours, &results);
        }
        datagrams_of(&results, None);
    }
}
