//! Authorisation: who may do what to whose resources, for every route of both interfaces and of the page.
//!
//! The table names every operation of the descriptions, which are made from the routes. A route that it does not name
//! fails the test.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::{encoded, operations};
use crate::people::{People, Who};

/// Right that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// None, and credentials are not looked at.
    Public,
    /// None; wrong credentials are refused.
    Asked,
    /// To delegate: the level `own` of `deleg`.
    Delegates,
    /// To have jobs: the level `own` of `transfer`.
    HasJobs,
    /// To a job of the owner.
    OfJob,
    /// To a file of a job of the owner. Others learn nothing about it.
    OfFile,
    /// To the jobs of everybody: the level `all` of `transfer`.
    AllJobs,
    /// To read settings: the level `vo` of `config`.
    ReadsSettings,
    /// To change settings: the level `all` of `config`.
    ChangesSettings,
}

use Right::{AllJobs, Asked, ChangesSettings, Delegates, HasJobs, OfFile, OfJob, Public, ReadsSettings};

impl Right {
    /// Returns true if somebody has it.
    fn is_of(self, who: Who) -> bool {
        use Who::{Certificate, Colleague, Coordinator, Forger, Operator, Owner, Reader, Stranger};
        match self {
            Public => true,
            Asked => who != Forger,
            Delegates | HasJobs => [Owner, Colleague, Coordinator, Stranger, Certificate, Operator].contains(&who),
            OfJob | OfFile => [Owner, Coordinator, Operator].contains(&who),
            AllJobs | ChangesSettings => who == Operator,
            ReadsSettings => [Reader, Operator].contains(&who),
        }
    }

    /// Returns the status for somebody who does not have it.
    fn refusal(self, who: Who, method: &str) -> u16 {
        match (who, self) {
            (Who::Forger, _) => 401,
            // Refused before its body is read.
            (Who::Nobody, _) if method != "GET" => 403,
            (_, OfFile) => 404,
            _ => 403,
        }
    }
}

