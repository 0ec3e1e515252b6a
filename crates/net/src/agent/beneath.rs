//! Files beneath a directory of this agent, for a transfer service that copies them all.
//!
//! Lists one name at a time, with the rights of the service. Refuses to follow symlinks, and to open files.

use std::net::SocketAddr;

use sterna_proto::session::{Answer, Hello, ListOptions, Listed, ListedKind, Query, Request};
use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};

use super::Shared;
use super::log::SessionLog;
use crate::client::random_session;
use crate::engine::Cancel;
use crate::identity::Fingerprint;
use crate::lister::Lister;
use crate::session::Progress;

/// Regular file beneath a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBeneath {
    /// Path beneath the directory.
    pub path: RelPath,
    /// Size in bytes.
    pub size: u64,
}

/// Iterator over the regular files beneath a directory. Each error is about one name, or about the contents of one
/// directory; the iteration continues after it. Ends early when it is cancelled.
pub struct Beneath {
    lister: Lister,
    /// Path of the directory with a slash at its end, as the paths of answers begin; empty: all that the service may
    /// see.
    prefix: Vec<u8>,
    log: SessionLog,
}

impl Shared {
    /// Begins to list the files beneath a directory. Errors: as [`super::Agent::beneath`].
    pub(super) fn beneath(
        &self,
        (service, from): (&Fingerprint, SocketAddr),
        path: &[u8],
        cancel: &Cancel,
    ) -> Result<Beneath, Error> {
        let names: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
        let directory = names.join(&b'/');
        let options = ListOptions::new(None);
        let query = Query::List { paths: vec![directory.clone()], options: Box::new(options.clone()) };
        let places = self.query_places(&query, &self.grant_of_service(service))?;
        let (session, asked) = (random_session()?, Request::Query(query));
        let hello = Hello { on_behalf_of: Some(service.0), ..Hello::new(session, asked) };
        let log = SessionLog::start(&self.log, (service, &session), from, &hello, self.linger);
        let lister = Lister::new(places, options, cancel.clone());
        let mut beneath = Beneath { lister, prefix: Vec::new(), log };
        if !directory.is_empty() {
            beneath.begin(&directory)?;
            beneath.prefix = [&directory[..], b"/"].concat();
        }
        Ok(beneath)
    }
}

impl Beneath {
    /// Checks that the first answer is the directory itself. Errors: it is none, or is a symlink: none is followed.
    fn begin(&mut self, directory: &[u8]) -> Result<(), Error> {
        let refused = |kind, why: &str| {
            let text = format!("list {}: {why}", String::from_utf8_lossy(directory));
            Err(Error::new(kind, Scope::Source, Phase::Prepare, text))
        };
        match self.lister.next() {
            // The path has wildcards, and is no name.
            Some(Answer::Listed(listed)) if path_of(&listed) != directory => {
                refused(ErrorKind::NotFound, "there is no such directory")
            }
            Some(Answer::Listed(listed)) => match listed.kind {
                ListedKind::Directory => Ok(()),
                ListedKind::Symlink => refused(ErrorKind::Usage, "it is a symlink, which is not followed"),
                ListedKind::File | ListedKind::Other => refused(ErrorKind::Usage, "it is no directory"),
            },
            Some(Answer::Failed(error)) => Err(error),
            Some(Answer::Deleted { .. }) => Err(crate::internal("a list that deletes")),
            None => refused(ErrorKind::Cancelled, "the listing was stopped"),
        }
    }
}

fn path_of(listed: &Listed) -> &[u8] {
    listed.path.as_ref().map_or(b"", RelPath::as_bytes)
}

impl Iterator for Beneath {
    type Item = Result<FileBeneath, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.lister.next()? {
                Answer::Listed(listed) if listed.kind == ListedKind::File => {
                    let rest = path_of(&listed).strip_prefix(&self.prefix[..]);
                    let rest = rest.ok_or_else(|| crate::internal("a list that leaves its directory"));
                    return Some(rest.and_then(RelPath::new).map(|path| FileBeneath { path, size: listed.size }));
                }
                Answer::Failed(error) => return Some(Err(error)),
                Answer::Listed(_) | Answer::Deleted { .. } => {}
            }
        }
    }
}

impl Drop for Beneath {
    fn drop(&mut self) {
        self.log.end(&Progress::default(), None);
    }
}
