//! Client of the native interface of a transfer service: one HTTPS request at a time.
//!
//! Turns replies into values, and everything else into errors that name the request and the next step. Replies are
//! untrusted: their bytes are bounded here, and whoever prints them makes them plain.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::{AlertDescription, CertificateError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_service::api::native::types::{Accepted, Banned, FileView, JobView, Problem};
use ureq::http::{Method, Request, StatusCode};
use ureq::{Agent, SendBody};

use super::credentials::{Credentials, is_this_host};
use crate::flags::service::{ServiceFlags, ServiceUrl};

/// Time limit of a request without a body. Reason: clients of FTS3 wait as long.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// Rate at which a body is sent at least; a large one gets more time. Reason: a manifest of 100 MB over 8 Mbit/s.
const BODY_BYTES_PER_S_MIN: u64 = 1_000_000;

/// Maximum bytes of a reply. Reason: a page of 1000 files with the longest locations and metadata has 25 MB.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// Maximum characters of the text of a problem. Reason: a few lines; the service cuts none.
const TEXT_CHARS_MAX: usize = 2000;

/// Characters that stay as they are in a part of a path. Source: RFC 3986, unreserved characters.
const PATH_RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Reply, as a value and as it came.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// Value.
    pub value: T,
    /// JSON of the reply.
    pub json: Value,
}

/// Outcome of a cancellation.
pub enum CancelOutcome<T> {
    /// It is cancelled now.
    Now(Answer<T>),
    /// It had ended before.
    EndedBefore(Answer<T>),
}

/// Bytes of a body.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// In memory.
    Bytes(&'a [u8]),
    /// A beginning, and then the rest of a file. The file is opened for each attempt.
    File {
        /// Beginning.
        head: &'a [u8],
        /// File.
        path: &'a Path,
        /// Offset of the rest.
        offset: u64,
    },
}

impl Content<'_> {
    /// Returns the number of bytes; 0 for the rest of a file that cannot be read, which fails later.
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { head, path, offset } => {
                let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
                head.len() as u64 + size.saturating_sub(*offset)
            }
        }
    }
}

/// Body of a request.
#[derive(Clone, Copy)]
struct Body<'a> {
    media: &'a str,
    content: Content<'a>,
    /// Key with which the service recognises a repeated request.
    key: Option<&'a str>,
}

/// Client of a service.
pub struct Client {
    agent: Agent,
    url: ServiceUrl,
    credentials: Credentials,
}

/// Returns a name as a part of a path.
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, PATH_RESERVED).to_string()
}

impl Client {
    /// Creates the client with the credentials of the flags. Connects to nothing. Errors: `Usage`, for a file that
    /// cannot be used.
    pub fn new(flags: &ServiceFlags) -> Result<Self, Error> {
        let credentials = Credentials::find(flags)?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A service redirects nothing. A certificate for one host is not for another.
            .max_redirects(0)
            .user_agent(concat!("sterna/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(credentials.tls.clone());
        if is_this_host(&flags.service) {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().new_agent(), url: flags.service.clone(), credentials })
    }

    /// Gets a value. A request that was lost on the way is repeated once.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Error> {
        let (status, reply) = self.send(&Method::GET, path, None)?;
        self.read(&Method::GET, path, status, &reply)
    }

    /// Submits a job. A request that was lost on the way is repeated once: by its key, the service finds the first job.
    pub fn submit(&self, media: &str, content: Content<'_>, key: &str) -> Result<Answer<Accepted>, Error> {
        let path = "/api/v1/jobs";
        let (status, reply) = self.send(&Method::POST, path, Some(Body { media, content, key: Some(key) }))?;
        self.read(&Method::POST, path, status, &reply)
    }

    /// Cancels a job.
    pub fn cancel(&self, job: &str) -> Result<CancelOutcome<JobView>, Error> {
        self.cancel_at(&format!("/api/v1/jobs/{}/cancel", encoded(job)))
    }

    /// Cancels a file.
    pub fn cancel_file(&self, number: u64) -> Result<CancelOutcome<FileView>, Error> {
        self.cancel_at(&format!("/api/v1/files/{number}/cancel"))
    }

