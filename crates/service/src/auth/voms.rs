//! Attributes of a virtual organisation (VO) from the attribute certificates of VOMS in a proxy.
//!
//! Verifies an attribute certificate (RFC 5755): it was made for this user, is valid now, and is signed by a server
//! that a file of the VO lists and an authority has certified. One that does not verify gives no attributes and a
//! warning in the log, and the identity stays. Refuses those for named targets. Time is an argument.

use std::fmt;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use uuid::Uuid;
use webpki::{ExtendedKeyUsageValidator, KeyPurposeIdIter};
use x509_parser::asn1_rs::FromDer;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

use super::authorities::Authorities;
use super::certificate::{Certificate, Signed};
use super::der::{
    BIT_STRING, BOOLEAN, Element, GENERALIZED_TIME, INTEGER, Malformed, OBJECT_IDENTIFIER, OCTET_STRING, Reader,
    SEQUENCE, SET,
};
use super::dn;
use super::lsc::{self, Server};
use super::refusal::{Refusal, utc};

/// OID of the extension with attribute certificates in a proxy: 1.3.6.1.4.1.8005.100.100.5.
const ATTRIBUTE_CERTIFICATES: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 5];

/// OID of the attribute with FQANs: 1.3.6.1.4.1.8005.100.100.4.
const FQANS: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 4];

/// OID of the extension with the certificate of the server and its issuers: 1.3.6.1.4.1.8005.100.100.10.
const SERVER_CERTIFICATES: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 10];

/// OID of the extension that limits the hosts that may use the attributes: 2.5.29.55.
const TARGETS: &[u8] = &[0x55, 0x1d, 55];

/// Tag of a directory name in GeneralNames.
const DIRECTORY_NAME: u8 = 0xa4;
/// Tag of a URI in GeneralNames.
const URI: u8 = 0x86;
/// Tags `[0]`, `[1]` and `[2]` of constructed elements.
const TAGGED: [u8; 3] = [0xa0, 0xa1, 0xa2];

/// Difference of the clocks of a server and of this host that counts as none, in seconds. Source: `validate.cc` of
/// VOMS 2.1 allows 300 s.
const CLOCK_DIFFERENCE_S: i64 = 300;

/// Most attribute certificates of a proxy that are read. Reason: a user has one for each VO of a job.
const ATTRIBUTE_CERTIFICATES_MAX: usize = 16;

/// Most certificates that an attribute certificate brings. Reason: chains of authorities have up to four.
const SERVER_CERTIFICATES_MAX: usize = 8;

/// Most FQANs of a user. Guess: managers of large VOs have about a hundred.
const FQANS_MAX: usize = 1000;

/// Longest FQAN. Source: columns of FTS3 and VOMS have 255 bytes.
const FQAN_BYTES_MAX: usize = 255;

/// Namespace of the identifiers of VOs. Source: `BASE_ID` of FTS3, which all its servers share.
pub const BASE_ID: Uuid = Uuid::from_u128(0x0187_4efb_4735_4595_bc9c_591a_ef82_40c9);

/// Returns the identifier of a VO: its name in the namespace [`BASE_ID`], by RFC 9562, version 5.
pub fn vo_id(vo: &str) -> Uuid {
    Uuid::new_v5(&BASE_ID, vo.as_bytes())
}

/// Fully qualified attribute name: group of a VO and role in it, such as `/testvo/Role=NULL/Capability=NULL`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fqan(String);

impl Fqan {
    /// Reads an FQAN. Errors: it does not begin with the name of a VO, is too long, or has other characters than
    /// visible ASCII.
    pub fn parse(text: &str) -> Option<Self> {
        let is_fqan = text.len() <= FQAN_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        let vo = text.strip_prefix('/')?.split('/').next()?;
        (is_fqan && !vo.is_empty() && !vo.contains('=')).then(|| Self(text.to_owned()))
    }

    /// Name of the VO: the first component.
    pub fn vo(&self) -> &str {
        self.0.split('/').nth(1).unwrap_or_default()
    }

    /// Role in the group; `None` without one (`Role=NULL`).
    pub fn role(&self) -> Option<&str> {
        self.0.split('/').find_map(|component| component.strip_prefix("Role=")).filter(|role| *role != "NULL")
    }

