//! `sterna config`: settings that the scheduler of a service follows.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::api::native::config_types::{
    ActivitiesView, AuditLog, ConfigView, Drain, EndpointView, GrantView, LinkView, ServiceLimit, ShareView, VoView,
};
use sterna_service::api::native::types::{SiteList, SiteView};

use super::client::{Answer, Client, encoded};
use super::table::{Table, json_line, utc};
use crate::flags::config::{
    ActivitiesFlags, AuditFlags, Change, ConfigFlags, DrainState, EndpointFlags, GrantFlags, LinkFlags, OrDefault,
    ServiceLimitFlags, ShareFlags, SiteFlags, VoFlags,
};
use crate::flags::service::name_of;
use crate::output::{print_line, say};

/// Beginning of the paths of settings.
const CONFIG: &str = "/api/v1/config";

/// Path of sites.
const SITES: &str = "/api/v1/sites";

/// Seconds of an hour.
const HOUR_S: u64 = 3600;

/// Shows the settings, or changes one. Returns the exit code.
pub fn run(flags: &ConfigFlags) -> Result<u8, Error> {
    let run = Run { client: Client::new(&flags.service)?, json: flags.service.json };
    match &flags.change {
        None => run.show_all()?,
        Some(Change::Service(flags)) => run.service(flags)?,
        Some(Change::Link(flags)) => run.link(flags)?,
        Some(Change::Endpoint(flags)) => run.endpoint(flags)?,
        Some(Change::Share(flags)) => run.share(flags)?,
        Some(Change::Activities(flags)) => run.activities(flags)?,
        Some(Change::Vo(flags)) => run.vo(flags)?,
        Some(Change::Grant(flags)) => run.grant(flags)?,
        Some(Change::Site(flags)) => run.site(flags)?,
        Some(Change::Drain(flags)) => run.drain(flags.drained)?,
        Some(Change::Audit(flags)) => run.audit(flags)?,
    }
    Ok(0)
}

/// Run of the command.
struct Run {
    client: Client,
    json: bool,
}

impl Run {
    /// Prints a reply: as it came, or in words.
    fn print<T>(&self, answer: &Answer<T>, in_words: impl Fn(&T) -> String) -> Result<(), Error> {
        let text = if self.json { json_line(&answer.json) } else { in_words(&answer.value) };
        print_line(text.as_bytes())
    }

    /// Removes a setting.
    fn remove(&self, path: &str, what: &str) -> Result<(), Error> {
        self.client.remove(path)?;
        say(&format!("{what}: the settings are removed"));
        Ok(())
    }

    fn show_all(&self) -> Result<(), Error> {
        let answer = self.client.get::<ConfigView>(CONFIG)?;
        self.print(&answer, in_words)
    }

