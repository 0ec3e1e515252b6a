//! FTS3's requests of operators: bans, endpoints, links, shares, defaults, grants, the audit log.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use sterna_proto::Error;
use sterna_sched::time::UnixTime;
use utoipa::IntoParams;

use super::answer::{Failed, Refusals, Reply, endpoint, json_reply};
use super::reply;
use crate::api::app::App;
use crate::api::body::{Small, Whole};
use crate::api::description::{Routes, routes};
use crate::caller::{Caller, Level, Operation};
use crate::settings::{ActivitySettings, Ban, BanKind, LinkSettings, ShareSettings, UserBan, WEIGHT_MAX, kind, read};
use crate::store::Setting;

/// Columns of an endpoint in FTS3's replies.
const ENDPOINT_COLUMNS: [&str; 12] = [
    "inbound_max_active",
    "inbound_max_throughput",
    "outbound_max_active",
    "outbound_max_throughput",
    "udt",
    "ipv6",
    "se_metadata",
    "site",
    "debug_level",
    "skip_eviction",
    "tpc_support",
    "overwrite_disk_enabled",
];

/// Maximum number of entries of the audit log in a reply. Source: FTS3.
const AUDIT_MAX: u32 = 1000;

/// Returns the routes.
pub(in crate::api) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(bans, ban, unban))
        .routes(routes!(user_bans, ban_user, unban_user))
        .routes(routes!(index))
        .routes(routes!(endpoints, set_endpoints, remove_endpoint))
        .routes(routes!(links, set_link))
        .routes(routes!(link, remove_link))
        .routes(routes!(shares, set_share, remove_share))
        .routes(routes!(activities, set_activities))
        .routes(routes!(activities_of, remove_activities))
        .routes(routes!(defaults, set_defaults, remove_defaults))
        .routes(routes!(grants, set_grant, remove_grant))
        .routes(routes!(audit))
        .routes(routes!(drain))
}

fn bad(message: impl Into<String>) -> Failed {
    Failed::new(StatusCode::BAD_REQUEST, message)
}

fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// Reads a body: a JSON object, or the fields of a form.
fn object(body: &[u8]) -> Result<Map<String, Value>, Failed> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(bad("Malformed input: expected a JSON object")),
    }
}

fn text(object: &Map<String, Value>, key: &str) -> Result<String, Failed> {
    let value = object.get(key).and_then(Value::as_str).map(str::trim).filter(|value| !value.is_empty());
    value.map(str::to_owned).ok_or_else(|| bad(format!("Missing parameter: '{key}'")))
}

/// Returns an optional whole number that is not negative.
fn number(object: &Map<String, Value>, key: &str) -> Result<Option<u32>, Failed> {
    let wrong = |value: &Value| bad(format!("{key}: {value} is not a number from 0 to {}", u32::MAX));
    match object.get(key).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
            number.and_then(|number| u32::try_from(number).ok()).map(Some).ok_or_else(|| wrong(value))
        }
    }
}

/// `GET /config`: links to the settings.
#[utoipa::path(
    get,
    path = "/config",
    operation_id = "config_index",
    responses((status = 200, description = "Links", body = Value), Refusals)
)]
async fn index(caller: Caller) -> Reply {
    caller.check_level(Operation::Config, Level::Vo)?;
    Ok(json_reply(
        StatusCode::OK,
        &json!({"_links": {
            "fts:audit": {"href": "/config/audit"},
            "fts:global": {"href": "/config/global"},
            "fts:links": {"href": "/config/links"},
            "fts:se": {"href": "/config/se"},
            "fts:shares": {"href": "/config/shares"},
            "fts:activity_shares": {"href": "/config/activity_shares"},
        }}),
    ))
}

/// `GET /ban/se`: banned storages.
#[utoipa::path(
    get,
    path = "/ban/se",
    responses((status = 200, description = "Bans", body = Vec<Value>), Refusals)
)]
async fn bans(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::BAN).await?;
    let ban = |setting: &Setting| {
        let ban: Ban = read(setting)?;
        let status = match (ban.kind, ban.allows_submission) {
            (BanKind::Cancel, _) => "CANCEL",
            (BanKind::Wait, false) => "WAIT",
            (BanKind::Wait, true) => "WAIT_AS",
        };
        Some(json!({
            "se": setting.name, "vo": ban.vo, "message": ban.message, "admin_dn": ban.by, "status": status,
            "addition_time": reply::time(UnixTime(ban.at)),
        }))
    };
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.iter().filter_map(ban).collect())))
}

