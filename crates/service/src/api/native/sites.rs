//! Sites and their agents, at `/api/v1/sites`: a site is the host of locations, and agents serve it. Paths between
//! agents, at `/api/v1/paths`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sterna_net::identity::Fingerprint;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::answer::{By, Failed, Refusals, read, usage};
use super::types::{AccessView, AgentView, NewSite, PathList, PathView, SiteList, SiteView};
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::caller::{Level, Operation};
use crate::paths::{PathEnds, PathRecord};
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
    };
    Ok(Json(PathList { paths: app.service.paths().into_iter().map(view).collect() }))
}
