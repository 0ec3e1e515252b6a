//! A TCP flow with CUBIC (RFC 9438) that always has data: the most common competing traffic.

use std::collections::BTreeMap;
use std::time::Duration;

/// One flow; counts packets, not bytes.
#[derive(Clone, Debug)]
pub struct Cubic {
    cwnd: f64,
    ssthresh: f64,
    window_max: f64,
    epoch: Option<Duration>,
    /// Packets in flight with their send time.
    flying: BTreeMap<u64, Duration>,
    next_number: u64,
    largest_acked: u64,
    /// Losses of packets below this number belong to a congestion event that has already reduced the window.
    recovered_at: u64,
    /// Smoothed round-trip time; `None` before the first sample.
    rtt: Option<Duration>,
    rtt_min: Duration,
    last_progress: Duration,
}

impl Cubic {
    pub fn new() -> Self {
        Self {
            cwnd: 10.0,
            ssthresh: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            flying: BTreeMap::new(),
            next_number: 0,
            largest_acked: 0,
            recovered_at: 0,
            rtt: None,
            rtt_min: Duration::MAX,
            last_progress: Duration::ZERO,
        }
    }

    /// Returns the number of the next packet to send now, if the window has room.
    pub fn poll_send(&mut self, now: Duration) -> Option<u64> {
        if now >= self.timeout_at() {
            self.time_out(now);
        }
        if self.flying.len() as f64 + 1.0 > self.cwnd {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.flying.insert(number, now);
        Some(number)
    }

    /// Returns the time of the next call even if nothing arrives.
    pub fn poll_timeout(&self) -> Duration {
        self.timeout_at()
    }

    pub fn handle_ack(&mut self, now: Duration, number: u64) {
        let Some(sent) = self.flying.remove(&number) else { return };
        self.last_progress = now;
        self.rtt = Some(self.rtt.map_or(now - sent, |rtt| (rtt * 7 + (now - sent)) / 8));
        self.rtt_min = self.rtt_min.min(now - sent);
        self.largest_acked = self.largest_acked.max(number);
        self.detect_loss(now);
        if number < self.recovered_at {
            return;
        }
        if self.cwnd < self.ssthresh {
            self.cwnd += 1.0;
            // Delay rule of HyStart++ (RFC 9406, simplified): leaves slow start when a queue builds up.
            if now - sent > self.rtt_min + (self.rtt_min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16))
            {
                self.ssthresh = self.cwnd;
            }
            return;
        }
        self.grow(now);
    }

    fn grow(&mut self, now: Duration) {
        let Some(rtt) = self.rtt.map(|rtt| rtt.as_secs_f64()) else { return };
        let epoch = *self.epoch.get_or_insert(now);
        let k = ((self.window_max * (1.0 - BETA)).max(0.0) / C).cbrt();
        let t = (now - epoch).as_secs_f64() + rtt;
        let target = C * (t - k).powi(3) + self.window_max;
        let reno = self.window_max * BETA + 3.0 * (1.0 - BETA) / (1.0 + BETA) * (t / rtt);
        let target = target.max(reno).clamp(self.cwnd, self.cwnd * 1.5);
        self.cwnd += (target - self.cwnd) / self.cwnd;
    }

    fn detect_loss(&mut self, now: Duration) {
        while let Some((&number, _)) = self.flying.first_key_value() {
            if number + 3 > self.largest_acked {
                return;
            }
            self.flying.pop_first();
            if number >= self.recovered_at {
                self.recovered_at = self.next_number;
                self.window_max = self.cwnd;
                self.cwnd = (self.cwnd * BETA).max(2.0);
                self.ssthresh = self.cwnd;
                self.epoch = Some(now);
            }
        }
    }

    fn timeout_at(&self) -> Duration {
        // RFC 6298: one second before the first sample.
        self.last_progress + self.rtt.map_or(Duration::from_secs(1), |rtt| Duration::from_millis(200).max(rtt * 3))
    }

    fn time_out(&mut self, now: Duration) {
        self.last_progress = now;
        if self.flying.is_empty() {
            return;
        }
        self.flying.clear();
        self.recovered_at = self.next_number;
        self.ssthresh = (self.cwnd * BETA).max(2.0);
        self.window_max = self.cwnd;
        self.cwnd = 1.0;
        self.epoch = None;
    }
}

const BETA: f64 = 0.7;
const C: f64 = 0.4;
