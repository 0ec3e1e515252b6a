//! `sterna doctor`: examinations of a path, and its arithmetic.

mod bundle;
mod examine;
mod iperf3;
mod ndt7;
mod tools;

use sterna_doctor::kernel::KernelVersion;
use sterna_doctor::plan::{Plan, Wish, lines, mss_of};
use sterna_doctor::response::PathFacts;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::flags::{DoctorCommand, DoctorFlags, PlanFlags};
use crate::output::print_line;

/// Runs a command of the doctor. Returns the exit code.
pub fn run(flags: &DoctorFlags) -> Result<u8, Error> {
    match &flags.command {
        Some(DoctorCommand::Plan(flags)) => plan(flags),
        Some(DoctorCommand::Show(flags)) => bundle::show(flags),
        Some(DoctorCommand::Compare(flags)) => bundle::compare(flags),
        None => match tools::tool_of(&flags.examine)? {
            Some(tools::Tool::Iperf3(server)) => iperf3::run(&server, &flags.examine),
            Some(tools::Tool::Ndt7(server, security)) => ndt7::run(&server, security, &flags.examine),
            None => examine::run(&flags.examine),
        },
    }
}

/// Prints the plan of a path.
fn plan(flags: &PlanFlags) -> Result<u8, Error> {
    let kernel = match flags.kernel {
        Some(kernel) => kernel,
        None => of_host()?,
    };
    let path = PathFacts { rtt: flags.rtt, mss: mss_of(flags.mtu), loss: flags.loss };
    let wish = Wish { rate: flags.rate, path, kernel };
    let plan = Plan::new(&wish);
    if flags.json {
        let json = serde_json::to_string(&plan).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write the plan as JSON").caused_by(e)
        })?;
        print_line(json.as_bytes())?;
        return Ok(0);
    }
    lines(&wish, &plan).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}

/// Returns the kernel of this host.
fn of_host() -> Result<KernelVersion, Error> {
    let release = sterna_net::measure::host_facts().kernel;
    release.parse().map_err(|text: String| {
        Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, format!("{text}; give --kernel"))
    })
}
