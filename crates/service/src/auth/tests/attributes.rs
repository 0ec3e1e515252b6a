//! Attribute certificates of VOMS.

use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sterna_seeded::{Seeded, for_seeds};

use super::fixture::{
    Credential, Draft, ENCIPHERMENT, HOUR, KEY_USAGE, NOW, OTHER_ALGORITHM, SERVER_AUTH, SIGNATURE, World, algorithm,
    at, digits, extension, full, name, new_key, oid, purposes, sequence, signed, write_pem,
};
use crate::auth::Trust;
use crate::auth::der::{self, SEQUENCE, SET, encode};

const USER: &str = "/DC=ch/DC=cern/CN=Test User";
const SERVER: &str = "/DC=org/DC=example/CN=voms.example.org";
const EXTENSION: &str = "1.3.6.1.4.1.8005.100.100.5";
const CERTIFICATES: &str = "1.3.6.1.4.1.8005.100.100.10";
const FQANS: [&str; 3] = [
    "/testvo/Role=NULL/Capability=NULL",
    "/testvo/Role=myrole/Capability=NULL",
    "/testvo/group/Role=NULL/Capability=NULL",
];

/// Attribute certificate that is not yet signed.
#[derive(Clone)]
struct Attributes {
    holder: Vec<u8>,
    holder_serial: u8,
    issuer: Vec<u8>,
    start: i64,
    end: i64,
    uri: String,
    fqans: Vec<String>,
    /// Certificates of the server.
    certificates: Vec<CertificateDer<'static>>,
    extensions: Vec<Vec<u8>>,
    /// Algorithm in the signed bytes.
    algorithm: Vec<u8>,
}

impl Attributes {
    fn new(server: &Credential) -> Self {
        Self {
            holder: name(USER),
            holder_serial: 7,
            issuer: name(&server.subject),
            start: NOW - 60,
            end: NOW + 12 * HOUR,
            uri: "testvo://voms.example.org:15000".to_owned(),
            fqans: FQANS.map(str::to_owned).to_vec(),
            certificates: vec![server.cert.clone()],
            algorithm: algorithm().to_vec(),
            // The two that VOMS writes: no revocation available, and the key of the server.
            extensions: vec![extension("2.5.29.56", false, &[5, 0]), extension("2.5.29.35", false, &sequence(&[]))],
        }
    }

    fn sign(&self, key: &KeyPair) -> Vec<u8> {
        /// Tags of a directory name, of a URI and of `[0]`.
        const DIRECTORY: u8 = 0xa4;
        const URI: u8 = 0x86;
        const ZERO: u8 = 0xa0;
        let names = |name: &[u8]| sequence(&[&encode(DIRECTORY, name)]);
        let serial = encode(der::INTEGER, &[self.holder_serial]);
        let holder = sequence(&[&encode(ZERO, &[names(&self.holder), serial].concat())]);
        let issuer = encode(ZERO, &names(&self.issuer));
        let time = |seconds| encode(der::GENERALIZED_TIME, digits(seconds).as_bytes());
        let fqans: Vec<u8> = self.fqans.iter().flat_map(|fqan| encode(der::OCTET_STRING, fqan.as_bytes())).collect();
        let authority = encode(ZERO, &encode(URI, self.uri.as_bytes()));
        let value = sequence(&[&authority, &encode(SEQUENCE, &fqans)]);
        let attribute = sequence(&[&oid("1.3.6.1.4.1.8005.100.100.4"), &encode(SET, &value)]);
        let mut extensions = self.extensions.clone();
        if !self.certificates.is_empty() {
            let certificates: Vec<&[u8]> = self.certificates.iter().map(|der| &der[..]).collect();
            extensions.push(extension(CERTIFICATES, false, &sequence(&[&sequence(&certificates)])));
        }
        let body = sequence(&[
            &encode(der::INTEGER, &[1]),
            &holder,
            &issuer,
            &self.algorithm,
            &encode(der::INTEGER, &[42]),
            &sequence(&[&time(self.start), &time(self.end)]),
            &sequence(&[&attribute]),
            &encode(SEQUENCE, &extensions.concat()),
        ]);
        signed(&body, key)
    }
}

/// World with a server of the VO.
struct Voms {
    world: World,
    server: Credential,
}

impl Voms {
    fn new() -> Self {
        let world = World::new();
        let server = world.authority.issue(SERVER, |draft| {
            draft.with(KEY_USAGE, true, &SIGNATURE).with("2.5.29.37", false, &purposes(&[SERVER_AUTH]))
        });
        std::fs::create_dir_all(world.voms().join("testvo")).unwrap();
        let voms = Self { world, server };
        voms.list("testvo", &format!("{SERVER}\n{}\n", voms.world.authority.subject));
        voms
    }

