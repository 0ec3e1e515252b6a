//! Page for people at `/ui/`: links, monitored paths, jobs and failures, rendered by the server. Refuses to change
//! anything.

use axum::extract::State;
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sterna_net::identity::Fingerprint;
use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, Error};
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;

use super::app::{App, Authenticated, status_of};
use super::description::{Routes, routes};
use crate::caller::{Caller, Level, Operation};
use crate::job::Job;
use crate::paths::{PathEnds, PathRecord, Visit};
use crate::service::now;
use crate::store::{FileFilter, JobFilter};

/// Maximum number of jobs in a table. Reason: one screen or two.
const JOBS_SHOWN: u32 = 50;

/// Maximum number of failed jobs whose first failure is shown.
const FAILURES_SHOWN: u32 = 20;

/// Style of the page.
const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:90rem;padding:0 1rem;\
     color:#1b2733;background:#fff}div.table{overflow-x:auto;margin:0 0 2rem}table{border-collapse:collapse;width:100%}\
     th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #dde3e8;vertical-align:top;white-space:nowrap}\
     th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
     td.wide{white-space:normal;overflow-wrap:anywhere;min-width:14rem}td.id{font:13px/1.6 ui-monospace,monospace}\
     .failed,.partly_finished{color:#b3261e}.finished{color:#1a6b3c}\
     @media(prefers-color-scheme:dark){body{background:#12181d;color:#dfe6ec}th,td{border-color:#2c3842}\
     .failed,.partly_finished{color:#ff8a80}.finished{color:#7ed9a3}}";

/// Returns the routes.
pub(in crate::api) fn routes() -> Routes {
    Routes::default().routes(routes!(to_page)).routes(routes!(page))
}

/// Redirects to the page for people.
#[utoipa::path(get, path = "/ui", security(()), responses((status = 308, description = "The page has a slash at its end")))]
async fn to_page() -> Redirect {
    Redirect::permanent("/ui/")
}

/// Shows links, monitored paths, jobs and failures to people.
#[utoipa::path(
    get,
    path = "/ui/",
    responses(
        (status = 200, description = "Page", body = String, content_type = "text/html"),
        (status = 401, description = "The credentials are refused", body = String, content_type = "text/html"),
        (status = 403, description = "The caller has no jobs", body = String, content_type = "text/html"),
    )
)]
async fn page(
    State(app): State<App>,
    axum::Extension(Authenticated(caller)): axum::Extension<Authenticated>,
) -> Response {
    let page = match caller {
        Ok(caller) => content(&app, &caller).await,
        Err(error) => Err(error),
    };
    match page {
        Ok(content) => Html(framed(&content).into_string()).into_response(),
        Err(error) => {
            let text =
                html! { p { (error.chain()) } p { "Give the browser a client certificate that the service accepts." } };
            (status_of(&error), Html(framed(&text).into_string())).into_response()
        }
    }
}

fn framed(content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Sterna transfer service" }
                style { (PreEscaped(STYLE)) }
            }
            body { h1 { "Sterna transfer service" } (content) }
        }
    }
}

async fn content(app: &App, caller: &Caller) -> Result<Markup, Error> {
    let running = app.service.list(caller, JobFilter { limit: Some(JOBS_SHOWN), ..JobFilter::default() }).await?;
    let states = vec![JobState::Failed, JobState::PartlyFinished];
    let failed = JobFilter { states, limit: Some(FAILURES_SHOWN), ..JobFilter::default() };
    let failed = app.service.list(caller, failed).await?;
    let mut failures = Vec::with_capacity(failed.len());
    for job in &failed {
        let first = FileFilter {
            jobs: vec![job.new.id],
            states: vec![FileState::Failed],
            limit: Some(1),
            ..FileFilter::default()
        };
        failures.push(app.service.store().files(first).await?.into_iter().next());
    }
    Ok(html! {
        p { (app.service.host()) ", as " (caller.name) }
        h2 { "Links" }
        (links(app))
        @if caller.level(Operation::Config) >= Level::Vo {
            h2 { "Sites" }
            (sites(app))
            @let monitored = monitored(app);
            @if !monitored.is_empty() {
                h2 { "Monitored paths" }
                (paths(app, &monitored))
            }
        }
        h2 { "Jobs that have not ended" }
        (jobs(&running))
        h2 { "Last failures" }
        div.table { table {
            tr { th { "job" } th { "state" } th { "first failure" } }
            @for (job, file) in failed.iter().zip(&failures) {
                tr {
                    td.id { (job.new.id) }
                    td class=(job.state.name()) { (job.state.name()) }
                    td.wide {
                        @if let Some(file) = file {
                            (file.new.source) " → " (file.new.destination)
                            @if let Some(failure) = &file.failure { br; (failure.text) }
                        }
                    }
                }
            }
            @if failed.is_empty() { tr { td colspan="3" { "none" } } }
        } }
    })
}

