//! Settings that the scheduler follows, at `/api/v1/config`: limits, shares, defaults, grants and the audit log.
//!
//! The same settings as those of the FTS3 interface, by the same commands. A change that is not understood changes
//! nothing.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::settings::{ANY, Limits};
use utoipa::IntoParams;

use super::answer::{By, Failed, Refusals, page, read, usage};
use super::config_types::{
    ActivitiesView, AuditLog, AuditView, ConfigView, DefaultLimits, Drain, EndpointChange, EndpointView, GrantView,
    LinkChange, LinkView, NewActivities, NewShare, ServiceLimit, ShareView, VoChange, VoView,
};
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::api::description::{Routes, routes};
use crate::caller::{Caller, Level, Operation};
use crate::endpoint::endpoint_named;
use crate::settings::{
    self, ActivitySettings, Defaults, EndpointSettings, Grant, LinkSettings, ServiceSettings, ShareSettings,
    VoSettings, WEIGHT_MAX, kind,
};

/// Maximum bytes of the name of a virtual organisation, an activity or a user. Reason: distinguished names have some
/// hundred.
const NAME_BYTES_MAX: usize = 1024;

/// Maximum number of activities of a virtual organisation. Reason: operators list them by hand.
const ACTIVITIES_MAX: usize = 1000;

/// Seconds of an hour: the unit of the time in the queue in the stored settings, which are those of FTS3.
const HOUR_S: u64 = 3600;

/// Maximum time in the queue, in hours: a year. Reason: a longer one is a mistake.
const QUEUE_HOURS_MAX: u64 = 24 * 366;

/// Maximum number of further attempts of a file. Source: that of a job.
const RETRIES_MAX: u32 = 1000;

/// Order of a virtual organisation whose files start in order of submission.
const BY_SUBMISSION: &str = "submission";

/// Order of the others.
const BY_PRIORITY: &str = "priority";

/// Returns the routes.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(show))
        .routes(routes!(set_service))
        .routes(routes!(change_link, remove_link))
        .routes(routes!(change_endpoint, remove_endpoint))
        .routes(routes!(set_share, remove_share))
        .routes(routes!(set_activities, remove_activities))
        .routes(routes!(change_vo, remove_vo))
        .routes(routes!(grant, revoke))
        .routes(routes!(drain))
        .routes(routes!(audit))
}

/// Returns an endpoint, or `*`. Errors: `Usage`.
fn endpoint_or_any(given: &str) -> Result<String, Error> {
    if given == ANY { Ok(given.to_owned()) } else { endpoint_named(given) }
}

/// Returns a name. `what`: its subject, for the text of the error. Errors: `Usage`.
fn name<'a>(what: &str, given: &'a str) -> Result<&'a str, Error> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&given.len()) && !given.chars().any(char::is_control);
    match is_name {
        true => Ok(given),
        false => Err(usage(format!("{what}: expected 1 to {NAME_BYTES_MAX} bytes without control characters"))),
    }
}

fn weight(what: &str, given: f64) -> Result<f64, Error> {
    match (0.0..=WEIGHT_MAX).contains(&given) {
        true => Ok(given),
        false => Err(usage(format!("{what}: {given}, expected a weight from 0 to {WEIGHT_MAX}"))),
    }
}

fn guarantee(what: &str, given: f64) -> Result<f64, Error> {
    match (0.0..=1.0).contains(&given) {
        true => Ok(given),
        false => Err(usage(format!("{what}: {given}, expected a guarantee from 0 to 1"))),
    }
}

fn missing(what: String) -> Error {
    Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, format!("there is no setting for {what}"))
}

/// Returns a setting as it is stored. Every type of settings can be written as JSON.
fn stored<T: serde::Serialize>(setting: &T) -> Result<Option<Value>, Error> {
    serde_json::to_value(setting).map(Some).map_err(|e| usage("write the setting as JSON").caused_by(e))
}

