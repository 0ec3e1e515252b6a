//! Verbs of HTTP and WebDAV storages: the state of a file, directories, deletion, renaming.
//!
//! Knows the traps of each server: which status stands for which outcome. Refuses to move data.

use std::time::Duration;

use hyper::header::{CONTENT_LENGTH, ETAG, HeaderMap};
use sterna_proto::web::WebLocation;
use sterna_proto::{Algorithm, Digest, Error, ErrorKind, Phase};
use tokio::time::sleep;

use super::client::{Client, End, Request};
use super::{digest, failure, location};

/// Time limit of a request about a file. Reason: a file system that wakes up disks, or asks a name server.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// Time limit of a request that asks for a digest: the storage may read the file first. Reason: 1 TB at 1 GB/s.
const DIGEST_TIME_MAX: Duration = Duration::from_secs(1000);

/// Waits between requests for a digest that is not ready. Reason: EOS reports zero at first; dCache answers 202 while
/// it computes.
const DIGEST_WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// State of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// Size in bytes, if the storage reports it.
    pub size: Option<u64>,
    /// Digest that was asked for, if the storage has it.
    pub digest: Option<Digest>,
    /// Entity tag: another one stands for other content.
    pub tag: Option<String>,
}

/// Outcome of a renaming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renamed {
    /// The file has its new name.
    Done,
    /// The storage cannot rename.
    Unsupported,
}

/// Returns the size in `Content-Length`.
pub(super) fn size_in(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the entity tag.
pub(super) fn tag_in(headers: &HeaderMap) -> Option<String> {
    headers.get(ETAG)?.to_str().ok().map(str::to_owned)
}

/// Returns the state of a file; `None`: there is none. `wanted`: algorithm of the digest.
pub(super) async fn stat(
    client: &Client,
    end: &End,
    phase: Phase,
    wanted: Option<Algorithm>,
) -> Result<Option<Stat>, Error> {
    let mut waits = DIGEST_WAITS.into_iter();
    let want = wanted.and_then(digest::name_in_header);
    loop {
        let headers = want.map(|name| (digest::WANT_DIGEST, name.to_owned())).into_iter().collect();
        let time = if want.is_some() { DIGEST_TIME_MAX } else { REQUEST_TIME_MAX };
        let request = Request { method: "HEAD", end, headers, time, phase, passive_token: None };
        let place = if want.is_some() { client.digest_place(end).await } else { None };
        let reply = client.send(&request).await?;
        let found = match reply.status {
            404 | 410 => None,
            status if (200..300).contains(&status) => Some(Stat {
                size: size_in(&reply.headers),
                digest: wanted.and_then(|algorithm| digest::read_header(&reply.headers, algorithm)),
                tag: tag_in(&reply.headers),
            }),
            _ => return Err(client.refused(&request, reply).await),
        };
        let is_unready = reply.status == 202
            || found.as_ref().is_some_and(|stat| stat.size != Some(0) && stat.digest.is_some_and(digest::is_unready));
        client.finish(reply).await;
        drop(place);
        match waits.next().filter(|_| is_unready) {
            Some(wait) => sleep(wait).await,
            None => return Ok(found),
        }
    }
}

/// Returns what tells a file at a storage from another one that is there later: its ETag, or else its checksum (XRootD
/// has no ETag); `Some(None)`: neither is known; `None`: there is no file.
pub(super) async fn identity(client: &Client, end: &End) -> Result<Option<Option<String>>, Error> {
    let Some(stat) = stat(client, end, Phase::Finalise, None).await? else { return Ok(None) };
    if stat.tag.is_some() {
        return Ok(Some(stat.tag));
    }
    let stat = self::stat(client, end, Phase::Finalise, Some(Algorithm::Adler32)).await?;
    Ok(stat.map(|stat| stat.digest.map(|digest| digest.to_string())))
}

/// Deletes a file. Returns true if it was there.
pub(super) async fn delete(client: &Client, end: &End) -> Result<bool, Error> {
    let request = Request {
        method: "DELETE",
        end,
        headers: Vec::new(),
        time: REQUEST_TIME_MAX,
        phase: Phase::Finalise,
        passive_token: None,
    };
    let reply = client.send(&request).await?;
    match reply.status {
        404 | 410 => {
            client.finish(reply).await;
            Ok(false)
        }
        status if (200..300).contains(&status) => {
            client.finish(reply).await;
            Ok(true)
        }
        _ => Err(client.refused(&request, reply).await),
    }
}

/// Renames a file. `may_replace`: a file of the new name is replaced.
///
/// Errors: `Exists`. XRootD replaces in any case.
pub(super) async fn rename(client: &Client, from: &End, to: &WebLocation, may_replace: bool) -> Result<Renamed, Error> {
    let overwrite = if may_replace { "T" } else { "F" };
    let headers = vec![("destination", to.url().to_owned()), ("overwrite", overwrite.to_owned())];
    let request = Request {
        method: "MOVE",
        end: from,
        headers,
        time: REQUEST_TIME_MAX,
        phase: Phase::Finalise,
        passive_token: None,
    };
    let reply = client.send(&request).await?;
    match reply.status {
        // 400 and 502: a server behind a TLS proxy takes the destination for another host.
        400 | 405 | 501 | 502 => {
            client.finish(reply).await;
            Ok(Renamed::Unsupported)
        }
        status if (200..300).contains(&status) => {
            client.finish(reply).await;
            Ok(Renamed::Done)
        }
        _ => Err(client.refused(&request, reply).await),
    }
}

/// Makes the directories above a file.
pub(super) async fn make_parents(client: &Client, end: &End) -> Result<(), Error> {
    let parents = location::parents(&end.at);
    let mut missing = Vec::new();
    // From the nearest up to the first that is there, and down again.
    for parent in parents {
        let parent = end.with(parent);
        if make_directory(client, &parent).await? {
            break;
        }
        missing.push(parent);
    }
    for parent in missing.iter().rev() {
        if !make_directory(client, parent).await? {
            let text = format!("MKCOL {}: a directory above it is missing, and is not made", parent.at);
            return Err(failure::error(ErrorKind::NotFound, end.scope, Phase::Prepare, text));
        }
    }
    Ok(())
}

/// Makes a directory. Returns false if the one above it is missing; true if it is there now.
async fn make_directory(client: &Client, end: &End) -> Result<bool, Error> {
    let request = Request {
        method: "MKCOL",
        end,
        headers: Vec::new(),
        time: REQUEST_TIME_MAX,
        phase: Phase::Prepare,
        passive_token: None,
    };
    let reply = client.send(&request).await?;
    let is_there = match reply.status {
        404 | 409 => false,
        405 => true,
        status if (200..300).contains(&status) => true,
        _ => return Err(client.refused(&request, reply).await),
    };
    client.finish(reply).await;
    Ok(is_there)
}
