//! Judgement of results of pScheduler by the arithmetic of this crate: windows, losses, and queues.
//!
//! pScheduler reports the congestion window and the round trips of the sender, and no time by limit. So a judgement is
//! inferred, and never proven by an experiment.

use std::time::Duration;

use serde::Serialize;
use sterna_proto::{BitRate, ByteCount};

use super::result::{Delays, Interval, RoundTrips, TestResult, Throughput, Trace, millis, rate};
use crate::kernel::{self, Buffers, KernelVersion};
use crate::response::{self, Control, PathFacts};
use crate::view::median;
use crate::words::{percent, time};

/// Payload of a segment without another value. Reason: packets of 1500 bytes with timestamps.
const MSS_DEFAULT: u32 = 1448;

/// Multiple of the smallest round trip above which a queue persists.
const QUEUED: f64 = 1.25;

/// Delay of a queue below which none is assumed, seconds. Reason: hosts add some tenths of a millisecond.
const QUEUE_MIN_S: f64 = 0.002;

/// Multiples of the rate of CUBIC between which its losses explain a rate. Source: the response function is a mean, and
/// losses of a few round trips vary by a factor of two.
const EXPLAINED: (f64, f64) = (0.4, 2.5);

/// Multiple of the data in flight above which the congestion window is not the limit.
const ABOVE_FLIGHT: f64 = 1.3;

/// Part by which a congestion window varies that has stopped to grow.
const STEADY: f64 = 0.02;

/// Multiple of the rate of a quarter of the test that shows growth in the next one.
const GROWS: f64 = 1.15;

/// Part of a given rate from which it is the limit.
const CAPPED: f64 = 0.9;

/// Part by which data in flight may differ from that of a default buffer. Reason: programs wait, and rates are means.
const NEAR: f64 = 0.15;

/// Limit of a throughput test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultLimit {
    /// The rate that the test was given.
    RateCap,
    /// A queue persists: the path is full, or a shaper holds it.
    PathFull,
    /// Losses, with CUBIC.
    Loss,
    /// A window or a buffer of a host.
    Window,
    /// The window grows until the end of the test.
    SlowRamp,
    /// Clocks that differ: the delays of a latency test have no meaning.
    Clocks,
    /// Nothing that the result shows.
    Unknown,
}

/// Judgement of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// Limit.
    pub limit: ResultLimit,
    /// Observations that lead to it, in words and numbers.
    pub text: String,
    /// Rate to which it holds the test by our arithmetic, bit/s.
    pub allows_bps: Option<u64>,
    /// Next step, in words.
    pub advice: String,
}

/// Known values of the path and of the test, beside the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// Highest rate of all streams together.
    pub rate_max: Option<BitRate>,
    /// Round trip without load.
    pub rtt: Option<Duration>,
}

/// Judges a result; the first judgement is the leading one. A trace has none, nor have round trips without losses.
pub fn judge(result: &TestResult, known: &Known) -> Vec<Judgement> {
    match result {
        TestResult::Throughput(result) => vec![throughput(result, known)],
        TestResult::Rtt(result) => round_trips(result).into_iter().collect(),
        TestResult::Latency(result) => delays(result),
        TestResult::Trace(result) => trace(result).into_iter().collect(),
    }
}

/// Returns the lines of judgements for people.
pub fn lines(judgements: &[Judgement]) -> Vec<String> {
    let of = |judgement: &Judgement| {
        let advice = (!judgement.advice.is_empty()).then(|| format!("    {}", judgement.advice));
        [Some(format!("  {}: {}", judgement.limit.words(), judgement.text)), advice]
    };
    judgements.iter().flat_map(of).flatten().collect()
}

impl ResultLimit {
    /// Returns the limit in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::RateCap => "given rate",
            Self::PathFull => "path full",
            Self::Loss => "loss",
            Self::Window => "window or buffer of a host",
            Self::SlowRamp => "window grows",
            Self::Clocks => "clocks",
            Self::Unknown => "not known",
        }
    }
}

/// Steady state of a throughput test.
struct Steady<'a> {
    intervals: &'a [Interval],
    bps: f64,
    streams: f64,
    mss: f64,
    /// Smallest round trip, and the median under load, seconds.
    rtt_s: f64,
    loaded_s: f64,
    is_bbr: bool,
}

