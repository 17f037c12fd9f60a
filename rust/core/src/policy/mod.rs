//! Admission and eviction: which checkpoints are made and which entries stay. A policy sees ids, sizes and times,
//! never payloads or locks.
//!
//! | name | checkpoints it admits | what goes first |
//! |---|---|---|
//! | `lru` | every boundary | what no request passed for longest, checkpoints like pages |
//! | `reuse` | as many as pay: see [`Reuse`] | least expected saving per room and time |
//!
//! Other crates [`add`] policies by name. They may be made of [`Lru`] or of [`Lists`], [`ChunkTable`] and [`ByTenant`].

mod chunk_table;
mod hints;
mod lists;
mod lru;
mod named;
mod recency;
mod retain;
mod reuse;
mod seen;
mod tenants;

pub use chunk_table::ChunkTable;
pub use hints::Hints;
pub use lists::Lists;
pub use lru::{Lru, Placement};
pub use named::{Make, NAMES, add, by_name, retaining};
pub use reuse::Reuse;
pub use seen::Seen;
pub use tenants::ByTenant;

use crate::ids::{EntryId, TenantId};

/// A request as a policy sees it when it arrives.
#[derive(Debug, Clone, Copy)]
pub struct NewRequest<'a> {
    /// Milliseconds on a clock that never goes back.
    pub now: u64,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Names of the boundaries of the prompt's full blocks: 64 bits of each chained prefix key.
    pub boundaries: &'a [u64],
    /// Deepest boundary, in blocks, that the request could resume from: at least one token is computed.
    pub limit: usize,
    /// Boundary that the request resumes from, in blocks; 0 if it computes everything.
    pub resumed: usize,
    /// Number of leading blocks whose pages are in the cache.
    pub pages: usize,
    /// Number of leading blocks that an earlier request had too, whether their pages are still in the cache or not;
    /// at least `pages`.
    pub seen: usize,
    /// Free room, in the unit of sizes.
    pub free: u64,
    /// Hints of the application about the request.
    pub hints: Hints,
}

impl NewRequest<'_> {
    /// Number of full blocks of the prompt.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.boundaries.len()
    }
}

/// The kinds of entries that a policy tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// An attention page: needed by every checkpoint at or below it.
    Page,
    /// Recurrent states at one boundary: needed only by requests that resume there.
    Checkpoint,
    /// A page of sliding-window attention: needed by checkpoints of the next blocks.
    Window,
}

/// An entry that was just made.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry {
    /// The entry's number, which is given to another one after the entry has left.
    pub id: EntryId,
    /// The kind of the entry: who needs it.
    pub kind: EntryKind,
    /// The page without which the entry is of no use: for a page that of the block before, for the others that of their
    /// own block.
    pub parent: Option<EntryId>,
    /// Boundary at the entry's end, in blocks.
    pub depth: u32,
    /// Size of the entry: slots in a cache, pages in the lab.
    pub size: u32,
    /// Name of the boundary, as in [`NewRequest::boundaries`].
    pub boundary: u64,
    /// Tenant whose share the entry counts against.
    pub tenant: TenantId,
    /// Milliseconds since the last use, to a minute, if an earlier process made the entry; else `None`.
    pub unused: Option<u64>,
    /// Whether a later request than the one that stored the entry has passed its boundary, or that one asked to retain
    /// it. Followed only where a tier waits for that, and false elsewhere.
    pub proven: bool,
}

/// A policy of admission and eviction.
///
/// The host calls [`admit`](Policy::admit) when a request arrives, [`enter`](Policy::enter) for each
/// entry that it makes, parents first, and [`release`](Policy::release) when nobody holds an entry
/// any more: deepest first, a block's checkpoint before its page. An entry is evictable from its
/// release until it is held again or leaves, so a policy never has to look past one that isn't.
/// Releasing an evictable entry again says that it was used.
pub trait Policy: Send {
    /// Adds to `admitted` the boundaries, in blocks and deeper than `resumed`, that deserve a
    /// checkpoint: none if nothing of the request is stored.
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>);

    /// Whether a request counts as a use of every checkpoint that it passes, not only of the one it resumes from.
    fn refreshes_path(&self) -> bool {
        false
    }

    /// Learns that a request has ended: its boundaries, `end` of them in its prompt, and the tokens of its answer.
    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        let _ = (boundaries, end, output_tokens);
    }

    /// Whether an entry that is about to be made is worth more than what would have to leave for it: asked by
    /// a tier that is full and whose writes cost. A policy that is asked judges later requests for that.
    fn wants(&mut self, entry: &NewEntry) -> bool {
        let _ = entry;
        true
    }

    /// Learns of a new entry; it is held.
    fn enter(&mut self, entry: &NewEntry) {
        let _ = entry;
    }

    /// Learns that a request with these hints stores or uses an entry, which is held, and all that the entry stands on.
    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        let _ = (id, tenant, hints);
    }

    /// Learns that a request goes on from the tail of this name, which is none of its
    /// [`boundaries`](NewRequest::boundaries).
    fn go_on(&mut self, boundary: u64) {
        let _ = boundary;
    }

    /// Learns that the entry is of the tail of a conversation that has a later end by now: until it is used again, it
    /// goes first, unless it is retained.
    fn supersede(&mut self, id: EntryId) {
        let _ = id;
    }

    /// Learns the time, in milliseconds on the clock of [`NewRequest::now`], when no request arrives.
    fn pass_time(&mut self, now: u64) {
        let _ = now;
    }

    /// Learns that nobody is expected to use the entry again: until it is used, it goes first, even if it was retained.
    fn give_up(&mut self, id: EntryId) {
        self.supersede(id);
    }

    /// Learns that nobody holds the entry any more, so that it may be evicted; if it was evictable before, that it was
    /// used.
    fn release(&mut self, id: EntryId);

    /// Learns that the entry is held: it may not be evicted until its release.
    fn hold(&mut self, id: EntryId);

    /// Whether whatever a page stands on stays as long as the page does, so that holding the page holds all of it.
    fn protects(&self, page: EntryId) -> bool {
        let _ = page;
        false
    }

    /// Whether something needs the entry, and so leaves before it.
    fn is_stood_on(&self, id: EntryId) -> bool {
        let _ = id;
        false
    }

    /// Learns that the entry is gone. An entry that the policy doesn't know is ignored.
    fn leave(&mut self, id: EntryId);

    /// The entry to evict next. It stays in the policy's books until [`leave`](Policy::leave) names it.
    fn victim(&mut self) -> Option<EntryId>;

    /// The entry of a tenant to evict next, by the policy's order among the tenant's entries, as nearly as is cheap.
    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId>;

    /// The state that the policy has learned, as bytes that another policy of the same name can
    /// [`recall`](Policy::recall): empty if it learns nothing, [`MOST_LEARNT`] bytes at most. Entries and clocks are
    /// not part of it.
    fn learnt(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over what another policy has [learned](Policy::learnt). False, and nothing changes, if these bytes mean
    /// nothing to this policy.
    fn recall(&mut self, learnt: &[u8]) -> bool {
        let _ = learnt;
        true
    }

    /// Bytes of memory held.
    fn bytes(&self) -> usize;
}

/// Most bytes of a policy's [learned](Policy::learnt) state.
pub const MOST_LEARNT: usize = 1 << 16;

/// Size of one entry of each kind, in slots or in pages; 0 where there is no such kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntrySizes {
    /// Size of an attention page.
    pub page: u32,
    /// Size of the window pages of one block together.
    pub window: u32,
    /// Size of a checkpoint.
    pub checkpoint: u32,
}
