//! Bans of endpoints, at `/api/v1/bans`: no transfer starts from or to a banned endpoint.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use url::Url;

use super::answer::{By, Failed, usage};
use super::types::{BanList, BanView, Banned, NewBan, Problem};
use crate::api::app::App;
use crate::caller::{Level, Operation};

/// Returns the name of an endpoint: scheme and host, without the port, as in the queues of the scheduler.
///
/// Errors: `Usage`, if it is no URL with a host.
fn endpoint(given: &str) -> Result<String, Error> {
    let wrong = || usage(format!("{given} is no endpoint: expected SCHEME://HOST"));
    let url = Url::parse(given).map_err(|_| wrong())?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    Ok(format!("{}://{host}", url.scheme()))
}

/// Lists the bans, by endpoint.
#[utoipa::path(
    get,
    path = "/api/v1/bans",
    responses((status = 200, body = BanList), (status = 403, body = Problem))
)]
pub(super) async fn list(By(caller): By, State(app): State<App>) -> Result<Json<BanList>, Failed> {
    caller.check_level(Operation::Config, Level::Vo)?;
    let applied = app.service.applied();
    Ok(Json(BanList { bans: applied.bans.iter().map(|(endpoint, ban)| BanView::new(endpoint, ban)).collect() }))
}

/// Bans an endpoint: its files are cancelled, or wait until the ban is lifted.
#[utoipa::path(
    put,
    path = "/api/v1/bans/{endpoint}",
    params(("endpoint" = String, Path, description = "Scheme and host, percent-encoded")),
    request_body = NewBan,
    responses((status = 200, body = Banned), (status = 400, body = Problem), (status = 403, body = Problem))
)]
pub(super) async fn ban(
    By(caller): By,
    State(app): State<App>,
    Path(given): Path<String>,
    body: Bytes,
) -> Result<Json<Banned>, Failed> {
    let new: NewBan = serde_json::from_slice(&body).map_err(|e| usage(format!("the ban is not understood: {e}")))?;
    let (endpoint, (kind, takes_jobs)) = (endpoint(&given)?, new.effect()?);
    let jobs = app.service.ban(&caller, &endpoint, kind, takes_jobs, &new.message).await?;
    Ok(Json(Banned { endpoint, jobs }))
}

/// Lifts the ban of an endpoint: its files that were held back wait for their turn again.
#[utoipa::path(
    delete,
    path = "/api/v1/bans/{endpoint}",
    params(("endpoint" = String, Path, description = "Scheme and host, percent-encoded")),
    responses(
        (status = 204, description = "The ban is lifted"),
        (status = 400, body = Problem),
        (status = 403, body = Problem),
        (status = 404, body = Problem),
    )
)]
pub(super) async fn lift(
    By(caller): By,
    State(app): State<App>,
    Path(given): Path<String>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let endpoint = endpoint(&given)?;
    if !app.service.applied().bans.contains_key(&endpoint) {
        let text = format!("{endpoint} is not banned");
        return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text).into());
    }
    app.service.unban(&caller, &endpoint).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_named_as_in_the_queues() {
        for (given, expected) in [
            ("sterna://se.example", "sterna://se.example"),
            ("sterna://se.example:7373/", "sterna://se.example"),
            ("https://SE.example/path?x=1", "https://se.example"),
        ] {
            assert_eq!(endpoint(given).unwrap(), expected);
            let of_file = crate::command::endpoint_of(&format!("{}/f", given.split_once('?').map_or(given, |at| at.0)));
            assert_eq!(of_file.unwrap(), expected, "the endpoint of a file there");
        }
        for wrong in ["", "*", "se.example", "sterna://", "file:///x", "/sterna"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
