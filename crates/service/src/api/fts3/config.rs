//! FTS3's requests of operators: bans, endpoints, links, shares, defaults, grants, the audit log.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{Failed, Reply, json_reply};
use super::reply;
use crate::api::app::App;
use crate::caller::{Caller, Level, Operation};
use crate::settings::{ActivitySettings, Ban, BanKind, LinkSettings, ShareSettings, UserBan, kind, read};
use crate::store::Setting;
use sterna_sched::time::UnixTime;

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
pub fn routes() -> Router<App> {
    Router::new()
        .route("/ban/se", get(bans).post(ban).delete(unban))
        .route("/ban/dn", get(user_bans).post(ban_user).delete(unban_user))
        .route("/config", get(index))
        .route("/config/se", get(endpoints).post(set_endpoints).delete(remove_endpoint))
        .route("/config/links", get(links).post(set_link))
        .route("/config/links/{name}", get(link).delete(remove_link))
        .route("/config/shares", get(shares).post(set_share).delete(remove_share))
        .route("/config/activity_shares", get(activities).post(set_activities))
        .route("/config/activity_shares/{vo}", get(activities_of).delete(remove_activities))
        .route("/config/global", get(defaults).post(set_defaults).delete(remove_defaults))
        .route("/config/authorize", get(grants).post(set_grant).delete(remove_grant))
        .route("/config/audit", get(audit))
        .route("/config/drain", post(drain))
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

/// Returns an endpoint: a scheme and a host, or `*`.
fn endpoint(name: &str) -> Result<String, Failed> {
    let is_endpoint =
        name == "*" || name.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty());
    match is_endpoint {
        true => Ok(name.trim_end_matches('/').to_owned()),
        false => Err(bad(format!("{name} is not a storage: expected SCHEME://HOST, or *"))),
    }
}

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

async fn ban(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
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

#[derive(Deserialize)]
struct StorageQuery {
    storage: Option<String>,
}

async fn unban(caller: Caller, State(app): State<App>, Query(query): Query<StorageQuery>, body: Bytes) -> Reply {
    let storage = match query.storage {
        Some(storage) => storage,
        None => text(&object(&body)?, "storage")?,
    };
    app.service.unban(&caller, &endpoint(&storage)?).await?;
    Ok(no_content())
}

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

async fn ban_user(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    let request = object(&body)?;
    let name = text(&request, "user_dn")?;
    let message = request.get("message").and_then(Value::as_str).unwrap_or_default();
    let jobs = app.service.ban_user(&caller, &name, message).await?;
    Ok(json_reply(StatusCode::OK, &json!(jobs.iter().map(ToString::to_string).collect::<Vec<_>>())))
}

#[derive(Deserialize)]
struct UserQuery {
    user_dn: Option<String>,
}

async fn unban_user(caller: Caller, State(app): State<App>, Query(query): Query<UserQuery>, body: Bytes) -> Reply {
    let name = match query.user_dn {
        Some(name) => name,
        None => text(&object(&body)?, "user_dn")?,
    };
    app.service.set(&caller, kind::BANNED_USER, &name, None, "unban-dn").await?;
    Ok(no_content())
}

#[derive(Deserialize)]
struct EndpointQuery {
    se: Option<String>,
}

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

async fn set_endpoints(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    caller.check_level(Operation::Config, Level::All)?;
    let request = object(&body)?;
    let mut replies = Vec::new();
    for (name, value) in &request {
        let name = endpoint(name)?;
        let value = value.as_object().ok_or_else(|| bad(format!("{name}: expected a JSON object")))?;
        let known = app.service.settings(&caller, kind::ENDPOINT).await?.into_iter().find(|one| one.name == name);
        let mut stored = known.and_then(|setting| setting.value.as_object().cloned()).unwrap_or_default();
        if let Some(info) = value.get("se_info") {
            let info = info.as_object().ok_or_else(|| bad("se_info: expected a JSON object"))?;
            for key in ["inbound_max_active", "outbound_max_active"] {
                number(info, key)?;
            }
            let columns = info.iter().filter(|(key, _)| ENDPOINT_COLUMNS.contains(&key.as_str()));
            let columns: Map<String, Value> = columns.map(|(key, value)| (key.clone(), value.clone())).collect();
            let mut shown = Map::from_iter([("storage".to_owned(), Value::from(name.clone()))]);
            shown.extend(columns.clone());
            replies.push(Value::Object(shown));
            stored.extend(columns);
        }
        if let Some(operations) = value.get("operations") {
            replies.push(operations.clone());
            stored.insert("operations".to_owned(), operations.clone());
        }
        app.service.set(&caller, kind::ENDPOINT, &name, Some(Value::Object(stored)), "set-se-config").await?;
    }
    Ok(json_reply(StatusCode::OK, &Value::Array(replies)))
}

async fn remove_endpoint(caller: Caller, State(app): State<App>, Query(query): Query<EndpointQuery>) -> Reply {
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

async fn links(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::LINK).await?;
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.iter().filter_map(shown_link).collect())))
}

