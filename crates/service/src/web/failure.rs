//! Meaning of the failures of storages: from a status, and from the text of a third-party copy.
//!
//! One cause has several statuses: a storage answers 404, 500, or a line of text behind a 201, by its release and by
//! the request that met the cause. Decides from values. Refuses to send requests.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, RETRY_AFTER};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

/// Maximum number of characters of an answer that an error text has. Reason: one line of a log.
const SHOWN_CHARS_MAX: usize = 300;

/// Maximum time that a storage can ask for. Reason: a later request does no harm.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Party of a third-party copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The storage that moves the bytes.
    Active,
    /// The storage that it reads from or writes to.
    Passive,
    /// The connection between the two.
    Between,
}

/// Returns the use of another attempt after a failure of this kind at one end.
pub(super) fn retry_of(kind: ErrorKind, scope: Scope) -> Retry {
    match kind {
        ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Untrusted if scope == Scope::Source => Retry::OtherReplica,
        ErrorKind::Exists | ErrorKind::Usage | ErrorKind::Denied | ErrorKind::Untrusted => Retry::Never,
        _ => Retry::After,
    }
}

/// Creates the error of a kind at one end.
pub(super) fn error(kind: ErrorKind, scope: Scope, phase: Phase, text: impl Into<String>) -> Error {
    Error::new(kind, scope, phase, text).retry(retry_of(kind, scope))
}

/// Returns the error of a status. `tried`: method and location; `body`: text of the answer.
pub(super) fn of_status(
    tried: &str,
    (scope, phase): (Scope, Phase),
    status: u16,
    headers: &HeaderMap,
    body: &str,
) -> Error {
    // Servers write more of the cause into the text than into the status.
    let kind = match kind_of_status(status) {
        ErrorKind::Io | ErrorKind::Usage => kind_of_text(body).map_or_else(|| kind_of_status(status), |(kind, _)| kind),
        kind => kind,
    };
    let shown = shown(body);
    let text = if shown.is_empty() { format!("{tried}: {status}") } else { format!("{tried}: {status}: {shown}") };
    let failed = error(kind, scope, phase, text);
    match retry_after(headers, SystemTime::now()) {
        Some(wait) => failed.wait_for(wait),
        None => failed,
    }
}

/// Returns the kind of a status.
pub(super) fn kind_of_status(status: u16) -> ErrorKind {
    match status {
        404 | 410 => ErrorKind::NotFound,
        401 | 403 => ErrorKind::Denied,
        412 => ErrorKind::Exists,
        413 | 507 => ErrorKind::NoSpace,
        423 | 429 | 503 => ErrorKind::Busy,
        408 | 502 | 504 => ErrorKind::Unreachable,
        400 | 405 | 409 | 501 => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
}

/// Phrases of the answers and verdicts of XRootD, dCache and StoRM, in lower case: the kind of the failure, and the
/// party that has failed. The first that is found counts. Source: runs of XRootD 5.5.3 and 6.1.0, and code of the
/// others.
const PHRASES: [(&str, ErrorKind, Party); 22] = [
    ("no space left", ErrorKind::NoSpace, Party::Active),
    ("quota", ErrorKind::NoSpace, Party::Active),
    ("insufficient storage", ErrorKind::NoSpace, Party::Active),
    ("not enough free space", ErrorKind::NoSpace, Party::Active),
    ("no such file", ErrorKind::NotFound, Party::Active),
    ("file exists", ErrorKind::Exists, Party::Active),
    ("is a directory", ErrorKind::Exists, Party::Active),
    ("permission denied", ErrorKind::Denied, Party::Active),
    ("local/private addresses", ErrorKind::Denied, Party::Between),
    ("couldn't connect", ErrorKind::Unreachable, Party::Between),
    ("connection refused", ErrorKind::Unreachable, Party::Between),
    ("resolve host name", ErrorKind::Unreachable, Party::Between),
    ("unknown host", ErrorKind::Unreachable, Party::Between),
    ("ssl ", ErrorKind::Untrusted, Party::Between),
    ("certificate", ErrorKind::Untrusted, Party::Between),
    ("unsupported protocol", ErrorKind::Usage, Party::Between),
    ("transferred a partial file", ErrorKind::Unreachable, Party::Passive),
    ("receiving data from the peer", ErrorKind::Unreachable, Party::Passive),
    ("no bytes have been received", ErrorKind::Unreachable, Party::Passive),
    ("timed out", ErrorKind::Unreachable, Party::Passive),
    ("timeout", ErrorKind::Unreachable, Party::Passive),
    ("checksum", ErrorKind::Corrupt, Party::Passive),
];

/// Returns the kind of a failure that a text describes, and the party that has failed; `None`: the text is unknown.
pub(super) fn kind_of_text(text: &str) -> Option<(ErrorKind, Party)> {
    let text = text.to_ascii_lowercase();
    if let Some(status) = status_in(&text) {
        let kind = kind_of_status(status);
        // The text behind the status has the words of the passive party.
        let better = PHRASES.iter().find(|(phrase, ..)| kind == ErrorKind::Io && text.contains(phrase));
        return Some((better.map_or(kind, |(_, kind, _)| *kind), Party::Passive));
    }
    PHRASES.iter().find(|(phrase, ..)| text.contains(phrase)).map(|(_, kind, party)| (*kind, *party))
}

/// Returns the status of the passive party in a text of the active one: `status code 404` (XRootD), `returned '404 Not
/// Found'` (XRootD 6), `rejected ...: 403 Forbidden` (dCache).
fn status_in(text: &str) -> Option<u16> {
    ["status code ", "returned '", "unexpected status-code: ", "rejected get: ", "rejected put: "]
        .iter()
        .filter_map(|phrase| text.split_once(phrase))
        .find_map(|(_, rest)| rest.get(..3)?.parse().ok().filter(|status| (400..600).contains(status)))
}

/// Returns the beginning of a text on one line.
pub(super) fn shown(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = words.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS_MAX).collect();
    // A page of HTML says less than its status.
    if shown.starts_with('<') {
        shown.clear();
    }
    shown
}

