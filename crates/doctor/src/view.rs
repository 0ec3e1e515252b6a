//! View of a flow: rates, shares of time, windows and losses, from the samples of both ends.

use std::time::Duration;

use sterna_net::measure::{FlowPair, FlowReport, FlowSample, SAMPLE_EVERY, StreamReport};

use crate::response::bbr_share;

/// Part of a flow that counts as its steady state, from its end. Reason: slow start fills the first half on long paths.
const STEADY: f64 = 0.5;

/// Share of the time in which a window is the limit.
const LIMITED: f64 = 0.25;

/// Share of the time in which a window is the only limit.
const MOSTLY: f64 = 0.5;

/// Part of a window that is in flight when it is the limit.
const IN_FLIGHT: f64 = 0.85;

/// Part of a full send buffer that is payload in flight. Source: `sterna_proto::limit`, less what waits unsent: with
/// bbr, 0.7 of the buffer was in flight in the lab.
const SENT: f64 = 0.65;

/// Part of the receive buffer with data that is not read.
const UNREAD: f64 = 0.3;

/// Part of the steady rate at which the ramp has ended.
const RAMP_ENDS: f64 = 0.8;

/// Multiple of the bytes that the number of segments gives at which the segments were larger. Reason: a window that is
/// received and not acknowledged yet is less than a tenth of a flow.
const LARGER: f64 = 1.2;

/// Congestion window up to which bbr measures the round trip, segments. Source: `bbr_cwnd_min_target` of Linux is 4.
const PROBE_SEGMENTS: f64 = 4.5;

/// Least time in which bbr measures the round trip, microseconds. Source: `bbr_probe_rtt_mode_ms` of Linux.
const PROBE_US: u64 = 200_000;

/// Time of a flow before which bbr does not measure the round trip again, microseconds. Reason: it does so 10 s after
/// the handshake, which is up to some seconds before the flow.
const PROBES_FROM_US: u64 = 5_000_000;

/// Interval of the rate series, microseconds. Reason: four samples of a stream.
pub const SERIES_EVERY_US: u64 = 200_000;

/// Maximum length of the rate series. Reason: the longest flow, twice; an agent may report any time.
const SERIES_MAX: usize = 600;

/// Properties of a flow. Rates are payload in bit/s, sizes bytes, times seconds, shares parts from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowView {
    /// Rate of delivery in the second half of the flow. With bbr, as over a long time: its pauses are rare, and a flow
    /// has one or none of them.
    pub rate_bps: f64,
    /// Rate of sending in the second half of the flow, with segments sent again.
    pub sent_bps: f64,
    /// Rate of delivery by time: 200 ms each.
    pub series_bps: Vec<f64>,
    /// Time until the rate had 80 % of its steady value.
    pub ramp_s: f64,
    /// Rate of the last quarter, as a multiple of the quarter before it.
    pub growth: f64,
    /// Share of the steady time in which the window of the receiver was the limit.
    pub peer_window_share: f64,
    /// Share of the steady time in which the send buffer was the limit.
    pub send_buffer_share: f64,
    /// Share of the steady time in which the sender had data to send.
    pub busy_share: f64,
    /// Smallest round trip.
    pub rtt_min_s: f64,
    /// Median of the round trip in the steady time.
    pub rtt_s: f64,
    /// Segments with data, with those sent again.
    pub segments: u64,
    /// Segments with data that were lost.
    pub lost: u64,
    /// Segments sent again without need.
    pub spurious: u64,
    /// Segments lost before the end of the ramp: slow start overshoots.
    pub lost_in_ramp: u64,
    /// Segments of the receiver (acknowledgements), and those that arrived.
    pub acks_sent: u64,
    /// Acknowledgements that arrived.
    pub acks_received: u64,
    /// Events of reordering that the sender detected.
    pub reordered: u64,
    /// Median of the data in flight in the steady time, all streams.
    pub in_flight: f64,
    /// Median of the congestion window, all streams.
    pub window: f64,
    /// Largest window that the receiver announced, all streams.
    pub peer_window: f64,
    /// Largest receive buffer of a stream.
    pub receive_buffer: u64,
    /// Median of unread data in the receive buffer, as part of the buffer.
    pub unread: f64,
    /// Largest send buffer of a stream.
    pub send_buffer: u64,
    /// Payload of a full segment.
    pub mss: u32,
    /// Congestion control of the sender.
    pub congestion: String,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Window scaling is in use.
    pub window_scaling: bool,
    /// Load of the sender's host.
    pub sender: Load,
    /// Load of the receiver's host.
    pub receiver: Load,
    /// Longest pause of either end.
    pub pause_s: f64,
    /// Errors of streams.
    pub errors: Vec<String>,
}

