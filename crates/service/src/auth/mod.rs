//! Authentication of clients by X.509: certificates, proxies (RFC 3820) and attributes of VOMS.
//!
//! [`Trust::identify`] verifies the certificates of a client and returns its name, its attributes and their end;
//! [`server_config`] makes the TLS settings that ask for them. Refuses to authorize: the caller decides what a name may
//! do. Refuses legacy proxies, and attributes that do not verify. Time is an argument; files are read here.

mod authorities;
mod certificate;
mod der;
pub(crate) mod dn;
mod lsc;
mod proxy;
mod refusal;
mod tls;
mod token;
mod voms;
mod x509;

#[cfg(test)]
pub(crate) mod tests;

use self::certificate::Certificate;

pub use dn::slash_form;
pub use tls::{ServerFiles, ServerTls, agent_key};
pub use token::{Issuer, TokenIdentity, Tokens};
pub use voms::{BASE_ID, Fqan, vo_id};
pub use x509::{Trust, TrustDirs, X509Identity, credential_id};

/// Reads bytes as each thing that a client sends, for fuzzing: a certificate, its proxyCertInfo and names, and an
/// attribute certificate.
#[doc(hidden)]
pub fn read_untrusted(bytes: &[u8]) {
    if let Ok(certificate) = Certificate::parse(bytes) {
        proxy::read_untrusted(&certificate);
        // Only a panic counts.
        let _ = (dn::subject_hash(certificate.parsed.issuer()), certificate.verify_signature(&certificate));
    }
    voms::read_untrusted(bytes);
}