    fn cancel_at<T: DeserializeOwned>(&self, path: &str) -> Result<CancelOutcome<T>, Error> {
        let body = Body { media: "application/json", content: Content::Bytes(b""), key: None };
        let (status, reply) = self.send(&Method::POST, path, Some(body))?;
        match status {
            // A problem can have this status too.
            StatusCode::CONFLICT if serde_json::from_slice::<T>(&reply).is_ok() => {
                self.read(&Method::POST, path, StatusCode::OK, &reply).map(CancelOutcome::EndedBefore)
            }
            _ => self.read(&Method::POST, path, status, &reply).map(CancelOutcome::Now),
        }
    }

    /// Bans an endpoint.
    pub fn ban(&self, endpoint: &str, ban: &Value) -> Result<Answer<Banned>, Error> {
        self.put(&format!("/api/v1/bans/{}", encoded(endpoint)), Some(ban))
    }

    /// Lifts the ban of an endpoint.
    pub fn lift(&self, endpoint: &str) -> Result<(), Error> {
        self.remove(&format!("/api/v1/bans/{}", encoded(endpoint)))
    }

    /// Changes a value: fields that are left out stay.
    pub fn patch<T: DeserializeOwned>(&self, path: &str, change: &Value) -> Result<Answer<T>, Error> {
        self.change(&Method::PATCH, path, Some(change))
    }

    /// Sets a value.
    pub fn put<T: DeserializeOwned>(&self, path: &str, value: Option<&Value>) -> Result<Answer<T>, Error> {
        self.change(&Method::PUT, path, value)
    }

    /// Removes a value.
    pub fn remove(&self, path: &str) -> Result<(), Error> {
        let (status, reply) = self.send(&Method::DELETE, path, None)?;
        match status {
            StatusCode::NO_CONTENT => Ok(()),
            _ => self.read::<Value>(&Method::DELETE, path, status, &reply).map(drop),
        }
    }

