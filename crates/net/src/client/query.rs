//! Queries: asks an agent about its files, or to change names, and passes the answers on as they arrive.
//!
//! Lists of this host are read directly, without a session.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::location::RemoteLocation;
use sterna_proto::session::{Answer, ControlEvent, ControlSide, ListOptions, Query, Request, SOURCES_MAX};
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};

use super::control::ControlClient;
use super::run::{Driven, drive};
use super::spec::{CopyEvent, CopyObserver, CopyProgress, CopySpec, Initiator, Trust};
use crate::cancel::Cancel;
use crate::disk::Root;

use crate::identity::Fingerprint;
use crate::lister::{Lister, QueryPlace};
use crate::session::{ControlEnd, End};

/// Answers that wait for their reader. Reason: bounds memory; the agent waits for a slow reader.
const ANSWERS_MAX: usize = 1024;

/// Interval between the ticks of a query.
const LOOK: Duration = Duration::from_millis(200);

/// Time that a query waits without a lane before it fails. Reason: short interruptions pass, and a query is cheap to
/// repeat.
const LINGER: Duration = Duration::from_secs(60);

/// Answers to a query, in the order in which the agent sends them; an iterator. Dropped, it ends the query.
///
/// `Ok(Answer::Failed(..))` is about one name, and the next answers follow. An `Err` ends the query and is the last
/// item.
pub struct Answers {
    source: AnswerSource,
    cancel: Cancel,
    has_ended: bool,
}

enum AnswerSource {
    /// From an agent.
    Session(Receiver<Result<Answer, Error>>),
    /// From this host.
    Local(Box<Lister>),
}

impl Iterator for Answers {
    type Item = Result<Answer, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let item = match &mut self.source {
            AnswerSource::Session(answers) => answers.recv().ok(),
            AnswerSource::Local(names) => names.next().map(Ok),
        };
        self.has_ended = !matches!(item, Some(Ok(_)));
        item
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Starts a list of `locations`, which are all at one agent or all on this host.
///
/// Errors: `Usage`; the host gives no thread. All other failures are the last item.
pub(crate) fn list(
    locations: &[Location],
    options: &ListOptions,
    initiator: &Initiator,
    trust: &Arc<dyn Trust>,
) -> Result<Answers, Error> {
    let locals: Vec<&[u8]> = locations
        .iter()
        .filter_map(|location| match location {
            Location::Local(path) => Some(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())),
            _ => None,
        })
        .collect();
    if locals.len() == locations.len() && !locals.is_empty() {
        return list_here(&locals, options);
    }
    let (remote, paths) = at_one_agent(locations)?;
    start(&remote, Query::List { paths, options: Box::new(options.clone()) }, initiator, trust)
}

/// Lists paths of this host.
fn list_here(paths: &[&[u8]], options: &ListOptions) -> Result<Answers, Error> {
    let place = |path: &&[u8]| {
        let (root, pattern) = Root::for_local_source(path)?;
        Ok(QueryPlace { root, pattern, prefix: None, levels_above: 0 })
    };
    let places = paths.iter().map(place).collect::<Result<_, Error>>()?;
    let cancel = Cancel::default();
    let lister = Lister::new(places, options.clone(), cancel.clone());
    Ok(Answers { source: AnswerSource::Local(Box::new(lister)), cancel, has_ended: false })
}

/// Returns the agent of `locations`, and their paths there. Errors: `Usage`: they are not at one agent.
pub(crate) fn at_one_agent(locations: &[Location]) -> Result<(RemoteLocation, Vec<Vec<u8>>), Error> {
    let usage = |text: &str| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
    if locations.len() > SOURCES_MAX {
        return Err(usage("more than 4096 locations: name their directory, or use a wildcard in quotes"));
    }
    let remote = |location: &Location| match location {
        Location::Remote(remote) => Ok(remote.clone()),
        _ => Err(usage("the locations are not at an agent (sterna://HOST/PATH)")),
    };
    let remotes = locations.iter().map(remote).collect::<Result<Vec<_>, _>>()?;
    let first = remotes.first().ok_or_else(|| usage("no location was given"))?.clone();
    if remotes.iter().any(|other| (&other.host, other.port) != (&first.host, first.port)) {
        return Err(usage("the locations are at several agents: ask one at a time"));
    }
    Ok((first, remotes.into_iter().map(|remote| remote.path).collect()))
}