    /// Writes the file of the server of a VO.
    fn list(&self, vo: &str, text: &str) {
        let dir = self.world.voms().join(vo);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("voms.example.org.lsc"), text).unwrap();
    }

    /// Signs attributes after changes.
    fn attributes(&self, change: impl FnOnce(&mut Attributes)) -> Vec<u8> {
        let mut attributes = Attributes::new(&self.server);
        change(&mut attributes);
        attributes.sign(&self.server.key)
    }

    /// Returns the chain of a proxy with these attribute certificates.
    fn chain(&self, certificates: &[&[u8]]) -> Vec<CertificateDer<'static>> {
        let value = sequence(&[&sequence(certificates)]);
        let proxy = self.world.user.proxy("1", |draft| full(draft).with(EXTENSION, false, &value));
        vec![proxy.cert, self.world.user.cert.clone()]
    }

    /// Returns the FQANs that these attribute certificates give.
    fn fqans(&self, certificates: &[&[u8]]) -> Vec<String> {
        fqans(&self.world.trust(), &self.chain(certificates))
    }
}

fn fqans(trust: &Trust, chain: &[CertificateDer<'_>]) -> Vec<String> {
    let identity = trust.identify(chain, at(0)).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(identity.dn, USER, "attributes never change the identity");
    identity.fqans.iter().map(ToString::to_string).collect()
}

#[test]
fn attributes_of_a_listed_server_count() {
    let voms = Voms::new();
    let trust = voms.world.trust();
    let good = voms.attributes(|_| ());
    let chain = voms.chain(&[&good]);
    assert_eq!(fqans(&trust, &chain), FQANS);
    let identity = trust.identify(&chain, at(0)).unwrap();
    assert_eq!((identity.vo(), identity.expires), (Some("testvo"), at(12 * HOUR)), "the attributes expire first");
    assert_eq!(identity.fqans[1].role(), Some("myrole"));
}

#[test]
fn attributes_that_do_not_verify_give_nothing_and_keep_the_identity() {
    let voms = Voms::new();
    let world = &voms.world;
    let with = |change: &dyn Fn(&mut Attributes)| voms.attributes(change);
    let stranger = Credential::authority("/CN=Other").issue(SERVER, |draft| draft);
    let unlisted = world.authority.issue("/DC=org/DC=example/CN=other.example.org", |draft| draft);
    let expired = world.authority.issue(SERVER, |draft| Draft { end: NOW - 1, ..draft });
    let mute = world.authority.issue(SERVER, |draft| draft.with(KEY_USAGE, true, &ENCIPHERMENT));
    let as_server = |server: &Credential| Attributes::new(server).sign(&server.key);
    voms.list("othervo", &format!("/CN=voms\n{}\n", world.authority.subject));
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("good", with(&|_| ()), true),
        ("holder by the issuer of the user", with(&|a| a.holder = name("/DC=org/DC=example/CN=Test Authority")), true),
        ("clock of the server ahead", with(&|a| a.start = NOW + 300), true),
        ("one FQAN", with(&|a| a.fqans.truncate(1)), true),
        ("the VO as a group", with(&|a| a.fqans = vec!["/testvo".to_owned()]), true),
        (
            "the authority of the server comes with it",
            with(&|a| a.certificates.push(world.authority.cert.clone())),
            true,
        ),
        ("none", with(&|a| a.fqans.clear()), false),
        ("another serial number", with(&|a| a.holder_serial = 8), false),
        ("another holder", with(&|a| a.holder = name("/DC=ch/DC=cern/CN=Other")), false),
        ("not yet valid", with(&|a| a.start = NOW + 301), false),
        ("expired", with(&|a| a.end = NOW - 1), false),
        ("another VO of the same server", with(&|a| a.fqans[2] = "/othervo/Role=NULL".to_owned()), false),
        ("a VO whose name only begins alike", with(&|a| a.fqans[0] = "/testvox/Role=NULL".to_owned()), false),
        ("no FQAN", with(&|a| a.fqans[1] = "Role=NULL".to_owned()), false),
        (
            "a server of another VO",
            with(&|a| {
                a.uri = "othervo://voms.example.org:1".to_owned();
                a.fqans = vec!["/othervo/Role=NULL".to_owned()];
            }),
            false,
        ),
        ("a server without file", with(&|a| a.uri = "testvo://voms2.example.org:15000".to_owned()), false),
        ("a path instead of a VO", with(&|a| a.uri = "../testvo://voms.example.org:1".to_owned()), false),
        ("no URI", with(&|a| a.uri = "testvo".to_owned()), false),
        ("no certificate of the server", with(&|a| a.certificates.clear()), false),
        ("another first certificate", with(&|a| a.certificates.insert(0, world.user.cert.clone())), false),
        ("an issuer of another name", with(&|a| a.issuer = name("/CN=x")), false),
        ("limited to hosts", with(&|a| a.extensions.push(extension("2.5.29.55", true, &sequence(&[])))), false),
        (
            "limited to hosts, not critical",
            with(&|a| a.extensions.push(extension("2.5.29.55", false, &sequence(&[])))),
            false,
        ),
        ("two algorithms", with(&|a| a.algorithm = OTHER_ALGORITHM.to_vec()), false),
        ("a server whose key may not sign", as_server(&mute), false),
        ("an unknown critical extension", with(&|a| a.extensions.push(extension("1.2.3.4", true, &[5, 0]))), false),
        ("an unknown extension", with(&|a| a.extensions.push(extension("1.2.3.4", false, &[5, 0]))), true),
        ("signed by another key", Attributes::new(&voms.server).sign(&new_key()), false),
        ("a server of an unknown authority", as_server(&stranger), false),
        ("a server that is not listed", as_server(&unlisted), false),
        ("a server whose certificate has expired", as_server(&expired), false),
        ("no attribute certificate", sequence(&[b"\x05\x00"]), false),
    ];
    for (case, certificate, is_good) in cases {
        assert_eq!(!voms.fqans(&[&certificate]).is_empty(), is_good, "{case}");
    }
}