/// Route, its right, and the status of a request that is allowed. The body is in `body_of`.
const TABLE: &[(&str, &str, Right, u16)] = &[
    ("GET", "/", Public, 200),
    ("GET", "/whoami", Asked, 200),
    ("GET", "/api-docs", Public, 200),
    ("GET", "/api-docs/openapi.json", Public, 200),
    ("GET", "/api-docs/schema/submit", Public, 200),
    ("GET", "/status/hosts", Public, 200),
    ("GET", "/optimizer", Public, 200),
    ("GET", "/delegation/{id}", Delegates, 200),
    ("DELETE", "/delegation/{id}", Delegates, 204),
    ("GET", "/delegation/{id}/request", Delegates, 200),
    // The body is no chain of certificates.
    ("PUT", "/delegation/{id}/credential", Delegates, 400),
    ("POST", "/delegation/{id}/credential", Delegates, 400),
    ("GET", "/jobs", HasJobs, 200),
    ("POST", "/jobs", HasJobs, 200),
    ("PUT", "/jobs", HasJobs, 200),
    ("DELETE", "/jobs/all", AllJobs, 200),
    ("DELETE", "/jobs/vo/{vo}", AllJobs, 200),
    ("GET", "/jobs/{ids}", OfJob, 200),
    ("POST", "/jobs/{ids}", OfJob, 200),
    ("DELETE", "/jobs/{ids}", OfJob, 200),
    ("GET", "/jobs/{id}/files", OfJob, 200),
    ("GET", "/jobs/{id}/dm", OfJob, 200),
    ("DELETE", "/jobs/{id}/files/{files}", OfJob, 200),
    ("GET", "/jobs/{id}/files/{file}/retries", OfJob, 200),
    ("GET", "/jobs/{id}/{field}", OfJob, 200),
    ("GET", "/files", HasJobs, 200),
    ("GET", "/archive", HasJobs, 200),
    // The job has not been archived.
    ("GET", "/archive/{id}", HasJobs, 404),
    ("GET", "/archive/{id}/{field}", HasJobs, 404),
    ("GET", "/optimizer/current", ReadsSettings, 200),
    ("POST", "/optimizer/current", ChangesSettings, 200),
    ("GET", "/optimizer/evolution", ReadsSettings, 200),
    ("GET", "/autocomplete/{what}", ReadsSettings, 200),
    ("GET", "/ban/se", ReadsSettings, 200),
    ("POST", "/ban/se", ChangesSettings, 200),
    ("DELETE", "/ban/se", ChangesSettings, 204),
    ("GET", "/ban/dn", ReadsSettings, 200),
    ("POST", "/ban/dn", ChangesSettings, 200),
    ("DELETE", "/ban/dn", ChangesSettings, 204),
    ("GET", "/config", ReadsSettings, 200),
    ("GET", "/config/se", ReadsSettings, 200),
    ("POST", "/config/se", ChangesSettings, 200),
    ("DELETE", "/config/se", ChangesSettings, 204),
    ("GET", "/config/links", ReadsSettings, 200),
    ("POST", "/config/links", ChangesSettings, 201),
    ("GET", "/config/links/{name}", ReadsSettings, 200),
    ("DELETE", "/config/links/{name}", ChangesSettings, 204),
    ("GET", "/config/shares", ReadsSettings, 200),
    ("POST", "/config/shares", ChangesSettings, 200),
    ("DELETE", "/config/shares", ChangesSettings, 204),
    ("GET", "/config/activity_shares", ReadsSettings, 200),
    ("POST", "/config/activity_shares", ChangesSettings, 200),
    ("GET", "/config/activity_shares/{vo}", ReadsSettings, 200),
    ("DELETE", "/config/activity_shares/{vo}", ChangesSettings, 204),
    ("GET", "/config/global", ReadsSettings, 200),
    ("POST", "/config/global", ChangesSettings, 200),
    ("DELETE", "/config/global", ChangesSettings, 204),
    ("GET", "/config/authorize", ReadsSettings, 200),
    ("POST", "/config/authorize", ChangesSettings, 200),
    ("DELETE", "/config/authorize", ChangesSettings, 204),
    ("GET", "/config/audit", ChangesSettings, 200),
    ("POST", "/config/drain", ChangesSettings, 200),
    ("GET", "/api/v1/openapi.json", Public, 200),
    ("GET", "/api/v1/jobs", HasJobs, 200),
    ("POST", "/api/v1/jobs", HasJobs, 201),
    ("GET", "/api/v1/jobs/{id}", OfJob, 200),
    ("PATCH", "/api/v1/jobs/{id}", OfJob, 200),
    ("POST", "/api/v1/jobs/{id}/cancel", OfJob, 200),
    ("GET", "/api/v1/jobs/{id}/files", OfJob, 200),
    ("GET", "/api/v1/files/{number}", OfFile, 200),
    ("POST", "/api/v1/files/{number}/cancel", OfFile, 200),
    ("GET", "/api/v1/changes", HasJobs, 200),
    ("GET", "/api/v1/bans", ReadsSettings, 200),
    ("PUT", "/api/v1/bans/{endpoint}", ChangesSettings, 200),
    ("DELETE", "/api/v1/bans/{endpoint}", ChangesSettings, 204),
    ("GET", "/api/v1/sites", ReadsSettings, 200),
    ("PUT", "/api/v1/sites/{name}", ChangesSettings, 200),
    ("DELETE", "/api/v1/sites/{name}", ChangesSettings, 204),
    ("GET", "/api/v1/paths", ReadsSettings, 200),
    ("GET", "/api/v1/paths/rounds", ReadsSettings, 200),
    ("GET", "/api/v1/config", ReadsSettings, 200),
    ("PATCH", "/api/v1/config/links/{source}/{destination}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/links/{source}/{destination}", ChangesSettings, 204),
    ("PATCH", "/api/v1/config/endpoints/{endpoint}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/endpoints/{endpoint}", ChangesSettings, 204),
    ("PUT", "/api/v1/config/shares/{source}/{destination}/{vo}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/shares/{source}/{destination}/{vo}", ChangesSettings, 204),
    ("PUT", "/api/v1/config/activities/{vo}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/activities/{vo}", ChangesSettings, 204),
    ("PATCH", "/api/v1/config/vos/{vo}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/vos/{vo}", ChangesSettings, 204),
    ("PUT", "/api/v1/config/grants/{operation}/{user}", ChangesSettings, 200),
    ("DELETE", "/api/v1/config/grants/{operation}/{user}", ChangesSettings, 204),
    ("PUT", "/api/v1/config/drain", ChangesSettings, 200),
    ("PUT", "/api/v1/config/service", ChangesSettings, 200),
    ("GET", "/api/v1/config/audit", ChangesSettings, 200),
    ("GET", "/ui", Public, 308),
    ("GET", "/ui/", HasJobs, 200),
];

