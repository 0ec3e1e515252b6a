//! FTS3 REST interface: translates its requests to commands, and their results to its replies.
//!
//! The spelling of FTS3 is here and nowhere else: states, flags, texts of errors, times without a zone.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::FileState;

use crate::api::app::{App, BODY_BYTES_MAX};
use crate::auth::{BASE_ID, Fqan, vo_id};
use crate::caller::{Caller, Level, Method, Operation};
use crate::command::Cancelled;
use crate::store::JobFilter;

mod answer;
mod config;
mod history;
mod reply;
mod submit;

use answer::{Failed, Reply, denied, json_reply};

/// Releases that `GET /` reports. Reason: clients ask for `api` 3 and a `schema` of 8 or later.
const API: (u32, u32, u32) = (3, 14, 2);

/// Maximum number of jobs in a list. Source: FTS3.
const JOBS_MAX: u32 = 500;

/// Returns the routes.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/", get(index))
        .route("/whoami", get(whoami))
        .route("/delegation/{id}", get(delegation).delete(end_delegation))
        .route("/delegation/{id}/request", get(delegation_request))
        .route("/delegation/{id}/credential", axum::routing::put(delegate).post(delegate))
        .route("/jobs", get(list).post(submit).put(submit))
        .route("/jobs/{ids}", get(status).post(modify).delete(cancel))
        .route("/jobs/{id}/files", get(files))
        .route("/jobs/{id}/dm", get(deletions))
        .route("/jobs/{id}/files/{files}", axum::routing::delete(cancel_files))
        .route("/jobs/{id}/files/{file}/retries", get(retries))
        .route("/jobs/{id}/{field}", get(field))
        .route("/status/hosts", get(hosts))
        .merge(config::routes())
        .merge(history::routes())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .fallback(unknown)
}

async fn unknown() -> Failed {
    // Source of the text: FTS3.
    let text = "The requested URL was not found on the server. If you entered the URL manually please check your spelling \
         and try again.";
    Failed::new(StatusCode::NOT_FOUND, text)
}

/// `GET /`: releases and links. Clients ask for it before every request, and without credentials.
async fn index() -> Response {
    let (major, minor, patch) = API;
    let link = |href: &str, title: &str| json!({"href": href, "title": title});
    let templated = |href: &str, title: &str| json!({"href": href, "title": title, "templated": true});
    let value = json!({
        "delegation": {"major": 1, "minor": 0, "patch": 0},
        "api": {"major": major, "minor": minor, "patch": patch},
        "core": null,
        "schema": {"major": 10, "minor": 0, "patch": 0},
        "_links": {
            "curies": [{"name": "fts", "href": "https://gitlab.cern.ch/fts/fts3"}],
            "fts:whoami": link("/whoami", "Check user certificate"),
            "fts:joblist": templated("/jobs{?vo_name,user_dn,dlg_id,state_in}", "List of active jobs"),
            "fts:job": {
                "href": "/jobs/{id}", "title": "Job information", "templated": true,
                "hints": {"allow": ["GET", "DELETE"]},
            },
            "fts:configaudit": link("/config/audit", "Configuration"),
            "fts:submitschema": link("/api-docs/schema/submit", "JSON schema of messages"),
            "fts:apidocs": link("/api-docs/", "API Documentation"),
            "fts:jobsubmit": {"href": "/jobs", "hints": {"allow": ["POST"], "representations": ["fts:submitschema"]}},
            "fts:optimizer": link("/optimizer/", "Optimizer"),
            "fts:archive": link("/archive/", "Archive"),
        },
    });
    json_reply(StatusCode::OK, &value)
}

