//! Results of this end, in the words of iperf3.

use std::time::Duration;

use super::COOKIE_BYTES;
use super::message::{StreamResult, stream_id};
use super::udp::Counts;
use crate::measure::flow::Role;
use crate::measure::message::StreamReport;

/// End of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Client,
    Server,
}

/// Returns the results of a stream over TCP, without the time to omit.
pub(super) fn tcp_result(index: usize, stream: &StreamReport, role: Role, omit: Duration, end: Ends) -> StreamResult {
    let omit_us = u64::try_from(omit.as_micros()).unwrap_or(u64::MAX);
    let before = match omit_us {
        0 => None,
        _ => stream.samples.iter().find(|sample| sample.at_us >= omit_us),
    };
    let last = stream.samples.last().copied().unwrap_or_default();
    // The kernel counts the cookie, and at the end that connects the SYN.
    let head = match (end, role) {
        (Ends::Client, Role::Sends) => COOKIE_BYTES as u64 + 1,
        (Ends::Server, Role::Receives) => COOKIE_BYTES as u64,
        _ => 0,
    };
    let end_time = Duration::from_micros(last.at_us.saturating_sub(omit_us)).as_secs_f64();
    let result = StreamResult { id: stream_id(index), end_time, retransmits: -1, ..StreamResult::default() };
    match role {
        Role::Sends => {
            let resent = last.resent.saturating_sub(before.map_or(0, |sample| sample.resent));
            let bytes = last.acked.saturating_sub(before.map_or(head, |sample| sample.acked));
            StreamResult { bytes, retransmits: i64::try_from(resent).unwrap_or(i64::MAX), ..result }
        }
        Role::Receives => StreamResult {
            bytes: last.received.saturating_sub(before.map_or(head, |sample| sample.received)),
            ..result
        },
    }
}

/// Returns the results of a stream over UDP, without its time.
pub(super) fn udp_result(index: usize, counts: &Counts) -> StreamResult {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    StreamResult {
        id: stream_id(index),
        bytes: counts.bytes,
        retransmits: -1,
        jitter: counts.jitter,
        errors: signed(counts.lost),
        omitted_errors: signed(counts.omitted.1),
        packets: signed(counts.highest),
        omitted_packets: signed(counts.omitted.0),
        ..StreamResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::message::FlowSample;

    #[test]
    fn the_cookie_and_the_time_to_omit_do_not_count() {
        let sample =
            |at_us, acked, received, resent| FlowSample { at_us, acked, received, resent, ..FlowSample::default() };
        let samples = vec![sample(0, 38, 37, 0), sample(1_000_000, 1038, 1037, 5), sample(3_000_000, 9038, 9037, 7)];
        let stream = StreamReport { samples, ..StreamReport::default() };
        let result = |role, omit, end| {
            let result = tcp_result(1, &stream, role, Duration::from_secs(omit), end);
            (result.id, result.bytes, result.retransmits, result.end_time)
        };
        assert_eq!(result(Role::Sends, 0, Ends::Client), (3, 9000, 7, 3.0));
        assert_eq!(result(Role::Receives, 0, Ends::Server), (3, 9000, -1, 3.0));
        assert_eq!(result(Role::Sends, 1, Ends::Server), (3, 8000, 2, 2.0));
        assert_eq!(tcp_result(0, &StreamReport::default(), Role::Sends, Duration::ZERO, Ends::Client).bytes, 0);
    }
}