/// Endpoint of the settings of this test. No job uses it, so that a ban cancels none.
const ENDPOINT: &str = "mock://z.example";

/// Returns a body with which a request can succeed.
fn body_of(method: &str, path: &str) -> Value {
    let file = json!({"sources": ["mock://a.example/x"], "destinations": ["mock://b.example/x?time=600"]});
    match (method, path) {
        ("POST" | "PUT", "/jobs") => json!({"files": [file]}),
        ("POST", "/jobs/{ids}") => json!({"params": {"priority": 5}}),
        ("POST" | "DELETE", "/ban/se") => json!({"storage": ENDPOINT}),
        ("POST", "/ban/dn") => json!({"user_dn": "/CN=x"}),
        ("POST", "/optimizer/current") => json!({"source_se": ENDPOINT, "dest_se": ENDPOINT, "active": 2}),
        ("POST", "/config/se") => json!({ENDPOINT: {"se_info": {"inbound_max_active": 7}}}),
        ("POST", "/config/links") => {
            json!({"source": ENDPOINT, "destination": "*", "symbolicname": "l1", "max_active": 3})
        }
        ("POST", "/config/shares") => json!({"source": ENDPOINT, "destination": "*", "vo": "v", "share": 3}),
        ("POST", "/config/activity_shares") => json!({"vo": "v", "share": {"a": 1}}),
        ("POST", "/config/global") => json!({"vo_name": "v", "retry": 3}),
        ("POST", "/config/authorize") => json!({"dn": "/CN=x", "operation": "config"}),
        ("POST", "/api/v1/jobs") => {
            json!({"files": [{"sources": ["mock://a.example/x"], "destination": "mock://b.example/x?time=600"}]})
        }
        ("PATCH", "/api/v1/jobs/{id}") => json!({"priority": 5}),
        ("PUT", "/api/v1/bans/{endpoint}") => json!({"kind": "wait"}),
        ("PUT", "/api/v1/sites/{name}") => {
            json!({"agents": ["SHA256:PXnRV7Viz07LCS3q+EGKVef/8GfRAaO0qTW3vRXksbU"]})
        }
        ("PATCH", "/api/v1/config/links/{source}/{destination}") => json!({"max": 5}),
        ("PATCH", "/api/v1/config/endpoints/{endpoint}") => json!({"max_in": 5}),
        ("PUT", "/api/v1/config/shares/{source}/{destination}/{vo}") => json!({"weight": 2}),
        ("PUT", "/api/v1/config/activities/{vo}") => json!({"weights": {"a": 1}}),
        ("PATCH", "/api/v1/config/vos/{vo}") => json!({"max": 5}),
        ("POST", "/config/drain") => {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
            json!({"hostname": host.trim(), "drain": false})
        }
        ("PUT", "/api/v1/config/drain") => json!({"is_drained": false}),
        ("PUT", "/api/v1/config/service") => json!({"max": 500}),
        _ => json!({}),
    }
}

/// Returns the query that a request needs.
fn query_of(method: &str, path: &str) -> String {
    let endpoint = encoded(ENDPOINT);
    match (method, path) {
        ("GET", "/api/v1/paths/rounds") => {
            let key = encoded("SHA256:PXnRV7Viz07LCS3q+EGKVef/8GfRAaO0qTW3vRXksbU");
            format!("?agent={key}&peer={key}")
        }
        ("DELETE", "/ban/se") => format!("?storage={endpoint}"),
        ("DELETE", "/ban/dn") => "?user_dn=%2FCN%3Dx".to_owned(),
        ("DELETE", "/config/se") => format!("?se={endpoint}"),
        ("DELETE", "/config/shares") => format!("?source={endpoint}&destination=*&vo=v"),
        ("DELETE", "/config/global") => "?vo_name=v".to_owned(),
        ("DELETE", "/config/authorize") => "?dn=%2FCN%3Dx".to_owned(),
        _ => String::new(),
    }
}

