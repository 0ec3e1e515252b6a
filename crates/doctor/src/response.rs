//! Response functions: rate of one TCP connection as a function of window, loss, round trip and time.
//!
//! Rates are those of TCP payload. Functions over zero or negative loss return infinity: nothing else limits then.

use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

/// Segments of the first round trip (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;

/// Part of the window that CUBIC keeps after a loss (RFC 9438).
const CUBIC_BETA: f64 = 0.7;

/// Growth of CUBIC after a loss, in segments per cubic second (RFC 9438).
const CUBIC_GROWTH: f64 = 0.4;

/// Time between two measurements of the round trip by BBR, and the least time of one, seconds. Source: Linux
/// `tcp_bbr.c` (`bbr_min_rtt_win_sec`, `bbr_probe_rtt_mode_ms`).
const BBR_PROBES_EVERY_S: f64 = 10.0;
const BBR_PROBE_S: f64 = 0.2;

/// Path of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathFacts {
    /// Round-trip time without queues; greater than zero.
    pub rtt: Duration,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// Part of the packets that the path loses at random, from 0 to 1.
    pub loss: f64,
}

/// Congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Reno (RFC 5681).
    Reno,
    /// CUBIC (RFC 9438), the default of Linux.
    Cubic,
    /// BBR, whose rate does not follow from losses up to about 15 %.
    Bbr,
}

/// Returns the rate that a window gives.
pub fn of_window(window: ByteCount, rtt: Duration) -> f64 {
    window.0 as f64 * 8.0 / rtt.as_secs_f64()
}

/// Returns the rate at which random loss holds one connection, bit/s. `capacity` bounds BBR only.
///
/// Source: Mathis et al. 1997 for Reno, RFC 9438 section 5.1 for CUBIC. CUBIC is never slower than Reno.
pub fn of_loss(control: Control, path: &PathFacts, capacity: BitRate) -> f64 {
    if path.loss <= 0.0 {
        return f64::INFINITY;
    }
    let segments = match control {
        Control::Reno => reno_segments(path.loss),
        Control::Cubic => cubic_segments(path).max(reno_segments(path.loss)),
        Control::Bbr => return capacity.0 as f64 * (1.0 - path.loss),
    };
    segments * f64::from(path.mss) * 8.0 / path.rtt.as_secs_f64()
}

/// Returns the part of the time in which BBR uses a path of which it has all: every 10 s it lets the path run empty,
/// waits for a round trip (200 ms at least), and data arrives again a round trip later.
pub fn bbr_share(rtt: Duration) -> f64 {
    let rtt = rtt.as_secs_f64();
    BBR_PROBES_EVERY_S / (BBR_PROBES_EVERY_S + rtt + rtt.max(BBR_PROBE_S))
}

fn reno_segments(loss: f64) -> f64 {
    1.22 / loss.sqrt()
}

fn cubic_segments(path: &PathFacts) -> f64 {
    1.054 * path.rtt.as_secs_f64().powf(0.75) / path.loss.powf(0.75)
}

/// Returns the loss up to which one connection reaches a rate: the inverse of [`of_loss`] for Reno and CUBIC.
pub fn loss_budget(control: Control, rate: BitRate, path: &PathFacts) -> f64 {
    let rtt = path.rtt.as_secs_f64();
    let segments = rate.0 as f64 * rtt / 8.0 / f64::from(path.mss);
    let reno = (1.22 / segments).powi(2);
    match control {
        Control::Reno => reno,
        Control::Cubic => (1.054 * rtt.powf(0.75) / segments).powf(4.0 / 3.0).max(reno),
        // Above about 15 % BBR loses its model of the path.
        Control::Bbr => 0.15,
    }
    .min(1.0)
}

/// Returns the time in which slow start reaches a window.
pub fn ramp(window: ByteCount, path: &PathFacts) -> Duration {
    let first = INITIAL_WINDOW * f64::from(path.mss);
    let rounds = (window.0 as f64 / first).log2().max(0.0);
    path.rtt.mul_f64(rounds)
}

/// Returns the time after a loss in which CUBIC has its window again.
pub fn cubic_recovery(window: ByteCount, mss: u32) -> Duration {
    let segments = window.0 as f64 / f64::from(mss);
    Duration::from_secs_f64((segments * (1.0 - CUBIC_BETA) / CUBIC_GROWTH).cbrt())
}

