//! Path records of earlier sessions: a few lines of text, with an age limit.
//!
//! Reads, writes and ages records. Refuses to access the file that contains them, or read a clock. Time comes in as
//! seconds since 1970, records come in and leave as text.
//!
//! A record is a hint and never a promise. A session that begins near a remembered rate first tests whether the path
//! still carries that rate.

use std::fmt;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::via::Via;
use crate::{BitRate, ByteCount};

/// Identity of a path: the direction of the data, and the addresses of both ends, which stand for their networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathKey {
    /// Direction of the data.
    pub direction: DataDirection,
    /// Address of this host, as chosen by the system.
    pub local: IpAddr,
    /// Address of the agent.
    pub remote: SocketAddr,
}

/// Direction of the data on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// From this host.
    Out,
    /// To this host.
    In,
}

/// Measurements of one session about a path over one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Path.
    pub key: PathKey,
    /// Transport.
    pub via: Via,
    /// Highest rate over some seconds, on the wire.
    pub rate: BitRate,
    /// True if the path was the limit of the session, so its capacity is `rate`. False: `rate` is a lower bound.
    pub is_full: bool,
    /// Smallest round-trip time.
    pub rtt: Duration,
    /// Packets lost, in parts per million.
    pub loss_ppm: u32,
    /// Path MTU, bytes of an IP packet; 0 if the transport does not report it.
    pub mtu: u16,
    /// Time of the record, in seconds since 1970.
    pub at: u64,
}

impl PathRecord {
    /// Returns the rate for people.
    pub fn shown_rate(&self) -> String {
        if self.is_full { self.rate.to_string() } else { format!("at least {}", self.rate) }
    }

    /// Returns the age at `now`, seconds since 1970; zero for a record from the future.
    pub fn age(&self, now: u64) -> Duration {
        Duration::from_secs(now.saturating_sub(self.at))
    }
}

/// All path records of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathRecords {
    records: Vec<PathRecord>,
}

impl PathRecords {
    /// Reads the text that [`PathRecords::to_text`] wrote. Invalid lines are skipped: a record is not worth an error.
    pub fn parse(text: &str) -> Self {
        Self { records: text.lines().filter_map(|line| line.parse().ok()).take(RECORDS_MAX).collect() }
    }

    /// Returns the records as text, one a line.
    pub fn to_text(&self) -> String {
        let mut text = String::from(HEADING);
        for record in &self.records {
            text.push_str(&format!("{record}\n"));
        }
        text
    }

    /// Returns all records that are young enough at `now`, seconds since 1970.
    pub fn young(&self, now: u64) -> Vec<PathRecord> {
        self.records.iter().filter(|record| record.age(now) <= KEPT).copied().collect()
    }

    /// Returns the records of a path that are young enough at `now`, the newest first.
    pub fn recall(&self, key: &PathKey, now: u64) -> Vec<PathRecord> {
        let mut found: Vec<PathRecord> =
            self.records.iter().filter(|record| record.key == *key && record.age(now) <= KEPT).copied().collect();
        found.sort_by_key(|record| std::cmp::Reverse(record.at));
        found
    }

    /// Adds a record, which replaces the one of the same path and transport. If the path was not the limit, a record
    /// below the known rate is dropped. If no rate is known, such a record is dropped below `RATE_WORTH`.
    pub fn learn(&mut self, record: PathRecord) {
        let is_same = |old: &&PathRecord| (old.key, old.via) == (record.key, record.via) && old.age(record.at) <= KEPT;
        let known = self.records.iter().find(is_same).map(|old| old.rate);
        if !record.is_full && record.rate < known.unwrap_or(RATE_WORTH) {
            return;
        }
        self.records.retain(|old| (old.key, old.via) != (record.key, record.via) && old.age(record.at) <= KEPT);
        if self.records.len() >= RECORDS_MAX {
            let oldest = self.records.iter().enumerate().min_by_key(|(_, old)| old.at).map(|(index, _)| index);
            oldest.map(|index| self.records.swap_remove(index));
        }
        self.records.push(record);
    }
}

