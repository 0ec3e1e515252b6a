//! Messages of iperf3: states, parameters and results. Refuses parameters that an agent does not carry out.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::udp::Datagrams;
use crate::measure::flow::Role;
use crate::measure::{STREAMS_MAX, TIME_MAX};
use crate::sys::UDP_PAYLOAD_MAX;

/// Maximum size of a datagram of a test, without headers. Source: MAX_UDP_BLOCKSIZE of iperf3.
pub(super) const DATAGRAM_BYTES_MAX: u64 = UDP_PAYLOAD_MAX as u64;

/// Minimum size of a datagram: its time and its number.
pub(super) const DATAGRAM_BYTES_MIN: u64 = 16;

/// Size of a block of TCP if the client names none. Source: DEFAULT_TCP_BLKSIZE of iperf3.
const BLOCK_BYTES: u64 = 131_072;

/// Size of a datagram if the client names none. Source: DEFAULT_UDP_BLKSIZE of iperf3.
const DATAGRAM_BYTES: u64 = 1460;

/// Maximum of a window in bytes. Source: MAX_TCP_BUFFER of iperf3. The kernel takes less: at most its maximum.
const WINDOW_MAX: u64 = 512 << 20;

/// State of a test, one byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    TestStart,
    TestRunning,
    TestEnd,
    ParamExchange,
    CreateStreams,
    ServerTerminate,
    ClientTerminate,
    ExchangeResults,
    DisplayResults,
    Done,
    AccessDenied,
    ServerError,
}

/// States and their bytes.
const STATES: [(State, i8); 12] = [
    (State::TestStart, 1),
    (State::TestRunning, 2),
    (State::TestEnd, 4),
    (State::ParamExchange, 9),
    (State::CreateStreams, 10),
    (State::ServerTerminate, 11),
    (State::ClientTerminate, 12),
    (State::ExchangeResults, 13),
    (State::DisplayResults, 14),
    (State::Done, 16),
    (State::AccessDenied, -1),
    (State::ServerError, -2),
];

impl State {
    /// Returns the byte of the state.
    pub(super) fn byte(self) -> u8 {
        // Every state is in the table.
        STATES.iter().find(|(state, _)| *state == self).map_or(0, |(_, byte)| byte.cast_unsigned())
    }

    /// Returns the state of a byte; `None`: no release of iperf3 sends it.
    pub(super) fn of(byte: u8) -> Option<Self> {
        STATES.iter().find(|(_, known)| known.cast_unsigned() == byte).map(|(state, _)| *state)
    }
}

/// Error that a server sends: a number of iperf3, for which the client has a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Duration,
    Streams,
    Window,
    Omit,
    NotImplemented,
    DatagramSize,
    Parameters,
    Congestion,
    Stream,
}

/// Errors, their numbers and the texts of iperf3 for them.
const CODES: [(Code, u32, &str); 9] = [
    (Code::Duration, 5, "the test is too long"),
    (Code::Streams, 6, "the number of parallel streams is too large"),
    (Code::Window, 8, "the socket buffer is too large"),
    (Code::Omit, 12, "the time to omit is wrong"),
    (Code::NotImplemented, 13, "an option is not implemented there"),
    (Code::DatagramSize, 20, "the size of a datagram is wrong"),
    (Code::Parameters, 114, "the parameters could not be read"),
    (Code::Congestion, 134, "the congestion control is not available there"),
    (Code::Stream, 200, "a stream could not be created"),
];

/// Errors that other servers send, beside [`CODES`].
const CODES_OF_OTHERS: [(u32, &str); 5] = [
    (27, "the rate is above the limit of the server"),
    (37, "the test is longer than the server allows"),
    (141, "the socket buffer could not be set"),
    (142, "the server requires a user and a password"),
    (160, "the time of the test is over at the server"),
];

impl Code {
    /// Returns the number on the wire.
    pub(super) fn number(self) -> u32 {
        // Every code is in the table.
        CODES.iter().find(|(code, ..)| *code == self).map_or(0, |(_, number, _)| *number)
    }
}

