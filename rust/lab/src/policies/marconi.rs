//! Marconi (arXiv 2411.19379): checkpoints at ends and forks; recency plus efficiency.
//!
//! In the paper, an entry's utility is its recency plus alpha times its efficiency (compute saved per byte), each
//! scaled to [0, 1] over all entries. This version mends four faults of that:
//!
//! 1. *Rescans.* Scaling over all entries makes each eviction a pass over the cache. Here efficiency is
//!    a bonus of time in [`CLASSES`] steps; each step has its own list in order of use, and the victim is
//!    the least of their heads.
//! 2. *Forgetting recency.* Scaled by the extremes, one long prompt squeezes all ages to nothing. The
//!    bonus is scaled by the running mean of efficiencies and by the mean time from last use to
//!    eviction, and is capped.
//! 3. *The tuner.* Replaying past requests under a grid of alphas stops the world and can choose
//!    worse than plain recency. Alpha is fixed and small.
//! 4. *Inner nodes.* A node with two children is never evicted, so a dead fork stays for ever. Here a
//!    page ages like any other entry and never leaves before what hangs from it: an entry keeps the
//!    best score that a request gave it.

use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{
    ByTenant, ChunkTable, EntrySizes, Lists, NewEntry, NewRequest, Placement, Policy,
};

/// Weight of efficiency against recency.
const ALPHA: f64 = 0.05;
/// Number of steps of efficiency. The last step has everything from `CLASSES / 4` times the mean on.
const CLASSES: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Score {
    used: u64,
    class: u8,
    evictable: bool,
}

/// Evicts by recency and efficiency. The head of this module's source explains the differences from the paper.
#[derive(Debug)]
pub struct Marconi {
    scores: ChunkTable<Score>,
    lists: Lists,
    tenants: ByTenant,
    /// Number of uses so far, which serves as the clock of recency.
    clock: u64,
    shape: EntrySizes,
    mean_efficiency: f64,
    mean_stay: f64,
    /// The step of efficiency of the request that is being stored.
    class: u8,
}

impl Marconi {
    /// The policy of an empty cache.
    #[must_use]
    pub fn new(shape: EntrySizes) -> Self {
        Self {
            scores: ChunkTable::new(Score::default()),
            lists: Lists::new(CLASSES),
            tenants: ByTenant::new(CLASSES),
            clock: 0,
            shape,
            mean_efficiency: 0.0,
            mean_stay: 0.0,
            class: 0,
        }
    }

    /// The time of use at which an entry without efficiency would be as stale as this one.
    fn key(&self, used: u64, class: u8) -> f64 {
        used as f64 + ALPHA * 4.0 * f64::from(class) / CLASSES as f64 * self.mean_stay
    }

    fn score(&mut self, id: EntryId) -> &mut Score {
        self.scores.reach(id.0);
        &mut self.scores[id.0]
    }

    /// The stalest entry among the heads of the lists. There is one list per step of efficiency.
    fn stalest(&self, head: impl Fn(usize) -> Option<u32>) -> Option<EntryId> {
        let heads = (0..CLASSES).filter_map(|class| {
            let id = head(class)?;
            let score = self.scores[id];
            Some((self.key(score.used, score.class), id))
        });
        heads
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, id)| EntryId(id))
    }
}

impl Policy for Marconi {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        let saved = (request.blocks() - request.resumed.min(request.blocks())) as f64;
        let EntrySizes {
            page, checkpoint, ..
        } = self.shape;
        let room = saved * f64::from(page) + f64::from(checkpoint);
        let efficiency = saved / room.max(1.0);
        self.mean_efficiency += 0.01 * (efficiency - self.mean_efficiency);
        let steps = efficiency / self.mean_efficiency.max(1e-9) * CLASSES as f64 / 4.0;
        self.class = (steps as usize).min(CLASSES - 1) as u8;
        Placement::Fork.admit(request, admitted);
    }

    fn enter(&mut self, entry: &NewEntry) {
        *self.score(entry.id) = Score::default();
        self.tenants.enter(entry);
    }

    fn release(&mut self, id: EntryId) {
        self.clock += 1;
        let (clock, class) = (self.clock, self.class);
        let old = *self.score(id);
        if self.key(old.used, old.class) <= self.key(clock, class) {
            *self.score(id) = Score {
                used: clock,
                class,
                evictable: true,
            };
        } else if old.evictable {
            return;
        }
        let score = self.score(id);
        score.evictable = true;
        let list = score.class.into();
        self.lists.push(list, id.0);
        self.tenants.put(id, list);
    }

    fn hold(&mut self, id: EntryId) {
        self.score(id).evictable = false;
        self.lists.remove(id.0);
        self.tenants.take(id);
    }

    fn leave(&mut self, id: EntryId) {
        let stayed = (self.clock - self.score(id).used.min(self.clock)) as f64;
        self.mean_stay += 0.001 * (stayed - self.mean_stay);
        *self.score(id) = Score::default();
        self.lists.remove(id.0);
        self.tenants.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.stalest(|class| self.lists.first(class))
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.stalest(|class| self.tenants.first(tenant, class).map(|id| id.0))
    }

    fn bytes(&self) -> usize {
        self.scores.bytes() + self.lists.bytes() + self.tenants.bytes()
    }
}
