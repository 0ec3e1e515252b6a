//! Examination from one side: a path to any TCP server, of which only this end is seen.
//!
//! A server shows its options and its window scale in the handshake, the path shows its hops and sizes, and downloads
//! show how rates depend on the number of connections. Verdicts are inferred and not proven: their confidence is lower
//! than in an examination with an agent. Refuses to judge what one side cannot see; the report names it.

mod download;
mod observed;
mod report;
mod rules;
mod text;

pub use self::download::DownloadView;
pub use self::observed::Observed;
pub use self::report::{OneSideCost, OneSidePath, OneSideReport};
pub use self::text::lines;
