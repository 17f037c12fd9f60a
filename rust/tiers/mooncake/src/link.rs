//! The link: a thread that starts the helper, gives it work and ends it when it hangs.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hybrid_pages::guarded::unless_it_panics;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::TILE_BYTES;
use hybrid_pages_tiers::{Identity, refused};

use crate::helper::Helper;
use crate::reply;
use crate::shared::MooncakeShared;
use crate::state::{Get, HelperBatch, HelperWork, MooncakeState, PORTION, Put};
use crate::stats::MooncakeFailure;
use crate::value::{ValueHeader, key_of};
use crate::wire::{GetItem, HelperMessage, PutItem, Reply};

/// The pause between two checks for work that takes too long.
const TICK: Duration = Duration::from_millis(10);
/// Time to wait for more questions or reads of the same prompt, which go in one batch.
const GATHERING: Duration = Duration::from_micros(300);
/// How long a helper may take to start, since it imports a library and calls the master.
const STARTING: Duration = Duration::from_secs(60);
/// How long a helper whose socket has closed may take to end.
const ENDING: Duration = Duration::from_millis(200);
/// How long running batches may take to end when the tier is closed.
const LEAVING: Duration = Duration::from_secs(5);

/// The state of the link's thread.
pub(crate) struct HelperLink {
    shared: Arc<MooncakeShared>,
    identity: Identity,
    planes: Vec<(String, usize)>,
    helper: Option<RunningHelper>,
}

struct RunningHelper {
    helper: Helper,
    reader: JoinHandle<()>,
    started: Instant,
}

impl HelperLink {
    pub(crate) const fn new(
        shared: Arc<MooncakeShared>,
        identity: Identity,
        planes: Vec<(String, usize)>,
    ) -> Self {
        Self {
            shared,
            identity,
            planes,
            helper: None,
        }
    }

    /// Works until the tier is closed. Then nothing touches slots any more, and all copies end, even after a panic.
    pub(crate) fn run(mut self) {
        if unless_it_panics(|| self.serve()).is_none() {
            self.shared.breaks();
        }
        if unless_it_panics(|| self.finish()).is_none() {
            self.shared.breaks();
        }
    }

