//! Secrets: tokens and keys are in no log and no reply, and those of callers in no database.

use serde_json::{Value, json};

use crate::people::{People, Who};

/// Returns the bytes of all files of the database.
fn database(people: &People) -> Vec<u8> {
    let directory = people.serve.state_dir().join("service");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

#[test]
fn tokens_and_keys_are_in_no_log_no_reply_and_no_database() {
    let people = People::start(&["--log-level", "debug"]);
    let mut replies = String::new();
    let mut send = |who, method: &str, path: &str, body: &Value| {
        let reply = people.send(who, method, path, body);
        replies.push_str(&reply.body);
        reply.status
    };
    // Tokens of storages, as clients of FTS3 send them, and credentials where none belong.
    let (source, destination) = ("source-token-0123456789abcdef", "destination-token-0123456789abcdef");
    let job = json!({
        "files": [{
            "sources": ["mock://a.example/f?errno=2"], "destinations": ["mock://b.example/f"],
            "source_tokens": [source], "destination_tokens": [destination],
        }],
        "params": {"credential": source, "retry": -1},
    });
    assert_eq!(send(Who::Owner, "POST", "/jobs", &job), 200);
    for who in [Who::Owner, Who::Forger, Who::Powerless, Who::Operator] {
        for path in ["/whoami", "/jobs", "/files", "/config/audit", "/api/v1/jobs", "/api/v1/config", "/ui/", "/nosuch"]
        {
            send(who, "GET", path, &Value::Null);
        }
        send(who, "POST", "/jobs", &json!({"files": 7}));
        send(who, "PUT", "/api/v1/config/drain", &json!({"is_drained": false}));
    }
    let mut secrets: Vec<String> = vec![source.to_owned(), destination.to_owned()];
    for who in Who::ALL {
        // The claims of a token are no secret; its signature is.
        secrets.extend(people.token(who).and_then(|token| token.rsplit('.').next()).map(|part| part[..40].to_owned()));
    }
    let (_, key) = people.serve.pair();
    let key = std::fs::read_to_string(key).unwrap();
    secrets.extend(key.lines().nth(1).map(str::to_owned));
    assert!(secrets.len() >= 9, "{secrets:?}");
    let (log, database) = (people.serve.log(), database(&people));
    assert!(log.contains("GET /whoami") && contains(&database, "mock://a.example/f?errno=2"), "{log}");
    for secret in &secrets {
        assert!(!log.contains(secret), "the log has {secret}");
        assert!(!replies.contains(secret), "a reply has {secret}");
    }
    // Tokens of storages are kept for a transfer while its job runs, in a directory of the user of the service alone.
    for secret in secrets.iter().filter(|secret| ![source, destination].contains(&secret.as_str())) {
        assert!(!contains(&database, secret), "the database has {secret}");
    }
}
