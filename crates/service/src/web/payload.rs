//! Body of a request: none, or the bytes of a file as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

/// Body of a request.
pub(super) enum Payload {
    /// No body.
    Empty,
    /// A few bytes; `None` after they were sent.
    Whole(Option<Bytes>),
    /// Bytes of a file. The request has their number in `Content-Length`: a body that ends before breaks the
    /// connection, so that no storage takes a part for the whole.
    Stream(mpsc::Receiver<Bytes>),
}

impl Payload {
    /// Returns the same body for another try; `None`: it is a stream.
    pub fn again(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Whole(bytes) => Some(Self::Whole(bytes.clone())),
            Self::Stream(_) => None,
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(bytes) => bytes.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty | Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty | Self::Whole(None) => SizeHint::with_exact(0),
            Self::Whole(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