    fn site(&self, flags: &SiteFlags) -> Result<(), Error> {
        let all = self.client.get::<SiteList>(SITES)?;
        let Some(name) = &flags.site else { return self.print(&all, |all| sites(&all.sites)) };
        let path = format!("{SITES}/{}", encoded(name));
        if flags.remove {
            return self.remove(&path, &format!("the site {name}"));
        }
        let known = all.value.sites.into_iter().find(|site| site.name == *name);
        let answer = match (changed_site(known.clone(), flags), known) {
            (Some(changed), _) => self.client.put::<SiteView>(&path, Some(&changed))?,
            (None, Some(site)) => {
                let json = serde_json::to_value(&site).unwrap_or_default();
                Answer { value: site, json }
            }
            (None, None) => {
                let text = format!("there is no site {name}: `sterna config site {name} --add FINGERPRINT` makes it");
                return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text));
            }
        };
        self.print(&answer, |site| sites(std::slice::from_ref(site)))
    }

    fn service(&self, flags: &ServiceLimitFlags) -> Result<(), Error> {
        let limit = json!({"max": flags.max.and_then(|max| max.0)});
        let answer = self.client.put::<ServiceLimit>(&format!("{CONFIG}/service"), Some(&limit))?;
        self.print(&answer, |limit| format!("transfers of the service: {}", or_default(limit.max)))
    }

    fn link(&self, flags: &LinkFlags) -> Result<(), Error> {
        let (source, destination) = (encoded(&flags.source), encoded(&flags.destination));
        let path = format!("{CONFIG}/links/{source}/{destination}");
        if flags.remove {
            return self.remove(&path, &format!("the link from {} to {}", flags.source, flags.destination));
        }
        let mut change = Map::new();
        add_number(&mut change, "max", flags.max);
        let answer = self.client.patch::<LinkView>(&path, &change.into())?;
        self.print(&answer, |link| links(std::slice::from_ref(link)))
    }

    fn endpoint(&self, flags: &EndpointFlags) -> Result<(), Error> {
        let path = format!("{CONFIG}/endpoints/{}", encoded(&flags.endpoint));
        if flags.remove {
            return self.remove(&path, &format!("the endpoint {}", flags.endpoint));
        }
        let mut change = Map::new();
        add_number(&mut change, "max_in", flags.max_in);
        add_number(&mut change, "max_out", flags.max_out);
        let answer = self.client.patch::<EndpointView>(&path, &change.into())?;
        self.print(&answer, |endpoint| endpoints(std::slice::from_ref(endpoint)))
    }

    fn share(&self, flags: &ShareFlags) -> Result<(), Error> {
        let (source, destination) = (encoded(&flags.source), encoded(&flags.destination));
        let path = format!("{CONFIG}/shares/{source}/{destination}/{}", encoded(&flags.vo));
        let Some(weight) = flags.weight else {
            return self.remove(&path, &format!("the share of {}", flags.vo));
        };
        let new = json!({"weight": weight, "guarantee": flags.guarantee.unwrap_or(0.0)});
        let answer = self.client.put::<ShareView>(&path, Some(&new))?;
        self.print(&answer, |share| shares(std::slice::from_ref(share)))
    }

    fn activities(&self, flags: &ActivitiesFlags) -> Result<(), Error> {
        let path = format!("{CONFIG}/activities/{}", encoded(&flags.vo));
        if flags.remove {
            return self.remove(&path, &format!("the activities of {}", flags.vo));
        }
        let by_name = |values: &[(String, f64)]| -> Map<String, Value> {
            values.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
        };
        let (weights, guarantees) = (by_name(&flags.weights), by_name(&flags.guarantees));
        let new = json!({"weights": weights, "guarantees": guarantees, "is_followed": !flags.ignored});
        let answer = self.client.put::<ActivitiesView>(&path, Some(&new))?;
        self.print(&answer, |one| activities(std::slice::from_ref(one)))
    }

    fn vo(&self, flags: &VoFlags) -> Result<(), Error> {
        let path = format!("{CONFIG}/vos/{}", encoded(&flags.vo));
        if flags.remove {
            return self.remove(&path, &format!("the virtual organisation {}", flags.vo));
        }
        let answer = self.client.patch::<VoView>(&path, &vo_change(flags)?)?;
        self.print(&answer, |vo| vos(std::slice::from_ref(vo)))
    }

    fn grant(&self, flags: &GrantFlags) -> Result<(), Error> {
        let operation = name_of(flags.operation);
        let path = format!("{CONFIG}/grants/{operation}/{}", encoded(&flags.user));
        if flags.remove {
            return self.remove(&path, &format!("{operation} of {}", flags.user));
        }
        let answer = self.client.put::<GrantView>(&path, None)?;
        self.print(&answer, |grant| grants(std::slice::from_ref(grant)))
    }

    fn drain(&self, state: DrainState) -> Result<(), Error> {
        let drain = json!({"is_drained": state == DrainState::On});
        let answer = self.client.put::<Drain>(&format!("{CONFIG}/drain"), Some(&drain))?;
        self.print(&answer, |drain| drained(drain.is_drained).to_owned())
    }

    fn audit(&self, flags: &AuditFlags) -> Result<(), Error> {
        let answer = self.client.get::<AuditLog>(&format!("{CONFIG}/audit?limit={}", flags.limit))?;
        self.print(&answer, |log| {
            let mut table = Table::new(&["time", "by", "action", "value"], 0..0);
            for entry in &log.entries {
                let (by, action) = (entry.by.clone(), entry.action.clone());
                table.add(vec![utc(entry.at_ms), by, action, entry.value.clone()]);
            }
            table.text()
        })
    }
}

