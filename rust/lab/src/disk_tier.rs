//! The disk below the host of a replay. It is written when entries are published, has a policy of its own, and never
//! exceeds its budget.

use hybrid_pages::ids::EntryId;
use hybrid_pages::policy::{EntryKind, NewRequest};

use crate::counted_tier::{BlockEntries, CountedTier, NONE};

pub(crate) struct DiskTier<'a> {
    pub(crate) tier: CountedTier<'a>,
    /// Boundaries that the disk's policy admits. They are ignored, since the host's policy decides.
    admitted: Vec<usize>,
}

impl<'a> DiskTier<'a> {
    pub(crate) const fn new(tier: CountedTier<'a>) -> Self {
        Self {
            tier,
            admitted: Vec::new(),
        }
    }

    /// Tells the disk's policy of a request.
    pub(crate) fn hear(&mut self, request: &NewRequest<'_>) {
        let free = self.tier.free();
        self.admitted.clear();
        self.tier
            .policy
            .admit(&NewRequest { free, ..*request }, &mut self.admitted);
    }

    /// Offers the host's entries of a path: pages, the checkpoint that was resumed from, and new checkpoints. Entries
    /// that the disk has are held meanwhile, and count as used.
    pub(crate) fn write_behind(
        &mut self,
        path: &[u32],
        resumed: usize,
        new: &[usize],
        host: &CountedTier<'_>,
    ) {
        let used = |depth: usize| depth == resumed || new.contains(&depth);
        for (depth, &at) in (1..).zip(path) {
            let BlockEntries { page, checkpoint } = self.tier.cell(at);
            if page != NONE {
                self.tier.policy.hold(EntryId(page));
            }
            if checkpoint != NONE && used(depth) {
                self.tier.policy.hold(EntryId(checkpoint));
            }
        }
        for (depth, &at) in (1..).zip(path) {
            if !self.tier.has_page(at) && !self.offer(at, EntryKind::Page) {
                break;
            }
            if used(depth) && host.has_checkpoint(at) && !self.tier.has_checkpoint(at) {
                self.offer(at, EntryKind::Checkpoint);
            }
        }
        for (block, &at) in path.iter().enumerate().rev() {
            let BlockEntries { page, checkpoint } = self.tier.cell(at);
            if checkpoint != NONE && used(block + 1) {
                self.tier.policy.release(EntryId(checkpoint));
            }
            if page != NONE {
                self.tier.policy.release(EntryId(page));
            }
        }
    }

    /// Writes an entry if the policy wants it and room can be made. Returns whether it was written.
    fn offer(&mut self, at: u32, kind: EntryKind) -> bool {
        let size = u64::from(self.tier.size(kind));
        if self.tier.free() < size {
            let new = self.tier.as_new(EntryId(NONE), at, kind);
            let Some(most) = self.tier.budget.checked_sub(size) else {
                return false;
            };
            if !self.tier.policy.wants(&new) || !self.tier.shrink(most) {
                return false;
            }
        }
        self.tier.enter(at, kind);
        true
    }
}