async fn link(caller: Caller, State(app): State<App>, Path(name): Path<String>) -> Reply {
    let settings = app.service.settings(&caller, kind::LINK).await?;
    let link = settings.iter().find(|setting| setting.name == name).and_then(shown_link);
    link.map(|link| json_reply(StatusCode::OK, &link))
        .ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, "Link does not exist"))
}

async fn set_link(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
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

async fn remove_link(caller: Caller, State(app): State<App>, Path(name): Path<String>) -> Reply {
    app.service.set(&caller, kind::LINK, &name, None, "link-delete").await?;
    Ok(no_content())
}

async fn shares(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::SHARE).await?;
    let shares = settings.iter().filter_map(|setting| serde_json::to_value(read::<ShareSettings>(setting)?).ok());
    Ok(json_reply(StatusCode::OK, &Value::Array(shares.collect())))
}

async fn set_share(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    let request = object(&body)?;
    let (source, destination) = (text(&request, "source")?, text(&request, "destination")?);
    let (source, destination, vo) = (endpoint(&source)?, endpoint(&destination)?, text(&request, "vo")?);
    let share = request.get("share").and_then(Value::as_f64).filter(|share| *share >= 0.0);
    let share = share.ok_or_else(|| bad("Bad share value"))?;
    let name = format!("{source} {destination} {vo}");
    let value = json!({"source": source, "destination": destination, "vo": vo, "share": share});
    app.service.set(&caller, kind::SHARE, &name, Some(value), "share-config").await?;
    Ok(json_reply(StatusCode::OK, request.get("share").unwrap_or(&Value::Null)))
}

#[derive(Deserialize)]
struct ShareQuery {
    source: String,
    destination: String,
    vo: String,
}

async fn remove_share(caller: Caller, State(app): State<App>, Query(query): Query<ShareQuery>) -> Reply {
    let name = format!("{} {} {}", query.source, query.destination, query.vo);
    app.service.set(&caller, kind::SHARE, &name, None, "share-delete").await?;
    Ok(no_content())
}

async fn activities(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::ACTIVITIES).await?;
    let shown = |setting: &Setting| {
        let activities: ActivitySettings = read(setting)?;
        Some((setting.name.clone(), json!({"share": activities.share, "active": activities.active})))
    };
    Ok(json_reply(StatusCode::OK, &Value::Object(settings.iter().filter_map(shown).collect())))
}

async fn activities_of(caller: Caller, State(app): State<App>, Path(vo): Path<String>) -> Reply {
    let settings = app.service.settings(&caller, kind::ACTIVITIES).await?;
    let found = settings.iter().find(|setting| setting.name == vo).and_then(read::<ActivitySettings>);
    let found = found.ok_or_else(|| Failed::new(StatusCode::NOT_FOUND, format!("No activity shares for {vo}")))?;
    Ok(json_reply(StatusCode::OK, &json!({"share": found.share, "active": found.active})))
}

