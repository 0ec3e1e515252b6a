//! Checks and prepares a copy that follows its sources, or deletes or moves them afterwards.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::follow::EndRule;
use sterna_proto::session::Overwrite;
use sterna_proto::{Error, Growth, Location, Setting};

use super::spec::CopySpec;
use crate::disk::{Root, has_wildcards, last_name};
use crate::source::{Follow, FollowRules};

/// Minimum idle time of files that are deleted or moved afterwards. Reason: a writer that writes once a second is not
/// idle, and not every file system reports which process has a file open.
const IDLE_LEAST: Duration = Duration::from_secs(1);

/// Checks that following, deleting and moving are only requested for a push of files of this host. Errors: `Usage`.
pub(super) fn check(options: &CopySpec) -> Result<(), Error> {
    let is_push = matches!(options.destination, Location::Remote(_));
    let is_ours = options.sources.iter().all(|source| matches!(source, Location::Local(_)));
    let asked = match (&options.follow, &options.disposition) {
        (Some(_), _) => "files are followed",
        (None, Some(_)) => "sources are deleted or moved",
        (None, None) => return Ok(()),
    };
    let setting: &[Setting] = if options.follow.is_some() { &[Setting::Follow] } else { &[Setting::SourceDisposition] };
    if let (Some(EndRule { idle, .. }), Some(_)) = (options.follow, &options.disposition)
        && idle < IDLE_LEAST
    {
        let text = format!(
            "a file that pauses for {} s would be deleted or moved under its writer: give an idle time of 1 s or more",
            idle.as_secs_f64()
        );
        return Err(Error::usage(&[Setting::Follow, Setting::SourceDisposition], text));
    }
    if options.dry_run {
        let text = format!("{asked} only when they arrive, and this run copies nothing: leave one of the two out");
        let settings: &[Setting] = if options.follow.is_some() {
            &[Setting::Follow, Setting::DryRun]
        } else {
            &[Setting::SourceDisposition, Setting::DryRun]
        };
        return Err(Error::usage(settings, text));
    }
    if is_push && is_ours {
        return Ok(());
    }
    let text = format!("{asked} only where they are read, at this host: run the copy at the host that has the sources");
    Err(Error::usage(setting, text))
}

/// Checks that no two sources can have files of the same name at the destination: the later file would replace the
/// earlier.
///
/// Errors: `Usage`. A copy that ends detects this in its manifest; a copy that follows has no end.
fn check_names(sources: &[PathBuf]) -> Result<(), Error> {
    use std::os::unix::ffi::OsStrExt;
    let usage = |path: &PathBuf| {
        let text = format!(
            "{} and another source may have files of the same name at the destination: follow each with a separate copy, \
             to a separate place",
            path.display()
        );
        Err(Error::usage(&[Setting::Follow], text))
    };
    let mut names: HashSet<&[u8]> = HashSet::new();
    for path in sources {
        let bytes = path.as_os_str().as_bytes();
        let name = last_name(bytes);
        let above = bytes.strip_suffix(name.unwrap_or_default()).unwrap_or(bytes);
        let means_many = name.is_none_or(has_wildcards) && sources.len() > 1 || has_wildcards(above) && !path.exists();
        if means_many || !name.is_none_or(|name| names.insert(name)) {
            return usage(path);
        }
    }
    Ok(())
}

/// Returns the follower of `sources`, if the options request one. Also checks that sources can be deleted or moved
/// afterwards.
///
/// Errors: a source does not exist, `Usage`.
pub(super) fn prepare(options: &CopySpec, sources: &[PathBuf]) -> Result<Option<Arc<Follow>>, Error> {
    use std::os::unix::ffi::OsStrExt;
    if options.follow.is_none() && options.disposition.is_none() {
        return Ok(None);
    }
    let open = |path: &PathBuf| Root::for_local_source(path.as_os_str().as_bytes());
    let roots = sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    if let Some(disposition) = &options.disposition {
        let named: Vec<_> = roots.iter().map(|(root, _)| root.clone()).zip(sources.iter().cloned()).collect();
        disposition.check(&named)?;
    }
    let Some(end) = options.follow else { return Ok(None) };
    check_names(sources)?;
    let rules =
        FollowRules { end, growth: Growth::for_rate(options.target()), takes_away: options.disposition.is_some() };
    Follow::new(roots, rules).map(|follow| Some(Arc::new(follow)))
}

/// Returns the treatment of files that exist. If sources are deleted or moved afterwards, a file that looks up to date
/// is copied again. Reason: only its bytes can prove that it is equal.
pub(super) fn overwrite(options: &CopySpec) -> Overwrite {
    match (options.overwrite, &options.disposition) {
        (Overwrite::IfChanged, Some(_)) => Overwrite::Always,
        (overwrite, _) => overwrite,
    }
}
