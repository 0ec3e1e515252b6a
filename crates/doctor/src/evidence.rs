//! Evidence of an examination: the experiments that ran, and what both ends observed.
//!
//! It is what the rules read, and it is kept in the bundle, so that a later release can judge it again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_net::disk::DiskSpeed;
use sterna_net::measure::{
    EchoReport, EchoSpec, FlowPair, FlowSpec, HostFacts, SocketSettings, StreamReport, TrainReport, TrainSpec,
};
use sterna_proto::path_cache::DataDirection;

/// Direction of data. Forward is from the host of the doctor to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the host of the doctor to the agent.
    Forward,
    /// From the agent to the host of the doctor.
    Reverse,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Reverse];

    /// Returns the name for programs and people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reverse => "reverse",
        }
    }

    /// Returns the direction as measurements name it.
    pub fn of_data(self) -> DataDirection {
        match self {
            Self::Forward => DataDirection::Out,
            Self::Reverse => DataDirection::In,
        }
    }

    /// Returns the other direction.
    pub fn opposite(self) -> Self {
        match self {
            Self::Forward => Self::Reverse,
            Self::Reverse => Self::Forward,
        }
    }
}

/// Question that an experiment answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Round trips by port, and loss at a low rate: echoes.
    Echoes,
    /// Sizes of packets that pass: a train of several sizes.
    Sizes,
    /// One connection as programs open it: the settings of both hosts.
    Baseline,
    /// The same with half the receive buffer.
    HalfReceiveBuffer,
    /// The same with half the send buffer.
    HalfSendBuffer,
    /// The same with buffers that do not bind.
    LargeBuffers,
    /// Four connections.
    FourStreams,
    /// The same with the other congestion control.
    OtherControl,
    /// Rate that packets without congestion control reach: a short train.
    Capacity,
    /// Behaviour of the path above its rate: a long train from rest.
    Overload,
    /// The same after a longer rest: the bucket of a policer refills.
    SecondOverload,
    /// Loss far below the rate of the path: a train of small packets.
    LowRate,
    /// One connection below the rate of a policer.
    Paced,
    /// Disk of the host of the doctor.
    NearDisk,
    /// Disk of the agent.
    FarDisk,
}

/// Experiment: a question and how it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Experiment {
    /// Echoes in both directions.
    Echo {
        /// Specification.
        spec: EchoSpec,
    },
    /// Flow over TCP.
    Flow {
        /// Specification.
        spec: FlowSpec,
    },
    /// Train of UDP packets.
    Train {
        /// Specification.
        spec: TrainSpec,
        /// Rest before it, in which queues drain and buckets fill, milliseconds.
        rest_ms: u64,
    },
    /// Reading and writing at the disk of one host.
    Disk {
        /// Directory: of this host, or in the location of the agent.
        path: String,
    },
}

/// Outcome of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Echoes.
    Echo(EchoReport),
    /// Observations of both ends of a flow.
    Flow(FlowPair),
    /// Packets of a train.
    Train(TrainReport),
    /// Speed of a disk.
    Disk(DiskSpeed),
    /// Reason for which the experiment has no result.
    Failed(String),
}

/// Experiment that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Question.
    pub purpose: Purpose,
    /// Direction of the data.
    pub direction: Direction,
    /// Start, milliseconds since the start of the examination.
    pub start_ms: u64,
    /// Duration, milliseconds.
    pub time_ms: u64,
    /// How it was asked.
    pub experiment: Experiment,
    /// Result.
    pub outcome: Outcome,
}

impl Record {
    /// Returns the bytes that the experiment moved over the path, without lower layers.
    pub fn cost_bytes(&self) -> u64 {
        match (&self.experiment, &self.outcome) {
            (Experiment::Echo { spec }, Outcome::Echo(report)) => {
                let packets: u64 = report.echoes.iter().map(|port| port.sent + port.reflected).sum();
                packets.saturating_mul(spec.packet_bytes.into())
            }
            (_, Outcome::Flow(pair)) => {
                let sum = |of: &dyn Fn(&StreamReport) -> Option<u64>, streams: &[StreamReport]| {
                    streams.iter().filter_map(of).fold(0, u64::saturating_add)
                };
                let sent = |stream: &StreamReport| {
                    Some(stream.samples.last()?.data_segments_out.saturating_mul(stream.mss.into()))
                };
                let received = |stream: &StreamReport| Some(stream.samples.last()?.received);
                // One of the ends is the peer, which may report less.
                sum(&sent, &pair.sender.streams).max(sum(&received, &pair.receiver.streams))
            }
            (_, Outcome::Train(report)) => report.sent_bytes,
            _ => 0,
        }
    }
}

