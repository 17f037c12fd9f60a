//! What the threads of a tier share with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use hashbrown::HashSet;
use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::guarded::lock;
use hybrid_pages::tier::{CopyEnd, CopyId};
use hybrid_pages_tiers::Planes;

use crate::options::MooncakeOptions;
use crate::staging::Staging;
use crate::state::State;
use crate::stats::{MooncakeStats, Reason};
use crate::value::header_bytes;

/// One class of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    /// Bytes of one rank's shard.
    pub(crate) shard_bytes: usize,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
}

/// Shared by a tier, its handles and its threads. Of the locks, the state's is taken before the others.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: MooncakeOptions,
    pub(crate) classes: Vec<Class>,
    pub(crate) ranks: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) planes: OnceLock<Planes>,
    pub(crate) staging: Staging,
    state: Mutex<State>,
    /// Rings when there is something to do.
    pub(crate) bell: Condvar,
    ended: Mutex<Vec<CopyEnd>>,
    /// A thread of the tier has panicked.
    broken: AtomicBool,
    /// That was counted.
    told: AtomicBool,
    /// The thread that has the helper.
    pub(crate) link: Mutex<Option<JoinHandle<()>>>,
    process: u32,
    pub(crate) counts: Mutex<MooncakeStats>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    said: HashSet<Reason>,
    waiting: Vec<String>,
}

const PANICKED: &str = "expected no panic, found one inside: the store is left alone until the engine starts anew; please \
                        report what standard error says";

/// A copy that did not happen.
pub(crate) fn refused(expected: &str, found: &str) -> Error {
    Error::remote(format!("expected {expected}, found {found}"))
}

impl Shared {
    pub(crate) fn new(
        options: MooncakeOptions,
        shards: impl Iterator<Item = usize>,
        ranks: usize,
        slot_bytes: usize,
    ) -> Result<Self> {
        let class = |shard_bytes: usize| Class {
            shard_bytes,
            value_bytes: header_bytes(ranks) + ranks * shard_bytes,
        };
        let classes: Vec<Class> = shards.map(class).collect();
        let largest = classes.iter().map(|class| class.value_bytes).max();
        let staging = Staging::new(
            header_bytes(ranks),
            largest.unwrap_or(1),
            options.staging_bytes,
        );
        let staging = staging.map_err(|error| {
            let text = format!("expected staging memory, found {error}");
            Error::remote(Cause::new(text, error))
        })?;
        Ok(Self {
            state: Mutex::new(State::new(options.retry, staging.cells())),
            options,
            classes,
            ranks,
            slot_bytes,
            planes: OnceLock::new(),
            staging,
            bell: Condvar::new(),
            ended: Mutex::default(),
            broken: AtomicBool::new(false),
            told: AtomicBool::new(false),
            link: Mutex::default(),
            process: std::process::id(),
            counts: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    /// Whether this process is a fork of the one that made the tier: it has none of the threads.
    pub(crate) fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    pub(crate) fn header_bytes(&self) -> usize {
        header_bytes(self.ranks)
    }

    /// What the tier knows and has to do. After a panic it is closed: nothing is found or taken any more.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if self.is_broken() {
            state.closed = true;
            if !self.told.swap(true, Ordering::SeqCst) {
                self.failed(Reason::Panic, PANICKED);
                self.bell.notify_all();
            }
        }
        state
    }

    /// Whether what the tier knows is in doubt, since there was a panic.
    pub(crate) fn is_broken(&self) -> bool {
        let poisoned = self.state.is_poisoned() || self.ended.is_poisoned();
        poisoned || self.broken.load(Ordering::SeqCst)
    }

    /// A thread of the tier has panicked: what it was at is in doubt.
    pub(crate) fn breaks(&self) {
        self.broken.store(true, Ordering::SeqCst);
        drop(self.state());
    }

    /// Waits for work, or a tick.
    pub(crate) fn wait_for_work(&self, state: MutexGuard<'_, State>, tick: Duration) {
        let idle = |state: &mut State| !state.closed && !state.lost && !state.has_work();
        drop(self.bell.wait_timeout_while(state, tick, idle));
    }

    pub(crate) fn take_ended(&self, ended: &mut Vec<CopyEnd>) {
        ended.append(&mut lock(&self.ended));
    }

    pub(crate) fn end(&self, copy: CopyId, result: Result<Vec<u64>>) {
        lock(&self.ended).push(CopyEnd { copy, result });
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut MooncakeStats)) {
        change(&mut lock(&self.counts));
    }

    /// Counts failures of one kind; the first one of it is said.
    pub(crate) fn failed_times(&self, reason: Reason, times: u64, what: &str) {
        self.count(|counts| counts.failures[reason as usize] += times);
        let mut notes = lock(&self.notes);
        if notes.said.insert(reason) {
            notes.waiting.push(format!("{}: {what}", reason.name()));
        }
    }

    pub(crate) fn failed(&self, reason: Reason, what: &str) {
        self.failed_times(reason, 1, what);
    }

    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.notes).waiting)
    }

    pub(crate) fn note(&self, what: &str) {
        lock(&self.notes).waiting.push(what.to_owned());
    }

    /// The store failed, or hangs: after some times it is left alone.
    pub(crate) fn store_failed(&self, state: &mut State) {
        if state.breaker.failed() {
            self.count(|counts| counts.outages += 1);
        }
    }

    /// Ends the copies, the threads and the helper.
    pub(crate) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        {
            self.state().closed = true;
            self.bell.notify_all();
        }
        let link = lock(&self.link).take();
        if link.is_some_and(|link| link.join().is_err()) {
            self.failed(Reason::Helper, "the thread of the helper panicked");
        }
    }
}