/// Reads a stored setting; a damaged one counts as empty.
fn known<T: Default + for<'de> Deserialize<'de>>(value: Option<Value>) -> T {
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

/// Removes a setting. Errors: `NotFound`, if there is none; `Denied`.
async fn remove(
    app: &App,
    caller: &Caller,
    kind: &str,
    name: &str,
    action: &str,
    what: String,
) -> Result<StatusCode, Failed> {
    let change = |known: Option<Value>| known.map(|_| None).ok_or_else(|| missing(what));
    app.service.amend(caller, kind, name, action, change).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns all settings.
#[utoipa::path(
    get,
    path = "/api/v1/config",
    operation_id = "show_config",
    responses((status = 200, description = "Settings", body = ConfigView), Refusals)
)]
async fn show(By(caller): By, State(app): State<App>) -> Result<Json<ConfigView>, Failed> {
    let limits = Limits::default();
    let drained = app.service.settings(&caller, kind::DRAIN).await?;
    Ok(Json(ConfigView {
        host: app.service.host().to_owned(),
        is_drained: drained.iter().any(|setting| setting.name == app.service.host()),
        defaults: DefaultLimits {
            service_max: limits.all as u64,
            link_max: limits.link as u64,
            endpoint_max_in: limits.endpoint.inbound as u64,
            endpoint_max_out: limits.endpoint.outbound as u64,
        },
        max: all(&app, &caller, kind::SERVICE, |_, service: ServiceSettings| service.max_active).await?.pop().flatten(),
        links: all(&app, &caller, kind::LINK, |_, link: LinkSettings| LinkView::from(link)).await?,
        endpoints: all(&app, &caller, kind::ENDPOINT, endpoint_view).await?,
        shares: all(&app, &caller, kind::SHARE, |_, share: ShareSettings| ShareView {
            vo: share.vo,
            source: share.source,
            destination: share.destination,
            weight: share.share,
            guarantee: share.guarantee,
        })
        .await?,
        activities: all(&app, &caller, kind::ACTIVITIES, |_, one: ActivitySettings| ActivitiesView {
            vo: one.vo,
            is_followed: one.active,
            weights: one.share,
            guarantees: one.guarantee,
        })
        .await?,
        vos: vos(&app, &caller).await?,
        grants: all(&app, &caller, kind::GRANT, |_, grant: Grant| GrantView {
            operation: grant.operation,
            user: grant.dn,
        })
        .await?,
    }))
}

/// Returns the settings of a kind, by name.
async fn all<S: for<'de> Deserialize<'de>, V>(
    app: &App,
    caller: &Caller,
    kind: &str,
    view: impl Fn(String, S) -> V,
) -> Result<Vec<V>, Error> {
    let found = app.service.settings(caller, kind).await?;
    Ok(found.into_iter().filter_map(|setting| Some(view(setting.name.clone(), settings::read(&setting)?))).collect())
}

impl From<LinkSettings> for LinkView {
    fn from(link: LinkSettings) -> Self {
        Self { source: link.source, destination: link.destination, max: link.max_active }
    }
}

fn endpoint_view(endpoint: String, settings: EndpointSettings) -> EndpointView {
    EndpointView { endpoint, max_in: settings.inbound_max_active, max_out: settings.outbound_max_active }
}

/// Returns the virtual organisations with settings of either kind.
async fn vos(app: &App, caller: &Caller) -> Result<Vec<VoView>, Error> {
    let pair = |name: String, defaults: Defaults| (name, defaults);
    let defaults: BTreeMap<String, Defaults> = all(app, caller, kind::DEFAULTS, pair).await?.into_iter().collect();
    let pair = |name: String, scheduling: VoSettings| (name, scheduling);
    let scheduling: BTreeMap<String, VoSettings> = all(app, caller, kind::VO, pair).await?.into_iter().collect();
    let mut names: Vec<&String> = defaults.keys().chain(scheduling.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let view = |name: &String| {
        let of = |name: &String| (defaults.get(name).cloned(), scheduling.get(name).cloned());
        let (defaults, scheduling) = of(name);
        vo_view(name, &defaults.unwrap_or_default(), &scheduling.unwrap_or_default())
    };
    Ok(names.into_iter().map(view).collect())
}

fn vo_view(vo: &str, defaults: &Defaults, scheduling: &VoSettings) -> VoView {
    let hours = Some(u64::from(defaults.max_time_queue)).filter(|hours| *hours > 0);
    VoView {
        vo: vo.to_owned(),
        retries: u32::try_from(defaults.retry).ok().filter(|retries| *retries > 0),
        queue_time_s: hours.map(|hours| hours * HOUR_S),
        timeout_s: Some(defaults.global_timeout).filter(|seconds| *seconds > 0),
        max: scheduling.max_active,
        order: if scheduling.in_order { BY_SUBMISSION } else { BY_PRIORITY }.to_owned(),
    }
}

/// Sets the maximum of transfers under way of the whole service.
#[utoipa::path(
    put,
    path = "/api/v1/config/service",
    request_body = ServiceLimit,
    operation_id = "set_service_limit",
    responses((status = 200, description = "Limit", body = ServiceLimit), Refusals)
)]
async fn set_service(By(caller): By, State(app): State<App>, Whole(body): Small) -> Result<Json<ServiceLimit>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let limit: ServiceLimit = read("the limit", &body)?;
    if limit.max == Some(0) {
        return Err(usage("max 0: expected a transfer at least, or null; a drained host starts none").into());
    }
    let value = limit.max.map(|max| stored(&ServiceSettings { max_active: Some(max) })).transpose()?.flatten();
    app.service.set(&caller, kind::SERVICE, ANY, value, "service-config").await?;
    Ok(Json(limit))
}