impl<'a> Steady<'a> {
    /// Returns the steady state; `None`: no round trip is known.
    fn new(result: &'a Throughput, known: &Known) -> Option<Self> {
        let given = known.rtt.map(|rtt| rtt.as_secs_f64());
        let all = result.intervals.iter().filter_map(|interval| interval.rtt_s);
        // The given round trip is an expectation.
        let rtt_s = all.chain(result.rtt_s).reduce(f64::min).or(given).filter(|rtt| *rtt > 0.0)?;
        let intervals = result.steady();
        let loaded: Vec<f64> = intervals.iter().filter_map(|interval| interval.rtt_s).collect();
        Some(Self {
            intervals,
            bps: result.steady_bps(),
            streams: f64::from(result.streams.max(1)),
            mss: f64::from(result.mss.unwrap_or(MSS_DEFAULT)),
            rtt_s,
            is_bbr: result.congestion.as_ref().is_some_and(|name| name.starts_with("bbr")),
            loaded_s: if loaded.is_empty() { result.rtt_s.unwrap_or(rtt_s) } else { median(loaded) },
        })
    }

    /// Returns the data in flight of all streams, bytes.
    fn in_flight(&self) -> f64 {
        self.bps * self.loaded_s / 8.0
    }

    /// Returns segments sent again and all segments; `None`: they are not counted.
    fn losses(&self) -> Option<(f64, f64)> {
        let counts: Option<Vec<u64>> = self.intervals.iter().map(|interval| interval.resent).collect();
        let resent = counts.filter(|counts| !counts.is_empty())?.iter().map(|count| *count as f64).sum();
        let bits: f64 = self.intervals.iter().map(|one| one.rate_bps * (one.end_s - one.start_s)).sum();
        Some((resent, (bits / 8.0 / self.mss).max(1.0)))
    }

    /// Returns the congestion windows of all streams together, bytes.
    fn windows(&self) -> Vec<f64> {
        self.intervals.iter().filter_map(|interval| interval.window).filter(|window| *window > 0.0).collect()
    }
}

fn throughput(result: &Throughput, known: &Known) -> Judgement {
    if let Some(cap) = known.rate_max.filter(|cap| result.rate_bps >= cap.0 as f64 * CAPPED) {
        return Judgement {
            limit: ResultLimit::RateCap,
            text: format!("the test was to send {cap} at most, and it sent {}", rate(result.rate_bps)),
            allows_bps: Some(cap.0),
            advice: "test without --max-rate, or with a higher one".to_owned(),
        };
    }
    if let Some((sent, lost)) = result.datagrams {
        let text = format!("{lost} of {sent} datagrams were lost: UDP has no window");
        return unknown(text, String::new());
    }
    let Some(steady) = Steady::new(result, known) else {
        let text = "the tool reports no round trips and no windows".to_owned();
        return unknown(text, "give --link-rtt, or choose a node with iperf3".to_owned());
    };
    let judged = [path_full, window_above, loss, slow_ramp, window_stands].into_iter().find_map(|rule| rule(&steady));
    judged.unwrap_or_else(|| {
        let text = format!(
            "no losses, no queue, and the window does not stand: {} in flight over {}",
            bytes(steady.in_flight()),
            time(steady.rtt_s)
        );
        unknown(text, "compare the rate with that of the slowest link and of the hosts".to_owned())
    })
}

fn unknown(text: String, advice: String) -> Judgement {
    Judgement { limit: ResultLimit::Unknown, text, allows_bps: None, advice }
}

/// Judges round trips that grow under load.
fn path_full(steady: &Steady<'_>) -> Option<Judgement> {
    let queue_s = steady.loaded_s - steady.rtt_s;
    (steady.loaded_s > steady.rtt_s * QUEUED && queue_s > QUEUE_MIN_S).then(|| Judgement {
        limit: ResultLimit::PathFull,
        text: format!(
            "round trips grew from {} to {} under load: a queue of {} persists, at a link or a shaper of {}",
            time(steady.rtt_s),
            time(steady.loaded_s),
            bytes(steady.bps * queue_s / 8.0),
            rate(steady.bps)
        ),
        allows_bps: Some(steady.bps as u64),
        advice: "compare this rate with that of the slowest link; cross traffic has a part of it".to_owned(),
    })
}

