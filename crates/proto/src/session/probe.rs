//! Probes: a client measures a path with generated data, which the receiving end verifies and discards.
//!
//! A [`Probe`] is a request. Its session is that of a copy of files with fixed names and sizes, so that lanes, rates
//! and limits behave as in a copy. No file is read or written.

use crate::error::Error;
use crate::file::RelPath;
use crate::path_cache::DataDirection;
use crate::wire::{Reader, Writer};

/// Minimum data of a probe, in bytes. Reason: one block. Less would travel as a packed block on one lane.
pub const PROBE_BYTES_MIN: u64 = 1 << 20;

/// Maximum data of a probe, in bytes. Reason: a minute of 8 Gbit/s. Blocks that are sent again come on top.
pub const PROBE_BYTES_MAX: u64 = 64 << 30;

/// Maximum size of one generated file, in bytes. Reason: its blocks have 1 MiB, which QUIC delivers in order. The
/// receiver keeps no data to put larger blocks together.
const PROBE_FILE_BYTES_MAX: u64 = 1 << 30;

/// Request for a transfer of generated data. Needs the right to read one root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Direction of the data, as the client sees it.
    pub direction: DataDirection,
    /// Budget: bytes of the generated files together, from [`PROBE_BYTES_MIN`] to [`PROBE_BYTES_MAX`].
    pub bytes: u64,
}

impl Probe {
    /// Returns the generated files, each with its name and size. Sizes differ by one byte at most.
    pub fn files(self) -> impl Iterator<Item = (RelPath, u64)> {
        let count = self.bytes.div_ceil(PROBE_FILE_BYTES_MAX);
        let (each, longer) = (self.bytes / count, self.bytes % count);
        // A name of letters and digits is a relative path.
        let name = |number: u64| RelPath::new(format!("probe{number}").as_bytes()).ok();
        (0..count).filter_map(move |number| Some((name(number)?, each + u64::from(number < longer))))
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{BlockMap, PACKED_FILE_BYTES_MAX};

    #[test]
    fn the_files_of_a_probe_have_its_bytes_in_blocks_of_one_mebibyte() {
        for bytes in [PROBE_BYTES_MIN, PROBE_BYTES_MIN + 1, 1 << 30, (1 << 30) + 1, (5 << 30) + 3, PROBE_BYTES_MAX] {
            let files: Vec<_> = Probe { direction: DataDirection::Out, bytes }.files().collect();
            assert_eq!(files.iter().map(|(_, size)| size).sum::<u64>(), bytes);
            assert_eq!(files.len() as u64, bytes.div_ceil(1 << 30));
            for (number, (path, size)) in files.iter().enumerate() {
                assert_eq!(path.to_string(), format!("probe{number}"));
                assert!(*size > PACKED_FILE_BYTES_MAX && BlockMap::new(*size).block_bytes() == 1 << 20, "{size}");
            }
        }
    }
}