async fn whoami(caller: Caller) -> Response {
    let method = match caller.method {
        Method::None | Method::Key => "unauthenticated",
        Method::Certificate => "certificate",
        Method::Token => "oauth2",
    };
    let mut roles: Vec<&str> = caller.attributes.iter().filter_map(Fqan::role).collect();
    roles.sort_unstable();
    roles.dedup();
    let levels = Operation::ALL.into_iter().filter_map(|operation| {
        let level = caller.level(operation).fts_name()?;
        Some((operation.name().to_owned(), Value::from(level)))
    });
    let level = match caller.method {
        Method::None | Method::Key => json!([]),
        _ => Value::Object(levels.collect()),
    };
    let vo_ids: Vec<String> = caller.vos.iter().map(|vo| vo_id(vo).to_string()).collect();
    let value = json!({
        "user_dn": caller.name,
        "dn": [caller.name],
        "base_id": BASE_ID.to_string(),
        "voms_cred": attributes(&caller),
        "vos": caller.vos,
        "vos_id": vo_ids,
        "roles": roles,
        "level": level,
        "delegation_id": (!caller.credential.is_empty()).then_some(caller.credential),
        "method": method,
        "is_root": caller.levels == [Level::All; Operation::ALL.len()],
    });
    json_reply(StatusCode::OK, &value)
}

/// Returns the attributes of a caller as texts.
fn attributes(caller: &Caller) -> Vec<&str> {
    caller.attributes.iter().map(Fqan::as_str).collect()
}

/// Checks that a delegation is the caller's own.
fn check_delegation(caller: &Caller, id: &str) -> Result<(), Error> {
    caller.check_level(Operation::Deleg, Level::Own)?;
    if id == caller.credential { Ok(()) } else { Err(denied()) }
}

/// `GET /delegation/{id}/request`: a request for a certificate, in PEM. Its key is not kept: no transfer needs a
/// credential of a user.
async fn delegation_request(caller: Caller, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    let failed = |e: rcgen::Error| {
        let error = Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, "make a request for a certificate");
        Failed::from(error.caused_by(e))
    };
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let request = rcgen::CertificateParams::default().serialize_request(&key).map_err(failed)?;
    let pem = request.pem().map_err(failed)?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "text/plain")], pem).into_response())
}

/// `PUT /delegation/{id}/credential`: verifies the chain of a proxy, and discards it.
async fn delegate(caller: Caller, State(app): State<App>, Path(id): Path<String>, body: Bytes) -> Reply {
    check_delegation(&caller, &id)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&body).collect();
    let chain = chain.map_err(|e| Failed::new(StatusCode::BAD_REQUEST, format!("the proxy is no PEM: {e}")))?;
    match app.access.caller_of_certificate(&chain) {
        Ok(owner) if owner.name == caller.name => Ok((StatusCode::CREATED, "").into_response()),
        Ok(owner) => {
            let text = format!("the proxy is of {}, and not of {}", owner.name, caller.name);
            Err(Failed::new(StatusCode::BAD_REQUEST, text))
        }
        Err(error) => Err(Failed::new(StatusCode::BAD_REQUEST, error.chain())),
    }
}