impl fmt::Display for PathRecord {
    /// Writes a line of the file; see [`HEADING`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, via, rate, is_full, rtt, loss_ppm, mtu, at } = self;
        let extent = if *is_full { FULL } else { LEAST };
        let direction = match key.direction {
            DataDirection::Out => "out",
            DataDirection::In => "in",
        };
        let (local, remote, rtt_us) = (key.local, key.remote, rtt.as_micros());
        write!(f, "{direction} {local} {remote} {via} {} {extent} {rtt_us} {loss_ppm} {mtu} {at}", rate.0)
    }
}

impl FromStr for PathRecord {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[direction, local, remote, via, rate, extent, rtt_us, loss_ppm, mtu, at] = &fields[..] else {
            return Err(());
        };
        let direction = match direction {
            "out" => DataDirection::Out,
            "in" => DataDirection::In,
            _ => return Err(()),
        };
        let via = match via {
            "tcp" => Via::Tcp,
            "quic" => Via::Quic,
            _ => return Err(()),
        };
        let number = |text: &str| text.parse::<u64>().map_err(drop);
        let record = Self {
            key: PathKey { direction, local: local.parse().map_err(drop)?, remote: remote.parse().map_err(drop)? },
            via,
            rate: BitRate(number(rate)?),
            is_full: match extent {
                FULL => true,
                LEAST => false,
                _ => return Err(()),
            },
            rtt: Duration::from_micros(number(rtt_us)?),
            loss_ppm: loss_ppm.parse().map_err(drop)?,
            mtu: mtu.parse().map_err(drop)?,
            at: number(at)?,
        };
        (record.rate >= RATE_MIN && record.rtt <= RTT_MAX).then_some(record).ok_or(())
    }
}

/// Highest rate over some seconds of a session.
///
/// Its input is the byte count of the session, from time to time. Cost: O(1).
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakRate {
    since: Option<(Duration, u64)>,
    peak: Option<BitRate>,
}

impl PeakRate {
    /// Records that `bytes` have been carried at `now` after the start. A lower count than before means that a lane has
    /// ended: the measurement restarts.
    pub fn observe(&mut self, now: Duration, bytes: u64) {
        let (since, before) = *self.since.get_or_insert((now, bytes));
        let elapsed = now.saturating_sub(since);
        match bytes.checked_sub(before) {
            Some(moved) if elapsed >= PEAK_OVER => {
                self.peak = self.peak.max(Some(BitRate::mean(ByteCount(moved), elapsed)));
                self.since = Some((now, bytes));
            }
            Some(_) => {}
            None => self.since = Some((now, bytes)),
        }
    }

    /// Returns the highest rate; `None` if the session was too short for a measurement.
    pub fn value(&self) -> Option<BitRate> {
        self.peak
    }
}

/// Period of a rate measurement. Reason: longer than the buffers of two hosts and the queue of a path can pass at once.
const PEAK_OVER: Duration = Duration::from_secs(2);

/// Time for which a record is valid. Guess: contracts and routes change within months. A session that begins at an old
/// rate which is too high costs one queue.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Most records. Reason: one line for each site that a host communicates with.
const RECORDS_MAX: usize = 512;

/// Lowest rate that is recorded if the path was not the limit. Reason: a copy without a record begins there.
const RATE_WORTH: BitRate = BitRate::megabits(1);

/// Bounds of a valid record: outside them it is damaged.
const RATE_MIN: BitRate = BitRate(1000);
const RTT_MAX: Duration = Duration::from_secs(60);

/// First lines of the file.
const HEADING: &str = "# What sterna has learnt about paths, to begin the next copy near it; harmless to delete.
# direction local remote transport rate_bps full|least rtt_us loss_ppm mtu unix_time
";

/// Meaning of a rate: capacity of the path, or lower bound.
const FULL: &str = "full";
const LEAST: &str = "least";

#[cfg(test)]
mod tests {
    use super::*;

