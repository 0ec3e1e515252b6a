//! Measurements in which an agent takes part: who may ask, their lines in the log, and the place for its own monitor.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use sterna_proto::Error;
use tracing::Level;

use super::limiter::{Cause, Kind, Origin, cut};
use super::{Agent, Shared, peer_span};
use crate::handshakes::Slot;
use crate::identity::{Fingerprint, Identity, Rights};
use crate::measure::{Party, Place};

/// Place for the measurements of an agent, held by its own monitor until it is dropped.
pub struct OwnPlace(Place);

impl OwnPlace {
    /// Returns true if an examination waits for the place: the monitor must give it up after the present experiment.
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }
}

impl Agent {
    /// Takes the place for measurements, so that no peer measures with this agent meanwhile.
    ///
    /// Errors: `Busy`: a measurement is under way, or an examination waits.
    pub fn take_place(&self) -> Result<OwnPlace, Error> {
        self.shared.measurements.enter(Party::OwnMonitor, None).map(OwnPlace)
    }
}

impl Shared {
    /// Serves a connection of a measurement until it ends. Needs the right to read one root, as a probe does. `slot` is
    /// released when the peer has identified itself.
    pub(super) fn serve_measurement(
        self: &Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        identity: &Identity,
        slot: Slot,
    ) {
        let mut peer = None;
        let may_measure = |key: &Fingerprint| -> Result<(), Error> {
            drop(slot);
            peer = Some(*key);
            self.grant(key).and_then(|grant| self.may_probe(&grant))
        };
        let directory = |peer: &Fingerprint, path: &[u8]| {
            let grant = self.grant(peer)?;
            let path = path.strip_prefix(b"/").unwrap_or(path);
            self.root_of(path, &grant, Rights::ReadWrite).map(|(root, rest)| (root, rest.to_vec()))
        };
        let outcome = self.measurements.serve(stream, identity, may_measure, &directory);
        let (kind, line) = match (outcome, peer) {
            (Ok(None), _) => return,
            (Ok(Some(flows)), _) => (
                (Kind::Sessions, Level::INFO),
                format!("a measurement of {flows} flows, packet trains and echoes has ended"),
            ),
            (Err(error), None) => return self.log_handshake(&error),
            (Err(error), _) => ((Kind::Refusals, Level::WARN), format!("measurement: {}", cut(&error.chain()))),
        };
        let Some(peer) = peer else { return };
        let origin = Origin { cause: Cause::Peer(peer), span: peer_span(&peer, from) };
        self.log.line(&origin, kind, &line, Instant::now());
    }
}
