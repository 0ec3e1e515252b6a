//! Claim of a peer to the rights of its session.

use sterna_proto::session::{Hello, Request, SignedGrant};

use crate::identity::Fingerprint;

/// Claim of a peer to the rights of its session.
#[derive(Clone)]
pub(super) enum Claim {
    /// The rights of its key.
    Own,
    /// The rights that its key and another one have.
    OnBehalfOf(Fingerprint),
    /// A grant of a transfer service.
    Granted {
        /// Grant.
        grant: Box<SignedGrant>,
        /// True if the session runs: the grant may have expired.
        is_running: bool,
    },
}

impl Claim {
    /// Returns the grant that a session with this request uses up, because the session writes. A dry run and a session
    /// that reads leave the grant.
    pub(super) fn used_up_by(&self, request: &Request) -> Option<&SignedGrant> {
        match (self, request) {
            (Self::Granted { grant, .. }, Request::Push { dry_run: false, .. }) => Some(grant),
            _ => None,
        }
    }

    /// Returns the claim in a hello. `is_running`: its session runs.
    pub(super) fn of(hello: &Hello, is_running: bool) -> Self {
        match (&hello.grant, hello.on_behalf_of) {
            (Some(grant), _) => Self::Granted { grant: grant.clone(), is_running },
            (None, Some(other)) => Self::OnBehalfOf(Fingerprint(other)),
            (None, None) => Self::Own,
        }
    }
}