    fn serve(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            self.tend();
            let state = shared.state();
            if state.closed {
                return;
            }
            shared.wait_for_work(state, TICK);
            std::thread::sleep(GATHERING);
            self.give();
        }
    }

    /// Starts a helper if there is none, ends one that hangs, and gives up what takes too long.
    fn tend(&mut self) {
        let shared = Arc::clone(&self.shared);
        let deadline = shared.options.deadline;
        let (out, cleared) = {
            let state = shared.state();
            (state.breaker.is_pausing(), state.cleared)
        };
        if cleared {
            in_portions(&shared, |state| {
                let puts = state.take_puts(PORTION, |_| true);
                (!puts.is_empty()).then(|| end_puts(&shared, puts, "a reset"))
            });
        } else if out {
            fail_puts(&shared);
        }
        let mut late = 0;
        in_portions(&shared, |state| {
            let some = state.give_up_questions(deadline);
            late += some;
            (some > 0).then_some(())
        });
        if late > 0 {
            shared.ledger.failed_times(
                MooncakeFailure::Deadline,
                late,
                "expected an answer, found none",
            );
            shared.store_failed(&mut shared.state());
        }
        let mut late = Vec::new();
        in_portions(&shared, |state| {
            let some = state.give_up_gets(deadline);
            let any = !some.is_empty();
            late.extend(some);
            any.then_some(())
        });
        let mut state = shared.state();
        if !late.is_empty() {
            shared.store_failed(&mut state);
        }
        for (copy, name) in late {
            state.suspect(name);
            shared.failed(
                MooncakeFailure::Deadline,
                "expected an entry, found none in time",
            );
            shared.end(copy, Err(refused("an entry", "none before the deadline")));
        }
        // The client's timeouts end its calls. A batch makes several calls, each as long as the deadline at most.
        let limit = 4 * deadline + STARTING / 6;
        let hangs = state
            .running
            .values()
            .any(|batch| batch.given.elapsed() > limit);
        let starting = !state.ready
            && self
                .helper
                .as_ref()
                .is_some_and(|it| it.started.elapsed() > STARTING);
        let over = state.lost || hangs || starting;
        let start = self.helper.is_none() && !state.closed && !state.breaker.is_pausing();
        drop(state);
        if self.helper.is_some() && over {
            let what = if hangs {
                "answers in time"
            } else if starting {
                "to start in time"
            } else {
                "to live"
            };
            shared.failed(
                MooncakeFailure::Helper,
                &format!("expected the client's process {what}, found it did not"),
            );
            self.lose(Duration::ZERO);
        } else if start {
            self.start();
        }
    }

    fn start(&mut self) {
        let shared = &self.shared;
        let message = HelperMessage::Start {
            master: shared.options.master.clone(),
            planes: self.planes.clone(),
            staging: shared.staging.len(),
        };
        shared.ledger.count(|counts| counts.helpers += 1);
        let started = Helper::start(&shared.options, &shared.staging, &message);
        let outcome = started.and_then(|(mut helper, replies)| {
            let (reader, identity) = (Arc::clone(shared), self.identity);
            let spawned = std::thread::Builder::new()
                .name("hybrid-pages-mooncake-reader".into())
                .spawn(move || listen(&reader, &identity, replies));
            match spawned {
                Ok(reader) => Ok((helper, reader)),
                Err(error) => {
                    helper.end(Duration::ZERO);
                    Err(error)
                }
            }
        });
        match outcome {
            Ok((helper, reader)) => {
                self.helper = Some(RunningHelper {
                    helper,
                    reader,
                    started: Instant::now(),
                });
            }
            Err(error) => {
                let program = shared.options.command[0].display();
                shared.failed(
                    MooncakeFailure::Helper,
                    &format!("cannot start {program}: {error}"),
                );
                shared.state().breaker.open();
            }
        }
    }

    /// Gives the helper as much work as it can take.
    fn give(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut state = shared.state();
            let Some(running) = self.helper.as_mut().filter(|_| state.ready && !state.lost) else {
                return;
            };
            if state.breaker.is_pausing() {
                return;
            }
            let Some((id, work)) = state.next_work(|class| shared.classes[class].value_bytes)
            else {
                return;
            };
            let (told, given) = (work.clone(), Instant::now());
            state.running.insert(id, HelperBatch { work, given });
            drop(state);
            // Written without the lock: the keys of a full batch take a millisecond.
            let message = self::message(&shared, &self.identity, id, &told);
            if let Some(batch) = shared.state().running.get_mut(&id) {
                batch.given = Instant::now();
            }
            if let Err(error) = running.helper.tell(&message) {
                shared.failed(
                    MooncakeFailure::Helper,
                    &format!("the client's process takes no work: {error}"),
                );
                return self.lose(Duration::ZERO);
            }
        }
    }

    /// Ends the helper, then the copies that it had. Nothing touches slots afterwards.
    fn lose(&mut self, patience: Duration) {
        let Some(mut running) = self.helper.take() else {
            return;
        };
        running.helper.end(patience);
        // The stream has ended, but the thread may still be verifying bytes that have arrived.
        if running.reader.join().is_err() {
            self.shared.failed(
                MooncakeFailure::Helper,
                "the thread that reads answers panicked",
            );
        }
        let shared = &self.shared;
        let mut state = shared.state();
        let was_ready = std::mem::take(&mut state.ready);
        state.lost = false;
        if !state.closed {
            if was_ready || !state.breaker.is_pausing() {
                shared.ledger.count_outage();
            }
            state.breaker.open();
        }
        let batches: Vec<HelperBatch> = state.running.drain().map(|(_, batch)| batch).collect();
        for batch in batches {
            fail(shared, &mut state, batch.work);
        }
        drop(state);
        fail_all(shared);
    }

    /// Finishes a tier that is closed. Running batches may end; waiting work does not begin.
    fn finish(&mut self) {
        let shared = Arc::clone(&self.shared);
        let begun = Instant::now();
        let limit = shared.options.deadline.min(LEAVING);
        while begun.elapsed() < limit && !shared.is_broken() {
            let state = shared.state();
            if state.running.is_empty() || state.lost {
                break;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.lose(ENDING);
        // Copies may be waiting even if there was no helper.
        fail_all(&shared);
        let state = shared.state();
        let lost = shared.ledger.counts().failed(MooncakeFailure::Closed);
        if lost > 0 {
            shared
                .ledger
                .note(&format!("closed before {lost} entries were written"));
        }
        let left = state.to_go();
        if state.cleared && left > 0 {
            shared.ledger.note(&format!(
                "closed before {left} entries that a reset made wrong were removed: empty the store"
            ));
        }
    }
}

/// Calls `some` until it says that nothing is left. In between, the cache may lock the state.
fn in_portions(shared: &MooncakeShared, mut some: impl FnMut(&mut MooncakeState) -> Option<()>) {
    while some(&mut shared.state()).is_some() {}
}

/// Fails all writes that wait.
fn fail_puts(shared: &MooncakeShared) {
    in_portions(shared, |state| {
        let puts = state.take_puts(PORTION, |_| true);
        (!puts.is_empty()).then(|| fail(shared, state, HelperWork::Put(puts)))
    });
}

/// Fails all copies that wait.
fn fail_all(shared: &MooncakeShared) {
    fail_puts(shared);
    in_portions(shared, |state| {
        let count = state.gets.len().min(PORTION);
        state
            .gets
            .drain(..count)
            .for_each(|get| end_get(shared, get.copy));
        (count > 0).then_some(())
    });
    in_portions(shared, |state| {
        let questions = state.take_questions();
        (!questions.is_empty()).then(|| fail(shared, state, HelperWork::Ask(questions)))
    });
}

/// Ends writes that have not begun.
pub(crate) fn end_puts(shared: &MooncakeShared, puts: Vec<Put>, why: &str) {
    for copy in puts.into_iter().filter_map(|put| put.copy) {
        shared.end(copy, Err(refused("an entry that is wanted", why)));
    }
}

/// Fails the copies of a batch.
fn fail(shared: &MooncakeShared, state: &mut MooncakeState, work: HelperWork) {
    match work {
        HelperWork::Ask(questions) => {
            for question in questions {
                state.answered(question.name, None);
            }
        }
        HelperWork::Get(gets) => {
            for get in gets {
                state.free_cells.push(get.cell);
                end_get(shared, get.copy);
            }
        }
        HelperWork::Put(puts) => {
            if state.closed {
                let lost = puts.len() as u64;
                shared.ledger.count_failures(MooncakeFailure::Closed, lost);
            }
            for put in puts {
                // The value may have arrived in the store.
                if put.undone || state.cleared {
                    state.removes.insert(put.name, ());
                } else {
                    state.wrote(put.name);
                }
                if let Some(copy) = put.copy {
                    shared.end(copy, Err(refused("a store that takes writes", "none")));
                }
            }
        }
        // These names are still in the list of entries to remove.
        HelperWork::Remove(_) => {}
    }
}

fn end_get(shared: &MooncakeShared, copy: Option<CopyId>) {
    if let Some(copy) = copy {
        shared.end(
            copy,
            Err(refused("an entry", "that the client's process ended")),
        );
    }
}

fn message(
    shared: &MooncakeShared,
    identity: &Identity,
    id: u64,
    work: &HelperWork,
) -> HelperMessage {
    let staging = &shared.staging;
    let length = shared.header_bytes();
    match work {
        HelperWork::Ask(questions) => {
            shared.ledger.count(|counts| counts.lists += 1);
            let keys = questions
                .iter()
                .map(|question| key_of(identity, &question.name));
            let (keys, at) = (keys.collect(), staging.question(0));
            HelperMessage::Ask {
                id,
                keys,
                at,
                length,
            }
        }
        HelperWork::Get(gets) => {
            shared.ledger.count(|counts| counts.gets += 1);
            let item = |get: &Get| GetItem {
                key: key_of(identity, &get.name),
                at: staging.cell(get.cell),
                length: shared.classes[get.class].value_bytes,
            };
            let items = gets.iter().map(item).collect();
            HelperMessage::Get { id, items }
        }
        HelperWork::Put(puts) => {
            shared.ledger.count(|counts| counts.puts += 1);
            let item = |(index, put): (usize, &Put)| {
                let header = ValueHeader {
                    identity,
                    name: &put.name,
                    class: put.class,
                    shard_bytes: shared.classes[put.class].shard_bytes,
                };
                let at = staging.put(index);
                staging.write(at, &header.encode(&put.sums));
                PutItem {
                    key: key_of(identity, &put.name),
                    at,
                    parts: parts(shared, put),
                }
            };
            let items = puts.iter().enumerate().map(item).collect();
            HelperMessage::Put { id, items, length }
        }
        HelperWork::Remove(names) => {
            let keys = names.iter().map(|name| key_of(identity, name)).collect();
            HelperMessage::Remove { id, keys }
        }
    }
}

/// The stretches of memory that hold the shards of an entry: plane, offset, length. Adjacent slots form one.
fn parts(shared: &MooncakeShared, put: &Put) -> Vec<(usize, usize, usize)> {
    let slot_bytes = shared.slot_bytes / shared.ranks;
    let mut parts: Vec<(usize, usize, usize)> = Vec::new();
    for rank in 0..shared.ranks {
        let mut left = shared.classes[put.class].shard_bytes;
        for slot in &put.slots {
            let length = left.min(slot_bytes);
            let at = slot.0 as usize * slot_bytes;
            match parts.last_mut() {
                Some(last) if last.0 == rank && last.1 + last.2 == at => last.2 += length,
                _ if length > 0 => parts.push((rank, at, length)),
                _ => {}
            }
            left -= length;
        }
    }
    parts
}

/// Reads the helper's messages until it ends.
fn listen(shared: &MooncakeShared, identity: &Identity, stream: UnixStream) {
    if unless_it_panics(|| hear(shared, identity, stream)).is_none() {
        shared.breaks();
    }
    shared.state().lost = true;
    shared.bell.notify_all();
}

fn hear(shared: &MooncakeShared, identity: &Identity, stream: UnixStream) {
    let mut tile = [0; TILE_BYTES];
    for line in BufReader::new(stream).lines() {
        let reply = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        match reply {
            Some(Reply::Ready { ready: true }) => {
                let mut state = shared.state();
                state.ready = true;
                state.breaker.worked();
            }
            Some(Reply::Codes { id, codes }) => {
                reply::take(shared, identity, (id, &codes), &mut tile);
            }
            Some(Reply::Failed { error }) => {
                shared.failed(MooncakeFailure::Helper, &error);
                break;
            }
            Some(Reply::Ready { ready: false }) | None => {
                shared.failed(
                    MooncakeFailure::Helper,
                    "expected an answer, found something else",
                );
                break;
            }
        }
        shared.bell.notify_all();
    }
}
