//! Examination of a path: runs the experiments that the decisions ask for, one after the other.
//!
//! The only part of the crate that touches the network, and only through measurements of the engine. Bounded in time
//! and rate.

use std::path::Path;
use std::time::{Duration, Instant};

use sterna_net::disk::{Access, DiskSpeed, Root, SPEED_BYTES_MAX, SPEED_TIME_MAX};
use sterna_net::engine::Cancel;
use sterna_net::measure::{Measurement, host_facts};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::evidence::{Evidence, Experiment, Outcome, Purpose, Record};
use crate::steps::{Bounds, Next, next};

/// Runs an examination. `before` is called with each experiment before it runs.
///
/// An experiment that fails is part of the evidence. Errors: the connection that controls the measurements is lost;
/// `Cancelled`.
pub fn examine(
    measurement: &mut Measurement,
    bounds: &Bounds,
    cancel: &Cancel,
    mut before: impl FnMut(&Next),
) -> Result<Evidence, Error> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut evidence = Evidence {
        near: host_facts(),
        far: measurement.far_host().clone(),
        connect_us: micros(measurement.connect_time()),
        is_ipv6: measurement.remote().is_ipv6(),
        records: Vec::new(),
    };
    let start = Instant::now();
    while let Some(next) = next(&evidence, bounds) {
        before(&next);
        unless_cancelled(cancel)?;
        let began = start.elapsed();
        let outcome = match perform(measurement, next.purpose, &next.experiment, cancel) {
            Ok(outcome) => outcome,
            Err(error) if is_final(&error) || measurement.is_lost() => return Err(error),
            Err(error) => Outcome::Failed(error.chain()),
        };
        evidence.records.push(Record {
            purpose: next.purpose,
            direction: next.direction,
            start_ms: millis(began),
            time_ms: millis(start.elapsed().saturating_sub(began)),
            experiment: next.experiment,
            outcome,
        });
    }
    Ok(evidence)
}

fn perform(
    measurement: &mut Measurement,
    purpose: Purpose,
    experiment: &Experiment,
    cancel: &Cancel,
) -> Result<Outcome, Error> {
    Ok(match experiment {
        Experiment::Echo { spec } => Outcome::Echo(measurement.echo(spec)?),
        Experiment::Flow { spec } => Outcome::Flow(measurement.flow(spec)?),
        Experiment::Disk { path } if purpose == Purpose::NearDisk => Outcome::Disk(near_disk(path)?),
        Experiment::Disk { path } => Outcome::Disk(measurement.disk(path)?),
        Experiment::Train { spec, rest_ms } => {
            cancel.wait(Duration::from_millis(*rest_ms));
            unless_cancelled(cancel)?;
            Outcome::Train(measurement.train(spec)?)
        }
    })
}

/// Returns true if no further experiment can run.
fn is_final(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Busy | ErrorKind::Cancelled | ErrorKind::Untrusted)
}

/// Errors: `Cancelled`.
fn unless_cancelled(cancel: &Cancel) -> Result<(), Error> {
    match cancel.is_cancelled() {
        true => Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped by the user")),
        false => Ok(()),
    }
}

fn near_disk(path: &str) -> Result<DiskSpeed, Error> {
    Root::open(Path::new(path), Access::ReadWrite)?.speed(b"", SPEED_BYTES_MAX, SPEED_TIME_MAX)
}
