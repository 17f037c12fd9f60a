//! The disk of the lab: written at publication, with a policy of its own, within its budget at every moment.

use hybrid_pages::ids::EntryId;
use hybrid_pages::policy::{EntryKind, NewRequest};

use crate::level::{Cell, Level, NONE};

pub(crate) struct Disk<'a> {
    pub(crate) level: Level<'a>,
    /// What the policy would have made: the host's says what is.
    admitted: Vec<usize>,
}

impl<'a> Disk<'a> {
    pub(crate) const fn new(level: Level<'a>) -> Self {
        Self {
            level,
            admitted: Vec::new(),
        }
    }

    /// The policy learns of a request.
    pub(crate) fn hear(&mut self, request: &NewRequest<'_>) {
        let free = self.level.free();
        self.admitted.clear();
        self.level
            .policy
            .admit(&NewRequest { free, ..*request }, &mut self.admitted);
    }

    /// Offers a path that the host has: its pages, the checkpoint that was resumed from and the new ones. What
    /// is here of it stays meanwhile, and counts as used then.
    pub(crate) fn write_behind(
        &mut self,
        path: &[u32],
        resumed: usize,
        new: &[usize],
        host: &Level<'_>,
    ) {
        let used = |depth: usize| depth == resumed || new.contains(&depth);
        for (depth, &at) in (1..).zip(path) {
            let Cell { page, checkpoint } = self.level.cell(at);
            if page != NONE {
                self.level.policy.hold(EntryId(page));
            }
            if checkpoint != NONE && used(depth) {
                self.level.policy.hold(EntryId(checkpoint));
            }
        }
        for (depth, &at) in (1..).zip(path) {
            if !self.level.has_page(at) && !self.offer(at, EntryKind::Page) {
                break;
            }
            if used(depth) && host.has_checkpoint(at) && !self.level.has_checkpoint(at) {
                self.offer(at, EntryKind::Checkpoint);
            }
        }
        for (block, &at) in path.iter().enumerate().rev() {
            let Cell { page, checkpoint } = self.level.cell(at);
            if checkpoint != NONE && used(block + 1) {
                self.level.policy.release(EntryId(checkpoint));
            }
            if page != NONE {
                self.level.policy.release(EntryId(page));
            }
        }
    }

    /// Writes an entry if it is wanted and room can be made.
    fn offer(&mut self, at: u32, kind: EntryKind) -> bool {
        let size = u64::from(self.level.size(kind));
        if self.level.free() < size {
            let new = self.level.as_new(EntryId(NONE), at, kind);
            let Some(most) = self.level.budget.checked_sub(size) else {
                return false;
            };
            if !self.level.policy.wants(&new) || !self.level.shrink(most) {
                return false;
            }
        }
        self.level.enter(at, kind);
        true
    }
}
