//! Place where a transfer runs.

use std::sync::Arc;

use sterna_proto::Error;

use crate::paths::PathEnds;
use crate::worker::{Assignment, End};

/// Place where a transfer runs.
#[derive(Clone)]
pub(super) enum Placement {
    /// In this process.
    Embedded,
    /// At agents.
    Agents(Assignment),
    /// Nowhere: it fails.
    Nowhere(Error),
}

impl Placement {
    /// Returns the worker; `None`: this process.
    pub(super) fn worker(&self) -> Option<&Arc<str>> {
        self.assignment().map(|assignment| &assignment.worker)
    }

    /// Returns the agents.
    pub(super) fn assignment(&self) -> Option<&Assignment> {
        match self {
            Self::Agents(assignment) => Some(assignment),
            Self::Embedded | Self::Nowhere(_) => None,
        }
    }
}

/// Returns the path between the agents of a transfer; `None`: only one end is at an agent.
pub(super) fn path_of(assignment: &Assignment) -> Option<PathEnds> {
    let (agent, peer) = (assignment.agent, assignment.peer.as_ref()?.agent);
    Some(match assignment.end {
        End::Source => PathEnds { source: agent, destination: peer },
        End::Destination => PathEnds { source: peer, destination: agent },
    })
}