async fn set_activities(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
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
        let share = share.as_f64().filter(|share| *share >= 0.0);
        weights.insert(activity.clone(), share.ok_or_else(|| bad(format!("Bad share value of {activity}")))?);
    }
    if weights.is_empty() {
        return Err(bad("Missing parameter: 'share'"));
    }
    let active = request.get("active").and_then(Value::as_bool).unwrap_or(true);
    let value = json!({"vo": vo, "active": active, "share": weights});
    app.service.set(&caller, kind::ACTIVITIES, &vo, Some(value), "activity-share").await?;
    let list: Vec<Value> = shares.into_iter().map(|(activity, share)| json!({activity: share})).collect();
    Ok(json_reply(StatusCode::OK, &json!({"vo": vo, "active": active, "activity_share": list})))
}

async fn remove_activities(caller: Caller, State(app): State<App>, Path(vo): Path<String>) -> Reply {
    app.service.set(&caller, kind::ACTIVITIES, &vo, None, "activity-share-delete").await?;
    Ok(no_content())
}

async fn defaults(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::DEFAULTS).await?;
    let mut shown = Map::from_iter([("*".to_owned(), json!({}))]);
    shown.extend(settings.into_iter().map(|setting| (setting.name, setting.value)));
    Ok(json_reply(StatusCode::OK, &Value::Object(shown)))
}

async fn set_defaults(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    let request = object(&body)?;
    let vo = request.get("vo_name").and_then(Value::as_str).unwrap_or("*").to_owned();
    for key in ["max_time_queue", "global_timeout", "sec_per_mb"] {
        number(&request, key)?;
    }
    let field =
        |key: &str, default: Value| request.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(default);
    let value = json!({
        "vo_name": vo,
        "retry": field("retry", json!(0)),
        "max_time_queue": field("max_time_queue", json!(0)),
        "global_timeout": field("global_timeout", json!(0)),
        "sec_per_mb": field("sec_per_mb", json!(0)),
        "show_user_dn": field("show_user_dn", json!(false)),
        "no_streaming": field("no_streaming", json!(false)),
    });
    app.service.set(&caller, kind::DEFAULTS, &vo, Some(value.clone()), "set-globals").await?;
    Ok(json_reply(StatusCode::OK, &value))
}

#[derive(Deserialize)]
struct VoQuery {
    vo_name: Option<String>,
}

async fn remove_defaults(caller: Caller, State(app): State<App>, Query(query): Query<VoQuery>) -> Reply {
    let vo = query.vo_name.unwrap_or_else(|| "*".to_owned());
    app.service.set(&caller, kind::DEFAULTS, &vo, None, "delete-globals").await?;
    Ok(no_content())
}

async fn grants(caller: Caller, State(app): State<App>) -> Reply {
    let settings = app.service.settings(&caller, kind::GRANT).await?;
    Ok(json_reply(StatusCode::OK, &Value::Array(settings.into_iter().map(|setting| setting.value).collect())))
}

async fn set_grant(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
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

#[derive(Deserialize)]
struct GrantQuery {
    dn: String,
    operation: Option<String>,
}

async fn remove_grant(caller: Caller, State(app): State<App>, Query(query): Query<GrantQuery>) -> Reply {
    let of_all: Vec<&str> = Operation::ALL.into_iter().map(Operation::name).collect();
    let operations = query.operation.as_deref().map_or(of_all, |operation| vec![operation]);
    for operation in operations {
        let name = format!("{operation} {}", query.dn);
        app.service.set(&caller, kind::GRANT, &name, None, "revoke").await?;
    }
    Ok(no_content())
}

async fn audit(caller: Caller, State(app): State<App>) -> Reply {
    let entries = app.service.audit(&caller, AUDIT_MAX).await?;
    let shown = entries.iter().map(|entry| {
        json!({"datetime": reply::time(entry.at), "dn": entry.by, "action": entry.action, "config": entry.value})
    });
    Ok(json_reply(StatusCode::OK, &Value::Array(shown.collect())))
}

async fn drain(caller: Caller, State(app): State<App>, body: Bytes) -> Reply {
    let request = object(&body)?;
    let host = text(&request, "hostname")?;
    let is_on = request.get("drain").is_none_or(|value| value.as_bool().unwrap_or(true));
    if host != app.service.host() {
        return Err(bad(format!("The host {host} is no node of this service: its only one is {}", app.service.host())));
    }
    app.service.set_drain(&caller, is_on).await?;
    Ok(json_reply(StatusCode::OK, &json!({"hostname": host, "drain": is_on})))
}