#[test]
fn a_bad_attribute_certificate_does_not_spoil_the_others() {
    let voms = Voms::new();
    voms.list("second", &format!("{SERVER}\n{}\n", voms.world.authority.subject));
    let good = voms.attributes(|_| ());
    let bad = voms.attributes(|attributes| attributes.end = NOW - 1);
    let second = voms.attributes(|attributes| {
        attributes.uri = "second://voms.example.org:1".to_owned();
        attributes.fqans = vec!["/second".to_owned()];
    });
    let all: Vec<&str> = FQANS.into_iter().chain(["/second"]).collect();
    assert_eq!(voms.fqans(&[&bad, &good, &second, &good]), all, "in their order, each once");
    assert_eq!(voms.fqans(&[&[5, 0]]), [""; 0], "a damaged extension");
    let many: Vec<&[u8]> = vec![&good; 17];
    assert_eq!(voms.fqans(&many), [""; 0], "more than the limit");
}

#[test]
fn attributes_come_from_the_proxy_nearest_to_the_client() {
    let voms = Voms::new();
    let trust = voms.world.trust();
    let value = |certificate: &[u8]| sequence(&[&sequence(&[certificate])]);
    let with = |certificate: Vec<u8>| move |draft: Draft| full(draft).with(EXTENSION, false, &value(&certificate));
    let (first, second) = (voms.attributes(|_| ()), voms.attributes(|a| a.fqans.truncate(1)));
    let user = &voms.world.user;
    let lower = user.proxy("1", with(first.clone()));
    let (plain, upper) = (lower.proxy("2", full), lower.proxy("3", with(second)));
    let chain = |leaf: &Credential| vec![leaf.cert.clone(), lower.cert.clone(), user.cert.clone()];
    assert_eq!(fqans(&trust, &chain(&plain)), FQANS);
    assert_eq!(fqans(&trust, &chain(&upper)), FQANS[..1]);
    // Another user cannot bring the attributes of this one.
    let thief = voms.world.authority.issue("/DC=ch/DC=cern/CN=Thief", |draft| Draft { serial: 8, ..draft });
    let stolen = thief.proxy("1", with(first.clone()));
    let identity = trust.identify(&[stolen.cert, thief.cert.clone()], at(0)).unwrap();
    assert_eq!((identity.dn.as_str(), identity.fqans.len()), ("/DC=ch/DC=cern/CN=Thief", 0));
    // An end entity is no proxy: its authority does not check attributes.
    let own = voms.world.authority.issue(USER, |draft| draft.with(EXTENSION, false, &value(&first)));
    assert_eq!(fqans(&trust, &[own.cert]), [""; 0]);
}

#[test]
fn a_service_without_directory_of_servers_takes_no_attributes() {
    let voms = Voms::new();
    let chain = voms.chain(&[&voms.attributes(|_| ())]);
    let dirs = crate::auth::TrustDirs { authorities: voms.world.authorities(), voms: None };
    assert_eq!(fqans(&Trust::open(dirs, at(0)).unwrap(), &chain), [""; 0]);
}

