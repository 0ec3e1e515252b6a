//! Endpoints of the scheduler: scheme and host of a location.

use sterna_proto::{Error, ErrorKind, Phase, Scope};
use url::Url;

/// Maximum bytes of a location. Reason: web servers take no longer ones.
pub const LOCATION_BYTES_MAX: usize = 8192;

/// Scheme of locations at agents, with what separates it from the site.
pub const AGENTS: &str = "sterna://";

/// Returns the site of an endpoint: its host, if it is at agents.
pub fn site_of(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix(AGENTS)
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Returns a location for a log: without its query, which can have a token.
pub fn loggable(location: &str) -> &str {
    location.split_once('?').map_or(location, |(path, _)| path)
}

/// Returns the endpoint of a location: scheme and host, without the port. Source: FTS3.
///
/// Errors: it is no URL, has no host or no path, or names a file of the host of the service.
pub fn endpoint_of(location: &str) -> Result<String, Error> {
    if location.len() > LOCATION_BYTES_MAX {
        return Err(usage(format!("a location of {} bytes: the maximum is {LOCATION_BYTES_MAX}", location.len())));
    }
    let url = Url::parse(location).map_err(|e| usage(format!("{location} is not a URL: {e}")))?;
    if url.scheme() == "file" {
        return Err(usage(format!("Can not transfer local files ({location})")));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| usage(format!("{location} has no host")))?;
    if url.path().trim_start_matches('/').is_empty() && url.query().is_none() {
        return Err(usage(format!("{location} has no path")));
    }
    Ok(format!("{}://{host}", url.scheme()))
}

/// Returns the endpoint of a prefix: a location that ends with `/`, without a query. Everything beneath it is meant.
///
/// Errors: as of [`endpoint_of`]; it is no prefix.
pub fn endpoint_of_prefix(location: &str) -> Result<String, Error> {
    if !location.ends_with('/') || location.contains(['?', '#']) {
        return Err(usage(format!(
            "{location} is no directory: expected a location that ends with /, without a query"
        )));
    }
    // A name behind it: the root of a host is a prefix, and no file.
    endpoint_of(&format!("{location}f"))
}

/// Returns true if a location ends with `/`: it names a directory.
pub fn is_directory(location: &str) -> bool {
    let end = location.find(['?', '#']).unwrap_or(location.len());
    location.get(..end).is_some_and(|path| path.ends_with('/'))
}

/// Returns the name of an endpoint: scheme and host, without the port, as in the queues of the scheduler.
///
/// Errors: `Usage`, if it is no URL with a host.
pub fn endpoint_named(given: &str) -> Result<String, Error> {
    let wrong = || usage(format!("{given} is no endpoint: expected SCHEME://HOST"));
    let url = Url::parse(given).map_err(|_| wrong())?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    Ok(format!("{}://{host}", url.scheme()))
}

/// Returns true if two locations may mean the same file: host and path are equal, whatever scheme and port are.
pub fn may_be_same(one: &str, other: &str) -> bool {
    let place = |location: &str| {
        let url = Url::parse(location).ok()?;
        let names = url.path().split('/').filter(|name| !matches!(*name, "" | "."));
        let names: Vec<String> = names.map(str::to_owned).collect();
        Some((url.host_str()?.to_ascii_lowercase(), names))
    };
    match (place(one), place(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_with_a_slash_and_has_no_query() {
        for (given, expected) in
            [("sterna://se.example/", "sterna://se.example"), ("https://SE.example:8443/a/", "https://se.example")]
        {
            assert_eq!(endpoint_of_prefix(given).unwrap(), expected);
            assert!(is_directory(given));
        }
        for wrong in
            ["sterna://se.example", "sterna://se.example/a", "davs://h/a/?x", "davs://h/a/#", "file:///a/", "/"]
        {
            assert!(endpoint_of_prefix(wrong).is_err(), "{wrong}");
        }
        assert!(is_directory("https://h/a/?x=1") && !is_directory("https://h/a?x=/") && !is_directory("sterna://h/a"));
    }

    #[test]
    fn one_file_has_several_locations() {
        let file = "https://se.example/a/f";
        for same in [file, "davs://SE.example:1094//a/./f", "http://se.example/a/f?authz=x", "https://se.example/a/f/"]
        {
            assert!(may_be_same(file, same), "{same}");
        }
        for other in ["https://se.example/a/g", "https://other.example/a/f", "https://se.example/b/a/f", "x"] {
            assert!(!may_be_same(file, other), "{other}");
        }
    }

    #[test]
    fn an_endpoint_is_named_as_in_the_queues() {
        for (given, expected) in [
            ("sterna://se.example", "sterna://se.example"),
            ("sterna://se.example:7373/", "sterna://se.example"),
            ("https://SE.example/path?x=1", "https://se.example"),
        ] {
            assert_eq!(endpoint_named(given).unwrap(), expected);
            let of_file = endpoint_of(&format!("{}/f", given.split_once('?').map_or(given, |at| at.0)));
            assert_eq!(of_file.unwrap(), expected, "the endpoint of a file there");
        }
        for wrong in ["", "*", "se.example", "sterna://", "file:///x", "/sterna"] {
            assert!(endpoint_named(wrong).is_err(), "{wrong}");
        }
    }
}
