//! Grants of a transfer service: what an agent accepts of them, and what the service itself may do.

use sterna_proto::session::{GrantedAccess, Request, SignedGrant};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::used_grants::{CLOCKS_DIFFER_MAX, seconds_since_1970};
use super::{Admission, Shared};
use crate::identity::{Fingerprint, Grant, Rights};

impl Shared {
    /// Returns the rights that a transfer service has granted to a peer. Errors: `Untrusted`, `Denied`.
    pub(super) fn granted_by_service(
        &self,
        peer: &Fingerprint,
        signed: &SignedGrant,
        request: &Request,
        is_running: bool,
    ) -> Result<Grant, Error> {
        let grant = &signed.grant;
        let service = Fingerprint(grant.service);
        let refused = |kind, text: String| Error::new(kind, Scope::Service, Phase::Prepare, text);
        let key = self.services.lock().values().find(|key| key.fingerprint() == service).copied();
        let key = key.ok_or_else(|| {
            let text = format!("a grant of the service {service}, to which this agent is not connected yet");
            refused(ErrorKind::Untrusted, text).retry(Retry::After)
        })?;
        key.verify(&grant.signed_bytes(), &signed.signature)?;
        if grant.holder != peer.0 || grant.at != self.identity.fingerprint().0 {
            let text = format!("a grant for another pair of agents than {} and this one", peer.short());
            return Err(refused(ErrorKind::Untrusted, text));
        }
        if !is_running && grant.expires.saturating_add(CLOCKS_DIFFER_MAX) < seconds_since_1970() {
            let text = "the grant of the service has expired, or the clocks of the hosts differ".to_owned();
            return Err(refused(ErrorKind::Denied, text).retry(Retry::After));
        }
        grant.check(request)?;
        let rights = match grant.access {
            GrantedAccess::Read => Rights::Read,
            GrantedAccess::Write(_) => Rights::ReadWrite,
        };
        Ok(self.grant_of_service(&service).and(&Grant::everywhere(rights)))
    }

    /// Returns the rights of a transfer service from which this agent takes work: all, unless the operator lists less.
    /// To delete is one of them: a service that replaces files could empty them.
    pub(super) fn grant_of_service(&self, service: &Fingerprint) -> Grant {
        let listed = match &self.admission {
            Admission::Listed(list) => list.ask(service).grant,
            Admission::Anybody | Admission::Granted => None,
        };
        listed.unwrap_or_else(|| Grant::everywhere(Rights::Manage))
    }
}
