//! Trials of a disk that is out, on a thread of their own, since they may hang or take long.

use std::sync::Arc;

use crate::connect::open;
use crate::crew;
use crate::door::ALIGNMENT;
use crate::path::trouble::Trouble;
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::store::buffer;
use hybrid_pages_tiers::lock;

/// Tries the device on a new thread, since the trial may hang, too.
pub(crate) fn try_again(shared: &Arc<DiskShared>) {
    let trial = Arc::clone(shared);
    let tried = move || {
        let connected = lock(&trial.book).connected;
        let answers = if connected {
            probe(&trial)
        } else {
            opens(&trial)
        };
        let works = answers && crew::start(&trial, trial.queue.new_crew()).is_ok();
        lock(&trial.health).tried(works);
    };
    let here = Arc::clone(shared);
    let run = move || here.unless_it_panics(tried);
    let thread = std::thread::Builder::new().name("hybrid-pages-disk-trial".into());
    if thread.spawn(run).is_err() {
        lock(&shared.health).tried(false);
    }
}

/// Opens the store that could not be opened at the start. Returns whether that worked.
fn opens(shared: &Arc<DiskShared>) -> bool {
    match open(shared) {
        Ok(()) => true,
        Err(Trouble::Passing(reason, what)) => {
            shared.ledger.failed(reason, &what);
            false
        }
        Err(Trouble::Refused(error)) => {
            shared
                .ledger
                .failed(DiskFailure::Directory, &error.to_string());
            false
        }
    }
}

/// Whether a few bytes can be written and read.
fn probe(shared: &DiskShared) -> bool {
    let direct = lock(&shared.book).store.as_ref().map(|store| store.direct);
    let outcome = || -> std::io::Result<()> {
        let door = &shared.options.door;
        let folder = shared.lane()?.folder();
        let file = door.open(folder, "trial", direct.unwrap_or(false))?;
        let mut bytes = buffer(ALIGNMENT)?;
        file.write_all(&bytes, 0)?;
        file.read_all(&mut bytes, 0)
    };
    shared.is_in_place() && outcome().is_ok()
}
