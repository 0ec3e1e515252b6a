//! Reports of a receiver about its threads, as the accountant sees them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::split::Split;
use super::{Limit, ReceiverReport};
use crate::{BitRate, ByteCount};

/// Shares of time between the last two reports of the receiver.
#[derive(Clone, Debug, Default)]
pub struct ReceiverView {
    /// Latest report.
    pub last: Option<(Instant, ReceiverReport)>,
    /// Share of their time in which its threads waited for data.
    waiting: f64,
    /// Share in which they waited for storage.
    pub storage: f64,
    /// Share in which they computed.
    pub compute: f64,
    /// Share of the time in which storage worked while no lane waited for it.
    pub publishing: f64,
    /// Share of the time that the thread of a QUIC engine needed.
    pub engine: f64,
    /// Travel times of the reports.
    pub delays: ReturnDelays,
    /// Time of the last report with new packets that the receiving host dropped.
    dropped: Option<Instant>,
    /// Kind of the receiver.
    pub kind: ReceiverKind,
}

/// Kind of the receiver, by what it reports.
#[derive(Clone, Copy, Debug, Default)]
pub enum ReceiverKind {
    /// Agent, which reports the waits of its threads.
    #[default]
    Agent,
    /// Web server, which reports nothing. A lane to it is idle only while it waits for an answer.
    Server {
        /// Largest window that it has announced.
        window: ByteCount,
    },
    /// Any other program, whose own reads show only if it is on this host.
    Stranger,
}

/// Lane whose receive window is closed.
#[derive(Clone, Copy, Debug)]
pub struct ClosedWindow {
    /// Rate of delivery.
    pub rate: BitRate,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub rtt_min: Duration,
    /// Window that is announced now.
    pub window: ByteCount,
    /// Largest window that was announced.
    pub largest: ByteCount,
}

impl ClosedWindow {
    fn is_smaller(&self) -> bool {
        (self.window.0 as f64) < self.largest.0 as f64 * WINDOW_STEADY
    }

    fn has_queue(&self) -> bool {
        self.rtt.as_secs_f64() * WINDOW_FULL > self.rtt_min.as_secs_f64()
    }
}

/// Travel times of the receiver's reports. The clocks of the two ends differ by an unknown time; the shortest travel
/// time cancels it.
#[derive(Clone, Debug, Default)]
pub struct ReturnDelays {
    /// Time of the first report, by both clocks.
    first: Option<(Instant, Duration)>,
    /// Delays of the last few reports against the first one, in seconds.
    latest: VecDeque<f64>,
    /// Smallest delay of all reports, in seconds.
    least: f64,
}

impl ReturnDelays {
    pub fn add(&mut self, now: Instant, sent_at: Duration) {
        if sent_at.is_zero() {
            return;
        }
        let (first, first_sent) = *self.first.get_or_insert((now, sent_at));
        let travelled =
            now.saturating_duration_since(first).as_secs_f64() - (sent_at.as_secs_f64() - first_sent.as_secs_f64());
        self.least = self.least.min(travelled);
        self.latest.push_back(travelled);
        if self.latest.len() > DELAYS_KEPT {
            self.latest.pop_front();
        }
    }

    /// Returns the time that packets wait in the return direction: the smallest delay of the last reports. A single
    /// report may have waited for a busy host, or was lost and sent again.
    pub fn queue(&self) -> Duration {
        let least = self.latest.iter().copied().reduce(f64::min).unwrap_or(self.least);
        Duration::try_from_secs_f64(least - self.least).unwrap_or_default()
    }
}