/// Load of a host during a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Processor time of our process, in processors.
    pub process: f64,
    /// Processor time of all programs, in processors.
    pub host: f64,
    /// Part of the samples that were late: the process had no processor when it was due.
    pub late: f64,
}

impl Load {
    fn of(report: &FlowReport) -> Self {
        let time = report.time_us.max(1) as f64;
        Self {
            process: report.cpu_us as f64 / time,
            host: report.host_busy_us as f64 / time,
            late: late(&report.streams),
        }
    }
}

/// Rates of a flow, bit/s, and times in seconds.
struct Rates {
    from: f64,
    end: f64,
    steady: f64,
    growth: f64,
    series: Vec<f64>,
    ramp_s: f64,
}

impl Rates {
    fn of(pair: &FlowPair, time_s: f64) -> Self {
        let end = end_of(pair, time_s);
        let from = end * (1.0 - STEADY);
        let received = |at: f64| -> f64 { sum(&pair.receiver.streams, |stream| at_time(stream, at, |s| s.received)) };
        let mss = pair.sender.streams.first().map_or(0.0, |stream| f64::from(stream.mss));
        // Data behind a hole counts as received when the hole is repaired, and then all at once. The sender knows what
        // arrived from selective acknowledgements.
        let delivered =
            |at: f64| -> f64 { sum(&pair.sender.streams, |stream| at_time(stream, at, |s| s.delivered)) * mss };
        // Segments over loopback become larger with the window, so their number times the first size is too little.
        let grew = received(end) > delivered(end) * LARGER;
        let counts = |at: f64| if grew { received(at) } else { delivered(at) };
        let pauses = match &pair.sender.streams[..] {
            [stream] if !grew => pauses_of_bbr(stream),
            _ => Vec::new(),
        };
        let share = bbr_share(Duration::from_secs_f64(least(&pair.sender.streams, |s| s.rtt_min_us) / 1e6));
        let rate = |from: f64, to: f64| {
            let (length, arrived) = ((to - from).max(1e-3), (counts(to) - counts(from)) * 8.0);
            let within = pauses.iter().map(|(start, end)| (start.clamp(from, to), end.clamp(from, to)));
            let (paused, few) = within.fold((0.0, 0.0), |(time, bits), (start, end)| {
                (time + end - start, bits + (counts(end) - counts(start)) * 8.0)
            });
            if pauses.is_empty() || paused > length * 0.5 {
                return arrived / length;
            }
            (arrived - few) / (length - paused) * share
        };
        let (steady, series, quarter) = (rate(from, end), rates(end, &counts), end / 4.0);
        Self {
            from,
            end,
            steady,
            growth: rate(end - quarter, end) / rate(end - 2.0 * quarter, end - quarter).max(1.0),
            ramp_s: ramp(&series, steady),
            series,
        }
    }
}

