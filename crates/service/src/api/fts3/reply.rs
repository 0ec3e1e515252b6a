//! Shapes of FTS3's replies.

use serde_json::{Map, Value, json};
use sterna_proto::ErrorKind;
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::answer::Failed;
use super::types;
use crate::job::{Failure, File, Job};
use crate::service::now;
use crate::store::Attempt;
use axum::http::StatusCode;

/// Times have no zone and no fraction; they are in UTC.
const TIME: &[BorrowedFormatItem<'static>] = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]");

/// Returns a time.
pub fn time(at: UnixTime) -> Value {
    let at = OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).ok();
    at.and_then(|at| at.format(TIME).ok()).map_or(Value::Null, Value::from)
}

fn time_or_null(at: Option<UnixTime>) -> Value {
    at.map_or(Value::Null, time)
}

/// Returns the name of a state of a file.
pub fn file_state(state: FileState) -> &'static str {
    match state {
        FileState::Waiting => "SUBMITTED",
        FileState::Reserved => "NOT_USED",
        FileState::Held => "ON_HOLD",
        FileState::Active => "ACTIVE",
        FileState::Finished => "FINISHED",
        FileState::Failed => "FAILED",
        FileState::Cancelled => "CANCELED",
    }
}

/// Returns the name of a state of a job.
pub fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Open | JobState::Waiting => "SUBMITTED",
        JobState::Active => "ACTIVE",
        JobState::Finished => "FINISHED",
        JobState::PartlyFinished => "FINISHEDDIRTY",
        JobState::Failed => "FAILED",
        JobState::Cancelled => "CANCELED",
    }
}

/// Returns the states of a list of names. Errors: a name is unknown.
pub fn job_states(names: &str) -> Result<Vec<JobState>, Failed> {
    let mut states = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let known = JobState::ALL.into_iter().filter(|state| job_state(*state) == name);
        let before = states.len();
        states.extend(known);
        // States that a job never has here.
        let is_known = ["READY", "STAGING", "ARCHIVING", "DELETE", "STARTED", "ON_HOLD"].contains(&name);
        if states.len() == before && !is_known {
            return Err(Failed::new(StatusCode::BAD_REQUEST, format!("Unknown job state: {name}")));
        }
    }
    Ok(states)
}

/// Returns the beginning of a window of `HH[:MM]` until now.
pub fn time_window(text: &str) -> Result<UnixTime, Failed> {
    let (hours, minutes) = text.split_once(':').unwrap_or((text, "0"));
    let (hours, minutes) = (hours.parse::<u32>(), minutes.parse::<u32>());
    let (Ok(hours), Ok(minutes)) = (hours, minutes) else {
        return Err(Failed::new(StatusCode::BAD_REQUEST, format!("time_window={text}: expected HH or HH:MM")));
    };
    let seconds = u64::from(hours) * 3600 + u64::from(minutes) * 60;
    Ok(now() - std::time::Duration::from_secs(seconds))
}

/// Returns the type of a job: `N`, `R` (replicas), `H` (hops) or `Y` (session reuse).
pub fn job_type(job: &Job) -> &str {
    job.new.options.fts.get("job_type").and_then(Value::as_str).unwrap_or("N")
}

/// Returns a job.
pub fn job(job: &Job, host: &str) -> Map<String, Value> {
    let fts = |key: &str| job.new.options.fts.get(key).cloned().unwrap_or(Value::Null);
    let number = |key: &str| job.new.options.fts.get(key).cloned().unwrap_or_else(|| json!(-1));
    let letter = job.new.options.fts.get("verify_checksum").and_then(Value::as_str);
    types::fields(&types::Job {
        job_id: job.new.id.to_string(),
        job_state: job_state(job.state),
        job_type: job_type(job),
        cancel_job: job.state == JobState::Cancelled,
        source_se: fts("source_se"),
        dest_se: fts("dest_se"),
        user_dn: &job.new.owner.name,
        cred_id: &job.new.owner.credential,
        vo_name: &job.new.owner.vo,
        reason: job.reason.as_deref(),
        submit_time: time(job.new.submitted),
        priority: job.new.priority,
        submit_host: host,
        max_time_in_queue: job.new.expires.map(|at| at.0 as f64 / 1000.0),
        destination_spacetoken: fts("destination_spacetoken"),
        source_spacetoken: fts("source_spacetoken"),
        internal_job_params: fts("internal_job_params"),
        overwrite_flag: fts("overwrite_flag"),
        dst_file_report: fts("dst_file_report").as_bool().unwrap_or(false),
        job_finished: time_or_null(job.finished),
        copy_pin_lifetime: number("copy_pin_lifetime"),
        bring_online: number("bring_online"),
        archive_timeout: number("archive_timeout"),
        target_qos: fts("target_qos"),
        os_project_id: None,
        verify_checksum: letter.unwrap_or("n"),
        job_metadata: job.new.metadata.as_ref(),
        retry: fts("retry").as_i64().unwrap_or(0),
        retry_delay: fts("retry_delay").as_i64().unwrap_or(0),
    })
}

