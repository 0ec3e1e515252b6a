//! Commands of operators: limits, shares, bans and defaults, each with its entry in the audit log.
//!
//! Settings are documents in the store; [`Service::apply_settings`] turns them into the limits and shares of the
//! scheduler. Refuses to know the spelling of an interface.

use std::collections::BTreeMap;

use serde_json::Value;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::settings::{ANY, EndpointLimits, Limits, Name, Shares};
use sterna_sched::share::Share;
use sterna_sched::state::FileState;
use uuid::Uuid;

use crate::caller::{Caller, Level, Operation};
use crate::endpoint::{AGENTS, endpoint_of, site_of};
use crate::job::{File, NewFile};
use crate::service::{Service, link_of, now};
use crate::settings::{
    ActivitySettings, Applied, Ban, BanKind, EndpointSettings, Grant, LinkSettings, ServiceSettings, ShareSettings,
    UserBan, VoSettings, WEIGHT_MAX, kind, read,
};
use crate::site::{SiteRight, SiteSettings};
use crate::store::{Audit, FileFilter, JobFilter, Setting};

/// Maximum bytes of a setting. Reason: names and numbers; a larger one is a mistake.
const SETTING_BYTES_MAX: usize = 64 << 10;

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

fn count(value: Option<u32>) -> Option<usize> {
    value.and_then(|value| usize::try_from(value).ok())
}

impl Service {
    /// Stores a setting (`None` removes it), and applies all. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`; `Usage`, when it is too large.
    pub async fn set(
        &self,
        caller: &Caller,
        kind: &str,
        name: &str,
        value: Option<Value>,
        action: &str,
    ) -> Result<(), Error> {
        self.amend(caller, kind, name, action, |_| Ok(value)).await
    }

    /// Changes a setting: `change` gets its value (`None`: there is none), and returns the new one (`None` removes it).
    /// Changes of several operators follow each other. Needs the level `all` of `config`.
    ///
    /// Errors: those of `change`; `Denied`; `Usage`, when the setting is too large.
    pub async fn amend(
        &self,
        caller: &Caller,
        kind: &str,
        name: &str,
        action: &str,
        change: impl FnOnce(Option<Value>) -> Result<Option<Value>, Error>,
    ) -> Result<(), Error> {
        caller.check_level(Operation::Config, Level::All)?;
        let _turn = self.operator_turn().await;
        let known = self.store().settings(kind).await?.into_iter().find(|setting| setting.name == name);
        let value = change(known.map(|setting| setting.value))?;
        self.store_setting(caller, kind, name, value, action).await?;
        self.apply_stored().await
    }

    /// Changes the settings of a link under every name that it has, or under that of its endpoints if it has none:
    /// `change` gets each, and returns the new one (`None` removes it). Needs the level `all` of `config`.
    ///
    /// Errors: those of `change`; `Denied`.
    pub async fn amend_link(
        &self,
        caller: &Caller,
        (source, destination): (&str, &str),
        action: &str,
        change: impl Fn(Option<LinkSettings>) -> Result<Option<LinkSettings>, Error>,
    ) -> Result<(), Error> {
        caller.check_level(Operation::Config, Level::All)?;
        let _turn = self.operator_turn().await;
        let is_this = |link: &LinkSettings| link.source == source && link.destination == destination;
        let known = self.store().settings(kind::LINK).await?.into_iter();
        let mut links: Vec<_> = known
            .filter_map(|setting| Some((read::<LinkSettings>(&setting).filter(&is_this)?, setting.name)))
            .map(|(link, name)| (Some(link), name))
            .collect();
        if links.is_empty() {
            links.push((None, format!("{source} {destination}")));
        }
        for (link, name) in links {
            let value = change(link)?.map(serde_json::to_value).transpose();
            let value = value.map_err(|e| usage("write the link as JSON").caused_by(e))?;
            self.store_setting(caller, kind::LINK, &name, value, action).await?;
        }
        self.apply_stored().await
    }

