//! The data of the policy `reuse`.

use super::hazard::Hazards;
use super::order::{Order, RANKS};
use super::record::CheckpointRecords;
use super::selection::Selection;
use super::sessions::Sessions;
use super::tree::Tree;
use super::unneeded::UnneededPages;
use crate::policy::EntrySizes;
use crate::policy::tenants::ByTenant;

/// The policy `reuse`. Hazards of reuse are learned by kind of checkpoint and age, and each checkpoint is weighed with
/// the pages that only it needs.
///
/// - *Pages*: a page is evicted as soon as no checkpoint at or below it is left.
/// - *Admission*: the end of a prompt, the fork and the boundary before the end get checkpoints. Boundaries further
///   before the end get one if their learned worth is at least the mean worth of evicted checkpoints: all of them
///   as long as nothing was evicted.
/// - *Eviction*: the checkpoint of least worth goes first: its Gittins index x (blocks from the nearest checkpoint
///   above) / (the size of the checkpoint and of the pages that only it needs).
/// - *Inheritance*: requests that would have resumed at an evicted checkpoint now resume at the nearest one above, its
///   heir. While the evicted one is remembered, the heir counts with the larger index of the two.
/// - *Sessions*: where applications name them, the hazards of first turns, of next turns and of ends that a session
///   has left behind are learned apart.
pub struct Reuse {
    pub(super) shape: EntrySizes,
    pub(super) hazards: Hazards,
    pub(super) records: CheckpointRecords,
    pub(super) tree: Tree,
    /// Evictable checkpoints, by worth.
    pub(super) order: Order,
    /// Evictable pages that no checkpoint needs.
    pub(super) unneeded: UnneededPages,
    /// Evictable checkpoints and pages of tenants, by tenant.
    pub(super) tenants: ByTenant,
    pub(super) sessions: Sessions,
    pub(super) now: u64,
    pub(super) requests: u64,
    /// Threshold: the running mean of the worth of evicted checkpoints, which a further one must reach.
    pub(super) threshold: f32,
    /// Depths and records of the checkpoints that the request at hand passes.
    pub(super) known: Vec<(usize, u32)>,
    /// The boundaries that are not worth writing to a full tier; made when [`Policy::wants`] is first called.
    pub(super) selection: Option<Selection>,
}

impl Reuse {
    /// The policy of an empty cache.
    #[must_use]
    pub fn new(shape: EntrySizes) -> Self {
        Self {
            shape,
            hazards: Hazards::new(),
            records: CheckpointRecords::new(),
            tree: Tree::new(),
            order: Order::new(),
            unneeded: UnneededPages::new(),
            tenants: ByTenant::new(RANKS),
            sessions: Sessions::default(),
            now: 0,
            requests: 0,
            threshold: 0.0,
            known: Vec::new(),
            selection: None,
        }
    }
}
