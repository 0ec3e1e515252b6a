//! Transport of lanes, by name.

use std::fmt;

use serde::Serialize;

/// Transport of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// TLS over TCP.
    Tcp,
    /// QUIC over UDP.
    Quic,
}

impl Via {
    /// Returns the other transport.
    pub fn other(self) -> Self {
        match self {
            Self::Tcp => Self::Quic,
            Self::Quic => Self::Tcp,
        }
    }
}

impl fmt::Display for Via {
    /// Writes the name in the format of `--via`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        })
    }
}
