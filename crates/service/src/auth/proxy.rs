//! Rules of proxy certificates (RFC 3820).
//!
//! Decides if a proxy may act for its issuer, and with which rights. webpki cannot: it refuses every certificate with a
//! critical proxyCertInfo. Refuses legacy proxies, which have no such extension, and proxies that inherit no rights.

use rustls::CertificateError;
use x509_parser::extensions::ParsedExtension;
use x509_parser::x509::X509Version;

use super::certificate::Certificate;
use super::der::{Element, INTEGER, Malformed, OBJECT_IDENTIFIER, SEQUENCE};
use super::dn;
use super::refusal::Refusal;

/// OID of proxyCertInfo: 1.3.6.1.5.5.7.1.14 (RFC 3820, section 3.8).
const PROXY_CERT_INFO: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 14];

/// OID of proxyCertInfo in a draft before RFC 3820: 1.3.6.1.4.1.3536.1.222, in proxies of Globus Toolkit 3.
const DRAFT_PROXY_CERT_INFO: &[u8] = &[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 0x81, 0x5e];

/// Policy "inherit all": 1.3.6.1.5.5.7.21.1.
const INHERIT_ALL: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 21, 1];

/// Policy "independent", which inherits nothing: 1.3.6.1.5.5.7.21.2.
const INDEPENDENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 21, 2];

/// Policy "limited" of Globus: 1.3.6.1.4.1.3536.1.1.1.9. It may move data and not start processes.
const LIMITED: &[u8] = &[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 1, 1, 9];

/// OID of the key usage: 2.5.29.15.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
/// OID of the basic constraints: 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
/// OID of the extended key usage: 2.5.29.37.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
/// OIDs of the alternative names of subject and issuer: 2.5.29.17 and 2.5.29.18.
const ALTERNATIVE_NAMES: [&[u8]; 2] = [&[0x55, 0x1d, 17], &[0x55, 0x1d, 18]];

/// Extensions that a proxy may mark critical, because the rules here obey them.
const KNOWN_EXTENSIONS: [&[u8]; 4] = [PROXY_CERT_INFO, KEY_USAGE, BASIC_CONSTRAINTS, EXTENDED_KEY_USAGE];

/// Common names of legacy proxies.
const LEGACY_NAMES: [&[u8]; 2] = [b"proxy", b"limited proxy"];

/// Rights of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// All rights of the issuer.
    All,
    /// Rights of the issuer on data only.
    Limited,
}

/// Content of proxyCertInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProxyCertInfo {
    /// Most proxies that may follow this one; `None`: any number.
    path_length_max: Option<usize>,
    rights: Rights,
}

/// Returns true if the certificate is a proxy as of RFC 3820, valid or not.
pub(super) fn is_proxy(certificate: &Certificate<'_>) -> bool {
    certificate.extension(PROXY_CERT_INFO).is_some()
}

/// Refuses a certificate without proxyCertInfo that is a proxy of an older kind.
pub(super) fn refuse_legacy(certificate: &Certificate<'_>) -> Result<(), Refusal> {
    let is_draft = certificate.extension(DRAFT_PROXY_CERT_INFO).is_some();
    let added = dn::added_common_name(certificate.parsed.issuer(), certificate.parsed.subject());
    if is_draft || added.is_some_and(|name| LEGACY_NAMES.contains(&name)) {
        let text = format!(
            "{} is a legacy proxy, older than RFC 3820; create one of today (voms-proxy-init -rfc)",
            certificate.subject
        );
        return Err(Refusal::rule(text));
    }
    Ok(())
}

/// Checks a proxy against its issuer, and returns its rights.
///
/// `following`: number of proxies between this one and the client, itself excluded. The caller checks that the issuer
/// may be one: a proxy that passed these rules, or an end entity that webpki has verified and that may sign.
pub(super) fn check(
    proxy: &Certificate<'_>,
    issuer: &Certificate<'_>,
    following: usize,
    now: i64,
) -> Result<Rights, Refusal> {
    let broken = |rule: &str| Refusal::rule(format!("the proxy {} {rule}", proxy.subject));
    if proxy.parsed.version() != X509Version::V3 {
        return Err(broken("is no certificate of version 3"));
    }
    proxy.check_validity(now)?;
    check_names(proxy, issuer)?;
    check_extensions(proxy)?;
    let info = proxy_cert_info(proxy)?;
    if info.path_length_max.is_some_and(|most| following > most) {
        return Err(broken(&format!("is followed by {following} more, and its path length allows fewer")));
    }
    proxy.check_may_sign()?;
    proxy.verify_signature(issuer)?;
    Ok(info.rights)
}

