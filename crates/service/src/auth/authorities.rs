//! Authorities of a directory such as `/etc/grid-security/certificates`, and the verification of end entities by them.
//!
//! Loads certificates and revocation lists, and loads them again when files of the directory change. A certificate
//! that issued itself is an authority. Others only complete chains, as in OpenSSL: a list of their authority can
//! revoke them. Refuses proxies, which the module `proxy` judges. Refuses to read the files of signing policies and
//! namespaces. Time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::CertificateError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, TrustAnchor};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, ExtendedKeyUsageValidator, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptions, RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_parser::parse_x509_crl;

use super::certificate::{Certificate, seconds, unix_time};
use super::refusal::{Refusal, utc};

/// Time between two looks at the directory. Reason: lists are fetched every few hours, and a look costs a system call
/// for each file.
const LOOK_EVERY: Duration = Duration::from_secs(120);

/// Largest file in bytes. Reason: lists of revoked certificates of grid authorities have some MiB at most.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Most files that count. Reason: the bundle of all grid authorities has about 500.
const FILES_MAX: usize = 10_000;

/// Most objects of one file that count. Reason: a bundle of all authorities in one file has some hundred.
const OBJECTS_MAX: usize = 10_000;

/// Authorities and revocation lists at one time.
#[derive(Debug, Default)]
pub(super) struct Authorities {
    anchors: Vec<TrustAnchor<'static>>,
    /// Validity of each anchor, in the same order. webpki ignores it.
    validities: Vec<(i64, i64)>,
    /// Certificates of authorities that another authority issued.
    intermediates: Vec<CertificateDer<'static>>,
    lists: Vec<RevocationList>,
}

#[derive(Debug)]
struct RevocationList {
    list: CertRevocationList<'static>,
    file: PathBuf,
    issued: i64,
    /// Time when the next list was due.
    next: Option<i64>,
}

impl Authorities {
    /// Verifies that an authority has issued `end_entity` for a purpose, and returns when the first certificate of the
    /// path expires. `others`: certificates that complete the path, in any order.
    ///
    /// A revoked certificate is refused. A list that is older than it should be still counts: a fetch that has failed
    /// must not stop the service. A certificate of an authority without a list is accepted.
    pub fn verify(
        &self,
        end_entity: &Certificate<'_>,
        others: &[CertificateDer<'_>],
        purpose: impl ExtendedKeyUsageValidator,
        now: i64,
    ) -> Result<i64, Refusal> {
        let refused = |error| refusal_of(error).before(&end_entity.subject);
        let der = CertificateDer::from(end_entity.der);
        let entity = EndEntityCert::try_from(&der).map_err(refused)?;
        let others = others.iter().chain(&self.intermediates);
        let others: Vec<_> = others.map(|der| CertificateDer::from(der.as_ref())).collect();
        let lists: Vec<&CertRevocationList<'_>> = self.lists.iter().map(|list| &list.list).collect();
        let has_valid_anchor = |path: &VerifiedPath<'_>| match self.anchor_end(path.anchor(), now) {
            Some(_) => Ok(()),
            None => Err(webpki::Error::UnknownIssuer),
        };
        let path = entity
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.anchors,
                &others,
                unix_time(now),
                purpose,
                revocation(&lists),
                Some(&has_valid_anchor),
            )
            .map_err(refused)?;
        let mut end = self.anchor_end(path.anchor(), now).unwrap_or(now).min(end_entity.validity().1);
        for intermediate in path.intermediate_certificates() {
            end = end.min(Certificate::parse(&intermediate.der())?.validity().1);
        }
        Ok(end)
    }

    /// Returns when an authority expires: of its certificates with the same key, the last. `None`: none is valid.
    fn anchor_end(&self, anchor: &TrustAnchor<'_>, now: i64) -> Option<i64> {
        let same = self.anchors.iter().zip(&self.validities).filter(|(one, _)| *one == anchor);
        same.filter(|(_, (start, end))| (*start..=*end).contains(&now)).map(|(_, (_, end))| *end).max()
    }

    /// Loads the files of a directory. A file that cannot be used is logged and left out.
    fn load(files: &BTreeMap<PathBuf, Stamp>) -> Self {
        let mut authorities = Self::default();
        let mut seen = BTreeSet::new();
        for path in files.keys() {
            let bytes = match fs::read(path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!("read {}: {error}; the file does not count", path.display());
                    continue;
                }
            };
            let objects = match kind_of(path) {
                Some(Kind::Certificates) => sections::<CertificateDer<'static>>(&bytes),
                Some(Kind::Lists) => sections::<CertificateRevocationListDer<'static>>(&bytes),
                None => continue,
            };
            for object in objects {
                let added = match (object, kind_of(path)) {
                    (Ok(der), _) if !seen.insert(der.clone()) => Ok(()),
                    (Ok(der), Some(Kind::Lists)) => authorities.add_list(&der, path),
                    (Ok(der), _) => authorities.add_certificate(der),
                    (Err(what), _) => Err(what),
                };
                if let Err(what) = added {
                    tracing::warn!("read {}: {what}; the object does not count", path.display());
                }
            }
        }
        // webpki takes the first list of an authority: the newest one.
        authorities.lists.sort_by_key(|list| std::cmp::Reverse(list.issued));
        authorities
    }

    fn add_certificate(&mut self, der: Vec<u8>) -> Result<(), String> {
        let certificate = Certificate::parse(&der).map_err(|refusal| refusal.text)?;
        let may_sign =
            certificate.key_usage().map_err(|refusal| refusal.text)?.is_none_or(|usage| usage.key_cert_sign());
        if !certificate.parsed.is_ca() || !may_sign {
            return Err(format!("{} is no authority", certificate.subject));
        }
        if !certificate.names_issuer(&certificate) {
            self.intermediates.push(CertificateDer::from(der));
            return Ok(());
        }
        let validity = certificate.validity();
        let der = CertificateDer::from(der);
        let anchor = webpki::anchor_from_trusted_cert(&der).map_err(|e| format!("use as an authority: {e}"))?;
        self.anchors.push(anchor.to_owned());
        self.validities.push(validity);
        Ok(())
    }

    fn add_list(&mut self, der: &[u8], path: &Path) -> Result<(), String> {
        let list = OwnedCertRevocationList::from_der(der).map_err(|e| format!("revocation list: {e}"))?;
        let (_, parsed) = parse_x509_crl(der).map_err(|e| format!("revocation list: {e}"))?;
        self.lists.push(RevocationList {
            list: list.into(),
            file: path.to_owned(),
            issued: parsed.last_update().timestamp(),
            next: parsed.next_update().map(|time| time.timestamp()),
        });
        Ok(())
    }
}