/// Judges losses whose rate with CUBIC is the measured one.
fn loss(steady: &Steady<'_>) -> Option<Judgement> {
    let (resent, segments) = steady.losses()?;
    if resent == 0.0 {
        return None;
    }
    let part = (resent / segments).min(1.0);
    let allows = of_loss(part, steady.rtt_s, steady.mss as u32) * steady.streams;
    let words = format!(
        "{resent:.0} of {segments:.0} segments were sent again in the second half, {}: CUBIC carries {} with it over {}",
        percent(part),
        rate(allows),
        time(steady.rtt_s)
    );
    let ratio = steady.bps / allows;
    if ratio > EXPLAINED.1 {
        let text = format!("{words}, and the test carried {}: BBR, or losses in bursts", rate(steady.bps));
        let advice = "a policer drops in bursts: sterna doctor sterna://HOST tells it apart".to_owned();
        return Some(Judgement { limit: ResultLimit::Loss, text, allows_bps: None, advice });
    }
    // Losses allow much more than the test carried: another rule explains it.
    (ratio >= EXPLAINED.0).then(|| Judgement {
        limit: ResultLimit::Loss,
        text: words,
        allows_bps: Some(allows as u64),
        advice: "find the loss: test each part of the path, and with datagrams at a low rate".to_owned(),
    })
}

/// Returns the rate of one CUBIC connection with a loss.
fn of_loss(part: f64, rtt_s: f64, mss: u32) -> f64 {
    let rtt = Duration::try_from_secs_f64(rtt_s).unwrap_or(Duration::MAX);
    let path = PathFacts { rtt: rtt.max(Duration::from_micros(1)), mss: mss.max(1), loss: part };
    response::of_loss(Control::Cubic, &path, BitRate(0))
}

/// Judges a rate that grows until the end.
fn slow_ramp(steady: &Steady<'_>) -> Option<Judgement> {
    let windows = steady.windows();
    let (first, last) = steady.intervals.split_at(steady.intervals.len() / 2);
    let mean = |part: &[Interval]| part.iter().map(|one| one.rate_bps).sum::<f64>() / part.len().max(1) as f64;
    let grows = !first.is_empty() && mean(last) > mean(first) * GROWS;
    let window_grows = windows.first().zip(windows.last()).is_none_or(|(first, last)| last > first);
    (grows && window_grows).then(|| Judgement {
        limit: ResultLimit::SlowRamp,
        text: format!(
            "the rate grew from {} to {} in the second half of the test, and nothing was lost",
            rate(mean(first)),
            rate(mean(last))
        ),
        allows_bps: None,
        advice: "test for longer (--time), or with several streams (--streams)".to_owned(),
    })
}

/// Judges a congestion window above the data in flight: something at a host holds the data, and no loss does.
fn window_above(steady: &Steady<'_>) -> Option<Judgement> {
    // The window of BBR is twice the data in flight.
    let is_above = !steady.is_bbr && median(steady.windows()) >= steady.in_flight() * ABOVE_FLIGHT;
    is_above.then(|| window(steady, "allowed"))
}

/// Judges a congestion window that stopped to grow without a loss: the kernel lets it grow only while it is the limit.
fn window_stands(steady: &Steady<'_>) -> Option<Judgement> {
    let windows = steady.windows();
    let (least, most) = (windows.iter().copied().reduce(f64::min)?, windows.iter().copied().reduce(f64::max)?);
    let is_lossless = steady.losses().is_none_or(|(resent, _)| resent == 0.0);
    let stands = !steady.is_bbr && most - least <= most * STEADY && is_lossless;
    stands.then(|| window(steady, "stopped without a loss at"))
}

/// Returns the judgement of a window or a buffer of a host, whose congestion window did as told by `verb`.
fn window(steady: &Steady<'_>, verb: &str) -> Judgement {
    let (in_flight, most) = (steady.in_flight(), median(steady.windows()));
    let each = in_flight / steady.streams;
    let default = default_buffer(each).map_or(String::new(), |name| format!(": that is {name}"));
    let buffer = |kernel| kernel::buffer_for(ByteCount((each * 2.0) as u64), kernel);
    Judgement {
        limit: ResultLimit::Window,
        text: format!(
            "{} of each stream were in flight over {}, and its congestion window {verb} {}{default}",
            bytes(each),
            time(steady.rtt_s),
            bytes(most / steady.streams)
        ),
        allows_bps: Some(steady.bps as u64),
        advice: format!(
            "twice the rate needs twice that: third value of net.ipv4.tcp_rmem at the receiver {} ({} before Linux \
             6.6), of tcp_wmem at the sender {}; then nothing else may limit",
            buffer(MEASURES_RATIO),
            buffer(HALF_IS_WINDOW),
            kernel::send_buffer_for(ByteCount((each * 2.0) as u64))
        ),
    }
}

/// Kernel whose windows are most of the receive buffer.
const MEASURES_RATIO: KernelVersion = KernelVersion::new(6, 6);

/// Kernel whose windows are half of the receive buffer.
const HALF_IS_WINDOW: KernelVersion = KernelVersion::new(5, 14);