/// `POST /ban/se`: bans a storage.
#[utoipa::path(
    post,
    path = "/ban/se",
    request_body = Value,
    responses((status = 200, description = "Jobs with files of the storage", body = Vec<String>), Refusals)
)]
async fn ban(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let storage = endpoint(&text(&request, "storage")?)?;
    let status = request.get("status").and_then(Value::as_str).unwrap_or("cancel").to_ascii_lowercase();
    let allows = request.get("allow_submit").and_then(Value::as_bool).unwrap_or(false);
    let kind = match status.as_str() {
        "cancel" if allows => return Err(bad("allow_submit and status = CANCEL can not be combined")),
        "cancel" => BanKind::Cancel,
        "wait" => BanKind::Wait,
        _ => return Err(bad("status can only be CANCEL or WAIT")),
    };
    let message = request.get("message").and_then(Value::as_str).unwrap_or_default();
    let jobs = app.service.ban(&caller, &storage, kind, allows, message).await?;
    Ok(json_reply(StatusCode::OK, &json!(jobs.iter().map(ToString::to_string).collect::<Vec<_>>())))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct StorageQuery {
    /// Storage.
    storage: Option<String>,
}

/// `DELETE /ban/se`: lifts the ban of a storage.
#[utoipa::path(
    delete,
    path = "/ban/se",
    params(StorageQuery),
    responses((status = 204, description = "The ban is lifted"), Refusals)
)]
async fn unban(caller: Caller, State(app): State<App>, Query(query): Query<StorageQuery>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let storage = match query.storage {
        Some(storage) => storage,
        None => text(&object(&body)?, "storage")?,
    };
    app.service.unban(&caller, &endpoint(&storage)?).await?;
    Ok(no_content())
}

/// `GET /ban/dn`: banned users.
#[utoipa::path(
    get,
    path = "/ban/dn",
    responses((status = 200, description = "Bans", body = Vec<Value>), Refusals)
)]
async fn user_bans(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::BANNED_USER).await?;
    let ban = |setting: &Setting| {
        let ban: UserBan = read(setting)?;
        Some(json!({
            "dn": setting.name, "message": ban.message, "admin_dn": ban.by, "status": null,
            "addition_time": reply::time(UnixTime(ban.at)),
        }))
    };
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.iter().filter_map(ban).collect())))
}

/// `POST /ban/dn`: bans a user.
#[utoipa::path(
    post,
    path = "/ban/dn",
    request_body = Value,
    responses(
        (status = 200, description = "Jobs of the user", body = Vec<String>),
        (status = 409, description = "The user is the caller", body = super::types::Failure),
        Refusals,
    )
)]
async fn ban_user(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let name = text(&request, "user_dn")?;
    let message = request.get("message").and_then(Value::as_str).unwrap_or_default();
    let jobs = app.service.ban_user(&caller, &name, message).await?;
    Ok(json_reply(StatusCode::OK, &json!(jobs.iter().map(ToString::to_string).collect::<Vec<_>>())))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct UserQuery {
    /// Name of the user.
    user_dn: Option<String>,
}

/// `DELETE /ban/dn`: lifts the ban of a user.
#[utoipa::path(
    delete,
    path = "/ban/dn",
    params(UserQuery),
    responses((status = 204, description = "The ban is lifted"), Refusals)
)]
async fn unban_user(
    caller: Caller,
    State(app): State<App>,
    Query(query): Query<UserQuery>,
    Whole(body): Small,
) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let name = match query.user_dn {
        Some(name) => name,
        None => text(&object(&body)?, "user_dn")?,
    };
    app.service.set(&caller, kind::BANNED_USER, &name, None, "unban-dn").await?;
    Ok(no_content())
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct EndpointQuery {
    /// Storage; without it all.
    se: Option<String>,
}

