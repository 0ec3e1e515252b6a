//! Checks of reports. An agent, or a file, may be that of a stranger: its reports have the shape that was asked for,
//! bounded lists, and numbers whose sums over an examination do not overflow.

use sterna_proto::Error;

use super::list::{BINS_MAX, LONGER_MAX, SAMPLES_MAX};
use super::{
    EchoReport, EchoSpec, FlowReport, FlowSample, FlowSpec, HostFacts, PortCount, SizeCount, StreamReport, TrainBin,
    TrainReport, TrainSpec,
};
use crate::disk::DiskSpeed;
use crate::measure::LOST_MAX;

/// Largest number of a report. Reason: 180 s at 10 Tbit/s are less, and other languages read it exactly.
const COUNT_MAX: u64 = 1 << 48;

/// Maximum length of a text in bytes. Reason: values of settings and errors of the system are shorter.
const TEXT_BYTES_MAX: usize = 1000;

/// Maximum length of the name of a congestion control. Source: `TCP_CA_NAME_MAX` of the kernel.
const CONGESTION_BYTES_MAX: usize = 16;

/// Maximum payload of a segment, in bytes. Reason: that of the largest IP packet.
const MSS_MAX: u32 = 65_535;

/// Maximum number of settings of a host. Reason: this release reads 22.
const SETTINGS_MAX: usize = 256;

impl FlowReport {
    /// Checks the report of one end against the flow that was asked for. Errors: `Protocol`: no end observes that.
    pub fn check(&self, spec: &FlowSpec) -> Result<(), Error> {
        let Self { streams, cpu_us, host_busy_us, pause_us, time_us } = self;
        if streams.len() != spec.streams as usize {
            return Err(wrong(format!("{} streams of {}", streams.len(), spec.streams)));
        }
        counts(&[*cpu_us, *host_busy_us, *pause_us])?;
        let end_us = u64::try_from((spec.time() + LONGER_MAX).as_micros()).unwrap_or(u64::MAX);
        if *time_us > end_us {
            return Err(wrong(format!("a flow of {time_us} us: {} ms were asked for", spec.time_ms)));
        }
        streams.iter().try_for_each(|stream| stream.check(end_us))
    }
}

impl StreamReport {
    fn check(&self, end_us: u64) -> Result<(), Error> {
        if self.samples.len() > SAMPLES_MAX {
            return Err(wrong(format!("{} samples of a stream", self.samples.len())));
        }
        if self.mss > MSS_MAX {
            return Err(wrong(format!("segments of {} bytes", self.mss)));
        }
        text(&self.congestion, CONGESTION_BYTES_MAX)?;
        text(self.error.as_deref().unwrap_or_default(), TEXT_BYTES_MAX)?;
        self.samples.iter().try_for_each(FlowSample::check)?;
        let is_in_order = self.samples.is_sorted_by_key(|sample| sample.at_us);
        let is_in_time = self.samples.last().is_none_or(|sample| sample.at_us <= end_us);
        if is_in_order && is_in_time { Ok(()) } else { Err(wrong("samples out of their time".to_owned())) }
    }
}

impl FlowSample {
    fn check(&self) -> Result<(), Error> {
        // Names every field, so that the compiler finds a new one.
        #[rustfmt::skip]
        let Self {
            at_us, acked, received, rtt_us, rtt_min_us, receiver_rtt_us, window, in_flight, unsent, peer_window, own_window,
            busy_us, peer_window_limited_us, send_buffer_limited_us, data_segments_out, data_segments_in, segments_out,
            segments_in, delivered, resent, duplicates, reordered, out_of_order, delivery_bps, receive_buffer, unread,
            send_buffer, send_queue,
        } = *self;
        counts(&[receiver_rtt_us])?;
        counts(&[at_us, acked, received, rtt_us, rtt_min_us, window, in_flight, unsent, peer_window])?;
        counts(&[own_window, busy_us, peer_window_limited_us, send_buffer_limited_us, data_segments_out])?;
        counts(&[data_segments_in, segments_out, segments_in, delivered, resent, duplicates, reordered])?;
        counts(&[out_of_order, delivery_bps, receive_buffer, unread, send_buffer, send_queue])
    }
}

impl TrainReport {
    /// Checks the report of a train that was asked for. Errors: `Protocol`: no end observes that.
    pub fn check(&self, spec: &TrainSpec) -> Result<(), Error> {
        if self.ports.len() > spec.ports as usize {
            return Err(wrong(format!("{} ports of {}", self.ports.len(), spec.ports)));
        }
        if !self.sizes.iter().map(|size| size.bytes).eq(spec.packet_bytes.iter().copied()) {
            return Err(wrong(format!("other sizes of packets than {:?}", spec.packet_bytes)));
        }
        if self.bins.len() > BINS_MAX || self.lost.len() > LOST_MAX {
            return Err(wrong(format!("{} intervals and {} lost packets", self.bins.len(), self.lost.len())));
        }
        if self.received > self.sent || !self.lost.is_sorted() {
            return Err(wrong(format!("{} received packets of {}", self.received, self.sent)));
        }
        counts(&[self.sent, self.sent_bytes, self.received_bytes, self.duplicates, self.reordered, self.pause_us])?;
        counts(&[self.reorder_extent_us, self.receiver_drops, self.sender_drops, self.skew_ppb.unsigned_abs()])?;
        counts(&[self.first_lost_bytes.unwrap_or(0)])?;
        counts(&self.lost)?;
        self.bins.iter().try_for_each(TrainBin::check)?;
        self.sizes
            .iter()
            .try_for_each(|&SizeCount { bytes: _, sent, refused, received }| counts(&[sent, refused, received]))?;
        self.ports.iter().try_for_each(|&PortCount { port: _, sent, received, reordered, delay_min_us }| {
            counts(&[sent, received, reordered, delay_min_us])
        })
    }
}

