//! View of a download at its receiver: rate, window of this end, order and evenness of arrival.

use serde::Serialize;
use sterna_net::measure::any_server::DownloadReport;
use sterna_net::measure::{FlowReport, FlowSample, StreamReport};

use crate::view::median;

/// Part of a download that counts as its steady state, from its end. Reason: slow start fills the first half.
const STEADY: f64 = 0.5;

/// Part of the window that arrives in a round trip if the window is the limit. Reason: the smallest round trip is a
/// little shorter than those in which data arrived.
const FULL: f64 = 0.8;

/// Shortest download with a rate, seconds. Reason: ten samples, and some round trips of most paths.
const SECONDS_MIN: f64 = 0.5;

/// Interval in which arrivals are compared, microseconds. Reason: several round trips and four samples.
const EVERY_US: u64 = 200_000;

/// Properties of a download. Rates are payload in bit/s, shares parts from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DownloadView {
    /// Connections at once.
    pub streams: u32,
    /// Rate of all connections together, in the second half.
    pub measured_bps: u64,
    /// Rate of the last quarter, as a multiple of the quarter before it.
    pub growth: f64,
    /// Share of the steady time in which a whole window of this end arrived in each round trip.
    pub window_share: f64,
    /// Largest window that this end announced, of one connection, bytes; 0: its kernel is older than 6.2.
    pub window_bytes: u64,
    /// Largest receive buffer of a connection, bytes.
    pub receive_buffer: u64,
    /// Median of received data that the program had not read, as part of the buffer.
    pub unread: f64,
    /// Smallest round trip, seconds.
    pub rtt_s: f64,
    /// Median of the round trip under load, as this end estimates it, seconds; 0: not known.
    pub loaded_rtt_s: f64,
    /// Part of the segments that arrived out of order: after a loss, or overtaken.
    pub out_of_order: f64,
    /// Deviation of the rate from its mean, as part of the mean, in steps of 200 ms.
    pub unevenness: f64,
    /// Mean payload of a segment, bytes.
    pub segment: u32,
    /// Bytes of the file received.
    pub received_bytes: u64,
    /// Time, seconds.
    pub seconds: f64,
    /// Requests sent.
    pub requests: u64,
    /// The file ended early: pauses between requests are part of the rate.
    pub is_short: bool,
    /// Reason for which a connection ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl DownloadView {
    /// Returns the view of a download.
    pub fn new(report: &DownloadReport) -> Self {
        let near = &report.near;
        let end = end_us(near);
        let from = (end as f64 * (1.0 - STEADY)) as u64;
        let quarter = end / 4;
        let samples = || near.streams.iter().flat_map(|stream| &stream.samples);
        let largest = |of: fn(&FlowSample) -> u64| samples().map(of).max().unwrap_or(0);
        let steady = |of: &dyn Fn(&FlowSample) -> f64| {
            median(samples().filter(|sample| sample.at_us >= from).map(of).filter(|value| value.is_finite()).collect())
        };
        let last = |of: fn(&FlowSample) -> u64| {
            near.streams.iter().filter_map(|stream| stream.samples.last()).map(of).sum::<u64>()
        };
        let segments = last(|sample| sample.data_segments_in).max(1);
        Self {
            streams: report.streams,
            measured_bps: rate(near, from, end) as u64,
            growth: rate(near, end - quarter, end) / rate(near, end - 2 * quarter, end - quarter).max(1.0),
            window_share: window_share(near, from, end),
            window_bytes: largest(|sample| sample.own_window),
            receive_buffer: largest(|sample| sample.receive_buffer),
            unread: steady(&|sample| sample.unread as f64 / (sample.receive_buffer as f64).max(1.0)),
            rtt_s: least_rtt_us(near) as f64 / 1e6,
            loaded_rtt_s: steady(&|sample| sample.receiver_rtt_us as f64 / 1e6),
            out_of_order: last(|sample| sample.out_of_order) as f64 / segments as f64,
            unevenness: unevenness(near, from, end),
            segment: u32::try_from(last(|sample| sample.received) / segments).unwrap_or(u32::MAX),
            received_bytes: report.bytes,
            seconds: report.time.as_secs_f64(),
            requests: report.requests,
            is_short: report.is_short,
            failure: report.failure.clone(),
        }
    }

    /// Returns true if the file was too small for a rate.
    pub fn is_too_short(&self) -> bool {
        // Further requests of a connection are for the same small file again: their rate is that of requests.
        self.seconds < SECONDS_MIN || self.requests > 2 * u64::from(self.streams)
    }

    /// Returns the rate of one connection, bit/s.
    pub fn each_bps(&self) -> f64 {
        self.measured_bps as f64 / f64::from(self.streams.max(1))
    }
}