/// Adds a number to a change; the default of the service is null.
fn add_number(change: &mut Map<String, Value>, name: &str, number: Option<OrDefault<u32>>) {
    if let Some(OrDefault(number)) = number {
        change.insert(name.to_owned(), number.map_or(Value::Null, Value::from));
    }
}

/// Returns the change that the flags of a virtual organisation give. Errors: `Usage`, for a time that the service
/// cannot keep.
fn vo_change(flags: &VoFlags) -> Result<Value, Error> {
    let usage = |text: &str| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
    let mut change = Map::new();
    add_number(&mut change, "retries", flags.retries);
    add_number(&mut change, "max", flags.max);
    if let Some(OrDefault(time)) = flags.queue_time {
        let is_whole = time.is_none_or(|time| time.as_secs() >= HOUR_S && time.as_millis() % 3_600_000 == 0);
        if !is_whole {
            return Err(usage("--queue-time: expected whole hours, such as 72h"));
        }
        change.insert("queue_time_s".to_owned(), time.map_or(Value::Null, |time| time.as_secs().into()));
    }
    if let Some(OrDefault(time)) = flags.timeout {
        let is_whole = time.is_none_or(|time| time.as_secs() >= 1 && time.subsec_nanos() == 0);
        if !is_whole {
            return Err(usage("--timeout: expected whole seconds, such as 600s"));
        }
        change.insert("timeout_s".to_owned(), time.map_or(Value::Null, |time| time.as_secs().into()));
    }
    if let Some(order) = flags.order {
        change.insert("order".to_owned(), name_of(order).into());
    }
    Ok(change.into())
}

fn drained(is_drained: bool) -> &'static str {
    if is_drained { "no transfer starts: the host is drained" } else { "transfers start" }
}

/// Returns all settings as tables. Kinds without settings are left out.
fn in_words(config: &ConfigView) -> String {
    let defaults = &config.defaults;
    let mut tables = vec![format!(
        "host {}: {}\ntransfers of the service: {}\n\
         limits without a setting: {} transfers in all, {} on a link, {} to an endpoint, {} from an endpoint",
        plain(&config.host),
        drained(config.is_drained),
        or_default(config.max),
        defaults.service_max,
        defaults.link_max,
        defaults.endpoint_max_in,
        defaults.endpoint_max_out
    )];
    let mut add = |is_there: bool, title: &str, table: String| {
        if is_there {
            tables.push(format!("{title}\n{table}"));
        }
    };
    add(!config.links.is_empty(), "LINKS", links(&config.links));
    add(!config.endpoints.is_empty(), "ENDPOINTS", endpoints(&config.endpoints));
    add(!config.shares.is_empty(), "SHARES", shares(&config.shares));
    add(!config.activities.is_empty(), "ACTIVITIES", activities(&config.activities));
    add(!config.vos.is_empty(), "VIRTUAL ORGANISATIONS", vos(&config.vos));
    add(!config.grants.is_empty(), "GRANTS", grants(&config.grants));
    tables.join("\n\n")
}

/// Returns a number in words.
fn or_default<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| "default".to_owned(), |number| number.to_string())
}