impl TrainBin {
    fn check(&self) -> Result<(), Error> {
        let Self { at_us, sent: _, received: _, sent_bytes, received_bytes, first_arrival_us, last_arrival_us, .. } =
            *self;
        counts(&[at_us, sent_bytes, received_bytes, first_arrival_us, last_arrival_us])?;
        counts(&[self.delay_min_us, self.delay_mean_us, self.delay_max_us].map(i64::unsigned_abs))
    }
}

impl EchoReport {
    /// Checks the report of echoes that were asked for. Errors: `Protocol`: no end observes that.
    pub fn check(&self, spec: &EchoSpec) -> Result<(), Error> {
        let each = u64::from(spec.per_port);
        if self.echoes.len() != spec.ports as usize {
            return Err(wrong(format!("echoes of {} ports: {} were asked for", self.echoes.len(), spec.ports)));
        }
        self.echoes.iter().try_for_each(|port| {
            let most = [port.sent, port.reflected, port.returned, port.reordered, port.rtt_us.len() as u64];
            match most.iter().all(|count| *count <= each) {
                true => counts(&port.rtt_us),
                false => Err(wrong(format!("more than {each} echoes of port {}", port.port))),
            }
        })
    }
}

impl HostFacts {
    /// Checks the facts of a host. Errors: `Protocol`: no host has that.
    pub fn check(&self) -> Result<(), Error> {
        if self.settings.len() > SETTINGS_MAX {
            return Err(wrong(format!("{} settings of a host", self.settings.len())));
        }
        text(&self.kernel, TEXT_BYTES_MAX)?;
        text(&self.sterna, TEXT_BYTES_MAX)?;
        let mut texts = self.settings.iter().flat_map(|(name, value)| [name, value]);
        texts.try_for_each(|value| text(value, TEXT_BYTES_MAX))
    }
}

impl DiskSpeed {
    /// Checks the speed of a disk. Errors: `Protocol`: no disk has that.
    pub fn check(&self) -> Result<(), Error> {
        let Self { write_bps, read_bps, bytes } = self;
        counts(&[*write_bps, *read_bps, *bytes])
    }
}

fn counts(counts: &[u64]) -> Result<(), Error> {
    match counts.iter().find(|count| **count > COUNT_MAX) {
        None => Ok(()),
        Some(count) => Err(wrong(format!("the number {count}"))),
    }
}

fn text(text: &str, bytes_max: usize) -> Result<(), Error> {
    if text.len() <= bytes_max { Ok(()) } else { Err(wrong(format!("a text of {} bytes", text.len()))) }
}

fn wrong(what: String) -> Error {
    Error::protocol(format!("a report of a measurement has {what}: no sterna observes that"))
}

#[cfg(test)]
mod tests {
    use sterna_proto::path_cache::DataDirection;

    use super::*;
    use crate::measure::SocketSettings;
    use crate::measure::message::EchoPort;

    const FLOW: FlowSpec = FlowSpec {
        direction: DataDirection::Out,
        streams: 2,
        time_ms: 1000,
        bytes_max: 1 << 30,
        sender: SocketSettings {
            receive_buffer: None,
            send_buffer: None,
            congestion: None,
            mss: None,
            pacing_bps: None,
        },
        receiver: SocketSettings {
            receive_buffer: None,
            send_buffer: None,
            congestion: None,
            mss: None,
            pacing_bps: None,
        },
    };

    fn flow(change: impl FnOnce(&mut FlowReport)) -> FlowReport {
        let sample = |at_us| FlowSample { at_us, acked: 5, ..FlowSample::default() };
        let stream = StreamReport { samples: vec![sample(0), sample(50_000)], ..StreamReport::default() };
        let mut report =
            FlowReport { streams: vec![stream.clone(), stream], time_us: 1_000_000, ..FlowReport::default() };
        change(&mut report);
        report
    }

