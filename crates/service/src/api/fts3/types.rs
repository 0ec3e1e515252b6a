//! Types of FTS3's replies, with their description. The names are those of FTS3.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Failure of a request.
#[derive(Serialize, ToSchema)]
pub struct Failure {
    /// Status code and its words.
    pub status: String,
    /// Reason, for people.
    pub message: String,
}

/// Job that was accepted.
#[derive(Serialize, ToSchema)]
pub struct SubmittedJob {
    /// Identifier.
    pub job_id: String,
}

/// Job.
#[derive(Serialize, ToSchema)]
pub struct Job<'a> {
    /// Identifier.
    pub job_id: String,
    /// State: `SUBMITTED`, `ACTIVE`, `FINISHED`, `FINISHEDDIRTY`, `FAILED` or `CANCELED`.
    pub job_state: &'a str,
    /// Kind: `N` (files), `R` (replicas), `H` (hops) or `Y` (session reuse).
    pub job_type: &'a str,
    /// The user has cancelled the job.
    pub cancel_job: bool,
    /// Storage of the first source.
    #[schema(value_type = Option<String>)]
    pub source_se: Value,
    /// Storage of the last destination.
    #[schema(value_type = Option<String>)]
    pub dest_se: Value,
    /// Name of the owner.
    pub user_dn: &'a str,
    /// Credential of the owner.
    pub cred_id: &'a str,
    /// Virtual organisation.
    pub vo_name: &'a str,
    /// Reason for the state.
    pub reason: Option<&'a str>,
    /// Time of the submission, in UTC, without a zone.
    #[schema(value_type = String)]
    pub submit_time: Value,
    /// Priority, from 1 to 5, the highest.
    pub priority: u8,
    /// Host that took the job.
    pub submit_host: &'a str,
    /// Time after which files that still wait fail, in seconds since 1970.
    pub max_time_in_queue: Option<f64>,
    /// Kept and shown.
    #[schema(value_type = Option<String>)]
    pub destination_spacetoken: Value,
    /// Kept and shown.
    #[schema(value_type = Option<String>)]
    pub source_spacetoken: Value,
    /// Options of the transfers, separated by commas.
    #[schema(value_type = Option<String>)]
    pub internal_job_params: Value,
    /// Letter of the treatment of destinations that exist.
    #[schema(value_type = Option<String>)]
    pub overwrite_flag: Value,
    /// Kept and shown.
    pub dst_file_report: bool,
    /// End, in UTC, without a zone.
    #[schema(value_type = Option<String>)]
    pub job_finished: Value,
    /// Kept and shown.
    #[schema(value_type = i64)]
    pub copy_pin_lifetime: Value,
    /// Kept and shown.
    #[schema(value_type = i64)]
    pub bring_online: Value,
    /// Kept and shown.
    #[schema(value_type = i64)]
    pub archive_timeout: Value,
    /// Kept and shown.
    #[schema(value_type = Option<String>)]
    pub target_qos: Value,
    /// Always null.
    pub os_project_id: Option<&'a str>,
    /// Letter of the comparison of checksums: `n`, `s`, `t` or `b`.
    pub verify_checksum: &'a str,
    /// Data of the user, with the method of authentication.
    #[schema(value_type = Option<Object>)]
    pub job_metadata: Option<&'a Value>,
    /// Maximum number of further attempts, as in the request.
    pub retry: i64,
    /// Wait before another attempt in seconds, as in the request.
    pub retry_delay: i64,
}

/// File of a job: a transfer from one source to one destination.
#[derive(Serialize, ToSchema)]
pub struct File<'a> {
    /// Number.
    pub file_id: u64,
    /// Place in the request.
    pub file_index: u64,
    /// Job.
    pub job_id: String,
    /// State: `SUBMITTED`, `NOT_USED`, `ON_HOLD`, `ACTIVE`, `FINISHED`, `FAILED` or `CANCELED`.
    pub file_state: &'a str,
    /// State at the submission.
    pub file_state_initial: &'a str,
    /// Source.
    pub source_surl: &'a str,
    /// Destination.
    pub dest_surl: &'a str,
    /// Storage of the source.
    pub source_se: &'a str,
    /// Storage of the destination.
    pub dest_se: &'a str,
    /// Always null.
    pub dest_surl_uuid: Option<&'a str>,
    /// Virtual organisation.
    pub vo_name: &'a str,
    /// Priority.
    pub priority: u8,
    /// Activity.
    pub activity: &'a str,
    /// Strategy that chooses among replicas.
    #[schema(value_type = Option<String>)]
    pub selection_strategy: Value,
    /// Checksum, `ALGORITHM:value` or `ALGORITHM`.
    pub checksum: Option<&'a str>,
    /// Size of the request; 0: none.
    pub user_filesize: u64,
    /// Size of the source.
    pub filesize: Option<u64>,
    /// Data of the user.
    #[schema(value_type = Option<Object>)]
    pub file_metadata: Option<&'a Value>,
    /// Kept and shown.
    #[schema(value_type = Option<Object>)]
    pub staging_metadata: Value,
    /// Kept and shown.
    #[schema(value_type = Option<Object>)]
    pub archive_metadata: Value,
    /// Kept and shown.
    #[schema(value_type = Option<i64>)]
    pub scitag: Value,
    /// Number from 0 to 65535.
    pub hashed_id: u64,
    /// Worker of the present or last attempt.
    pub transfer_host: Option<&'a str>,
    /// Always null.
    pub staging_host: Option<&'a str>,
    /// Always null.
    pub pid: Option<u64>,
    /// Start of the present or last attempt, in UTC, without a zone.
    #[schema(value_type = Option<String>)]
    pub start_time: Value,
    /// End, in UTC, without a zone.
    #[schema(value_type = Option<String>)]
    pub finish_time: Value,
    /// Always null.
    pub staging_start: Option<&'a str>,
    /// Always null.
    pub staging_finished: Option<&'a str>,
    /// Always null.
    pub archive_start_time: Option<&'a str>,
    /// Always null.
    pub archive_finish_time: Option<&'a str>,
    /// Duration of the last attempt, in seconds.
    pub tx_duration: Option<f64>,
    /// Mean rate of the last attempt, in MiB/s.
    pub throughput: Option<f64>,
    /// Number of attempts that have failed.
    pub retry: u32,
    /// Another attempt may succeed.
    pub recoverable: Option<bool>,
    /// Reason of the failure: `SCOPE [errno] text`.
    pub reason: Option<String>,
    /// Always null.
    pub internal_file_params: Option<&'a str>,
    /// Always null.
    pub bringonline_token: Option<&'a str>,
    /// Always null.
    pub log_file: Option<&'a str>,
    /// Always null.
    pub log_debug: Option<&'a str>,
    /// Always null.
    pub src_token_id: Option<&'a str>,
    /// Always null.
    pub dst_token_id: Option<&'a str>,
}

/// Failed attempt of a file.
#[derive(Serialize, ToSchema)]
pub struct Attempt<'a> {
    /// File.
    pub file_id: u64,
    /// Number, from 1.
    pub attempt: u32,
    /// End, in UTC, without a zone.
    #[schema(value_type = String)]
    pub datetime: Value,
    /// Reason.
    pub reason: String,
    /// Worker.
    pub transfer_host: Option<&'a str>,
    /// Always null.
    pub log_file: Option<&'a str>,
}

/// Returns the fields of a reply.
pub fn fields<T: Serialize>(reply: &T) -> Map<String, Value> {
    match serde_json::to_value(reply) {
        Ok(Value::Object(map)) => map,
        // A struct of texts and numbers is an object always.
        _ => Map::new(),
    }
}
