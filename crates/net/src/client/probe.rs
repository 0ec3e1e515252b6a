//! Probes: transfers of generated data between this host and an agent, to measure a path.
//!
//! A probe is a copy whose files exist at neither end: its lanes, rates and limits are those of a copy. It neither uses
//! nor updates the path cache, so each probe measures the path afresh.

use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::session::{PATHS_MAX, PROBE_BYTES_MAX, PROBE_BYTES_MIN, Probe};
use sterna_proto::{ByteCount, Error, Location};

use super::PlannedCopy;
use super::job::{Direction, Job};
use super::spec::{CopySpec, PathOptions};

/// Options of one probe.
#[derive(Clone, Debug)]
pub struct ProbeSpec {
    /// Agent at the other end; the path in the location has no meaning.
    pub agent: RemoteLocation,
    /// Direction of the data, as this host sees it.
    pub direction: DataDirection,
    /// Budget: bytes of generated data, from [`PROBE_BYTES_MIN`] to [`PROBE_BYTES_MAX`]. Protocol overhead and
    /// retransmissions come on top. [`crate::engine::CopyHandle::cancel`] ends the probe earlier.
    pub bytes: ByteCount,
    /// Paths to use together, with transport, lanes and rates: at least one, at most [`PATHS_MAX`].
    pub paths: Vec<PathOptions>,
    /// Congestion control of TCP lanes, as in [`CopySpec::congestion`].
    pub congestion: Option<String>,
    /// Maximum of data in the buffers of transports.
    pub memory: ByteCount,
}

impl ProbeSpec {
    /// Returns the options of a probe over one path, with defaults for everything else.
    pub fn new(agent: RemoteLocation, direction: DataDirection, bytes: ByteCount) -> Self {
        let (paths, memory) = (vec![PathOptions::default()], super::spec::MEMORY_DEFAULT);
        Self { agent, direction, bytes, paths, congestion: None, memory }
    }

    /// Checks the probe, and returns it as a copy. Errors: `Usage`.
    pub(crate) fn plan(self) -> Result<(CopySpec, PlannedCopy), Error> {
        let Self { agent, direction, bytes, paths, congestion, memory } = self;
        let (least, most) = (ByteCount(PROBE_BYTES_MIN), ByteCount(PROBE_BYTES_MAX));
        if bytes < least || bytes > most {
            return Err(Error::usage(&[], format!("a probe with {bytes}: give {least} to {most}")));
        }
        if paths.is_empty() || paths.len() > usize::from(PATHS_MAX) {
            return Err(Error::usage(&[], format!("a probe over {} paths: give 1 to {PATHS_MAX}", paths.len())));
        }
        let job = Job {
            remote: agent.clone(),
            direction: Direction::Probe(Probe { direction, bytes: bytes.0 }),
            follow: None,
        };
        let base = CopySpec::new(Vec::new(), Location::Remote(agent));
        Ok((CopySpec { paths, congestion, memory, ..base }, PlannedCopy::Agent(job)))
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Counters, ErrorKind, Phase, Scope};

    use super::*;
    use crate::client::spec::CopySummary;

    #[test]
    fn a_probe_whose_data_was_not_carried_is_an_error() {
        let Ok(Location::Remote(agent)) = Location::parse("sterna://hub/".as_ref()) else {
            panic!("it is at an agent")
        };
        let bytes = ByteCount((1 << 30) + 1);
        let (_, planned) = ProbeSpec::new(agent, DataDirection::Out, bytes).plan().unwrap();
        let PlannedCopy::Agent(job) = planned else { panic!("it has one agent") };
        let ended = |done, bytes_carried| {
            let counters = Counters { bytes_carried, ..Counters::default() };
            CopySummary { done, counters, ..CopySummary::default() }
        };
        assert!(job.check(&ended(2, bytes.0)).is_ok());
        for summary in [ended(0, 0), ended(1, bytes.0), ended(2, bytes.0 - 1), ended(3, bytes.0)] {
            assert_eq!(job.check(&summary).unwrap_err().kind, ErrorKind::Protocol, "{summary:?}");
        }
        let failure = Error::new(ErrorKind::Corrupt, Scope::Path, Phase::Verify, "corrupt");
        let failed = CopySummary { failed: 1, failures: vec![failure], ..ended(1, bytes.0) };
        assert_eq!(job.check(&failed).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
