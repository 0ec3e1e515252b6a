//! FTS3 REST interface: translates its requests to commands, and their results to its replies.
//!
//! The spelling of FTS3 is here and nowhere else: states, flags, texts of errors, times without a zone.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use sterna_sched::state::FileState;
use sterna_sched::time::UnixTime;
use utoipa::IntoParams;

use crate::api::app::App;
use crate::api::body::{Large, Small, Whole};
use crate::api::description::{Routes, routes};
use crate::auth::{BASE_ID, Fqan, vo_id};
use crate::caller::{Caller, Level, Method, Operation};
use crate::command::Cancelled;
use crate::service::now;
use crate::store::JobFilter;

mod answer;
mod config;
mod history;
mod proxies;
mod reply;
mod schema;
mod submit;
mod types;

pub use answer::failure;
use answer::{Failed, Refusals, Reply, denied, json_reply};
use schema::Submission;
use types::{Failure, SubmittedJob};

/// Releases that `GET /` reports. Reason: clients ask for `api` 3 and a `schema` of 8 or later.
const API: (u32, u32, u32) = (3, 14, 2);

/// Maximum number of jobs in a list. Source: FTS3.
const JOBS_MAX: u32 = 500;

/// Description of the interface, without its routes.
#[cfg(test)]
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "FTS3 interface of a Sterna transfer service",
        description = "Requests of FTS3 clients. Unknown keys and parameters are ignored, as FTS3 does."
    ),
    components(schemas(Failure)),
    security(("certificate" = []), ("token" = []))
)]
struct Description;

/// Returns the description.
#[cfg(test)]
pub(in crate::api) fn described() -> utoipa::openapi::OpenApi {
    use utoipa::{Modify, OpenApi};
    let mut description = Description::openapi();
    crate::api::description::Credentials.modify(&mut description);
    description.merge(routes().into_openapi());
    description
}

/// Description, as it was made from the routes.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Returns the routes, with their description.
pub(in crate::api) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(index))
        .routes(routes!(whoami))
        .routes(routes!(delegation, end_delegation))
        .routes(routes!(delegation_request))
        .routes(routes!(delegate, delegate_by_post))
        .routes(routes!(list, submit, submit_by_put))
        .routes(routes!(cancel_everything))
        .routes(routes!(cancel_vo))
        .routes(routes!(status, modify, cancel))
        .routes(routes!(files))
        .routes(routes!(deletions))
        .routes(routes!(cancel_files))
        .routes(routes!(retries))
        .routes(routes!(field))
        .routes(routes!(hosts))
        .routes(routes!(documents))
        .routes(routes!(description))
        .routes(routes!(schema))
        .merge(config::routes())
        .merge(history::routes())
        .fallback(unknown)
}

/// `GET /api-docs`: links to the descriptions.
#[utoipa::path(
    get,
    path = "/api-docs",
    security(()),
    responses((status = 200, description = "Links", body = Value), Refusals)
)]
async fn documents() -> Response {
    let link = |href: &str, title: &str| json!({"href": href, "title": title});
    let links = json!({"_links": {
        "fts:openapi": link("/api-docs/openapi.json", "Description of this interface (OpenAPI)"),
        "fts:submitschema": link("/api-docs/schema/submit", "JSON schema of messages"),
        "sterna:openapi": link("/api/v1/openapi.json", "Description of the interface of Sterna (OpenAPI)"),
    }});
    json_reply(StatusCode::OK, &links)
}

/// `GET /api-docs/openapi.json`: this description.
#[utoipa::path(
    get,
    path = "/api-docs/openapi.json",
    security(()),
    responses((status = 200, description = "Description", body = Value), Refusals)
)]
async fn description() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION).into_response()
}

/// `GET /api-docs/schema/submit`: JSON schema of a submission.
#[utoipa::path(
    get,
    path = "/api-docs/schema/submit",
    security(()),
    responses((status = 200, description = "JSON schema", body = Value), Refusals)
)]
async fn schema() -> Response {
    json_reply(StatusCode::OK, &schema::document(DESCRIPTION))
}

async fn unknown() -> Failed {
    // Source of the text: FTS3.
    let text = "The requested URL was not found on the server. If you entered the URL manually please check your spelling \
         and try again.";
    Failed::new(StatusCode::NOT_FOUND, text)
}