/// Reads the extensions of a certificate, for fuzzing.
pub(super) fn read_untrusted(certificate: &Certificate<'_>) {
    // Only a panic counts.
    let _ = (refuse_legacy(certificate), check_extensions(certificate), proxy_cert_info(certificate));
}

/// Checks the names (RFC 3820, section 3.4): the subject is that of the issuer and one more common name.
fn check_names(proxy: &Certificate<'_>, issuer: &Certificate<'_>) -> Result<(), Refusal> {
    if !proxy.names_issuer(issuer) {
        let text = format!("the issuer of the proxy {} is not {}", proxy.subject, issuer.subject);
        return Err(Refusal::new(CertificateError::UnknownIssuer, text));
    }
    match dn::added_common_name(issuer.parsed.subject(), proxy.parsed.subject()) {
        Some(_) => Ok(()),
        None => {
            let text = format!("the subject of the proxy {} is not {} and one CN", proxy.subject, issuer.subject);
            Err(Refusal::rule(text))
        }
    }
}

/// Checks all extensions except proxyCertInfo.
fn check_extensions(proxy: &Certificate<'_>) -> Result<(), Refusal> {
    let broken = |rule: &str| Err(Refusal::rule(format!("the proxy {} {rule}", proxy.subject)));
    for extension in proxy.parsed.extensions() {
        let oid = extension.oid.as_bytes();
        if extension.critical && !KNOWN_EXTENSIONS.contains(&oid) {
            return broken(&format!("has an unknown critical extension {}", dn::dotted(oid)));
        }
        if ALTERNATIVE_NAMES.contains(&oid) {
            return broken("has an alternative name (RFC 3820, section 3.5)");
        }
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => return broken("is an authority"),
            ParsedExtension::KeyUsage(usage) if usage.key_cert_sign() => return broken("may sign certificates"),
            ParsedExtension::ExtendedKeyUsage(usage) if !usage.client_auth && !usage.any => {
                return broken("is not for client authentication");
            }
            ParsedExtension::ParseError { .. } => {
                return broken(&format!("has an unreadable extension {}", dn::dotted(oid)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads proxyCertInfo, which must be critical (RFC 3820, section 3.8).
fn proxy_cert_info(proxy: &Certificate<'_>) -> Result<ProxyCertInfo, Refusal> {
    let broken = |rule: &str| Refusal::rule(format!("the proxy {} {rule}", proxy.subject));
    let extension = proxy.extension(PROXY_CERT_INFO).ok_or_else(|| broken("has no proxyCertInfo"))?;
    if !extension.critical {
        return Err(broken("has a proxyCertInfo that is not critical"));
    }
    let (path_length_max, policy) =
        read_info(extension.value).map_err(|Malformed| broken("has no readable proxyCertInfo"))?;
    let rights = match policy {
        INHERIT_ALL => Rights::All,
        LIMITED => Rights::Limited,
        INDEPENDENT => return Err(broken("is independent: it inherits no rights of its user")),
        other => return Err(broken(&format!("has an unknown policy {}", dn::dotted(other)))),
    };
    Ok(ProxyCertInfo { path_length_max, rights })
}

/// Reads `SEQUENCE { pCPathLenConstraint INTEGER OPTIONAL, SEQUENCE { policyLanguage OID } }`. The known policies have
/// no text (RFC 3820, section 3.8.2).
fn read_info(value: &[u8]) -> Result<(Option<usize>, &[u8]), Malformed> {
    let mut info = Element::only(SEQUENCE, value)?.reader();
    let path_length_max = info.optional(INTEGER)?.map(|number| unsigned(number.content)).transpose()?;
    let mut policy = info.read(SEQUENCE)?.reader();
    info.finish()?;
    let language = policy.read(OBJECT_IDENTIFIER)?.content;
    policy.finish()?;
    Ok((path_length_max, language))
}

/// Returns an INTEGER of zero or more. A number of more than four bytes counts as the largest.
fn unsigned(content: &[u8]) -> Result<usize, Malformed> {
    match content {
        [] | [0x80..=0xff, ..] | [0, 0..=0x7f, ..] => Err(Malformed),
        long if long.len() > 5 => Ok(usize::MAX),
        bytes => Ok(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))),
    }
}
