//! Files that list the servers of a virtual organisation: `DIR/VO/HOST.lsc`.
//!
//! Such a file has the subject and the issuer of the server's certificate, each on a line in the slash form, and then
//! those of its issuers. It pins the names, so that the certificate of a server can be renewed without a change here.
//! Refuses names of VO and host that could leave the directory.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::certificate::Certificate;

/// Largest file in bytes. Reason: a file of ten chains has 2 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Longest name of a VO or a host. Source: the limit of a DNS name.
const NAME_BYTES_MAX: usize = 255;

/// Spellings of attribute types in older files, and those of today. Source: `normalize` of VOMS 2.1.
const SPELLINGS: [(&str, &str); 3] = [("/Email=", "/emailAddress="), ("/E=", "/emailAddress="), ("/USERID=", "/UID=")];

/// Server of a virtual organisation, as an attribute certificate names it: `VO://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Virtual organisation.
    pub vo: String,
    /// Host of the server.
    pub host: String,
}

impl Server {
    /// Reads `VO://HOST:PORT`. Errors: the form differs, or VO or host is no plain name.
    pub fn parse(uri: &[u8]) -> Option<Self> {
        let (vo, address) = std::str::from_utf8(uri).ok()?.split_once("://")?;
        let (host, _port) = address.rsplit_once(':')?;
        (is_plain(vo) && is_plain(host)).then(|| Self { vo: vo.to_owned(), host: host.to_owned() })
    }
}

/// Returns true for a name that is one component of a path, and hides nothing.
fn is_plain(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// Checks that a chain of certificates is the one that the file of a server lists. `chain`: server first.
///
/// A file may list several chains; one must match. The certificates that both the file and the chain have are compared,
/// at least that of the server. Errors: the file cannot be read, or no chain of it matches.
pub(super) fn check(dir: &Path, server: &Server, chain: &[Certificate<'_>]) -> Result<(), String> {
    let path = dir.join(&server.vo).join(format!("{}.lsc", server.host));
    let text = read(&path).map_err(|e| format!("read {}: {e}", path.display()))?;
    let names: Vec<[String; 2]> = chain.iter().map(names_of).collect();
    if chains_of(&text).iter().any(|listed| is_match(listed, &names)) {
        return Ok(());
    }
    let [subject, issuer] = names.first().cloned().unwrap_or_default();
    Err(format!("{} does not list the server {subject} of {issuer}", path.display()))
}

fn names_of(certificate: &Certificate<'_>) -> [String; 2] {
    [certificate.parsed.subject(), certificate.parsed.issuer()].map(|name| normalized(&super::dn::slash_form(name)))
}

/// Reads the file, which is bounded.
fn read(path: &Path) -> std::io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("it is no file of at most {FILE_BYTES_MAX} bytes")));
    }
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the chains of a file: for each, pairs of subject and issuer. Chains are separated by a line of dashes
/// (`------ NEXT CHAIN ------`). A line without its pair makes a chain that matches nothing.
fn chains_of(text: &str) -> Vec<Vec<Vec<String>>> {
    let lines = text.lines().map(|line| line.trim().trim_matches('"').trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let chains = lines.split(|line| line.starts_with('-'));
    chains
        .map(|chain| chain.chunks(2).map(|pair| pair.iter().map(|name| normalized(name)).collect()).collect())
        .collect()
}

fn is_match(listed: &[Vec<String>], names: &[[String; 2]]) -> bool {
    !listed.is_empty() && !names.is_empty() && listed.iter().zip(names).all(|(pair, names)| pair == names)
}

/// Returns a name in one spelling. OpenSSL before 3.0 put no backslash before a slash in a value, and most files are
/// older.
fn normalized(name: &str) -> String {
    let name = name.replace("\\/", "/").replace("\\+", "+");
    SPELLINGS.iter().fold(name, |name, (old, new)| name.replace(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_directory_are_no_server() {
        let server = |vo: &str, host: &str| Some(Server { vo: vo.to_owned(), host: host.to_owned() });
        for (uri, expected) in [
            ("testvo://voms.example.org:15000", server("testvo", "voms.example.org")),
            ("vo.sub-1_x://h:1", server("vo.sub-1_x", "h")),
            ("../etc://host:1", None),
            ("..://host:1", None),
            (".vo://host:1", None),
            ("vo://../x:1", None),
            ("vo://a/b:1", None),
            ("vo://:1", None),
            ("://host:1", None),
            ("vo://host", None),
            ("vo:host:1", None),
            ("v\0o://host:1", None),
        ] {
            assert_eq!(Server::parse(uri.as_bytes()), expected, "{uri:?}");
        }
        assert_eq!(Server::parse(b"\xff://host:1"), None);
    }

    #[test]
    fn one_chain_of_a_file_must_match_in_all_names_that_both_have() {
        let names =
            |pairs: &[[&str; 2]]| -> Vec<[String; 2]> { pairs.iter().map(|pair| pair.map(str::to_owned)).collect() };
        let server = names(&[["/CN=v", "/CN=ca"]]);
        let whole = names(&[["/CN=v", "/CN=ca"], ["/CN=ca", "/CN=root"]]);
        for (text, alone, with_issuer) in [
            ("/CN=v\n/CN=ca\n", true, true),
            ("# a comment\n\n  \"/CN=v\"  \n/CN=ca", true, true),
            ("/CN=v\n/CN=ca\n/CN=ca\n/CN=root\n", true, true),
            ("/CN=v\n/CN=ca\n/CN=ca\n/CN=other\n", true, false),
            ("/CN=v\n/CN=other\n", false, false),
            ("/CN=w\n/CN=ca\n", false, false),
            ("/CN=w\n/CN=ca\n------ NEXT CHAIN ------\n/CN=v\n/CN=ca\n", true, true),
            ("/CN=v\n------NEXT CHAIN------\n/CN=ca\n", false, false),
            ("/CN=v\n", false, false),
            ("", false, false),
        ] {
            let matches = |names: &[[String; 2]]| chains_of(text).iter().any(|listed| is_match(listed, names));
            assert_eq!((matches(&server), matches(&whole)), (alone, with_issuer), "{text:?}");
            assert!(!matches(&[]), "{text:?}");
        }
    }

    #[test]
    fn older_spellings_count() {
        assert_eq!(normalized("/O=x/Email=a@b/USERID=c"), "/O=x/emailAddress=a@b/UID=c");
        assert_eq!(normalized("/O=x/E=a@b/OU=E"), "/O=x/emailAddress=a@b/OU=E");
        assert_eq!(normalized("/O=x/CN=host\\/voms.example.org"), "/O=x/CN=host/voms.example.org");
    }
}