/// Changes the limit of a link.
#[utoipa::path(
    patch,
    path = "/api/v1/config/links/{source}/{destination}",
    params(
        ("source" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("destination" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
    ),
    request_body = LinkChange,
    responses((status = 200, description = "Link after the change", body = LinkView), Refusals)
)]
async fn change_link(
    By(caller): By,
    State(app): State<App>,
    Path((source, destination)): Path<(String, String)>,
    Whole(body): Small,
) -> Result<Json<LinkView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let change: LinkChange = read("the change", &body)?;
    let (source, destination) = (endpoint_or_any(&source)?, endpoint_or_any(&destination)?);
    let empty = || LinkSettings {
        source: source.clone(),
        destination: destination.clone(),
        max_active: None,
        others: BTreeMap::new(),
    };
    let changed = |known: Option<LinkSettings>| {
        let mut link = known.unwrap_or_else(empty);
        link.max_active = change.max.unwrap_or(link.max_active);
        Ok(Some(link))
    };
    app.service.amend_link(&caller, (&source, &destination), "link-config", changed).await?;
    let settings = all(&app, &caller, kind::LINK, |_, link: LinkSettings| LinkView::from(link)).await?;
    let is_this = |link: &LinkView| link.source == source && link.destination == destination;
    let link = settings.into_iter().find(is_this);
    // Another operator may have removed it at once.
    Ok(Json(link.ok_or_else(|| missing(format!("the link from {source} to {destination}")))?))
}

/// Removes the settings of a link: it has the default limit again.
#[utoipa::path(
    delete,
    path = "/api/v1/config/links/{source}/{destination}",
    params(
        ("source" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("destination" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
    ),
    operation_id = "remove_link_settings",
    responses((status = 204, description = "The settings are removed"), Refusals)
)]
async fn remove_link(
    By(caller): By,
    State(app): State<App>,
    Path((source, destination)): Path<(String, String)>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let (source, destination) = (endpoint_or_any(&source)?, endpoint_or_any(&destination)?);
    let change = |known: Option<LinkSettings>| {
        known.map(|_| None).ok_or_else(|| missing(format!("the link from {source} to {destination}")))
    };
    app.service.amend_link(&caller, (&source, &destination), "link-delete", change).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the limits of an endpoint.
#[utoipa::path(
    patch,
    path = "/api/v1/config/endpoints/{endpoint}",
    params(("endpoint" = String, Path, description = "Scheme and host, or `*`, percent-encoded")),
    request_body = EndpointChange,
    responses((status = 200, description = "Endpoint after the change", body = EndpointView), Refusals)
)]
async fn change_endpoint(
    By(caller): By,
    State(app): State<App>,
    Path(endpoint): Path<String>,
    Whole(body): Small,
) -> Result<Json<EndpointView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let change: EndpointChange = read("the change", &body)?;
    let endpoint = endpoint_or_any(&endpoint)?;
    let mut after = EndpointSettings::default();
    let changed = |value: Option<Value>| {
        after = known(value);
        after.inbound_max_active = change.max_in.unwrap_or(after.inbound_max_active);
        after.outbound_max_active = change.max_out.unwrap_or(after.outbound_max_active);
        stored(&after)
    };
    app.service.amend(&caller, kind::ENDPOINT, &endpoint, "set-se-config", changed).await?;
    Ok(Json(endpoint_view(endpoint, after)))
}

