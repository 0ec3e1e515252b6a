//! Chains of certificates, judged by us and by `openssl verify`.

use std::path::Path;
use std::time::SystemTime;

use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyUsagePurpose, RevocationReason, RevokedCertParams,
    SerialNumber,
};
use rustls::pki_types::CertificateDer;
use sterna_proto::ErrorKind;
use sterna_seeded::{Seeded, for_seeds};
use time::OffsetDateTime;

use super::fixture::{
    BASIC_CONSTRAINTS, CLIENT_AUTH, Credential, Draft, ENCIPHERMENT, EXTENDED_KEY_USAGE, HOUR, INDEPENDENT,
    INHERIT_ALL, KEY_USAGE, LIMITED, NOW, OTHER_ALGORITHM, PROXY_CERT_INFO, SERVER_AUTH, SIGNATURE, World, at,
    attribute, authority_draft, extension, full, name, new_key, of_user, oid, openssl, pem, proxy_cert_info, purposes,
    rdn, sequence, write_pem,
};
use crate::auth::der::{self, SEQUENCE, SET, UTF8_STRING, encode};
use crate::auth::{Trust, X509Identity};

const USER: &str = "/DC=ch/DC=cern/CN=Test User";

/// Verdict on a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Both accept.
    Good,
    /// Both refuse; our text has these words.
    Bad(&'static str),
    /// OpenSSL accepts, and we refuse on purpose; our text has these words.
    Stricter(&'static str),
}

use Verdict::{Bad, Good, Stricter};

fn chain(credentials: &[&Credential]) -> Vec<CertificateDer<'static>> {
    credentials.iter().map(|credential| credential.cert.clone()).collect()
}