#[test]
fn a_server_beneath_another_authority_counts_with_its_chain() {
    let voms = Voms::new();
    let key = new_key();
    let subject = "/DC=org/DC=example/CN=Middle";
    let cert =
        super::fixture::authority_draft(subject, &voms.world.authority.subject, &key).sign(&voms.world.authority.key);
    let middle = Credential { cert, key, subject: subject.to_owned() };
    let server = middle.issue(SERVER, |draft| draft);
    let mut attributes = Attributes::new(&server);
    attributes.certificates.push(middle.cert.clone());
    let signed = attributes.sign(&server.key);
    assert_eq!(voms.fqans(&[&signed]), [""; 0], "the file names another issuer");
    voms.list("testvo", &format!("{SERVER}\n{subject}\n{subject}\n{}\n", voms.world.authority.subject));
    assert_eq!(voms.fqans(&[&signed]), FQANS);
    attributes.certificates.truncate(1);
    assert_eq!(voms.fqans(&[&attributes.sign(&server.key)]), [""; 0], "no path to an authority");
    write_pem(&voms.world.authorities().join("middle.crt"), &[&middle.cert]);
    assert_eq!(voms.fqans(&[&attributes.sign(&server.key)]), FQANS, "the directory completes the path");
}

#[test]
fn random_damage_of_attributes_gives_nothing_and_never_panics() {
    let voms = Voms::new();
    let trust = voms.world.trust();
    let good = voms.attributes(|_| ());
    for_seeds("random_damage_of_attributes_gives_nothing_and_never_panics", 20, |seed| {
        let mut random = Seeded::new(seed);
        for _ in 0..20 {
            let mut bytes = good.clone();
            let at = random.index(bytes.len());
            match random.below(8) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.draw() as u8),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] ^= 1 << random.below(8),
            }
            if bytes != good {
                assert_eq!(fqans(&trust, &voms.chain(&[&bytes])), [""; 0], "byte {at}");
            }
        }
    });
}

#[test]
fn damaged_certificates_of_any_kind_never_panic() {
    let voms = Voms::new();
    let chain = voms.chain(&[&voms.attributes(|_| ())]);
    let whole = [&chain[0][..], &chain[1], &voms.attributes(|_| ()), &voms.world.authority.cert].map(<[u8]>::to_vec);
    for_seeds("damaged_certificates_of_any_kind_never_panic", 50, |seed| {
        let mut random = Seeded::new(seed);
        for _ in 0..200 {
            let mut bytes = whole[random.index(whole.len())].clone();
            for _ in 0..=random.below(3) {
                let at = random.index(bytes.len());
                bytes[at] = random.draw() as u8;
            }
            crate::auth::read_untrusted(&bytes);
        }
    });
}

/// Chains that `voms-proxy-fake` 2.1.1 of Debian 12 made, without their keys: `-voms testvo -uri voms.example.org:15000
/// -fqan ... -newformat`; *limited* with `-limited`, *legacy* with `-proxyver 2`. *subject* is without `-newformat`:
/// the holder has the subject of the user. `voms-proxy-info2 -all` of the same version accepts *full*.
const RECORDED: [(&str, &str); 4] = [
    ("full", include_str!("recorded/voms-proxy.pem")),
    ("limited", include_str!("recorded/voms-proxy-limited.pem")),
    ("subject", include_str!("recorded/voms-proxy-subject.pem")),
    ("legacy", include_str!("recorded/voms-proxy-legacy.pem")),
];

/// Time of the recording: 2026-11-25T21:39:09Z.
const RECORDED_AT: i64 = 1_795_642_749;

#[test]
fn proxies_made_by_voms_give_their_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let (authorities, voms) = (dir.path().join("certificates"), dir.path().join("vomsdir"));
    std::fs::create_dir_all(voms.join("testvo")).unwrap();
    std::fs::create_dir(&authorities).unwrap();
    std::fs::write(authorities.join("ca.pem"), include_str!("recorded/authority.pem")).unwrap();
    let listed = "/DC=org/DC=example/CN=voms.example.org\n/DC=org/DC=example/CN=Test Authority\n";
    std::fs::write(voms.join("testvo/voms.example.org.lsc"), listed).unwrap();
    let now = at(RECORDED_AT - NOW + 60);
    let trust = Trust::open(crate::auth::TrustDirs { authorities, voms: Some(voms) }, now).unwrap();
    for (kind, text) in RECORDED {
        let chain: Vec<CertificateDer<'_>> =
            CertificateDer::pem_slice_iter(text.as_bytes()).map(Result::unwrap).collect();
        let identity = trust.identify(&chain, now);
        if kind == "legacy" {
            assert!(identity.unwrap_err().text().contains("legacy proxy"));
            continue;
        }
        let identity = identity.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
        assert_eq!((identity.dn.as_str(), identity.vo()), (USER, Some("testvo")), "{kind}");
        assert_eq!((identity.is_proxy, identity.is_limited), (true, kind == "limited"));
        assert_eq!(identity.expires, at(RECORDED_AT - NOW + 12 * HOUR), "{kind}");
        // Vectors of fts-rest-flask.
        let count = if kind == "subject" { 1 } else { 3 };
        assert_eq!(identity.fqans.len(), count, "{kind}");
        if count == 3 {
            assert_eq!(identity.credential_id(), "3df3433182cc378b");
        }
    }
}