impl FlowView {
    /// Returns the view of a flow that should last `time_s`.
    pub fn new(pair: &FlowPair, time_s: f64) -> Self {
        let Rates { from, end, steady, growth, series, ramp_s } = Rates::of(pair, time_s);
        let senders = &pair.sender.streams;
        // Losses of slow start are known, and repaired, two round trips later.
        let ramp_end = ramp_s + 0.5 + 2.0 * least(senders, |s| s.rtt_min_us) / 1e6;
        let share = |of: fn(&FlowSample) -> u64| {
            let each = |stream: &StreamReport| (at_time(stream, end, of) - at_time(stream, from, of)) / 1e6;
            sum(senders, each) / (end - from).max(1e-3) / senders.len().max(1) as f64
        };
        let steady_median = |stream: &StreamReport, of: &dyn Fn(&FlowSample) -> f64| {
            let in_time = |sample: &&FlowSample| (from..=end).contains(&seconds(sample.at_us));
            median(stream.samples.iter().filter(in_time).map(of).collect())
        };
        let receivers = &pair.receiver.streams;
        let of_first = senders.first().cloned().unwrap_or_default();
        Self {
            rate_bps: steady,
            growth,
            series_bps: series,
            ramp_s,
            sent_bps: sum(senders, |stream| {
                let out = |at| at_time(stream, at, |s| s.data_segments_out);
                (out(end) - out(from)) * f64::from(stream.mss) * 8.0
            }) / (end - from).max(1e-3),
            peer_window_share: share(|s| s.peer_window_limited_us),
            send_buffer_share: share(|s| s.send_buffer_limited_us),
            busy_share: share(|s| s.busy_us),
            rtt_min_s: least(senders, |s| s.rtt_min_us) / 1e6,
            rtt_s: median(senders.iter().map(|stream| steady_median(stream, &|s| s.rtt_us as f64)).collect()) / 1e6,
            segments: last(senders, |s| s.data_segments_out),
            lost: lost_of(pair),
            spurious: last(senders, |s| s.duplicates),
            lost_in_ramp: sum(senders, |stream| at_time(stream, ramp_end, |s| s.resent)) as u64,
            acks_sent: last(receivers, |s| s.segments_out),
            acks_received: last(senders, |s| s.segments_in),
            reordered: last(senders, |s| s.reordered),
            in_flight: sum(senders, |stream| steady_median(stream, &|s| s.in_flight as f64)),
            window: sum(senders, |stream| steady_median(stream, &|s| s.window as f64)),
            peer_window: sum(senders, |stream| stream.samples.iter().map(|s| s.peer_window).max().unwrap_or(0) as f64),
            receive_buffer: largest(receivers, |s| s.receive_buffer),
            unread: median(
                receivers
                    .iter()
                    .map(|stream| steady_median(stream, &|s| s.unread as f64 / (s.receive_buffer as f64).max(1.0)))
                    .collect(),
            ),
            send_buffer: largest(senders, |s| s.send_buffer),
            mss: of_first.mss,
            congestion: of_first.congestion,
            sack: of_first.sack,
            timestamps: of_first.timestamps,
            window_scaling: of_first.window_scaling,
            sender: Load::of(&pair.sender),
            receiver: Load::of(&pair.receiver),
            pause_s: pair.sender.pause_us.max(pair.receiver.pause_us) as f64 / 1e6,
            errors: senders.iter().chain(receivers).filter_map(|stream| stream.error.clone()).collect(),
        }
    }

    /// Returns true if the sender used BBR, whichever version of it.
    pub fn is_bbr(&self) -> bool {
        is_bbr(&self.congestion)
    }

    /// Returns true if the window of the receiver is the limit.
    pub fn is_window_limited(&self) -> bool {
        self.peer_window_share >= LIMITED || self.in_flight >= self.peer_window * IN_FLIGHT
    }

    /// Returns true if the send buffer is the limit.
    pub fn is_buffer_limited(&self) -> bool {
        // The second witness: the kernel counts the send buffer only when the program waits for it.
        let fills_window = self.peer_window > 0.0 && self.in_flight >= self.peer_window * IN_FLIGHT;
        let is_full =
            self.in_flight >= self.send_buffer as f64 * SENT && self.window > self.in_flight * 1.2 && !fills_window;
        self.peer_window_share < MOSTLY && (self.send_buffer_share >= LIMITED || is_full)
    }

    /// Returns true if data waits in the receive buffer: behind a lost segment, or because the program does not read.
    /// The programs of an examination read at once.
    pub fn has_unread(&self) -> bool {
        self.unread >= UNREAD
    }

    /// Returns true if a window or a buffer was the limit for most of the time, so that nothing else was.
    pub fn is_held_by_hosts(&self) -> bool {
        // A window that is full behind a lost segment is no limit: the loss is.
        self.peer_window_share >= MOSTLY && !self.has_unread() || self.send_buffer_share >= MOSTLY
    }

    /// Returns the rate by which the rest of a full bucket, in bits, raises the rate of the second half above
    /// `rate_bps`, the rate at which the bucket fills.
    pub fn left_of(&self, bucket: f64, rate_bps: f64) -> f64 {
        let every = SERIES_EVERY_US as f64 / 1e6;
        let (first, second) = self.series_bps.split_at(self.series_bps.len() / 2);
        let taken: f64 = first.iter().map(|bps| (bps - rate_bps).max(0.0) * every).sum();
        (bucket - taken).max(0.0) / (second.len() as f64 * every).max(every)
    }

    /// Returns the part of the segments that were lost.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.segments.max(1) as f64
    }

    /// Returns the part of the acknowledgements that were lost.
    pub fn ack_loss(&self) -> f64 {
        self.acks_sent.saturating_sub(self.acks_received) as f64 / self.acks_sent.max(1) as f64
    }

    /// Returns the delay of queues in the steady time.
    pub fn queue_s(&self) -> f64 {
        (self.rtt_s - self.rtt_min_s).max(0.0)
    }
}

