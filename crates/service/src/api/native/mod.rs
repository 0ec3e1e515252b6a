//! Native interface `/api/v1`: jobs from manifests, files with the reason why they wait, and a feed of changes.
//!
//! Its description (OpenAPI) is made from this code and served at `/api/v1/openapi.json`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event as ServerEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{FileState, JobKind, JobState};
use utoipa::IntoParams;
use uuid::Uuid;

use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::api::description::{Routes, routes};
use crate::api::ui;
use crate::caller::{Caller, Operation};
use crate::command::{Cancelled, PRIORITIES};
use crate::job::File;
use crate::service::now;
use crate::store::{FileFilter, JobFilter};

mod answer;
mod bans;
mod config;
pub mod config_types;
mod path_types;
mod sites;
mod submit;
pub mod types;

pub(super) use answer::Failed;
pub use answer::failure;
use answer::{By, Refusals, page, read, usage};
pub use submit::MANIFEST_BYTES_MAX;
use types::{Change, Changes, FileDetails, FileList, FileView, JobList, JobView, ListingView, Patch, Waiting};

/// Beginning of the paths of this interface.
pub const PREFIX: &str = "/api/v1/";

/// Number of digits that a cursor stays below. Reason: databases have signed integers of 19 digits.
const CURSOR_DIGITS_MAX: usize = 19;

/// Time between two looks for new changes. Reason: people and dashboards see a change within half a second.
const CHANGES_EVERY: Duration = Duration::from_millis(500);

/// Description of the interface, without its routes.
#[cfg(test)]
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sterna transfer service",
        description = "Jobs, files, changes and settings of a Sterna transfer service."
    ),
    components(schemas(types::Problem)),
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

/// Returns the routes, with their description, and the page for people.
pub(in crate::api) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(description))
        .routes(routes!(list, submit::submit))
        .routes(routes!(job, patch))
        .routes(routes!(cancel))
        .routes(routes!(files))
        .routes(routes!(file))
        .routes(routes!(cancel_file))
        .routes(routes!(changes))
        .routes(routes!(bans::list))
        .routes(routes!(bans::ban, bans::lift))
        .routes(routes!(sites::list))
        .routes(routes!(sites::set, sites::remove))
        .routes(routes!(sites::paths))
        .routes(routes!(sites::rounds))
        .merge(config::routes())
        .merge(ui::routes())
}

/// Returns this description (OpenAPI).
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    security(()),
    responses((status = 200, description = "Description", body = serde_json::Value), Refusals)
)]
async fn description() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION).into_response()
}

/// Selection of jobs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct JobQuery {
    /// States, separated by commas; without them those that have not ended.
    state: Option<String>,
    /// Virtual organisation.
    vo: Option<String>,
    /// Jobs that were submitted before this one: `next` of the page before.
    before: Option<Uuid>,
    /// Maximum number of jobs, from 1 to 1000.
    limit: Option<u32>,
}

/// Reads names of states that are separated by commas.
fn states<T>(names: Option<&str>, by_name: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Error> {
    let names = names.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    names.map(|name| by_name(name).ok_or_else(|| usage(format!("there is no state {name}")))).collect()
}

/// Lists jobs that the caller may see, the latest first. Those in the archive are not among them.
#[utoipa::path(
    get,
    path = "/api/v1/jobs",
    params(JobQuery),
    operation_id = "list_jobs",
    responses((status = 200, description = "Jobs", body = JobList), Refusals)
)]
async fn list(By(caller): By, State(app): State<App>, Query(query): Query<JobQuery>) -> Result<Json<JobList>, Failed> {
    if let Some(before) = query.before {
        // An unknown job would look like the end of the list.
        app.service.job_of_any_age(&caller, &before.to_string()).await?;
    }
    let limit = page(query.limit)?;
    let filter = JobFilter {
        states: states(query.state.as_deref(), JobState::by_name)?,
        vo: query.vo,
        before: query.before,
        limit: Some(limit),
        ..JobFilter::default()
    };
    let jobs = app.service.list(&caller, filter).await?;
    let next = jobs.last().filter(|_| jobs.len() as u64 >= u64::from(limit)).map(|job| job.new.id);
    Ok(Json(JobList { jobs: jobs.iter().map(JobView::from).collect(), next }))
}

/// Returns a job, also from the archive.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}",
    params(("id" = Uuid, Path, description = "Job")),
    responses((status = 200, description = "Job", body = JobView), Refusals)
)]
async fn job(By(caller): By, State(app): State<App>, Path(id): Path<String>) -> Result<Json<JobView>, Failed> {
    let (job, is_archived) = app.service.job_of_any_age(&caller, &id).await?;
    let listings = app.service.listings(job.new.id).iter().map(|one| ListingView::new(one, now())).collect();
    Ok(Json(JobView { is_archived, listings, ..JobView::from(&job) }))
}

