//! Bans of endpoints, at `/api/v1/bans`: no transfer starts from or to a banned endpoint.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::answer::{By, Failed, Refusals, read};
use super::types::{BanList, BanView, Banned, NewBan};
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::caller::{Level, Operation};
use crate::endpoint::endpoint_named;

/// Lists the bans, by endpoint.
#[utoipa::path(
    get,
    path = "/api/v1/bans",
    operation_id = "list_bans",
    responses((status = 200, description = "Bans", body = BanList), Refusals)
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
    responses((status = 200, description = "The endpoint is banned", body = Banned), Refusals)
)]
pub(super) async fn ban(
    By(caller): By,
    State(app): State<App>,
    Path(given): Path<String>,
    Whole(body): Small,
) -> Result<Json<Banned>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let new: NewBan = read("the ban", &body)?;
    let (endpoint, (kind, takes_jobs)) = (endpoint_named(&given)?, new.effect()?);
    let jobs = app.service.ban(&caller, &endpoint, kind, takes_jobs, &new.message).await?;
    Ok(Json(Banned { endpoint, jobs }))
}

/// Lifts the ban of an endpoint: its files that were held back wait for their turn again.
#[utoipa::path(
    delete,
    path = "/api/v1/bans/{endpoint}",
    params(("endpoint" = String, Path, description = "Scheme and host, percent-encoded")),
    operation_id = "lift_ban",
    responses((status = 204, description = "The ban is lifted"), Refusals)
)]
pub(super) async fn lift(
    By(caller): By,
    State(app): State<App>,
    Path(given): Path<String>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let endpoint = endpoint_named(&given)?;
    if !app.service.applied().bans.contains_key(&endpoint) {
        let text = format!("{endpoint} is not banned");
        return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text).into());
    }
    app.service.unban(&caller, &endpoint).await?;
    Ok(StatusCode::NO_CONTENT)
}
