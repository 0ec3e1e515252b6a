//! Lines for users on stderr, and output on stdout.

use std::io::{self, PipeReader, Stdout, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PIPE_BUF;
use sterna_net::engine::{Cancel, OnCancel};
use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Total time that the reader of stdout has for the lines after the stop of a copy. Reason: a program that reads them
/// takes milliseconds, and a user waits 2 s at most for the end.
const LAST_LINES_TIME_MAX: Duration = Duration::from_secs(1);

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
    out.write_all(line).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).map_err(lost)
}

fn lost(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, "write to standard output").caused_by(error)
}

/// Output of a copy on stdout. A reader that does not read holds the copy up, but not its stop.
pub struct CopyOutput<F = Stdout> {
    to: F,
    cancel: Cancel,
    /// Readable from the stop on.
    stopped: PipeReader,
    _at_stop: OnCancel,
    last_lines: Mutex<LastLines>,
}

/// Lines after the stop.
#[derive(Default)]
struct LastLines {
    /// End of the time for them, once the copy was stopped.
    until: Option<Instant>,
    /// True once a line was cut because nobody reads. A later line would follow the part of it.
    are_cut: bool,
}

impl<F: AsFd> CopyOutput<F> {
    /// Creates the output of a copy that `cancel` stops. Errors: no descriptor is free.
    pub fn new(to: F, cancel: &Cancel) -> io::Result<Self> {
        let (stopped, writer) = io::pipe()?;
        // The end of the writer makes the pipe readable.
        let at_stop = cancel.on_cancel(move || drop(writer));
        Ok(Self { to, cancel: cancel.clone(), stopped, _at_stop: at_stop, last_lines: Mutex::default() })
    }

    /// Writes a line; waits for a reader. After the stop, drops the lines for which there is no room in time. Errors:
    /// the write fails, for example because the reader has closed the pipe.
    pub fn print_line(&self, line: &[u8]) -> Result<(), Error> {
        let mut last_lines = self.last_lines.lock();
        if last_lines.are_cut {
            return Ok(());
        }
        let line = [line, b"\n"].concat();
        let mut rest = line.as_slice();
        while !rest.is_empty() && self.wait_for_room(&mut last_lines.until).map_err(lost)? {
            // A pipe with room takes as much without a wait.
            match rustix::io::write(&self.to, &rest[..rest.len().min(PIPE_BUF)]) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(lost(errno.into())),
            }
        }
        last_lines.are_cut = !rest.is_empty();
        Ok(())
    }

    /// Waits until stdout takes data. Returns false if the copy was stopped, and stdout takes none until `until`.
    fn wait_for_room(&self, until: &mut Option<Instant>) -> io::Result<bool> {
        loop {
            let mut watched = vec![PollFd::new(&self.to, PollFlags::OUT)];
            let mut time = None;
            if self.cancel.is_cancelled() {
                let until = *until.get_or_insert_with(|| Instant::now() + LAST_LINES_TIME_MAX);
                time = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            } else {
                watched.push(PollFd::new(&self.stopped, PollFlags::IN));
            }
            match poll(&mut watched, time.as_ref()) {
                Ok(0) => return Ok(false),
                // The stop has ended the wait: from now on there is a limit.
                Ok(_) if watched[0].revents().is_empty() => {}
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read};
    use std::thread;

    use super::*;

    /// Returns an output whose reader has not read for a while, and that reader.
    fn unread(cancel: &Cancel) -> (PipeReader, CopyOutput<PipeWriter>) {
        let (reader, mut writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'x'; PIPE_BUF]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        (reader, CopyOutput::new(writer, cancel).unwrap())
    }

    #[test]
    fn a_stop_ends_the_wait_for_a_reader() {
        let cancel = Cancel::default();
        let (mut reader, output) = unread(&cancel);
        let printed = thread::spawn(move || {
            output.print_line(b"line").unwrap();
            output.print_line(b"later").unwrap();
        });
        cancel.cancel();
        printed.join().unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == b'x'));
    }

    #[test]
    fn a_reader_that_is_late_gets_every_line() {
        let cancel = Cancel::default();
        let (mut reader, output) = unread(&cancel);
        let printed = thread::spawn(move || {
            output.print_line(&[b'y'; 3 * PIPE_BUF]).unwrap();
            cancel.cancel();
            output.print_line(b"last").unwrap();
        });
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        printed.join().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.trim_start_matches('x'), format!("{}\nlast\n", "y".repeat(3 * PIPE_BUF)));
    }
}
