//! Names, as OpenSSL prints and hashes them.

use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

use super::fixture::{Draft, attribute, name, new_key, openssl, rdn};
use crate::auth::Fqan;
use crate::auth::der::{SEQUENCE, SET, UTF8_STRING, encode};
use crate::auth::dn::{self, slash_form, subject_hash};
use crate::auth::{credential_id, vo_id};

const PRINTABLE: u8 = 0x13;
const T61: u8 = 0x14;
const IA5: u8 = 0x16;
const UNIVERSAL: u8 = 0x1c;
const BMP: u8 = 0x1e;
const CN: &str = "2.5.4.3";
const O: &str = "2.5.4.10";

/// Returns a certificate with this subject.
fn certificate(subject: Vec<u8>) -> CertificateDer<'static> {
    let key = new_key();
    Draft { subject, ..Draft::new("/CN=x", "/CN=x", &key) }.sign(&key)
}

fn name_of(rdns: &[Vec<u8>]) -> Vec<u8> {
    encode(SEQUENCE, &rdns.concat())
}

/// Compares slash form and hash of a subject with those that `openssl` prints.
fn compare(subject: Vec<u8>) -> String {
    let der = certificate(subject);
    let (_, parsed) = parse_x509_certificate(&der).unwrap();
    let printed = openssl(&["x509", "-inform", "DER", "-noout", "-subject", "-hash", "-nameopt", "compat"], &der);
    assert!(printed.is_ok, "{}", printed.stderr);
    let (shown, hash) = (slash_form(parsed.subject()), subject_hash(parsed.subject()));
    assert_eq!(printed.stdout, format!("subject={shown}\n{hash:08x}\n"));
    shown
}

#[test]
fn names_are_printed_and_hashed_as_by_openssl() {
    let utf8 = |value: &[u8]| rdn(CN, UTF8_STRING, value);
    assert_eq!(compare(name("/DC=ch/DC=cern/CN=Test User")), "/DC=ch/DC=cern/CN=Test User");
    assert_eq!(compare(name_of(&[])), "");
    assert_eq!(compare(name_of(&[utf8(b"host/a.example.org+b")])), "/CN=host\\/a.example.org\\+b");
    for rdns in [
        vec![utf8("Zoë Ångström".as_bytes())],
        vec![utf8(b"with/slash=and\\backslash \"quotes\"")],
        vec![utf8(b"tab\tand\x7f and \x00 zero")],
        vec![utf8(b"  Two  spaces,   UPPER lower  ")],
        vec![utf8(b"")],
        vec![rdn(O, PRINTABLE, b"Print Able"), rdn(CN, IA5, b"a@B")],
        vec![rdn(CN, T61, b"caf\xe9")],
        vec![rdn(CN, BMP, b"\x00T\x00e\x20\xac")],
        vec![rdn(CN, UNIVERSAL, b"\x00\x00\x00T\x00\x01\xf6\x00")],
        vec![rdn("1.3.6.1.4.1.99999.1", UTF8_STRING, b"unknown type"), rdn("2.999.1", UTF8_STRING, b"x")],
        vec![encode(SET, &[attribute(CN, UTF8_STRING, b"one"), attribute(O, UTF8_STRING, b"two")].concat())],
    ] {
        compare(name_of(&rdns));
    }
}

#[test]
fn every_short_name_is_that_of_openssl() {
    let uid = "0.9.2342.19200300.100.1.";
    let mut types: Vec<String> =
        (3..=20).chain(41..=46).chain([51, 65, 72, 97]).map(|last| format!("2.5.4.{last}")).collect();
    types.extend([1, 3, 5, 9, 25, 43, 44].map(|last| format!("{uid}{last}")));
    types.extend([1, 2, 8, 20].map(|last| format!("1.2.840.113549.1.9.{last}")));
    types.extend([1, 2, 3].map(|last| format!("1.3.6.1.4.1.311.60.2.1.{last}")));
    types.push("1.2.643.3.131.1.1".to_owned());
    // The search guide (2.5.4.14) is no text, and nobody has one in a name.
    types.retain(|dotted| dotted != "2.5.4.14");
    let rdns: Vec<_> = types.iter().map(|dotted| rdn(dotted, UTF8_STRING, b"v")).collect();
    let shown = compare(name_of(&rdns));
    assert!(!shown.contains("/1.") && !shown.contains("/2.") && !shown.contains("/0."), "{shown}");
}

#[test]
fn names_are_equal_if_type_of_string_case_and_spaces_alone_differ() {
    let is_same = |one: Vec<u8>, other: Vec<u8>| {
        let (one, other) = (certificate(one), certificate(other));
        let (one, other) = (parse_x509_certificate(&one).unwrap().1, parse_x509_certificate(&other).unwrap().1);
        dn::is_same(one.subject(), other.subject())
    };
    let (a, b) = (name_of(&[rdn(CN, UTF8_STRING, b"Test User")]), name_of(&[rdn(CN, PRINTABLE, b" test  USER ")]));
    assert!(is_same(a.clone(), b));
    assert!(!is_same(a.clone(), name_of(&[rdn(CN, UTF8_STRING, b"TestUser")])));
    assert!(!is_same(a.clone(), name_of(&[rdn(O, UTF8_STRING, b"Test User")])));
    // One value with a slash, and two values.
    let (one, two) = (name_of(&[rdn(CN, UTF8_STRING, b"a/CN=b")]), name("/CN=a/CN=b"));
    assert!(!is_same(one, two));
}

/// Vectors of fts-rest-flask.
#[test]
fn identifiers_of_credentials_and_vos_are_those_of_fts3() {
    let dn = "/DC=ch/DC=cern/CN=Test User";
    assert_eq!(credential_id(dn, &[]), "92fbce05ea766c17");
    let fqans = ["NULL", "myrole", "lcgadmin"]
        .map(|role| Fqan::parse(&format!("/testvo/Role={role}/Capability=NULL")).unwrap());
    assert_eq!(credential_id(dn, &fqans), "3df3433182cc378b");
    assert_eq!(vo_id("testvo").to_string(), "477b9065-8416-5b27-be32-ff1573788e71");
    assert_eq!(
        fqans.map(|fqan| fqan.role().map(str::to_owned)),
        [None, Some("myrole".to_owned()), Some("lcgadmin".to_owned())]
    );
}

#[test]
fn an_fqan_names_its_vo_and_has_visible_characters_only() {
    for (text, vo) in [
        ("/testvo", Some("testvo")),
        ("/testvo/group/Role=NULL/Capability=NULL", Some("testvo")),
        ("/a.b-c_d/Role=x", Some("a.b-c_d")),
        ("testvo", None),
        ("/", None),
        ("//group", None),
        ("/Role=x", None),
        ("/vo/gr oup", None),
        ("/vo/\u{e9}", None),
        ("", None),
    ] {
        assert_eq!(Fqan::parse(text).as_ref().map(Fqan::vo), vo, "{text:?}");
    }
    assert_eq!(Fqan::parse(&format!("/vo/{}", "x".repeat(252))), None);
}
