//! Ends of listings, which their tasks report to the runner.

use sterna_proto::Error;
use uuid::Uuid;

/// End of a listing.
pub(super) struct ListingEnded {
    /// Number of the prefix.
    pub(super) prefix: u64,
    /// Run of the listing.
    pub(super) run: Uuid,
    /// Outcome.
    pub(super) end: ListingEnd,
}

/// How a listing has ended.
pub(super) enum ListingEnd {
    /// All files are stored. Errors: of the listing, or of the files.
    Listed(Result<(), Error>),
    /// The agent is away.
    Lost,
    /// The prefix is gone: its job was cancelled.
    Gone,
}