/// `GET /`: releases and links. Clients ask for it before every request, and without credentials.
#[utoipa::path(
    get,
    path = "/",
    security(()),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
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

/// `GET /whoami`: the caller, and what it may do.
#[utoipa::path(
    get,
    path = "/whoami",
    security(()),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
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

/// `GET /delegation/{id}/request`: a request for a certificate, in PEM.
#[utoipa::path(
    get,
    path = "/delegation/{id}/request",
    params(("id" = String, Path, description = "Credential of the caller")),
    responses(
        (
            status = 200,
            description = "Request for a certificate, in PEM",
            body = String,
            content_type = "text/plain"
        ),
        Refusals,
    )
)]
async fn delegation_request(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    let pem = app.delegations.request(&caller.credential, Instant::now())?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "text/plain")], pem).into_response())
}

/// `PUT /delegation/{id}/credential`: verifies the chain of a proxy, and discards it unless storages need it.
#[utoipa::path(
    put,
    path = "/delegation/{id}/credential",
    params(("id" = String, Path, description = "Credential of the caller")),
    request_body = String,
    responses((status = 201, description = "The proxy is verified"), Refusals)
)]
async fn delegate(caller: Caller, State(app): State<App>, Path(id): Path<String>, Whole(body): Small) -> Reply {
    check_delegation(&caller, &id)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&body).collect();
    let chain = chain.map_err(|e| Failed::new(StatusCode::BAD_REQUEST, format!("the proxy is no PEM: {e}")))?;
    match app.access.caller_of_certificate(&chain) {
        Ok(owner) if owner.name == caller.name => {
            if app.delegations.is_wanted() {
                let proxy = app.delegations.proxy(&caller.credential, &body, &chain, Instant::now())?;
                app.service.store().set_proxy(proxy, now()).await?;
            }
            Ok((StatusCode::CREATED, "").into_response())
        }
        Ok(owner) => {
            let text = format!("the proxy is of {}, and not of {}", owner.name, caller.name);
            Err(Failed::new(StatusCode::BAD_REQUEST, text))
        }
        Err(error) => Err(Failed::new(StatusCode::BAD_REQUEST, error.chain())),
    }
}

/// `POST /delegation/{id}/credential`: as `PUT`.
#[utoipa::path(
    post,
    path = "/delegation/{id}/credential",
    params(("id" = String, Path, description = "Credential of the caller")),
    request_body = String,
    responses((status = 201, description = "The proxy is verified"), Refusals)
)]
async fn delegate_by_post(caller: Caller, app: State<App>, id: Path<String>, body: Small) -> Reply {
    delegate(caller, app, id, body).await
}