/// Returns the words for the error of a server.
pub(super) fn words(number: u32) -> String {
    let known = CODES.iter().map(|(_, number, words)| (*number, *words)).chain(CODES_OF_OTHERS);
    let found = known.into_iter().find(|(known, _)| *known == number);
    found.map_or_else(|| format!("error {number} of iperf3"), |(_, words)| words.to_owned())
}

/// Refusal of a test: the number for the client, and the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) reason: String,
}

/// Parameters of a test, as a client sends them. Fields that this end does not use are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) tcp: bool,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) udp: bool,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) sctp: bool,
    /// Seconds at the start that do not count.
    #[serde(deserialize_with = "whole")]
    pub(super) omit: u64,
    /// Seconds of the test; 0: it ends with its bytes.
    #[serde(deserialize_with = "whole")]
    pub(super) time: u64,
    /// Bytes of the test; 0: it ends with its time or its blocks.
    #[serde(deserialize_with = "whole")]
    pub(super) num: u64,
    /// Number of writes of the test; 0: it ends with its time or its bytes.
    #[serde(deserialize_with = "whole")]
    pub(super) blockcount: u64,
    /// Number of streams; 0, as if absent: one.
    #[serde(deserialize_with = "whole")]
    pub(super) parallel: u64,
    /// The server sends.
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) reverse: bool,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) bidirectional: bool,
    /// Socket buffers in bytes; 0: those of the kernel.
    #[serde(deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub(super) window: u64,
    /// Bytes of a write, or of a datagram.
    #[serde(deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub(super) len: u64,
    /// Rate of each stream in bit/s; 0: without limit.
    #[serde(deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub(super) bandwidth: u64,
    /// The same, for the kernel's pacing.
    #[serde(deserialize_with = "whole", skip_serializing_if = "is_zero")]
    pub(super) fqrate: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) congestion: Option<String>,
    #[serde(deserialize_with = "flag", skip_serializing_if = "is_false")]
    pub(super) get_server_output: bool,
    /// Numbers of datagrams have 8 bytes.
    #[serde(deserialize_with = "flag", serialize_with = "as_number", skip_serializing_if = "is_false")]
    pub(super) udp_counters_64bit: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_version: Option<String>,
}

/// Test that an agent carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Role of the agent.
    pub(super) role: Role,
    pub(super) streams: u32,
    /// Time at the start that does not count.
    pub(super) omit: Duration,
    /// Time after which the test is over, with [`Self::omit`].
    pub(super) time: Duration,
    /// Bytes after which a sender stops, as a multiple of the streams; `None`: it sends until the time is over.
    pub(super) bytes: Option<u64>,
    /// Socket buffers in bytes.
    pub(super) window: Option<u32>,
    pub(super) congestion: Option<String>,
    /// Rate of each stream, bit/s.
    pub(super) rate_bps: Option<u64>,
    /// Datagrams of a test over UDP; `None`: TCP.
    pub(super) datagrams: Option<Datagrams>,
    /// The client asks for the report of the server as text.
    pub(super) wants_output: bool,
}