    async fn store_setting(
        &self,
        caller: &Caller,
        kind: &str,
        name: &str,
        value: Option<Value>,
        action: &str,
    ) -> Result<(), Error> {
        let text = value.as_ref().map_or_else(|| name.to_owned(), Value::to_string);
        if name.is_empty() || name.len() + text.len() > SETTING_BYTES_MAX {
            return Err(usage(format!("a setting needs a name, and has at most {SETTING_BYTES_MAX} bytes")));
        }
        let audit = Audit { at: now(), by: caller.name.clone(), action: action.to_owned(), value: text };
        self.store().set(kind, name, value, Some(audit)).await
    }

    /// Returns the settings of a kind. Needs the level `vo` of `config`.
    ///
    /// Errors: `Denied`.
    pub async fn settings(&self, caller: &Caller, kind: &str) -> Result<Vec<Setting>, Error> {
        caller.check_level(Operation::Config, Level::Vo)?;
        self.store().settings(kind).await
    }

    /// Returns the audit log, the latest entry first. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`.
    pub async fn audit(&self, caller: &Caller, limit: u32) -> Result<Vec<Audit>, Error> {
        caller.check_level(Operation::Config, Level::All)?;
        self.store().audit(limit).await
    }

    /// Sets the agents of a site and the access to it; `None` removes it. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`; `Usage`, when the name is no host.
    pub async fn set_site(&self, caller: &Caller, name: &str, site: Option<&SiteSettings>) -> Result<(), Error> {
        // The name is the host in locations, as the queues spell it.
        let endpoint = endpoint_of(&format!("{AGENTS}{name}/f")).ok();
        if endpoint.as_deref().and_then(site_of) != Some(name) {
            let text = format!("the site {name:?}: expected the host of its locations, in lower case, without a port");
            return Err(usage(text));
        }
        let value = site.map(serde_json::to_value).transpose();
        let value = value.map_err(|e| usage("write the site as JSON").caused_by(e))?;
        self.set(caller, kind::SITE, name, value, "set-site").await
    }

    /// Checks that a virtual organisation may use both ends of a file. Errors: `Denied`; `Usage`: there is no such
    /// site.
    pub(crate) fn check_sites(&self, vo: &str, file: &NewFile) -> Result<(), Error> {
        self.check_site(vo, (&file.source_endpoint, &file.source), SiteRight::Read)?;
        self.check_site(vo, (&file.destination_endpoint, &file.destination), SiteRight::Write)
    }

