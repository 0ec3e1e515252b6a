//! `sterna ban`: bans of endpoints at a service.

use sterna_proto::Error;
use sterna_service::api::native::types::BanList;

use super::client::Client;
use super::table::{Table, json_line, utc};
use crate::flags::service::BanFlags;
use crate::output::{print_line, say};

/// Bans an endpoint, lists the bans, or lifts one. Returns the exit code.
pub fn run(flags: &BanFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    if let Some(endpoint) = &flags.lift {
        client.lift(endpoint)?;
        say(&format!("the ban of {endpoint} is lifted"));
    } else if let Some(endpoint) = &flags.endpoint {
        ban(&client, flags, endpoint)?;
    } else {
        list(&client, flags.service.json)?;
    }
    Ok(0)
}

/// Bans an endpoint, and prints the jobs that it concerns.
fn ban(client: &Client, flags: &BanFlags, endpoint: &str) -> Result<(), Error> {
    let kind = if flags.wait { "wait" } else { "cancel" };
    let message = flags.message.as_deref().unwrap_or_default();
    let answer = client.ban(endpoint, &serde_json::json!({"kind": kind, "message": message}))?;
    if flags.service.json {
        return print_line(json_line(&answer.json).as_bytes());
    }
    let banned = &answer.value;
    let jobs = banned.jobs.len();
    let effect = if flags.wait { "its files wait until the ban is lifted" } else { "its files are cancelled" };
    let affected = match jobs {
        0 => "no job had any".to_owned(),
        1 => "1 job had some".to_owned(),
        _ => format!("{jobs} jobs had some"),
    };
    say(&format!("{} is banned: {effect}; {affected}", banned.endpoint));
    banned.jobs.iter().try_for_each(|job| print_line(job.to_string().as_bytes()))
}

fn list(client: &Client, json: bool) -> Result<(), Error> {
    let answer = client.get::<BanList>("/api/v1/bans")?;
    if json {
        return print_line(json_line(&answer.json).as_bytes());
    }
    let mut table = Table::new(&["endpoint", "kind", "since", "by", "message"], 0..0);
    for ban in answer.value.bans {
        table.add(vec![ban.endpoint, ban.kind, utc(ban.at_ms), ban.by, ban.message]);
    }
    print_line(table.text().as_bytes())
}
