//! Settings for web servers.

use std::path::PathBuf;
use std::time::Duration;

use super::TokenSource;

/// Settings for web servers.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Source of a bearer token.
    pub token: Option<TokenSource>,
    /// True if a name and password of `~/.netrc` may be sent, without a token.
    pub uses_netrc: bool,
    /// Hosts to which redirects may lead; `None`: all.
    pub hosts: Option<Vec<String>>,
    /// File with certificates of authorities that are trusted in addition to those of this host.
    pub authority: Option<PathBuf>,
    /// Most requests that each server gets at once.
    pub connections: u32,
    /// Time for which a failed request is retried.
    pub patience: Duration,
    /// True if the user gave a digest that the file must have.
    pub is_expected: bool,
}
