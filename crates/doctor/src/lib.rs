//! Path doctor: finds what limits transfers on a path, proves it by experiments, and predicts the gain of each fix.
//!
//! An examination ([`run`]) asks one experiment after the other: each is a decision ([`steps`]) from the [`evidence`]
//! so far. Views put the samples of an experiment in the terms of the field: flows ([`view`]), and packet trains
//! ([`ceiling`]); with a peer of another tool, flows of which one end is seen ([`one_end`]). The [`rules`] turn the
//! [`facts`] of both directions into verdicts, and a [`report`] shows them. Any TCP server shows what one side can
//! infer ([`one_side`]). A [`case`] keeps examinations over weeks.
//!
//! Between examinations, the [`monitor`] of an agent measures its paths lightly, and finds changes.
//!
//! Everything but [`run`] is pure: it reads no clock and opens no socket. Also pure, and without a network: window
//! arithmetic of kernels ([`kernel`]), response functions ([`response`]), and the [`plan`] of a path; and on one host,
//! the observation of connections ([`watch`]) and of settings ([`host`]).

pub mod bundle;
pub mod case;
pub mod ceiling;
pub mod echoes;
pub mod evidence;
pub mod facts;
pub mod host;
pub mod kernel;
pub mod monitor;
pub mod one_end;
pub mod one_side;
pub mod perfsonar;
pub mod plan;
pub mod report;
pub mod response;
pub mod rules;
pub mod run;
pub mod steps;
pub mod verdict;
pub mod view;
pub mod watch;
mod words;