    fn check_site(&self, vo: &str, (endpoint, location): (&str, &str), right: SiteRight) -> Result<(), Error> {
        let applied = self.applied();
        let Some(name) = site_of(endpoint) else { return Ok(()) };
        let site = applied.sites.get(name).ok_or_else(|| no_site(name))?;
        let path = location.strip_prefix(AGENTS).and_then(|rest| rest.split_once('/')).map_or("", |(_, path)| path);
        if site.allows(vo, path, right) {
            return Ok(());
        }
        let what = if right == SiteRight::Read { "read" } else { "write" };
        let text = format!("{vo} may not {what} {location}: an operator can allow it (`sterna config site`)");
        Err(Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text))
    }

    /// Bans a user: cancels the jobs, and takes no more. Returns the jobs. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`; `Usage`, when users ban themselves.
    pub async fn ban_user(&self, caller: &Caller, name: &str, message: &str) -> Result<Vec<Uuid>, Error> {
        if name == caller.name {
            return Err(Error::new(
                ErrorKind::Exists,
                Scope::Client,
                Phase::Prepare,
                "The user tried to ban (her|his)self",
            ));
        }
        let ban = UserBan { message: message.to_owned(), by: caller.name.clone(), at: now().0 };
        let value = serde_json::to_value(&ban).map_err(|e| usage("write the ban as JSON").caused_by(e))?;
        self.set(caller, kind::BANNED_USER, name, Some(value), "ban-dn").await?;
        let filter = JobFilter { owner: Some(name.to_owned()), ..JobFilter::default() };
        let mut cancelled = Vec::new();
        for job in self.store().jobs(filter).await? {
            if let Some(files) = self.store().cancel(job.new.id, "User banned".to_owned(), now()).await? {
                self.handle_job_cancelled(job.new.id, files);
                cancelled.push(job.new.id);
            }
        }
        Ok(cancelled)
    }

    /// Starts no transfers from now on, or starts them again. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`.
    pub async fn set_drain(&self, caller: &Caller, is_on: bool) -> Result<(), Error> {
        let value = is_on.then_some(Value::Bool(true));
        let host = self.host().to_owned();
        self.set(caller, kind::DRAIN, &host, value, "drain").await
    }

    /// Checks that no ban forbids a submission. Errors: `Denied`.
    pub(crate) fn check_bans<'a>(
        &self,
        caller: &Caller,
        mut endpoints: impl Iterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let applied = self.applied();
        let denied = |text: String| Err(Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text));
        if applied.banned_users.contains(&caller.name) {
            return denied(format!("{} is banned", caller.name));
        }
        let refuses = |endpoint: &&str| applied.bans.get(*endpoint).is_some_and(|ban| !ban.allows_submission);
        match endpoints.find(refuses) {
            Some(endpoint) => denied(format!("{endpoint} is banned")),
            None => Ok(()),
        }
    }

    /// Returns the replicas in reserve of the entries of files.
    pub(crate) async fn reserves_of(&self, files: &[&File]) -> Result<BTreeMap<(Uuid, u64), Vec<File>>, Error> {
        let mut reserves: BTreeMap<(Uuid, u64), Vec<File>> = BTreeMap::new();
        let entries: Vec<(Uuid, u64)> = files.iter().map(|file| (file.job, file.new.entry)).collect();
        // A filter without entries would select those of everybody.
        if !entries.is_empty() {
            let filter = FileFilter { entries, states: vec![FileState::Reserved], ..FileFilter::default() };
            for file in self.store().files(filter).await? {
                reserves.entry((file.job, file.new.entry)).or_default().push(file);
            }
        }
        Ok(reserves)
    }

    /// Gives the settings of the store to the scheduler, and to the requests that follow.
    pub async fn apply_settings(&self) -> Result<(), Error> {
        // Settings that were read before those of another operator must not be applied after them.
        let _turn = self.operator_turn().await;
        self.apply_stored().await
    }

    async fn apply_stored(&self) -> Result<(), Error> {
        let limits = self.stored_limits().await?;
        let shares = self.stored_shares().await?;
        let applied = self.stored_rules().await?;
        self.apply(limits, shares, applied);
        Ok(())
    }

    async fn stored_limits(&self) -> Result<Limits, Error> {
        let mut limits = Limits::default();
        for setting in self.store().settings(kind::SERVICE).await? {
            let most = read::<ServiceSettings>(&setting).and_then(|service| count(service.max_active));
            limits.all = most.unwrap_or(limits.all);
        }
        if self.store().settings(kind::DRAIN).await?.iter().any(|setting| setting.name == self.host()) {
            limits.all = 0;
        }
        for setting in self.store().settings(kind::ENDPOINT).await? {
            let Some(endpoint) = read::<EndpointSettings>(&setting) else { continue };
            let maximum = EndpointLimits {
                inbound: count(endpoint.inbound_max_active).unwrap_or(limits.endpoint.inbound),
                outbound: count(endpoint.outbound_max_active).unwrap_or(limits.endpoint.outbound),
            };
            // `*` comes first, by its place in the order of names.
            match setting.name.as_str() {
                ANY => limits.endpoint = maximum,
                name => drop(limits.endpoints.insert(name.into(), maximum)),
            }
        }
        for setting in self.store().settings(kind::LINK).await? {
            let Some(link) = read::<LinkSettings>(&setting) else { continue };
            if let Some(most) = count(link.max_active) {
                limits.links.insert(link_of(&link.source, &link.destination), most);
            }
        }
        for setting in self.store().settings(kind::VO).await? {
            let most = read::<VoSettings>(&setting).and_then(|vo| count(vo.max_active));
            limits.vos.extend(most.map(|most| (setting.name.as_str().into(), most)));
        }
        Ok(limits)
    }

    async fn stored_shares(&self) -> Result<Shares, Error> {
        let mut shares = Shares::default();
        for setting in self.store().settings(kind::SHARE).await? {
            let Some(share) = read::<ShareSettings>(&setting) else { continue };
            let of_link: &mut BTreeMap<Name, Share> =
                shares.links.entry(link_of(&share.source, &share.destination)).or_default();
            of_link.insert(share.vo.as_str().into(), share_of(share.share, share.guarantee));
        }
        for setting in self.store().settings(kind::ACTIVITIES).await? {
            let Some(activities) = read::<ActivitySettings>(&setting) else { continue };
            if activities.active {
                let guarantee = |name: &String| activities.guarantee.get(name).copied().unwrap_or(0.0);
                let share =
                    |(name, weight): (&String, &f64)| (name.as_str().into(), share_of(*weight, guarantee(name)));
                let of_vo = activities.share.iter().map(share).collect();
                shares.activities.insert(activities.vo.as_str().into(), of_vo);
            }
        }
        for setting in self.store().settings(kind::VO).await? {
            if read::<VoSettings>(&setting).is_some_and(|vo| vo.in_order) {
                shares.in_order.insert(setting.name.as_str().into());
            }
        }
        Ok(shares)
    }

    async fn stored_rules(&self) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        for setting in self.store().settings(kind::BAN).await? {
            // A ban that is not understood is one still.
            let unknown = || Ban {
                kind: BanKind::Wait,
                allows_submission: true,
                vo: String::new(),
                message: String::new(),
                by: String::new(),
                at: 0,
            };
            let ban = read(&setting).unwrap_or_else(unknown);
            applied.bans.insert(setting.name, ban);
        }
        applied.banned_users =
            self.store().settings(kind::BANNED_USER).await?.into_iter().map(|one| one.name).collect();
        for setting in self.store().settings(kind::GRANT).await? {
            let Some(grant) = read::<Grant>(&setting) else { continue };
            let operation = Operation::by_name(&grant.operation);
            applied.grants.entry(grant.dn).or_default().extend(operation);
        }
        for setting in self.store().settings(kind::SITE).await? {
            let Some(site) = read::<SiteSettings>(&setting) else { continue };
            applied.sites.insert(setting.name, site.into());
        }
        for setting in self.store().settings(kind::DEFAULTS).await? {
            let Some(defaults) = read(&setting) else { continue };
            applied.defaults.insert(setting.name, defaults);
        }
        Ok(applied)
    }
}