/// Starts a query in a separate thread (`query`). Errors: the host refuses a thread.
pub(crate) fn start(
    remote: &RemoteLocation,
    query: Query,
    initiator: &Initiator,
    trust: &Arc<dyn Trust>,
) -> Result<Answers, Error> {
    let (answer, answers) = sync_channel(ANSWERS_MAX);
    let cancel = Cancel::default();
    let asker = Arc::new(Asker { trust: Arc::clone(trust), cancel: cancel.clone() });
    let observer = Arc::clone(&asker) as Arc<dyn CopyObserver>;
    let (remote, initiator) = (remote.clone(), initiator.clone());
    let spawned = thread::Builder::new().name("query".to_owned()).spawn(move || {
        if let Err(error) = run(&remote, query, &initiator, &observer, &answer) {
            // Without a reader the error has no use.
            let _ = answer.send(Err(error.named(remote.host_port())));
        }
    });
    spawned.map_err(|e| crate::no_thread("start the thread of a query", e))?;
    Ok(Answers { source: AnswerSource::Session(answers), cancel, has_ended: false })
}

/// Runs a query to its end.
fn run(
    remote: &RemoteLocation,
    query: Query,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
    answers: &SyncSender<Result<Answer, Error>>,
) -> Result<(), Error> {
    let options = CopySpec { linger: LINGER, ..CopySpec::new(Vec::new(), Location::Remote(remote.clone())) };
    let client = ControlClient::new(remote, &options, initiator, observer);
    let first = client.reach()?;
    observer.trust(remote, &first.peer).inspect_err(|_| first.handle.close("not trusted"))?;
    let failure = Arc::new(Mutex::new(None));
    let (failed, sender) = (Arc::clone(&failure), answers.clone());
    let handle = move |event| match event {
        // Waits for the reader; the lane waits with it. A reader that is gone cancels the query.
        ControlEvent::Answered(answer) => drop(sender.send(Ok(answer))),
        ControlEvent::Aborted(error) => *failed.lock() = Some(error),
        ControlEvent::Reported(_) | ControlEvent::Concluded(_) => {}
    };
    let control = ControlEnd::new(ControlSide::Command, LINGER, Box::new(handle));
    client.run(&control, Request::Query(query), first, || {
        drive(&Asked(&control), &**observer, Instant::now(), None);
    })?;
    match failure.lock().take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Control session of a query.
struct Asked<'a>(&'a ControlEnd);

impl Driven for Asked<'_> {
    fn is_over(&self) -> bool {
        self.0.is_over() && self.0.has_followed_up()
    }

    fn interval(&self) -> Duration {
        LOOK
    }

    fn wait(&self, time: Duration) {
        self.0.wait_until_over(time);
    }

    fn tick(&self) {
        self.0.tick();
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    fn progress(&self) -> Option<CopyProgress> {
        None
    }

    fn abort(&self, error: Error) {
        self.0.abort(error);
    }
}

/// Observer of a query: only its trust and its end matter.
struct Asker {
    trust: Arc<dyn Trust>,
    cancel: Cancel,
}

impl CopyObserver for Asker {
    fn event(&self, _event: CopyEvent) {}

    fn progress(&self, _progress: &CopyProgress) {}

    fn trust(&self, remote: &RemoteLocation, peer: &Fingerprint) -> Result<(), Error> {
        self.trust.check(remote, peer, &self.cancel)
    }

    fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}
