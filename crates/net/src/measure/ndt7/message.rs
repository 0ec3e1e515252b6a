//! Measurements of NDT7, as JSON. Fields that this end does not use are skipped.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use sterna_proto::ByteCount;

use crate::measure::flow::micros;
use crate::sys::TcpInfo;

/// Measurement that one end sends during a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Measurement {
    #[serde(rename = "AppInfo", skip_serializing_if = "Option::is_none")]
    pub(super) app: Option<AppInfo>,
    #[serde(rename = "ConnectionInfo", skip_serializing_if = "Option::is_none")]
    pub(super) connection: Option<ConnectionInfo>,
    #[serde(rename = "Origin", skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<String>,
    #[serde(rename = "Test", skip_serializing_if = "Option::is_none")]
    pub(super) test: Option<String>,
    #[serde(rename = "TCPInfo", skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<KernelReport>,
}

/// Bytes that the program has sent or received since the start of the test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct AppInfo {
    /// Microseconds.
    #[serde(deserialize_with = "count")]
    pub(super) elapsed_time: Option<u64>,
    #[serde(deserialize_with = "count")]
    pub(super) num_bytes: Option<u64>,
}

/// Addresses of the connection, as the server sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConnectionInfo {
    pub(super) client: String,
    pub(super) server: String,
}

/// Counters of the kernel at one end of a connection since its start. A counter that the kernel does not have is
/// absent. Times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KernelReport {
    /// Time with data to send; includes the time of both limits.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub busy_time: Option<u64>,
    /// Bytes acknowledged.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub bytes_acked: Option<u64>,
    /// Bytes received.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    /// Bytes sent, with those sent again.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Bytes sent again.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub bytes_retrans: Option<u64>,
    /// Time since the start of the test.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub elapsed_time: Option<u64>,
    /// Smallest round-trip time.
    #[serde(rename = "MinRTT", deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub min_rtt: Option<u64>,
    /// Smoothed round-trip time.
    #[serde(rename = "RTT", deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub rtt: Option<u64>,
    /// Variation of the round-trip time.
    #[serde(rename = "RTTVar", deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub rtt_var: Option<u64>,
    /// Time in which the window of the receiver was the limit.
    #[serde(rename = "RWndLimited", deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub receive_window_limited: Option<u64>,
    /// Time in which the send buffer was the limit.
    #[serde(rename = "SndBufLimited", deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited: Option<u64>,
}

impl KernelReport {
    /// Returns the counters of a connection `elapsed` after the start of the test.
    pub(super) fn new(info: &TcpInfo, elapsed: Duration) -> Self {
        let time = |time: Option<Duration>| time.map(micros);
        let bytes = |bytes: Option<ByteCount>| bytes.map(|bytes| bytes.0);
        Self {
            busy_time: time(info.busy),
            bytes_acked: bytes(info.bytes_acked),
            bytes_received: bytes(info.bytes_received),
            bytes_sent: bytes(info.bytes_sent),
            bytes_retrans: bytes(info.bytes_retrans),
            elapsed_time: Some(micros(elapsed)),
            min_rtt: time(info.min_rtt),
            rtt: Some(micros(info.rtt)),
            rtt_var: Some(micros(info.rtt_variation)),
            receive_window_limited: time(info.rwnd_limited),
            send_buffer_limited: time(info.sndbuf_limited),
        }
    }
}

impl ConnectionInfo {
    pub(super) fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self { client: client.to_string(), server: server.to_string() }
    }
}

/// Reads a count. A number below 0 counts as absent: some kernels and servers send -1.
fn count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    // Saturates.
    Ok(Option::<f64>::deserialize(from)?.filter(|value| *value >= 0.0).map(|value| value as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_of_other_servers_are_read() {
        let json = r#"{"AppInfo":{"ElapsedTime":1234,"NumBytes":1.5e+9},"BBRInfo":{"BW":1},"ConnectionInfo":
            {"Client":"1.2.3.4:5678","Server":"[::1]:2345","UUID":"x","StartTime":"2019-07-16T15:26:05Z"},
            "Origin":"server","Test":"download","TCPInfo":{"State":1,"BusyTime":9000000,"RWndLimited":8000000,
            "SndBufLimited":-1,"ElapsedTime":10000000,"MinRTT":12000,"RTT":null}}"#;
        let read: Measurement = serde_json::from_str(json).unwrap();
        let kernel = read.kernel.unwrap();
        assert_eq!((kernel.busy_time, kernel.receive_window_limited), (Some(9_000_000), Some(8_000_000)));
        assert_eq!((kernel.send_buffer_limited, kernel.rtt, kernel.min_rtt), (None, None, Some(12_000)));
        assert_eq!(read.app.unwrap().num_bytes, Some(1_500_000_000));
        assert_eq!(serde_json::from_str::<Measurement>("{}").unwrap(), Measurement::default());
        for wrong in ["", "7", r#"{"AppInfo":7}"#, r#"{"TCPInfo":{"RTT":"x"}}"#] {
            assert!(serde_json::from_str::<Measurement>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn measurements_have_the_names_of_the_specification() {
        let kernel = KernelReport { min_rtt: Some(1), receive_window_limited: Some(2), ..KernelReport::default() };
        let app = AppInfo { elapsed_time: Some(3), num_bytes: Some(4) };
        let sent = Measurement { app: Some(app), kernel: Some(kernel), ..Measurement::default() };
        let expected = serde_json::json!({
            "AppInfo": {"ElapsedTime": 3, "NumBytes": 4},
            "TCPInfo": {"MinRTT": 1, "RWndLimited": 2},
        });
        assert_eq!(serde_json::to_value(sent).unwrap(), expected);
    }
}