impl Params {
    /// Checks the parameters against what an agent carries out.
    pub(super) fn plan(self) -> Result<Plan, Refusal> {
        let refuse = |code, reason: String| Err(Refusal { code, reason });
        if self.bidirectional {
            return refuse(
                Code::NotImplemented,
                "a test in both directions at once (--bidir): run two tests".to_owned(),
            );
        }
        if self.sctp {
            return refuse(Code::NotImplemented, "a test over SCTP".to_owned());
        }
        let streams = self.parallel.max(1);
        if streams > u64::from(STREAMS_MAX) {
            return refuse(Code::Streams, format!("{streams} streams: at most {STREAMS_MAX}"));
        }
        let time_max = TIME_MAX.as_secs();
        // A test without a time ends with its bytes, or with the time of the server.
        let time = if self.time == 0 { time_max } else { self.time };
        if self.omit >= time_max {
            return refuse(Code::Omit, format!("{} s to omit: less than {time_max} s", self.omit));
        }
        if time.saturating_add(if self.time == 0 { 0 } else { self.omit }) > time_max {
            return refuse(Code::Duration, format!("{time} s and {} s to omit: at most {time_max} s", self.omit));
        }
        if self.window > WINDOW_MAX {
            return refuse(Code::Window, format!("a window of {} bytes: at most {WINDOW_MAX}", self.window));
        }
        let rate = [self.fqrate, self.bandwidth].into_iter().filter(|rate| *rate > 0).min();
        let datagrams = match self.udp {
            true => Some(self.datagrams(rate.unwrap_or(0), streams)?),
            false => None,
        };
        Ok(Plan {
            role: if self.reverse { Role::Sends } else { Role::Receives },
            // Both are small after the checks above.
            streams: u32::try_from(streams).unwrap_or(STREAMS_MAX),
            bytes: self.bytes().map(|bytes| bytes.div_ceil(streams).saturating_mul(streams)),
            window: u32::try_from(self.window).ok().filter(|bytes| *bytes > 0),
            omit: Duration::from_secs(self.omit),
            time: Duration::from_secs(if self.time == 0 { time } else { time + self.omit }),
            congestion: self.congestion,
            rate_bps: rate,
            datagrams,
            wants_output: self.get_server_output,
        })
    }

    /// Returns the bytes of a test that ends with its bytes, or with its writes.
    fn bytes(&self) -> Option<u64> {
        let block = if self.len == 0 { BLOCK_BYTES } else { self.len };
        match (self.num, self.blockcount) {
            (0, 0) => None,
            (0, blocks) => Some(blocks.saturating_mul(block)),
            (bytes, _) => Some(bytes),
        }
    }

    fn datagrams(&self, rate_bps: u64, streams: u64) -> Result<Datagrams, Refusal> {
        let bytes = if self.len == 0 { DATAGRAM_BYTES } else { self.len };
        if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&bytes) {
            let reason = format!("datagrams of {bytes} bytes: {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}");
            return Err(Refusal { code: Code::DatagramSize, reason });
        }
        // The range fits.
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Datagrams::new(bytes, rate_bps, streams, self.udp_counters_64bit))
    }
}

/// Results of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    /// Time of the processors, as percentage of one.
    pub(super) cpu_util_total: f64,
    pub(super) cpu_util_user: f64,
    pub(super) cpu_util_system: f64,
    /// 1: the sender counts segments that it sent again; -1: this end receives.
    #[serde(default, deserialize_with = "signed")]
    pub(super) sender_has_retransmits: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) congestion_used: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) server_output_text: Option<String>,
    pub(super) streams: Vec<StreamResult>,
}

/// Results of one stream at one end. Times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StreamResult {
    #[serde(deserialize_with = "whole")]
    pub(super) id: u64,
    #[serde(deserialize_with = "whole")]
    pub(super) bytes: u64,
    /// Segments that were sent again; -1: not counted.
    #[serde(deserialize_with = "signed")]
    pub(super) retransmits: i64,
    pub(super) jitter: f64,
    /// Datagrams lost.
    #[serde(deserialize_with = "signed")]
    pub(super) errors: i64,
    #[serde(deserialize_with = "signed")]
    pub(super) omitted_errors: i64,
    /// Highest number of a datagram.
    #[serde(deserialize_with = "signed")]
    pub(super) packets: i64,
    #[serde(deserialize_with = "signed")]
    pub(super) omitted_packets: i64,
    pub(super) start_time: f64,
    pub(super) end_time: f64,
}

/// Returns the number of a stream in results: 1, 3, 4, 5 and so on.
pub(super) fn stream_id(index: usize) -> u64 {
    // A test has at most 64 streams.
    let index = index as u64;
    if index == 0 { 1 } else { index + 2 }
}

