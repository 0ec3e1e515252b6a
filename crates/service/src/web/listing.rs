//! Files beneath a directory of a WebDAV server (RFC 4918): a walk with `PROPFIND` and `Depth: 1`, breadth first.
//!
//! The answer is read as it comes, so that memory is bounded. A server cannot lead the walk out of the directory, nor
//! in a circle: each name must be directly beneath the directory that was asked for. Refuses to know jobs.

use std::collections::VecDeque;
use std::io::Cursor;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, unfold};
use hyper::body::Bytes;
use hyper::header::{HeaderValue, SERVER};
use percent_encoding::percent_decode_str;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::client::{Client, End, Reply, Request};
use super::connection::Identity;
use super::multistatus::{Multistatus, Resource};
use super::transfer::Web;
use super::{failure, location};
use crate::credentials::Proxy;
use crate::listing::{BATCH_BYTES_MAX, BATCH_FILES_MAX, Batch, FoundFile, Unlisted, encoded};

/// Time limit to the head of an answer. Reason: a server may read the whole directory first, from tapes of metadata.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(300);

/// Time limit for the next bytes of an answer. Reason: as for the head of a small one.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time limit from one resource of an answer to the next. Reason: a server that sends blanks for ever must not keep a
/// place that other listings wait for.
const RESOURCE_TIME_MAX: Duration = Duration::from_secs(300);

/// Maximum bytes of one answer. Reason: a million files of 4 KiB each.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// Maximum bytes of the paths of directories that wait for their turn. Reason: memory; real trees need a few MB.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of directories of a walk. Reason: as many as a job has files; a server can invent more for ever.
const DIRECTORIES_MAX: u64 = 1_000_000;

/// Properties that are asked for. Reason: all properties can cost the server a digest of each file.
const PROPERTIES: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind xmlns:D=\"DAV:\"><D:prop>\
                          <D:resourcetype/><D:getcontentlength/></D:prop></D:propfind>";

/// Walk through the directories beneath a prefix.
struct Walk<'a> {
    client: &'a Client,
    prefix: End,
    batches: &'a mpsc::Sender<Batch>,
    /// Directories that wait for their turn; `None`: the prefix itself.
    queue: VecDeque<Option<RelPath>>,
    queue_bytes: usize,
    directories: u64,
    batch: Vec<FoundFile>,
    batch_bytes: usize,
    unlisted: Unlisted,
}

impl Web {
    /// Lists the files beneath a prefix, and sends them in batches. `proxy`: that of the user.
    ///
    /// Errors: those of the server; of single directories; `Usage`, if it is no WebDAV server; `Cancelled`, if nobody
    /// receives the batches. Cancel safety: drop it.
    pub async fn list(&self, prefix: &str, proxy: Option<Proxy>, batches: &mpsc::Sender<Batch>) -> Result<(), Error> {
        let identity = Identity { token: None, proxy };
        let prefix = End { at: location::read(prefix)?, identity, scope: Scope::Source };
        let mut walk = Walk {
            client: self.client(),
            prefix,
            batches,
            queue: VecDeque::from([None]),
            queue_bytes: 0,
            directories: 1,
            batch: Vec::new(),
            batch_bytes: 0,
            unlisted: Unlisted::default(),
        };
        walk.run().await
    }
}

