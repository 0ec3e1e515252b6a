//! Evidence of an examination as an agent would give it: flows with even counters, and trains over a modelled path.

use std::time::Duration;

use sterna_doctor::evidence::{Direction, Evidence, Experiment, Outcome, Purpose, Record};
use sterna_doctor::report::About;
use sterna_lab::LinkModel;
use sterna_lab::model::Policer;
use sterna_net::measure::{
    EchoPort, EchoReport, EchoSpec, FlowPair, FlowReport, FlowSample, FlowSpec, HostFacts, SizeCount, SocketSettings,
    StreamReport, TrainReport, TrainSpec,
};
use sterna_proto::{BitRate, ByteCount};
use sterna_seeded::Seeded;

use super::trains::{Hosts, train};

const MSS: u64 = 1448;
const SECONDS: u64 = 4;

/// Limit of a flow, as its sender's kernel counts it.
#[derive(Clone, Copy, PartialEq)]
pub enum Held {
    Window,
    Path,
}

/// Returns a flow at an even rate.
pub fn flow(bps: u64, held: Held) -> FlowPair {
    let samples = |received: bool| {
        let sample = |index: u64| {
            let at_us = index * 50_000;
            let bytes = bps / 8 * at_us / 1_000_000;
            let segments = bytes / MSS;
            FlowSample {
                at_us,
                received: if received { bytes } else { 0 },
                acked: bytes,
                delivered: segments,
                data_segments_out: segments,
                data_segments_in: if received { segments } else { 0 },
                segments_out: segments / 2,
                segments_in: segments / 2,
                busy_us: at_us,
                peer_window_limited_us: if held == Held::Window { at_us } else { 0 },
                rtt_us: 30_400,
                rtt_min_us: 30_000,
                window: 4_000_000,
                in_flight: 350_000,
                peer_window: if held == Held::Window { 360_000 } else { 8_000_000 },
                receive_buffer: if held == Held::Window { 720_000 } else { 16_000_000 },
                send_buffer: 4_000_000,
                ..FlowSample::default()
            }
        };
        (0..=SECONDS * 20).map(sample).collect()
    };
    let report = |received| FlowReport {
        streams: vec![StreamReport {
            port: 40_000,
            mss: MSS as u32,
            congestion: "cubic".to_owned(),
            sack: true,
            timestamps: true,
            window_scaling: true,
            samples: samples(received),
            ..StreamReport::default()
        }],
        time_us: SECONDS * 1_000_000,
        ..FlowReport::default()
    };
    FlowPair { sender: report(false), receiver: report(true) }
}

/// Records in order of time.
#[derive(Default)]
pub struct Records(pub Vec<Record>);

impl Records {
    pub fn add(&mut self, purpose: Purpose, direction: Direction, experiment: Experiment, outcome: Outcome) {
        let start_ms = self.0.last().map_or(0, |last| last.start_ms + last.time_ms);
        self.0.push(Record { purpose, direction, start_ms, time_ms: SECONDS * 1000, experiment, outcome });
    }

    pub fn flow(&mut self, purpose: Purpose, direction: Direction, pair: FlowPair) {
        let spec = FlowSpec {
            direction: direction.of_data(),
            streams: 1,
            time_ms: SECONDS * 1000,
            bytes_max: u64::MAX,
            sender: SocketSettings::default(),
            receiver: SocketSettings::default(),
        };
        self.add(purpose, direction, Experiment::Flow { spec }, Outcome::Flow(pair));
    }

    pub fn train(&mut self, purpose: Purpose, direction: Direction, (spec, report): (TrainSpec, TrainReport)) {
        self.add(purpose, direction, Experiment::Train { spec, rest_ms: 1500 }, Outcome::Train(report));
    }
}

/// Returns the facts of a host with this release of the kernel.
pub fn host(kernel: &str) -> HostFacts {
    let settings = [("ipv4.tcp_rmem", "4096 131072 33554432"), ("ipv4.tcp_wmem", "4096 16384 4194304")];
    HostFacts {
        version: 1,
        kernel: kernel.to_owned(),
        sterna: "0.1.0".to_owned(),
        processors: 8,
        settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        ..HostFacts::default()
    }
}

