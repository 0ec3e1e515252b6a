//! Types of the settings in the native interface. Names and units are part of it: none is renamed.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// Reads a field that is there, so that null differs from a field that is left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Limits that count where no setting does.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DefaultLimits {
    /// Maximum of transfers of the whole service.
    #[serde(default)]
    pub service_max: u64,
    /// Maximum of transfers on a link.
    pub link_max: u64,
    /// Maximum of transfers to an endpoint.
    pub endpoint_max_in: u64,
    /// Maximum of transfers from an endpoint.
    pub endpoint_max_out: u64,
}

/// Settings that the scheduler follows.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConfigView {
    /// Name of the host of the service.
    pub host: String,
    /// No transfer starts: an operator has drained the host.
    pub is_drained: bool,
    /// Limits that count where no setting does.
    pub defaults: DefaultLimits,
    /// Maximum of transfers of the whole service; null: the default.
    #[serde(default)]
    pub max: Option<u32>,
    /// Links with a limit.
    pub links: Vec<LinkView>,
    /// Endpoints with limits.
    pub endpoints: Vec<EndpointView>,
    /// Shares of virtual organisations on links.
    pub shares: Vec<ShareView>,
    /// Shares of activities.
    pub activities: Vec<ActivitiesView>,
    /// Virtual organisations with defaults, a limit or another order.
    pub vos: Vec<VoView>,
    /// Operations that users may do on everybody's resources.
    pub grants: Vec<GrantView>,
}

/// Limit of the whole service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceLimit {
    /// Maximum of transfers under way; null: the default. A host without transfers is drained.
    #[schema(minimum = 1)]
    pub max: Option<u32>,
}

/// Link: a source and a destination endpoint. `*` stands for every endpoint; the most precise setting counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Source endpoint, or `*`.
    pub source: String,
    /// Destination endpoint, or `*`.
    pub destination: String,
    /// Maximum of transfers under way; null: the default.
    pub max: Option<u32>,
}

/// Change of a link. Fields that are left out stay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// Maximum of transfers under way; null: the default.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    pub max: Option<Option<u32>>,
}

/// Endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndpointView {
    /// Endpoint: scheme and host; `*`: endpoints without settings.
    pub endpoint: String,
    /// Maximum of transfers to the endpoint; null: the default.
    pub max_in: Option<u32>,
    /// Maximum of transfers from the endpoint; null: the default.
    pub max_out: Option<u32>,
}

/// Change of an endpoint. Fields that are left out stay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointChange {
    /// Maximum of transfers to the endpoint; null: the default.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    pub max_in: Option<Option<u32>>,
    /// Maximum of transfers from the endpoint; null: the default.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    pub max_out: Option<Option<u32>>,
}

/// Share of a virtual organisation on a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// Virtual organisation; `public`: those without a share.
    pub vo: String,
    /// Source endpoint, or `*`.
    pub source: String,
    /// Destination endpoint, or `*`.
    pub destination: String,
    /// Part of the bytes, relative to the weights of the others that have files.
    pub weight: f64,
    /// Minimum fraction of the bytes of the link while there are files, from 0 to 1.
    pub guarantee: f64,
}

/// Weight of a share.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewShare {
    /// Part of the bytes, relative to the weights of the others that have files.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    pub weight: f64,
    /// Minimum fraction of the bytes of the link while there are files. 0 without it. Guarantees above 1 together are
    /// scaled down.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 1)]
    pub guarantee: f64,
}

/// Shares of the activities of a virtual organisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivitiesView {
    /// Virtual organisation.
    pub vo: String,
    /// False: the shares are kept, and not followed.
    pub is_followed: bool,
    /// Weight of each activity; `default`: activities without a share.
    pub weights: BTreeMap<String, f64>,
    /// Minimum fraction of the bytes of the virtual organisation while an activity has files, from 0 to 1, of the
    /// activities that have one.
    pub guarantees: BTreeMap<String, f64>,
}

/// Shares of activities.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewActivities {
    /// Weight of each activity; `default`: activities without a share.
    pub weights: BTreeMap<String, f64>,
    /// Minimum fraction of the bytes of the virtual organisation while an activity has files, from 0 to 1. Each
    /// activity here has a weight too.
    #[serde(default)]
    pub guarantees: BTreeMap<String, f64>,
    /// False: the shares are kept, and not followed. True without it.
    #[serde(default)]
    pub is_followed: Option<bool>,
}

/// Virtual organisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VoView {
    /// Virtual organisation; `*`: those without defaults.
    pub vo: String,
    /// Maximum number of further attempts of a file; null: the default of the service.
    pub retries: Option<u32>,
    /// Maximum time in the queue, in seconds; null: none.
    pub queue_time_s: Option<u64>,
    /// Time limit of an attempt, in seconds; null: by the size of the file.
    pub timeout_s: Option<u32>,
    /// Maximum of transfers under way; null: none.
    pub max: Option<u32>,
    /// Order of the queues: `priority`, or `submission` (first in, first out, without activities).
    pub order: String,
}

/// Change of a virtual organisation. Fields that are left out stay; null: the default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoChange {
    /// Maximum number of further attempts of a file.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub retries: Option<Option<u32>>,
    /// Maximum time in the queue, in seconds: whole hours.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u64>, multiple_of = 3600, minimum = 3600, maximum = 31_622_400)]
    pub queue_time_s: Option<Option<u64>>,
    /// Time limit of an attempt, in seconds.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub timeout_s: Option<Option<u32>>,
    /// Maximum of transfers under way.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>)]
    pub max: Option<Option<u32>>,
    /// Order of the queues: `priority`, or `submission` (first in, first out, without activities).
    #[serde(default)]
    pub order: Option<String>,
}

/// Operation that a user may do on everybody's resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrantView {
    /// Operation: `transfer`, `config`, `deleg`, `datamanagement` or `admin`.
    pub operation: String,
    /// Distinguished name, or issuer and subject of a token.
    pub user: String,
}

/// State of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// No transfer starts. Those under way go on.
    pub is_drained: bool,
}

/// Entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Time, in milliseconds since 1970.
    pub at_ms: i64,
    /// Name of the operator.
    pub by: String,
    /// Action, such as `link-config`.
    pub action: String,
    /// Setting after the change, or the name of one that was removed.
    pub value: String,
}

/// Audit log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// Entries, the latest first.
    pub entries: Vec<AuditView>,
}