fn end_us(near: &FlowReport) -> u64 {
    near.streams.iter().filter_map(|stream| stream.samples.last()).map(|sample| sample.at_us).max().unwrap_or(0)
}

fn least_rtt_us(near: &FlowReport) -> u64 {
    let all = near.streams.iter().flat_map(|stream| &stream.samples);
    all.map(|sample| sample.rtt_min_us).filter(|rtt| *rtt > 0).min().unwrap_or(0)
}

/// Returns the bytes that a stream has received at a time, between samples in proportion.
fn received_at(stream: &StreamReport, at_us: u64) -> f64 {
    let next = stream.samples.partition_point(|sample| sample.at_us < at_us);
    let Some(after) = stream.samples.get(next) else {
        return stream.samples.last().map_or(0.0, |last| last.received as f64);
    };
    let Some(before) = next.checked_sub(1).and_then(|index| stream.samples.get(index)) else {
        return after.received as f64;
    };
    let part = (at_us - before.at_us) as f64 / after.at_us.saturating_sub(before.at_us).max(1) as f64;
    before.received as f64 + part * after.received.saturating_sub(before.received) as f64
}

/// Returns the rate of all streams between two times, bit/s.
fn rate(near: &FlowReport, from: u64, to: u64) -> f64 {
    let received = |at| near.streams.iter().map(|stream| received_at(stream, at)).sum::<f64>();
    (received(to) - received(from)).max(0.0) * 8e6 / to.saturating_sub(from).max(1) as f64
}

/// Returns the share of the steady intervals in which a whole window arrived in each round trip.
fn window_share(near: &FlowReport, from: u64, end: u64) -> f64 {
    let rtt = least_rtt_us(near);
    // A window arrives at once on some paths, and then nothing for a round trip.
    let every = EVERY_US.max(rtt * 2);
    let starts = (0..end.saturating_sub(from) / every).map(|index| from + index * every);
    let is_full = |stream: &StreamReport, at: u64| {
        let arrived = received_at(stream, at + every) - received_at(stream, at);
        let next = stream.samples.partition_point(|sample| sample.at_us < at + every);
        let window = stream.samples.get(next).or(stream.samples.last()).map_or(0, |sample| sample.own_window);
        window > 0 && arrived / every as f64 * rtt as f64 > window as f64 * FULL
    };
    let full: Vec<bool> = starts.flat_map(|at| near.streams.iter().map(move |stream| is_full(stream, at))).collect();
    full.iter().filter(|is_full| **is_full).count() as f64 / full.len().max(1) as f64
}

/// Returns the deviation of the rate from its mean, as part of the mean.
fn unevenness(near: &FlowReport, from: u64, end: u64) -> f64 {
    let count = end.saturating_sub(from) / EVERY_US;
    let rates: Vec<f64> =
        (0..count).map(|index| rate(near, from + index * EVERY_US, from + (index + 1) * EVERY_US)).collect();
    let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len().max(1) as f64;
    square.sqrt() / mean.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a download of 4 s at an even rate through a window, over 100 ms.
    fn even(bytes_a_second: u64, own_window: u64) -> DownloadReport {
        let sample = |index: u64| FlowSample {
            at_us: index * 50_000,
            received: bytes_a_second * index / 20,
            data_segments_in: bytes_a_second * index / 20 / 1448,
            out_of_order: index,
            own_window,
            receive_buffer: own_window * 10 / 9,
            rtt_min_us: 100_000,
            receiver_rtt_us: 110_000,
            ..FlowSample::default()
        };
        let streams = vec![StreamReport { samples: (0..=80).map(sample).collect(), ..StreamReport::default() }];
        let near = FlowReport { streams, ..FlowReport::default() };
        DownloadReport { streams: 1, near, ..DownloadReport::default() }
    }

    #[test]
    fn a_window_that_comes_in_every_round_trip_is_full() {
        let full = DownloadView::new(&even(10_000_000, 1_000_000));
        assert_eq!((full.measured_bps, full.window_share, full.window_bytes), (80_000_000, 1.0, 1_000_000));
        assert!((full.growth - 1.0).abs() < 1e-6 && full.unevenness < 1e-6, "{full:?}");
        assert_eq!((full.rtt_s, full.loaded_rtt_s, full.segment), (0.1, 0.11, 1448));
        let open = DownloadView::new(&even(10_000_000, 3_000_000));
        assert_eq!(open.window_share, 0.0);
        // A kernel that does not report its windows.
        assert_eq!(DownloadView::new(&even(10_000_000, 0)).window_share, 0.0);
        assert_eq!(DownloadView::new(&DownloadReport::default()).measured_bps, 0);
    }
}