/// Returns the time for which a storage wants no request: seconds, or a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_real_servers_have_a_kind_and_a_party() {
        use ErrorKind::{Denied, Exists, NoSpace, NotFound, Unreachable, Untrusted, Usage};
        for (text, kind, party) in [
            ("Remote side failed with status code 404; error message: \"body of 404 \"", NotFound, Party::Passive),
            (
                "HTTP response code said error: remote host returned '404 Not Found' while fetching file size, local=/e",
                NotFound,
                Party::Passive,
            ),
            ("Remote side failed with status code 403", Denied, Party::Passive),
            ("Remote side failed with status code 507", NoSpace, Party::Passive),
            (
                "Remote side failed with status code 500; error message: \"no space left on device\"",
                NoSpace,
                Party::Passive,
            ),
            ("Couldn't connect to server", Unreachable, Party::Between),
            ("Couldn't resolve host name", Unreachable, Party::Between),
            ("SSL peer certificate or SSH remote key was not OK", Untrusted, Party::Between),
            ("Transferred a partial file", Unreachable, Party::Passive),
            (
                "Error when interacting with local filesystem: Unable to write /f; no space left on device (code=28)",
                NoSpace,
                Party::Active,
            ),
            ("Unable to open /nope; no such file or directory", NotFound, Party::Active),
            ("Unable to create /d20; file exists", Exists, Party::Active),
            ("Unsupported protocol", Usage, Party::Between),
            ("connection to local/private addresses is forbidden", Denied, Party::Between),
        ] {
            assert_eq!(kind_of_text(text), Some((kind, party)), "{text}");
        }
        assert_eq!(kind_of_text("something else"), None);
        assert_eq!(kind_of_text("status code 99x"), None);
    }

    #[test]
    fn a_status_has_kind_scope_and_use_of_another_attempt() {
        let none = HeaderMap::new();
        let at = |scope, status, body: &str| {
            let error = of_status("GET https://h/f", (scope, Phase::Prepare), status, &none, body);
            (error.kind, error.retry)
        };
        use Scope::{Destination, Source};
        assert_eq!(at(Source, 404, ""), (ErrorKind::NotFound, Retry::OtherReplica));
        assert_eq!(at(Source, 403, ""), (ErrorKind::Denied, Retry::OtherReplica));
        assert_eq!(at(Destination, 403, ""), (ErrorKind::Denied, Retry::Never));
        assert_eq!(at(Destination, 507, ""), (ErrorKind::NoSpace, Retry::After));
        assert_eq!(at(Destination, 412, ""), (ErrorKind::Exists, Retry::Never));
        assert_eq!(at(Source, 500, ""), (ErrorKind::Io, Retry::After));
        assert_eq!(at(Source, 500, "Unable to open /f; no such file"), (ErrorKind::NotFound, Retry::OtherReplica));
    }

    #[test]
    fn a_storage_can_ask_for_a_pause() {
        let headers = |value: &'static str| HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(retry_after(&headers("7"), at), Some(Duration::from_secs(7)));
        assert_eq!(retry_after(&headers("Sun, 09 Sep 2001 01:47:40 GMT"), at), Some(Duration::from_secs(60)));
        assert_eq!(retry_after(&headers("99999999999"), at), Some(WAIT_MAX));
        assert_eq!(retry_after(&headers("soon"), at), None);
        let error = of_status("GET x", (Scope::Source, Phase::Prepare), 503, &headers("9"), "");
        assert_eq!((error.kind, error.wait()), (ErrorKind::Busy, Some(Duration::from_secs(9))));
    }

    #[test]
    fn answers_are_shown_on_one_line_and_pages_are_not() {
        assert_eq!(shown("a\n b\t\u{7}c"), "a b c");
        assert_eq!(shown("<html><h1>404</h1>"), "");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_CHARS_MAX);
    }
}
