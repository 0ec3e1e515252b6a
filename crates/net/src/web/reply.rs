//! Head of an answer: what its status and headers state about the file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_proto::{FileTime, Retry};
use ureq::http::response::Parts;
use ureq::http::{HeaderMap, Response, Version as HttpVersion, header};

/// Longest header value that is read, in characters. Reason: no header that is needed comes near.
const VALUE_CHARS_MAX: usize = 1024;

/// Most characters of an unknown `Transfer-Encoding` that are shown. Reason: real ones are shorter.
const CODING_CHARS_MAX: usize = 40;

/// Identification of a version of a file (RFC 9110, section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// Entity tag, as the server sent it.
    pub(super) tag: Option<String>,
    /// Time of the last modification, as the server sent it.
    pub(super) modified: Option<String>,
}

impl Version {
    /// Returns true if the server identifies the version.
    pub(super) fn is_named(&self) -> bool {
        self.tag.is_some() || self.modified.is_some()
    }

    /// Returns the tag that guarantees every byte; `None` when there is none, or it is a weak one.
    pub(super) fn strong_tag(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| tag.starts_with('"') && tag.len() > 2)
    }

    /// Returns the tag without its mark of weakness. Reason: Apache marks the tag of a file younger than a second
    /// as weak. Later the same tag is a strong one.
    pub(super) fn opaque_tag(&self) -> Option<&str> {
        self.tag.as_deref().map(|tag| tag.strip_prefix("W/").unwrap_or(tag))
    }

    /// Returns the value for `If-Range`: the server then sends a range of this version, or another version whole.
    pub(super) fn if_range(&self) -> Option<&str> {
        self.strong_tag().or_else(|| self.modified.as_deref().filter(|_| self.tag.is_none()))
    }

    /// Returns the difference to a later answer, as text.
    pub(super) fn difference(&self, later: &Self) -> Option<&'static str> {
        match (self.opaque_tag(), later.opaque_tag()) {
            (Some(before), Some(now)) if before != now => Some("another ETag"),
            (Some(_), None) => Some("no ETag any more"),
            // An equal strong tag guarantees the bytes, even if servers behind one name report different times.
            (Some(_), Some(_)) if self.strong_tag().is_some() => None,
            _ => (self.modified != later.modified).then_some("another Last-Modified"),
        }
    }

    /// Returns the modification time. Without one, returns a time in the first second of 1970 that depends on
    /// `number`, the number of the version. Reason: a later copy then sees that the file is another, even if its
    /// size is equal.
    pub(super) fn time(&self, number: u64) -> FileTime {
        let time = self.modified.as_deref().and_then(|text| httpdate::parse_http_date(text).ok());
        match time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
            Some(since) => FileTime { seconds: since.as_secs() as i64, nanoseconds: 0 },
            None => FileTime { seconds: 0, nanoseconds: (number % 1_000_000_000) as u32 },
        }
    }
}

/// Head of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Size of the whole file; `None` if unknown.
    pub(super) size: Option<u64>,
    /// Offset of the body in the file.
    pub(super) start: u64,
    /// Bytes of the body; `None` if the framing shows its end.
    pub(super) length: Option<u64>,
    /// True if the body comes in chunks; the last chunk is marked as the last.
    pub(super) is_chunked: bool,
    /// Reason why the end of the body or its content is ambiguous, as text.
    pub(super) framing_fault: Option<String>,
    pub(super) version: Version,
    /// True if the server announces range requests.
    pub(super) takes_ranges: bool,
    /// Type of the content in lower case, without parameters.
    pub(super) content_type: String,
    /// `Content-Encoding`, unless it is identity.
    pub(super) encoding: Option<String>,
    pub(super) location: Option<String>,
    /// Time for which the server wants no request.
    pub(super) retry_after: Option<Duration>,
}