/// Returns the end of a flow in seconds: its time, or the last arrival if its bytes were used up earlier.
fn end_of(pair: &FlowPair, time_s: f64) -> f64 {
    let last = pair.receiver.streams.iter().filter_map(|stream| stream.samples.last()).map(|s| seconds(s.at_us));
    let last = last.fold(0.0, f64::max);
    let complete = |stream: &StreamReport| {
        let total = stream.samples.last()?.received;
        stream.samples.iter().find(|sample| sample.received >= total).map(|sample| seconds(sample.at_us))
    };
    let arrived = pair.receiver.streams.iter().filter_map(complete).fold(0.0, f64::max);
    if arrived < time_s * 0.9 { arrived.max(0.05) } else { time_s.min(last).max(0.05) }
}

/// Returns the part of the samples that were late by more than half their interval: the process had no processor.
fn late(streams: &[StreamReport]) -> f64 {
    let Some(stream) = streams.first() else { return 0.0 };
    let due = u64::try_from(SAMPLE_EVERY.as_micros()).unwrap_or(u64::MAX);
    let gaps = stream.samples.windows(2).map(|pair| pair[1].at_us.saturating_sub(pair[0].at_us));
    let (late, all) = gaps.fold((0.0, 0.0), |(late, all), gap| {
        // A long gap stands for the samples that it left out.
        let missed = (gap / due).max(1) as f64;
        (late + if gap > due + due / 2 { missed } else { 0.0 }, all + missed)
    });
    late / f64::max(all, 1.0)
}

/// Returns the segments that were lost: sent again, and not without need. Reason: the counters of the ends differ by
/// what is in flight at the end, and network cards merge segments before the receiver counts them.
fn lost_of(pair: &FlowPair) -> u64 {
    last(&pair.sender.streams, |s| s.resent).saturating_sub(last(&pair.sender.streams, |s| s.duplicates))
}

/// Returns the rates of intervals of 200 ms until `end`.
fn rates(end: f64, counts: &dyn Fn(f64) -> f64) -> Vec<f64> {
    let every = SERIES_EVERY_US as f64 / 1e6;
    let count = ((end / every) as usize).min(SERIES_MAX);
    (0..count).map(|index| (counts((index + 1) as f64 * every) - counts(index as f64 * every)) * 8.0 / every).collect()
}

fn is_bbr(congestion: &str) -> bool {
    congestion.starts_with("bbr")
}

/// Returns the intervals in which nothing arrives, in seconds, since bbr measures the round trip: the data in flight
/// arrives, and what is sent after it needs a round trip.
fn pauses_of_bbr(stream: &StreamReport) -> Vec<(f64, f64)> {
    // Without selective acknowledgements, arrivals behind a hole count late: in another interval.
    if !is_bbr(&stream.congestion) || !stream.sack {
        return Vec::new();
    }
    let small = f64::from(stream.mss) * PROBE_SEGMENTS;
    let is_probe = |sample: &FlowSample| sample.at_us >= PROBES_FROM_US && sample.window as f64 <= small;
    let probes = stream.samples.chunk_by(|one, next| is_probe(one) == is_probe(next));
    let pause = |probe: &[FlowSample]| {
        let (first, last) = (probe.first().filter(|first| is_probe(first))?, probe.last()?);
        // The path runs empty, and a round trip of packets passes that were sent before. An outage is longer.
        let longest = first.rtt_us.saturating_mul(2).saturating_add(last.rtt_min_us.max(PROBE_US) + PROBE_US);
        let is_outage = last.at_us.saturating_sub(first.at_us) > longest;
        let (from, to) = (first.at_us.saturating_add(first.rtt_us), last.at_us.saturating_add(last.rtt_min_us));
        (!is_outage).then_some((seconds(from), seconds(to)))
    };
    probes.filter_map(pause).filter(|(from, to)| from < to).collect()
}

/// Returns the time at which the rate first had most of its steady value.
fn ramp(series: &[f64], steady: f64) -> f64 {
    let every = SERIES_EVERY_US as f64 / 1e6;
    let index = series.iter().position(|rate| *rate >= steady * RAMP_ENDS).unwrap_or(series.len());
    index as f64 * every
}

/// Returns a counter at a time in seconds, between two samples by interpolation.
pub(crate) fn at_time(stream: &StreamReport, at: f64, of: fn(&FlowSample) -> u64) -> f64 {
    let index = stream.samples.partition_point(|sample| seconds(sample.at_us) < at);
    let after = stream.samples.get(index).or(stream.samples.last());
    let Some(after) = after else { return 0.0 };
    let Some(before) = index.checked_sub(1).and_then(|index| stream.samples.get(index)) else {
        return of(after) as f64;
    };
    let length = seconds(after.at_us) - seconds(before.at_us);
    let part = if length > 0.0 { ((at - seconds(before.at_us)) / length).clamp(0.0, 1.0) } else { 1.0 };
    of(before) as f64 + (of(after) as f64 - of(before) as f64) * part
}