    /// Text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fqan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Attributes of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// FQANs in the order of the server; the first is the primary one.
    pub fqans: Vec<Fqan>,
    /// Time when the first attribute certificate in use expires; `None` without any.
    pub end: Option<i64>,
}

/// Parties that make an attribute certificate count.
#[derive(Clone, Copy, Debug)]
pub(super) struct VomsTrust<'a> {
    /// Authorities of servers.
    pub authorities: &'a Authorities,
    /// Directory with the servers of each VO.
    pub dir: &'a Path,
}

/// Returns the attributes of the proxy that is nearest to the client and has attribute certificates. `proxies`: that of
/// the client first. Those that do not verify are logged and give nothing.
pub(super) fn attributes(
    proxies: &[Certificate<'_>],
    end_entity: &Certificate<'_>,
    trust: VomsTrust<'_>,
    now: i64,
) -> Attributes {
    let mut attributes = Attributes::default();
    let Some(extension) = proxies.iter().find_map(|proxy| proxy.extension(ATTRIBUTE_CERTIFICATES)) else {
        return attributes;
    };
    let warn = |what: &str| tracing::warn!("attribute certificate of {}: {what}; it gives nothing", end_entity.subject);
    let Ok(certificates) = listed(extension.value, ATTRIBUTE_CERTIFICATES_MAX) else {
        warn("the extension is damaged");
        return attributes;
    };
    for certificate in certificates {
        let verified = AttributeCertificate::parse(certificate)
            .map_err(|Malformed| "it is damaged".to_owned())
            .and_then(|certificate| certificate.verify(end_entity, trust, now));
        match verified {
            Ok((fqans, end)) => {
                for fqan in fqans {
                    if !attributes.fqans.contains(&fqan) {
                        attributes.fqans.push(fqan);
                    }
                }
                attributes.end = Some(attributes.end.map_or(end, |earlier| earlier.min(end)));
            }
            Err(what) => warn(&what),
        }
    }
    attributes
}

/// Reads bytes as an attribute certificate, for fuzzing.
pub(super) fn read_untrusted(bytes: &[u8]) {
    // Only a panic counts.
    let _ = listed(bytes, ATTRIBUTE_CERTIFICATES_MAX);
    if let Ok(certificate) = AttributeCertificate::parse(bytes) {
        let _ =
            (Server::parse(certificate.server), dn::slash_form(&certificate.holder), certificate.check_extensions());
    }
}

/// Reads `SEQUENCE { SEQUENCE OF element }`, as extensions of VOMS list their elements, and returns the bytes of each.
fn listed(value: &[u8], most: usize) -> Result<Vec<&[u8]>, Malformed> {
    let mut elements = Vec::new();
    for list in Element::only(SEQUENCE, value)?.reader().all(SEQUENCE)? {
        elements.extend(list.reader().all(SEQUENCE)?.iter().map(|element| element.raw));
    }
    if elements.len() > most { Err(Malformed) } else { Ok(elements) }
}

/// Any purpose: servers have certificates of hosts, and their names are listed.
struct AnyPurpose;

impl ExtendedKeyUsageValidator for AnyPurpose {
    fn validate(&self, _purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

/// Attribute certificate, read and not verified.
#[derive(Debug)]
struct AttributeCertificate<'a> {
    signed: Signed<'a>,
    /// Name in the holder: the subject or the issuer of the user's certificate.
    holder: X509Name<'a>,
    /// Serial number of the user's certificate: content of an INTEGER.
    holder_serial: &'a [u8],
    issuer: X509Name<'a>,
    start: i64,
    end: i64,
    /// `VO://HOST:PORT`.
    server: &'a [u8],
    fqans: Vec<&'a [u8]>,
    extensions: Vec<Extension<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Extension<'a> {
    oid: &'a [u8],
    is_critical: bool,
    value: &'a [u8],
}

impl<'a> AttributeCertificate<'a> {
    fn parse(der: &'a [u8]) -> Result<Self, Malformed> {
        let signed = Signed::read(der)?;
        let mut body = signed.body.reader();
        // Version 2 has the number 1.
        let is_v2 = body.read(INTEGER)?.content == [1];
        let (holder, holder_serial) = read_holder(body.read(SEQUENCE)?.reader())?;
        let issuer = directory_name(body.read(TAGGED[0])?.reader().read(SEQUENCE)?.reader())?;
        let is_one_algorithm = body.read(SEQUENCE)?.content == signed.algorithm;
        body.read(INTEGER)?;
        let mut validity = body.read(SEQUENCE)?.reader();
        let (start, end) = (time(&mut validity)?, time(&mut validity)?);
        validity.finish()?;
        let (server, fqans) = read_attributes(body.read(SEQUENCE)?.reader())?;
        body.optional(BIT_STRING)?;
        let extensions = match body.optional(SEQUENCE)? {
            Some(list) => list.reader().all(SEQUENCE)?.iter().map(read_extension).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        body.finish()?;
        if !is_v2 || !is_one_algorithm {
            return Err(Malformed);
        }
        Ok(Self { signed, holder, holder_serial, issuer, start, end, server, fqans, extensions })
    }

    /// Verifies, and returns the FQANs and the time when they expire. Errors: the reason why they do not count.
    fn verify(&self, end_entity: &Certificate<'_>, trust: VomsTrust<'_>, now: i64) -> Result<(Vec<Fqan>, i64), String> {
        self.check_holder(end_entity)?;
        if now < self.start.saturating_sub(CLOCK_DIFFERENCE_S) || now > self.end {
            return Err(format!("it is valid from {} to {}", utc(self.start), utc(self.end)));
        }
        self.check_extensions()?;
        let server = Server::parse(self.server)
            .ok_or_else(|| format!("\"{}\" is not VO://HOST:PORT", self.server.escape_ascii()))?;
        let end = self.check_signature(&server, trust, now)?;
        Ok((self.fqans_of(&server)?, end.min(self.end)))
    }

    /// Checks that the user is the holder. In the place of the issuer, servers write the subject of the user's
    /// certificate or its issuer; VOMS accepts both.
    fn check_holder(&self, end_entity: &Certificate<'_>) -> Result<(), String> {
        let names = [end_entity.parsed.subject(), end_entity.parsed.issuer()];
        if number(self.holder_serial) != number(end_entity.parsed.raw_serial()) {
            return Err("its holder has a certificate with another serial number".to_owned());
        }
        match names.into_iter().any(|name| dn::is_same(&self.holder, name)) {
            true => Ok(()),
            false => Err(format!("its holder is {}", dn::slash_form(&self.holder))),
        }
    }

    fn check_extensions(&self) -> Result<(), String> {
        for extension in &self.extensions {
            if extension.oid == TARGETS {
                return Err("it is limited to named hosts, which the service does not check".to_owned());
            }
            if extension.is_critical {
                return Err(format!("it has an unknown critical extension {}", dn::dotted(extension.oid)));
            }
        }
        Ok(())
    }

    /// Verifies the signature, and the certificate of the server. Returns when the first of its certificates expires.
    fn check_signature(&self, server: &Server, trust: VomsTrust<'_>, now: i64) -> Result<i64, String> {
        let extension = self.extensions.iter().find(|extension| extension.oid == SERVER_CERTIFICATES);
        let extension = extension.ok_or("it lacks the certificate of its server")?;
        let certificates = listed(extension.value, SERVER_CERTIFICATES_MAX);
        let certificates = certificates.map_err(|Malformed| "the certificates of its server are damaged")?;
        let chain: Result<Vec<_>, Refusal> = certificates.into_iter().map(Certificate::parse).collect();
        let chain = chain.map_err(|refusal| refusal.text)?;
        let signer = chain.first().ok_or("it lacks the certificate of its server")?;
        if !dn::is_same(&self.issuer, signer.parsed.subject()) {
            return Err(format!("its issuer is not the server {}", signer.subject));
        }
        lsc::check(trust.dir, server, &chain)?;
        signer.check_may_sign().map_err(|refusal| refusal.text)?;
        let others: Vec<_> = chain[1..].iter().map(|other| CertificateDer::from(other.der)).collect();
        let end = trust.authorities.verify(signer, &others, AnyPurpose, now).map_err(|refusal| refusal.text)?;
        self.signed.verify(signer.key()).map_err(|what| format!("{what} ({})", signer.subject))?;
        Ok(end)
    }

    /// Returns the FQANs. All must be of the VO of the server: another server must not grant them.
    fn fqans_of(&self, server: &Server) -> Result<Vec<Fqan>, String> {
        if self.fqans.len() > FQANS_MAX {
            return Err(format!("it has {} attributes, at most {FQANS_MAX}", self.fqans.len()));
        }
        let parse = |bytes: &&[u8]| {
            let fqan = std::str::from_utf8(bytes).ok().and_then(Fqan::parse).filter(|fqan| fqan.vo() == server.vo);
            fqan.ok_or_else(|| format!("\"{}\" is no attribute of the VO {}", bytes.escape_ascii(), server.vo))
        };
        self.fqans.iter().map(parse).collect()
    }
}

/// Reads `[0] IMPLICIT SEQUENCE { GeneralNames, INTEGER, BIT STRING OPTIONAL }`, which may be followed by `[1]`.
/// Refuses a holder that is known by a digest (`[2]`).
fn read_holder(mut holder: Reader<'_>) -> Result<(X509Name<'_>, &[u8]), Malformed> {
    let mut base = holder.read(TAGGED[0])?.reader();
    holder.optional(TAGGED[1])?;
    holder.finish()?;
    let name = directory_name(base.read(SEQUENCE)?.reader())?;
    let serial = base.read(INTEGER)?.content;
    base.optional(BIT_STRING)?;
    base.finish()?;
    Ok((name, serial))
}

/// Reads GeneralNames that are one directory name.
fn directory_name(mut names: Reader<'_>) -> Result<X509Name<'_>, Malformed> {
    let content = names.read(DIRECTORY_NAME)?.content;
    names.finish()?;
    let name = Element::only(SEQUENCE, content)?;
    match X509Name::from_der(name.raw) {
        Ok(([], name)) => Ok(name),
        _ => Err(Malformed),
    }
}

fn time(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    match ASN1Time::from_der(reader.read(GENERALIZED_TIME)?.raw) {
        Ok(([], time)) => Ok(time.timestamp()),
        _ => Err(Malformed),
    }
}

/// Reads the attribute with FQANs, of which there must be one: `SEQUENCE { OID, SET { SEQUENCE { [0] { URI },
/// SEQUENCE OF OCTET STRING } } }`. Other attributes are ignored.
fn read_attributes(attributes: Reader<'_>) -> Result<(&[u8], Vec<&[u8]>), Malformed> {
    let mut found = None;
    for attribute in attributes.all(SEQUENCE)? {
        let mut attribute = attribute.reader();
        if attribute.read(OBJECT_IDENTIFIER)?.content != FQANS {
            continue;
        }
        let mut values = attribute.read(SET)?.reader();
        let mut value = values.read(SEQUENCE)?.reader();
        values.finish()?;
        let mut authority = value.read(TAGGED[0])?.reader();
        let server = authority.read(URI)?.content;
        authority.finish()?;
        let fqans = value.read(SEQUENCE)?.reader().all(OCTET_STRING)?;
        value.finish()?;
        if found.replace((server, fqans.iter().map(|fqan| fqan.content).collect())).is_some() {
            return Err(Malformed);
        }
    }
    found.ok_or(Malformed)
}

fn read_extension<'a>(extension: &Element<'a>) -> Result<Extension<'a>, Malformed> {
    let mut reader = extension.reader();
    let oid = reader.read(OBJECT_IDENTIFIER)?.content;
    let is_critical = reader.optional(BOOLEAN)?.is_some_and(|value| value.content != [0]);
    let value = reader.read(OCTET_STRING)?.content;
    reader.finish()?;
    Ok(Extension { oid, is_critical, value })
}

/// Returns the significant bytes of an INTEGER. Some authorities write more zeros than DER allows.
fn number(content: &[u8]) -> &[u8] {
    let zeros = content.iter().take_while(|byte| **byte == 0).count();
    &content[zeros..]
}
