//! FTS3's requests for files of several jobs, the archive, the optimizer and names to complete.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_sched::scheduler::Link;
use sterna_sched::state::FileState;
use uuid::Uuid;

use super::answer::{Failed, Reply, denied, json_reply};
use super::reply;
use crate::api::app::App;
use crate::caller::{Caller, Level, Operation};
use crate::service::now;
use crate::settings::kind;
use crate::store::{FileFilter, JobFilter};

/// Maximum number of files in a list. Source: FTS3.
const FILES_MAX: u32 = 1000;

/// Maximum number of names in a completion. Source: FTS3.
const NAMES_MAX: usize = 10;

/// Returns the routes.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/files", get(files))
        .route("/archive", get(archive))
        .route("/archive/{id}", get(archived))
        .route("/archive/{id}/{field}", get(archived_field))
        .route("/optimizer", get(|| async { json_reply(StatusCode::OK, &json!(true)) }))
        .route("/optimizer/current", get(current).post(set_current))
        .route("/optimizer/evolution", get(evolution))
        .route("/autocomplete/{what}", get(complete))
}

#[derive(Deserialize)]
struct FilesQuery {
    vo_name: Option<String>,
    source_se: Option<String>,
    dest_se: Option<String>,
    state_in: Option<String>,
    job_id: Option<String>,
    limit: Option<u32>,
}

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
        let job = jobs.get(&file.job).filter(|job| caller.check(Operation::Transfer, &job.new.owner).is_ok())?;
        Some(Value::Object(reply::file(job, file)))
    });
    Ok(json_reply(StatusCode::OK, &Value::Array(shown.collect())))
}

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
    let files = files.iter().map(|file| Value::Object(reply::file(&job, file))).collect();
    value.insert("files".to_owned(), Value::Array(files));
    Ok(value)
}

async fn archived(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    let job = archived_job(&caller, &app, &id).await?;
    Ok(json_reply(StatusCode::OK, &Value::Object(job)))
}

async fn archived_field(caller: Caller, State(app): State<App>, Path((id, field)): Path<(String, String)>) -> Reply {
    let job = archived_job(&caller, &app, &id).await?;
    let value = job.get(&field).ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, "No such field"))?;
    Ok(json_reply(StatusCode::OK, value))
}

/// `GET /optimizer/current`: maximum of transfers of each link that has files.
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

/// `POST /optimizer/current`: sets the maximum of a link by hand.
async fn set_current(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    #[derive(Deserialize)]
    struct Request {
        source_se: String,
        dest_se: String,
        active: u32,
        rationale: Option<String>,
    }
    caller.check_level(Operation::Config, Level::All)?;
    let wrong = |e: serde_json::Error| Failed::new(StatusCode::BAD_REQUEST, format!("Malformed input: {e}"));
    let request: Request = serde_json::from_slice(&body).map_err(wrong)?;
    let name = format!("{} {}", request.source_se, request.dest_se);
    let value = json!({
        "source": request.source_se, "destination": request.dest_se, "max_active": request.active,
        "min_active": request.active, "rationale": request.rationale,
    });
    app.service.set(&caller, kind::LINK, &name, Some(value), "optimizer").await?;
    let row = json!({
        "source_se": request.source_se, "dest_se": request.dest_se, "active": request.active, "nostreams": 1,
        "ema": 0.0, "datetime": reply::time(now()), "rationale": request.rationale,
    });
    Ok(json_reply(StatusCode::OK, &json!([row.clone(), row])))
}

/// `GET /optimizer/evolution`: no decisions are made yet.
async fn evolution(caller: Caller) -> Reply {
    caller.check_level(Operation::Config, Level::Vo)?;
    Ok(json_reply(StatusCode::OK, &json!([])))
}

#[derive(Deserialize)]
struct TermQuery {
    term: Option<String>,
}

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
        _ => return Err(denied().into()),
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
