//! Lines for users on stderr, and output on stdout.

use std::io::Write;

use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Writes a message for users to stderr; parts of it can be texts from peers. Ignores write errors, so that the work
/// continues without a reader. Keeps the line breaks of an error with several lines.
pub fn say(line: &str) {
    // One write, so that lines of several processes in one log do not mix.
    let lines: Vec<_> = line.split('\n').map(plain).collect();
    let _ = std::io::stderr().lock().write_all(format!("{}\n", lines.join("\n")).as_bytes());
}

/// Writes a line of output to stdout. Errors: the write fails, for example because the reader has closed the pipe.
pub fn print_line(line: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(line)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .map_err(|e| Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, "write to standard output").caused_by(e))
}
