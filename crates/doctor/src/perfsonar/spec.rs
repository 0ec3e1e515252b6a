//! Tasks of pScheduler: a test with its specification, and when it may run.
//!
//! Each specification has the lowest schema that has its fields, so that old nodes take it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sterna_proto::BitRate;

use super::iso8601;

/// Time between two echoes of an rtt test. Reason: the default of its tool.
const ECHO_EVERY: Duration = Duration::from_secs(1);

/// Time between two packets of a latency test. Reason: the default of pScheduler.
const PACKET_EVERY: Duration = Duration::from_millis(100);

/// Time that a trace needs at most. Reason: 30 hops that do not answer, for 5 s each.
const TRACE_TIME: Duration = Duration::from_secs(150);

/// Type of test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TestKind {
    /// Rate of TCP.
    Throughput,
    /// Round trips.
    Rtt,
    /// One-way delays.
    Latency,
    /// Routers on the way.
    Trace,
}

impl TestKind {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::Throughput, Self::Rtt, Self::Latency, Self::Trace];

    /// Returns the name that pScheduler uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Rtt => "rtt",
            Self::Latency => "latency",
            Self::Trace => "trace",
        }
    }
}

/// Parameters of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestPlan {
    /// Rate of TCP.
    Throughput {
        /// Time of the test.
        time: Duration,
        /// Number of streams.
        streams: u32,
        /// Highest rate of all streams together.
        rate_max: Option<BitRate>,
        /// Round trip that the tool plans its timeouts for.
        link_rtt: Option<Duration>,
    },
    /// Round trips.
    Rtt {
        /// Time of the test.
        time: Duration,
    },
    /// One-way delays.
    Latency {
        /// Time of the test.
        time: Duration,
    },
    /// Routers on the way.
    Trace,
}

/// Test between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestSpec {
    /// Host that sends.
    pub source: String,
    /// Host that receives.
    pub dest: String,
    /// Node of pScheduler for the source, as `HOST[:PORT]`, if it is another.
    pub source_node: Option<String>,
    /// The same for the destination.
    pub dest_node: Option<String>,
    /// Parameters.
    pub plan: TestPlan,
}

impl TestSpec {
    /// Returns the type of the test.
    pub fn kind(&self) -> TestKind {
        match self.plan {
            TestPlan::Throughput { .. } => TestKind::Throughput,
            TestPlan::Rtt { .. } => TestKind::Rtt,
            TestPlan::Latency { .. } => TestKind::Latency,
            TestPlan::Trace => TestKind::Trace,
        }
    }

    /// Returns the time that the test itself takes at most.
    pub fn time(&self) -> Duration {
        match self.plan {
            TestPlan::Throughput { time, .. } | TestPlan::Rtt { time } | TestPlan::Latency { time } => time,
            TestPlan::Trace => TRACE_TIME,
        }
    }

    /// Returns the task: one run that starts at the earliest time, at most `slip` from now.
    pub fn task(&self, slip: Duration) -> Value {
        json!({
            "schema": 1,
            "test": {"type": self.kind().name(), "spec": self.spec()},
            "schedule": {"slip": iso8601::text(slip)},
        })
    }

    fn spec(&self) -> Value {
        let mut spec = Map::new();
        let mut set = |name: &str, value: Value| drop(spec.insert(name.to_owned(), value));
        set("schema", json!(1));
        set("source", json!(self.source));
        set("dest", json!(self.dest));
        if let Some(node) = &self.source_node {
            set("source-node", json!(node));
        }
        // Round trips and traces need no node at the destination.
        if let (Some(node), TestKind::Throughput | TestKind::Latency) = (&self.dest_node, self.kind()) {
            set("dest-node", json!(node));
        }
        match self.plan {
            TestPlan::Throughput { time, streams, rate_max, link_rtt } => {
                set("duration", json!(iso8601::text(time)));
                set("interval", json!("PT1S"));
                if streams > 1 {
                    set("parallel", json!(streams));
                }
                if let Some(rate) = rate_max {
                    // iperf3 applies its rate to each stream.
                    set("bandwidth", json!((rate.0 / u64::from(streams.max(1))).max(1)));
                }
                if let Some(rtt) = link_rtt {
                    // The first schema with this field.
                    set("schema", json!(3));
                    set("link-rtt", json!(iso8601::text(rtt)));
                }
            }
            TestPlan::Rtt { time } => {
                set("count", json!(packets(time, ECHO_EVERY)));
                set("interval", json!(iso8601::text(ECHO_EVERY)));
            }
            TestPlan::Latency { time } => {
                set("packet-count", json!(packets(time, PACKET_EVERY)));
                set("packet-interval", json!(PACKET_EVERY.as_secs_f64()));
            }
            TestPlan::Trace => set("as", json!(true)),
        }
        Value::Object(spec)
    }
}

/// Returns the number of packets of a time, one at least.
fn packets(time: Duration, every: Duration) -> u64 {
    // A test has hours at most.
    ((time.as_micros() / every.as_micros().max(1)) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(plan: TestPlan) -> TestSpec {
        let (source, dest) = ("a.example".to_owned(), "b.example".to_owned());
        TestSpec { source, dest, source_node: None, dest_node: None, plan }
    }

    #[test]
    fn a_task_has_the_lowest_schema_that_has_its_fields() {
        let time = Duration::from_secs(20);
        let plain = TestPlan::Throughput { time, streams: 1, rate_max: None, link_rtt: None };
        let expected = json!({
            "schema": 1,
            "test": {"type": "throughput", "spec": {
                "schema": 1, "source": "a.example", "dest": "b.example", "duration": "PT20S", "interval": "PT1S"
            }},
            "schedule": {"slip": "PT300S"},
        });
        assert_eq!(spec(plain).task(Duration::from_secs(300)), expected);
        let link_rtt = Some(Duration::from_millis(660));
        let full = TestPlan::Throughput { time, streams: 4, rate_max: Some(BitRate::megabits(100)), link_rtt };
        let full = TestSpec { dest_node: Some("n.example:8443".to_owned()), ..spec(full) }.spec();
        assert_eq!((&full["schema"], &full["link-rtt"]), (&json!(3), &json!("PT0.66S")));
        assert_eq!((&full["parallel"], &full["bandwidth"]), (&json!(4), &json!(25_000_000)), "the rate of a stream");
        assert_eq!(full["dest-node"], json!("n.example:8443"));
        let rtt = spec(TestPlan::Rtt { time }).spec();
        assert_eq!((&rtt["count"], &rtt["interval"]), (&json!(20), &json!("PT1S")));
        let latency = spec(TestPlan::Latency { time }).spec();
        assert_eq!((&latency["packet-count"], &latency["packet-interval"]), (&json!(200), &json!(0.1)));
        let trace = TestSpec { dest_node: Some("n.example".to_owned()), ..spec(TestPlan::Trace) }.spec();
        assert!(trace.get("dest-node").is_none(), "a trace has no node at the destination: {trace}");
    }
}