/// Everything that an examination has observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Host of the doctor.
    pub near: HostFacts,
    /// Host of the agent.
    pub far: HostFacts,
    /// Time in which the agent accepted the connection, microseconds.
    pub connect_us: u64,
    /// The path carries IPv6.
    #[serde(default)]
    pub is_ipv6: bool,
    /// Experiments in order of time.
    pub records: Vec<Record>,
}

impl Evidence {
    /// Returns the last experiment with this purpose.
    pub fn record(&self, purpose: Purpose, direction: Direction) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.purpose == purpose && record.direction == direction)
    }

    /// Returns true if an experiment with this purpose ran or failed.
    pub fn has(&self, purpose: Purpose, direction: Direction) -> bool {
        self.record(purpose, direction).is_some()
    }

    /// Returns the observations of a flow.
    pub fn flow(&self, purpose: Purpose, direction: Direction) -> Option<(&FlowSpec, &FlowPair)> {
        match self.record(purpose, direction).map(|record| (&record.experiment, &record.outcome)) {
            Some((Experiment::Flow { spec }, Outcome::Flow(pair))) => Some((spec, pair)),
            _ => None,
        }
    }

    /// Returns the packets of a train.
    pub fn train(&self, purpose: Purpose, direction: Direction) -> Option<(&TrainSpec, &TrainReport)> {
        self.trains(purpose, direction).last()
    }

    /// Returns all trains with this purpose, in order of time.
    pub fn trains(
        &self,
        purpose: Purpose,
        direction: Direction,
    ) -> impl DoubleEndedIterator<Item = (&TrainSpec, &TrainReport)> {
        let of = move |record: &&Record| record.purpose == purpose && record.direction == direction;
        self.records.iter().filter(of).filter_map(|record| match (&record.experiment, &record.outcome) {
            (Experiment::Train { spec, .. }, Outcome::Train(report)) => Some((spec, report)),
            _ => None,
        })
    }

    /// Returns the echoes.
    pub fn echoes(&self) -> Option<&EchoReport> {
        self.records.iter().rev().find_map(|record| match &record.outcome {
            Outcome::Echo(report) => Some(report),
            _ => None,
        })
    }

    /// Returns the speed of the disk of the sender (`true`) or of the receiver of a direction.
    pub fn disk(&self, direction: Direction, of_sender: bool) -> Option<&DiskSpeed> {
        let is_near = (direction == Direction::Forward) == of_sender;
        let purpose = if is_near { Purpose::NearDisk } else { Purpose::FarDisk };
        match &self.record(purpose, Direction::Forward)?.outcome {
            Outcome::Disk(speed) => Some(speed),
            _ => None,
        }
    }

    /// Returns the smallest round trip of the echoes and the flows; without them, the time of the connection.
    pub fn rtt(&self) -> Duration {
        let echoes = self.echoes().into_iter().flat_map(|report| &report.echoes).flat_map(|port| &port.rtt_us).min();
        let flows = self.records.iter().filter_map(|record| match &record.outcome {
            Outcome::Flow(pair) => Some(pair),
            _ => None,
        });
        let streams = flows.flat_map(|pair| &pair.sender.streams).flat_map(|stream| stream.samples.last());
        let least = streams.map(|sample| sample.rtt_min_us).filter(|rtt| *rtt > 0).min();
        let micros = [echoes.copied(), least].into_iter().flatten().min().unwrap_or(self.connect_us);
        Duration::from_micros(micros.max(1))
    }

    /// Returns the facts of the sender and of the receiver of a direction.
    pub fn ends(&self, direction: Direction) -> (&HostFacts, &HostFacts) {
        match direction {
            Direction::Forward => (&self.near, &self.far),
            Direction::Reverse => (&self.far, &self.near),
        }
    }
}

/// Returns settings with buffers; `None` leaves a buffer to the kernel.
pub(crate) fn buffers(receive: Option<u64>, send: Option<u64>) -> SocketSettings {
    SocketSettings { receive_buffer: receive, send_buffer: send, ..SocketSettings::default() }
}
