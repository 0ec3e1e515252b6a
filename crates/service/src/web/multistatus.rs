//! Answers of WebDAV to `PROPFIND` (RFC 4918, section 13): one resource at a time, as the bytes come.
//!
//! Bounds what a hostile server can make this process keep: the depth of elements, the bytes of one of them, and the
//! text of a value. Refuses to know which resources were asked for.

use std::pin::Pin;
use std::task::{Context, Poll};

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use sterna_proto::ErrorKind;
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

/// Maximum depth of elements. Reason: WebDAV needs 6.
const DEPTH_MAX: usize = 32;

/// Maximum bytes of one tag, text or comment. Reason: a location has 8 kB.
const EVENT_BYTES_MAX: usize = 256 << 10;

/// Maximum bytes from one resource to the next. Reason: real ones have 1 kB; the rest is of no use.
const RESOURCE_BYTES_MAX: usize = 8 << 20;

/// Maximum bytes of a value that is kept. Reason: the longest path, with every byte percent-encoded and escaped.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Resource of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    /// Reference, as it was sent.
    pub href: String,
    /// It is a directory.
    pub is_directory: bool,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Status of a resource that the server does not describe.
    pub refused: Option<u16>,
}

/// Failure to read an answer.
#[derive(Debug)]
pub(super) struct Unread {
    /// Kind.
    pub kind: ErrorKind,
    /// Reason, for people.
    pub text: String,
}

fn malformed(why: impl std::fmt::Display) -> Unread {
    Unread { kind: ErrorKind::Protocol, text: format!("the answer is no list of WebDAV: {why}") }
}

/// Element that has a meaning. The prefix of its name has none: servers choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Multistatus,
    Response,
    Href,
    Propstat,
    Prop,
    Status,
    ResourceType,
    Collection,
    ContentLength,
    Other,
}

impl Tag {
    fn named(name: &str) -> Self {
        match name {
            "multistatus" => Self::Multistatus,
            "response" => Self::Response,
            "href" => Self::Href,
            "propstat" => Self::Propstat,
            "prop" => Self::Prop,
            "status" => Self::Status,
            "resourcetype" => Self::ResourceType,
            "collection" => Self::Collection,
            "getcontentlength" => Self::ContentLength,
            _ => Self::Other,
        }
    }
}

/// Properties of a resource, with one status for all of them.
#[derive(Clone, Debug, Default)]
struct Properties {
    has_type: bool,
    is_collection: bool,
    size: Option<u64>,
    status: Option<u16>,
}

/// Resource that is being read.
#[derive(Debug, Default)]
struct Partial {
    href: String,
    /// Status of the whole resource.
    status: Option<u16>,
    /// Those of the present `propstat`.
    present: Properties,
    /// Those that the server has.
    known: Properties,
    has_known: bool,
}

impl Partial {
    fn end_properties(&mut self) {
        let ended = std::mem::take(&mut self.present);
        if ended.status.is_none_or(is_success) {
            self.has_known = true;
            self.known.has_type |= ended.has_type;
            self.known.is_collection |= ended.is_collection;
            self.known.size = self.known.size.or(ended.size);
        } else {
            self.status = self.status.or(ended.status);
        }
    }