/// `DELETE /delegation/{id}`: nothing is kept that could be deleted.
async fn end_delegation(caller: Caller, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn delegation(caller: Caller, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    // Agents have keys of their own, and need no credentials of users: clients delegate none when the end is far away.
    Ok(json_reply(
        StatusCode::OK,
        &json!({"termination_time": "2037-12-31T00:00:00", "voms_attrs": attributes(&caller)}),
    ))
}

async fn submit(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let submission = submit::read(&body, &caller)?;
    let id = app.service.submit(&caller, submission).await?;
    Ok(json_reply(StatusCode::OK, &json!({"job_id": id.to_string()})))
}

/// Reads identifiers that are separated by commas. Returns true beside them if the reply is a list, for which one comma
/// is enough.
///
/// Errors: there is none.
fn identifiers(text: &str) -> Result<(Vec<String>, bool), Failed> {
    let ids: Vec<String> = text.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
    match ids.is_empty() {
        true => Err(Failed::new(StatusCode::BAD_REQUEST, "No job is named")),
        false => Ok((ids, text.contains(','))),
    }
}

#[derive(Deserialize)]
struct StatusQuery {
    files: Option<String>,
}

async fn status(
    caller: Caller,
    State(app): State<App>,
    Path(ids): Path<String>,
    Query(query): Query<StatusQuery>,
) -> Reply {
    let (ids, is_list) = identifiers(&ids)?;
    let mut values = Vec::with_capacity(ids.len());
    let mut worst = StatusCode::OK;
    let jobs = app.service.jobs(&caller, &ids).await?;
    let columns: Option<Vec<&str>> = query.files.as_deref().map(|columns| columns.split(',').collect());
    let files = match columns {
        Some(_) => app.service.files_of(jobs.iter().flatten()).await?,
        None => BTreeMap::new(),
    };
    for (id, job) in ids.iter().zip(jobs) {
        match job {
            Ok(job) => {
                let mut value = reply::job(&job, app.service.host());
                if let Some(columns) = &columns {
                    let files = files.get(&job.new.id).into_iter().flatten();
                    let files = files.map(|file| reply::columns(&reply::file(&job, file), columns)).collect();
                    value.insert("files".to_owned(), Value::Array(files));
                }
                value.insert("http_status".to_owned(), "200 Ok".into());
                values.push(Value::Object(value));
            }
            Err(error) => {
                let failed = Failed::from(error);
                let reason = failed.status.canonical_reason().unwrap_or("Error");
                let status = format!("{} {reason}", failed.status.as_u16());
                values.push(json!({"job_id": id, "http_status": status, "http_message": failed.message}));
                worst = if is_list { StatusCode::MULTI_STATUS } else { failed.status };
            }
        }
    }
    Ok(match (is_list, values.pop()) {
        (false, Some(value)) => json_reply(worst, &value),
        (false, None) => unknown().await.into_response(),
        (true, last) => json_reply(worst, &Value::Array(values.into_iter().chain(last).collect())),
    })
}

async fn field(caller: Caller, State(app): State<App>, Path((id, field)): Path<(String, String)>) -> Reply {
    let job = app.service.job(&caller, &id).await?;
    match reply::job(&job, app.service.host()).get(&field) {
        Some(value) => Ok(json_reply(StatusCode::OK, value)),
        None => Err(Failed::new(StatusCode::NOT_FOUND, "No such field")),
    }
}

async fn files(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    let job = app.service.job(&caller, &id).await?;
    let files = app.service.files(&caller, &id).await?;
    let files = files.iter().map(|file| Value::Object(reply::file(&job, file))).collect();
    Ok(json_reply(StatusCode::OK, &Value::Array(files)))
}

async fn deletions(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    app.service.job(&caller, &id).await?;
    Ok(json_reply(StatusCode::OK, &json!([])))
}

async fn retries(caller: Caller, State(app): State<App>, Path((id, file)): Path<(String, u64)>) -> Reply {
    let files = app.service.files(&caller, &id).await?;
    if !files.iter().any(|known| known.number.0 == file) {
        return Err(Failed::new(StatusCode::NOT_FOUND, "No such file in the given job"));
    }
    let attempts = app.service.store().attempts(FileNumber(file)).await?;
    let attempts = attempts.iter().map(reply::attempt).collect();
    Ok(json_reply(StatusCode::OK, &Value::Array(attempts)))
}

async fn cancel(caller: Caller, State(app): State<App>, Path(ids): Path<String>) -> Reply {
    let (ids, is_list) = identifiers(&ids)?;
    let mut values = Vec::with_capacity(ids.len());
    let mut statuses = Vec::with_capacity(ids.len());
    for id in ids {
        let (status, value) = match app.service.cancel(&caller, &id).await {
            Ok(cancelled) => {
                let (job, status, message) = match cancelled {
                    Cancelled::Now(job) => (job, "200 Ok", Value::Null),
                    Cancelled::EndedBefore(job) => (job, "304 Not Modified", "The job is in a terminal state".into()),
                };
                let mut value = reply::job(&job, app.service.host());
                value.insert("http_status".to_owned(), status.into());
                value.insert("http_message".to_owned(), message);
                (StatusCode::OK, Value::Object(value))
            }
            Err(error) => {
                let failed = Failed::from(error);
                let reason = failed.status.canonical_reason().unwrap_or("Error");
                let status = format!("{} {reason}", failed.status.as_u16());
                (failed.status, json!({"job_id": id, "http_status": status, "http_message": failed.message}))
            }
        };
        statuses.push(status);
        values.push(value);
    }
    let is_one = statuses.windows(2).all(|pair| pair.first() == pair.last());
    let status = statuses.first().copied().filter(|_| is_one).unwrap_or(StatusCode::MULTI_STATUS);
    Ok(match (is_list, values.pop()) {
        (false, Some(value)) => json_reply(status, &value),
        (_, last) => json_reply(status, &Value::Array(values.into_iter().chain(last).collect())),
    })
}

async fn cancel_files(caller: Caller, State(app): State<App>, Path((id, files)): Path<(String, String)>) -> Reply {
    let job = app.service.job(&caller, &id).await?;
    if reply::job_type(&job) != "N" {
        let text = "Multihop or reuse jobs must be cancelled at once (/jobs/job_id)";
        return Err(Failed::new(StatusCode::BAD_REQUEST, text));
    }
    let numbers: Vec<u64> = files.split(',').filter_map(|number| number.parse().ok()).collect();
    let states = app.service.cancel_files(&caller, &id, &numbers).await?;
    let state = |state: &Option<FileState>| state.map_or(Value::Null, |state| reply::file_state(state).into());
    Ok(match states.as_slice() {
        // One file is a bare string.
        [one] => json_reply(StatusCode::OK, &state(one)),
        many => json_reply(StatusCode::OK, &Value::Array(many.iter().map(state).collect())),
    })
}

async fn modify(caller: Caller, State(app): State<App>, Path(ids): Path<String>, body: Bytes) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let priority = submit::read_priority(&body)?;
    let (ids, is_list) = identifiers(&ids)?;
    let mut values = Vec::with_capacity(ids.len());
    for id in ids {
        let job = app.service.set_priority(&caller, &id, priority).await?;
        let mut value = reply::job(&job, app.service.host());
        value.insert("http_status".to_owned(), "200 Ok".into());
        value.insert("http_message".to_owned(), Value::Null);
        values.push(Value::Object(value));
    }
    Ok(match (is_list, values.pop()) {
        (false, Some(value)) => json_reply(StatusCode::OK, &value),
        (_, last) => json_reply(StatusCode::OK, &Value::Array(values.into_iter().chain(last).collect())),
    })
}