/// Returns a file of a job.
pub fn file(file: &File) -> Map<String, Value> {
    let fts = |key: &str| file.new.fts.as_ref().and_then(|fts| fts.get(key)).cloned().unwrap_or(Value::Null);
    let initial = if file.new.is_reserved { FileState::Reserved } else { FileState::Waiting };
    types::fields(&types::File {
        file_id: file.number.0,
        file_index: fts("file_index").as_u64().unwrap_or(file.new.entry),
        job_id: file.job.to_string(),
        file_state: file_state(file.state),
        file_state_initial: file_state(initial),
        source_surl: &file.new.source,
        dest_surl: &file.new.destination,
        source_se: &file.new.source_endpoint,
        dest_se: &file.new.destination_endpoint,
        dest_surl_uuid: None,
        vo_name: &file.vo,
        priority: file.priority,
        activity: &file.new.activity,
        selection_strategy: fts("selection_strategy"),
        checksum: file.new.checksum.as_deref(),
        user_filesize: file.new.size.unwrap_or(0),
        filesize: file.moved.size,
        file_metadata: file.new.metadata.as_ref(),
        staging_metadata: fts("staging_metadata"),
        archive_metadata: fts("archive_metadata"),
        scitag: fts("scitag"),
        hashed_id: file.number.0 % 65_536,
        transfer_host: file.worker.as_deref(),
        staging_host: None,
        pid: None,
        start_time: time_or_null(file.started),
        finish_time: time_or_null(file.finished),
        staging_start: None,
        staging_finished: None,
        archive_start_time: None,
        archive_finish_time: None,
        tx_duration: (file.moved.time_ms > 0).then(|| file.moved.time().as_secs_f64()),
        throughput: file.moved.bytes_per_s().map(|bytes| bytes / f64::from(1 << 20)),
        retry: file.failures,
        recoverable: file.failure.as_ref().map(|failure| failure.retry != "never"),
        reason: file.failure.as_ref().map(reason),
        internal_file_params: None,
        bringonline_token: None,
        log_file: None,
        log_debug: None,
        src_token_id: None,
        dst_token_id: None,
    })
}

/// Returns some columns of an object; unknown ones are left out.
pub fn columns(value: &Map<String, Value>, names: &[&str]) -> Value {
    let known = names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(*name)?.clone())));
    Value::Object(known.collect())
}

/// Returns a failed attempt.
pub fn attempt(attempt: &Attempt) -> Value {
    Value::Object(types::fields(&types::Attempt {
        file_id: attempt.file.0,
        attempt: attempt.number,
        datetime: time(attempt.ended),
        reason: reason(&attempt.failure),
        transfer_host: attempt.worker.as_deref(),
        log_file: None,
    }))
}

/// Returns the reason of a failure: `SCOPE [errno] text`. Clients look for its parts.
pub fn reason(failure: &Failure) -> String {
    let kind = failure.error_kind();
    if matches!(kind, ErrorKind::Cancelled | ErrorKind::Limit) {
        return failure.text.clone();
    }
    let scope = match failure.scope.as_str() {
        "source" => "SOURCE",
        "destination" => "DESTINATION",
        _ => "TRANSFER",
    };
    let number = failure.os_code.unwrap_or_else(|| os_code(kind));
    match kind {
        // Rucio looks for these words.
        ErrorKind::Exists if scope == "DESTINATION" && !failure.text.contains(DESTINATION_EXISTS) => {
            format!("{scope} [{number}] {DESTINATION_EXISTS} ({})", failure.text)
        }
        _ => format!("{scope} [{number}] {}", failure.text),
    }
}

/// Reason of a transfer whose destination exists. Source: FTS3.
const DESTINATION_EXISTS: &str = "Destination file exists and overwrite is not enabled";

/// Returns the error number that stands for a kind.
fn os_code(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Denied | ErrorKind::Untrusted => libc::EACCES,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::Unreachable => libc::ECONNREFUSED,
        ErrorKind::Usage => libc::EINVAL,
        ErrorKind::Protocol => libc::EPROTO,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_no_zone_and_no_fraction() {
        assert_eq!(time(UnixTime(1_795_235_029_500)), "2026-11-21T04:23:49");
        assert_eq!(time(UnixTime(-1)), "1969-12-31T23:59:59");
    }

    #[test]
    fn every_state_has_the_name_of_fts3() {
        assert_eq!(job_states("FINISHED,CANCELED").ok(), Some(vec![JobState::Finished, JobState::Cancelled]));
        assert_eq!(job_states("SUBMITTED").ok(), Some(vec![JobState::Open, JobState::Waiting]));
        assert_eq!(job_states("STAGING").ok(), Some(Vec::new()));
        assert!(job_states("NOPE").is_err());
    }

    #[test]
    fn a_reason_has_scope_and_number() {
        let failure = |kind: ErrorKind, scope: &str, os_code, text: &str| Failure {
            kind: kind.code(),
            scope: scope.to_owned(),
            phase: "prepare".to_owned(),
            retry: "never".to_owned(),
            os_code,
            text: text.to_owned(),
        };
        let exists = "Destination file exists and overwrite is not enabled";
        let reasons = [
            failure(ErrorKind::Exists, "destination", None, exists),
            failure(ErrorKind::Io, "path", Some(70), "no way"),
            failure(ErrorKind::Cancelled, "client", None, "Job canceled by the user"),
        ];
        let expected = [&format!("DESTINATION [17] {exists}"), "TRANSFER [70] no way", "Job canceled by the user"];
        assert_eq!(reasons.each_ref().map(reason), expected);
    }
}
