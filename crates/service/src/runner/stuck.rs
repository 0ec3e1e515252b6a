//! Files that wait for a source with an obstacle: another replica of their entry takes their place.
//!
//! [`Stuck`](sterna_sched::obstacle::Stuck) says at which files a tick looks, and the strategy of a file says which
//! replica is next. The store changes both files at once, if both have the expected state still. So a file that starts
//! or is cancelled meanwhile stays what it is.

use sterna_proto::quantity::readable_time;
use sterna_sched::obstacle::Look;
use sterna_sched::queue::FileNumber;
use sterna_sched::replica::Placed;
use tracing::info;

use super::Runner;
use crate::job::File;
use crate::service::{Reserves, name_of, now};
use crate::store::{Change, Changed, Decision, DecisionKind, Event};

impl Runner {
    /// Lets files leave sources that have had an obstacle for long, a bounded number at a tick.
    pub(super) async fn replace_stuck(&mut self) {
        let at = now();
        let obstacles: Vec<_> = self.service.shared.scheduler.lock().obstacles(at).collect();
        self.stuck.observe(obstacles, at);
        let mut placed = Placed::default();
        for look in self.stuck.poll(at) {
            let read = async || self.store().replaceable(&look.endpoint, look.after, look.limit).await;
            let found = self.insist("read files that wait", read).await;
            let numbers: Vec<FileNumber> = found.iter().map(|file| file.number).collect();
            self.stuck.handle_looked(&look, &numbers);
            // Looked up after the read: no file of an open job starts.
            let uploads = self.service.shared.uploads.lock().clone();
            let files: Vec<File> = found.into_iter().filter(|file| !uploads.contains(&file.job)).collect();
            let changes = self.replacements(&look, &files, &mut placed).await;
            self.replace(&look, changes).await;
        }
    }

    /// Returns the changes by which files give their place to another replica. A file without a free one stays.
    async fn replacements(&self, look: &Look, files: &[File], placed: &mut Placed) -> Vec<Change> {
        let all: Vec<&File> = files.iter().collect();
        let mut reserves = self.insist("read replicas", async || self.service.reserves_of(&all).await).await;
        let at = now();
        let change = |file: &File| {
            let reserves = reserves.remove(&(file.job, file.new.entry))?;
            let (successor, why) = self.service.successor(file, &reserves, Reserves::Free, placed)?;
            let (obstacle, time) = (look.obstacle.text(), readable_time(look.time));
            let text = format!("{} waits: its source {obstacle}, since {time}; {why}", name_of(file));
            let decision = Some(Decision::new(DecisionKind::Swap, text));
            let what = Event::Yields { successor };
            Some(Change { file: file.number, from: file.state, of_worker: None, what, decision, at })
        };
        files.iter().filter_map(change).collect()
    }

    async fn replace(&mut self, look: &Look, changes: Vec<Change>) {
        let mut count = 0;
        for changed in self.change(changes).await {
            let Changed::Done { file, waiting, .. } = changed else { continue };
            self.service.shared.scheduler.lock().handle_cancelled(file.number);
            self.queue(&waiting);
            count += 1;
        }
        if count > 0 {
            info!("{} {}: {count} files wait for other replicas instead", look.endpoint, look.obstacle.text());
        }
    }
}
