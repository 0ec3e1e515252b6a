//! Identity of a client from its certificate chain: end entity, proxies above it, attributes of its VO.
//!
//! Arranges the certificates that a client sent in TLS, and verifies them. Refuses to authorize: the caller decides
//! what a name may do. The handshake proves that the client has the key of the first certificate; see `tls`. Time is an
//! argument.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use sha1::{Digest, Sha1};
use sterna_proto::Error;

use super::authorities::{Authorities, AuthorityDir};
use super::certificate::{Certificate, seconds};
use super::dn;
use super::proxy::{self, Rights};
use super::refusal::Refusal;
use super::voms::{self, Fqan, VomsTrust};

/// Most proxies of a chain. Reason: each delegation adds one, and a job passes through three or four services.
const PROXIES_MAX: usize = 10;

/// Most certificates of a chain. Reason: ten proxies, the end entity and a few authorities.
const CHAIN_MAX: usize = 20;

/// Longest distinguished name in bytes. Source: `user_dn` of FTS3 has 1024.
const NAME_BYTES_MAX: usize = 1024;

/// Digits of the identifier of a credential. Source: FTS3 cuts the SHA-1 digest.
const CREDENTIAL_DIGITS: usize = 16;

/// Verified client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct X509Identity {
    /// Distinguished name of the end entity, in the slash form.
    pub dn: String,
    /// Attributes of the VO, the primary one first. Empty without verified attribute certificate.
    pub fqans: Vec<Fqan>,
    /// Time when the first certificate expires: of the chain, its authority and the attribute certificates.
    pub expires: SystemTime,
    /// True if the client has a proxy.
    pub is_proxy: bool,
    /// True if a proxy of the chain is limited: it may move data and not start processes.
    pub is_limited: bool,
}

impl X509Identity {
    /// Name of the VO of the primary attribute; `None` without attributes.
    pub fn vo(&self) -> Option<&str> {
        self.fqans.first().map(Fqan::vo)
    }

    /// Identifier of the credential; see [`credential_id`].
    pub fn credential_id(&self) -> String {
        credential_id(&self.dn, &self.fqans)
    }
}

/// Returns the identifier of a credential, which FTS3 calls delegation id: the first 16 hexadecimal digits of the SHA-1
/// digest of the name and all attributes.
pub fn credential_id(dn: &str, fqans: &[Fqan]) -> String {
    let digest = fqans.iter().fold(Sha1::new_with_prefix(dn), |digest, fqan| digest.chain_update(fqan.as_str()));
    digest.finalize().iter().take(CREDENTIAL_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Directories of those whom the service trusts.
#[derive(Clone, Debug)]
pub struct TrustDirs {
    /// Authorities of clients: certificates and revocation lists, such as `/etc/grid-security/certificates`.
    pub authorities: PathBuf,
    /// Servers of each VO (`VO/HOST.lsc`), such as `/etc/grid-security/vomsdir`. `None`: attributes do not count.
    pub voms: Option<PathBuf>,
}

/// Trust in clients: decides who a client is.
#[derive(Debug)]
pub struct Trust {
    authorities: AuthorityDir,
    voms: Option<PathBuf>,
}

impl Trust {
    /// Loads the authorities. Errors: the directory cannot be read, or has no authority.
    pub fn open(dirs: TrustDirs, now: SystemTime) -> Result<Self, Error> {
        let authorities = AuthorityDir::open(&dirs.authorities, now)?;
        Ok(Self { authorities, voms: dirs.voms })
    }

    /// Verifies the certificates that a client sent, its own first, and returns who it is.
    ///
    /// The certificates alone prove nothing: the client has their key only after a handshake with the settings of
    /// [`server_config`](super::tls::server_config). Errors: `Untrusted`; the text has the certificate and its problem.
    /// Cost: a public-key operation for each certificate, and the reads of [`Trust::open`] if files have changed.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<X509Identity, Error> {
        let authorities = self.authorities.current(now);
        let verified = verify(chain, &authorities, seconds(now))?;
        let attributes = match &self.voms {
            Some(dir) => {
                let trust = VomsTrust { authorities: &authorities, dir: Path::new(dir) };
                voms::attributes(&verified.proxies, &verified.end_entity, trust, seconds(now))
            }
            None => voms::Attributes::default(),
        };
        let end = attributes.end.map_or(verified.end, |end| end.min(verified.end));
        Ok(X509Identity {
            dn: verified.end_entity.subject,
            fqans: attributes.fqans,
            // An end before 1970 was refused.
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(end).unwrap_or(0)),
            is_proxy: !verified.proxies.is_empty(),
            is_limited: verified.is_limited,
        })
    }

    /// Verifies that an authority has issued the certificate of a server, without its name. `others`: certificates that
    /// complete the path.
    pub(crate) fn check_server(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let authorities = self.authorities.current(now);
        let server = Certificate::parse(certificate).map_err(Refusal::into_tls)?;
        let verified = authorities.verify(&server, others, webpki::KeyUsage::server_auth(), seconds(now));
        verified.map(drop).map_err(Refusal::into_tls)
    }

    /// Verifies the certificates of a handshake.
    pub(super) fn check(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<(), Refusal> {
        verify(chain, &self.authorities.current(now), seconds(now)).map(drop)
    }
}

/// Verified chain.
#[derive(Debug)]
struct Verified<'a> {
    /// Proxies, that of the client first.
    proxies: Vec<Certificate<'a>>,
    end_entity: Certificate<'a>,
    is_limited: bool,
    /// Time when the first certificate expires.
    end: i64,
}