    fn finish(self) -> Result<Resource, Unread> {
        let href = self.href.trim().to_owned();
        if href.is_empty() {
            return Err(malformed("a resource without a reference"));
        }
        // A server without types shows a directory by its slash.
        let is_directory = self.known.is_collection || !self.known.has_type && href.ends_with('/');
        let refused = self.status.filter(|status| !is_success(*status) && !self.has_known);
        Ok(Resource { href, is_directory, size: self.known.size.filter(|_| !is_directory), refused })
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Returns the number in a status line such as `HTTP/1.1 200 OK`.
fn status_in(text: &str) -> Option<u16> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Answer that is being read.
pub(super) struct Multistatus<R> {
    reader: Reader<Bounded<R>>,
    buffer: Vec<u8>,
    /// Elements that are open.
    open: Vec<Tag>,
    text: String,
    partial: Partial,
    has_begun: bool,
}

impl<R: AsyncBufRead + Unpin> Multistatus<R> {
    /// Creates it.
    pub fn new(body: R) -> Self {
        let mut reader =
            Reader::from_reader(Bounded { inner: body, of_event: EVENT_BYTES_MAX, of_resource: RESOURCE_BYTES_MAX });
        reader.config_mut().expand_empty_elements = true;
        let (buffer, open, text) = (Vec::new(), Vec::new(), String::new());
        Self { reader, buffer, open, text, partial: Partial::default(), has_begun: false }
    }

    /// Returns the next resource; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Resource>, Unread> {
        self.reader.get_mut().of_resource = RESOURCE_BYTES_MAX;
        loop {
            self.buffer.clear();
            self.reader.get_mut().of_event = EVENT_BYTES_MAX;
            let event = self.reader.read_event_into_async(&mut self.buffer).await;
            let text = match event.map_err(unread)? {
                Event::Start(start) => {
                    let tag = Tag::named(start.local_name().into_inner());
                    self.start(tag)?;
                    continue;
                }
                Event::End(_) => match self.end()? {
                    Some(resource) => return Ok(Some(resource)),
                    None => continue,
                },
                Event::Text(text) => text.xml10_content().into_owned(),
                Event::CData(text) => text.xml10_content().into_owned(),
                Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(malformed)? {
                    Some(c) => c.to_string(),
                    None => {
                        let name = reference.xml10_content();
                        let known = resolve_predefined_entity(&name);
                        known.ok_or_else(|| malformed("an entity that XML does not define"))?.to_owned()
                    }
                },
                Event::DocType(_) => return Err(malformed("a document type, which WebDAV has not")),
                Event::Eof if self.open.is_empty() && self.has_begun => return Ok(None),
                Event::Eof => return Err(malformed("it ends too early")),
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => continue,
            };
            self.add(&text)?;
        }
    }

    fn start(&mut self, tag: Tag) -> Result<(), Unread> {
        if !self.has_begun && tag != Tag::Multistatus {
            return Err(malformed("it has no multistatus"));
        }
        if self.has_begun && self.open.is_empty() {
            return Err(malformed("it goes on after its end"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(malformed(format!("more than {DEPTH_MAX} elements in each other")));
        }
        self.has_begun = true;
        self.open.push(tag);
        self.text.clear();
        match self.open.as_slice() {
            [Tag::Multistatus, Tag::Response] => self.partial = Partial::default(),
            [_, Tag::Response, Tag::Propstat, Tag::Prop, Tag::ResourceType] => self.partial.present.has_type = true,
            [_, Tag::Response, Tag::Propstat, Tag::Prop, Tag::ResourceType, Tag::Collection] => {
                self.partial.present.is_collection = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Keeps a text, if it is that of a value.
    fn add(&mut self, text: &str) -> Result<(), Unread> {
        if !matches!(self.open.last(), Some(Tag::Href | Tag::Status | Tag::ContentLength)) {
            return Ok(());
        }
        self.text.push_str(text);
        match self.text.len() <= VALUE_BYTES_MAX {
            true => Ok(()),
            false => Err(malformed(format!("a value with more than {VALUE_BYTES_MAX} bytes"))),
        }
    }

    /// Handles the end of the innermost element. Returns the resource that it ends.
    fn end(&mut self) -> Result<Option<Resource>, Unread> {
        let text = std::mem::take(&mut self.text);
        match self.open.as_slice() {
            [_, Tag::Response] => {
                self.open.pop();
                return std::mem::take(&mut self.partial).finish().map(Some);
            }
            [_, Tag::Response, Tag::Href] if self.partial.href.is_empty() => self.partial.href = text,
            [_, Tag::Response, Tag::Status] => self.partial.status = status_in(&text),
            [_, Tag::Response, Tag::Propstat] => self.partial.end_properties(),
            [_, Tag::Response, Tag::Propstat, Tag::Status] => self.partial.present.status = status_in(&text),
            [_, Tag::Response, Tag::Propstat, Tag::Prop, Tag::ContentLength] => {
                self.partial.present.size = text.trim().parse().ok();
            }
            _ => {}
        }
        self.open.pop();
        Ok(None)
    }
}

/// Returns the failure of the reader: a connection that breaks, or bytes that are no XML.
fn unread(error: quick_xml::Error) -> Unread {
    match error {
        quick_xml::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<TooLong>()) => malformed(error),
        quick_xml::Error::Io(error) => {
            Unread { kind: ErrorKind::Unreachable, text: format!("the answer breaks off: {error}") }
        }
        error => malformed(error),
    }
}

/// Error of an element that is too long.
#[derive(Debug)]
struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a tag or text with more than {EVENT_BYTES_MAX} bytes, or {RESOURCE_BYTES_MAX} without a resource")
    }
}

impl std::error::Error for TooLong {}

/// Reader that fails when one event, or one resource, takes too many bytes.
struct Bounded<R> {
    inner: R,
    /// Bytes that are left for each.
    of_event: usize,
    of_resource: usize,
}

impl<R: AsyncBufRead + Unpin> AsyncBufRead for Bounded<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.of_event == 0 || this.of_resource == 0 {
            return Poll::Ready(Err(std::io::Error::other(TooLong)));
        }
        Pin::new(&mut this.inner).poll_fill_buf(context)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        let this = self.get_mut();
        this.of_event = this.of_event.saturating_sub(count);
        this.of_resource = this.of_resource.saturating_sub(count);
        Pin::new(&mut this.inner).consume(count);
    }
}

impl<R: AsyncBufRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8]) -> Result<Vec<Resource>, Unread> {
        let mut multistatus = Multistatus::new(text);
        let mut resources = Vec::new();
        while let Some(resource) = multistatus.next().await? {
            resources.push(resource);
        }
        Ok(resources)
    }

    fn of(href: &str, is_directory: bool, size: Option<u64>) -> Resource {
        Resource { href: href.to_owned(), is_directory, size, refused: None }
    }

    #[tokio::test]
    async fn answers_of_real_servers_are_read() {
        // XRootD 5.5.3; Apache, with a property that it does not have; nginx-dav-ext.
        let xrootd = br#"<?xml version="1.0" encoding="utf-8"?>
            <D:multistatus xmlns:D="DAV:" xmlns:ns1="http://apache.org/dav/props/" xmlns:ns0="DAV:">
            <D:response xmlns:lp1="DAV:"><D:href>/d</D:href><D:propstat><D:prop>
            <lp1:resourcetype><D:collection/></lp1:resourcetype><lp1:iscollection>1</lp1:iscollection>
            </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
            <D:response xmlns:lp1="DAV:"><D:href>/d/a&amp;b</D:href><D:propstat><D:prop>
            <lp1:getcontentlength>7</lp1:getcontentlength><lp1:iscollection>0</lp1:iscollection>
            </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>"#;
        assert_eq!(read(xrootd).await.unwrap(), [of("/d", true, None), of("/d/a&b", false, Some(7))]);
        let apache = br#"<multistatus xmlns="DAV:"><response><href> /d/ </href>
            <propstat><prop><resourcetype><collection/></resourcetype></prop><status>HTTP/1.1 200 OK</status></propstat>
            <propstat><prop><getcontentlength/></prop><status>HTTP/1.1 404 Not Found</status></propstat></response>
            <response><href>http://h/d/x%20y</href><propstat><prop><resourcetype/>
            <getcontentlength>12</getcontentlength></prop><status>HTTP/1.1 200 OK</status></propstat></response>
            <response><href>/d/z</href><status>HTTP/1.1 403 Forbidden</status></response></multistatus>"#;
        let refused = Resource { refused: Some(403), ..of("/d/z", false, None) };
        assert_eq!(
            read(apache).await.unwrap(),
            [of("/d/", true, None), of("http://h/d/x%20y", false, Some(12)), refused]
        );
        let cdata = b"<multistatus><response><href><![CDATA[/a]]>&#x62;/</href></response></multistatus>";
        assert_eq!(read(cdata).await.unwrap(), [of("/ab/", true, None)]);
    }

    #[tokio::test]
    async fn what_is_no_answer_of_webdav_is_refused() {
        let deep = format!("<multistatus>{}", "<a>".repeat(DEPTH_MAX));
        let long = format!("<multistatus><response><href>{}", "x".repeat(EVENT_BYTES_MAX * 3));
        let tag = format!("<multistatus><a b='{}", "x".repeat(EVENT_BYTES_MAX * 3));
        let comment = format!("<multistatus><!--{}", "x".repeat(EVENT_BYTES_MAX * 3));
        let junk = format!("<multistatus>{}", "<a/>".repeat(RESOURCE_BYTES_MAX / 4));
        let parts = format!("<multistatus><response><href>{}", "x<![CDATA[y]]>".repeat(VALUE_BYTES_MAX));
        for (text, expected) in [
            ("", "too early"),
            ("no xml", "too early"),
            ("<html></html>", "no multistatus"),
            ("<multistatus>", "too early"),
            ("<multistatus></a>", "expected"),
            ("<multistatus/><multistatus/>", "after its end"),
            ("<multistatus><response/></multistatus>", "without a reference"),
            ("<!DOCTYPE x [<!ENTITY a \"b\">]><multistatus/>", "document type"),
            ("<multistatus><response><href>&a;", "entity"),
            ("<multistatus><response><href>&#xD800;", ""),
            ("<multistatus><response><href>\u{0}<", ""),
            (&deep, "more than 32 elements"),
            (&long, "a tag or text with more than"),
            (&tag, "a tag or text with more than"),
            (&comment, "a tag or text with more than"),
            (&parts, "a value with more than"),
            (&junk, "without a resource"),
        ] {
            let shown = &text[..text.len().min(60)];
            let error = read(text.as_bytes()).await.expect_err(shown);
            assert!(error.text.contains(expected) && error.kind == ErrorKind::Protocol, "{shown}: {}", error.text);
        }
        assert!(read(b"<multistatus><response><href>/\xff</href></response></multistatus>").await.is_err());
    }
}
