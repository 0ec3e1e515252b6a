//! Probes: a client measures a path with generated data, which the receiving end verifies and discards.
//!
//! A [`Probe`] is a request. Its session is that of a copy of one file with a fixed name, so that lanes, rates and
//! limits behave as in a copy. No file is read or written.

use crate::error::Error;
use crate::path_cache::DataDirection;
use crate::wire::{Reader, Writer};

/// Name of the only file of a probe.
pub const PROBE_NAME: &[u8] = b"probe";

/// Minimum data of a probe, in bytes. Reason: one block. Less would travel as a packed block on one lane.
pub const PROBE_BYTES_MIN: u64 = 1 << 20;

/// Maximum data of a probe, in bytes. Reason: a minute of 8 Gbit/s. Bounds the traffic that a client causes by one
/// request.
pub const PROBE_BYTES_MAX: u64 = 64 << 30;

/// Request for a transfer of generated data. Needs no right to any file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Direction of the data, as the client sees it.
    pub direction: DataDirection,
    /// Budget: size of the generated file, from [`PROBE_BYTES_MIN`] to [`PROBE_BYTES_MAX`].
    pub bytes: u64,
}

impl Probe {
    pub(super) fn write(&self, w: &mut Writer) {
        w.byte(match self.direction {
            DataDirection::Out => 1,
            DataDirection::In => 2,
        });
        w.integer(self.bytes);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let direction = match r.byte()? {
            1 => DataDirection::Out,
            2 => DataDirection::In,
            code => return Err(Error::protocol(format!("probe from the peer: unknown direction {code}"))),
        };
        let bytes = r.integer_up_to(PROBE_BYTES_MAX)?;
        if bytes < PROBE_BYTES_MIN {
            return Err(Error::protocol(format!("probe from the peer: {bytes} bytes, the least is {PROBE_BYTES_MIN}")));
        }
        Ok(Self { direction, bytes })
    }
}