/// `GET /config/se`: settings of storages.
#[utoipa::path(
    get,
    path = "/config/se",
    params(EndpointQuery),
    responses((status = 200, description = "Settings by storage", body = Value), Refusals)
)]
async fn endpoints(caller: Caller, State(app): State<App>, Query(query): Query<EndpointQuery>) -> Reply {
    let settings = app.service.settings(&caller, kind::ENDPOINT).await?;
    let wanted = |setting: &&Setting| query.se.as_ref().is_none_or(|se| *se == setting.name);
    let endpoint = |setting: &Setting| {
        let column = |name: &&str| ((*name).to_owned(), setting.value.get(*name).cloned().unwrap_or(Value::Null));
        let info: Map<String, Value> = ENDPOINT_COLUMNS.iter().map(column).collect();
        let operations = setting.value.get("operations").cloned().unwrap_or_else(|| json!({}));
        (setting.name.clone(), json!({"se_info": info, "operations": operations}))
    };
    Ok(json_reply(StatusCode::OK, &Value::Object(settings.iter().filter(wanted).map(endpoint).collect())))
}

/// `POST /config/se`: changes settings of storages.
#[utoipa::path(
    post,
    path = "/config/se",
    request_body = Value,
    responses((status = 200, description = "Settings of the request", body = Value), Refusals)
)]
async fn set_endpoints(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let mut replies = Vec::new();
    for (name, value) in &request {
        let name = endpoint(name)?;
        let value = value.as_object().ok_or_else(|| bad(format!("{name}: expected a JSON object")))?;
        let mut changed = Map::new();
        if let Some(info) = value.get("se_info") {
            let info = info.as_object().ok_or_else(|| bad("se_info: expected a JSON object"))?;
            let columns = info.iter().filter(|(key, _)| ENDPOINT_COLUMNS.contains(&key.as_str()));
            let mut columns: Map<String, Value> = columns.map(|(key, value)| (key.clone(), value.clone())).collect();
            for key in ["inbound_max_active", "outbound_max_active"] {
                // The scheduler reads numbers only.
                let number = number(info, key)?;
                columns.entry(key).and_modify(|value| *value = json!(number));
            }
            let mut shown = Map::from_iter([("storage".to_owned(), Value::from(name.clone()))]);
            shown.extend(columns.clone());
            replies.push(Value::Object(shown));
            changed.extend(columns);
        }
        if let Some(operations) = value.get("operations") {
            replies.push(operations.clone());
            changed.insert("operations".to_owned(), operations.clone());
        }
        let merged = |known: Option<Value>| -> Result<Option<Value>, Error> {
            let mut stored = known.and_then(|value| value.as_object().cloned()).unwrap_or_default();
            stored.extend(changed);
            Ok(Some(Value::Object(stored)))
        };
        app.service.amend(&caller, kind::ENDPOINT, &name, "set-se-config", merged).await?;
    }
    Ok(json_reply(StatusCode::OK, &Value::Array(replies)))
}

/// `DELETE /config/se`: removes the settings of a storage.
#[utoipa::path(
    delete,
    path = "/config/se",
    params(EndpointQuery),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_endpoint(caller: Caller, State(app): State<App>, Query(query): Query<EndpointQuery>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let name = query.se.ok_or_else(|| bad("Missing parameter: 'se'"))?;
    app.service.set(&caller, kind::ENDPOINT, &name, None, "delete-se-config").await?;
    Ok(no_content())
}

/// Returns a link as FTS3 shows it.
fn shown_link(setting: &Setting) -> Option<Value> {
    let link: LinkSettings = read(setting)?;
    let other = |key: &str| link.others.get(key).cloned().unwrap_or(Value::Null);
    Some(json!({
        "symbolicname": setting.name,
        "source": link.source,
        "destination": link.destination,
        "min_active": other("min_active"),
        "max_active": link.max_active,
        "optimizer_mode": other("optimizer_mode"),
        "nostreams": other("nostreams"),
        "tcp_buffer_size": other("tcp_buffer_size"),
        "no_delegation": other("no_delegation").as_bool().unwrap_or(false),
    }))
}

/// `GET /config/links`: settings of links.
#[utoipa::path(
    get,
    path = "/config/links",
    responses((status = 200, description = "Links", body = Vec<Value>), Refusals)
)]
async fn links(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::LINK).await?;
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.iter().filter_map(shown_link).collect())))
}

/// `GET /config/links/{name}`: settings of a link.
#[utoipa::path(
    get,
    path = "/config/links/{name}",
    params(("name" = String, Path, description = "Name that an operator chose")),
    responses((status = 200, description = "Link", body = Value), Refusals)
)]
async fn link(caller: Caller, State(app): State<App>, Path(name): Path<String>) -> Reply {
    let settings = app.service.settings(&caller, kind::LINK).await?;
    let link = settings.iter().find(|setting| setting.name == name).and_then(shown_link);
    link.map(|link| json_reply(StatusCode::OK, &link))
        .ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, "Link does not exist"))
}