/// `DELETE /delegation/{id}`: deletes the delegated proxy.
#[utoipa::path(
    delete,
    path = "/delegation/{id}",
    params(("id" = String, Path, description = "Credential of the caller")),
    responses((status = 204, description = "Nothing is kept"), Refusals)
)]
async fn end_delegation(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    app.service.store().delete_proxy(caller.credential).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET /delegation/{id}`: end of the delegated credential.
#[utoipa::path(
    get,
    path = "/delegation/{id}",
    params(("id" = String, Path, description = "Credential of the caller")),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn delegation(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    check_delegation(&caller, &id)?;
    // Clients delegate a proxy when this time is near, and none when it is far away.
    let end = match app.delegations.is_wanted() {
        false => "2037-12-31T00:00:00".into(),
        true => {
            let proxy = app.service.store().proxy(caller.credential.clone()).await?;
            reply::time(UnixTime(proxy.map_or(0, |proxy| proxy.expires.saturating_mul(1000))))
        }
    };
    Ok(json_reply(StatusCode::OK, &json!({"termination_time": end, "voms_attrs": attributes(&caller)})))
}

/// `POST /jobs`: submits a job.
#[utoipa::path(
    post,
    path = "/jobs",
    request_body = Submission,
    responses(
        (status = 200, description = "The job is on disk", body = SubmittedJob),
        (status = 409, description = "The identifier is taken", body = Failure),
        (status = 419, description = "The storages need a proxy, and none is delegated", body = Failure),
        Refusals,
    )
)]
async fn submit(caller: Caller, State(app): State<App>, Whole(body): Large) -> Reply {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let submission = submit::read(&body, &caller)?;
    proxies::check(&caller, &app, &submission).await?;
    let id = app.service.submit(&caller, submission).await?;
    Ok(json_reply(StatusCode::OK, &Value::Object(types::fields(&SubmittedJob { job_id: id.to_string() }))))
}

/// `PUT /jobs`: submits a job.
#[utoipa::path(
    put,
    path = "/jobs",
    request_body = Submission,
    responses(
        (status = 200, description = "The job is on disk", body = SubmittedJob),
        (status = 409, description = "The identifier is taken", body = Failure),
        (status = 419, description = "The storages need a proxy, and none is delegated", body = Failure),
        Refusals,
    )
)]
async fn submit_by_put(caller: Caller, app: State<App>, body: Large) -> Reply {
    submit(caller, app, body).await
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

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct StatusQuery {
    /// Columns of the files, separated by commas; without it no files are shown.
    files: Option<String>,
}

/// `GET /jobs/{ids}`: a job, or a list of jobs if there is a comma.
#[utoipa::path(
    get,
    path = "/jobs/{ids}",
    params(("ids" = String, Path, description = "Jobs, separated by commas"), StatusQuery),
    responses(
        Refusals,
        (status = 200, description = "Job, or list of jobs", body = Value),
        (status = 207, description = "Some jobs do not exist", body = Value),
        (status = 404, description = "The job does not exist: a job with `http_message`", body = Value),
    )
)]
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
                    let files = files.map(|file| reply::columns(&reply::file(file), columns)).collect();
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

/// `GET /jobs/{id}/{field}`: one field of a job.
#[utoipa::path(
    get,
    path = "/jobs/{id}/{field}",
    params(("id" = String, Path, description = "Job"), ("field" = String, Path, description = "Field of a job")),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn field(caller: Caller, State(app): State<App>, Path((id, field)): Path<(String, String)>) -> Reply {
    let job = app.service.job(&caller, &id).await?;
    match reply::job(&job, app.service.host()).get(&field) {
        Some(value) => Ok(json_reply(StatusCode::OK, value)),
        None => Err(Failed::new(StatusCode::NOT_FOUND, "No such field")),
    }
}

/// `GET /jobs/{id}/files`: files of a job.
#[utoipa::path(
    get,
    path = "/jobs/{id}/files",
    operation_id = "list_files_of_job",
    params(("id" = String, Path, description = "Job")),
    responses((status = 200, description = "Files", body = Vec<types::File<'_>>), Refusals)
)]
async fn files(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    let files = app.service.files(&caller, &id).await?;
    let files = files.iter().map(|file| Value::Object(reply::file(file))).collect();
    Ok(json_reply(StatusCode::OK, &Value::Array(files)))
}

/// `GET /jobs/{id}/dm`: no job deletes files.
#[utoipa::path(
    get,
    path = "/jobs/{id}/dm",
    params(("id" = String, Path, description = "Job")),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn deletions(caller: Caller, State(app): State<App>, Path(id): Path<String>) -> Reply {
    app.service.job(&caller, &id).await?;
    Ok(json_reply(StatusCode::OK, &json!([])))
}

/// `GET /jobs/{id}/files/{file}/retries`: failed attempts of a file.
#[utoipa::path(
    get,
    path = "/jobs/{id}/files/{file}/retries",
    params(("id" = String, Path, description = "Job"), ("file" = u64, Path, description = "File")),
    responses((status = 200, description = "Attempts", body = Vec<types::Attempt<'_>>), Refusals)
)]
async fn retries(caller: Caller, State(app): State<App>, Path((id, file)): Path<(String, u64)>) -> Reply {
    let files = app.service.files(&caller, &id).await?;
    if !files.iter().any(|known| known.number.0 == file) {
        return Err(Failed::new(StatusCode::NOT_FOUND, "No such file in the given job"));
    }
    let attempts = app.service.store().attempts(FileNumber(file)).await?;
    let attempts = attempts.iter().map(reply::attempt).collect();
    Ok(json_reply(StatusCode::OK, &Value::Array(attempts)))
}

/// `DELETE /jobs/{ids}`: cancels jobs.
#[utoipa::path(
    delete,
    path = "/jobs/{ids}",
    params(("ids" = String, Path, description = "Jobs, separated by commas")),
    responses(
        Refusals,
        (status = 200, description = "Job, or list of jobs", body = Value),
        (status = 207, description = "Some jobs do not exist", body = Value),
        (status = 404, description = "The job does not exist: a job with `http_message`", body = Value),
    )
)]
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

/// `DELETE /jobs/all`: cancels every job. For callers who may change those of everybody.
#[utoipa::path(
    delete,
    path = "/jobs/all",
    responses((status = 200, description = "Numbers of files and jobs", body = Value), Refusals)
)]
async fn cancel_everything(caller: Caller, State(app): State<App>) -> Reply {
    cancel_all(&caller, &app, None).await
}

/// `DELETE /jobs/vo/{vo}`: cancels every job of a virtual organisation. For callers who may change those of everybody.
#[utoipa::path(
    delete,
    path = "/jobs/vo/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation")),
    responses((status = 200, description = "Numbers of files and jobs", body = Value), Refusals)
)]
async fn cancel_vo(caller: Caller, State(app): State<App>, Path(vo): Path<String>) -> Reply {
    cancel_all(&caller, &app, Some(vo)).await
}

async fn cancel_all(caller: &Caller, app: &App, vo: Option<String>) -> Reply {
    if caller.level(Operation::Transfer) < Level::All {
        // Source of the text: FTS3.
        return Err(Failed::new(StatusCode::FORBIDDEN, "User does not have root privileges"));
    }
    let (jobs, files) = app.service.cancel_all_jobs(caller, vo).await?;
    let affected = json!({"affected_files": files, "affected_dm": 0, "affected_jobs": jobs});
    Ok(json_reply(StatusCode::OK, &affected))
}

/// `DELETE /jobs/{id}/files/{files}`: cancels files of a job.
#[utoipa::path(
    delete,
    path = "/jobs/{id}/files/{files}",
    params(
        ("id" = String, Path, description = "Job"),
        ("files" = String, Path, description = "Files, separated by commas"),
    ),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
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

/// `POST /jobs/{ids}`: changes the priority of jobs.
#[utoipa::path(
    post,
    path = "/jobs/{ids}",
    params(("ids" = String, Path, description = "Jobs, separated by commas")),
    request_body = Value,
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn modify(caller: Caller, State(app): State<App>, Path(ids): Path<String>, Whole(body): Small) -> Reply {
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

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Name of the owner.
    user_dn: Option<String>,
    /// Virtual organisation.
    vo_name: Option<String>,
    /// Storage of a source.
    source_se: Option<String>,
    /// Storage of a destination.
    dest_se: Option<String>,
    /// Credential of the owner: that of the caller.
    dlg_id: Option<String>,
    /// States, separated by commas; without it those of jobs that have not ended.
    state_in: Option<String>,
    /// Maximum number of jobs, from 1 to 500.
    limit: Option<u32>,
    /// Jobs of the last `HH` or `HH:MM`.
    time_window: Option<String>,
    /// Fields of each job, separated by commas.
    fields: Option<String>,
}

/// `GET /jobs`: jobs that the caller may see, the latest first.
#[utoipa::path(
    get,
    path = "/jobs",
    operation_id = "list_jobs",
    params(ListQuery),
    responses((status = 200, description = "Jobs", body = Vec<Value>), Refusals)
)]
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
    if query.limit.is_some_and(|limit| !(1..=JOBS_MAX).contains(&limit)) {
        // Source of the text: FTS3.
        let text = format!("The limit must be positive and less or equal than {JOBS_MAX}");
        return Err(Failed::new(StatusCode::BAD_REQUEST, text));
    }
    let states = query.state_in.as_deref().map(reply::job_states).transpose()?;
    if states.as_ref().is_some_and(Vec::is_empty) {
        return Ok(json_reply(StatusCode::OK, &json!([])));
    }
    let states = states.unwrap_or_default();
    let since = query.time_window.as_deref().map(reply::time_window).transpose()?;
    let filter = JobFilter {
        vo: query.vo_name,
        credential: query.dlg_id,
        owner: query.user_dn,
        states,
        source_endpoint: query.source_se,
        destination_endpoint: query.dest_se,
        since,
        limit: Some(query.limit.unwrap_or(JOBS_MAX)),
        ..JobFilter::default()
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
#[utoipa::path(
    get,
    path = "/status/hosts",
    security(()),
    responses((status = 200, description = "Reply", body = Value), Refusals)
)]
async fn hosts(State(app): State<App>) -> Response {
    let (_, active) = app.service.counts();
    json_reply(StatusCode::OK, &json!({app.service.host(): {"active": active, "staging": 0}}))
}
