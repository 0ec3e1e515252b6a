//! Promises of the authentication by X.509, most of them with the program `openssl` as a second opinion.

pub(crate) mod fixture;

mod attributes;
mod chains;
mod handshakes;
mod names;
mod reload;
