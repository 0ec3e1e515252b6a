//! Bodies of requests, within a size and without long breaks.
//!
//! A body that declares more than is allowed is refused before it is read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::app::{BODY_BYTES_MAX, status_of};

/// Maximum bytes of the body of a request that is no job. Reason: a setting has at most 64 KiB, a chain of certificates
/// some more.
pub(super) const SMALL_BYTES_MAX: u64 = 1 << 20;

/// Maximum time between two parts of a body. Reason: the longest round trip, 660 ms, and losses, many times.
const BREAK_MAX: Duration = Duration::from_secs(60);

/// Body of a request, with the knowledge if a route has read all of it.
#[derive(Clone)]
pub(super) struct Watched(Arc<Mutex<(Incoming, bool)>>);

impl Watched {
    pub(super) fn new(body: Incoming) -> Self {
        let is_read = body.is_end_stream();
        Self(Arc::new(Mutex::new((body, is_read))))
    }

    /// Returns true if nothing of the body is left.
    pub(super) fn is_read(&self) -> bool {
        self.0.lock().1
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let (body, is_read) = &mut *self.0.lock();
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        *is_read |= frame.is_none() || body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().0.size_hint()
    }
}

/// Body that is read as it arrives.
pub(super) struct Reader {
    stream: BodyDataStream,
    most: u64,
    left: u64,
}

impl Reader {
    /// Creates the reader of a body of at most `most` bytes. Errors: `Limit`, if a longer one is declared.
    pub(super) fn new(headers: &HeaderMap, body: Body, most: u64) -> Result<Self, Error> {
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        match declared.is_some_and(|length| length > most) {
            true => Err(too_long(most)),
            false => Ok(Self { stream: body.into_data_stream(), most, left: most }),
        }
    }

    /// Returns the next bytes; `None` at the end. Errors: `Limit`, `Usage`.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let failed = |text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
        let next = tokio::time::timeout(BREAK_MAX, self.stream.next()).await;
        let next = next.map_err(|_| failed(format!("no byte of the body came within {} s", BREAK_MAX.as_secs())))?;
        let Some(bytes) = next else { return Ok(None) };
        let bytes = bytes.map_err(|e| failed(format!("the body ended early: {e}")))?;
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| too_long(self.most))?;
        Ok(Some(bytes))
    }

    /// Returns the rest. Errors: `Limit`, `Usage`.
    pub(super) async fn rest(mut self) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(bytes) = self.next().await? {
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }
}

fn too_long(most: u64) -> Error {
    let text = format!("the body has more than {most} bytes, the maximum of this request");
    Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text)
}

/// Whole body of at most `MOST` bytes.
pub(super) struct Whole<const MOST: u64>(pub(super) Vec<u8>);

/// Whole body of a request that is no job.
pub(super) type Small = Whole<SMALL_BYTES_MAX>;

/// Whole body of a job.
pub(super) type Large = Whole<{ BODY_BYTES_MAX as u64 }>;

impl<S: Send + Sync, const MOST: u64> FromRequest<S> for Whole<MOST> {
    // The server gives a text the shape of failures of the interface.
    type Rejection = (StatusCode, String);

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        let (parts, body) = request.into_parts();
        let read = async { Reader::new(&parts.headers, body, MOST)?.rest().await };
        read.await.map(Self).map_err(|e| (status_of(&e), e.chain()))
    }
}