fn verify<'a>(chain: &'a [CertificateDer<'_>], authorities: &Authorities, now: i64) -> Result<Verified<'a>, Refusal> {
    let (path, others) = arrange(chain)?;
    let client = path[0].subject.clone();
    verify_path(path, &others, authorities, now)
        .map_err(|refusal| refusal.before(&format!("verify the certificate of the client {client}")))
}

/// Verifies a path from the certificate of the client to its end entity.
fn verify_path<'a>(
    mut path: Vec<Certificate<'a>>,
    others: &[CertificateDer<'_>],
    authorities: &Authorities,
    now: i64,
) -> Result<Verified<'a>, Refusal> {
    let no_certificate = || Refusal::rule("the client sent no certificate");
    let end_entity = path.pop().ok_or_else(no_certificate)?;
    let proxies = path;
    proxy::refuse_legacy(&end_entity)?;
    if end_entity.subject.is_empty() || end_entity.subject.len() > NAME_BYTES_MAX {
        return Err(Refusal::rule(format!(
            "the name of the end entity is empty or longer than {NAME_BYTES_MAX} bytes"
        )));
    }
    if dn::is_ambiguous(end_entity.parsed.subject()) {
        let text = format!("the name {} has a backslash, and could be taken for another name", end_entity.subject);
        return Err(Refusal::rule(text));
    }
    end_entity.check_validity(now)?;
    end_entity.check_may_sign()?;
    let mut end = authorities.verify(&end_entity, others, webpki::KeyUsage::client_auth(), now)?;
    let (mut issuer, mut is_limited) = (&end_entity, false);
    for (following, proxy) in proxies.iter().enumerate().rev() {
        is_limited |= proxy::check(proxy, issuer, following, now)? == Rights::Limited;
        end = end.min(proxy.validity().1);
        issuer = proxy;
    }
    Ok(Verified { proxies, end_entity, is_limited, end })
}

/// Returns the path from the certificate of the client to its end entity, and the certificates that are left.
///
/// The end entity is the first certificate that is no proxy. The issuer of a proxy is found by its name: clients send
/// the certificates in various orders, only their own is always first.
fn arrange<'a>(chain: &'a [CertificateDer<'_>]) -> Result<(Vec<Certificate<'a>>, Vec<CertificateDer<'a>>), Refusal> {
    if chain.is_empty() || chain.len() > CHAIN_MAX {
        return Err(Refusal::rule(format!("the client sent {} certificates, 1 to {CHAIN_MAX} count", chain.len())));
    }
    let parsed: Result<Vec<_>, _> = chain.iter().map(|der| Certificate::parse(der.as_ref())).collect();
    let mut rest = parsed?;
    let mut path = vec![rest.remove(0)];
    while let Some(proxy) = path.last().filter(|last| proxy::is_proxy(last)) {
        let Some(index) = rest.iter().position(|other| proxy.names_issuer(other)) else {
            let text = format!("the client did not send the issuer of its proxy {}", proxy.subject);
            return Err(Refusal::new(CertificateError::UnknownIssuer, text));
        };
        if path.len() > PROXIES_MAX {
            return Err(Refusal::rule(format!("the chain of {} has more than {PROXIES_MAX} proxies", path[0].subject)));
        }
        path.push(rest.remove(index));
    }
    Ok((path, rest.iter().map(|other| CertificateDer::from(other.der)).collect()))
}
