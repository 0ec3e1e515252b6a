//! FTS3's requests for files of several jobs, the archive, the optimizer and names to complete.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_sched::settings::Link;
use sterna_sched::state::FileState;
use utoipa::IntoParams;
use uuid::Uuid;

use super::answer::{Failed, Refusals, Reply, endpoint, json_reply};
use super::{reply, types};
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::api::description::{Routes, routes};
use crate::caller::{Caller, Level, Operation};
use crate::service::now;
use crate::settings::kind;
use crate::store::{FileFilter, JobFilter};

/// Maximum number of files in a list. Source: FTS3.
const FILES_MAX: u32 = 1000;

/// Maximum number of names in a completion. Source: FTS3.
const NAMES_MAX: usize = 10;

/// Returns the routes.
pub(in crate::api) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(files))
        .routes(routes!(archive))
        .routes(routes!(archived))
        .routes(routes!(archived_field))
        .routes(routes!(optimizer))
        .routes(routes!(current, set_current))
        .routes(routes!(evolution))
        .routes(routes!(complete))
}

/// `GET /optimizer`: the service has one.
#[utoipa::path(
    get,
    path = "/optimizer",
    security(()),
    responses((status = 200, description = "True", body = bool, content_type = "application/json"), Refusals)
)]
async fn optimizer() -> Response {
    json_reply(StatusCode::OK, &json!(true))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FilesQuery {
    /// Virtual organisation.
    vo_name: Option<String>,
    /// Storage of the source.
    source_se: Option<String>,
    /// Storage of the destination.
    dest_se: Option<String>,
    /// Destination.
    dest_surl: Option<String>,
    /// States, separated by commas.
    state_in: Option<String>,
    /// Job.
    job_id: Option<String>,
    /// Maximum number of files; higher ones count as 1000.
    limit: Option<u32>,
}

/// `GET /files`: files of jobs that the caller may see.
#[utoipa::path(
    get,
    path = "/files",
    operation_id = "list_files",
    params(FilesQuery),
    responses((status = 200, description = "Files", body = Vec<types::File<'_>>), Refusals)
)]
async fn files(caller: Caller, State(app): State<App>, Query(query): Query<FilesQuery>) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let states = query.state_in.as_deref().unwrap_or_default();
    let states: Vec<&str> = states.split(',').filter(|name| !name.is_empty()).collect();
    let known = |state: &FileState| states.contains(&reply::file_state(*state));
    let filter = FileFilter {
        jobs: query.job_id.as_deref().and_then(|id| Uuid::try_parse(id).ok()).into_iter().collect(),
        states: FileState::ALL.into_iter().filter(known).collect(),
        vo: match caller.level(Operation::Transfer) {
            Level::All => query.vo_name,
            _ => Some(caller.vo().to_owned()),
        },
        source_endpoint: query.source_se,
        destination_endpoint: query.dest_se,
        destination: query.dest_surl,
        limit: Some(query.limit.unwrap_or(FILES_MAX).min(FILES_MAX)),
        ..FileFilter::default()
    };
    if !states.is_empty() && filter.states.is_empty() {
        return Ok(json_reply(StatusCode::OK, &json!([])));
    }
    let files = app.service.store().files(filter).await?;
    let ids: BTreeSet<Uuid> = files.iter().map(|file| file.job).collect();
    if ids.is_empty() {
        return Ok(json_reply(StatusCode::OK, &json!([])));
    }
    let jobs = app.service.store().jobs(JobFilter { ids: ids.into_iter().collect(), ..JobFilter::default() }).await?;
    let jobs: BTreeMap<Uuid, _> = jobs.into_iter().map(|job| (job.new.id, job)).collect();
    let shown = files.iter().filter_map(|file| {
        jobs.get(&file.job).filter(|job| caller.check(Operation::Transfer, &job.new.owner).is_ok())?;
        Some(Value::Object(reply::file(file)))
    });
    Ok(json_reply(StatusCode::OK, &Value::Array(shown.collect())))
}

/// `GET /archive`: links.
#[utoipa::path(
    get,
    path = "/archive",
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn archive(caller: Caller) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    Ok(json_reply(
        StatusCode::OK,
        &json!({"_links": {
            "curies": [{"name": "fts", "href": "https://gitlab.cern.ch/fts/fts3"}],
            "fts:archivedJob": {"href": "/archive/{id}", "title": "Archived job information", "templated": true},
        }}),
    ))
}

/// Returns an archived job with its files, as a JSON object.
async fn archived_job(caller: &Caller, app: &App, id: &str) -> Result<serde_json::Map<String, Value>, Failed> {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let found = match Uuid::try_parse(id) {
        Ok(id) => app.service.store().archived(id).await?,
        Err(_) => None,
    };
    let missing =
        || Failed::new(StatusCode::NOT_FOUND, format!("No job with the id \"{id}\" has been found in the archive"));
    let (job, files) = found.ok_or_else(missing)?;
    caller.check(Operation::Transfer, &job.new.owner)?;
    let mut value = reply::job(&job, app.service.host());
    let files = files.iter().map(|file| Value::Object(reply::file(file))).collect();
    value.insert("files".to_owned(), Value::Array(files));
    Ok(value)
}

/// `GET /archive/{id}`: an archived job with its files.
#[utoipa::path(
    get,
    path = "/archive/{id}",
    params(("id" = String, Path, description = "Job")),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn archived(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    let job = archived_job(&caller, &app, &id).await?;
    Ok(json_reply(StatusCode::OK, &Value::Object(job)))
}

