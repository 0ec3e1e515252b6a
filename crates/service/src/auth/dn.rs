//! Distinguished names: the slash form, the comparison of names, and the hash that names files of authorities.
//!
//! All three are those of OpenSSL 3.0, because users, jobs and directories of authorities are known by them. Refuses to
//! read the slash form back. Names come in as parsed by x509-parser.

use std::fmt::Write;

use sha1::{Digest, Sha1};
use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

use super::der::{self, SEQUENCE, SET, UTF8_STRING};

/// Short names of attribute types in OpenSSL 3.0, by the content of the OID in DER. Source: `obj_dat.h`; the tests
/// compare each with the program.
const SHORT_NAMES: [(&[u8], &str); 42] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 13], "description"),
    (&[0x55, 4, 15], "businessCategory"),
    (&[0x55, 4, 16], "postalAddress"),
    (&[0x55, 4, 17], "postalCode"),
    (&[0x55, 4, 18], "postOfficeBox"),
    (&[0x55, 4, 19], "physicalDeliveryOfficeName"),
    (&[0x55, 4, 20], "telephoneNumber"),
    (&[0x55, 4, 41], "name"),
    (&[0x55, 4, 42], "GN"),
    (&[0x55, 4, 43], "initials"),
    (&[0x55, 4, 44], "generationQualifier"),
    (&[0x55, 4, 45], "x500UniqueIdentifier"),
    (&[0x55, 4, 46], "dnQualifier"),
    (&[0x55, 4, 51], "houseIdentifier"),
    (&[0x55, 4, 65], "pseudonym"),
    (&[0x55, 4, 72], "role"),
    (&[0x55, 4, 97], "organizationIdentifier"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 3], "mail"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 5], "favouriteDrink"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 9], "host"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 43], "friendlyCountryName"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 44], "uid"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2], "unstructuredName"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 8], "unstructuredAddress"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 20], "friendlyName"),
    (&[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 1], "jurisdictionL"),
    (&[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 2], "jurisdictionST"),
    (&[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 3], "jurisdictionC"),
    (&[0x2a, 0x85, 0x03, 0x03, 0x81, 0x03, 1, 1], "INN"),
];

/// Content of the OID of a common name (2.5.4.3).
const COMMON_NAME: &[u8] = &[0x55, 4, 3];

/// Returns the slash form of a name, as `X509_NAME_oneline` of OpenSSL 3.0 does: `/DC=ch/DC=cern/CN=Test User`.
///
/// Bytes that are not printable ASCII become `\xNN`, those of UTF-8 too. A slash or plus in a value has a backslash
/// before it. Attribute types without a short name are dotted OIDs. Attributes of one RDN are separated by `+`.
pub fn slash_form(name: &X509Name<'_>) -> String {
    let mut line = String::new();
    for rdn in name.iter_rdn() {
        for (index, attribute) in rdn.iter().enumerate() {
            let oid = attribute.attr_type().as_bytes();
            line.push(if index == 0 { '/' } else { '+' });
            match SHORT_NAMES.iter().find(|(known, _)| *known == oid) {
                Some((_, short)) => line.push_str(short),
                None => line.push_str(&dotted(oid)),
            }
            line.push('=');
            for byte in attribute.attr_value().data {
                match byte {
                    b'/' | b'+' => line.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => line.push(char::from(*byte)),
                    // Writing to a string cannot fail.
                    _ => drop(write!(line, "\\x{byte:02X}")),
                }
            }
        }
    }
    line
}

/// Returns true if another name may have the same slash form: a value has a backslash, which the form does not mark.
pub(super) fn is_ambiguous(name: &X509Name<'_>) -> bool {
    name.iter_attributes().any(|attribute| attribute.attr_value().data.contains(&b'\\'))
}

/// Returns true if two names are equal for OpenSSL: string type, letter case and runs of spaces do not count.
pub(super) fn is_same(one: &X509Name<'_>, other: &X509Name<'_>) -> bool {
    one.as_raw() == other.as_raw() || canonical_rdns(one) == canonical_rdns(other)
}