    fn change<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        value: Option<&Value>,
    ) -> Result<Answer<T>, Error> {
        let bytes = value.map(Value::to_string).unwrap_or_default();
        let body = Body { media: "application/json", content: Content::Bytes(bytes.as_bytes()), key: None };
        let (status, reply) = self.send(method, path, Some(body))?;
        self.read(method, path, status, &reply)
    }

    fn send(&self, method: &Method, path: &str, body: Option<Body<'_>>) -> Result<(StatusCode, Vec<u8>), Error> {
        let may_repeat = *method == Method::GET || body.is_some_and(|body| body.key.is_some());
        let mut outcome = self.exchange(method, path, body);
        if may_repeat && outcome.as_ref().is_err_and(is_passing) {
            outcome = self.exchange(method, path, body);
        }
        outcome.map_err(|error| {
            // A service that refuses the certificate closes the connection while a body is sent. A request without one
            // gets the reason.
            let reason =
                if is_passing(&error) && body.is_some() { self.exchange(&Method::GET, path, None).err() } else { None };
            self.unanswered(method, path, &reason.unwrap_or(error))
        })
    }

    fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<(StatusCode, Vec<u8>), ureq::Error> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let request = request.header("accept", "application/json");
        let response = match body {
            None => {
                let request = self.agent.configure_request(request.body(())?);
                self.agent.run(request.timeout_global(Some(REQUEST_TIME_MAX)).build())?
            }
            Some(body) => {
                let mut request = request.header("content-type", body.media);
                if let Some(key) = body.key {
                    request = request.header("idempotency-key", key);
                }
                let time = REQUEST_TIME_MAX + Duration::from_secs(body.content.len() / BODY_BYTES_PER_S_MIN);
                match body.content {
                    Content::Bytes(bytes) => {
                        let request = self.agent.configure_request(request.body(bytes)?);
                        self.agent.run(request.timeout_global(Some(time)).build())?
                    }
                    Content::File { head, path, offset } => {
                        let mut file = File::open(path)?;
                        file.seek(SeekFrom::Start(offset))?;
                        let mut content = head.chain(file);
                        let request = self.agent.configure_request(request.body(SendBody::from_reader(&mut content))?);
                        self.agent.run(request.timeout_global(Some(time)).build())?
                    }
                }
            }
        };
        let status = response.status();
        let bytes = response.into_body().into_with_config().limit(REPLY_BYTES_MAX).read_to_vec()?;
        Ok((status, bytes))
    }

    /// Reads a reply. Errors: the problem in it; `Protocol`, if it is none of this interface.
    fn read<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        status: StatusCode,
        reply: &[u8],
    ) -> Result<Answer<T>, Error> {
        let tried = self.tried(method, path);
        let foreign = || {
            let text =
                format!("{tried}: status {status}, and no reply of a transfer service; is {} its URL?", self.url);
            Error::new(ErrorKind::Protocol, Scope::Service, Phase::Prepare, text)
        };
        let json: Value = serde_json::from_slice(reply).map_err(|_| foreign())?;
        if !status.is_success() {
            let problem: Problem = serde_json::from_value(json).map_err(|_| foreign())?;
            return Err(self.refused(&tried, &problem));
        }
        let value = T::deserialize(&json).map_err(|e| foreign().caused_by(e))?;
        Ok(Answer { value, json })
    }

    /// Returns the error of a problem that the service reported.
    fn refused(&self, tried: &str, problem: &Problem) -> Error {
        let mut error = problem.to_error();
        let reported: String = error.text().chars().take(TEXT_CHARS_MAX).collect();
        let mut text = format!("{tried}: {reported}");
        if error.kind == ErrorKind::Denied && self.credentials.certificate.is_none() {
            error.kind = ErrorKind::Untrusted;
            text.push_str("; give --cert FILE and --key FILE, or set X509_USER_PROXY");
        }
        error.reworded(text).from_peer()
    }

    /// Returns the error of a request without a reply.
    fn unanswered(&self, method: &Method, path: &str, error: &ureq::Error) -> Error {
        let tried = self.tried(method, path);
        let failed = |kind: ErrorKind, why: String| {
            Error::new(kind, Scope::Service, Phase::Prepare, format!("{tried}: {why}")).retry(Retry::After)
        };
        let tls = match error {
            ureq::Error::Rustls(tls) => Some(tls),
            ureq::Error::Io(e) => e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()),
            _ => None,
        };
        if let Some(tls) = tls {
            return failed(ErrorKind::Untrusted, self.refusal(tls)).retry(Retry::Never);
        }
        let why = match error {
            ureq::Error::HostNotFound => format!("there is no host {}: check the host in --service", self.url.host),
            ureq::Error::Timeout(_) => {
                format!("no reply within {} s, and 1 s for each MB sent", REQUEST_TIME_MAX.as_secs())
            }
            ureq::Error::BodyExceedsLimit(_) => format!("a reply of more than {} MB", REPLY_BYTES_MAX / 1_000_000),
            ureq::Error::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                "connection refused: check that the service runs, and the port in --service".to_owned()
            }
            ureq::Error::Io(e) => format!("{e}: check the host and the port in --service"),
            other => other.to_string(),
        };
        failed(ErrorKind::Unreachable, why)
    }

    /// Returns the words for a failure of TLS.
    fn refusal(&self, error: &rustls::Error) -> String {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
        let authorities = &self.credentials.authorities;
        match error {
            InvalidCertificate(CertificateError::UnknownIssuer) => {
                format!(
                    "no authority in {authorities} has signed the certificate of the service; --capath DIR names others"
                )
            }
            InvalidCertificate(why) => format!("the certificate of the service does not verify: {why}"),
            AlertReceived(alert) if is_about_certificate(*alert) => match &self.credentials.certificate {
                Some(cert) => {
                    format!(
                        "the service refuses the certificate in {} ({alert:?}); its log has the reason",
                        cert.display()
                    )
                }
                None => format!("the service asks for a certificate ({alert:?}); give --cert FILE and --key FILE"),
            },
            InvalidMessage(_) => format!("the reply is not TLS: is {} the URL of the service?", self.url),
            other => format!("TLS: {other}"),
        }
    }

    fn tried(&self, method: &Method, path: &str) -> String {
        format!("{method} {}{path}", self.url)
    }
}

/// Returns true if the same request may succeed a moment later.
fn is_passing(error: &ureq::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Timeout(_) => true,
        ureq::Error::Io(e) => matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof),
        _ => false,
    }
}

/// Returns true for an alert about the certificate of this end. Source: RFC 8446, section 6.2.
fn is_about_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::CertificateRequired
    )
}
