//! Sites and their agents, at `/api/v1/sites`: a site is the host of locations, and agents serve it. Paths between
//! agents, at `/api/v1/paths`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use sterna_doctor::evidence::Direction;
use sterna_doctor::monitor::{Outcome, Round};
use sterna_net::identity::Fingerprint;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use utoipa::IntoParams;

use super::answer::{By, Failed, Refusals, page, read, usage};
use super::path_types::{PathList, PathView, RoundDirection, RoundList, RoundView};
use super::types::{AccessView, AgentView, NewSite, SiteList, SiteView};
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::caller::{Level, Operation};
use crate::paths::{PathEnds, PathRecord, RoundFilter};
use crate::service::now;
use crate::site::{Site, SiteSettings};

/// Maximum number of agents of a site. Reason: a data centre has some tens of transfer hosts.
const AGENTS_MAX: usize = 256;

/// Lists the sites, by name, with their agents.
#[utoipa::path(
    get,
    path = "/api/v1/sites",
    operation_id = "list_sites",
    responses((status = 200, description = "Sites", body = SiteList), Refusals)
)]
pub(super) async fn list(By(caller): By, State(app): State<App>) -> Result<Json<SiteList>, Failed> {
    caller.check_level(Operation::Config, Level::Vo)?;
    let applied = app.service.applied();
    let sites = applied.sites.iter().map(|(name, site)| view(&app, name, site)).collect();
    Ok(Json(SiteList { sites }))
}

fn view(app: &App, name: &str, site: &Site) -> SiteView {
    let connected = app.service.agents();
    let agent = |key: &Fingerprint| {
        let state = connected.iter().find(|state| state.agent == *key);
        AgentView {
            agent: key.to_string(),
            is_connected: state.is_some(),
            release: state.map(|state| state.release.clone()),
            address: state.and_then(|state| state.address.clone()),
            transfers: state.map_or(0, |state| state.transfers as u64),
        }
    };
    SiteView {
        name: name.to_owned(),
        agents: site.agents.iter().map(agent).collect(),
        access: site.access.iter().map(AccessView::from).collect(),
    }
}

/// Sets the agents of a site, and which virtual organisations may use it.
#[utoipa::path(
    put,
    path = "/api/v1/sites/{name}",
    operation_id = "set_site",
    params(("name" = String, Path, description = "Host of the locations at the site, without a port")),
    request_body = NewSite,
    responses((status = 200, description = "The site", body = SiteView), Refusals)
)]
pub(super) async fn set(
    By(caller): By,
    State(app): State<App>,
    Path(name): Path<String>,
    Whole(body): Small,
) -> Result<Json<SiteView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let new: NewSite = read("the site", &body)?;
    if new.agents.is_empty() || new.agents.len() > AGENTS_MAX {
        return Err(usage(format!("{} agents: a site has 1 to {AGENTS_MAX}", new.agents.len())).into());
    }
    let agents = new.agents.iter().map(|agent| agent.parse::<Fingerprint>().map_err(|e| usage(e.to_string())));
    let mut agents: Vec<Fingerprint> = agents.collect::<Result<_, _>>()?;
    agents.sort_unstable();
    agents.dedup();
    let agents = agents.iter().map(Fingerprint::to_string).collect();
    let access = new.access.iter().map(AccessView::to_access).collect::<Result<_, _>>()?;
    let settings = SiteSettings { agents, access };
    app.service.set_site(&caller, &name, Some(&settings)).await?;
    Ok(Json(view(&app, &name, &settings.into())))
}

