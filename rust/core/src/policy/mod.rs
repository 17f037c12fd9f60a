//! Which checkpoints are made and which entries stay. A policy sees ids, sizes and times, never
//! payloads or locks.
//!
//! | name | checkpoints it admits | what goes first |
//! |---|---|---|
//! | `lru` | every boundary | what no request passed for longest, checkpoints like pages |
//! | `reuse` | as many as pay: see [`Reuse`] | least expected saving per room and time |
//!
//! Other crates [`add`] policies by name. They may be made of [`Lru`] or of [`Lists`], [`Table`] and [`ByTenant`].

mod hints;
mod leaves;
mod list;
mod lru;
mod named;
mod retain;
mod reuse;
mod seen;
mod table;
mod tenants;

pub use hints::Hints;
pub use list::Lists;
pub use lru::{Lru, Placement};
pub use named::{Make, NAMES, add, by_name, retaining};
pub use reuse::Reuse;
pub use seen::Seen;
pub use table::Table;
pub use tenants::ByTenant;

use crate::ids::{EntryId, TenantId};

/// A request as a policy sees it when it arrives.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Milliseconds on a clock that never goes back.
    pub now: u64,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Names of the boundaries of its full blocks: 64 bits of each chained prefix key.
    pub boundaries: &'a [u64],
    /// Deepest boundary, in blocks, from which it could resume: at least one token is computed.
    pub limit: usize,
    /// Boundary that it resumes from, in blocks.
    pub resumed: usize,
    /// Leading blocks whose pages are there.
    pub pages: usize,
    /// Leading blocks that an earlier request had too, whether their pages are still there or not;
    /// at least `pages`.
    pub seen: usize,
    /// Room that nothing takes, as a size.
    pub free: u64,
    /// What the application says of it.
    pub hints: Hints,
}

impl Request<'_> {
    /// Full blocks of the prompt.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.boundaries.len()
    }
}

/// The part that an entry plays for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Needed by every checkpoint at or below it.
    Page,
    /// Needed by requests that resume there, and only by them.
    Checkpoint,
    /// Of sliding-window attention: needed by checkpoints of the next blocks.
    Window,
}

/// An entry that was just made.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry {
    /// A small number, used again after the entry has left.
    pub id: EntryId,
    /// Who needs it.
    pub kind: EntryKind,
    /// The page that it can't be reached without: of the block before for a page, its own block's
    /// for the others.
    pub parent: Option<EntryId>,
    /// Boundary at its end, in blocks.
    pub depth: u32,
    /// Room that it takes: slots in a cache, pages in the lab.
    pub size: u32,
    /// Name of its boundary, as in [`Request::boundaries`].
    pub boundary: u64,
    /// Whose share it counts against.
    pub tenant: TenantId,
    /// Of an entry that an earlier process made: milliseconds since its last use, to a minute.
    pub unused: Option<u64>,
    /// Whether a later request than the one that stored it has passed its boundary, or its own asked to retain
    /// it. Followed only where a tier waits for that, and false elsewhere.
    pub proven: bool,
}

/// Admission and eviction.
///
/// The host calls [`admit`](Policy::admit) when a request arrives, [`enter`](Policy::enter) for each
/// entry that it makes, parents first, and [`release`](Policy::release) when nobody holds an entry
/// any more: deepest first, a block's checkpoint before its page. An entry is evictable from its
/// release until it is held again or leaves, so a policy never has to look past one that isn't.
/// Releasing an evictable entry again says that it was used.
pub trait Policy: Send {
    /// Adds to `admitted` the boundaries, in blocks and deeper than `resumed`, that deserve a
    /// checkpoint: none if nothing of the request is stored.
    fn admit(&mut self, request: &Request<'_>, admitted: &mut Vec<usize>);

    /// Whether a request uses every checkpoint that it passes, not only the one it resumes from.
    fn refreshes_path(&self) -> bool {
        false
    }

    /// A request ended that had these boundaries, `end` of them in its prompt, and produced so many tokens.
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

    /// A request with such hints stores or uses the entry, which is held, and all that it stands on.
    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        let _ = (id, tenant, hints);
    }

    /// Nobody holds the entry: it may be evicted. A resident one was used.
    fn release(&mut self, id: EntryId);

    /// The entry may not be evicted until its release.
    fn hold(&mut self, id: EntryId);

    /// Whether whatever a page stands on stays as long as the page does, so that holding the page holds all of it.
    fn protects(&self, page: EntryId) -> bool {
        let _ = page;
        false
    }

    /// Whether something needs an entry and so leaves before it.
    fn is_stood_on(&self, id: EntryId) -> bool {
        let _ = id;
        false
    }

    /// The entry is gone; one that the policy doesn't know is ignored.
    fn leave(&mut self, id: EntryId);

    /// The entry to go next; it stays until it leaves.
    fn victim(&mut self) -> Option<EntryId>;

    /// The entry of a tenant to go next, in the policy's order among its own as nearly as is cheap.
    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId>;

    /// What it has learned, as bytes that another policy of that name can [`recall`](Policy::recall): empty if it
    /// learns nothing, [`MOST_LEARNT`] at most. Entries and clocks are not among it.
    fn learnt(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on from what another policy has learned. False, and nothing changes, if it can make nothing of these
    /// bytes.
    fn recall(&mut self, learnt: &[u8]) -> bool {
        let _ = learnt;
        true
    }

    /// Bytes of memory held.
    fn bytes(&self) -> usize;
}

/// Most bytes of what a policy has learned.
pub const MOST_LEARNT: usize = 1 << 16;

/// Size of one entry of each kind; 0 where there is no such kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Of an attention page.
    pub page: u32,
    /// Of the window pages of one block.
    pub window: u32,
    /// Of a checkpoint.
    pub checkpoint: u32,
}