/// Job of the owner, and its file.
struct Target {
    job: String,
    file: u64,
}

fn new_target(people: &People) -> Target {
    let (job, file) = people.job();
    Target { job, file }
}

/// Returns the path of a request of somebody.
fn path_of(people: &People, who: Who, method: &str, template: &str, target: &Target) -> String {
    let mut path = template.to_owned();
    if template.starts_with("/delegation") {
        let whoami = people.send(who, "GET", "/whoami", &Value::Null);
        let own = if whoami.status == 200 { whoami.json()["delegation_id"].clone() } else { Value::Null };
        path = path.replace("{id}", own.as_str().unwrap_or("0123456789abcdef"));
    }
    let endpoint = encoded(ENDPOINT);
    for (name, value) in [
        ("{id}", target.job.as_str()),
        ("{ids}", &target.job),
        ("{number}", &target.file.to_string()),
        ("{file}", &target.file.to_string()),
        ("{files}", &target.file.to_string()),
        ("{field}", "job_state"),
        ("{what}", "vo"),
        ("{vo}", "v"),
        ("{name}", "l1"),
        ("{endpoint}", &endpoint),
        ("{source}", &endpoint),
        ("{destination}", "%2A"),
        ("{operation}", "config"),
        ("{user}", "%2FCN%3Dx"),
    ] {
        path = path.replace(name, value);
    }
    assert!(!path.contains('{'), "{path}: a parameter has no value");
    path + &query_of(method, template)
}

/// Returns all that a request could have changed.
fn state(people: &People, target: &Target) -> Value {
    let of = |path: &str| people.send(Who::Operator, "GET", path, &Value::Null).json();
    let mut job = of(&format!("/api/v1/jobs/{}", target.job));
    // A transfer may start meanwhile.
    job["state"] = json!(job["state"] == "cancelled");
    job["entries"]["active"] = Value::Null;
    let audit = of("/api/v1/config/audit?limit=1");
    json!({"job": job, "config": of("/api/v1/config"), "bans": of("/api/v1/bans"), "users": of("/ban/dn"), "audit": audit})
}

/// Sends the requests of a row: first of those who may not, then of those who may.
fn check(people: &People, target: &mut Target, (method, template, right, allowed): (&str, &str, Right, u16)) {
    let body = body_of(method, template);
    let is_change = [OfJob, OfFile, AllJobs].contains(&right) && method != "GET";
    if is_change {
        // One that has not ended.
        *target = new_target(people);
    }
    let before = state(people, target);
    for who in Who::ALL.into_iter().filter(|who| !right.is_of(*who)) {
        let path = path_of(people, who, method, template, target);
        let reply = people.send(who, method, &path, &body);
        assert_eq!(reply.status, right.refusal(who, method), "{who:?} {method} {path}: {reply:?}");
        let is_page = template.starts_with("/ui");
        assert!(is_page || reply.media == "application/json", "{who:?} {method} {path}: {reply:?}");
        assert!(!reply.body.contains(&target.job) || template.contains("{id"), "{who:?} {path}: {reply:?}");
    }
    assert_eq!(state(people, target), before, "{method} {template}: a refused request has changed something");
    for who in Who::ALL.into_iter().filter(|who| right.is_of(*who)) {
        if is_change {
            *target = new_target(people);
        }
        let path = path_of(people, who, method, template, target);
        let reply = people.send(who, method, &path, &body);
        assert_eq!(reply.status, allowed, "{who:?} {method} {path}: {reply:?}");
    }
}

