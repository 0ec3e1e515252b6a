//! Grants to write that were used: each starts one session.
//!
//! Keeps a bounded number in memory. Refuses to verify a grant.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_proto::session::SignedGrant;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

/// Time by which the clocks of a service and of an agent may differ, in seconds. Guess: hosts without NTP.
pub(super) const CLOCKS_DIFFER_MAX: u64 = 300;

/// Maximum number of used grants that are kept. Reason: 16 MB. Above it, an agent takes in over 60 files per second for
/// an hour; it then forgets those that expire first.
const USED_MAX: usize = 1 << 18;

/// Grants to write that have started a session, until they expire. Reason: with one of them, its holder could replace
/// the files again after the service has recorded them as verified.
#[derive(Default)]
pub(super) struct UsedGrants(HashMap<[u8; 16], u64>);

impl UsedGrants {
    /// Records the use of a grant. Errors: `Denied`: it was used before.
    pub(super) fn take(&mut self, signed: &SignedGrant, now: u64) -> Result<(), Error> {
        if self.0.len() >= USED_MAX {
            self.forget(now);
        }
        if self.0.insert(signed.grant.nonce, signed.grant.expires).is_none() {
            return Ok(());
        }
        let text = "the grant of the service has started a session before: each start of a transfer needs a new one";
        Err(Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text).retry(Retry::After))
    }

    /// Forgets the use of a grant whose session did not start, or has published no file.
    pub(super) fn give_back(&mut self, signed: &SignedGrant) {
        self.0.remove(&signed.grant.nonce);
    }

    /// Removes the grants that have expired, and at least half of all.
    fn forget(&mut self, now: u64) {
        let mut times: Vec<u64> = self.0.values().copied().collect();
        let (_, median, _) = times.select_nth_unstable(self.0.len() / 2);
        let limit = now.saturating_sub(CLOCKS_DIFFER_MAX).max(*median);
        self.0.retain(|_, expires| *expires > limit);
    }
}

/// Returns the time that grants have.
pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use sterna_proto::session::{Grant as Content, GrantedAccess};

    use super::*;

    fn grant(number: u64, expires: u64) -> SignedGrant {
        let grant = Content {
            service: [0; 32],
            holder: [0; 32],
            at: [0; 32],
            access: GrantedAccess::Read,
            paths: Vec::new(),
            expires,
            nonce: u128::from(number).to_be_bytes(),
        };
        SignedGrant { grant, signature: [0; 64] }
    }

    #[test]
    fn memory_of_used_grants_is_bounded_and_keeps_the_latest() {
        let mut used = UsedGrants::default();
        for number in 0..=USED_MAX as u64 {
            used.take(&grant(number, 1_000_000 + number), 0).unwrap();
        }
        assert!(used.0.len() <= USED_MAX / 2 + 1, "{}", used.0.len());
        let latest = grant(USED_MAX as u64, 0);
        assert_eq!(used.take(&latest, 0).unwrap_err().kind, ErrorKind::Denied);
        used.give_back(&latest);
        used.take(&latest, 0).unwrap();
        used.take(&grant(0, 0), 0).unwrap();
    }
}
