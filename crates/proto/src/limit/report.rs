//! Reports about limits between the two ends; cumulative, so that the loss of one report costs nothing.

use std::time::Duration;

use super::{Facts, Limit, LimitTimes};
use crate::error::Error;
use crate::wire::{Reader, Writer};
use crate::{BitRate, ByteCount};

/// Report of a receiver to the sender: time of the threads that read its lanes, since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverReport {
    /// Time of sending, by the clock of the receiver, which starts with the session.
    pub sent_at: Duration,
    /// Total time of these threads.
    pub lane_time: Duration,
    /// Part of it in which they waited for data from the network.
    pub waiting: Duration,
    /// Part of it in which they waited for storage.
    pub storage: Duration,
    /// Time in which storage worked for the session while no lane waited for it: publishing, syncing, reading data that
    /// an earlier session had left.
    pub publishing: Duration,
    /// Time that the thread of a QUIC engine computed or waited for a processor, mean of the lanes that are up; 0 over
    /// TCP.
    pub engine: Duration,
    /// Bytes written.
    pub written: ByteCount,
    /// Largest receive buffer of a lane now.
    pub buffer: ByteCount,
    /// Limit of the kernel for that buffer; 0 if unknown.
    pub buffer_max: ByteCount,
    /// Fullest receive buffer of a lane now: data that arrived and was not read.
    pub unread: ByteCount,
    /// Largest window that a lane announces now.
    pub window: ByteCount,
    /// Packets that the path delivered and the UDP sockets of this host dropped, since their lanes came up.
    pub dropped: u64,
}

impl ReceiverReport {
    /// Writes the report in the format of a frame: integers, times in microseconds.
    pub fn write(&self, w: &mut Writer) {
        [self.sent_at, self.lane_time, self.waiting, self.storage, self.publishing, self.engine]
            .iter()
            .for_each(|time| w.integer(micros(*time)));
        [self.written, self.buffer, self.buffer_max, self.unread, self.window]
            .iter()
            .for_each(|bytes| w.integer(bytes.0));
        w.integer(self.dropped);
    }

    /// Reads the report. Errors: the frame is cut short.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            sent_at: read_time(r)?,
            lane_time: read_time(r)?,
            waiting: read_time(r)?,
            storage: read_time(r)?,
            publishing: read_time(r)?,
            engine: read_time(r)?,
            written: ByteCount(r.integer()?),
            buffer: ByteCount(r.integer()?),
            buffer_max: ByteCount(r.integer()?),
            unread: ByteCount(r.integer()?),
            window: ByteCount(r.integer()?),
            dropped: r.integer()?,
        })
    }
}

/// Result of a sender: shares of time, and the measurements for the remedies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LimitReport {
    /// Time by limit in the last few seconds.
    pub recent: LimitTimes,
    /// Time by limit since the session began.
    pub total: LimitTimes,
    /// Measurements.
    pub facts: Facts,
}

impl LimitReport {
    /// Writes the report in the format of a frame: integers, times in microseconds, rates in bit/s; then an area.
    pub fn write(&self, w: &mut Writer) {
        for times in [&self.recent, &self.total] {
            w.integer(Limit::ALL.len() as u64);
            Limit::ALL.iter().for_each(|limit| w.integer(micros(times.of(*limit))));
        }
        let facts = &self.facts;
        w.integer(micros(facts.rtt));
        let rates = [facts.rate, facts.reached, facts.rate_cap, facts.policed, facts.source, facts.destination];
        rates.iter().for_each(|rate| w.integer(rate.0));
        let sizes = [
            facts.receive_window,
            facts.receive_buffer,
            facts.receive_buffer_max,
            facts.send_buffer,
            facts.send_buffer_max,
        ];
        sizes.iter().for_each(|bytes| w.integer(bytes.0));
        w.integer(facts.loss_ppm);
        w.integer(facts.lost);
        w.integer(facts.lanes);
        w.integer(facts.disordered_ppm);
        w.integer(facts.overrun);
        let flags = [
            facts.is_quic,
            facts.is_growing,
            facts.cpu_at_receiver,
            facts.is_unscaled,
            facts.is_web,
            facts.policed_is_least,
            facts.policed_over_quic,
        ];
        flags.iter().for_each(|flag| w.byte(u8::from(*flag)));
        w.empty_area();
    }

    /// Reads the report. Errors: the frame is cut short, or a flag is neither 0 nor 1.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let (recent, total) = (read_times(r)?, read_times(r)?);
        let rtt = read_time(r)?;
        let mut rate = || r.integer().map(BitRate);
        let (rate, reached, rate_cap) = (rate()?, rate()?, rate()?);
        let (policed, source, destination) = (BitRate(r.integer()?), BitRate(r.integer()?), BitRate(r.integer()?));
        let mut size = || r.integer().map(ByteCount);
        let facts = Facts {
            rtt,
            rate,
            reached,
            rate_cap,
            policed,
            source,
            destination,
            receive_window: size()?,
            receive_buffer: size()?,
            receive_buffer_max: size()?,
            send_buffer: size()?,
            send_buffer_max: size()?,
            loss_ppm: r.integer()?,
            lost: r.integer()?,
            lanes: r.integer()?,
            disordered_ppm: r.integer()?,
            overrun: r.integer()?,
            is_quic: read_flag(r)?,
            is_growing: read_flag(r)?,
            cpu_at_receiver: read_flag(r)?,
            is_unscaled: read_flag(r)?,
            is_web: read_flag(r)?,
            policed_is_least: read_flag(r)?,
            policed_over_quic: read_flag(r)?,
        };
        r.skip_area()?;
        Ok(Self { recent, total, facts })
    }
}

/// Writes a time: an integer of microseconds.
pub(crate) fn write_time(w: &mut Writer, time: Duration) {
    w.integer(micros(time));
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Longest time that is accepted from a peer: a year. Reason: sums of ten of them stay far below the maximum of a
/// [`Duration`].
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a time as [`write_time`] writes it; saturates at [`TIME_MAX`].
pub(crate) fn read_time(r: &mut Reader<'_>) -> Result<Duration, Error> {
    Ok(Duration::from_micros(r.integer()?).min(TIME_MAX))
}

/// Maximum number of limits in a report. Reason: several times as many as exist.
const LIMITS_MAX: u64 = 64;

/// Reads times by limit. Skips those of limits that only a newer peer knows.
fn read_times(r: &mut Reader<'_>) -> Result<LimitTimes, Error> {
    let mut times = LimitTimes::default();
    for index in 0..r.integer_up_to(LIMITS_MAX)? {
        let time = read_time(r)?;
        Limit::ALL.get(index as usize).iter().for_each(|limit| times.add(**limit, time));
    }
    Ok(times)
}

fn read_flag(r: &mut Reader<'_>) -> Result<bool, Error> {
    match r.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::protocol(format!("flag from the peer: {other} is neither 0 nor 1"))),
    }
}