fn sum(streams: &[StreamReport], of: impl Fn(&StreamReport) -> f64) -> f64 {
    streams.iter().map(of).sum()
}

/// Returns the sum of the last values of a counter.
fn last(streams: &[StreamReport], of: fn(&FlowSample) -> u64) -> u64 {
    streams.iter().filter_map(|stream| stream.samples.last()).map(of).sum()
}

fn largest(streams: &[StreamReport], of: fn(&FlowSample) -> u64) -> u64 {
    streams.iter().flat_map(|stream| &stream.samples).map(of).max().unwrap_or(0)
}

fn least(streams: &[StreamReport], of: fn(&FlowSample) -> u64) -> f64 {
    let values = streams.iter().filter_map(|stream| stream.samples.last()).map(of).filter(|value| *value > 0);
    values.min().unwrap_or(0) as f64
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Returns the middle of the values; 0 without values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use sterna_net::measure::FlowReport;

    use super::*;

    const RTT_US: u64 = 660_000;

    /// Returns a flow of 16 s at 1000 segments in 50 ms, with the pause of bbr before `pause_ends_us`.
    fn flow(congestion: &str, pause_ends_us: u64) -> FlowPair {
        let mut delivered = 0;
        let sample = |index: u64| {
            let at_us = index * 50_000;
            let is_probe = (pause_ends_us - 3 * RTT_US..pause_ends_us - RTT_US).contains(&at_us);
            if !(pause_ends_us - 2 * RTT_US..pause_ends_us).contains(&at_us) {
                delivered += 1000;
            }
            let window = if is_probe { 4 * 1448 } else { 9_000_000 };
            let received = delivered * 1448;
            FlowSample {
                at_us,
                window,
                delivered,
                received,
                rtt_us: RTT_US,
                rtt_min_us: RTT_US,
                ..FlowSample::default()
            }
        };
        let samples: Vec<FlowSample> = (0..=320).map(sample).collect();
        let stream = StreamReport {
            mss: 1448,
            congestion: congestion.to_owned(),
            sack: true,
            samples,
            ..StreamReport::default()
        };
        let report = FlowReport { streams: vec![stream], ..FlowReport::default() };
        FlowPair { sender: report.clone(), receiver: report }
    }

    #[test]
    fn the_rate_of_bbr_does_not_depend_on_the_time_of_its_pause() {
        let full = 1000.0 * 1448.0 * 8.0 / 0.05;
        let sustained = full * 10.0 / 11.32;
        // In the first half, across its end, in the second half, and at the end of the flow.
        for pause_ends_us in [7_500_000, 8_600_000, 12_000_000, 16_400_000] {
            let view = FlowView::new(&flow("bbr", pause_ends_us), 16.0);
            assert!((view.rate_bps / sustained - 1.0).abs() < 0.01, "{pause_ends_us}: {} {sustained}", view.rate_bps);
            assert!((view.growth - 1.0).abs() < 0.03, "{pause_ends_us}: {}", view.growth);
        }
        // Others do not pause: what is missing is missing.
        let view = FlowView::new(&flow("cubic", 12_000_000), 16.0);
        assert!((view.rate_bps / (full * (1.0 - 1.32 / 8.0)) - 1.0).abs() < 0.01, "{}", view.rate_bps);
        // Segments that were twice as large as the first ones count with what arrived.
        let mut large = flow("cubic", 12_000_000);
        large.sender.streams[0].samples.iter_mut().for_each(|sample| sample.delivered /= 2);
        assert!((FlowView::new(&large, 16.0).rate_bps / view.rate_bps - 1.0).abs() < 0.001);
        // A small window for longer is no pause: a path of few packets, or an outage.
        let mut slow = flow("bbr", 12_000_000);
        slow.sender.streams[0].samples.iter_mut().for_each(|sample| sample.window = 5000);
        let plain = FlowView::new(&flow("cubic", 12_000_000), 16.0).rate_bps;
        assert_eq!(FlowView::new(&slow, 16.0).rate_bps, plain);
        let mut out = flow("bbr", 12_000_000);
        let small = out.sender.streams[0].samples.iter_mut().filter(|sample| sample.at_us > 10_000_000);
        small.filter(|sample| sample.at_us < 12_500_000).for_each(|sample| sample.window = 1448);
        assert_eq!(FlowView::new(&out, 16.0).rate_bps, plain);
    }
}
