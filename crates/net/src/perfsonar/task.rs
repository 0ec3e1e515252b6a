//! Tasks of pScheduler: one task, its first run, and the result.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use ureq::http::Method;

use super::exchange::{Ask, Exchange, cancelled, with_path};
use super::{NodeTimes, NodeTrust};
use crate::engine::Cancel;

/// Time for which a node may hold a look at a run until the run has ended, seconds. Reason: pScheduler looks twice a
/// second meanwhile. It can take three times as long, so three of them are within the time of a request.
const HOLD_S: u64 = 5;

/// Length of a UUID as text.
const UUID_CHARS: usize = 36;

/// Path of the interface on a host.
const PATH: &str = "/pscheduler";

/// State of a run. Source: `run_state` in the database of pScheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It waits for its time.
    Pending,
    /// It starts within seconds.
    OnDeck,
    /// It runs.
    Running,
    /// The tool has ended; the node collects the results.
    Cleanup,
    /// It has a result.
    Finished,
    /// It did not end in its time.
    Overdue,
    /// The node was not running at its time.
    Missed,
    /// The tool failed.
    Failed,
    /// A run with a higher priority took its time.
    Preempted,
    /// It could not be scheduled.
    Nonstart,
    /// It was removed.
    Canceled,
    /// A state of a later release.
    Other(String),
}

impl RunState {
    fn of(name: &str) -> Self {
        match name {
            "pending" => Self::Pending,
            "on-deck" => Self::OnDeck,
            "running" => Self::Running,
            "cleanup" => Self::Cleanup,
            "finished" => Self::Finished,
            "overdue" => Self::Overdue,
            "missed" => Self::Missed,
            "failed" => Self::Failed,
            "preempted" => Self::Preempted,
            "nonstart" => Self::Nonstart,
            "canceled" => Self::Canceled,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the state in words.
    pub fn words(&self) -> &str {
        match self {
            Self::Pending => "waits for its time",
            Self::OnDeck => "starts within seconds",
            Self::Running => "runs",
            Self::Cleanup => "has ended; the node collects the results",
            Self::Finished => "has finished",
            Self::Overdue => "did not end in its time",
            Self::Missed => "was missed: the node was not running at its time",
            Self::Failed => "failed",
            Self::Preempted => "was preempted by a run with a higher priority",
            Self::Nonstart => "could not be scheduled",
            Self::Canceled => "was removed",
            Self::Other(name) => name,
        }
    }

    /// Returns true if the run has ended without a result.
    fn is_failure(&self) -> bool {
        matches!(self, Self::Overdue | Self::Missed | Self::Failed | Self::Preempted | Self::Nonstart | Self::Canceled)
    }
}

/// Step of a task, as it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunProgress {
    /// The node has accepted the task.
    Accepted {
        /// URL of the task.
        task: String,
        /// Tool that the participants have in common.
        tool: Option<String>,
    },
    /// The run has another state.
    State {
        /// State.
        state: RunState,
        /// Time of its start, as the node writes it.
        start: Option<String>,
    },
}

/// Run that has ended with a result.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// URL of the task.
    pub task: String,
    /// Tool.
    pub tool: Option<String>,
    /// Test with its specification, as the node runs it: its limits may have changed the one that was posted.
    pub test: Value,
    /// Run as the node reports it, with `result-merged`.
    pub run: Value,
}

/// Node of pScheduler that leads a task.
pub struct Node {
    exchange: Exchange,
    times: NodeTimes,
}

impl Node {
    /// Creates the client of the node at a URL; without a path, that of pScheduler is added. Connects to nothing.
    ///
    /// Errors: `Usage`, also for a file of authorities that cannot be read.
    pub fn new(url: &WebLocation, trust: &NodeTrust, times: NodeTimes) -> Result<Self, Error> {
        Ok(Self { exchange: Exchange::new(&with_path(url, PATH)?, trust)?, times })
    }

    /// Posts a task, follows its first run, and returns the run with its result. `within`: time until the result.
    ///
    /// If it returns an error, or is cancelled, it removes the task from the node, unless the node has not named the
    /// task by then. Errors: `Denied` if the limits of
    /// the node refuse the task; `Unreachable` or `Limit` if there is no result in time; `Io` if the run failed.
    pub fn run(
        &self,
        task: &Value,
        within: Duration,
        cancel: &Cancel,
        mut progress: impl FnMut(RunProgress),
    ) -> Result<RunOutcome, Error> {
        let end = Instant::now() + within;
        let path = self.post(task, cancel)?;
        self.follow(&path, end, within, cancel, &mut progress).map_err(|error| {
            let removal = self.remove(&path);
            match (error.kind, removal) {
                (ErrorKind::Cancelled, Ok(())) => error.reworded("stopped: the task was removed from the node"),
                (_, Ok(())) => error,
                (_, Err(why)) => {
                    let text = format!("{}; the task stays at the node: {}", error.text(), why.text());
                    error.reworded(text)
                }
            }
        })
    }

    /// Posts a task. Returns the path of its resource.
    fn post(&self, task: &Value, cancel: &Cancel) -> Result<String, Error> {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        let ask = Ask::post("/tasks", task.clone(), self.times.request);
        let reply = self.exchange.send_with_grace(&ask, cancel, self.times.after_cancel)?;
        let url = reply.json()?;
        // The node names its own host as it likes; the task is at this URL.
        let uuid = url.as_str().and_then(|url| url.rsplit('/').next()).filter(|uuid| is_uuid(uuid));
        let uuid = uuid.ok_or_else(|| reply.foreign("the reply is not the URL of a task"))?;
        Ok(format!("/tasks/{uuid}"))
    }

