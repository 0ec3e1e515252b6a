//! View of a flow of which one end is seen: the peer is a tool of others.
//!
//! A sender sees its limits in the counters of its kernel. A receiver sees its own window only.

use std::time::Duration;

use sterna_net::measure::{FlowReport, FlowSample, StreamReport};
use sterna_proto::BitRate;
use sterna_proto::limit::{Limit, LimitTimes};

/// Times of a sender, as its kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderClock {
    /// Time of the flow.
    pub elapsed: Duration,
    /// Time with data to send; includes the two below.
    pub busy: Duration,
    /// Time in which the window of the receiver was the limit.
    pub receive_window: Duration,
    /// Time in which the send buffer was the limit.
    pub send_buffer: Duration,
}

impl SenderClock {
    /// Returns the time by limit. Time with data to send and without another limit belongs to the congestion window,
    /// and to a rate that was given.
    pub fn times(&self) -> LimitTimes {
        let mut times = LimitTimes::default();
        times.add(Limit::ReceiveWindow, self.receive_window);
        times.add(Limit::SendBuffer, self.send_buffer);
        let windows = self.receive_window + self.send_buffer;
        times.add(Limit::CongestionWindow, self.busy.saturating_sub(windows));
        times.add(Limit::NothingToSend, self.elapsed.saturating_sub(self.busy.max(windows)));
        times
    }
}

/// Returns the time by limit of a sender, over all streams; `None`: its kernel is older than 4.10 and counts none.
pub fn sender_times(report: &FlowReport) -> Option<LimitTimes> {
    let mut sum = LimitTimes::default();
    for stream in &report.streams {
        let (Some(first), Some(last)) = (stream.samples.first(), stream.samples.last()) else { continue };
        let between = |of: fn(&FlowSample) -> u64| Duration::from_micros(of(last).saturating_sub(of(first)));
        let clock = SenderClock {
            elapsed: between(|sample| sample.at_us),
            busy: between(|sample| sample.busy_us),
            receive_window: between(|sample| sample.peer_window_limited_us),
            send_buffer: between(|sample| sample.send_buffer_limited_us),
        };
        sum.merge(&clock.times());
    }
    let is_counted = report.streams.iter().filter_map(|stream| stream.samples.last()).any(|last| last.busy_us > 0);
    is_counted.then_some(sum)
}

/// Windows of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReceiverView {
    /// Largest window that this end announced, over all streams, bytes; 0: its kernel is older than 6.2.
    pub window: u64,
    /// Largest amount of received data that the program had not read, with its bookkeeping, as part of the buffer.
    pub unread: f64,
    /// Smallest round trip of the connections.
    pub rtt: Duration,
}

impl ReceiverView {
    /// Returns the view of a receiver.
    pub fn new(report: &FlowReport) -> Self {
        let samples =
            |stream: &StreamReport, of: fn(&FlowSample) -> u64| stream.samples.iter().map(of).max().unwrap_or(0);
        let window = report.streams.iter().map(|stream| samples(stream, |sample| sample.own_window)).sum();
        let all = report.streams.iter().flat_map(|stream| &stream.samples);
        let unread = all.map(|sample| sample.unread as f64 / sample.receive_buffer.max(1) as f64).fold(0.0, f64::max);
        let rtt = |stream: &StreamReport| stream.samples.last().map(|sample| sample.rtt_min_us).filter(|us| *us > 0);
        let rtt = report.streams.iter().filter_map(rtt).min().unwrap_or(0);
        Self { window, unread, rtt: Duration::from_micros(rtt) }
    }

    /// Returns the rate that the window allows; `None`: the window or the round trip is not known.
    pub fn allows(&self) -> Option<BitRate> {
        let (window, rtt) = (self.window as f64, self.rtt.as_secs_f64());
        // Saturates.
        (window > 0.0 && rtt > 0.0).then(|| BitRate((window * 8.0 / rtt) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(samples: Vec<FlowSample>) -> StreamReport {
        StreamReport { samples, ..StreamReport::default() }
    }

    #[test]
    fn shares_of_a_sender_are_those_of_its_kernel() {
        let at = |second: u64, busy: u64, window: u64, buffer: u64| FlowSample {
            at_us: second * 1_000_000,
            busy_us: busy,
            peer_window_limited_us: window,
            send_buffer_limited_us: buffer,
            ..FlowSample::default()
        };
        // The counters have begun before the flow.
        let samples = vec![at(0, 5, 0, 0), at(5, 9, 1, 0), at(10, 9_000_005, 4_000_000, 2_000_000)];
        let report = FlowReport { streams: vec![stream(samples)], ..FlowReport::default() };
        let shares = sender_times(&report).unwrap().shares();
        let expected = [
            (Limit::ReceiveWindow, 0.4),
            (Limit::CongestionWindow, 0.3),
            (Limit::SendBuffer, 0.2),
            (Limit::NothingToSend, 0.1),
        ];
        assert_eq!(shares, expected);
        let old = FlowReport { streams: vec![stream(vec![at(0, 0, 0, 0), at(1, 0, 0, 0)])], ..FlowReport::default() };
        assert_eq!((sender_times(&old), sender_times(&FlowReport::default())), (None, None));
    }

    #[test]
    fn a_window_allows_a_rate() {
        let sample = |own_window, rtt_min_us| FlowSample {
            own_window,
            rtt_min_us,
            unread: 1000,
            receive_buffer: 4000,
            ..FlowSample::default()
        };
        // GRNET: 3072 KB at 8 ms.
        let streams = vec![stream(vec![sample(65_536, 0), sample(3_072_000, 8_000)])];
        let view = ReceiverView::new(&FlowReport { streams, ..FlowReport::default() });
        assert_eq!((view.allows(), view.unread), (Some(BitRate(3_072_000_000)), 0.25));
        assert_eq!(ReceiverView::new(&FlowReport::default()).allows(), None);
    }
}
