//! Formats the plan of `--explain`: paths, blocks, memory and expected time.

use sterna_net::engine::{CopySummary, PathPlan, UnreachedPath};
use sterna_proto::ByteCount;
use sterna_proto::quantity::readable_time;

/// Returns the plan as lines of text.
pub fn lines(summary: &CopySummary) -> Vec<String> {
    let reached = summary.paths.iter().map(|path| (path.path, path_line(path)));
    let unreached = summary.unreached.iter().map(|path| (path.path, unreached_line(path)));
    let mut paths: Vec<_> = reached.chain(unreached).collect();
    paths.sort_by_key(|(path, _)| *path);
    let mut lines: Vec<String> = paths.into_iter().map(|(_, line)| line).collect();
    if summary.done > 0 {
        lines.push(format!("blocks   {}", summary.blocks));
    }
    let is_kernels = summary.paths.iter().any(|path| path.memory.is_none());
    match (summary.quic_memory(), is_kernels) {
        (ByteCount(0), false) => {}
        (ByteCount(0), true) => lines.push("memory   of data in flight: the kernel's buffers for TCP".to_owned()),
        (quic, _) => {
            let more = if is_kernels { ", and the kernel's buffers for TCP" } else { "" };
            lines.push(format!("memory   up to {quic} of data in flight at this end{more}"));
        }
    }
    lines.push(match summary.expected_time() {
        _ if summary.done == 0 => "time     none: there is nothing to copy".to_owned(),
        Some(time) if summary.paths.iter().any(|path| path.is_least) => format!(
            "time     at most about {}: another limit held back all earlier copies over this path",
            readable_time(time)
        ),
        Some(time) => format!("time     about {}", readable_time(time)),
        None if summary.paths.is_empty() => "time     unknown: rates of web servers are not recorded".to_owned(),
        None => "time     unknown: the first copy measures the rate of the path and records it".to_owned(),
    });
    lines
}

fn path_line(path: &PathPlan) -> String {
    let rate = match (path.rate, path.is_given) {
        (Some(rate), true) => format!("{rate} as given"),
        (Some(rate), false) if path.is_least => format!("at least {rate} as remembered"),
        (Some(rate), false) => format!("{rate} as remembered"),
        (None, _) => "rate to be found".to_owned(),
    };
    format!(
        "path {}   {} to {}, RTT {}, {} lane{}, {rate}{}",
        path.path.0 + 1,
        path.via,
        path.peer,
        readable_time(path.rtt),
        path.lanes,
        if path.lanes == 1 { "" } else { "s" },
        if path.standby { ", standby" } else { "" }
    )
}

fn unreached_line(path: &UnreachedPath) -> String {
    let why = match path.standby {
        true => "standby: dialled when no other path is up",
        false => "the agent has not answered on it: dialled again during the copy",
    };
    format!("path {}   {why}", path.path.0 + 1)
}