/// Returns the default buffer of a kernel that allows nearly this data in flight.
fn default_buffer(in_flight: f64) -> Option<&'static str> {
    let old = Buffers::default_of(HALF_IS_WINDOW);
    let new = Buffers::default_of(KernelVersion::new(6, 16));
    [
        (kernel::window_of(old.receive_max, HALF_IS_WINDOW), "the default receive buffer before Linux 6.6 (6 MiB)"),
        (kernel::in_flight_of(old.send_max), "the default send buffer (4 MiB)"),
        (kernel::window_of(old.receive_max, MEASURES_RATIO), "the default receive buffer of Linux 6.6 to 6.15 (6 MiB)"),
        (kernel::window_of(new.receive_max, MEASURES_RATIO), "the default receive buffer from Linux 6.16 on (32 MiB)"),
    ]
    .into_iter()
    .map(|(allowed, name)| ((in_flight / allowed.0 as f64 - 1.0).abs(), name))
    .filter(|(distance, _)| *distance <= NEAR)
    .min_by(|a, b| a.0.total_cmp(&b.0))
    .map(|(_, name)| name)
}

fn bytes(count: f64) -> ByteCount {
    // Saturates.
    ByteCount(count as u64)
}

/// Judges the losses of echoes.
fn round_trips(result: &RoundTrips) -> Option<Judgement> {
    let rtt_s = result.min_s.filter(|rtt| *rtt > 0.0)?;
    (result.loss > 0.0 && result.loss < 1.0).then(|| lossy(result.loss, result.sent, rtt_s))
}

/// Returns the judgement of a loss that was measured with packets at a low rate.
fn lossy(part: f64, sent: u64, rtt_s: f64) -> Judgement {
    let allows = of_loss(part, rtt_s, MSS_DEFAULT);
    Judgement {
        limit: ResultLimit::Loss,
        text: format!(
            "{} of {sent} packets: with such a loss one CUBIC connection carries {} over {}",
            percent(part),
            rate(allows),
            time(rtt_s)
        ),
        allows_bps: Some(allows as u64),
        advice: "the test is no load itself: repeat it for longer, and on each part of the path".to_owned(),
    }
}

/// Judges one-way delays: first the clocks, then losses.
fn delays(result: &Delays) -> Vec<Judgement> {
    let error = result.clock_error_s.unwrap_or(0.0);
    let min = result.min_s.unwrap_or(0.0);
    let mut judgements = Vec::new();
    if result.min_s.is_some() && (min < 0.0 || error > min) {
        judgements.push(Judgement {
            limit: ResultLimit::Clocks,
            text: format!("the smallest delay is {}, and the clocks may differ by {}", millis(min), millis(error)),
            allows_bps: None,
            advice: "the delays have no meaning, but their differences and the losses do".to_owned(),
        });
    }
    if result.loss > 0.0 && result.loss < 1.0 && min > 0.0 {
        // The way back is not known.
        judgements.push(lossy(result.loss, result.sent, 2.0 * min));
    }
    judgements
}

