//! `sterna doctor`: examinations of a path, the connections and settings of this host, and the arithmetic of a path.

mod bundle;
mod case;
mod examine;
mod history;
mod host;
mod iperf3;
mod ndt7;
mod one_side;
mod own_kernel;
mod perfsonar;
mod stamp;
mod tools;
mod watch;

use sterna_doctor::plan::{Plan, Wish, lines, mss_of};
use sterna_doctor::response::PathFacts;
use sterna_proto::Error;

use crate::flags::{DoctorCommand, DoctorFlags, PlanFlags};
use crate::jobs::table::json_of;
use crate::output::print_line;

/// Runs a command of the doctor. Returns the exit code.
pub fn run(flags: &DoctorFlags) -> Result<u8, Error> {
    match &flags.command {
        Some(DoctorCommand::Plan(flags)) => plan(flags),
        Some(DoctorCommand::Watch(flags)) => watch::run(flags),
        Some(DoctorCommand::Host(flags)) => host::run(flags),
        Some(DoctorCommand::Show(flags)) => bundle::show(flags),
        Some(DoctorCommand::Compare(flags)) => bundle::compare(flags),
        Some(DoctorCommand::Perfsonar(flags)) => perfsonar::run(flags),
        Some(DoctorCommand::Case(flags)) => case::run(&flags.command),
        Some(DoctorCommand::History(flags)) => history::run(flags),
        None => match tools::tool_of(&flags.examine)? {
            Some(tools::Tool::Iperf3(server)) => iperf3::run(&server, &flags.examine),
            Some(tools::Tool::Stamp(reflector)) => stamp::run(&reflector, &flags.examine),
            Some(tools::Tool::Ndt7(server, security)) => ndt7::run(&server, security, &flags.examine),
            Some(tools::Tool::Server(server)) => one_side::of_server(&server, &flags.examine),
            Some(tools::Tool::File(file)) => one_side::of_file(&file, &flags.examine),
            None => examine::run(&flags.examine),
        },
    }
}

/// Prints the plan of a path.
fn plan(flags: &PlanFlags) -> Result<u8, Error> {
    let kernel = match flags.kernel {
        Some(kernel) => kernel,
        None => own_kernel::version().map_err(|error| {
            let text = format!("{}; give --kernel", error.text());
            error.reworded(text)
        })?,
    };
    let path = PathFacts { rtt: flags.rtt, mss: mss_of(flags.mtu), loss: flags.loss };
    let wish = Wish { rate: flags.rate, path, kernel };
    let plan = Plan::new(&wish);
    if flags.json {
        print_line(json_of(&plan)?.as_bytes())?;
        return Ok(0);
    }
    lines(&wish, &plan).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}