impl Walk<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        while let Some(directory) = self.queue.pop_front() {
            self.queue_bytes -= directory.as_ref().map_or(0, |path| path.as_bytes().len());
            match (self.list(directory.as_ref()).await, &directory) {
                (Ok(()), _) => {}
                // It was deleted since its parent was listed.
                (Err(error), Some(_)) if error.kind == ErrorKind::NotFound => {}
                (Err(error), Some(_)) if error.kind == ErrorKind::Denied => self.unlisted.add(error),
                (Err(error), _) => {
                    // The files found before are copied in any case.
                    self.send().await?;
                    return Err(error);
                }
            }
        }
        self.send().await?;
        std::mem::take(&mut self.unlisted).outcome()
    }

    /// Lists one directory.
    async fn list(&mut self, directory: Option<&RelPath>) -> Result<(), Error> {
        let at = match directory {
            None => self.prefix.at.clone(),
            // Not joined: a path that begins with two slashes would name a host.
            Some(path) => {
                let prefix = &self.prefix.at;
                match WebLocation::parse(&format!("{}{}{}/", prefix.origin(), prefix.path(), encoded(path))) {
                    Ok(at) => at,
                    // Its name is too long for a location. The directories beside it are listed.
                    Err(error) => {
                        self.unlisted.add(error);
                        return Ok(());
                    }
                }
            }
        };
        let end = self.prefix.with(at);
        let headers = vec![("depth", "1".to_owned()), ("content-type", "application/xml; charset=utf-8".to_owned())];
        let request = Request {
            method: "PROPFIND",
            end: &end,
            headers,
            time: REQUEST_TIME_MAX,
            phase: Phase::Prepare,
            passive_token: None,
        };
        let reply = self.client.send_with(&request, Some(PROPERTIES)).await?;
        match reply.status {
            207 => {}
            400 | 405 | 501 => {
                let (status, text) = (reply.status, "the server lists no directories (it has no WebDAV PROPFIND)");
                self.client.finish(reply).await;
                return Err(request.failed(ErrorKind::Usage, &format!("{status}: {text}")));
            }
            200..300 => {
                let text = format!("{}: expected 207, the status of WebDAV", reply.status);
                return Err(request.failed(ErrorKind::Protocol, &text));
            }
            _ => return Err(self.client.refused(&request, reply).await),
        }
        let base = Spelling::Encoded.names(end.at.path());
        let spelling = Spelling::of(reply.headers.get(SERVER));
        let mut multistatus = Multistatus::new(Body::new(reply));
        let mut is_directory = false;
        loop {
            let next = timeout(RESOURCE_TIME_MAX, multistatus.next()).await.map_err(|_| {
                let text = format!("no further name within {} s", RESOURCE_TIME_MAX.as_secs());
                request.failed(ErrorKind::Unreachable, &text)
            })?;
            let Some(resource) = next.map_err(|why| request.failed(why.kind, &why.text))? else { break };
            let name = name_of(&end.at, &base, &resource.href, spelling)
                .map_err(|why| request.failed(ErrorKind::Protocol, &why))?;
            match (name, resource.refused) {
                (None, None) => is_directory |= resource.is_directory,
                (_, Some(status)) => {
                    let text = format!("{status} for {}", shown(&resource.href));
                    self.unlisted.add(request.failed(failure::kind_of_status(status), &text));
                }
                (Some(name), None) => self.meet(directory, &name, &resource).await?,
            }
        }
        if !is_directory {
            return Err(request.failed(ErrorKind::Usage, "it is no directory"));
        }
        Ok(())
    }

    /// Handles a name in a directory.
    async fn meet(&mut self, directory: Option<&RelPath>, name: &[u8], resource: &Resource) -> Result<(), Error> {
        let path = match directory {
            None => RelPath::new(name),
            Some(directory) => directory.join(name),
        };
        let path = match path {
            Ok(path) => path,
            Err(error) => {
                self.unlisted.add(Error::new(ErrorKind::Limit, Scope::Source, Phase::Prepare, error.text().to_owned()));
                return Ok(());
            }
        };
        if !resource.is_directory {
            self.batch_bytes += path.as_bytes().len();
            self.batch.push(FoundFile { path, size: resource.size });
            let is_full = self.batch.len() >= BATCH_FILES_MAX || self.batch_bytes >= BATCH_BYTES_MAX;
            return if is_full { self.send().await } else { Ok(()) };
        }
        self.queue_bytes += path.as_bytes().len();
        self.directories += 1;
        if self.queue_bytes > QUEUE_BYTES_MAX || self.directories > DIRECTORIES_MAX {
            let text = format!(
                "list {}: more than {DIRECTORIES_MAX} directories, or {QUEUE_BYTES_MAX} bytes of their paths, the maximum",
                self.prefix.at
            );
            return Err(
                failure::error(ErrorKind::Limit, Scope::Source, Phase::Prepare, text).retry(sterna_proto::Retry::Never)
            );
        }
        self.queue.push_back(Some(path));
        Ok(())
    }

    /// Sends the files found since the last batch.
    async fn send(&mut self) -> Result<(), Error> {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.batches.send(Batch::Files(batch)).await.map_err(|_| {
            let text = "the listing was stopped";
            failure::error(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, text)
        })
    }
}

/// Spelling of references in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Percent-encoded (RFC 4918, section 8.3).
    Encoded,
    /// As the names are. Source: XRootD, up to 6.1.
    Plain,
}

impl Spelling {
    /// Returns the spelling of a server, by the header with its name.
    fn of(server: Option<&HeaderValue>) -> Self {
        let is_xrootd = server.is_some_and(|name| name.as_bytes().starts_with(b"XrootD"));
        if is_xrootd { Self::Plain } else { Self::Encoded }
    }

    /// Returns the names of a path, without empty ones.
    fn names(self, path: &str) -> Vec<Vec<u8>> {
        // No encoded path has these: another server does not encode either.
        let is_plain =
            self == Self::Plain || path.bytes().any(|byte| !byte.is_ascii_graphic() || b"\"<>^`{|}".contains(&byte));
        let names = path.split('/').filter(|name| !name.is_empty());
        names.map(|name| if is_plain { name.as_bytes().to_vec() } else { percent_decode_str(name).collect() }).collect()
    }
}

