//! The state that a tier shares with its threads and handles.

use std::sync::{Condvar, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::Process;
use hybrid_pages_tiers::{
    CopyEnds, EntrySize, Ledger, PanicFlag, Planes, PriorityGuard, PriorityMutex, lock, lock_first,
    panicked,
};

use crate::options::MooncakeOptions;
use crate::staging::StagingMemory;
use crate::state::MooncakeState;
use crate::stats::{MooncakeFailure, MooncakeStats};
use crate::value::header_bytes;

/// The size of the values of one class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueSize {
    /// Bytes of one rank's shard.
    pub(crate) shard_bytes: usize,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
}

/// The state that a tier shares with its handles and threads. The lock of `state` is taken before the others.
#[derive(Debug)]
pub(crate) struct MooncakeShared {
    pub(crate) options: MooncakeOptions,
    /// The classes of entries, and behind them that of marks.
    pub(crate) classes: Vec<ValueSize>,
    pub(crate) block_tokens: usize,
    pub(crate) ranks: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) planes: OnceLock<Planes>,
    pub(crate) staging: StagingMemory,
    state: PriorityMutex<MooncakeState>,
    /// Wakes the link when there is work.
    pub(crate) bell: Condvar,
    pub(crate) ended: CopyEnds,
    panic: PanicFlag,
    /// The link's thread.
    pub(crate) link: PriorityMutex<Option<JoinHandle<()>>>,
    process: Process,
    pub(crate) ledger: Ledger<MooncakeStats>,
}

impl MooncakeShared {
    pub(crate) fn new(
        options: MooncakeOptions,
        sizes: &[EntrySize],
        (ranks, block_tokens): (usize, usize),
        slot_bytes: usize,
    ) -> Result<Self> {
        let class = |size: &EntrySize| ValueSize {
            shard_bytes: size.shard_bytes,
            value_bytes: header_bytes(ranks) + ranks * size.shard_bytes,
        };
        let mut classes: Vec<ValueSize> = sizes.iter().map(class).collect();
        let largest = classes.iter().map(|class| class.value_bytes).max();
        let staging = StagingMemory::new(
            header_bytes(ranks),
            largest.unwrap_or(1),
            options.staging_bytes,
        );
        classes.push(ValueSize {
            shard_bytes: 0,
            value_bytes: header_bytes(ranks),
        });
        let staging = staging.map_err(|error| {
            let what = format!("expected staging memory, found {error}");
            Error::remote(Cause::new(what, error))
        })?;
        Ok(Self {
            state: PriorityMutex::new(MooncakeState::new(options.retry, staging.cells())),
            options,
            classes,
            block_tokens,
            ranks,
            slot_bytes,
            planes: OnceLock::new(),
            staging,
            bell: Condvar::new(),
            ended: CopyEnds::default(),
            panic: PanicFlag::default(),
            link: PriorityMutex::default(),
            process: Process::current(),
            ledger: Ledger::new(String::new()),
        })
    }

    /// Whether this process was forked from the one that made the tier, and so has none of its threads.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// The class of marks; those of entries are below it.
    pub(crate) const fn mark_class(&self) -> usize {
        self.classes.len() - 1
    }

    pub(crate) fn header_bytes(&self) -> usize {
        header_bytes(self.ranks)
    }

    /// Locks the state for a thread. After a panic the tier is closed: nothing is found or taken any more.
    pub(crate) fn state(&self) -> PriorityGuard<'_, MooncakeState> {
        self.checked(lock(&self.state))
    }

    /// Locks the state for a call of the scheduler.
    pub(crate) fn state_first(&self) -> PriorityGuard<'_, MooncakeState> {
        self.checked(lock_first(&self.state))
    }

    fn checked<'a>(
        &self,
        mut state: PriorityGuard<'a, MooncakeState>,
    ) -> PriorityGuard<'a, MooncakeState> {
        if self.is_broken() {
            state.closed = true;
            if self.panic.report_once() {
                self.failed(MooncakeFailure::Panic, &panicked("store"));
                self.bell.notify_all();
            }
        }
        state
    }

    /// Whether a panic has left the tier's knowledge in doubt.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.is_poisoned() || self.panic.is_set()
    }

    /// Notes that a thread of the tier has panicked, which leaves the tier's knowledge in doubt.
    pub(crate) fn breaks(&self) {
        self.panic.set();
        drop(self.state());
    }

    /// Waits for work, but no longer than a tick.
    pub(crate) fn wait_for_work(&self, state: PriorityGuard<'_, MooncakeState>, tick: Duration) {
        let idle = |state: &mut MooncakeState| !state.closed && !state.lost && !state.has_work();
        drop(state.wait_while(&self.bell, Some(tick), idle));
    }

    pub(crate) fn end(&self, copy: CopyId, result: Result<Vec<u64>>) {
        self.ended.add(copy, result);
    }

    pub(crate) fn failed(&self, kind: MooncakeFailure, what: &str) {
        self.ledger.failed_times(kind, 1, what);
    }

    /// Notes that the store failed or hangs. After several times it is left alone.
    pub(crate) fn store_failed(&self, state: &mut MooncakeState) {
        if state.breaker.failed_untold() {
            self.ledger.count_outage();
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
            self.failed(MooncakeFailure::Helper, "the thread of the helper panicked");
        }
    }
}
