//! Version of the kernel of this host.

use sterna_doctor::kernel::KernelVersion;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Returns the version. Errors: the kernel has no version of two numbers.
pub fn version() -> Result<KernelVersion, Error> {
    let release = sterna_net::measure::host_facts().kernel;
    release.parse().map_err(|text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}