/// Removes a site. Its files wait until it has an agent again.
#[utoipa::path(
    delete,
    path = "/api/v1/sites/{name}",
    operation_id = "remove_site",
    params(("name" = String, Path, description = "Host of the locations at the site, without a port")),
    responses((status = 204, description = "The site has no agents"), Refusals)
)]
pub(super) async fn remove(
    By(caller): By,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    if !app.service.applied().sites.contains_key(&name) {
        let text = format!("there is no site {name}");
        return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text).into());
    }
    app.service.set_site(&caller, &name, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the measurements of paths between agents.
#[utoipa::path(
    get,
    path = "/api/v1/paths",
    operation_id = "list_paths",
    responses((status = 200, description = "Paths", body = PathList), Refusals)
)]
pub(super) async fn paths(By(caller): By, State(app): State<App>) -> Result<Json<PathList>, Failed> {
    caller.check_level(Operation::Config, Level::Vo)?;
    let view = |(ends, record): (PathEnds, PathRecord)| PathView {
        source_agent: ends.source.to_string(),
        destination_agent: ends.destination.to_string(),
        rtt_ms: record.rtt_ms,
        loss: record.loss,
        best_bytes_per_s: record.best_bytes_per_s,
        last_bytes_per_s: record.last_bytes_per_s,
        limited_by: record.limited_by,
        transfers: record.transfers,
        at_ms: record.at,
        visits: record.visits.into_iter().filter(|visit| visit.is_recent(now())).collect(),
    };
    Ok(Json(PathList { paths: app.service.paths().into_iter().map(view).collect() }))
}

/// Selection of rounds.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RoundQuery {
    /// Fingerprint of the agent that monitors.
    agent: String,
    /// Fingerprint of its peer.
    peer: String,
    /// Visits after the minute of this time, in milliseconds since 1970; without it from the first one that is kept.
    after_ms: Option<u64>,
    /// Maximum number of visits, from 1 to 1000.
    limit: Option<u32>,
}

/// Returns the visits of an agent to a peer that it monitors, the oldest first. The last one of each minute is kept,
/// for a year.
#[utoipa::path(
    get,
    path = "/api/v1/paths/rounds",
    operation_id = "list_rounds",
    params(RoundQuery),
    responses((status = 200, description = "Visits", body = RoundList), Refusals)
)]
pub(super) async fn rounds(
    By(caller): By,
    State(app): State<App>,
    Query(query): Query<RoundQuery>,
) -> Result<Json<RoundList>, Failed> {
    caller.check_level(Operation::Config, Level::Vo)?;
    // A plus sign that is not encoded reads as a space.
    let key = |text: &str| text.replace(' ', "+").parse::<Fingerprint>().map_err(|e| usage(e.to_string()));
    let filter = RoundFilter {
        observer: key(&query.agent)?,
        peer: key(&query.peer)?,
        after: query.after_ms.unwrap_or(0) / 1000,
        limit: page(query.limit)?,
    };
    let rounds = app.service.store().rounds(filter).await?;
    Ok(Json(RoundList { rounds: rounds.iter().map(round_view).collect() }))
}

fn round_view(round: &Round) -> RoundView {
    let (measured, failure) = match &round.outcome {
        Outcome::Measured(measured) => (Some(measured), None),
        Outcome::Failed(failure) => (None, Some(failure.text().to_owned())),
    };
    let echoes = measured.and_then(|measured| measured.echoes.as_ref());
    let direction = |direction: Direction| {
        let test = measured.and_then(|measured| measured.test(direction));
        RoundDirection {
            loss: echoes.and_then(|echoes| echoes.loss(direction)),
            hops: echoes.and_then(|echoes| echoes.hops(direction)),
            bytes_per_s: test.map(|test| test.rate_bps as f64 / 8.0),
            limited_by: test.map(|test| test.limit.name()),
        }
    };
    RoundView {
        at_ms: round.at.saturating_mul(1000),
        rtt_ms: echoes.and_then(|echoes| echoes.fastest_s()).map(|rtt| rtt * 1e3),
        slowest_rtt_ms: echoes.and_then(|echoes| echoes.slowest_s()).map(|rtt| rtt * 1e3),
        forward: direction(Direction::Forward),
        reverse: direction(Direction::Reverse),
        failure,
    }
}
