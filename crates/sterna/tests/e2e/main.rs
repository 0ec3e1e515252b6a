//! Tests the real binary end to end: an agent and a client on loopback, with every fault that can occur between them.
//!
//! Each test runs in a separate directory, waits for events and never for a time, and prints its seed when it fails.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod basics;
mod cases;
mod chaos_proxy;
mod compress;
mod disks;
mod doctor;
mod faults;
mod floods;
mod follow;
mod hostile;
mod kills;
mod monitor;
mod names;
mod networks;
mod one_side;
mod output;
mod paths;
mod perfsonar;
mod power;
mod quic_hostile;
mod quic_peer;
mod range_server;
mod record;
mod replicas;
mod resume;
mod site;
mod strangers;
mod third_party;
mod tools;
mod tree;
mod web;
mod webserver;