fn identify(trust: &Trust, chain: &[CertificateDer<'_>]) -> Result<X509Identity, String> {
    trust.identify(chain, at(0)).map_err(|error| {
        assert_eq!(error.kind, ErrorKind::Untrusted);
        error.text().to_owned()
    })
}

/// Returns true if `openssl verify` accepts a chain for a client of TLS.
fn openssl_accepts(world: &World, chain: &[CertificateDer<'_>]) -> bool {
    let file = |name: &str| world.dir.path().join(name);
    let (leaf, rest) = (file("leaf.pem"), file("rest.pem"));
    write_pem(&leaf, &[&chain[0]]);
    write_pem(&rest, &chain[1..].iter().collect::<Vec<_>>());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (leaf, rest, ca) = (text(&leaf), text(&rest), text(&world.authorities().join("ca.pem")));
    let time = NOW.to_string();
    let mut args = vec!["verify", "-allow_proxy_certs", "-purpose", "sslclient", "-attime", &time, "-CAfile", &ca];
    args.extend(["-no-CApath", "-no-CAstore"]);
    if chain.len() > 1 {
        args.extend(["-untrusted", &rest]);
    }
    args.push(&leaf);
    openssl(&args, &[]).is_ok
}

/// Judges each chain, and compares both verdicts with the expected one.
fn judge(world: &World, cases: Vec<(&str, Vec<CertificateDer<'static>>, Verdict)>) {
    let trust = world.trust();
    let mut wrong = Vec::new();
    for (case, chain, expected) in cases {
        let (ours, theirs) = (identify(&trust, &chain), openssl_accepts(world, &chain));
        let is_right = match expected {
            Good => ours.is_ok() && theirs,
            Bad(words) => ours.as_ref().is_err_and(|text| text.contains(words)) && !theirs,
            Stricter(words) => ours.as_ref().is_err_and(|text| text.contains(words)) && theirs,
        };
        if !is_right {
            wrong.push(format!("{case}: expected {expected:?}; ours: {ours:?}; openssl accepts: {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns a change that adds proxyCertInfo.
fn with_policy(path_length: Option<u8>, policy: &'static str) -> impl Fn(Draft) -> Draft {
    move |draft| draft.with(PROXY_CERT_INFO, true, &proxy_cert_info(path_length, policy))
}

#[test]
fn chains_of_proxies_are_judged_as_by_openssl_or_more_strictly() {
    let world = World::new();
    let user = &world.user;
    let proxy = user.proxy("1001", full);
    let second = proxy.proxy("1002", full);
    let third = second.proxy("1003", full);
    let bare = |change: &dyn Fn(Draft) -> Draft| chain(&[&user.proxy("1001", change), user]);
    let last = user.proxy("1001", with_policy(Some(0), INHERIT_ALL));
    let one_more = user.proxy("1001", with_policy(Some(1), INHERIT_ALL));
    let expired = user.proxy("1", |draft| Draft { end: NOW - 60, ..full(draft) });
    let beyond_expired = expired.proxy("2", full);
    let late = world.authority.issue(USER, |draft| Draft { end: NOW - 60, ..of_user(draft) });
    judge(
        &world,
        vec![
            ("end entity", chain(&[user]), Good),
            ("proxy", chain(&[&proxy, user]), Good),
            ("proxy of a proxy", chain(&[&second, &proxy, user]), Good),
            ("other order", chain(&[&third, user, &proxy, &second]), Good),
            ("with the authority", chain(&[&proxy, user, &world.authority]), Good),
            ("path length kept", chain(&[&one_more.proxy("2", full), &one_more, user]), Good),
            ("last of its path", chain(&[&last, user]), Good),
            ("path length exceeded", chain(&[&last.proxy("2", full), &last, user]), Bad("path length")),
            ("limited", bare(&with_policy(None, LIMITED)), Good),
            ("without key usage", bare(&with_policy(None, INHERIT_ALL)), Good),
            ("expired", chain(&[&expired, user]), Bad("expired at 2026-09-21T14:12:20Z, 1 min ago")),
            ("proxy of an expired one", chain(&[&beyond_expired, &expired, user]), Bad("expired at")),
            ("not yet valid", bare(&|draft| Draft { start: NOW + 600, ..full(draft) }), Bad("in 10 min")),
            (
                "end entity expired",
                chain(&[&late.proxy("1", full), &late]),
                Bad("expired at 2026-09-21T14:12:20Z, 1 min ago"),
            ),
            ("issuer is missing", chain(&[&second, user]), Bad("did not send the issuer")),
            ("independent", bare(&with_policy(None, INDEPENDENT)), Stricter("inherits no rights")),
            (
                "unknown policy",
                bare(&with_policy(None, "1.3.6.1.4.1.99999.5")),
                Stricter("unknown policy 1.3.6.1.4.1.99999.5"),
            ),
            (
                "not critical",
                bare(&|draft| draft.with(PROXY_CERT_INFO, false, &proxy_cert_info(None, INHERIT_ALL))),
                Stricter("not critical"),
            ),
            (
                "policy with a text",
                bare(&|draft| {
                    let policy = sequence(&[&oid(INHERIT_ALL), &encode(der::OCTET_STRING, b"text")]);
                    draft.with(PROXY_CERT_INFO, true, &sequence(&[&policy]))
                }),
                Stricter("no readable proxyCertInfo"),
            ),
            ("proxyCertInfo twice", bare(&|draft| with_policy(None, INHERIT_ALL)(full(draft))), Bad("unreadable")),
        ],
    );
}

#[test]
fn names_of_proxies_are_judged_as_by_openssl() {
    let world = World::new();
    let user = &world.user;
    let cn = |value: &[u8]| attribute("2.5.4.3", UTF8_STRING, value);
    let subject_of = |rdns: &[Vec<u8>]| {
        let user = der::Element::only(SEQUENCE, &name(USER)).unwrap().content.to_vec();
        encode(SEQUENCE, &[user, rdns.concat()].concat())
    };
    let named = |subject: Vec<u8>| chain(&[&user.proxy("1", |draft| Draft { subject, ..full(draft) }), user]);
    let recoded = user.proxy("1", |draft| {
        // Name of the user with another type of string and other letters.
        let common = rdn("2.5.4.3", 0x13, b"TEST  user");
        let begin = der::Element::only(SEQUENCE, &name("/DC=ch/DC=cern")).unwrap().content.to_vec();
        let issuer = encode(SEQUENCE, &[begin, common].concat());
        Draft { issuer, ..full(draft) }
    });
    judge(
        &world,
        vec![
            ("other type of string and letters", chain(&[&recoded, user]), Good),
            ("no CN added", named(name(USER)), Bad("and one CN")),
            ("an OU added", named(name(&format!("{USER}/OU=1"))), Bad("and one CN")),
            ("two CNs added", named(name(&format!("{USER}/CN=1/CN=2"))), Bad("and one CN")),
            ("an RDN of two CNs", named(subject_of(&[encode(SET, &[cn(b"1"), cn(b"2")].concat())])), Bad("and one CN")),
            ("another name before", named(name("/DC=ch/DC=cern/CN=Other/CN=1")), Bad("and one CN")),
            ("a prefix", named(name("/DC=ch/CN=1")), Bad("and one CN")),
            (
                "issuer of another name",
                chain(&[&user.proxy("1", |draft| Draft { issuer: name("/DC=ch/CN=Other"), ..full(draft) }), user]),
                Bad("did not send the issuer"),
            ),
            ("legacy", chain(&[&user.proxy("proxy", |draft| draft), user]), Bad("legacy proxy")),
            ("legacy limited", chain(&[&user.proxy("limited proxy", |draft| draft), user]), Bad("legacy proxy")),
            (
                "draft of RFC 3820",
                chain(&[&user.proxy("1", |draft| draft.with("1.3.6.1.4.1.3536.1.222", true, &[5, 0])), user]),
                Bad("legacy proxy"),
            ),
            (
                "proxy of a legacy proxy",
                {
                    let legacy = user.proxy("proxy", |draft| draft);
                    chain(&[&legacy.proxy("1", full), &legacy, user])
                },
                Bad("legacy proxy"),
            ),
            ("issued by the user without proxyCertInfo", chain(&[&user.proxy("1", of_user), user]), Bad("")),
        ],
    );
}

#[test]
fn keys_and_extensions_of_proxies_are_judged_as_by_openssl_or_more_strictly() {
    let world = World::new();
    let user = &world.user;
    let bare = |change: &dyn Fn(Draft) -> Draft| chain(&[&user.proxy("1", change), user]);
    let stranger = new_key();
    let forged = user.draft(&format!("{USER}/CN=1"), &new_key());
    let forged = full(forged).sign(&stranger);
    let is_ca = sequence(&[&encode(der::BOOLEAN, &[0xff])]);
    let host = sequence(&[&encode(0x82, b"host.example.org")]);
    let no_signature = world.authority.issue(USER, |draft| draft.with(KEY_USAGE, true, &ENCIPHERMENT));
    let certain = with_policy(None, INHERIT_ALL);
    let authority = &world.authority;
    judge(
        &world,
        vec![
            ("of version 1", bare(&|draft| Draft { version: 0, ..full(draft) }), Stricter("version 3")),
            (
                "two algorithms",
                bare(&|draft| Draft { algorithm: OTHER_ALGORITHM.to_vec(), ..full(draft) }),
                Bad("two algorithms"),
            ),
            (
                "bytes after the extensions",
                bare(&|draft| Draft { rest: vec![5, 0], ..full(draft) }),
                Bad("is unreadable"),
            ),
            ("signature of a stranger", vec![forged, user.cert.clone()], Bad("the signature is wrong")),
            ("issued by an authority", chain(&[&authority.proxy("1", full), authority]), Bad("")),
            ("an authority", bare(&|draft| full(draft).with(BASIC_CONSTRAINTS, true, &is_ca)), Bad("is an authority")),
            ("no authority, in words", bare(&|draft| full(draft).with(BASIC_CONSTRAINTS, true, &sequence(&[]))), Good),
            ("a name of a host", bare(&|draft| full(draft).with("2.5.29.17", false, &host)), Bad("alternative name")),
            (
                "a name of the issuer",
                bare(&|draft| full(draft).with("2.5.29.18", false, &host)),
                Bad("alternative name"),
            ),
            (
                "unknown critical extension",
                bare(&|draft| full(draft).with("1.3.6.1.4.1.99999.7", true, &[5, 0])),
                Bad("unknown critical extension 1.3.6.1.4.1.99999.7"),
            ),
            ("unknown extension", bare(&|draft| full(draft).with("1.3.6.1.4.1.99999.7", false, &[5, 0])), Good),
            (
                "key for encipherment",
                bare(&|draft| certain(draft).with(KEY_USAGE, true, &ENCIPHERMENT)),
                Bad("digitalSignature"),
            ),
            (
                "key for certificates",
                bare(&|draft| certain(draft).with(KEY_USAGE, true, &[3, 2, 2, 0x84])),
                Stricter("may sign certificates"),
            ),
            (
                "for servers",
                bare(&|draft| full(draft).with(EXTENDED_KEY_USAGE, false, &purposes(&[SERVER_AUTH]))),
                Bad("not for client authentication"),
            ),
            (
                "for clients and servers",
                bare(&|draft| full(draft).with(EXTENDED_KEY_USAGE, false, &purposes(&[SERVER_AUTH, CLIENT_AUTH]))),
                Good,
            ),
            (
                "user may not sign",
                chain(&[&no_signature.proxy("1", full), &no_signature]),
                Bad("lacks digitalSignature"),
            ),
        ],
    );
}

#[test]
fn end_entities_are_judged_as_by_openssl_or_more_strictly() {
    let world = World::new();
    let authority = &world.authority;
    let other = Credential::authority("/DC=org/DC=example/CN=Other Authority");
    let same_name = Credential::authority(&authority.subject);
    let middle = {
        let key = new_key();
        let subject = "/DC=org/DC=example/CN=Middle";
        let cert = authority_draft(subject, &authority.subject, &key).sign(&authority.key);
        Credential { cert, key, subject: subject.to_owned() }
    };
    let beneath = middle.user("/DC=org/CN=Beneath");
    let no_authority = authority.user("/DC=org/CN=User");
    let purposes_of = |list: &'static [&'static str]| {
        authority.issue("/DC=org/CN=x", move |draft| draft.with(EXTENDED_KEY_USAGE, false, &purposes(list)))
    };
    let no_signature = authority.issue("/DC=org/CN=x", |draft| draft.with(KEY_USAGE, true, &ENCIPHERMENT));
    let unknown = authority.issue("/DC=org/CN=x", |draft| draft.with("1.2.3.4", true, &[5, 0]));
    judge(
        &world,
        vec![
            ("plain", chain(&[&authority.issue("/DC=org/CN=x", |draft| draft)]), Good),
            ("of an unknown authority", chain(&[&other.user(USER)]), Bad("no valid authority")),
            ("with its unknown authority", chain(&[&other.user(USER), &other]), Bad("no valid authority")),
            (
                "of another key of the authority",
                chain(&[&same_name.user(USER)]),
                Bad("signature of the chain is wrong"),
            ),
            ("issued by itself", chain(&[&Credential::authority(USER)]), Bad("")),
            ("beneath another authority", chain(&[&beneath, &middle]), Good),
            ("proxy beneath another authority", chain(&[&beneath.proxy("1", full), &beneath, &middle]), Good),
            ("the other authority is missing", chain(&[&beneath]), Bad("no valid authority")),
            ("issued by a user", chain(&[&no_authority.user("/DC=org/CN=x"), &no_authority]), Bad("")),
            ("for servers", chain(&[&purposes_of(&[SERVER_AUTH])]), Bad("not for client authentication")),
            ("for both", chain(&[&purposes_of(&[SERVER_AUTH, CLIENT_AUTH])]), Good),
            ("key for encipherment", chain(&[&no_signature]), Bad("lacks digitalSignature")),
            ("unknown critical extension", chain(&[&unknown]), Bad("unknown critical extension")),
            ("an authority", chain(&[authority]), Bad("lacks digitalSignature")),
        ],
    );
}

#[test]
fn more_proxies_than_the_limit_are_refused() {
    let world = World::new();
    let mut proxies = vec![world.user.proxy("0", full)];
    for depth in 1..11 {
        proxies.push(proxies[depth - 1].proxy(&depth.to_string(), full));
    }
    let chain_of = |count: usize| {
        let mut chain: Vec<_> = proxies[..count].iter().rev().map(|proxy| proxy.cert.clone()).collect();
        chain.push(world.user.cert.clone());
        chain
    };
    judge(&world, vec![("ten", chain_of(10), Good), ("eleven", chain_of(11), Stricter("more than 10 proxies"))]);
    let trust = world.trust();
    let many = vec![world.user.cert.clone(); 21];
    assert!(identify(&trust, &many).unwrap_err().contains("21 certificates"));
    assert!(identify(&trust, &[]).unwrap_err().contains("0 certificates"));
}

#[test]
fn an_identity_has_the_name_of_the_end_entity_and_the_earliest_end() {
    let world = World::new();
    let trust = world.trust();
    let user = &world.user;
    let alone = identify(&trust, &chain(&[user])).unwrap();
    let day = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs((NOW + 24 * HOUR) as u64);
    let expected =
        X509Identity { dn: USER.to_owned(), fqans: Vec::new(), expires: day, is_proxy: false, is_limited: false };
    assert_eq!(alone, expected);
    let limited = user.proxy("1", |draft| Draft { end: NOW + HOUR, ..with_policy(None, LIMITED)(draft) });
    let above = limited.proxy("2", |draft| Draft { end: NOW + 2 * HOUR, ..full(draft) });
    let proxied = identify(&trust, &chain(&[&above, &limited, user])).unwrap();
    assert_eq!(proxied, X509Identity { expires: at(HOUR), is_proxy: true, is_limited: true, ..expected.clone() });
    let full_proxy = identify(&trust, &chain(&[&user.proxy("3", full), user])).unwrap();
    assert_eq!(full_proxy, X509Identity { is_proxy: true, ..expected });
    assert_eq!(full_proxy.credential_id(), "92fbce05ea766c17");
    assert_eq!(full_proxy.vo(), None);
}

/// `CN=a\`, then `CN=b`, has the same slash form as `CN=a/CN=b`.
#[test]
fn a_name_that_could_be_taken_for_another_is_refused() {
    let world = World::new();
    let cn = |value: &[u8]| rdn("2.5.4.3", UTF8_STRING, value);
    let issue = |rdns: &[Vec<u8>]| {
        let subject = encode(SEQUENCE, &rdns.concat());
        identify(&world.trust(), &[world.authority.issue("/CN=x", |draft| Draft { subject, ..of_user(draft) }).cert])
    };
    assert_eq!(issue(&[cn(b"a/CN=b")]).unwrap().dn, "/CN=a\\/CN=b");
    assert_eq!(issue(&[cn(b"a"), cn(b"b")]).unwrap().dn, "/CN=a/CN=b");
    assert!(issue(&[cn(b"a\\"), cn(b"b")]).unwrap_err().contains("has a backslash"));
}

#[test]
fn a_name_that_is_empty_or_too_long_is_refused() {
    let world = World::new();
    let trust = world.trust();
    let long = format!("/CN={}", "x".repeat(1020));
    assert!(identify(&trust, &chain(&[&world.authority.user(&long)])).is_ok());
    let empty = world.authority.issue("/CN=x", |draft| Draft { subject: sequence(&[]), ..of_user(draft) });
    for credential in [world.authority.user(&format!("{long}x")), empty] {
        assert!(identify(&trust, &chain(&[&credential])).unwrap_err().contains("empty or longer than 1024"));
    }
}

/// Returns a list of revoked certificates of an authority that is due again at `next`.
fn revocation_list(authority: &Credential, serial: u64, next: i64) -> String {
    let time = |seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    let key = rcgen::KeyPair::try_from(authority.key.serialized_der()).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    let domain = |value: &str| rcgen::DnValue::Ia5String(value.try_into().unwrap());
    let kind = |last| rcgen::DnType::CustomDnType(vec![0, 9, 2342, 19200300, 100, 1, last]);
    params.distinguished_name.push(kind(25), domain("example"));
    params.distinguished_name.push(rcgen::DnType::CommonName, "Test Authority");
    let list = CertificateRevocationListParams {
        this_update: time(NOW - 24 * HOUR),
        next_update: time(next),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: time(NOW - 48 * HOUR),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&Issuer::new(params, key)).unwrap().pem().unwrap()
}

#[test]
fn a_revoked_user_is_refused_even_by_an_overdue_list() {
    let mut world = World::new();
    world.authority = Credential::authority("/DC=example/CN=Test Authority");
    write_pem(&world.authorities().join("ca.pem"), &[&world.authority.cert]);
    let good = world.authority.issue(USER, |draft| Draft { serial: 8, ..of_user(draft) });
    let revoked = world.authority.issue(USER, |draft| Draft { serial: 9, ..of_user(draft) });
    for (file, next) in [("ca.r0", NOW + HOUR), ("ca.crl", NOW - HOUR)] {
        let path = world.authorities().join(file);
        std::fs::write(&path, revocation_list(&world.authority, 9, next)).unwrap();
        let trust = world.trust();
        assert_eq!(identify(&trust, &chain(&[&good])).unwrap().dn, USER, "{file}");
        for revoked in [chain(&[&revoked]), chain(&[&revoked.proxy("1", full), &revoked])] {
            assert!(identify(&trust, &revoked).unwrap_err().contains("revoked"), "{file}");
        }
        std::fs::remove_file(path).unwrap();
    }
    // A list that another key signed must not decide: the certificate is refused, as by OpenSSL.
    let other = Credential::authority("/DC=example/CN=Test Authority");
    std::fs::write(world.authorities().join("ca.r0"), revocation_list(&other, 1, NOW + HOUR)).unwrap();
    assert!(identify(&world.trust(), &chain(&[&good])).is_err());
}

#[test]
fn an_expired_authority_certifies_nobody() {
    let world = World::new();
    let key = new_key();
    let subject = "/CN=Old Authority";
    let old = Draft { end: NOW - 1, ..authority_draft(subject, subject, &key) }.sign(&key);
    let old = Credential { cert: old, key, subject: subject.to_owned() };
    write_pem(&world.authorities().join("old.pem"), &[&old.cert]);
    let trust = world.trust();
    assert!(identify(&trust, &chain(&[&old.user(USER)])).unwrap_err().contains("no valid authority"));
}

#[test]
fn a_certificate_of_the_directory_that_is_no_authority_certifies_nobody() {
    let world = World::new();
    let is_ca = sequence(&[&encode(der::BOOLEAN, &[0xff])]);
    let changes: [&dyn Fn(Draft) -> Draft; 3] =
        [&|draft| draft, &|draft| draft.with(KEY_USAGE, true, &SIGNATURE), &|draft| {
            draft.with(BASIC_CONSTRAINTS, true, &is_ca).with(KEY_USAGE, true, &SIGNATURE)
        }];
    for (index, change) in changes.into_iter().enumerate() {
        let key = new_key();
        let host = change(Draft::new("/CN=host", "/CN=host", &key)).sign(&key);
        let host = Credential { cert: host, key, subject: "/CN=host".to_owned() };
        write_pem(&world.authorities().join("host.pem"), &[&host.cert]);
        assert!(identify(&world.trust(), &chain(&[&host.user(USER)])).is_err(), "{index}");
        assert!(identify(&world.trust(), &chain(&[&world.user])).is_ok());
    }
}

/// As in OpenSSL: its authority can revoke it only if the path leads there.
#[test]
fn a_certificate_of_the_directory_that_another_authority_issued_needs_that_authority() {
    let world = World::new();
    let (key, subject) = (new_key(), "/DC=org/DC=example/CN=Middle");
    let cert = authority_draft(subject, &world.authority.subject, &key).sign(&world.authority.key);
    let middle = Credential { cert, key, subject: subject.to_owned() };
    write_pem(&world.authorities().join("middle.pem"), &[&middle.cert]);
    assert!(identify(&world.trust(), &chain(&[&middle.user(USER)])).is_ok());
    let other = Credential::authority("/CN=Other Authority");
    write_pem(&world.authorities().join("ca.pem"), &[&other.cert]);
    assert!(identify(&world.trust(), &chain(&[&middle.user(USER)])).unwrap_err().contains("no valid authority"));
}

#[test]
fn random_damage_never_verifies_and_never_panics() {
    let world = World::new();
    let trust = world.trust();
    let proxy = world.user.proxy("1", full);
    let second = proxy.proxy("2", full);
    let good = chain(&[&second, &proxy, &world.user]);
    assert!(identify(&trust, &good).is_ok());
    for_seeds("random_damage_never_verifies_and_never_panics", 40, |seed| {
        let mut random = Seeded::new(seed);
        for _ in 0..100 {
            let mut bytes: Vec<Vec<u8>> = good.iter().map(|der| der.to_vec()).collect();
            let index = random.index(bytes.len());
            let victim = &mut bytes[index];
            let at = random.index(victim.len());
            match random.below(8) {
                0 => victim.truncate(at),
                1 => victim.insert(at, random.draw() as u8),
                2 => drop(victim.remove(at)),
                3 => victim.push(random.draw() as u8),
                _ => victim[at] ^= 1 << random.below(8),
            }
            if bytes.iter().zip(&good).all(|(bytes, good)| bytes == &good[..]) {
                continue;
            }
            let damaged: Vec<CertificateDer<'_>> = bytes.iter().map(|der| CertificateDer::from(&der[..])).collect();
            assert!(identify(&trust, &damaged).is_err(), "byte {at} of certificate {index}");
        }
        // Bytes that are no certificate at all.
        let length = random.index(300);
        let noise = random.bytes(length);
        assert!(identify(&trust, &[CertificateDer::from(&noise[..]), world.user.cert.clone()]).is_err());
        assert!(identify(&trust, &[proxy.cert.clone(), CertificateDer::from(&noise[..])]).is_err());
    });
}

/// Proxies of the program `openssl` itself, with RSA keys as users have them.
#[test]
fn proxies_made_by_openssl_verify() {
    let world = World::new();
    let path = |name: &str| world.dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("issuer.key"), world.user.key.serialize_pem()).unwrap();
    write_pem(Path::new(&path("issuer.pem")), &[&world.user.cert]);
    let config = "[proxy]\nkeyUsage=critical,digitalSignature,keyEncipherment\n\
                  proxyCertInfo=critical,language:id-ppl-inheritAll,pathlen:1\n";
    std::fs::write(path("proxy.cnf"), config).unwrap();
    let run = |args: &[&str]| {
        let answer = openssl(args, &[]);
        assert!(answer.is_ok, "{args:?}: {}", answer.stderr);
    };
    let subject = format!("{USER}/CN=4711");
    let (request, key) = (path("proxy.csr"), path("proxy.key"));
    run(&["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-out", &request, "-subj", &subject]);
    // The request has UTF8Strings where the user has IA5Strings: names are compared as by OpenSSL.
    run(&[
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        &path("issuer.pem"),
        "-CAkey",
        &path("issuer.key"),
        "-out",
        &path("proxy.pem"),
        "-extfile",
        &path("proxy.cnf"),
        "-extensions",
        "proxy",
        "-days",
        "1",
        "-set_serial",
        "5",
    ]);
    let made = std::fs::read(path("proxy.pem")).unwrap();
    let made = <CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(&made).unwrap();
    // The program reads the clock: the user must be valid then too.
    let (_, parsed) = x509_parser::parse_x509_certificate(&made).unwrap();
    let now = parsed.validity().not_before.timestamp();
    let user_now = world.authority.draft(USER, &world.user.key);
    let user_now = Draft { start: now - HOUR, end: now + HOUR, ..of_user(user_now) }.sign(&world.authority.key);
    let key = rcgen::KeyPair::try_from(world.authority.key.serialized_der()).unwrap();
    let long = Draft {
        start: now - HOUR,
        end: now + HOUR,
        ..authority_draft(&world.authority.subject, &world.authority.subject, &key)
    };
    std::fs::write(world.authorities().join("ca.pem"), pem("CERTIFICATE", &long.sign(&key))).unwrap();
    let trust = world.trust();
    let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(now as u64 + 1);
    let identity = trust.identify(&[made.clone(), user_now.clone()], time).unwrap_or_else(|e| panic!("{}", e.chain()));
    assert_eq!((identity.dn.as_str(), identity.is_proxy, identity.is_limited), (USER, true, false));
}

#[test]
fn an_extension_of_a_fixture_is_der() {
    assert_eq!(
        extension("2.5.29.15", true, &SIGNATURE),
        [0x30, 14, 6, 3, 0x55, 0x1d, 15, 1, 1, 0xff, 4, 4, 3, 2, 7, 0x80]
    );
}
