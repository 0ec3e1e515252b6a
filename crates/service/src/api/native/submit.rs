//! Submission of a job: one JSON object, or a manifest that is read and stored in batches.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use uuid::Uuid;

use super::answer::{By, Failed, Refusals, read, usage};
use super::types::{Accepted, NewFile, NewJob, Problem};
use crate::api::app::{App, BODY_BYTES_MAX};
use crate::api::body::Reader;
use crate::caller::{Caller, Level, Operation};
use crate::command::{Entry, FILES_MAX};
use crate::upload::{Begun, Upload};

/// Header with the key of a repeated submission. Source: draft-ietf-httpapi-idempotency-key-header.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Maximum bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 255;

/// Maximum bytes of a manifest. Reason: a million files with the longest names that file systems have, 4 KB.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 30;

/// Maximum bytes of a line of a manifest. Reason: a hundred replicas with the longest locations.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of files, and of bytes of their lines, that are stored at once. Reason: other writes wait some 10 ms.
const BATCH_FILES_MAX: usize = 2000;
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Media type of a manifest.
const LINES: &str = "application/x-ndjson";

/// Submits a job.
///
/// The body is a job in JSON, or a manifest: lines of JSON (`application/x-ndjson`), the first with the job and each
/// other with a file. The reply comes when all is on disk. No file starts before that. A manifest that ends early, or
/// has a wrong line, leaves no job.
#[utoipa::path(
    post,
    path = "/api/v1/jobs",
    request_body(content((NewJob = "application/json"), (String = "application/x-ndjson"))),
    params((
        "Idempotency-Key" = Option<String>,
        Header,
        description = "A repeated request with this key finds the first job: 1 to 255 printable ASCII characters"
    )),
    responses(
        (status = 201, description = "The job is on disk", body = Accepted),
        (status = 409, description = "The job was cancelled during its upload", body = Problem),
        (status = 415, description = "Another media type", body = Problem),
        Refusals,
    )
)]
pub(super) async fn submit(By(caller): By, State(app): State<App>, request: Request) -> Result<Response, Failed> {
    caller.check_level(Operation::Transfer, Level::Own)?;
    let (head, body) = request.into_parts();
    let media = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    let key = idempotency_key(&head.headers)?;
    let (id, files) = match media {
        LINES => {
            let mut lines = Lines::new(Reader::new(&head.headers, body, MANIFEST_BYTES_MAX)?);
            submit_lines(&caller, &app, &mut lines, key).await?
        }
        "application/json" => {
            let body = Reader::new(&head.headers, body, BODY_BYTES_MAX as u64)?.rest().await?;
            let job: NewJob = read("the job", &body)?;
            let files = job.files.len() as u64;
            (app.service.submit(&caller, job.into_submission(key)?).await?, files)
        }
        other => {
            let error = usage(format!("the media type {other}: expected application/json or {LINES}"));
            return Ok((StatusCode::UNSUPPORTED_MEDIA_TYPE, Json(Problem::from(&error))).into_response());
        }
    };
    Ok((StatusCode::CREATED, Json(Accepted { id, files })).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let key = headers.get(IDEMPOTENCY_KEY).map(|value| value.to_str().ok().filter(|key| !key.is_empty()));
    match key {
        None => Ok(None),
        Some(Some(key)) if key.len() <= KEY_BYTES_MAX => Ok(Some(key.to_owned())),
        Some(_) => Err(usage(format!("Idempotency-Key: expected 1 to {KEY_BYTES_MAX} ASCII characters"))),
    }
}

/// Submits a manifest. Returns the job, and the number of its files; for a repeated one that of the lines that were
/// read.
async fn submit_lines(
    caller: &Caller,
    app: &App,
    lines: &mut Lines,
    key: Option<String>,
) -> Result<(Uuid, u64), Error> {
    let first = lines.next().await?.ok_or_else(|| usage("the manifest is empty"))?;
    let job: NewJob = serde_json::from_slice(&first).map_err(|e| lines.wrong(&e))?;
    let (activity, deadline_ms) = (job.activity.clone(), job.deadline_ms);
    let mut submission = job.into_submission(key)?;
    let mut count = submission.entries.len() as u64;
    let mut upload: Option<Upload> = None;
    loop {
        let batch = lines.batch((activity.as_deref(), deadline_ms), count).await?;
        let is_last = batch.is_empty();
        count += batch.len() as u64;
        upload = match upload {
            None => {
                submission.entries.extend(batch);
                // Most manifests are one batch.
                if is_last {
                    return Ok((app.service.submit(caller, submission).await?, count));
                }
                match Upload::begin(&app.service, caller.clone(), std::mem::take(&mut submission)).await? {
                    Begun::Repeated(first) => return Ok((first, count)),
                    Begun::Now(upload) => Some(*upload),
                }
            }
            Some(upload) if is_last => return Ok((upload.complete().await?, count)),
            Some(mut upload) => {
                upload.add(batch).await?;
                Some(upload)
            }
        };
    }
}

/// Lines of a body that are not empty.
struct Lines {
    reader: Reader,
    /// Bytes that have come and are not taken, from `taken` on.
    read: Vec<u8>,
    taken: usize,
    has_ended: bool,
    /// Number of the last line, from 1.
    number: u64,
}

impl Lines {
    fn new(reader: Reader) -> Self {
        Self { reader, read: Vec::new(), taken: 0, has_ended: false, number: 0 }
    }

    /// Returns the next line. Errors: as of the body; `Usage`, for a line that is too long.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        // Bytes that were looked at and hold no end of a line.
        let mut searched = self.taken;
        loop {
            let end = self.read.get(searched..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n'));
            let end = end.map(|at| searched + at).or_else(|| self.has_ended.then_some(self.read.len()));
            match end {
                Some(end) => {
                    let is_over = self.has_ended && self.taken >= self.read.len();
                    let line = self.read.get(self.taken..end).unwrap_or_default().trim_ascii().to_vec();
                    self.taken = end + 1;
                    searched = self.taken;
                    self.number += 1;
                    if !line.is_empty() {
                        return Ok(Some(line));
                    }
                    if is_over {
                        return Ok(None);
                    }
                }
                None => {
                    self.read.drain(..self.taken.min(self.read.len()));
                    self.taken = 0;
                    searched = self.read.len();
                    if self.read.len() > LINE_BYTES_MAX {
                        let text = format!("line {}: more than {LINE_BYTES_MAX} bytes", self.number + 1);
                        return Err(usage(text));
                    }
                    match self.reader.next().await? {
                        Some(bytes) => self.read.extend_from_slice(&bytes),
                        None => self.has_ended = true,
                    }
                }
            }
        }
    }

    /// Returns the entries of the next lines; none at the end. `activity` and `deadline_ms`: those of files that name
    /// none. `before`: number of the entries of the job so far.
    async fn batch(
        &mut self,
        (activity, deadline_ms): (Option<&str>, Option<i64>),
        before: u64,
    ) -> Result<Vec<Entry>, Error> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FILES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(line) = self.next().await? else { break };
            if before + batch.len() as u64 >= FILES_MAX {
                let text = format!("line {}: the maximum of a job is {FILES_MAX} files", self.number);
                return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text));
            }
            bytes += line.len();
            let file: NewFile = serde_json::from_slice(&line).map_err(|e| self.wrong(&e))?;
            batch.push(file.into_entry(activity, deadline_ms).map_err(|e| self.wrong(&e.text()))?);
        }
        Ok(batch)
    }

    fn wrong(&self, why: &impl std::fmt::Display) -> Error {
        usage(format!("line {}: {why}", self.number))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// Returns the lines of a body that arrives in parts of `size` bytes.
    async fn lines(body: &str, size: usize) -> Result<Vec<String>, Error> {
        let parts: Vec<Result<Vec<u8>, std::io::Error>> =
            body.as_bytes().chunks(size).map(|part| Ok(part.to_vec())).collect();
        let stream = Body::from_stream(futures_util::stream::iter(parts));
        let mut lines = Lines::new(Reader::new(&HeaderMap::new(), stream, MANIFEST_BYTES_MAX)?);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await? {
            found.push(format!("{} {}", lines.number, String::from_utf8_lossy(&line)));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn lines_are_the_same_wherever_the_body_is_cut() {
        for (body, expected) in [
            ("", &[][..]),
            ("\n\n", &[]),
            ("{}", &["1 {}"]),
            ("{}\n", &["1 {}"]),
            ("\n{}\r\n\n [1] \nx", &["2 {}", "4 [1]", "5 x"]),
        ] {
            for size in 1..=body.len().max(1) {
                assert_eq!(lines(body, size).await.unwrap(), expected, "{body:?} in parts of {size}");
            }
        }
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_refused() {
        let line = "x".repeat(LINE_BYTES_MAX + 1);
        let error = lines(&format!("{{}}\n{line}"), 1 << 16).await.unwrap_err();
        assert!(error.text().starts_with("line 2: more than"), "{error}");
    }
}
