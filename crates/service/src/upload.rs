//! Upload of a job in batches, so that a manifest of a million files needs the memory of one batch.
//!
//! No file of the job starts before the upload is complete. An upload that ends early leaves nothing: the job is
//! removed with its files, and its idempotency key is free. Refuses to read bytes: an interface does.

use std::sync::Arc;

use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::state::JobKind;
use uuid::Uuid;

use crate::caller::{Caller, Level, Operation};
use crate::command::{Entry, FILES_MAX, Progress, Submission};
use crate::job::NewFile;
use crate::service::Service;
use crate::store::Submitted;

/// Result of the first batch.
pub enum Begun {
    /// The upload can go on.
    Now(Box<Upload>),
    /// A job with the idempotency key exists already.
    Repeated(Uuid),
}

/// Upload of a job. If it is dropped before it is complete, the runner removes the job.
pub struct Upload {
    service: Arc<Service>,
    caller: Caller,
    job: Uuid,
    kind: JobKind,
    idempotency_key: Option<String>,
    /// Entries so far.
    progress: Progress,
    /// Number of files so far.
    files: u64,
    is_complete: bool,
}

impl Upload {
    /// Stores a job with its first entries. Errors: as of [`Service::submit`].
    pub async fn begin(service: &Arc<Service>, caller: Caller, mut submission: Submission) -> Result<Begun, Error> {
        caller.check_level(Operation::Transfer, Level::Own)?;
        let entries = std::mem::take(&mut submission.entries);
        let (kind, idempotency_key) = (submission.kind, submission.idempotency_key.clone());
        let mut progress = Progress::default();
        let files = service.files_of_entries(&caller, kind, &mut progress, entries)?;
        check_files(files.len() as u64)?;
        let job = service.new_job(&caller, submission);
        // From here on the job may be in the store, even if nobody waits for the answer any more.
        service.handle_upload(job.id);
        let mut upload = Self {
            service: Arc::clone(service),
            caller,
            job: job.id,
            kind,
            idempotency_key,
            progress,
            files: files.len() as u64,
            is_complete: false,
        };
        match service.store().submit(job, files, false).await? {
            Submitted::New => Ok(Begun::Now(Box::new(upload))),
            Submitted::Repeated(first) => {
                upload.end();
                Ok(Begun::Repeated(first))
            }
            Submitted::IdTaken => {
                // The job of this identifier is not that of this upload, and stays.
                upload.end();
                let text = format!("the identifier {} is taken", upload.job);
                Err(Error::new(ErrorKind::Exists, Scope::Client, Phase::Prepare, text))
            }
        }
    }

    /// Adds entries. Returns when they are durable.
    ///
    /// Errors: `Usage`; `Denied`; `Limit`, for more files than a job may have; `Exists`, if the job was cancelled.
    pub async fn add(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        let files = self.files_of(entries)?;
        self.service.store().append(self.job, files).await
    }

    /// Completes the job: its files can start. Returns its identifier, or that of the first job if the key was used
    /// meanwhile.
    pub async fn complete(mut self) -> Result<Uuid, Error> {
        match self.service.store().complete(self.job, self.idempotency_key.clone()).await? {
            Submitted::Repeated(first) => Ok(first),
            Submitted::New | Submitted::IdTaken => {
                self.end();
                Ok(self.job)
            }
        }
    }

    fn files_of(&mut self, entries: Vec<Entry>) -> Result<Vec<NewFile>, Error> {
        let files = self.service.files_of_entries(&self.caller, self.kind, &mut self.progress, entries)?;
        self.files += files.len() as u64;
        check_files(self.files).map(|()| files)
    }

    fn end(&mut self) {
        self.is_complete = true;
        self.service.handle_uploaded(self.job);
    }
}

fn check_files(count: u64) -> Result<(), Error> {
    if count <= FILES_MAX {
        return Ok(());
    }
    let text = format!("more than {FILES_MAX} files, the maximum of a job");
    Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text))
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_complete {
            self.service.handle_abandoned(self.job);
        }
    }
}