/// `POST /config/links`: sets a link.
#[utoipa::path(
    post,
    path = "/config/links",
    request_body = Value,
    responses((status = 201, description = "Link", body = Value), Refusals)
)]
async fn set_link(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let (source, destination) = (text(&request, "source")?, text(&request, "destination")?);
    let (source, destination) = (endpoint(&source)?, endpoint(&destination)?);
    let name = text(&request, "symbolicname")?;
    let (least, most) = (number(&request, "min_active")?, number(&request, "max_active")?);
    if least.zip(most).is_some_and(|(least, most)| most < least) {
        return Err(bad("max_active is lower than min_active"));
    }
    let mut value = request.clone();
    value.remove("symbolicname");
    value.insert("source".to_owned(), source.into());
    value.insert("destination".to_owned(), destination.into());
    value.insert("max_active".to_owned(), json!(most));
    app.service.set(&caller, kind::LINK, &name, Some(Value::Object(value)), "link-config").await?;
    Ok(json_reply(StatusCode::CREATED, &Value::Object(request)))
}

/// `DELETE /config/links/{name}`: removes a link.
#[utoipa::path(
    delete,
    path = "/config/links/{name}",
    params(("name" = String, Path, description = "Name that an operator chose")),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_link(caller: Caller, State(app): State<App>, Path(name): Path<String>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    app.service.set(&caller, kind::LINK, &name, None, "link-delete").await?;
    Ok(no_content())
}

/// `GET /config/shares`: shares of virtual organisations.
#[utoipa::path(
    get,
    path = "/config/shares",
    responses((status = 200, description = "Shares", body = Vec<Value>), Refusals)
)]
async fn shares(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::SHARE).await?;
    let shown = |share: ShareSettings| json!({"source": share.source, "destination": share.destination, "vo": share.vo, "share": share.share});
    let shares = settings.iter().filter_map(|setting| read(setting).map(shown));
    Ok(json_reply(StatusCode::OK, &Value::Array(shares.collect())))
}

/// Returns the change to a share that keeps its guarantee: FTS3 has none, and its clients must not take one away.
fn with_guarantee(mut value: Value) -> impl FnOnce(Option<Value>) -> Result<Option<Value>, sterna_proto::Error> {
    |known| {
        if let Some(guarantee) = known.as_ref().and_then(|known| known.get("guarantee")) {
            value["guarantee"] = guarantee.clone();
        }
        Ok(Some(value))
    }
}

/// `POST /config/shares`: sets the share of a virtual organisation on a link.
#[utoipa::path(
    post,
    path = "/config/shares",
    request_body = Value,
    responses((status = 200, description = "Share", body = f64, content_type = "application/json"), Refusals)
)]
async fn set_share(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let (source, destination) = (text(&request, "source")?, text(&request, "destination")?);
    let (source, destination, vo) = (endpoint(&source)?, endpoint(&destination)?, text(&request, "vo")?);
    let share = request.get("share").and_then(Value::as_f64).filter(|share| (0.0..=WEIGHT_MAX).contains(share));
    let share = share.ok_or_else(|| bad("Bad share value"))?;
    let name = format!("{source} {destination} {vo}");
    let value = json!({"source": source, "destination": destination, "vo": vo, "share": share});
    app.service.amend(&caller, kind::SHARE, &name, "share-config", with_guarantee(value)).await?;
    Ok(json_reply(StatusCode::OK, request.get("share").unwrap_or(&Value::Null)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ShareQuery {
    /// Source storage, or `*`.
    source: String,
    /// Destination storage, or `*`.
    destination: String,
    /// Virtual organisation.
    vo: String,
}

/// `DELETE /config/shares`: removes a share.
#[utoipa::path(
    delete,
    path = "/config/shares",
    params(ShareQuery),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_share(caller: Caller, State(app): State<App>, Query(query): Query<ShareQuery>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let name = format!("{} {} {}", query.source, query.destination, query.vo);
    app.service.set(&caller, kind::SHARE, &name, None, "share-delete").await?;
    Ok(no_content())
}

/// `GET /config/activity_shares`: shares of activities.
#[utoipa::path(
    get,
    path = "/config/activity_shares",
    responses((status = 200, description = "Shares by virtual organisation", body = Value), Refusals)
)]
async fn activities(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::ACTIVITIES).await?;
    let shown = |setting: &Setting| {
        let activities: ActivitySettings = read(setting)?;
        Some((setting.name.clone(), json!({"share": activities.share, "active": activities.active})))
    };
    Ok(json_reply(StatusCode::OK, &Value::Object(settings.iter().filter_map(shown).collect())))
}

