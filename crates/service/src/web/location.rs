//! Locations at HTTP and WebDAV storages: `http`, `https`, `dav` (HTTP) and `davs` (HTTPS).
//!
//! Reads the locations of a job, and derives names beside them. Refuses other schemes, and passwords in a location.

use sterna_proto::Error;
use sterna_proto::web::WebLocation;

/// Schemes, each with that of its requests.
const SCHEMES: [(&str, &str); 4] = [("http", "http"), ("https", "https"), ("dav", "http"), ("davs", "https")];

/// Maximum number of directories that are created for one file. Reason: real paths are shorter.
const PARENTS_MAX: usize = 32;

/// Returns true for a location at such a storage.
pub fn is_web(location: &str) -> bool {
    location
        .split_once("://")
        .is_some_and(|(scheme, _)| SCHEMES.iter().any(|(known, _)| scheme.eq_ignore_ascii_case(known)))
}

/// Reads a location. Errors: `Usage`.
pub(super) fn read(location: &str) -> Result<WebLocation, Error> {
    let (scheme, rest) = location.split_once("://").unwrap_or(("", location));
    match SCHEMES.iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known)) {
        Some((_, sent)) => WebLocation::parse(&format!("{sent}://{rest}")),
        None => WebLocation::parse(location),
    }
}

/// Returns true if a file there can get its name by MOVE: the location has no query and no encoded byte. Reasons: a
/// query is a signature for one name, and XRootD stores the encoded name of a `Destination` header as it is.
pub(super) fn can_be_renamed_to(location: &WebLocation) -> bool {
    !location.url().contains(['%', '?'])
}

/// Returns another name in the directory of a location.
pub(super) fn beside(location: &WebLocation, name: &str) -> Result<WebLocation, Error> {
    location.join(name)
}

/// Returns the directory of a location; `None`: it is the root.
pub(super) fn directory(location: &WebLocation) -> Option<WebLocation> {
    location.join("./").ok().filter(|directory| directory.path() != "/")
}

/// Returns the directories above a location, the nearest first, without the root.
pub(super) fn parents(location: &WebLocation) -> Vec<WebLocation> {
    let directory = |reference: &str, of: &WebLocation| of.join(reference).ok().filter(|parent| parent.path() != "/");
    let nearest = directory("./", location);
    std::iter::successors(nearest, |parent| directory("../", parent)).take(PARENTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webdav_schemes_become_those_of_http() {
        for (text, url) in [
            ("davs://SE.example:8443/a/b", "https://se.example:8443/a/b"),
            ("DAV://se.example/a", "http://se.example/a"),
            ("https://se.example/a b?x=1", "https://se.example/a%20b?x=1"),
        ] {
            assert!(is_web(text), "{text}");
            assert_eq!(read(text).unwrap().url(), url);
        }
        for text in ["root://se.example/a", "gsiftp://se.example/a", "se.example/a", "file:///etc/passwd"] {
            assert!(!is_web(text) && read(text).is_err(), "{text}");
        }
        assert!(read("davs://user:hunter2@se.example/a").is_err_and(|e| !e.chain().contains("hunter2")));
    }

    #[test]
    fn names_beside_and_above_a_file() {
        let file = read("davs://se.example/a//b/c?authz=x").unwrap();
        assert_eq!(beside(&file, ".t").unwrap().url(), "https://se.example/a//b/.t");
        let parents: Vec<String> = parents(&file).iter().map(|parent| parent.url().to_owned()).collect();
        assert_eq!(parents, ["https://se.example/a//b/", "https://se.example/a//", "https://se.example/a/"]);
        assert!(super::parents(&read("http://se.example/c").unwrap()).is_empty());
    }

    #[test]
    fn only_plain_names_are_given_by_a_move() {
        for (text, expected) in
            [("http://h/a-b_c.d~e", true), ("http://h/a b", false), ("http://h/a%41", false), ("http://h/a?b", false)]
        {
            assert_eq!(can_be_renamed_to(&read(text).unwrap()), expected, "{text}");
        }
    }
}