/// Returns the value of the common name that `longer` has after all RDNs of `shorter`. `None`: the names differ in
/// another way.
pub(super) fn added_common_name<'a>(shorter: &X509Name<'_>, longer: &X509Name<'a>) -> Option<&'a [u8]> {
    let (prefix, whole) = (canonical_rdns(shorter), canonical_rdns(longer));
    let (_, begin) = whole.split_last()?;
    let mut last = longer.iter_rdn().last()?.iter();
    match (last.next(), last.next()) {
        (Some(name), None) if begin == prefix && name.attr_type().as_bytes() == COMMON_NAME => {
            Some(name.attr_value().data)
        }
        _ => None,
    }
}

/// Returns the canonical encoding of each RDN. Source: `x509_name_canon` of OpenSSL.
fn canonical_rdns(name: &X509Name<'_>) -> Vec<Vec<u8>> {
    name.iter_rdn().map(canonical_rdn).collect()
}

/// Returns the hash of a name that `openssl x509 -hash` prints with 8 hexadecimal digits. Directories of authorities
/// name their files `HASH.0`.
pub(crate) fn subject_hash(name: &X509Name<'_>) -> u32 {
    let digest = Sha1::digest(canonical_rdns(name).concat());
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn canonical_rdn(rdn: &RelativeDistinguishedName<'_>) -> Vec<u8> {
    let mut attributes: Vec<Vec<u8>> = rdn.iter().map(canonical_attribute).collect();
    // Order of a SET OF in DER (X.690, 11.6).
    attributes.sort_unstable();
    der::encode(SET, &attributes.concat())
}

fn canonical_attribute(attribute: &AttributeTypeAndValue<'_>) -> Vec<u8> {
    let value = attribute.attr_value();
    let mut content = der::encode(der::OBJECT_IDENTIFIER, attribute.attr_type().as_bytes());
    match text_of(value) {
        Some(text) => content.extend(der::encode(UTF8_STRING, &folded(&text))),
        // A value that is no text counts as its bytes. Tags of values have one byte.
        None => content.extend(der::encode(value.tag().0 as u8, value.data)),
    }
    der::encode(SEQUENCE, &content)
}

/// Returns the text of a value of the string types that OpenSSL makes canonical; `None` for others.
fn text_of(value: &Any<'_>) -> Option<String> {
    let bytes = value.data;
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => {
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        }
        // OpenSSL reads T.61 as Latin-1.
        Tag::T61String => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
        Tag::BmpString => {
            let units = bytes.chunks_exact(2);
            let is_whole = units.remainder().is_empty();
            let units = units.map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
            char::decode_utf16(units).collect::<Result<_, _>>().ok().filter(|_| is_whole)
        }
        Tag::UniversalString => {
            let units = bytes.chunks_exact(4);
            let is_whole = units.remainder().is_empty();
            let points = units.map(|unit| char::from_u32(u32::from_be_bytes([unit[0], unit[1], unit[2], unit[3]])));
            points.collect::<Option<_>>().filter(|_| is_whole)
        }
        _ => None,
    }
}

/// Removes spaces around a text, reduces runs of spaces to one, and makes ASCII letters small.
fn folded(text: &str) -> Vec<u8> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let words = text.as_bytes().split(is_space).filter(|word| !word.is_empty());
    words.map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>().join(&b' ')
}

/// Returns an OID in its dotted form. An arc that is cut, or has more than 128 bits, gives the hexadecimal content.
pub(super) fn dotted(oid: &[u8]) -> String {
    let mut arcs: Vec<u128> = Vec::new();
    let mut arc: u128 = 0;
    let mut is_cut = oid.is_empty();
    for byte in oid {
        is_cut = byte & 0x80 != 0;
        if arc >> 121 != 0 {
            return oid.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        arc = arc << 7 | u128::from(byte & 0x7f);
        if is_cut {
            continue;
        }
        match arcs.is_empty() {
            // The first two arcs share a number (X.690, 8.19.4).
            true => {
                let first = (arc / 40).min(2);
                arcs.extend([first, arc - first * 40]);
            }
            false => arcs.push(arc),
        }
        arc = 0;
    }
    if is_cut {
        return oid.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    arcs.iter().map(u128::to_string).collect::<Vec<_>>().join(".")
}