impl ReceiverView {
    pub fn of(kind: ReceiverKind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub fn update(&mut self, now: Instant, report: &ReceiverReport) {
        self.delays.add(now, report.sent_at);
        if self.last.map_or(0, |(_, last)| last.dropped) < report.dropped {
            self.dropped = Some(now);
        }
        let Some((at, last)) = &self.last else {
            self.last = Some((now, *report));
            return;
        };
        let lanes = report.lane_time.saturating_sub(last.lane_time).as_secs_f64();
        let elapsed = now.saturating_duration_since(*at).as_secs_f64();
        // Reports that were delayed arrive together; they count as one.
        if elapsed < REPORT_SPACING_MIN.as_secs_f64() {
            return;
        }
        let share = |now: Duration, before: Duration, of: f64| {
            if of > 0.0 { (now.saturating_sub(before).as_secs_f64() / of).min(1.0) } else { 0.0 }
        };
        self.waiting = if lanes > 0.0 { share(report.waiting, last.waiting, lanes) } else { 1.0 };
        self.storage = share(report.storage, last.storage, lanes);
        self.compute = (1.0 - self.waiting - self.storage).max(0.0);
        self.publishing = share(report.publishing, last.publishing, elapsed);
        self.engine = share(report.engine, last.engine, elapsed);
        self.last = Some((now, *report));
    }

    /// Returns true if the receiver's threads hardly wait for data.
    pub fn is_slow(&self) -> bool {
        self.last.is_some() && self.waiting < RECEIVER_WAITS_MIN && self.storage + self.compute > 0.0
    }

    /// Returns true if the windows of all lanes are known and smaller than `bytes`.
    pub fn announces_less_than(&self, bytes: ByteCount) -> bool {
        self.last.as_ref().is_some_and(|(_, report)| (1..bytes.0).contains(&report.window.0))
    }

    /// Returns the limit of a lane whose window is closed. `path`: the limit behind the congestion window. A receiver
    /// without reports whose window has been much larger than what a round trip brings reads late.
    pub fn of_closed_window(&self, closed: &ClosedWindow, path: Limit) -> Limit {
        let carried = closed.rate.0 as f64 / 8.0 * closed.rtt_min.as_secs_f64();
        let brings_less = |window: ByteCount| carried <= window.0 as f64 * WINDOW_FULL;
        match self.kind {
            // A window that was never open carries nothing.
            ReceiverKind::Server { window } if brings_less(window) => Limit::DestinationDisk,
            // The window of a program that keeps up has its full size all the time.
            ReceiverKind::Stranger if self.last.is_none() && closed.is_smaller() => Limit::DestinationDisk,
            // A full window with a queue is larger than the path: a larger one would only lengthen the queue.
            ReceiverKind::Stranger if brings_less(closed.window) && closed.has_queue() => path,
            ReceiverKind::Agent | ReceiverKind::Server { .. } | ReceiverKind::Stranger => Limit::ReceiveWindow,
        }
    }

    /// Returns true if losses belong to the receiving host, which reported dropped packets a moment ago.
    pub fn drops(&self, now: Instant) -> bool {
        self.dropped.is_some_and(|at| now.saturating_duration_since(at) < OVERRUN_LASTS)
    }

    pub fn lacks_processor(&self) -> bool {
        self.is_slow() && self.compute > self.storage || self.engine > ENGINE_BUSY
    }

    /// Returns the limits of the receiver's threads.
    pub fn split(&self) -> Split {
        let mut split = Split::default();
        let busy = (self.storage + self.compute).max(f64::MIN_POSITIVE);
        split.add(Limit::DestinationDisk, self.storage / busy);
        split.add(Limit::Cpu, self.compute / busy);
        split
    }

    /// Returns the rate of storage over the whole session; lanes wait for storage at the same time.
    pub fn rate(&self, lanes: u64) -> BitRate {
        self.last.as_ref().map_or(BitRate(0), |(_, report)| {
            BitRate::mean(report.written, report.storage / lanes.max(1) as u32 + report.publishing)
        })
    }
}

/// Number of the receiver's last reports that determine the delay of the return direction. Reason: of three, one
/// arrived without delay.
const DELAYS_KEPT: usize = 3;

/// Part of their time that the receiver's threads wait for data, below which they are the bottleneck. Reason: threads
/// that keep up wait for most of it, and arrivals in bursts let busy ones wait now and then.
const RECEIVER_WAITS_MIN: f64 = 0.2;

/// Part of a window that a round trip brings if the window limits the lane. Reason: the smallest round trip is a little
/// shorter than those in which data arrived.
const WINDOW_FULL: f64 = 0.8;

/// Part of its time that the engine's thread wants a processor, from which it is the bottleneck. Reason: a thread that
/// is late for a quarter of its timers neither paces nor measures a path.
pub const ENGINE_BUSY: f64 = 0.75;

/// Part of its largest size that a window keeps while its program reads at once. Reason: a slow reader's window changes
/// by half; that of one that keeps up was constant (lab, 60 ms).
const WINDOW_STEADY: f64 = 0.9;

/// Time after a report of dropped packets in which losses belong to the receiving host. Reason: the receiver reports
/// them within a quarter of a second, and the sender finds them lost a round trip later.
const OVERRUN_LASTS: Duration = Duration::from_secs(1);

/// Smallest distance of two reports; closer ones came in one burst.
const REPORT_SPACING_MIN: Duration = Duration::from_millis(50);
