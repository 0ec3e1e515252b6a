//! Hosts and addresses that a worker may connect to.
//!
//! A user names hosts in a job, and a storage names others in a redirect. Neither may use the service to reach what
//! only the service can reach. Decides by the address, after the name was resolved. Refuses to resolve names.

use std::net::{IpAddr, Ipv4Addr};

use sterna_net::agent::WebServers;
use sterna_proto::Error;
use sterna_proto::web::WebLocation;

/// Addresses that hosts named in a job may have, besides public ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRules {
    /// Addresses of this host.
    pub loopback: bool,
    /// Addresses of private networks (RFC 1918, RFC 4193, RFC 6598).
    pub private: bool,
}

impl Default for AddressRules {
    /// Allows private networks: storages of a site are often there. Refuses this host: the interfaces that listen on
    /// loopback trust everybody who can reach them.
    fn default() -> Self {
        Self { loopback: false, private: true }
    }
}

/// Hosts and addresses that a worker may connect to.
#[derive(Clone, Debug)]
pub struct ConnectRules {
    /// Hosts: all at a service, and those that the operator allows at an agent.
    pub hosts: WebServers,
    /// Addresses that these may have.
    pub addresses: AddressRules,
}

impl ConnectRules {
    /// Checks the host of a location, which a job or a redirect names. Errors: `Denied`.
    pub(super) fn check(&self, at: &WebLocation) -> Result<(), Error> {
        self.hosts.check(at)
    }

    /// Returns true if a request may go to an address.
    pub(super) fn allows(&self, reach: Reach, address: IpAddr) -> bool {
        match self.hosts {
            WebServers::Any => self.addresses.allows(reach, address),
            // The operator has named each host, also those to which others redirect.
            WebServers::These(_) => self.addresses.allows(Reach::Named, address),
        }
    }
}

/// Hosts that a request may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// A host that the job names, or one to which such a host at a private address redirects.
    Named,
    /// A host to which a public one redirects: public addresses only. Reason: a storage on the Internet must not direct
    /// requests of the service into its network.
    Public,
}

/// Kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressKind {
    Public,
    Private,
    Loopback,
    /// No storage has it: link-local, which has the metadata of clouds, multicast, and reserved ones.
    Never,
}

impl AddressRules {
    /// Returns true if a request may go to an address.
    fn allows(self, reach: Reach, address: IpAddr) -> bool {
        match (kind_of(address), reach) {
            (AddressKind::Public, _) => true,
            (AddressKind::Private, Reach::Named) => self.private,
            (AddressKind::Loopback, Reach::Named) => self.loopback,
            (AddressKind::Never, _) | (_, Reach::Public) => false,
        }
    }
}

/// Returns the kind of an address.
pub(super) fn kind_of(address: IpAddr) -> AddressKind {
    match address.to_canonical() {
        IpAddr::V4(v4) => kind_of_v4(v4),
        IpAddr::V6(v6) if v6.is_loopback() => AddressKind::Loopback,
        IpAddr::V6(v6) if v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() => AddressKind::Never,
        IpAddr::V6(v6) if v6.is_unique_local() => AddressKind::Private,
        IpAddr::V6(v6) => match v6.segments() {
            // NAT64 (RFC 6052): the last 32 bits are the address that is reached.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => kind_of_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))),
            _ => AddressKind::Public,
        },
    }
}

fn kind_of_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [127, ..] => AddressKind::Loopback,
        // This network (RFC 791), link-local (RFC 3927), multicast and reserved (RFC 5771, RFC 1112).
        [0, ..] | [169, 254, ..] | [224..=255, ..] => AddressKind::Never,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => AddressKind::Private,
        _ => AddressKind::Public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_has_its_kind() {
        for (text, kind) in [
            ("192.0.2.1", AddressKind::Public),
            ("2001:db8::1", AddressKind::Public),
            ("10.0.0.1", AddressKind::Private),
            ("172.31.255.255", AddressKind::Private),
            ("172.32.0.0", AddressKind::Public),
            ("100.64.0.1", AddressKind::Private),
            ("fd00::1", AddressKind::Private),
            ("64:ff9b::a00:1", AddressKind::Private),
            ("127.8.8.8", AddressKind::Loopback),
            ("::1", AddressKind::Loopback),
            ("::ffff:127.0.0.1", AddressKind::Loopback),
            ("169.254.169.254", AddressKind::Never),
            ("::ffff:169.254.169.254", AddressKind::Never),
            ("0.0.0.0", AddressKind::Never),
            ("::", AddressKind::Never),
            ("fe80::1", AddressKind::Never),
            ("255.255.255.255", AddressKind::Never),
        ] {
            assert_eq!(kind_of(text.parse().unwrap()), kind, "{text}");
        }
    }

    #[test]
    fn a_redirect_of_a_public_host_reaches_public_hosts_only() {
        let all = AddressRules { loopback: true, private: true };
        let allowed = |rules: AddressRules, reach| {
            ["192.0.2.1", "10.0.0.1", "127.0.0.1", "169.254.169.254"]
                .map(|text| rules.allows(reach, text.parse().unwrap()))
        };
        assert_eq!(allowed(all, Reach::Named), [true, true, true, false]);
        assert_eq!(allowed(all, Reach::Public), [true, false, false, false]);
        assert_eq!(allowed(AddressRules::default(), Reach::Named), [true, true, false, false]);
    }

    #[test]
    fn hosts_that_an_operator_has_named_may_redirect_to_each_other_at_any_address() {
        let addresses = AddressRules { loopback: true, private: true };
        let private = "10.0.0.1".parse().unwrap();
        let named = ConnectRules { hosts: WebServers::These(vec!["SE.example".to_owned()]), addresses };
        assert!(named.allows(Reach::Public, private));
        assert!(!named.allows(Reach::Named, "169.254.169.254".parse().unwrap()));
        for (url, is_allowed) in [("https://se.example:1094/f", true), ("https://se.example.org/f", false)] {
            assert_eq!(named.check(&WebLocation::parse(url).unwrap()).is_ok(), is_allowed, "{url}");
        }
        assert!(!ConnectRules { hosts: WebServers::Any, addresses }.allows(Reach::Public, private));
    }
}
