//! Replies compared with those of the FTS3 server: `fts3_replies.json` has the requests, statuses and shapes that were
//! recorded from it, with the texts that clients look for.
//!
//! A shape names the type of each value: `text`, `number`, `flag`, `null`, `any`, or `=` and the text itself. A list
//! with one shape has any number of such elements. `differs` and `here` have what this service does otherwise on
//! purpose, each with its reason, which `docs/fts3.md` names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::client::Serve;
use crate::http::{Http, Reply};

/// Names that requests use, with their values.
type Names = BTreeMap<String, String>;

fn filled(text: &str, names: &Names) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// Compares a value with a shape. Adds the differences, each with its place.
fn compare(shape: &Value, value: &Value, at: &str, names: &Names, found: &mut Vec<String>) {
    match (shape, value) {
        (Value::Object(shapes), Value::Object(values)) => {
            let keys = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
            let (expected, there) = (keys(shapes), keys(values));
            found.extend(expected.difference(&there).map(|key| format!("{at}/{key} is missing")));
            found.extend(there.difference(&expected).map(|key| format!("{at}/{key} is too much")));
            for key in expected.intersection(&there) {
                compare(&shapes[key], &values[key], &format!("{at}/{key}"), names, found);
            }
        }
        (Value::Array(shapes), Value::Array(values)) if shapes.len() == 1 => {
            for value in values {
                compare(&shapes[0], value, &format!("{at}/0"), names, found);
            }
        }
        (Value::Array(shapes), Value::Array(values)) if shapes.len() == values.len() => {
            for (index, (shape, value)) in shapes.iter().zip(values).enumerate() {
                compare(shape, value, &format!("{at}/{index}"), names, found);
            }
        }
        (Value::String(kind), value) => {
            let is_right = match kind.as_str() {
                "any" => true,
                "text" => value.is_string(),
                "number" => value.is_number(),
                "flag" => value.is_boolean(),
                "null" => value.is_null(),
                text => text.strip_prefix('=').is_some_and(|text| *value == filled(text, names)),
            };
            if !is_right {
                found.push(format!("{at}: {value} instead of {kind}"));
            }
        }
        _ => found.push(format!("{at}: {value} instead of {shape}")),
    }
}

/// Replaces the shapes at some places of a reply. Returns the reasons.
fn with_differences(step: &Value, shape: &mut Value) -> Vec<String> {
    let mut reasons = Vec::new();
    let differs = step["differs"].as_object().into_iter().flatten();
    for (place, difference) in differs.filter(|(place, _)| *place != "media") {
        match shape.pointer_mut(place) {
            Some(at) => *at = difference[0].clone(),
            None => panic!("{}: there is no {place} in {shape}", step["request"]),
        }
        reasons.push(difference[1].as_str().unwrap().to_owned());
    }
    reasons.extend(step["differs"]["media"][1].as_str().map(str::to_owned));
    reasons.extend(step["here"]["status"][1].as_str().map(str::to_owned));
    reasons
}

/// Keeps a value of a reply under the name that later requests use.
fn save(step: &Value, reply: &Reply, names: &mut Names) {
    let Some(name) = step["saves"].as_str() else { return };
    let json = reply.json();
    let value = match name {
        "credential" => json["delegation_id"].as_str().map(str::to_owned),
        "file" => json[0]["file_id"].as_u64().map(|number| number.to_string()),
        _ => json["job_id"].as_str().map(str::to_owned),
    };
    names.insert(name.to_owned(), value.unwrap_or_else(|| panic!("{name}: {reply:?}")));
}

/// Sends the request of a step, and returns the differences.
fn run(step: &Value, user: &Http, nobody: &Http, names: &mut Names) -> Vec<String> {
    let request = filled(step["request"].as_str().unwrap(), names);
    let (method, path) = request.split_once(' ').unwrap();
    let body = match (&step["raw"], &step["body"]) {
        (Value::String(raw), _) => raw.clone(),
        (_, Value::Null) => String::new(),
        (_, body) => body.to_string(),
    };
    let http = if step["as"] == "nobody" { nobody } else { user };
    let reply = http.send(method, path, None, body.as_bytes());
    let mut found = Vec::new();
    let status = step["here"]["status"].get(0).unwrap_or(&step["status"]);
    if *status != reply.status {
        found.push(format!("status {} instead of {status}: {}", reply.status, reply.body));
    }
    let media = step["differs"]["media"][0].as_str().unwrap_or("application/json");
    if !reply.body.is_empty() && reply.media != media {
        found.push(format!("media type {}", reply.media));
    }
    let mut shape = step["reply"].clone();
    with_differences(step, &mut shape);
    if !shape.is_null() {
        compare(&shape, &reply.json(), "", names, &mut found);
    }
    save(step, &reply, names);
    found.iter().map(|difference| format!("{request}: {difference}")).collect()
}

fn steps() -> Vec<Value> {
    serde_json::from_str(include_str!("fts3_replies.json")).unwrap()
}

#[test]
fn replies_have_the_shapes_of_those_of_fts3() {
    let serve = Serve::start();
    let user = serve.http();
    let nobody = Http::new(serve.url(), Path::new(serve.capath()), None);
    // Nothing starts, as at the server that was recorded.
    let drained = user.send("PUT", "/api/v1/config/drain", None, json!({"is_drained": true}).to_string().as_bytes());
    assert_eq!(drained.status, 200, "{drained:?}");
    let mut names = Names::new();
    let whoami = user.send("GET", "/whoami", None, b"").json();
    names.insert("credential".to_owned(), whoami["delegation_id"].as_str().unwrap().to_owned());
    let found: Vec<String> = steps().iter().flat_map(|step| run(step, &user, &nobody, &mut names)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    // Every link of the first reply leads somewhere.
    let index = user.send("GET", "/", None, b"").json();
    for (name, link) in index["_links"].as_object().unwrap() {
        let href = link["href"].as_str().unwrap_or_default();
        if href.is_empty() || link["templated"] == true {
            continue;
        }
        assert_eq!(user.send("GET", href, None, b"").status, 200, "{name}: {href}");
    }
}

#[test]
fn every_difference_on_purpose_is_in_the_page_with_its_reason() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fts3.md");
    // Lines of the page break anywhere.
    let page = std::fs::read_to_string(page).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut count = 0;
    for step in steps() {
        let mut shape = step["reply"].clone();
        for reason in with_differences(&step, &mut shape) {
            assert!(page.contains(&reason), "docs/fts3.md does not have: {reason}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} differences");
}

#[test]
fn a_shape_finds_what_is_missing_too_much_or_of_another_type() {
    let names = Names::from([("job".to_owned(), "7".to_owned())]);
    let differences = |shape: Value, value: Value| {
        let mut found = Vec::new();
        compare(&shape, &value, "", &names, &mut found);
        found
    };
    assert!(differences(json!({"a": "number", "b": ["text"]}), json!({"a": 1, "b": ["x", "y"]})).is_empty());
    assert!(differences(json!("=job {job}"), json!("job 7")).is_empty());
    for (shape, value) in [
        (json!({"a": "number"}), json!({})),
        (json!({}), json!({"a": 1})),
        (json!({"a": "number"}), json!({"a": "1"})),
        (json!({"a": "null"}), json!({"a": 0})),
        (json!(["text"]), json!([1])),
        (json!([]), json!([1])),
        (json!(["text", "number"]), json!(["x"])),
        (json!("=x"), json!("y")),
        (json!("text"), json!(null)),
        (json!({}), json!([])),
    ] {
        assert_eq!(differences(shape.clone(), value.clone()).len(), 1, "{shape} {value}");
    }
}