impl Reply {
    /// Reads a head. Errors: the text names what is unreadable or contradictory; `Retry` shows if another request
    /// may help.
    pub(super) fn read(head: &Parts, now: SystemTime) -> Result<Self, (Retry, &'static str)> {
        let (status, headers) = (head.status.as_u16(), &head.headers);
        let value = |name: &str| {
            let text = headers.get(name)?.to_str().ok()?.trim();
            (!text.is_empty() && text.len() <= VALUE_CHARS_MAX).then_some(text)
        };
        let owned = |name: &str| value(name).map(str::to_owned);
        let length = value("content-length").and_then(number);
        let (start, size) = match (status, value("content-range")) {
            // Another of the servers behind one name may answer better.
            (206, None) => return Err((Retry::After, "a part of the file without a Content-Range, or several parts")),
            (206, Some(text)) => {
                let unread = (Retry::Never, "a Content-Range that cannot be read");
                let (start, end, size) = content_range(text).ok_or(unread)?;
                if length.is_some_and(|length| length != end + 1 - start) {
                    // A host on the path has cut the answer; another request may get all of it from the server.
                    return Err((Retry::After, "a Content-Length that contradicts its Content-Range"));
                }
                (start, size)
            }
            (416, Some(text)) => (0, text.strip_prefix("bytes */").and_then(number)),
            _ => (0, length),
        };
        let content_type = value("content-type").unwrap_or_default();
        let transfer = transfer_encoding(headers);
        Ok(Self {
            status,
            size,
            start,
            length: if status == 206 { length.or(end_of(value("content-range"), start)) } else { length },
            is_chunked: transfer.as_deref() == Some("chunked"),
            framing_fault: transfer.and_then(|coding| framing_fault(&coding, head)),
            version: Version { tag: owned("etag"), modified: owned("last-modified") },
            takes_ranges: value("accept-ranges").is_some_and(|text| text.eq_ignore_ascii_case("bytes")),
            content_type: content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase(),
            encoding: owned("content-encoding").filter(|text| !text.eq_ignore_ascii_case("identity")),
            location: headers.get("location").and_then(|value| value.to_str().ok()).map(str::to_owned),
            retry_after: value("retry-after").and_then(|text| retry_after(text, now)),
        })
    }

    /// Returns true if the body is an HTML page.
    pub(super) fn is_page(&self) -> bool {
        matches!(self.content_type.as_str(), "text/html" | "application/xhtml+xml")
    }

    /// Returns true if the first bytes are those of an HTML page, and the server names no better type.
    pub(super) fn begins_page(&self, head: &[u8]) -> bool {
        let begins = |text: &str| {
            head.trim_ascii_start().get(..text.len()).is_some_and(|first| first.eq_ignore_ascii_case(text.as_bytes()))
        };
        matches!(self.content_type.as_str(), "" | "text/plain") && (begins("<!doctype html") || begins("<html"))
    }
}

/// Returns all of `Transfer-Encoding`, in lower case.
fn transfer_encoding(headers: &HeaderMap) -> Option<String> {
    let lines: Vec<String> = headers
        .get_all(header::TRANSFER_ENCODING)
        .iter()
        .map(|line| String::from_utf8_lossy(line.as_bytes()).trim().to_ascii_lowercase())
        .collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Returns the fault of a body with the transfer coding `coding` (RFC 9112, sections 6.1 and 6.3).
fn framing_fault(coding: &str, head: &Parts) -> Option<String> {
    if coding != "chunked" {
        let shown: String = coding.chars().take(CODING_CHARS_MAX).collect();
        return Some(format!("the bytes come with a Transfer-Encoding of {shown:?}; only chunks alone are read"));
    }
    // One server on the path may use the length and another the chunks. They then take different bytes for the
    // file.
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        return Some("the answer has both a Content-Length and chunks, of which only one can be right".to_owned());
    }
    let is_old = head.version == HttpVersion::HTTP_10;
    is_old.then(|| "the answer is HTTP/1.0, which has no chunks, and announces chunks".to_owned())
}