/// Returns echoes of 64 ports, the last quarter of them over a longer path.
pub fn echoes() -> (EchoSpec, EchoReport) {
    let port = |index: u16| EchoPort {
        port: 41_000 + index,
        sent: 8,
        reflected: 8,
        returned: 8,
        rtt_us: (0..8).map(|echo| if index < 48 { 30_000 } else { 34_100 } + echo * 3).collect(),
        ..EchoPort::default()
    };
    let spec = EchoSpec { ports: 64, per_port: 8, interval_us: 2000, packet_bytes: 128 };
    (spec, EchoReport { echoes: (0..64).map(port).collect() })
}

/// Returns a sweep in which packets above 1400 bytes vanish.
pub fn sizes() -> (TrainSpec, TrainReport) {
    let bytes = [576, 1280, 1400, 1500, 9000];
    let count = |bytes: u32| match bytes {
        9000 => SizeCount { bytes, refused: 6, ..SizeCount::default() },
        1500 => SizeCount { bytes, sent: 6, ..SizeCount::default() },
        _ => SizeCount { bytes, sent: 6, received: 6, ..SizeCount::default() },
    };
    let spec = TrainSpec {
        direction: Direction::Forward.of_data(),
        rate_bps: 20_000_000,
        time_ms: 100,
        packet_bytes: bytes.to_vec(),
        ports: 1,
    };
    let report = TrainReport { sent: 24, received: 18, sizes: bytes.map(count).to_vec(), ..TrainReport::default() };
    (spec, report)
}

/// Returns the evidence of a path of 30 ms with a policer of 100 Mbit/s and 500 kB forward, and a small receive buffer
/// in the return direction.
pub fn policed() -> Evidence {
    let hosts = Hosts { noise: Duration::from_micros(100), pauses: false };
    let draw = &mut Seeded::new(1);
    let clean = LinkModel::clean(BitRate(1_000_000_000), Duration::from_millis(30));
    let mut model = clean.clone();
    model.forward.policer = Some(Policer { rate: BitRate(100_000_000), burst: ByteCount(500_000), udp_only: false });
    let mut records = Records::default();
    let (spec, report) = echoes();
    records.add(Purpose::Echoes, Direction::Forward, Experiment::Echo { spec }, Outcome::Echo(report));
    records.flow(Purpose::Baseline, Direction::Forward, flow(60_000_000, Held::Path));
    for (purpose, rate, time_ms) in
        [(Purpose::Capacity, 180e6, 400), (Purpose::Overload, 160e6, 2000), (Purpose::LowRate, 5e6, 2500)]
    {
        let train = train(&model, rate, Duration::from_millis(time_ms), hosts, draw);
        records.train(purpose, Direction::Forward, train);
    }
    records.train(Purpose::Sizes, Direction::Forward, sizes());
    records.flow(Purpose::Paced, Direction::Forward, flow(95_000_000, Held::Path));
    records.flow(Purpose::Baseline, Direction::Reverse, flow(93_000_000, Held::Window));
    let train = train(&clean, 300e6, Duration::from_millis(400), hosts, draw);
    records.train(Purpose::Capacity, Direction::Reverse, train);
    records.flow(Purpose::HalfReceiveBuffer, Direction::Reverse, flow(46_000_000, Held::Window));
    Evidence { near: host("6.18.0"), far: host("6.1.0"), connect_us: 30_100, is_ipv6: false, records: records.0 }
}

/// Returns what [`policed`] is about.
pub fn about() -> About {
    About {
        target: "sterna://hub.example.org".to_owned(),
        address: "192.0.2.7:7373".to_owned(),
        local: "198.51.100.4".to_owned(),
        agent_key: "SHA256:agent".to_owned(),
        started: 1_790_000_000,
        rate_max_bps: Some(10_000_000_000),
    }
}