/// `GET /config/activity_shares/{vo}`: shares of the activities of a virtual organisation.
#[utoipa::path(
    get,
    path = "/config/activity_shares/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation")),
    responses((status = 200, description = "Shares", body = Value), Refusals)
)]
async fn activities_of(caller: Caller, State(app): State<App>, Path(vo): Path<String>) -> Reply {
    let settings = app.service.settings(&caller, kind::ACTIVITIES).await?;
    let found = settings.iter().find(|setting| setting.name == vo).and_then(read::<ActivitySettings>);
    let found = found.ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, format!("No activity shares for {vo}")))?;
    Ok(json_reply(StatusCode::OK, &json!({"share": found.share, "active": found.active})))
}

/// `POST /config/activity_shares`: sets the shares of activities.
#[utoipa::path(
    post,
    path = "/config/activity_shares",
    request_body = Value,
    responses((status = 200, description = "Shares", body = Value), Refusals)
)]
async fn set_activities(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let vo = text(&request, "vo")?;
    // An object, or a list of objects with one activity each.
    let shares = match request.get("share") {
        Some(Value::Object(shares)) => shares.clone(),
        Some(Value::Array(list)) => {
            list.iter().filter_map(Value::as_object).flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
        }
        _ => return Err(bad("Missing parameter: 'share'")),
    };
    let mut weights = BTreeMap::new();
    for (activity, share) in &shares {
        let share = share.as_f64().filter(|share| (0.0..=WEIGHT_MAX).contains(share));
        weights.insert(activity.clone(), share.ok_or_else(|| bad(format!("Bad share value of {activity}")))?);
    }
    if weights.is_empty() {
        return Err(bad("Missing parameter: 'share'"));
    }
    let active = request.get("active").and_then(Value::as_bool).unwrap_or(true);
    let value = json!({"vo": vo, "active": active, "share": weights});
    app.service.amend(&caller, kind::ACTIVITIES, &vo, "activity-share", with_guarantee(value)).await?;
    let list: Vec<Value> = shares.into_iter().map(|(activity, share)| json!({activity: share})).collect();
    Ok(json_reply(StatusCode::OK, &json!({"vo": vo, "active": active, "activity_share": list})))
}

/// `DELETE /config/activity_shares/{vo}`: removes the shares of activities.
#[utoipa::path(
    delete,
    path = "/config/activity_shares/{vo}",
    params(("vo" = String, Path, description = "Virtual organisation")),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_activities(caller: Caller, State(app): State<App>, Path(vo): Path<String>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    app.service.set(&caller, kind::ACTIVITIES, &vo, None, "activity-share-delete").await?;
    Ok(no_content())
}

/// `GET /config/global`: defaults of virtual organisations.
#[utoipa::path(
    get,
    path = "/config/global",
    responses((status = 200, description = "Defaults by virtual organisation", body = Value), Refusals)
)]
async fn defaults(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::DEFAULTS).await?;
    let mut shown = Map::from_iter([("*".to_owned(), json!({}))]);
    shown.extend(settings.into_iter().map(|setting| (setting.name, setting.value)));
    Ok(json_reply(StatusCode::OK, &Value::Object(shown)))
}

/// Returns the number of further attempts: below 0 there are none.
fn retries(request: &Map<String, Value>) -> Result<i64, Failed> {
    let Some(value) = request.get("retry").filter(|value| !value.is_null()) else { return Ok(0) };
    let number = value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.ok_or_else(|| bad(format!("retry: {value} is not an integer")))
}