#[derive(Deserialize)]
struct ListQuery {
    user_dn: Option<String>,
    vo_name: Option<String>,
    source_se: Option<String>,
    dest_se: Option<String>,
    dlg_id: Option<String>,
    state_in: Option<String>,
    limit: Option<u32>,
    time_window: Option<String>,
    fields: Option<String>,
}

async fn list(caller: Caller, State(app): State<App>, Query(query): Query<ListQuery>) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    if query.dlg_id.as_ref().is_some_and(|id| *id != caller.credential) {
        return Err(Failed::new(StatusCode::FORBIDDEN, "The provided delegation id does not match your delegation id"));
    }
    if query.dlg_id.is_some() && query.user_dn.as_ref().is_some_and(|name| *name != caller.name) {
        return Err(Failed::new(
            StatusCode::BAD_REQUEST,
            "The provided DN and delegation id do not correspond to the same user",
        ));
    }
    let states = query.state_in.as_deref().map(reply::job_states).transpose()?;
    if states.as_ref().is_some_and(Vec::is_empty) {
        return Ok(json_reply(StatusCode::OK, &json!([])));
    }
    let states = states.unwrap_or_default();
    let since = query.time_window.as_deref().map(reply::time_window).transpose()?;
    let filter = JobFilter {
        ids: Vec::new(),
        vo: query.vo_name,
        credential: query.dlg_id,
        owner: query.user_dn,
        states,
        source_endpoint: query.source_se,
        destination_endpoint: query.dest_se,
        since,
        limit: Some(query.limit.unwrap_or(JOBS_MAX).min(JOBS_MAX)),
    };
    let jobs = app.service.list(&caller, filter).await?;
    let fields: Option<Vec<&str>> = query.fields.as_deref().map(|fields| fields.split(',').collect());
    let value = |job| {
        let value = reply::job(job, app.service.host());
        match &fields {
            Some(fields) => reply::columns(&value, fields),
            None => Value::Object(value),
        }
    };
    Ok(json_reply(StatusCode::OK, &Value::Array(jobs.iter().map(value).collect())))
}

/// `GET /status/hosts`: transfers of each host. Clients fail on any key but these two.
async fn hosts(State(app): State<App>) -> Response {
    let (_, active) = app.service.counts();
    json_reply(StatusCode::OK, &json!({app.service.host(): {"active": active, "staging": 0}}))
}
