//! Transfer service: jobs, their store, the workers that run them, and the REST interfaces.
//!
//! Decisions are those of `sterna-sched`; bytes move through workers. Refuses to touch bytes itself.

// A file of FTS3 has 45 fields, and `json!` recurses with each.
#![recursion_limit = "256"]

pub mod access;
pub mod agent;
pub mod api;
pub mod auth;
mod bans;
pub mod caller;
pub mod checksum;
pub mod command;
pub mod config;
pub mod credentials;
pub mod delegation;
pub mod dev;
pub mod endpoint;
pub mod job;
pub mod listing;
pub mod mock;
pub mod operator;
pub mod paths;
pub mod runner;
pub mod service;
pub mod settings;
pub mod site;
pub mod store;
pub mod upload;
pub mod web;
pub mod worker;