/// Returns the name of a reference in the directory `base` at a location; `None`: it is the directory itself.
///
/// Errors: it is neither, in words.
fn name_of(at: &WebLocation, base: &[Vec<u8>], href: &str, spelling: Spelling) -> Result<Option<Vec<u8>>, String> {
    // Only the path counts: the host is the one that was asked.
    let mut names = match href.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            spelling.names(rest.split_once('/').map_or("", |(_, path)| path))
        }
        _ if href.starts_with('/') => spelling.names(href),
        // A relative reference (RFC 3986, section 5.2).
        _ => Spelling::Encoded
            .names(at.path())
            .into_iter()
            .chain(spelling.names(href.trim_start_matches("./")))
            .collect(),
    };
    if names == base {
        return Ok(None);
    }
    let outside = || format!("the answer names {}, which is not directly beneath it", shown(href));
    let name = names.pop().filter(|_| names == base).ok_or_else(outside)?;
    // A name has no slash in it, and is no step upward.
    let is_name = !name.contains(&b'/') && !matches!(&name[..], b"." | b"..");
    is_name.then_some(Some(name)).ok_or_else(outside)
}

/// Returns a reference for an error text.
fn shown(href: &str) -> String {
    format!("{:?}", href.chars().take(200).collect::<String>())
}

/// Body of an answer, as a reader that ends with an error after too long a silence or too many bytes.
pub(super) struct Body {
    stream: BoxStream<'static, std::io::Result<Bytes>>,
    current: Cursor<Bytes>,
}

impl Body {
    fn new(reply: Reply) -> Self {
        let failed = |text: &str| std::io::Error::other(text.to_owned());
        let stream = unfold(Some((reply, 0u64)), move |state| async move {
            let (mut reply, mut taken) = state?;
            let item = match timeout(SILENCE_MAX, reply.bytes()).await {
                Err(_) => Err(failed(&format!("nothing has come for {} s", SILENCE_MAX.as_secs()))),
                Ok(Err(e)) => Err(std::io::Error::other(e)),
                Ok(Ok(None)) => return None,
                Ok(Ok(Some(bytes))) => {
                    taken += bytes.len() as u64;
                    match taken > ANSWER_BYTES_MAX {
                        true => Err(failed(&format!("the answer has more than {ANSWER_BYTES_MAX} bytes, the maximum"))),
                        false => return Some((Ok(bytes), Some((reply, taken)))),
                    }
                }
            };
            Some((item, None))
        });
        Self { stream: stream.boxed(), current: Cursor::default() }
    }
}

impl AsyncBufRead for Body {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<&[u8]>> {
        let this = self.get_mut();
        while this.current.position() >= this.current.get_ref().len() as u64 {
            match this.stream.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(&[])),
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Err(e)),
                Poll::Ready(Some(Ok(bytes))) => this.current = Cursor::new(bytes),
            }
        }
        let position = usize::try_from(this.current.position()).unwrap_or(usize::MAX);
        Poll::Ready(Ok(this.current.get_ref().get(position..).unwrap_or_default()))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        let this = self.get_mut();
        this.current.set_position(this.current.position() + count as u64);
    }
}

impl AsyncRead for Body {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let bytes = match self.as_mut().poll_fill_buf(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(bytes) => bytes?,
        };
        let count = bytes.len().min(buffer.remaining());
        buffer.put_slice(bytes.get(..count).unwrap_or_default());
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_directly_beneath_their_directory_in_every_spelling() {
        let at = WebLocation::parse("https://h//a%20b/c/").unwrap();
        let base = Spelling::Encoded.names(at.path());
        let name = |href: &str, spelling| name_of(&at, &base, href, spelling);
        for (href, spelling, expected) in [
            ("/a%20b/c/", Spelling::Encoded, None),
            ("https://h:443/a%20b/c", Spelling::Encoded, None),
            ("/a b/c/", Spelling::Plain, None),
            ("/a b/c/f", Spelling::Encoded, Some("f")),
            ("//a%20b//c//f/", Spelling::Encoded, Some("f")),
            ("https://other/a%20b/c/x%20y", Spelling::Encoded, Some("x y")),
            ("f", Spelling::Encoded, Some("f")),
            ("./f/", Spelling::Encoded, Some("f")),
            ("/a b/c/100%25", Spelling::Plain, Some("100%25")),
            ("/a%20b/c/100%", Spelling::Encoded, Some("100%")),
            ("/a%20b/c/x://y", Spelling::Encoded, None),
        ] {
            let found = name(href, spelling);
            match href.ends_with("x://y") {
                true => assert!(found.is_err(), "{href}"),
                false => assert_eq!(found.unwrap(), expected.map(|name: &str| name.as_bytes().to_vec()), "{href}"),
            }
        }
        for href in [
            "/",
            "",
            "/a%20b",
            "/a%20b/c/d/e",
            "/a%20b/c/../f",
            "/a%20b/c/%2E%2e",
            "/x/c/f",
            "../c/f",
            "/a%20b/c/a%2Fb",
        ] {
            let found = name(href, Spelling::Encoded);
            assert!(found.is_err() || href.is_empty(), "{href}: {found:?}");
        }
    }
}