/// Changes the priority of a job.
#[utoipa::path(
    patch,
    path = "/api/v1/jobs/{id}",
    params(("id" = Uuid, Path, description = "Job")),
    request_body = Patch,
    responses((status = 200, description = "Job after the change", body = JobView), Refusals)
)]
async fn patch(
    By(caller): By,
    State(app): State<App>,
    Path(id): Path<String>,
    Whole(body): Small,
) -> Result<Json<JobView>, Failed> {
    let patch: Patch = read("the change", &body)?;
    let (lowest, highest) = PRIORITIES;
    if !(lowest..=highest).contains(&patch.priority) {
        return Err(usage(format!("priority {}: expected {lowest} to {highest}", patch.priority)).into());
    }
    Ok(Json(JobView::from(&app.service.set_priority(&caller, &id, patch.priority).await?)))
}

/// Cancels a job: its files that have not arrived.
#[utoipa::path(
    post,
    path = "/api/v1/jobs/{id}/cancel",
    params(("id" = Uuid, Path, description = "Job")),
    responses(
        (status = 200, description = "The job is cancelled", body = JobView),
        (status = 409, description = "The job had ended", body = JobView),
        Refusals,
    )
)]
async fn cancel(By(caller): By, State(app): State<App>, Path(id): Path<String>) -> Result<Response, Failed> {
    Ok(match app.service.cancel(&caller, &id).await? {
        Cancelled::Now(job) => Json(JobView::from(&*job)).into_response(),
        Cancelled::EndedBefore(job) => (StatusCode::CONFLICT, Json(JobView::from(&*job))).into_response(),
    })
}

/// Selection of files.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FileQuery {
    /// States, separated by commas.
    state: Option<String>,
    /// Files after this number.
    after: Option<u64>,
    /// Maximum number of files, from 1 to 1000.
    limit: Option<u32>,
}

/// Lists the files of a job, by number, also of one in the archive.
#[utoipa::path(
    get,
    path = "/api/v1/jobs/{id}/files",
    params(("id" = Uuid, Path, description = "Job"), FileQuery),
    responses((status = 200, description = "Files", body = FileList), Refusals)
)]
async fn files(
    By(caller): By,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
) -> Result<Json<FileList>, Failed> {
    let (job, is_archived) = app.service.job_of_any_age(&caller, &id).await?;
    let filter = FileFilter {
        jobs: vec![job.new.id],
        is_archived,
        states: states(query.state.as_deref(), FileState::by_name)?,
        after: query.after.map(FileNumber),
        limit: Some(page(query.limit)?),
        ..FileFilter::default()
    };
    let files = app.service.store().files(filter).await?;
    let files: Vec<FileView> = files.iter().map(|file| view(&app, file)).collect();
    Ok(Json(FileList { files }))
}

fn view(app: &App, file: &File) -> FileView {
    FileView::new(file, app.service.progress(file.number))
}

/// Returns a file, with its failed attempts, the decisions about it and, if it waits, the reason. Also one of a job in
/// the archive.
#[utoipa::path(
    get,
    path = "/api/v1/files/{number}",
    params(("number" = u64, Path, description = "File")),
    responses((status = 200, description = "File", body = FileDetails), Refusals)
)]
async fn file(By(caller): By, State(app): State<App>, Path(number): Path<String>) -> Result<Json<FileDetails>, Failed> {
    let file = app.service.file_of_any_age(&caller, &number).await?;
    let attempts = app.service.store().attempts(file.number).await?;
    let decisions = app.service.store().decisions(file.number).await?;
    let why = match file.state {
        FileState::Reserved => match app.service.job(&caller, &file.job.to_string()).await? {
            // A replica that was not needed, or a hop after one that has failed.
            job if job.finished.is_some() => None,
            job if job.new.kind == JobKind::Hops => Some(Waiting::of_hop(file.new.entry)),
            _ => Some(Waiting::of_replica(tried_first(&app, &file).await?)),
        },
        _ => why(&app, &file),
    };
    Ok(Json(FileDetails::new(view(&app, &file), why, &attempts, &decisions)))
}

/// Returns the replica of the same entry that waits or is under way.
async fn tried_first(app: &App, file: &File) -> Result<Option<u64>, Error> {
    let states = vec![FileState::Waiting, FileState::Active, FileState::Held];
    let replicas = FileFilter { jobs: vec![file.job], entry: Some(file.new.entry), states, ..FileFilter::default() };
    let found = app.service.store().files(replicas).await?;
    Ok(found.first().map(|file| file.number.0))
}

/// Cancels a file that has not ended. The other files of its job go on, but not the other replicas of its entry, nor
/// the hops after it.
#[utoipa::path(
    post,
    path = "/api/v1/files/{number}/cancel",
    params(("number" = u64, Path, description = "File")),
    responses(
        (status = 200, description = "The file is cancelled", body = FileView),
        (status = 409, description = "The file had ended", body = FileView),
        Refusals,
    )
)]
async fn cancel_file(By(caller): By, State(app): State<App>, Path(number): Path<String>) -> Result<Response, Failed> {
    let (file, had_ended) = app.service.cancel_one(&caller, &number).await?;
    let status = if had_ended { StatusCode::CONFLICT } else { StatusCode::OK };
    Ok((status, Json(view(&app, &file))).into_response())
}