/// Judges a trace whose routers report sizes: the path takes smaller packets than its first router.
fn trace(result: &Trace) -> Option<Judgement> {
    let mtus = || result.paths.iter().flatten().filter_map(|hop| hop.mtu);
    let (least, most) = (mtus().min()?, mtus().max()?);
    (least < most).then(|| Judgement {
        limit: ResultLimit::Unknown,
        text: format!("the largest packet falls from {most} to {least} bytes on the way"),
        allows_bps: None,
        advice: "check that routers report it (ICMP), or enable net.ipv4.tcp_mtu_probing".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a test of 20 s: rate in Mbit/s, round trip in ms, segments sent again and window in bytes, by second.
    fn result(each: impl Fn(u64) -> (f64, f64, u64, f64)) -> Throughput {
        let interval = |second: u64| {
            let (megabits, rtt_ms, resent, window) = each(second);
            Interval {
                start_s: second as f64,
                end_s: second as f64 + 1.0,
                rate_bps: megabits * 1e6,
                resent: Some(resent),
                rtt_s: Some(rtt_ms / 1e3),
                window: Some(window),
                omitted: false,
            }
        };
        let intervals: Vec<Interval> = (0..20).map(interval).collect();
        let rate_bps = intervals.iter().map(|one| one.rate_bps).sum::<f64>() / 20.0;
        Throughput { rate_bps, streams: 1, mss: Some(1448), intervals, ..Throughput::default() }
    }

    fn judged(result: Throughput) -> Judgement {
        judge(&TestResult::Throughput(result), &Known::default()).remove(0)
    }

    #[test]
    fn the_default_buffer_of_a_kernel_is_named_by_the_data_in_flight() {
        // GRNET: 6 MiB of buffer over 8 ms.
        let judgement = judged(result(|_| (3100.0, 8.0, 0, 5e6)));
        assert_eq!(judgement.limit, ResultLimit::Window, "{judgement:?}");
        assert!(judgement.text.contains("3.10 MB of each stream"), "{judgement:?}");
        assert!(judgement.text.contains("default receive buffer before Linux 6.6"), "{judgement:?}");
        assert!(judgement.advice.contains("12.4 MB before Linux 6.6"), "{judgement:?}");
        // The same rate with a window that falls and rises is not of a buffer.
        let saw = judged(result(|second| (3100.0, 8.0, 0, 2.9e6 + 1e5 * (second % 4) as f64)));
        assert_eq!(saw.limit, ResultLimit::Unknown, "{saw:?}");
    }

    #[test]
    fn losses_explain_a_rate_only_if_cubic_would_have_it() {
        // 1e-4 over 50 ms: CUBIC carries 28 Mbit/s, of 2417 segments a second.
        let loss = |megabits| judged(result(move |_| (megabits, 50.0, (megabits * 8.6e-3) as u64 + 1, 2e5)));
        let explained = loss(28.0);
        assert_eq!(explained.limit, ResultLimit::Loss);
        assert!((10_000_000..40_000_000).contains(&explained.allows_bps.unwrap()), "{explained:?}");
        let fast = |congestion: Option<&str>| {
            let congestion = congestion.map(str::to_owned);
            judged(Throughput { congestion, ..result(|_| (900.0, 50.0, 78, 11e6)) })
        };
        let bbr = fast(Some("bbr"));
        assert!(bbr.limit == ResultLimit::Loss && bbr.text.contains("BBR") && bbr.allows_bps.is_none(), "{bbr:?}");
        assert_eq!(fast(None).limit, ResultLimit::Window, "twice the data in flight");
        // One loss in ten million segments allows far more than 100 Mbit/s: the window holds it.
        let window = judged(result(|second| (100.0, 80.0, u64::from(second == 15), 4e6)));
        assert_eq!(window.limit, ResultLimit::Window, "{window:?}");
    }

    #[test]
    fn a_queue_a_ramp_and_a_given_rate_are_told_apart() {
        let queue = judged(result(|second| (940.0, if second == 0 { 10.0 } else { 45.0 }, 0, 5e6)));
        assert_eq!(queue.limit, ResultLimit::PathFull);
        assert!(queue.text.contains("from 10 ms to 45 ms") && queue.text.contains("4.11 MB"), "{queue:?}");
        let ramp = judged(result(|second| (10.0 * (second + 1) as f64, 300.0, 0, 4e5 * (second + 1) as f64)));
        assert_eq!(ramp.limit, ResultLimit::SlowRamp, "{ramp:?}");
        let known = Known { rate_max: Some(BitRate::megabits(100)), ..Known::default() };
        let capped = judge(&TestResult::Throughput(result(|_| (98.0, 10.0, 0, 5e5))), &known);
        assert_eq!(capped[0].limit, ResultLimit::RateCap);
        // Without round trips nothing can be said.
        let silent = Throughput { rate_bps: 1e9, streams: 1, ..Throughput::default() };
        let judgement = judged(silent);
        assert!(judgement.limit == ResultLimit::Unknown && judgement.text.contains("no round trips"), "{judgement:?}");
    }

    #[test]
    fn delays_below_the_error_of_the_clocks_have_no_meaning() {
        let delays = |min_s, error| {
            let result = Delays { sent: 100, min_s: Some(min_s), clock_error_s: Some(error), ..Delays::default() };
            judge(&TestResult::Latency(result), &Known::default())
        };
        assert_eq!(delays(0.001, 0.002)[0].limit, ResultLimit::Clocks);
        assert_eq!(delays(-0.001, 0.0)[0].limit, ResultLimit::Clocks);
        assert!(delays(0.010, 0.002).is_empty());
        let lossy = RoundTrips { sent: 100, received: 99, loss: 0.01, min_s: Some(0.01), ..RoundTrips::default() };
        let judgement = judge(&TestResult::Rtt(lossy), &Known::default()).remove(0);
        // Mathis: 1448 bytes, 10 ms, 1 %: 14 Mbit/s.
        assert!((13_000_000..15_000_000).contains(&judgement.allows_bps.unwrap()), "{judgement:?}");
    }
}