/// Reads a number that is not negative. iperf3 writes large ones as `1.5e+15`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = f64::deserialize(from)?;
    match value >= 0.0 {
        // Saturates.
        true => Ok(value as u64),
        false => Err(D::Error::custom(format!("the negative number {value}"))),
    }
}

fn signed<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    // Saturates.
    f64::deserialize(from).map(|value| value as i64)
}

/// Reads a flag: `true`, or a number that is not 0.
fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Bool(flag) => flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => false,
    })
}

/// Writes a flag as iperf3 reads this one.
fn as_number<S: serde::Serializer>(flag: &bool, to: S) -> Result<S::Ok, S::Error> {
    u8::from(*flag).serialize(to)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Params {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn parameters_of_iperf_3_12_and_later_are_read() {
        let plain = read(
            r#"{"tcp":true,"omit":0,"time":10,"num":0,"blockcount":0,"parallel":1,"len":131072,"pacing_timer":1000,
                "client_version":"3.12"}"#,
        );
        let plan = plain.plan().unwrap();
        assert_eq!((plan.role, plan.streams, plan.time), (Role::Receives, 1, Duration::from_secs(10)));
        assert_eq!((plan.window, plan.rate_bps, &plan.datagrams, plan.wants_output), (None, None, &None, false));
        let udp = read(
            r#"{"udp":true,"omit":1,"time":5,"parallel":2,"reverse":true,"len":1448,"bandwidth":1.048576e+06,
                "get_server_output":1,"udp_counters_64bit":1,"gso":0,"dont_fragment":1}"#,
        );
        let plan = udp.plan().unwrap();
        let datagrams = Datagrams { bytes: 1448, rate_bps: 1_048_576, has_long_numbers: true };
        assert_eq!((plan.role, plan.datagrams, plan.time), (Role::Sends, Some(datagrams), Duration::from_secs(6)));
        assert!(plan.wants_output && plan.omit == Duration::from_secs(1));
        // By bytes: the time of the server is the limit.
        assert_eq!(read(r#"{"tcp":true,"time":0,"num":1000000}"#).plan().unwrap().time, TIME_MAX);
    }

    #[test]
    fn parameters_beyond_the_limits_are_refused() {
        for (json, code) in [
            (r#"{"tcp":true,"time":10,"bidirectional":true}"#, Code::NotImplemented),
            (r#"{"sctp":true,"time":10}"#, Code::NotImplemented),
            (r#"{"tcp":true,"time":61}"#, Code::Duration),
            (r#"{"tcp":true,"time":60,"omit":1}"#, Code::Duration),
            (r#"{"tcp":true,"time":1e30}"#, Code::Duration),
            (r#"{"tcp":true,"time":0,"num":1,"omit":60}"#, Code::Omit),
            (r#"{"tcp":true,"time":10,"parallel":65}"#, Code::Streams),
            (r#"{"tcp":true,"time":10,"window":1073741824}"#, Code::Window),
            (r#"{"udp":true,"time":10,"len":15}"#, Code::DatagramSize),
            (r#"{"udp":true,"time":10,"len":70000}"#, Code::DatagramSize),
        ] {
            assert_eq!(read(json).plan().unwrap_err().code, code, "{json}");
        }
        for json in [r#"{"time":-1}"#, r#"{"parallel":"x"}"#, r#"{"congestion":7}"#, "7"] {
            assert!(serde_json::from_str::<Params>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn states_and_streams_have_the_numbers_of_iperf3() {
        assert_eq!((State::AccessDenied.byte(), State::ServerError.byte(), State::Done.byte()), (0xff, 0xfe, 16));
        for byte in 0..=u8::MAX {
            assert!(State::of(byte).is_none_or(|state| state.byte() == byte), "{byte}");
        }
        assert_eq!([0, 1, 2, 3].map(stream_id), [1, 3, 4, 5]);
        assert!(words(142).contains("password") && words(999).contains("999"));
    }
}