/// Parses `bytes 0-99/200` or `bytes 0-99/*`: first and last byte, and the size of the whole file.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (unit, rest) = text.split_once(' ')?;
    let (range, size) = rest.split_once('/').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    let size = if size.trim() == "*" { None } else { Some(number(size)?) };
    (start <= end && size.is_none_or(|size| end < size)).then_some((start, end, size))
}

fn end_of(text: Option<&str>, start: u64) -> Option<u64> {
    content_range(text?).map(|(_, end, _)| end + 1 - start)
}

/// Parses a number of digits only, at most the largest size of a file.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number <= sterna_proto::file::FILE_BYTES_MAX)
}

/// Parses seconds, or a date (RFC 9110, section 10.2.3).
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    match number(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()),
    }
}

/// Reads an answer that a fuzzer generates: status, version and header lines.
pub(crate) fn fuzz(input: &[u8]) {
    let [status, old, lines @ ..] = input else { return };
    // Statuses that are handled separately, and others.
    let status = [200, 206, 301, 416, 429, 503].get(usize::from(*status)).copied().unwrap_or(u16::from(*status) + 100);
    let mut head = Response::builder().status(status);
    head = if *old == 0 { head.version(HttpVersion::HTTP_10) } else { head };
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        head = head.header(&line[..colon], &line[colon + 1..]);
    }
    // Such headers are not passed on by any HTTP library.
    let Ok(response) = head.body(()) else { return };
    let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let Ok(reply) = Reply::read(&response.into_parts().0, now) else { return };
    let end = reply.start.checked_add(reply.length.unwrap_or_default());
    assert!(end.is_some_and(|end| end <= sterna_proto::file::FILE_BYTES_MAX + 1), "{reply:?}");
    if let (206, Some(size)) = (status, reply.size) {
        assert!(reply.start < size && end.is_some_and(|end| end <= size), "{reply:?}");
    }
    assert!(reply.framing_fault.is_none() || !reply.is_chunked || *old == 0 || reply.length.is_some(), "{reply:?}");
    reply.begins_page(lines);
    reply.version.time(7);
    let same = reply.version.difference(&reply.version);
    assert_eq!(same, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, headers: &[(&'static str, &str)]) -> Result<Reply, (Retry, &'static str)> {
        reply_of(HttpVersion::HTTP_11, status, headers)
    }

    fn reply_of(
        version: HttpVersion,
        status: u16,
        headers: &[(&'static str, &str)],
    ) -> Result<Reply, (Retry, &'static str)> {
        let head = Response::builder().version(version).status(status);
        let head = headers.iter().fold(head, |head, (name, value)| head.header(*name, *value));
        let head = head.body(()).unwrap().into_parts().0;
        Reply::read(&head, UNIX_EPOCH + Duration::from_secs(1_000_000_000))
    }

    #[test]
    fn a_part_says_where_it_lies_and_how_long_the_file_is() {
        let part = reply(206, &[("content-range", "bytes 10-19/100"), ("content-length", "10")]).unwrap();
        assert_eq!((part.start, part.length, part.size), (10, Some(10), Some(100)));
        let part = reply(206, &[("content-range", "Bytes 0-0/*")]).unwrap();
        assert_eq!((part.start, part.length, part.size), (0, Some(1), None));
        let whole = reply(200, &[("content-length", "7"), ("content-type", "Text/HTML; charset=x")]).unwrap();
        assert!((whole.start, whole.length, whole.size) == (0, Some(7), Some(7)) && whole.is_page());
        for wrong in ["bytes 19-10/100", "bytes 10-19/15", "bytes a-b/c", "10-19/100", "bytes 0-18446744073709551615/*"]
        {
            assert_eq!(reply(206, &[("content-range", wrong)]).unwrap_err().0, Retry::Never, "{wrong}");
        }
        let cut = reply(206, &[("content-range", "bytes 0-9/100"), ("content-length", "11")]);
        assert_eq!(cut.unwrap_err().0, Retry::After);
        assert!(reply(206, &[("content-type", "multipart/byteranges; boundary=x")]).is_err());
        assert_eq!(reply(416, &[("content-range", "bytes */0")]).unwrap().size, Some(0));
        assert_eq!(reply(200, &[("content-length", "-7")]).unwrap().length, None);
    }

    #[test]
    fn first_bytes_tell_a_page_that_has_no_type() {
        let untyped = reply(200, &[]).unwrap();
        for page in ["<html>", "\r\n\t <HTML lang=x>", "<!DOCTYPE html>", "<!doctype HTML PUBLIC \"x\">"] {
            assert!(untyped.begins_page(page.as_bytes()), "{page}");
        }
        for data in ["", "<htm", "<!doctype xml>", "<?xml ?><x>", "x<html>"] {
            assert!(!untyped.begins_page(data.as_bytes()), "{data}");
        }
        let typed = |text: &str| reply(200, &[("content-type", text)]).unwrap();
        assert!(typed("text/plain; charset=utf-8").begins_page(b"<html>"));
        assert!(!typed("application/octet-stream").begins_page(b"<html>"));
    }

    #[test]
    fn a_body_has_one_end() {
        let fault = |version, headers: &[_]| reply_of(version, 200, headers).unwrap().framing_fault;
        let chunked = ("transfer-encoding", "Chunked");
        assert_eq!(fault(HttpVersion::HTTP_11, &[chunked]), None);
        assert_eq!(fault(HttpVersion::HTTP_10, &[("content-length", "7")]), None);
        assert!(fault(HttpVersion::HTTP_11, &[chunked, ("content-length", "7")]).unwrap().contains("both"));
        assert!(fault(HttpVersion::HTTP_10, &[chunked]).unwrap().contains("HTTP/1.0"));
        for coding in ["gzip", "gzip, chunked", "identity", "chunked, chunked", ""] {
            let said = fault(HttpVersion::HTTP_11, &[("transfer-encoding", coding)]).unwrap();
            assert!(said.contains(&format!("{coding:?}")), "{said}");
        }
        // As a list in two lines.
        assert!(fault(HttpVersion::HTTP_11, &[("transfer-encoding", "gzip"), chunked]).is_some());
    }

    #[test]
    fn a_server_may_say_how_long_to_wait_in_two_ways() {
        let waits = |text: &str| reply(429, &[("retry-after", text)]).unwrap().retry_after;
        assert_eq!(waits("120"), Some(Duration::from_secs(120)));
        assert_eq!(waits("Sun, 09 Sep 2001 01:47:40 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(waits("Sun, 09 Sep 2001 01:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(waits("soon"), None);
    }

    #[test]
    fn versions_differ_by_what_vouches_for_bytes() {
        let version = |tag: Option<&str>, modified: Option<&str>| Version {
            tag: tag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        let strong = version(Some("\"a\""), Some("Sun, 09 Sep 2001 01:47:40 GMT"));
        assert_eq!(strong.if_range(), Some("\"a\""));
        assert_eq!(strong.time(7).seconds, 1_000_000_060);
        assert_ne!(version(Some("\"a\""), None).time(7), version(Some("\"b\""), None).time(8));
        assert_eq!(strong.difference(&version(Some("\"a\""), Some("later"))), None);
        assert!(strong.difference(&version(Some("\"b\""), strong.modified.as_deref())).is_some());
        assert!(strong.difference(&version(None, strong.modified.as_deref())).is_some());
        let weak = version(Some("W/\"a\""), Some("x"));
        assert_eq!((weak.strong_tag(), weak.if_range()), (None, None));
        assert!(weak.difference(&version(Some("W/\"a\""), Some("y"))).is_some());
        assert_eq!(weak.difference(&version(Some("\"a\""), Some("x"))), None);
        let dated = version(None, Some("x"));
        assert_eq!(dated.if_range(), Some("x"));
        assert!(dated.difference(&version(None, Some("y"))).is_some());
        assert_eq!(version(None, None).if_range(), None);
    }
}