/// Returns the reason why a file waits, with the words of the operator if it is a ban. `None`: it does not wait.
fn why(app: &App, file: &File) -> Option<Waiting> {
    let applied = app.service.applied();
    let bans = &applied.bans;
    let ends = [&file.new.source_endpoint, &file.new.destination_endpoint];
    let banned = ends.into_iter().find(|endpoint| bans.contains_key(*endpoint));
    let mut waiting = match (file.state, banned) {
        // The scheduler has no files that are held back.
        (FileState::Held, Some(endpoint)) => Waiting::of_banned(endpoint),
        _ => Waiting::new(&app.service.why(file)?, now()),
    };
    let message = banned.and_then(|endpoint| bans.get(endpoint)).map_or("", |ban| ban.message.as_str());
    if waiting.kind == types::BANNED && !message.is_empty() {
        waiting.text = format!("{}: {message}", waiting.text);
    }
    Some(waiting)
}

/// Word for the cursor of the last change.
const LATEST: &str = "latest";

/// Place in the change feed.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
enum After {
    Cursor(u64),
    Latest,
}

impl TryFrom<String> for After {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            LATEST => Ok(Self::Latest),
            digits => {
                let is_plain = digits.len() < CURSOR_DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_digit());
                let cursor = digits.parse().ok().filter(|_| is_plain);
                cursor.map(Self::Cursor).ok_or_else(|| format!("after={text}: expected a cursor, or {LATEST}"))
            }
        }
    }
}

/// Selection of changes.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ChangeQuery {
    /// Cursor: changes after this one. 0 or nothing: from the first one that is kept. `latest`: only changes from now
    /// on; the reply has the cursor for the next request. `Last-Event-ID` of a stream goes first.
    #[param(value_type = Option<String>, pattern = "^(latest|[0-9]{1,18})$")]
    after: Option<After>,
    /// Maximum number of changes, from 1 to 1000.
    limit: Option<u32>,
}

/// Returns changes of jobs and files, the oldest first. With `Accept: text/event-stream` it goes on with new ones.
#[utoipa::path(
    get,
    path = "/api/v1/changes",
    params(ChangeQuery),
    responses(
        (
            status = 200,
            description = "Changes",
            content((Changes = "application/json"), (String = "text/event-stream"))
        ),
        Refusals,
    )
)]
async fn changes(
    By(caller): By,
    State(app): State<App>,
    headers: HeaderMap,
    Query(query): Query<ChangeQuery>,
) -> Result<Response, Failed> {
    caller.check_level(Operation::Transfer, crate::caller::Level::Own)?;
    let limit = page(query.limit)?;
    // A client that lost its connection says where it was.
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|value| value.parse().ok());
    let after = match (last, query.after) {
        (Some(last), _) => last,
        (None, Some(After::Latest)) => app.service.store().feed_end().await?,
        (None, Some(After::Cursor(cursor))) => cursor,
        (None, None) => 0,
    };
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/event-stream") {
        let (changes, cursor) = visible(&app, &caller, after, limit).await?;
        return Ok(Json(Changes { changes, cursor }).into_response());
    }
    let stream = futures_util::stream::unfold((app, caller, after), move |(app, caller, mut cursor)| async move {
        loop {
            match visible(&app, &caller, cursor, limit).await {
                Ok((changes, next)) => {
                    cursor = next;
                    if !changes.is_empty() {
                        let events: Vec<Result<ServerEvent, Infallible>> = changes.iter().map(server_event).collect();
                        return Some((futures_util::stream::iter(events), (app, caller, cursor)));
                    }
                }
                Err(e) => tracing::warn!("{}", e.chain()),
            }
            tokio::time::sleep(CHANGES_EVERY).await;
        }
    });
    let stream = futures_util::StreamExt::flatten(stream);
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

fn server_event(change: &Change) -> Result<ServerEvent, Infallible> {
    let data = serde_json::to_string(change).unwrap_or_default();
    Ok(ServerEvent::default().id(change.sequence.to_string()).event("change").data(data))
}

/// Returns the changes after a cursor that the caller may see, and the next cursor.
async fn visible(app: &App, caller: &Caller, after: u64, limit: u32) -> Result<(Vec<Change>, u64), Error> {
    let feed = app.service.store().feed(after, limit).await?;
    let cursor = feed.last().map_or(after, |last| last.sequence);
    let mut ids: Vec<Uuid> = feed.iter().map(|change| change.job).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok((Vec::new(), cursor));
    }
    let jobs = app.service.store().jobs(JobFilter { ids, ..JobFilter::default() }).await?;
    let may_see = |id: Uuid| {
        let job = jobs.iter().find(|job| job.new.id == id);
        job.is_some_and(|job| caller.check(Operation::Transfer, &job.new.owner).is_ok())
    };
    Ok((feed.iter().filter(|change| may_see(change.job)).map(Change::from).collect(), cursor))
}
