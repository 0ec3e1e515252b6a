//! Schedule of a sender: the packets that are due at a time. Pure; time enters as nanoseconds since the start.

/// Rate below which packets go one by one, bit/s. Reason: a policer with a bucket of 8 kB drops from larger batches at
/// any rate.
const ONE_BY_ONE_BELOW: u64 = 100_000_000;

/// Size up to which small packets go together below that rate, bytes. Reason: one full packet of Ethernet.
const SINGLE_BYTES: u64 = 1500;

/// Time of a batch at its rate. Reason: 31 kB at 1 Gbit/s, so 4000 wakeups a second.
const BATCH_NS: u64 = 250_000;

/// Lateness above which the schedule shifts. Reason: a sender that catches up more than that sends bursts of its own.
const LATE_NS_MAX: u64 = 5_000_000;

/// Next step of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::measure) enum Step {
    /// Wait until this time.
    Wait(u64),
    /// Send packets up to this many bytes, and at least one.
    Send(u64),
}

/// Pace of a sender. After a pause of up to 5 ms it catches up, at no more than twice its rate; after a longer one the
/// rest of the schedule moves by the pause.
#[derive(Clone, Debug)]
pub(in crate::measure) struct Pace {
    rate_bps: u64,
    /// Bytes of a full batch.
    batch: u64,
    /// Bytes handed out.
    bytes: u64,
    /// Time by which the schedule has moved.
    shifted: u64,
    /// Earliest time of the next batch.
    not_before: u64,
    /// Longest lateness.
    pause: u64,
}

impl Pace {
    /// Paces packets at a rate, bit/s.
    pub(in crate::measure) fn new(rate_bps: u64) -> Self {
        let batch = bytes_in(rate_bps, BATCH_NS);
        let batch = if rate_bps < ONE_BY_ONE_BELOW { batch.min(SINGLE_BYTES) } else { batch };
        Self { rate_bps: rate_bps.max(1), batch, bytes: 0, shifted: 0, not_before: 0, pause: 0 }
    }

    /// Returns the next step at a time. `packet`: size of the next packet, bytes.
    pub(in crate::measure) fn step(&mut self, now: u64, packet: u64) -> Step {
        // A batch is due when its last packet is.
        let full = self.due(self.batch.saturating_sub(packet));
        let first = self.due(0);
        if now < full.max(self.not_before) {
            return Step::Wait(full.max(self.not_before));
        }
        self.pause = self.pause.max(now - full);
        if now - full > LATE_NS_MAX {
            self.shifted += now - full;
            return Step::Send(self.batch);
        }
        Step::Send(bytes_in(self.rate_bps, now - first).saturating_add(packet).min(self.batch))
    }

    /// Records packets that were sent or refused at a time.
    pub(in crate::measure) fn sent(&mut self, now: u64, bytes: u64) {
        self.bytes += bytes;
        self.not_before = now + self.time_of(bytes) / 2;
    }

    /// Returns the longest lateness, ns.
    pub(in crate::measure) fn pause(&self) -> u64 {
        self.pause
    }

    /// Returns the time by which the schedule has moved, ns.
    pub(in crate::measure) fn shifted(&self) -> u64 {
        self.shifted
    }

    /// Returns the time at which the packet is due that begins `ahead` bytes after the next one.
    fn due(&self, ahead: u64) -> u64 {
        self.shifted + self.time_of(self.bytes + ahead)
    }

    fn time_of(&self, bytes: u64) -> u64 {
        u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(self.rate_bps)).unwrap_or(u64::MAX / 4)
    }
}

fn bytes_in(rate_bps: u64, time_ns: u64) -> u64 {
    u64::try_from(u128::from(rate_bps) * u128::from(time_ns) / 8_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a sender of packets whose waits take `late` longer. Returns times and bytes of its batches.
    fn batches(rate_bps: u64, packet: u64, end: u64, mut late: impl FnMut(u64) -> u64) -> (Pace, Vec<(u64, u64)>) {
        let (mut pace, mut now, mut sent) = (Pace::new(rate_bps), 0, Vec::new());
        while now < end {
            match pace.step(now, packet) {
                Step::Wait(until) => now = until + late(until),
                Step::Send(bytes) => {
                    let bytes = (bytes / packet).max(1) * packet;
                    sent.push((now, bytes));
                    pace.sent(now, bytes);
                }
            }
        }
        (pace, sent)
    }

    #[test]
    fn a_rate_is_kept_in_small_batches() {
        for (rate, packet, batch) in [
            (1_000_000, 1500, 1500),
            (1_000_000, 72, 72),
            (50_000_000, 72, 1500),
            (99_000_000, 1500, 1500),
            (1_000_000_000, 1500, 31_250),
            (10_000_000_000, 9000, 312_500),
        ] {
            // Wakeups that are 60 us late lose nothing.
            let (pace, sent) = batches(rate, packet, 1_000_000_000, |_| 60_000);
            let bytes: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
            let goal = rate / 8;
            assert!(bytes.abs_diff(goal) <= 2 * batch.max(packet), "{rate}: {bytes} of {goal}");
            assert!(sent.iter().all(|(_, bytes)| *bytes <= batch.max(packet)), "{rate}");
            assert_eq!((pace.pause(), pace.shifted()), (60_000, 0), "{rate}");
        }
    }

    #[test]
    fn a_short_pause_is_caught_up_at_twice_the_rate_and_a_long_one_moves_the_schedule() {
        let once = |length: u64| {
            let mut left = 1;
            move |at: u64| if at > 500_000_000 && std::mem::take(&mut left) == 1 { length } else { 0 }
        };
        let (pace, sent) = batches(80_000_000, 1000, 1_000_000_000, once(4_000_000));
        assert!(pace.shifted() == 0 && pace.pause() >= 3_900_000, "{pace:?}");
        let gaps: Vec<u64> = sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert_eq!(gaps.iter().filter(|gap| **gap < 50_000).count(), 0, "twice the rate is a packet every 50 us");
        assert!(sent.iter().map(|(_, bytes)| bytes).sum::<u64>().abs_diff(10_000_000) <= 2000);
        let (pace, sent) = batches(80_000_000, 1000, 1_000_000_000, once(50_000_000));
        assert!(pace.shifted() >= 49_000_000 && pace.pause() >= 49_000_000, "{pace:?}");
        assert!(sent.iter().map(|(_, bytes)| bytes).sum::<u64>().abs_diff(9_500_000) <= 3000);
    }
}