#[test]
fn everybody_may_do_what_the_table_says_and_nothing_else() {
    let people = People::start(&[]);
    let described: BTreeSet<(String, String)> =
        operations(people.anonymous()).into_iter().map(|(method, path, _)| (method, path)).collect();
    let named: BTreeSet<(String, String)> =
        TABLE.iter().map(|(method, path, ..)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(named, described, "the table and the descriptions differ");
    assert_eq!(named.len(), TABLE.len(), "a route is there twice");
    let mut target = new_target(&people);
    // Requests that end every job come last.
    for is_last in [false, true] {
        for row in TABLE.iter().filter(|(_, _, right, _)| (*right == AllJobs) == is_last) {
            check(&people, &mut target, *row);
        }
    }
}

/// Makes a job look as if it had ended long ago, so that the service archives it.
const AGE_JOB: &str = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1], timeout=60); \
    base.execute('UPDATE jobs SET finished = 1 WHERE id = ?', (sys.argv[2],)); base.commit()";

#[test]
fn an_archived_job_is_seen_by_those_who_saw_it_before() {
    let people = People::start(&[]);
    let (job, file) = people.job();
    assert_eq!(people.send(Who::Owner, "DELETE", &format!("/jobs/{job}"), &Value::Null).status, 200);
    let database = people.serve.state_dir().join("service/sterna.db");
    let aged = std::process::Command::new("python3").args(["-c", AGE_JOB]).arg(database).arg(&job).status();
    assert!(aged.unwrap().success());
    let path = format!("/archive/{job}");
    let is_archived = || people.send(Who::Owner, "GET", &path, &Value::Null).status == 200;
    assert!((0..100_000).any(|_| is_archived()), "the service archives it within a second or two");
    for (path, right) in [
        (path.clone(), OfJob),
        (format!("{path}/job_state"), OfJob),
        (format!("/api/v1/jobs/{job}"), OfJob),
        (format!("/api/v1/jobs/{job}/files"), OfJob),
        (format!("/api/v1/files/{file}"), OfFile),
    ] {
        for who in Who::ALL {
            let reply = people.send(who, "GET", &path, &Value::Null);
            let expected = if right.is_of(who) { 200 } else { right.refusal(who, "GET") };
            assert_eq!(reply.status, expected, "{who:?} {path}: {reply:?}");
        }
    }
    let of_owner = |path: String| people.send(Who::Owner, "GET", &path, &Value::Null).json();
    let shown = of_owner(format!("/api/v1/jobs/{job}"));
    assert_eq!((&shown["is_archived"], &shown["state"]), (&true.into(), &"cancelled".into()), "{shown}");
    assert_eq!(of_owner(format!("/api/v1/jobs/{job}/files"))["files"][0]["number"], file);
    // A job in the archive is the cursor of a page still.
    let page = of_owner(format!("/api/v1/jobs?before={job}"));
    assert_eq!((&page["jobs"], &page["next"]), (&json!([]), &Value::Null), "{page}");
}

#[test]
fn lists_have_only_the_jobs_that_somebody_may_see() {
    let people = People::start(&[]);
    let (job, _) = people.job();
    for path in ["/jobs", "/files", "/api/v1/jobs", "/api/v1/changes", "/ui/", &format!("/files?job_id={job}")] {
        for who in Who::ALL {
            let reply = people.send(who, "GET", path, &Value::Null);
            let is_seen = reply.body.contains(&job);
            assert_eq!(is_seen, OfJob.is_of(who), "{who:?} {path}: {reply:?}");
        }
    }
}

/// A grant of an operator counts at once, and no longer than it is there.
#[test]
fn a_grant_gives_an_operation_until_it_is_taken_back() {
    let people = People::start(&[]);
    let grant = format!("/api/v1/config/grants/config/{}", encoded("https://beta.example alice"));
    let may = |who| people.send(who, "GET", "/api/v1/config", &Value::Null).status;
    assert_eq!(may(Who::Stranger), 403);
    assert_eq!(people.send(Who::Stranger, "PUT", &grant, &Value::Null).status, 403, "nobody grants to themselves");
    assert_eq!(people.send(Who::Operator, "PUT", &grant, &Value::Null).status, 200);
    assert_eq!((may(Who::Stranger), may(Who::Owner)), (200, 403), "the owner has the same subject at another issuer");
    assert_eq!(people.send(Who::Operator, "DELETE", &grant, &Value::Null).status, 204);
    assert_eq!(may(Who::Stranger), 403);
    assert_eq!(people.send(Who::Operator, "DELETE", &grant, &Value::Null).status, 404);
}
