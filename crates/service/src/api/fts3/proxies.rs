//! Proxies that a submission needs: a job that would reach its storages without any credentials is refused.
//!
//! Clients delegate a proxy when they see the status 419, and submit again. Refuses to keep proxies.

use std::time::Duration;

use axum::http::StatusCode;

use super::answer::{Failed, NEEDS_DELEGATION};
use crate::api::app::App;
use crate::caller::{Caller, Method};
use crate::command::{Pair, Submission};
use crate::endpoint::endpoint_of;
use crate::service::now;

/// Minimum remaining life of a proxy at a submission. Source: FTS3; a job waits and runs meanwhile.
const LIFE_MIN: Duration = Duration::from_secs(3600);

/// Beginnings of endpoints that verify certificates of users. Plain HTTP has none.
const SCHEMES: [&str; 2] = ["https://", "davs://"];

/// Checks that a caller who can delegate has a proxy that lives long enough, if the storages of a job need one.
///
/// Errors: 419, with the texts of FTS3.
pub async fn check(caller: &Caller, app: &App, submission: &Submission) -> Result<(), Failed> {
    // A user with a token has no certificate to sign a proxy with.
    if !app.delegations.is_wanted() || caller.method != Method::Certificate {
        return Ok(());
    }
    if !submission.entries.iter().flat_map(|entry| &entry.pairs).any(needs_proxy) {
        return Ok(());
    }
    let refused = |text: String| {
        let status = StatusCode::from_u16(NEEDS_DELEGATION).unwrap_or(StatusCode::FORBIDDEN);
        Err(Failed::new(status, text))
    };
    let Some(proxy) = app.service.store().proxy(caller.credential.clone()).await? else {
        return refused(format!("No delegation found for \"{}\"", caller.name));
    };
    let left = proxy.expires.saturating_sub(now().0.div_euclid(1000));
    let credential = &caller.credential;
    if left < 0 {
        return refused(format!(
            "The delegated credentials expired {} seconds ago ({credential})",
            left.unsigned_abs()
        ));
    }
    match left.unsigned_abs() < LIFE_MIN.as_secs() {
        true => refused(format!("The delegated credentials has less than one hour left ({credential})")),
        false => Ok(()),
    }
}

/// Returns true if an end of a pair verifies certificates, and the job has no token for it.
fn needs_proxy(pair: &Pair) -> bool {
    let is_verifying = |location: &str| {
        let endpoint = endpoint_of(location);
        endpoint.is_ok_and(|endpoint| SCHEMES.iter().any(|scheme| endpoint.starts_with(scheme)))
    };
    pair.credentials.source.is_none() && is_verifying(&pair.source)
        || pair.credentials.destination.is_none() && is_verifying(&pair.destination)
}
