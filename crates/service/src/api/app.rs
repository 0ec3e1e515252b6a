//! State that the routes of all interfaces share.

use std::sync::Arc;

use sterna_proto::Error;

use crate::access::Access;
use crate::caller::Caller;
use crate::service::Service;

/// Maximum bytes of a request body. Reason: an FTS3 client sends a job at once; 100,000 files are about 50 MB.
pub const BODY_BYTES_MAX: usize = 256 << 20;

/// State that routes share.
#[derive(Clone)]
pub struct App {
    /// Service.
    pub service: Arc<Service>,
    /// Rules of access.
    pub access: Arc<Access>,
}

/// Caller of a request, or the reason why its credentials were refused.
#[derive(Clone)]
pub struct Authenticated(pub Result<Caller, Error>);
