//! Public keys of hosts, and signatures by them.

use ring::signature::{ED25519, UnparsedPublicKey};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::fingerprint::{ED25519_SPKI_PREFIX, Fingerprint};

/// Ed25519 public key (RFC 8032).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Returns the fingerprint by which peers know the host of the key.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut info = ED25519_SPKI_PREFIX.to_vec();
        info.extend(self.0);
        Fingerprint::of_key_info(&info)
    }

    /// Verifies a signature of [`super::Identity::sign`]. Errors: `Untrusted`.
    pub fn verify(&self, bytes: &[u8], signature: &[u8; 64]) -> Result<(), Error> {
        UnparsedPublicKey::new(&ED25519, self.0).verify(bytes, signature).map_err(|_| {
            let text = format!("the signature is not of the key {}", self.fingerprint());
            Error::new(ErrorKind::Untrusted, Scope::Service, Phase::Prepare, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Identity;

    #[test]
    fn only_the_key_that_signed_verifies() {
        let (one, other) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
        let signature = one.sign(b"purpose: bytes");
        assert_eq!(one.public_key().fingerprint(), one.fingerprint(), "the same key as in the certificate");
        assert!(one.public_key().verify(b"purpose: bytes", &signature).is_ok());
        assert!(one.public_key().verify(b"purpose: bytex", &signature).is_err());
        assert!(other.public_key().verify(b"purpose: bytes", &signature).is_err());
    }
}
