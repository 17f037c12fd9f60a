//! The handle of a Mooncake tier: what the owner of a cache keeps when the tier itself has gone into the cache.

use std::sync::Arc;
use std::time::Duration;

use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{CONNECTED_TWICE, Identity, Planes, lock, wait_until};

use crate::link::HelperLink;
use crate::shared::MooncakeShared;
use crate::state::HelperWork;
use crate::stats::MooncakeStats;

const NAP: Duration = Duration::from_millis(1);

/// Connects a Mooncake tier, and reads its counts and notes. A handle may outlive the tier.
#[derive(Debug, Clone)]
pub struct MooncakeHandle(pub(crate) Arc<MooncakeShared>);

impl MooncakeHandle {
    /// Begins to use the store for an identity, with the arena of the cache's slots. The tier finds nothing and takes
    /// nothing until then, and until the helper has started. `identity` is a digest of everything that the bytes
    /// depend on. A store that does not answer is no error: it is tried again.
    ///
    /// # Errors
    /// [`Error::Remote`] if the thread can't start, and on a second call; [`Error::Arena`] if the arena lacks a
    /// plane; [`Error::InvalidArgument`] for slots of another size.
    pub fn connect(&self, arena: &Arena, identity: &Identity) -> Result<()> {
        let shared = &self.0;
        let planes = Planes::of(arena, shared.ranks, shared.slot_bytes)?;
        let plane = |rank| -> Result<(String, usize)> {
            let plane = arena.plane(rank)?;
            let path = plane.path().ok_or_else(|| {
                Error::arena(
                    "mooncake: expected planes that its helper can open, found private memory",
                )
            })?;
            Ok((path.to_owned(), plane.first_slot_at()))
        };
        let paths = (0..shared.ranks).map(plane).collect::<Result<Vec<_>>>()?;
        if shared.planes.set(planes).is_err() {
            return Err(Error::remote(CONNECTED_TWICE));
        }
        let link = HelperLink::new(Arc::clone(shared), *identity, paths);
        shared.state().identity = Some(*identity);
        let thread = std::thread::Builder::new()
            .name("hybrid-pages-mooncake".into())
            .spawn(move || link.run())
            .map_err(|error| {
                let what = format!("a thread cannot start: {error}");
                Error::remote(Cause::new(what, error))
            })?;
        *lock(&shared.link) = Some(thread);
        Ok(())
    }

    /// The tier's counts at this moment.
    #[must_use]
    pub fn stats(&self) -> MooncakeStats {
        let state = self.0.state_first();
        let mut stats = self.0.ledger.counts();
        stats.out = !state.answers_now();
        stats.shared = state.identity.is_some() && !state.cleared;
        (stats.latency_us, stats.bandwidth) = state.speed.measured();
        let reads = |work: &HelperWork| match work {
            HelperWork::Get(gets) => gets.len() as u64,
            _ => 0,
        };
        let writes = |work: &HelperWork| match work {
            HelperWork::Put(puts) => puts.len() as u64,
            _ => 0,
        };
        let running = || state.running.values().map(|batch| &batch.work);
        stats.reading = state.gets.len() as u64 + running().map(reads).sum::<u64>();
        stats.writing = state.puts_waiting() as u64 + running().map(writes).sum::<u64>();
        stats
    }

    /// Takes the notes for an operator since the last call, such as a line for the first failure of each kind.
    #[must_use]
    pub fn take_notes(&self) -> Vec<String> {
        self.0.ledger.take_notes()
    }

    /// Waits until every copy and removal has ended. False if that takes longer than the limit.
    #[must_use]
    pub fn settle(&self, limit: Duration) -> bool {
        wait_until(limit, NAP, || self.0.state().is_idle())
    }

    /// Ends the copies, the threads and the helper. The cache may live on: it finds nothing here, and writes nothing.
    /// A second call does nothing.
    pub fn close(&self) {
        self.0.close();
    }
}
