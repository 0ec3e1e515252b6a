//! Settings that operators change, as documents of the store.
//!
//! Holds values only. Refuses to apply them: commands of operators do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sterna_net::identity::Fingerprint;
use sterna_sched::settings::ANY;

use crate::caller::Operation;
use crate::site::Site;
use crate::store::Setting;

/// Kinds of settings in the store; never renamed.
pub mod kind {
    /// Banned endpoints, by endpoint.
    pub const BAN: &str = "ban";
    /// Banned users, by name.
    pub const BANNED_USER: &str = "banned_user";
    /// Endpoints, by endpoint.
    pub const ENDPOINT: &str = "endpoint";
    /// Links, by a name that operators choose.
    pub const LINK: &str = "link";
    /// Shares of a virtual organisation on a link, by `source destination vo`.
    pub const SHARE: &str = "share";
    /// Shares of the activities of a virtual organisation, by its name.
    pub const ACTIVITIES: &str = "activities";
    /// Defaults of a virtual organisation, by its name; `*` stands for all.
    pub const DEFAULTS: &str = "defaults";
    /// Scheduling of a virtual organisation, by its name.
    pub const VO: &str = "vo";
    /// Limit of the service; its only name is `*`.
    pub const SERVICE: &str = "service";
    /// Operations that a user may do, by `operation user`.
    pub const GRANT: &str = "grant";
    /// Hosts that start no transfers, by name.
    pub const DRAIN: &str = "drain";
    /// Measurements of the path between two agents, by their keys. The runner sets them.
    pub const PATH: &str = "path";
    /// Agents of a site, by its name: the host in locations.
    pub const SITE: &str = "site";
}

/// Highest weight of a share. Reason: weights are relative, and sums of much larger ones would be no numbers any more.
pub const WEIGHT_MAX: f64 = 1e9;

/// Effect of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BanKind {
    /// Files from and to the endpoint are cancelled.
    Cancel,
    /// They wait until the ban is lifted.
    Wait,
}

/// Ban of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ban {
    /// Effect.
    pub kind: BanKind,
    /// New jobs with the endpoint are taken, and wait.
    pub allows_submission: bool,
    /// Virtual organisation of the operator.
    pub vo: String,
    /// Reason, for people.
    pub message: String,
    /// Name of the operator.
    pub by: String,
    /// Time, in milliseconds since 1970.
    pub at: i64,
}

/// Ban of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserBan {
    /// Reason, for people.
    pub message: String,
    /// Name of the operator.
    pub by: String,
    /// Time, in milliseconds since 1970.
    pub at: i64,
}

/// Settings of an endpoint that the scheduler follows. Other fields are kept for replies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointSettings {
    /// Maximum of transfers to the endpoint.
    pub inbound_max_active: Option<u32>,
    /// Maximum of transfers from the endpoint.
    pub outbound_max_active: Option<u32>,
    /// Fields that only replies need.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Settings of a link that the scheduler follows. Other fields are kept for replies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// Source endpoint, or `*`.
    pub source: String,
    /// Destination endpoint, or `*`.
    pub destination: String,
    /// Maximum of transfers on the link.
    pub max_active: Option<u32>,
    /// Fields that only replies need.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Share of a virtual organisation on a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareSettings {
    /// Source endpoint, or `*`.
    pub source: String,
    /// Destination endpoint, or `*`.
    pub destination: String,
    /// Virtual organisation.
    pub vo: String,
    /// Weight.
    pub share: f64,
    /// Minimum fraction of the bytes while the virtual organisation has files, from 0 to 1.
    #[serde(default)]
    pub guarantee: f64,
}

/// Scheduling of the files of a virtual organisation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VoSettings {
    /// Files start in order of submission, whatever their activities. False: by activity and priority.
    pub in_order: bool,
    /// Maximum of transfers under way.
    pub max_active: Option<u32>,
}

/// Settings of the whole service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceSettings {
    /// Maximum of transfers under way.
    pub max_active: Option<u32>,
}

/// Shares of the activities of a virtual organisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivitySettings {
    /// Virtual organisation.
    pub vo: String,
    /// False: the shares are kept, and not followed.
    pub active: bool,
    /// Weight of each activity.
    pub share: BTreeMap<String, f64>,
    /// Minimum fraction of the bytes of the virtual organisation while an activity has files, from 0 to 1.
    #[serde(default)]
    pub guarantee: BTreeMap<String, f64>,
}

/// Defaults of the jobs of a virtual organisation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    /// Maximum number of further attempts of a file; 0: that of the service.
    pub retry: i64,
    /// Maximum time in the queue in hours; 0: none.
    pub max_time_queue: u32,
    /// Time limit of an attempt in seconds; 0: by the size of the file.
    pub global_timeout: u32,
    /// No file data goes through the service: files between storages that cannot copy fail.
    pub no_streaming: bool,
    /// Fields that only replies need.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Operation that a user may do on everybody's resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Name of the user.
    pub dn: String,
    /// Operation, by its name.
    pub operation: String,
}

/// Settings as requests read them, without the store.
#[derive(Debug, Default)]
pub struct Applied {
    /// Bans of endpoints.
    pub bans: BTreeMap<String, Ban>,
    /// Names of banned users.
    pub banned_users: BTreeSet<String>,
    /// Operations of users.
    pub grants: BTreeMap<String, Vec<Operation>>,
    /// Defaults of virtual organisations; `*` stands for all.
    pub defaults: BTreeMap<String, Defaults>,
    /// Sites, by name: the host in locations.
    pub sites: BTreeMap<String, Site>,
}

impl Applied {
    /// Returns the sites of an agent.
    pub fn sites_of(&self, agent: &Fingerprint) -> Vec<&str> {
        let of_agent = self.sites.iter().filter(|(_, site)| site.agents.contains(agent));
        of_agent.map(|(site, _)| site.as_str()).collect()
    }

    /// Returns the defaults of a virtual organisation.
    pub fn defaults_of(&self, vo: &str) -> Option<&Defaults> {
        self.defaults.get(vo).or_else(|| self.defaults.get(ANY))
    }
}

/// Reads a setting of the store. A damaged one counts as absent: it must not stop the service.
pub fn read<T: for<'de> Deserialize<'de>>(setting: &Setting) -> Option<T> {
    let read = serde_json::from_value(setting.value.clone());
    read.inspect_err(|e| tracing::warn!("the setting {} {} is not understood: {e}", setting.kind, setting.name)).ok()
}