/// Returns a site after the changes of flags; `None`: they change nothing.
fn changed_site(known: Option<SiteView>, flags: &SiteFlags) -> Option<Value> {
    let (mut agents, mut access) = known.map_or_else(Default::default, |site| {
        let agents: Vec<String> = site.agents.into_iter().map(|agent| agent.agent).collect();
        (agents, site.access)
    });
    let has_changes = [flags.add.len(), flags.drop.len(), flags.allow.len(), flags.disallow.len()];
    if has_changes == [0; 4] {
        return None;
    }
    agents.retain(|agent| flags.drop.iter().all(|dropped| dropped.to_string() != *agent));
    agents.extend(flags.add.iter().map(ToString::to_string));
    access.retain(|access| !flags.disallow.contains(&access.vo));
    // A right to the same directory is replaced.
    access.retain(|old| flags.allow.iter().all(|new| (&new.vo, &new.path) != (&old.vo, &old.path)));
    access.extend(flags.allow.iter().cloned());
    Some(json!({ "agents": agents, "access": access }))
}

/// Returns sites with their agents and rights in words.
fn sites(sites: &[SiteView]) -> String {
    if sites.is_empty() {
        return "no sites: `sterna config site NAME --add FINGERPRINT` adds one".to_owned();
    }
    let mut table = Table::new(&["site", "agent", "connected", "transfers", "address", "release"], 3..4);
    for site in sites {
        for agent in &site.agents {
            table.add(vec![
                site.name.clone(),
                agent.agent.clone(),
                if agent.is_connected { "yes" } else { "no" }.to_owned(),
                agent.transfers.to_string(),
                agent.address.clone().unwrap_or_else(|| "-".to_owned()),
                agent.release.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    let mut rights = Table::new(&["site", "vo", "right", "directory"], 0..0);
    let of_sites = sites.iter().flat_map(|site| site.access.iter().map(move |access| (site, access)));
    let mut has_rights = false;
    for (site, access) in of_sites {
        has_rights = true;
        let path = if access.path.is_empty() { "all" } else { &access.path };
        rights.add(vec![site.name.clone(), access.vo.clone(), access.right.clone(), path.to_owned()]);
    }
    if has_rights { format!("{}\n\n{}", table.text(), rights.text()) } else { table.text() }
}

fn links(links: &[LinkView]) -> String {
    let mut table = Table::new(&["source", "destination", "max"], 2..3);
    for link in links {
        table.add(vec![link.source.clone(), link.destination.clone(), or_default(link.max)]);
    }
    table.text()
}

fn endpoints(endpoints: &[EndpointView]) -> String {
    let mut table = Table::new(&["endpoint", "in", "out"], 1..3);
    for endpoint in endpoints {
        table.add(vec![endpoint.endpoint.clone(), or_default(endpoint.max_in), or_default(endpoint.max_out)]);
    }
    table.text()
}

fn shares(shares: &[ShareView]) -> String {
    let mut table = Table::new(&["weight", "guarantee", "vo", "source", "destination"], 0..2);
    for share in shares {
        let (source, destination) = (share.source.clone(), share.destination.clone());
        let guarantee = share.guarantee.to_string();
        table.add(vec![share.weight.to_string(), guarantee, share.vo.clone(), source, destination]);
    }
    table.text()
}

fn activities(activities: &[ActivitiesView]) -> String {
    let mut table = Table::new(&["vo", "followed", "weights", "guarantees"], 0..0);
    for one in activities {
        let pairs = |values: &BTreeMap<String, f64>| {
            let pairs: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            if pairs.is_empty() { "-".to_owned() } else { pairs.join(" ") }
        };
        let followed = if one.is_followed { "yes" } else { "no" };
        table.add(vec![one.vo.clone(), followed.to_owned(), pairs(&one.weights), pairs(&one.guarantees)]);
    }
    table.text()
}

fn vos(vos: &[VoView]) -> String {
    let mut table = Table::new(&["vo", "order", "max", "retries", "queue time", "timeout"], 2..6);
    for vo in vos {
        let hours = vo.queue_time_s.map(|seconds| format!("{}h", seconds / HOUR_S));
        let timeout = vo.timeout_s.map(|seconds| format!("{seconds}s"));
        table.add(vec![
            vo.vo.clone(),
            vo.order.clone(),
            or_default(vo.max),
            or_default(vo.retries),
            or_default(hours),
            or_default(timeout),
        ]);
    }
    table.text()
}

fn grants(grants: &[GrantView]) -> String {
    let mut table = Table::new(&["operation", "user"], 0..0);
    for grant in grants {
        table.add(vec![grant.operation.clone(), grant.user.clone()]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Command, Flags};

    fn config(arguments: &[&str]) -> Result<ConfigFlags, clap::Error> {
        let words = ["sterna", "config"].into_iter().chain(arguments.iter().copied());
        match Flags::try_parse_from(words)?.command {
            Command::Config(flags) => Ok(*flags),
            _ => unreachable!("the command is config"),
        }
    }

    fn vo(arguments: &[&str]) -> Result<Value, Error> {
        match config(arguments).unwrap().change {
            Some(Change::Vo(flags)) => vo_change(&flags),
            _ => unreachable!("the setting is that of a vo"),
        }
    }

    #[test]
    fn flags_of_a_vo_become_a_change_of_the_fields_that_are_given() {
        let all = ["vo", "x", "--retries=3", "--queue-time=72h", "--timeout=600s", "--max=5", "--order=submission"];
        let expected =
            json!({"retries": 3, "queue_time_s": 259_200, "timeout_s": 600, "max": 5, "order": "submission"});
        assert_eq!(vo(&all).unwrap(), expected);
        assert_eq!(vo(&["vo", "x", "--queue-time=default"]).unwrap(), json!({"queue_time_s": null}));
        for wrong in ["--queue-time=90min", "--queue-time=0h", "--timeout=500ms"] {
            assert_eq!(vo(&["vo", "x", wrong]).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn a_setting_without_a_change_is_wrong_usage_and_flags_of_the_service_come_anywhere() {
        for wrong in [
            &["link", "a", "b"][..],
            &["link", "a", "--max", "1"],
            &["link", "a", "b", "--max", "1", "--remove"],
            &["endpoint", "a"],
            &["endpoint", "a", "--in", "1", "--remove"],
            &["share", "vo"],
            &["share", "vo", "1", "--remove"],
            &["share", "vo", "1", "--guarantee", "1.1"],
            &["share", "vo", "--remove", "--guarantee", "0.1"],
            &["activities", "vo"],
            &["activities", "vo", "--guarantee", "a=0.1"],
            &["vo", "x"],
            &["grant", "u", "everything"],
            &["drain"],
        ] {
            assert!(config(wrong).is_err(), "{wrong:?}");
        }
        for right in
            [&["--json"][..], &["drain", "on", "--json"], &["--json", "endpoint", "a", "--in", "1", "--out", "2"]]
        {
            assert!(config(right).unwrap().service.json, "{right:?}");
        }
    }

    #[test]
    fn settings_are_shown_in_tables_that_drive_no_terminal() {
        let config = ConfigView {
            host: "fts".to_owned(),
            is_drained: true,
            defaults: sterna_service::api::native::config_types::DefaultLimits {
                service_max: 10_000,
                link_max: 66,
                endpoint_max_in: 200,
                endpoint_max_out: 200,
            },
            max: None,
            links: vec![LinkView { source: "*".to_owned(), destination: "x\u{1b}".to_owned(), max: Some(5) }],
            endpoints: Vec::new(),
            shares: Vec::new(),
            activities: Vec::new(),
            vos: vec![VoView {
                vo: "m".to_owned(),
                retries: None,
                queue_time_s: Some(7200),
                timeout_s: None,
                max: None,
                order: "submission".to_owned(),
            }],
            grants: Vec::new(),
        };
        let shown = in_words(&config);
        assert!(shown.starts_with("host fts: no transfer starts: the host is drained\ntransfers"), "{shown}");
        assert!(shown.contains("LINKS\n") && shown.contains("x\\u{1b}") && !shown.contains("ENDPOINTS"), "{shown}");
        let row: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["m", "submission", "default", "default", "2h", "default"]);
    }
}