/// Returns how revocation counts; `None` without any list.
fn revocation<'a>(lists: &'a [&'a CertRevocationList<'a>]) -> Option<RevocationOptions<'a>> {
    let builder = RevocationOptionsBuilder::new(lists).ok()?;
    let builder = builder.with_depth(RevocationCheckDepth::Chain);
    let builder = builder.with_status_policy(UnknownStatusPolicy::Allow);
    Some(builder.with_expiration_policy(ExpirationPolicy::Ignore).build())
}

/// Returns the refusal of an error of webpki, in words for users.
fn refusal_of(error: webpki::Error) -> Refusal {
    use webpki::Error as E;
    let end = |time: rustls::pki_types::UnixTime| utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    match error {
        E::UnknownIssuer => Refusal::new(
            CertificateError::UnknownIssuer,
            "no valid authority of the service has issued this certificate",
        ),
        E::CertExpired { not_after, .. } => {
            let text = format!("a certificate of the chain expired at {}", end(not_after));
            Refusal::new(CertificateError::Expired, text)
        }
        E::CertNotValidYet { not_before, .. } => {
            let text = format!("a certificate of the chain is valid from {}", end(not_before));
            Refusal::new(CertificateError::NotValidYet, text)
        }
        E::CertRevoked => Refusal::new(CertificateError::Revoked, "a certificate of the chain is revoked"),
        E::InvalidSignatureForPublicKey => {
            Refusal::new(CertificateError::BadSignature, "a signature of the chain is wrong")
        }
        E::RequiredEkuNotFoundContext(_) => {
            Refusal::new(CertificateError::InvalidPurpose, "the certificate is not for client authentication")
        }
        E::UnsupportedCriticalExtension => {
            Refusal::new(CertificateError::UnhandledCriticalExtension, "the chain has an unknown critical extension")
        }
        E::CaUsedAsEndEntity => Refusal::rule("the certificate is that of an authority, and of no user"),
        E::UnsupportedSignatureAlgorithmContext(_) | E::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            Refusal::rule("the algorithm of a signature of the chain is not supported (SHA-1?)")
        }
        E::BadDer => Refusal::new(CertificateError::BadEncoding, "the chain is damaged"),
        other => Refusal::rule(other.to_string()),
    }
}