/// Removes the settings of an endpoint: it has the default limits again.
#[utoipa::path(
    delete,
    path = "/api/v1/config/endpoints/{endpoint}",
    params(("endpoint" = String, Path, description = "Scheme and host, or `*`, percent-encoded")),
    operation_id = "remove_endpoint_settings",
    responses((status = 204, description = "The settings are removed"), Refusals)
)]
async fn remove_endpoint(
    By(caller): By,
    State(app): State<App>,
    Path(endpoint): Path<String>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let endpoint = endpoint_or_any(&endpoint)?;
    remove(&app, &caller, kind::ENDPOINT, &endpoint, "delete-se-config", format!("the endpoint {endpoint}")).await
}

/// Returns the name under which a share is stored, and its fields.
fn share_of((source, destination, vo): (String, String, String)) -> Result<(String, ShareSettings), Error> {
    let (source, destination) = (endpoint_or_any(&source)?, endpoint_or_any(&destination)?);
    name("the virtual organisation", &vo)?;
    Ok((format!("{source} {destination} {vo}"), ShareSettings { source, destination, vo, share: 0.0, guarantee: 0.0 }))
}

/// Sets the share of a virtual organisation on a link.
#[utoipa::path(
    put,
    path = "/api/v1/config/shares/{source}/{destination}/{vo}",
    params(
        ("source" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("destination" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("vo" = String, Path, description = "Virtual organisation; `public`: those without a share"),
    ),
    request_body = NewShare,
    operation_id = "set_vo_share",
    responses((status = 200, description = "Share", body = ShareView), Refusals)
)]
async fn set_share(
    By(caller): By,
    State(app): State<App>,
    Path(path): Path<(String, String, String)>,
    Whole(body): Small,
) -> Result<Json<ShareView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let new: NewShare = read("the share", &body)?;
    let (name, mut share) = share_of(path)?;
    share.share = weight("weight", new.weight)?;
    share.guarantee = guarantee("guarantee", new.guarantee)?;
    app.service.set(&caller, kind::SHARE, &name, stored(&share)?, "share-config").await?;
    let ShareSettings { source, destination, vo, share: weight, guarantee } = share;
    Ok(Json(ShareView { vo, source, destination, weight, guarantee }))
}

/// Removes the share of a virtual organisation on a link.
#[utoipa::path(
    delete,
    path = "/api/v1/config/shares/{source}/{destination}/{vo}",
    params(
        ("source" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("destination" = String, Path, description = "Endpoint, or `*`, percent-encoded"),
        ("vo" = String, Path, description = "Virtual organisation"),
    ),
    operation_id = "remove_vo_share",
    responses((status = 204, description = "The share is removed"), Refusals)
)]
async fn remove_share(
    By(caller): By,
    State(app): State<App>,
    Path(path): Path<(String, String, String)>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let (name, share) = share_of(path)?;
    let what = format!("the share of {} from {} to {}", share.vo, share.source, share.destination);
    remove(&app, &caller, kind::SHARE, &name, "share-delete", what).await
}

/// Sets the shares of the activities of a virtual organisation.
#[utoipa::path(
    put,
    path = "/api/v1/config/activities/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation")),
    request_body = NewActivities,
    operation_id = "set_activity_shares",
    responses((status = 200, description = "Shares", body = ActivitiesView), Refusals)
)]
async fn set_activities(
    By(caller): By,
    State(app): State<App>,
    Path(vo): Path<String>,
    Whole(body): Small,
) -> Result<Json<ActivitiesView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let new: NewActivities = read("the shares", &body)?;
    name("the virtual organisation", &vo)?;
    if !(1..=ACTIVITIES_MAX).contains(&new.weights.len()) {
        return Err(usage(format!("{} activities: expected 1 to {ACTIVITIES_MAX}", new.weights.len())).into());
    }
    for (activity, given) in &new.weights {
        weight(name("an activity", activity)?, *given)?;
    }
    for (activity, given) in &new.guarantees {
        if !new.weights.contains_key(activity) {
            return Err(usage(format!("{activity}: an activity with a guarantee has a weight too")).into());
        }
        guarantee(activity, *given)?;
    }
    let (is_followed, weights, guarantees) = (new.is_followed.unwrap_or(true), new.weights, new.guarantees);
    let settings =
        ActivitySettings { vo: vo.clone(), active: is_followed, share: weights.clone(), guarantee: guarantees.clone() };
    app.service.set(&caller, kind::ACTIVITIES, &vo, stored(&settings)?, "activity-share").await?;
    Ok(Json(ActivitiesView { vo, is_followed, weights, guarantees }))
}

