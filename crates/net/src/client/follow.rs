//! What following sources, and doing something with them afterwards, asks of a copy.

use std::path::PathBuf;
use std::sync::Arc;

use sterna_proto::session::Overwrite;
use sterna_proto::{Error, ErrorKind, Growth, Location, Phase, Scope};

use super::CopyOptions;
use crate::disk::Root;
use crate::session::{Follow, FollowRules};

/// Errors: `Usage`: something that only a push of files of this host can do is asked of another copy.
pub(super) fn check(options: &CopyOptions) -> Result<(), Error> {
    let is_push = matches!(options.destination, Location::Remote(_));
    let is_ours = options.sources.iter().all(|source| matches!(source, Location::Local(_)));
    let asked = match (&options.follow, &options.then) {
        (Some(_), _) => "--follow: files are followed",
        (None, Some(_)) => "--then: sources are deleted or moved",
        (None, None) => return Ok(()),
    };
    if is_push && is_ours {
        return Ok(());
    }
    let text = format!("{asked} only where they are read, at this host: run the copy at the host that has the sources");
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

/// What follows `sources`, if that is asked for; and the look whether what is to be done with them afterwards can be.
///
/// Errors: a source that is not there, `Usage`.
pub(super) fn prepare(options: &CopyOptions, sources: &[PathBuf]) -> Result<Option<Arc<Follow>>, Error> {
    use std::os::unix::ffi::OsStrExt;
    if options.follow.is_none() && options.then.is_none() {
        return Ok(None);
    }
    let open = |path: &PathBuf| Root::for_local_source(path.as_os_str().as_bytes());
    let roots = sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    if let Some(then) = &options.then {
        let named: Vec<_> = roots.iter().map(|(root, _)| root.clone()).zip(sources.iter().cloned()).collect();
        then.check(&named)?;
    }
    let Some(idle) = options.follow else { return Ok(None) };
    let rules = FollowRules { idle, growth: Growth::for_rate(options.target()) };
    Follow::new(roots, rules).map(|follow| Some(Arc::new(follow)))
}

/// What is done with a file that exists: one that is to be deleted at its source is copied again though it looks up to date, since only its bytes can tell.
pub(super) fn overwrite(options: &CopyOptions) -> Overwrite {
    match (options.overwrite, &options.then) {
        (Overwrite::IfChanged, Some(_)) => Overwrite::Always,
        (overwrite, _) => overwrite,
    }
}