/// Returns the mean rate of a file over a new connection that could reach `rate`: handshake, slow start, and the rest.
pub fn of_new_connection(size: ByteCount, rate: BitRate, path: &PathFacts) -> f64 {
    let window = sterna_proto::quantity::bandwidth_delay_product(rate, path.rtt);
    let (size, rtt) = (size.0 as f64, path.rtt.as_secs_f64());
    let first = INITIAL_WINDOW * f64::from(path.mss);
    // Slow start has sent 2W - first when it reaches the window W.
    let in_ramp = (2.0 * window.0 as f64 - first).max(first);
    let time = if size > in_ramp {
        rtt + ramp(window, path).as_secs_f64() + (size - in_ramp) * 8.0 / rate.0 as f64
    } else {
        rtt + rtt * ((size + first) / first).log2().max(1.0)
    };
    size * 8.0 / time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt_ms: u64, loss: f64) -> PathFacts {
        PathFacts { rtt: Duration::from_millis(rtt_ms), mss: 1448, loss }
    }

    fn megabits(rate: f64) -> f64 {
        (rate / 1e5).round() / 10.0
    }

    fn is_near(value: f64, expected: f64, part: f64) -> bool {
        (value - expected).abs() <= expected * part
    }

    #[test]
    fn cubic_has_the_rates_of_the_published_functions() {
        // Computed apart from this code, in Mbit/s; the first entries are those of Reno.
        for (rtt, rates) in [
            (10, [45.0, 142.0, 449.0, 1419.0, 6866.0]),
            (50, [9.0, 28.0, 145.0, 817.0, 4592.0]),
            (150, [3.5, 20.0, 110.0, 620.0, 3489.0]),
            (200, [3.2, 18.0, 103.0, 577.0, 3247.0]),
        ] {
            for (exponent, expected) in (3..).zip(rates) {
                let path = path(rtt, 10f64.powi(-exponent));
                let rate = megabits(of_loss(Control::Cubic, &path, BitRate(0)));
                assert!(is_near(rate, expected, 0.03), "{rtt} ms, 1e-{exponent}: {rate}, not {expected}");
            }
        }
        assert_eq!(of_loss(Control::Cubic, &path(10, 0.0), BitRate(0)), f64::INFINITY);
        assert_eq!(of_loss(Control::Bbr, &path(10, 0.01), BitRate::megabits(100)), 99e6);
    }

    #[test]
    fn bbr_pauses_for_two_round_trips_in_ten_seconds() {
        for (rtt_ms, share) in [(8, 0.980), (150, 0.966), (320, 0.940), (660, 0.883)] {
            assert!(is_near(bbr_share(Duration::from_millis(rtt_ms)), share, 0.001), "{rtt_ms} ms");
        }
    }

    #[test]
    fn the_loss_budget_of_ten_gigabits_is_too_small_to_be_measured_with_packets() {
        let (rate, path) = (BitRate::megabits(10_000), path(100, 0.0));
        assert!(is_near(loss_budget(Control::Reno, rate, &path), 2e-10, 0.05));
        assert!(is_near(loss_budget(Control::Cubic, rate, &path), 2.8e-8, 0.05));
        let back = PathFacts { loss: loss_budget(Control::Cubic, rate, &path), ..path };
        assert!(is_near(of_loss(Control::Cubic, &back, rate), 1e10, 1e-6));
    }

    #[test]
    fn slow_start_takes_the_seconds_that_engineers_have_seen() {
        // GRNET: 10 Gbit/s over 148 ms, 185 MB.
        let time = ramp(ByteCount(185_000_000), &path(148, 0.0)).as_secs_f64();
        assert!(is_near(time, 2.0, 0.05), "{time}");
        assert_eq!(ramp(ByteCount(1000), &path(148, 0.0)), Duration::ZERO);
        // A product of 700 MB over 150 ms at 10 Gbit/s.
        let rate = of_new_connection(ByteCount(700_000_000), BitRate::megabits(10_000), &path(150, 0.0));
        assert!((2e9..2.6e9).contains(&rate), "{rate}");
        let small = of_new_connection(ByteCount(14_480), BitRate::megabits(10_000), &path(100, 0.0));
        assert!(is_near(small, 14_480.0 * 8.0 / 0.2, 0.01), "handshake and one round: {small}");
    }

    #[test]
    fn cubic_needs_the_time_of_its_growth_after_a_loss() {
        let time = cubic_recovery(ByteCount(185_000_000), 1448).as_secs_f64();
        assert!(is_near(time, 45.8, 0.01), "{time}");
    }
}