/// Removes the shares of the activities of a virtual organisation.
#[utoipa::path(
    delete,
    path = "/api/v1/config/activities/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation")),
    operation_id = "remove_activity_shares",
    responses((status = 204, description = "The shares are removed"), Refusals)
)]
async fn remove_activities(
    By(caller): By,
    State(app): State<App>,
    Path(vo): Path<String>,
) -> Result<StatusCode, Failed> {
    let what = format!("the activities of {vo}");
    remove(&app, &caller, kind::ACTIVITIES, &vo, "activity-share-delete", what).await
}

impl VoChange {
    /// Checks all values. Errors: `Usage`.
    fn check(&self) -> Result<(), Error> {
        if let Some(retries) = self.retries.flatten().filter(|retries| !(1..=RETRIES_MAX).contains(retries)) {
            return Err(usage(format!("retries {retries}: expected 1 to {RETRIES_MAX}, or null")));
        }
        let is_wrong =
            |seconds: &u64| !seconds.is_multiple_of(HOUR_S) || !(1..=QUEUE_HOURS_MAX).contains(&(seconds / HOUR_S));
        if let Some(seconds) = self.queue_time_s.flatten().filter(is_wrong) {
            let text = format!("queue_time_s {seconds}: expected whole hours, up to {QUEUE_HOURS_MAX}, or null");
            return Err(usage(text));
        }
        if self.timeout_s.flatten() == Some(0) {
            return Err(usage("timeout_s 0: expected a second at least, or null"));
        }
        match self.order.as_deref() {
            None | Some(BY_SUBMISSION | BY_PRIORITY) => Ok(()),
            Some(other) => Err(usage(format!("order {other}: expected {BY_PRIORITY} or {BY_SUBMISSION}"))),
        }
    }

    fn changes_defaults(&self) -> bool {
        self.retries.is_some() || self.queue_time_s.is_some() || self.timeout_s.is_some()
    }

    fn changes_scheduling(&self) -> bool {
        self.max.is_some() || self.order.is_some()
    }

    /// Returns the defaults after the change.
    fn defaults(&self, vo: &str, mut defaults: Defaults) -> Defaults {
        if let Some(retries) = self.retries {
            defaults.retry = i64::from(retries.unwrap_or(0));
        }
        if let Some(seconds) = self.queue_time_s {
            defaults.max_time_queue = u32::try_from(seconds.unwrap_or(0) / HOUR_S).unwrap_or(u32::MAX);
        }
        if let Some(seconds) = self.timeout_s {
            defaults.global_timeout = seconds.unwrap_or(0);
        }
        // Fields that replies of FTS3 have always.
        for (key, value) in [("vo_name", json!(vo)), ("sec_per_mb", json!(0)), ("show_user_dn", json!(false))] {
            defaults.others.entry(key.to_owned()).or_insert(value);
        }
        defaults
    }

    /// Returns the scheduling after the change.
    fn scheduling(&self, mut scheduling: VoSettings) -> VoSettings {
        scheduling.max_active = self.max.unwrap_or(scheduling.max_active);
        scheduling.in_order = self.order.as_deref().map_or(scheduling.in_order, |order| order == BY_SUBMISSION);
        scheduling
    }
}

/// Changes the defaults of the jobs of a virtual organisation, its limit, or the order of its queues.
#[utoipa::path(
    patch,
    path = "/api/v1/config/vos/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation; `*`: those without defaults")),
    request_body = VoChange,
    responses((status = 200, description = "Virtual organisation after the change", body = VoView), Refusals)
)]
async fn change_vo(
    By(caller): By,
    State(app): State<App>,
    Path(vo): Path<String>,
    Whole(body): Small,
) -> Result<Json<VoView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let change: VoChange = read("the change", &body)?;
    name("the virtual organisation", &vo)?;
    change.check()?;
    if vo == ANY && change.changes_scheduling() {
        return Err(usage(format!("{ANY} stands for every virtual organisation in defaults only")).into());
    }
    if change.changes_defaults() {
        let changed = |value: Option<Value>| stored(&change.defaults(&vo, known(value)));
        app.service.amend(&caller, kind::DEFAULTS, &vo, "set-globals", changed).await?;
    }
    if change.changes_scheduling() {
        let changed = |value: Option<Value>| stored(&change.scheduling(known(value)));
        app.service.amend(&caller, kind::VO, &vo, "vo-config", changed).await?;
    }
    let known = vos(&app, &caller).await?.into_iter().find(|one| one.vo == vo);
    Ok(Json(known.unwrap_or_else(|| vo_view(&vo, &Defaults::default(), &VoSettings::default()))))
}