/// Authorities of a directory, loaded again when its files change.
#[derive(Debug)]
pub(super) struct AuthorityDir {
    path: PathBuf,
    current: Mutex<Arc<Authorities>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Looked {
    /// Time of the last look at the directory.
    at: SystemTime,
    files: BTreeMap<PathBuf, Stamp>,
    /// Files of overdue lists that were logged.
    overdue: BTreeSet<PathBuf>,
}

/// Values that change with a file: device, inode, size, and the times of data and inode with nanoseconds.
type Stamp = [i64; 7];

impl AuthorityDir {
    /// Opens a directory and loads it. Errors: it cannot be read, or has no authority.
    pub fn open(path: &Path, now: SystemTime) -> Result<Self, Error> {
        let files = files_of(path)?;
        let authorities = Authorities::load(&files);
        if authorities.anchors.is_empty() {
            let text = format!(
                "load authorities from {}: no certificate of an authority in *.pem, *.crt, *.cer or *.0 to *.9",
                path.display()
            );
            return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text));
        }
        let dir = Self {
            path: path.to_owned(),
            current: Mutex::new(Arc::new(authorities)),
            looked: Mutex::new(Looked { at: now, files, overdue: BTreeSet::new() }),
        };
        dir.log_load();
        dir.log_overdue(&mut dir.looked.lock(), now);
        Ok(dir)
    }

    /// Returns the authorities, and loads them again if the directory has changed since the last look.
    ///
    /// Cost: every two minutes a system call for each file, and a load if one has changed; otherwise a clone of an
    /// `Arc`. Other callers take the last authorities meanwhile.
    pub fn current(&self, now: SystemTime) -> Arc<Authorities> {
        if let Some(mut looked) = self.looked.try_lock() {
            // A clock that was set back does not postpone the next look.
            let is_due = now.duration_since(looked.at).map_or(true, |since| since >= LOOK_EVERY);
            if is_due {
                looked.at = now;
                self.look(&mut looked);
                self.log_overdue(&mut looked, now);
            }
        }
        Arc::clone(&self.current.lock())
    }

    fn look(&self, looked: &mut Looked) {
        let files = match files_of(&self.path) {
            Ok(files) => files,
            Err(error) => {
                tracing::error!("{}; the authorities that were loaded before count", error.chain());
                return;
            }
        };
        if files == looked.files {
            return;
        }
        let authorities = Authorities::load(&files);
        looked.files = files;
        looked.overdue.clear();
        *self.current.lock() = Arc::new(authorities);
        self.log_load();
    }

    fn log_load(&self) {
        let loaded = Arc::clone(&self.current.lock());
        tracing::info!(
            "loaded from {}: authorities: {}, certificates beneath them: {}, revocation lists: {}",
            self.path.display(),
            loaded.anchors.len(),
            loaded.intermediates.len(),
            loaded.lists.len(),
        );
    }

    fn log_overdue(&self, looked: &mut Looked, now: SystemTime) {
        let loaded = Arc::clone(&self.current.lock());
        for list in &loaded.lists {
            let Some(next) = list.next.filter(|next| *next < seconds(now)) else { continue };
            if looked.overdue.insert(list.file.clone()) {
                tracing::warn!(
                    "the revocation list {} was to be replaced by {}; its certificates stay revoked, newer ones are \
                     not known: check the program that fetches lists",
                    list.file.display(),
                    utc(next)
                );
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Certificates,
    Lists,
}

/// Returns the kind of a file by the end of its name.
fn kind_of(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()?.as_bytes() {
        b"pem" | b"crt" | b"cer" | [b'0'..=b'9'] => Some(Kind::Certificates),
        b"crl" | [b'r', b'0'..=b'9'] => Some(Kind::Lists),
        _ => None,
    }
}

/// Returns the files of a directory that may hold certificates or lists, with their stamps. Links are followed.
fn files_of(dir: &Path) -> Result<BTreeMap<PathBuf, Stamp>, Error> {
    let failed = |e: std::io::Error| {
        let text = format!("read the directory of authorities {}", dir.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
    };
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if kind_of(&path).is_none() {
            continue;
        }
        // A link without a file does not count; a later look finds the file.
        let Ok(found) = fs::metadata(&path) else { continue };
        if found.is_file() && found.len() <= FILE_BYTES_MAX && files.len() < FILES_MAX {
            // Bits of the numbers, which are only compared.
            let (device, inode, size) = (found.dev() as i64, found.ino() as i64, found.size() as i64);
            let stamp = [device, inode, size, found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            files.insert(path, stamp);
        }
    }
    Ok(files)
}

/// Returns the objects of one kind in a file: sections of PEM, or one object in DER.
fn sections<T: PemObject + AsRef<[u8]>>(bytes: &[u8]) -> Vec<Result<Vec<u8>, String>> {
    /// First byte of a SEQUENCE in DER; text does not begin with a zero.
    const DER: u8 = super::der::SEQUENCE;
    if bytes.first() == Some(&DER) && bytes.get(1).is_some_and(|length| *length >= 0x80) {
        return vec![Ok(bytes.to_vec())];
    }
    let sections = T::pem_slice_iter(bytes).take(OBJECTS_MAX);
    sections.map(|section| section.map(|der| der.as_ref().to_vec()).map_err(|e| e.to_string())).collect()
}