/// `GET /archive/{id}/{field}`: one field of an archived job.
#[utoipa::path(
    get,
    path = "/archive/{id}/{field}",
    params(("id" = String, Path, description = "Job"), ("field" = String, Path, description = "Field of a job")),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn archived_field(caller: Caller, State(app): State<App>, Path((id, field)): Path<(String, String)>) -> Reply {
    let job = archived_job(&caller, &app, &id).await?;
    let value = job.get(&field).ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, "No such field"))?;
    Ok(json_reply(StatusCode::OK, value))
}

/// `GET /optimizer/current`: maximum of transfers of each link that has files.
#[utoipa::path(
    get,
    path = "/optimizer/current",
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn current(caller: Caller, State(app): State<App>) -> Reply {
    caller.check_level(Operation::Config, Level::Vo)?;
    let row = |(link, most): (Link, usize)| {
        json!({
            "source_se": &*link.source, "dest_se": &*link.destination, "active": most, "nostreams": 1, "ema": 0.0,
            "datetime": reply::time(now()),
        })
    };
    Ok(json_reply(StatusCode::OK, &Value::Array(app.service.links().into_iter().map(row).collect())))
}

/// Maximum of a link that an operator sets.
#[derive(Deserialize, utoipa::ToSchema)]
struct CurrentLink {
    /// Source storage, or `*`.
    source_se: String,
    /// Destination storage, or `*`.
    dest_se: String,
    /// Maximum of transfers.
    active: u32,
    /// Reason, for people.
    rationale: Option<String>,
}

/// `POST /optimizer/current`: sets the maximum of a link by hand.
#[utoipa::path(
    post,
    path = "/optimizer/current",
    request_body = CurrentLink,
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn set_current(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let wrong = |e: serde_json::Error| Failed::new(StatusCode::BAD_REQUEST, format!("Malformed input: {e}"));
    let request: CurrentLink = serde_json::from_slice(&body).map_err(wrong)?;
    let name = format!("{} {}", endpoint(&request.source_se)?, endpoint(&request.dest_se)?);
    let value = json!({
        "source": request.source_se, "destination": request.dest_se, "max_active": request.active,
        "min_active": request.active, "rationale": request.rationale,
    });
    app.service.set(&caller, kind::LINK, &name, Some(value), "optimizer").await?;
    let at = reply::time(now());
    // FTS3 answers with the decision and with the state that follows.
    let decision = json!({
        "source_se": request.source_se, "dest_se": request.dest_se, "active": request.active, "nostreams": 1,
        "ema": 0.0, "datetime": at, "rationale": request.rationale, "throughput": 0.0, "success": 0.0, "diff": 0,
        "actual_active": 0, "queue_size": 0, "filesize_avg": 0.0, "filesize_stddev": 0.0,
    });
    let state = json!({
        "source_se": request.source_se, "dest_se": request.dest_se, "active": request.active, "nostreams": 1,
        "ema": 0.0, "datetime": at, "rationale": request.rationale,
    });
    Ok(json_reply(StatusCode::OK, &json!([decision, state])))
}

/// `GET /optimizer/evolution`: no decisions are made yet.
#[utoipa::path(
    get,
    path = "/optimizer/evolution",
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn evolution(caller: Caller) -> Reply {
    caller.check_level(Operation::Config, Level::Vo)?;
    Ok(json_reply(StatusCode::OK, &json!([])))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct TermQuery {
    /// Beginning of the names.
    term: Option<String>,
}

/// `GET /autocomplete/{what}`: names that begin with a term.
#[utoipa::path(
    get,
    path = "/autocomplete/{what}",
    params(
        ("what" = String, Path, description = "`dn`, `vo`, `source`, `destination`, `storage` or `groupname`"),
        TermQuery,
    ),
    responses((status = 200, description = "Names", body = Vec<String>), Refusals)
)]
async fn complete(
    caller: Caller,
    State(app): State<App>,
    Path(what): Path<String>,
    Query(query): Query<TermQuery>,
) -> Reply {
    caller.check_level(Operation::Config, Level::Vo)?;
    let links = || app.service.links().into_keys();
    let names: BTreeSet<String> = match what.as_str() {
        "source" => links().map(|link| link.source.to_string()).collect(),
        "destination" => links().map(|link| link.destination.to_string()).collect(),
        "storage" => links().flat_map(|link| [link.source.to_string(), link.destination.to_string()]).collect(),
        "vo" => running(&app).await?.into_iter().map(|(vo, _)| vo).collect(),
        "dn" => running(&app).await?.into_iter().map(|(_, name)| name).collect(),
        "groupname" => BTreeSet::new(),
        _ => return Err(Failed::new(StatusCode::NOT_FOUND, format!("There are no names of {what}"))),
    };
    let term = query.term.unwrap_or_default();
    let names: Vec<String> = names.into_iter().filter(|name| name.starts_with(&term)).take(NAMES_MAX).collect();
    Ok(json_reply(StatusCode::OK, &json!(names)))
}

/// Returns the virtual organisations and names of the owners of jobs that run.
async fn running(app: &App) -> Result<BTreeSet<(String, String)>, Failed> {
    let filter = JobFilter { limit: Some(FILES_MAX), ..JobFilter::default() };
    let jobs = app.service.store().jobs(filter).await?;
    Ok(jobs.into_iter().map(|job| (job.new.owner.vo, job.new.owner.name)).collect())
}
