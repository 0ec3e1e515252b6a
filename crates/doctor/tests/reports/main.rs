//! Reports of examinations: pages, plots, comparisons and signed bundles, from evidence in virtual time.

mod bundles;
mod cases;
mod compared;
mod examined;
mod pages;
#[path = "../trains/mod.rs"]
mod trains;