    fn record(port: u16, via: Via, at: u64) -> PathRecord {
        let key = PathKey {
            direction: DataDirection::Out,
            local: [10, 0, 0, 1].into(),
            remote: ([10, 0, 0, 2], port).into(),
        };
        let rtt = Duration::from_millis(660);
        PathRecord { key, via, rate: BitRate::megabits(50), is_full: true, rtt, loss_ppm: 17, mtu: 1500, at }
    }

    #[test]
    fn a_trickle_teaches_nothing_of_a_path_that_carried_more() {
        let mut memory = PathRecords::default();
        let known = record(7373, Via::Quic, 1_000);
        let trickle = PathRecord { rate: BitRate(8_916), is_full: false, at: 1_010, ..known };
        memory.learn(trickle);
        assert!(memory.recall(&known.key, 1_020).is_empty());
        memory.learn(known);
        memory.learn(trickle);
        assert_eq!(memory.recall(&known.key, 1_020), [known]);
        let more = PathRecord { rate: BitRate(known.rate.0 * 2), is_full: false, at: 1_030, ..known };
        memory.learn(more);
        assert_eq!(PathRecords::parse(&memory.to_text()).recall(&known.key, 1_040), [more]);
        // A full path shows its low capacity.
        memory.learn(PathRecord { is_full: true, at: 1_050, ..trickle });
        assert_eq!(memory.recall(&known.key, 1_060)[0].rate, trickle.rate);
    }

    #[test]
    fn what_is_written_reads_back_and_damage_is_left_out() {
        let mut memory = PathRecords::default();
        memory.learn(record(7373, Via::Quic, 1_000));
        memory.learn(PathRecord {
            key: PathKey { direction: DataDirection::In, ..record(1, Via::Tcp, 0).key },
            ..record(1, Via::Tcp, 900)
        });
        let text = memory.to_text();
        assert_eq!(PathRecords::parse(&text), memory);
        let damaged = text.replace("quic", "warp").replace(" tcp ", " tcp x ");
        assert_eq!(PathRecords::parse(&damaged), PathRecords::default());
        assert_eq!(PathRecords::parse("\u{0}\n\n# \u{fffd}"), PathRecords::default());
    }

    #[test]
    fn the_newest_of_each_transport_is_kept_and_the_old_is_forgotten() {
        let mut memory = PathRecords::default();
        for at in [5, 10, 7] {
            memory.learn(record(7373, Via::Quic, at));
        }
        memory.learn(record(7373, Via::Tcp, 20));
        let key = record(7373, Via::Tcp, 0).key;
        let recalled = |now| memory.recall(&key, now).iter().map(|record| (record.via, record.at)).collect::<Vec<_>>();
        assert_eq!(recalled(30), [(Via::Tcp, 20), (Via::Quic, 7)]);
        assert_eq!(recalled(7 + KEPT.as_secs() + 1), [(Via::Tcp, 20)]);
        assert!(memory.recall(&PathKey { direction: DataDirection::In, ..key }, 30).is_empty());
        assert_eq!(recalled(0), [(Via::Tcp, 20), (Via::Quic, 7)], "a clock that went back forgets nothing");
    }

    #[test]
    fn the_number_of_records_is_bounded() {
        let mut memory = PathRecords::default();
        for port in 0..2000 {
            memory.learn(record(port, Via::Quic, u64::from(port)));
        }
        assert_eq!(memory.records.len(), RECORDS_MAX);
        assert!(!memory.recall(&record(1999, Via::Quic, 0).key, 2000).is_empty());
    }

    #[test]
    fn a_peak_is_of_whole_stretches() {
        let mut peak = PeakRate::default();
        let rates = [0, 1_000_000, 2_000_000, 12_000_000, 22_000_000, 5_000_000, 6_000_000, 7_000_000];
        for (second, bytes) in rates.into_iter().enumerate() {
            peak.observe(Duration::from_secs(second as u64), bytes);
        }
        assert_eq!(peak.value(), Some(BitRate::megabits(80)));
        let mut short = PeakRate::default();
        short.observe(Duration::ZERO, 0);
        short.observe(Duration::from_millis(1900), 1 << 30);
        assert_eq!(short.value(), None);
    }
}