/// Removes the settings of a virtual organisation, except its shares.
#[utoipa::path(
    delete,
    path = "/api/v1/config/vos/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation; `*`: those without defaults")),
    operation_id = "remove_vo_settings",
    responses((status = 204, description = "The settings are removed"), Refusals)
)]
async fn remove_vo(By(caller): By, State(app): State<App>, Path(vo): Path<String>) -> Result<StatusCode, Failed> {
    let what = || format!("the virtual organisation {vo}");
    let defaults = remove(&app, &caller, kind::DEFAULTS, &vo, "delete-globals", what()).await;
    let scheduling = remove(&app, &caller, kind::VO, &vo, "vo-delete", what()).await;
    // One of them is enough.
    defaults.or(scheduling)
}

/// Returns the name under which a grant is stored. Errors: `Usage`, for an operation that does not exist.
fn grant_name(operation: &str, user: &str) -> Result<String, Error> {
    name("the user", user)?;
    match Operation::by_name(operation) {
        Some(_) => Ok(format!("{operation} {user}")),
        None => {
            let known = Operation::ALL.map(Operation::name).join(", ");
            Err(usage(format!("operation {operation}: expected one of {known}")))
        }
    }
}

/// Lets a user do an operation on everybody's resources.
#[utoipa::path(
    put,
    path = "/api/v1/config/grants/{operation}/{user}",
    params(
        ("operation" = String, Path, description = "`transfer`, `config`, `deleg`, `datamanagement` or `admin`"),
        ("user" = String, Path, description = "Distinguished name, or issuer and subject, percent-encoded"),
    ),
    responses((status = 200, description = "Grant", body = GrantView), Refusals)
)]
async fn grant(
    By(caller): By,
    State(app): State<App>,
    Path((operation, user)): Path<(String, String)>,
) -> Result<Json<GrantView>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let name = grant_name(&operation, &user)?;
    let grant = Grant { dn: user.clone(), operation: operation.clone() };
    app.service.set(&caller, kind::GRANT, &name, stored(&grant)?, "authorize").await?;
    Ok(Json(GrantView { operation, user }))
}

/// Takes back what a user was allowed.
#[utoipa::path(
    delete,
    path = "/api/v1/config/grants/{operation}/{user}",
    params(
        ("operation" = String, Path, description = "Operation"),
        ("user" = String, Path, description = "Distinguished name, or issuer and subject, percent-encoded"),
    ),
    responses((status = 204, description = "The grant is removed"), Refusals)
)]
async fn revoke(
    By(caller): By,
    State(app): State<App>,
    Path((operation, user)): Path<(String, String)>,
) -> Result<StatusCode, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let name = grant_name(&operation, &user)?;
    remove(&app, &caller, kind::GRANT, &name, "revoke", format!("{operation} of {user}")).await
}

/// Starts no transfer from now on, or starts them again.
#[utoipa::path(
    put,
    path = "/api/v1/config/drain",
    request_body = Drain,
    operation_id = "set_drain",
    responses((status = 200, description = "State of the host", body = Drain), Refusals)
)]
async fn drain(By(caller): By, State(app): State<App>, Whole(body): Small) -> Result<Json<Drain>, Failed> {
    caller.check_level(Operation::Config, Level::All)?;
    let drain: Drain = read("the state", &body)?;
    app.service.set_drain(&caller, drain.is_drained).await?;
    Ok(Json(drain))
}

/// Selection of the audit log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Maximum number of entries, from 1 to 1000.
    limit: Option<u32>,
}

/// Returns the changes that operators made, the latest first.
#[utoipa::path(
    get,
    path = "/api/v1/config/audit",
    params(AuditQuery),
    operation_id = "show_audit_log",
    responses((status = 200, description = "Changes", body = AuditLog), Refusals)
)]
async fn audit(
    By(caller): By,
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditLog>, Failed> {
    let entries = app.service.audit(&caller, page(query.limit)?).await?.into_iter();
    let view = |entry: crate::store::Audit| AuditView {
        at_ms: entry.at.0,
        by: entry.by,
        action: entry.action,
        value: entry.value,
    };
    Ok(Json(AuditLog { entries: entries.map(view).collect() }))
}