    #[test]
    fn flows_that_no_end_observes_are_refused() {
        flow(|_| ()).check(&FLOW).unwrap();
        let late = flow(|report| report.time_us = 6_000_000);
        late.check(&FLOW).unwrap();
        for (wrong, expected) in [
            (flow(|report| report.streams.truncate(1)), "1 streams of 2"),
            (flow(|report| report.streams.push(StreamReport::default())), "3 streams of 2"),
            (flow(|report| report.time_us = 62_000_000), "62000000 us"),
            (flow(|report| report.cpu_us = u64::MAX), "18446744073709551615"),
            (flow(|report| report.streams[1].samples[1].send_queue = COUNT_MAX + 1), "281474976710657"),
            (flow(|report| report.streams[1].samples[0].at_us = 60_000), "out of their time"),
            (flow(|report| report.streams[1].samples[1].at_us = 62_000_000), "out of their time"),
            (flow(|report| report.streams[0].congestion = "x".repeat(17)), "a text of 17 bytes"),
            (flow(|report| report.streams[0].error = Some("x".repeat(1001))), "a text of 1001 bytes"),
            (flow(|report| report.streams[0].samples = vec![FlowSample::default(); 2403]), "2403 samples"),
        ] {
            let error = wrong.check(&FLOW).unwrap_err();
            assert!(error.text().contains(expected), "{error}");
        }
    }

    #[test]
    fn trains_and_echoes_that_no_end_observes_are_refused() {
        let spec = TrainSpec {
            direction: DataDirection::In,
            rate_bps: 1_000_000,
            time_ms: 1000,
            packet_bytes: vec![100, 1500],
            ports: 1,
        };
        let train = |change: fn(&mut TrainReport)| {
            let sizes = vec![
                SizeCount { bytes: 100, ..SizeCount::default() },
                SizeCount { bytes: 1500, ..SizeCount::default() },
            ];
            let mut report = TrainReport { sent: 9, received: 8, lost: vec![3], sizes, ..TrainReport::default() };
            report.bins = vec![TrainBin { delay_min_us: -1, ..TrainBin::default() }];
            report.ports = vec![PortCount::default()];
            change(&mut report);
            report.check(&spec).map_err(|error| error.text().to_owned())
        };
        train(|_| ()).unwrap();
        for (outcome, expected) in [
            (train(|report| report.received = 10), "10 received packets of 9"),
            (train(|report| report.sizes.clear()), "other sizes"),
            (train(|report| report.ports.push(PortCount::default())), "2 ports of 1"),
            (train(|report| report.bins = vec![TrainBin::default(); 4097]), "4097 intervals"),
            (train(|report| report.lost = vec![0; 4097]), "4097 lost"),
            (train(|report| report.bins[0].delay_max_us = i64::MIN), "9223372036854775808"),
            (train(|report| report.skew_ppb = i64::MIN), "9223372036854775808"),
            (train(|report| report.first_lost_bytes = Some(u64::MAX)), "18446744073709551615"),
        ] {
            assert!(outcome.clone().is_err_and(|text| text.contains(expected)), "{outcome:?}: {expected}");
        }
        let spec = EchoSpec { ports: 1, per_port: 2, interval_us: 1000, packet_bytes: 100 };
        let echo = |port: EchoPort| EchoReport { echoes: vec![port] }.check(&spec);
        let port = EchoPort { sent: 2, reflected: 2, returned: 2, rtt_us: vec![5, 6], ..EchoPort::default() };
        echo(port.clone()).unwrap();
        assert!(EchoReport::default().check(&spec).is_err());
        for wrong in [
            EchoPort { reflected: 3, ..port.clone() },
            EchoPort { rtt_us: vec![1, 2, 3], ..port.clone() },
            EchoPort { rtt_us: vec![u64::MAX], ..port },
        ] {
            echo(wrong).unwrap_err();
        }
    }

    #[test]
    fn facts_that_no_host_has_are_refused() {
        HostFacts::default().check().unwrap();
        crate::measure::host_facts().check().unwrap();
        let many = (0..257).map(|index| (index.to_string(), String::new())).collect();
        for wrong in [
            HostFacts { kernel: "x".repeat(1001), ..HostFacts::default() },
            HostFacts { settings: many, ..HostFacts::default() },
            HostFacts { settings: [("a".to_owned(), "x".repeat(1001))].into(), ..HostFacts::default() },
        ] {
            wrong.check().unwrap_err();
        }
        DiskSpeed { bytes: 1 << 30, ..DiskSpeed::default() }.check().unwrap();
        DiskSpeed { read_bps: u64::MAX, ..DiskSpeed::default() }.check().unwrap_err();
    }

    /// A list in memory is a hundred times as large as its JSON.
    #[test]
    fn lists_are_bounded_while_they_are_read() {
        let samples = |count: usize| format!("{{\"samples\":[{}]}}", vec!["{}"; count].join(","));
        let read = |json: &str| serde_json::from_str::<StreamReport>(json);
        assert_eq!(read(&samples(SAMPLES_MAX)).unwrap().samples.len(), 2402);
        assert!(read(&samples(SAMPLES_MAX + 1)).unwrap_err().to_string().contains("more than 2402 items"));
        let streams = format!("{{\"streams\":[{}]}}", vec!["{}"; 65].join(","));
        assert!(serde_json::from_str::<FlowReport>(&streams).is_err());
        let bins = format!("{{\"bins\":[{}]}}", vec!["{}"; BINS_MAX + 1].join(","));
        assert!(serde_json::from_str::<TrainReport>(&bins).is_err());
    }
}