/// `POST /config/global`: sets the defaults of a virtual organisation.
#[utoipa::path(
    post,
    path = "/config/global",
    request_body = Value,
    responses((status = 200, description = "Defaults", body = Value), Refusals)
)]
async fn set_defaults(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let vo = request.get("vo_name").and_then(Value::as_str).unwrap_or("*").to_owned();
    let count = |key: &str| number(&request, key).map(|number| number.unwrap_or(0));
    let flag = |key: &str| request.get(key).and_then(Value::as_bool).unwrap_or(false);
    let value = json!({
        "vo_name": vo,
        "retry": retries(&request)?,
        "max_time_queue": count("max_time_queue")?,
        "global_timeout": count("global_timeout")?,
        "sec_per_mb": count("sec_per_mb")?,
        "show_user_dn": flag("show_user_dn"),
        "no_streaming": flag("no_streaming"),
    });
    app.service.set(&caller, kind::DEFAULTS, &vo, Some(value.clone()), "set-globals").await?;
    Ok(json_reply(StatusCode::OK, &value))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct VoQuery {
    /// Virtual organisation; without it `*`.
    vo_name: Option<String>,
}

/// `DELETE /config/global`: removes the defaults of a virtual organisation.
#[utoipa::path(
    delete,
    path = "/config/global",
    params(VoQuery),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_defaults(caller: Caller, State(app): State<App>, Query(query): Query<VoQuery>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let vo = query.vo_name.unwrap_or_else(|| "*".to_owned());
    app.service.set(&caller, kind::DEFAULTS, &vo, None, "delete-globals").await?;
    Ok(no_content())
}

/// `GET /config/authorize`: operations that users may do.
#[utoipa::path(
    get,
    path = "/config/authorize",
    responses((status = 200, description = "Grants", body = Vec<Value>), Refusals)
)]
async fn grants(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::GRANT).await?;
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.into_iter().map(|setting| setting.value).collect())))
}

/// `POST /config/authorize`: lets a user do an operation.
#[utoipa::path(
    post,
    path = "/config/authorize",
    request_body = Value,
    responses((status = 200, description = "Grant", body = Value), Refusals)
)]
async fn set_grant(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let (name, operation) = (text(&request, "dn")?, text(&request, "operation")?);
    if Operation::by_name(&operation).is_none() {
        let known: Vec<&str> = Operation::ALL.into_iter().map(Operation::name).collect();
        return Err(bad(format!("operation {operation}: expected one of {}", known.join(", "))));
    }
    let value = json!({"dn": name, "operation": operation});
    app.service.set(&caller, kind::GRANT, &format!("{operation} {name}"), Some(value.clone()), "authorize").await?;
    Ok(json_reply(StatusCode::OK, &value))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct GrantQuery {
    /// Name of the user.
    dn: String,
    /// Operation; without it all.
    operation: Option<String>,
}

/// `DELETE /config/authorize`: takes back a grant.
#[utoipa::path(
    delete,
    path = "/config/authorize",
    params(GrantQuery),
    responses((status = 204, description = "It is removed"), Refusals)
)]
async fn remove_grant(caller: Caller, State(app): State<App>, Query(query): Query<GrantQuery>) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let of_all: Vec<&str> = Operation::ALL.into_iter().map(Operation::name).collect();
    let operations = query.operation.as_deref().map_or(of_all, |operation| vec![operation]);
    for operation in operations {
        let name = format!("{operation} {}", query.dn);
        app.service.set(&caller, kind::GRANT, &name, None, "revoke").await?;
    }
    Ok(no_content())
}

/// `GET /config/audit`: changes of operators, the latest first.
#[utoipa::path(
    get,
    path = "/config/audit",
    responses((status = 200, description = "Changes", body = Vec<Value>), Refusals)
)]
async fn audit(caller: Caller, State(app): State<App>) -> Reply {
    let entries = app.service.audit(&caller, AUDIT_MAX).await?;
    let shown = entries.iter().map(|entry| {
        json!({"datetime": reply::time(entry.at), "dn": entry.by, "action": entry.action, "config": entry.value})
    });
    Ok(json_reply(StatusCode::OK, &Value::Array(shown.collect())))
}

/// `POST /config/drain`: starts no transfers from now on, or starts them again.
#[utoipa::path(
    post,
    path = "/config/drain",
    request_body = Value,
    responses((status = 200, description = "State of the host", body = Value), Refusals)
)]
async fn drain(caller: Caller, State(app): State<App>, Whole(body): Small) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let host = text(&request, "hostname")?;
    let is_on = request.get("drain").is_none_or(|value| value.as_bool().unwrap_or(true));
    if host != app.service.host() {
        return Err(bad(format!("The host {host} is no node of this service: its only one is {}", app.service.host())));
    }
    app.service.set_drain(&caller, is_on).await?;
    Ok(json_reply(StatusCode::OK, &json!({"hostname": host, "drain": is_on})))
}
