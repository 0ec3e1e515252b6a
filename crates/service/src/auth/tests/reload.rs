//! Authorities that change while the service runs.

use std::fs;
use std::slice::from_ref;

use sterna_proto::ErrorKind;

use super::fixture::{Credential, World, at, pem, write_pem};
use crate::auth::{Trust, TrustDirs};

fn open(world: &World) -> Result<Trust, sterna_proto::Error> {
    Trust::open(TrustDirs { authorities: world.authorities(), voms: None }, at(0))
}

#[test]
fn an_authority_that_is_added_counts_two_minutes_later() {
    let world = World::new();
    let trust = open(&world).unwrap();
    let other = Credential::authority("/CN=Other Authority");
    let chain = [other.user("/CN=x").cert];
    assert!(trust.identify(&chain, at(0)).is_err());
    write_pem(&world.authorities().join("other.0"), &[&other.cert]);
    assert!(trust.identify(&chain, at(119)).is_err(), "the directory is not read at each handshake");
    assert_eq!(trust.identify(&chain, at(120)).unwrap().dn, "/CN=x");
    fs::remove_file(world.authorities().join("other.0")).unwrap();
    assert!(trust.identify(&chain, at(239)).is_ok());
    assert!(trust.identify(&chain, at(240)).is_err());
}

#[test]
fn a_clock_that_was_set_back_does_not_postpone_the_next_look() {
    let world = World::new();
    let trust = open(&world).unwrap();
    let other = Credential::authority("/CN=Other Authority");
    write_pem(&world.authorities().join("other.0"), &[&other.cert]);
    assert!(trust.identify(&[other.user("/CN=x").cert], at(-1)).is_ok());
}

#[test]
fn a_directory_that_vanishes_leaves_the_authorities_in_force() {
    let world = World::new();
    let trust = open(&world).unwrap();
    fs::rename(world.authorities(), world.dir.path().join("elsewhere")).unwrap();
    assert!(trust.identify(from_ref(&world.user.cert), at(3600)).is_ok());
}

#[test]
fn files_count_by_their_names_and_damaged_ones_are_left_out() {
    let world = World::new();
    let dir = world.authorities();
    let authority = fs::read(dir.join("ca.pem")).unwrap();
    fs::remove_file(dir.join("ca.pem")).unwrap();
    fs::write(dir.join("ca.info"), &authority).unwrap();
    fs::write(dir.join("ca.signing_policy"), &authority).unwrap();
    fs::write(dir.join("damaged.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    fs::write(dir.join("cut.pem"), &authority[..100]).unwrap();
    fs::write(dir.join("empty.crl"), "").unwrap();
    fs::write(dir.join("noise.r0"), pem("X509 CRL", b"noise")).unwrap();
    fs::create_dir(dir.join("dir.pem")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("link.0")).unwrap();
    let error = open(&world).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.text().contains("no certificate of an authority"), "{error}");
    for file in ["ca.pem", "ca.crt", "ca.cer", "0a1b2c3d.0", "0a1b2c3d.9"] {
        fs::write(dir.join(file), &authority).unwrap();
        assert!(open(&world).unwrap().identify(from_ref(&world.user.cert), at(0)).is_ok(), "{file}");
        fs::remove_file(dir.join(file)).unwrap();
    }
    fs::write(dir.join("der.crt"), &world.authority.cert).unwrap();
    assert!(open(&world).is_ok(), "DER");
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(open(&world).unwrap_err().kind, ErrorKind::Io);
}