    fn follow(
        &self,
        path: &str,
        end: Instant,
        within: Duration,
        cancel: &Cancel,
        progress: &mut impl FnMut(RunProgress),
    ) -> Result<RunOutcome, Error> {
        let detail = Ask::get(format!("{path}?detail=1"), self.request_time(end));
        let detail = self.exchange.send(&detail, cancel)?.json()?;
        let tool = detail.get("tool").and_then(Value::as_str).map(str::to_owned);
        let task = format!("{}{path}", self.exchange.base());
        progress(RunProgress::Accepted { task: task.clone(), tool: tool.clone() });
        let (mut last, mut failure) = (None, None);
        while Instant::now() < end {
            match self.look(path, end, cancel) {
                Ok(Some(run)) => {
                    let state = state_of(&run);
                    if last.as_ref() != Some(&state) {
                        let start = text_of(&run, "start-time");
                        progress(RunProgress::State { state: state.clone(), start });
                    }
                    if state.is_failure() {
                        return Err(failed(&task, &state, &run));
                    }
                    if state == RunState::Finished && run.get("result-merged").is_some_and(|result| !result.is_null()) {
                        let test = detail.get("test").cloned().unwrap_or_default();
                        return Ok(RunOutcome { task, tool, test, run });
                    }
                    (last, failure) = (Some(state), None);
                }
                // No run is scheduled yet.
                Ok(None) => failure = None,
                Err(error) if error.retry == Retry::After => failure = Some(error),
                Err(error) => return Err(error),
            }
            self.pause(end, cancel)?;
        }
        Err(failure.unwrap_or_else(|| late(&task, last.as_ref(), within)))
    }

    /// Returns the first run of a task; `None`: none is scheduled yet.
    fn look(&self, path: &str, end: Instant, cancel: &Cancel) -> Result<Option<Value>, Error> {
        let hold = HOLD_S.min(end.saturating_duration_since(Instant::now()).as_secs());
        let ask = Ask::get(format!("{path}/runs/first?wait={hold}&wait-merged=true"), self.request_time(end));
        let reply = self.exchange.send(&ask, cancel)?;
        if reply.status == 404 {
            return Ok(None);
        }
        let run = reply.json()?;
        match run.get("state").is_some_and(Value::is_string) {
            true => Ok(Some(run)),
            false => Err(reply.foreign("the reply is not a run")),
        }
    }

    /// Returns the time limit of a request that ends at the deadline.
    fn request_time(&self, end: Instant) -> Duration {
        let left = end.saturating_duration_since(Instant::now());
        self.times.request.min(left).max(Duration::from_millis(1))
    }

    /// Waits before the next look. Errors: the cancellation.
    fn pause(&self, end: Instant, cancel: &Cancel) -> Result<(), Error> {
        let (waker, cancelled_now) = mpsc::channel::<()>();
        // The end of the sender ends the wait.
        let _at_cancel = cancel.on_cancel(move || drop(waker));
        let pause = self.times.pause.min(end.saturating_duration_since(Instant::now()));
        match cancelled_now.recv_timeout(pause) {
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(cancelled()),
            _ => Ok(()),
        }
    }

    /// Removes a task, so that nothing runs that nobody waits for. Tries once: it ends by itself after its run.
    fn remove(&self, path: &str) -> Result<(), Error> {
        let ask = Ask { method: Method::DELETE, path: path.to_owned(), body: None, time: self.times.after_cancel };
        let reply = self.exchange.send(&ask, &Cancel::default())?;
        // 404: it has ended and is removed.
        if matches!(reply.status, 200 | 404) { Ok(()) } else { Err(reply.refusal()) }
    }
}

fn is_uuid(text: &str) -> bool {
    let is_one = |(index, c): (usize, char)| match index {
        8 | 13 | 18 | 23 => c == '-',
        _ => c.is_ascii_hexdigit(),
    };
    text.len() == UUID_CHARS && text.chars().enumerate().all(is_one)
}

fn state_of(run: &Value) -> RunState {
    RunState::of(run.get("state").and_then(Value::as_str).unwrap_or_default())
}

fn text_of(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Maximum characters of a reason in an error. Reason: the output of a tool has pages.
const REASON_CHARS_MAX: usize = 1000;

/// Returns the error of a run without a result, with the reason that the node reports.
fn failed(task: &str, state: &RunState, run: &Value) -> Error {
    let merged = run.get("result-merged").cloned().unwrap_or_default();
    let reason = text_of(run, "errors").or_else(|| text_of(&merged, "error")).or_else(|| text_of(run, "limit-diags"));
    let reason = reason.or_else(|| {
        // A tool at the other participant has failed.
        let results = run.get("result-full").and_then(Value::as_array)?;
        results.iter().find_map(|result| text_of(result, "error"))
    });
    let reason = reason.unwrap_or_else(|| "no reason is reported".to_owned());
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    let advice = match state {
        RunState::Nonstart | RunState::Preempted => "; the node is busy: try again later, or with a longer --wait",
        RunState::Missed | RunState::Overdue => "; check the clocks of both nodes",
        _ => "",
    };
    let text = format!("the run of {task} {}: {reason}{advice}", state.words());
    let kind = match state {
        RunState::Nonstart | RunState::Preempted => ErrorKind::Busy,
        _ => ErrorKind::Io,
    };
    Error::new(kind, Scope::Path, Phase::Transfer, text).from_peer()
}

/// Returns the error of a run that has not ended in time.
fn late(task: &str, state: Option<&RunState>, within: Duration) -> Error {
    let state = match state {
        Some(state) => format!("the run of {task} {}", state.words()),
        None => format!("{task} has no run"),
    };
    let text = format!("{state} after {} s; give a longer --wait", within.as_secs());
    Error::new(ErrorKind::Limit, Scope::Path, Phase::Transfer, text).retry(Retry::After)
}