fn links(app: &App) -> Markup {
    let links = app.service.link_states();
    html! {
        div.table { table {
            tr {
                th { "source" } th { "destination" } th class="n" { "waiting" } th class="n" { "active" }
                th class="n" { "maximum" } th class="n" { "success" } th class="n" { "rate" }
            }
            @for (link, state) in &links {
                tr {
                    td.wide { (link.source) } td.wide { (link.destination) }
                    td class="n" { (state.queued.files) } td class="n" { (state.queued.active) }
                    td class="n" { (state.most) }
                    td class="n" { @if let Some(success) = state.stats.success { (format!("{:.0} %", success * 100.0)) } }
                    td class="n" { @if let Some(rate) = state.stats.throughput { (rate) } }
                }
            }
            @if links.is_empty() { tr { td colspan="7" { "no link has files" } } }
        } }
    }
}

fn sites(app: &App) -> Markup {
    let (applied, connected) = (app.service.applied(), app.service.agents());
    html! {
        div.table { table {
            tr {
                th { "site" } th { "agent" } th { "connected" } th { "address" } th class="n" { "transfers" }
            }
            @for (name, site) in &applied.sites {
                @for agent in &site.agents {
                    @let state = connected.iter().find(|state| state.agent == *agent);
                    tr {
                        td { (name) } td.id { (agent.short()) }
                        td { @if state.is_some() { "yes" } @else { "no" } }
                        td { @if let Some(address) = state.and_then(|state| state.address.as_ref()) { (address) } }
                        td class="n" { @if let Some(state) = state { (state.transfers) } }
                    }
                }
            }
            @if applied.sites.is_empty() { tr { td colspan="5" { "none" } } }
        } }
    }
}

/// Returns the paths that agents monitor.
fn monitored(app: &App) -> Vec<(PathEnds, Visit)> {
    let visits = |(ends, record): (PathEnds, PathRecord)| record.visits.into_iter().map(move |visit| (ends, visit));
    app.service.paths().into_iter().flat_map(visits).filter(|(_, visit)| visit.is_recent(now())).collect()
}

fn paths(app: &App, monitored: &[(PathEnds, Visit)]) -> Markup {
    let (applied, at) = (app.service.applied(), now());
    let name = |agent: &Fingerprint| match applied.sites_of(agent).first() {
        Some(site) => format!("{site} ({})", agent.short()),
        None => agent.short(),
    };
    html! {
        div.table { table {
            tr {
                th { "from" } th { "to" } th { "measured by" } th class="n" { "round trip" } th class="n" { "loss" }
                th class="n" { "test" } th { "limit" } th class="n" { "age" } th { "alarms" }
            }
            @for (ends, visit) in monitored {
                tr {
                    td.wide { (name(&ends.source)) } td.wide { (name(&ends.destination)) }
                    td { (visit.by.name()) }
                    td class="n" { @if let Some(rtt) = visit.rtt_ms { (format!("{rtt:.1} ms")) } }
                    td class="n" { @if let Some(loss) = visit.loss { (format!("{:.2} %", loss * 100.0)) } }
                    td class="n" {
                        @if let Some(rate) = visit.bytes_per_s { (BitRate((rate * 8.0) as u64)) }
                    }
                    td { @if let Some(limit) = &visit.limited_by { (limit) } }
                    td class="n" { (readable_time(at.since(UnixTime(visit.at_ms)))) }
                    td.wide {
                        @for alarm in &visit.alarms { p.failed { (alarm) } }
                        @if let Some(failure) = visit.failure.as_ref().filter(|_| visit.alarms.is_empty()) { (failure) }
                    }
                }
            }
        } }
    }
}

fn jobs(jobs: &[Job]) -> Markup {
    let at = now();
    html! {
        div.table { table {
            tr {
                th { "job" } th { "state" } th { "owner" } th { "VO" } th class="n" { "priority" }
                th class="n" { "arrived" } th class="n" { "failed" } th class="n" { "all" } th class="n" { "age" }
            }
            @for job in jobs {
                tr {
                    td.id { (job.new.id) } td class=(job.state.name()) { (job.state.name()) }
                    td.wide { (job.new.owner.name) } td { (job.new.owner.vo) } td class="n" { (job.new.priority) }
                    td class="n" { (job.entries.finished) } td class="n" { (job.entries.failed) }
                    td class="n" { (job.entries.all) }
                    td class="n" { (readable_time(at.since(job.new.submitted))) }
                }
            }
            @if jobs.is_empty() { tr { td colspan="9" { "none" } } }
        } }
    }
}