/// Returns the error of a site that the service does not have.
fn no_site(name: &str) -> Error {
    usage(format!("there is no site {name}: an operator can add it (`sterna config site {name} --add FINGERPRINT`)"))
}

/// Returns a share of this weight and guarantee.
fn share_of(weight: f64, guarantee: f64) -> Share {
    Share { weight: weight.clamp(0.0, WEIGHT_MAX), guarantee: guarantee.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sterna_sched::settings::Link;

    use super::*;
    use crate::store::SqliteStore;

    #[tokio::test]
    async fn shares_have_the_weights_and_guarantees_of_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("sterna.db")).await.unwrap();
        let (service, _) = Service::new(store, "host".to_owned());
        let set = async |kind, name, value| service.store().set(kind, name, Some(value), None).await.unwrap();
        // The first two were stored by an earlier release.
        set(kind::SHARE, "1", json!({"source": "a", "destination": "*", "vo": "x", "share": 70.0})).await;
        set(kind::ACTIVITIES, "y", json!({"vo": "y", "active": true, "share": {"p": 2.0}})).await;
        let share = json!({"source": "a", "destination": "*", "vo": "y", "share": 3e9, "guarantee": 0.25});
        set(kind::SHARE, "2", share).await;
        let activities = json!({"vo": "x", "active": true, "share": {"p": 1.0, "q": 2.0}, "guarantee": {"p": 0.5}});
        set(kind::ACTIVITIES, "x", activities).await;
        let shares = service.stored_shares().await.unwrap();
        let share = |weight, guarantee| Share { weight, guarantee };
        let named = |shares: &[(&str, Share)]| shares.iter().map(|(name, share)| (Name::from(*name), *share)).collect();
        let link = Link { source: "a".into(), destination: ANY.into() };
        let of_link = named(&[("x", share(70.0, 0.0)), ("y", share(WEIGHT_MAX, 0.25))]);
        assert_eq!(shares.links, BTreeMap::from([(link, of_link)]));
        let of_x = named(&[("p", share(1.0, 0.5)), ("q", share(2.0, 0.0))]);
        let of_y = named(&[("p", share(2.0, 0.0))]);
        assert_eq!(shares.activities, BTreeMap::from([("x".into(), of_x), ("y".into(), of_y)]));
    }
}
