//! Entries that are proven: a later request than the one that stored them has passed their boundary.
//!
//! What nothing follows is never used again, and most prompts are of that kind. A tier whose writes cost may wait
//! for the proof; it is offered an entry again when that comes.

use super::asked::PORTION;
use super::copies::Held;
use super::state::State;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::policy::Seen;
use crate::slot::{HOST, Places};

/// Boundaries that two requests had in common, and the tiers that want to know.
#[derive(Debug)]
pub(super) struct Proven {
    boundaries: Seen,
    tiers: Places,
}

/// Blocks that are proven, and not yet offered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unoffered {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Proven {
    /// Nothing, if no tier waits for proof. `room`: boundaries that are remembered.
    pub(super) fn new(tiers: Places, room: usize) -> Option<Self> {
        (!tiers.is_empty()).then(|| Self {
            boundaries: Seen::new(room),
            tiers,
        })
    }

    pub(super) fn clear(&mut self) {
        self.boundaries.clear();
    }

    pub(super) fn bytes(&self) -> usize {
        self.boundaries.bytes()
    }
}

impl State {
    /// Whether a boundary is proven, as far as anybody asks.
    pub(super) fn is_proven(&self, boundary: u64) -> bool {
        let proven = self.proven.as_ref();
        proven.is_some_and(|proven| proven.boundaries.look(&[boundary]) == 1)
    }

    /// Takes boundaries as proven whose request asks to retain them.
    pub(super) fn vouch(&mut self, names: impl FnOnce() -> Vec<u64>) {
        if let Some(proven) = &mut self.proven {
            proven.boundaries.visit(&names());
        }
    }

    /// A request passes boundaries of an earlier one, under these names: what the host has of them is offered
    /// to the tiers that wait for that and lack it, a portion now and more with [`prove_on`](Self::prove_on).
    pub(super) fn prove(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        names: &[u64],
    ) -> Option<Unoffered> {
        self.proven.as_mut()?.boundaries.visit(names);
        self.prove_on(namespace, &keys[..names.len()], 0)
    }

    /// Offers a portion of what is proven, from a block on. Returns what is left of it.
    pub(super) fn prove_on(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        from: usize,
    ) -> Option<Unoffered> {
        let tiers = self.proven.as_ref()?.tiers;
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        let attention = self.index.roles().attention;
        let before = from.checked_sub(1);
        let mut node = before.and_then(|block| self.index.at(namespace, keys, block));
        let mut held: Vec<EntryId> = Vec::new();
        let (mut block, mut first) = (from, None);
        // Where a policy protects no prefix, each portion would hold all that comes before it.
        while block < keys.len()
            && (block - from < PORTION || first.is_some_and(|page| !self.protects(HOST, page)))
        {
            let parent = node.filter(|_| attention.is_some());
            let here = self.index.child(parent, block, namespace, &keys[block]);
            let cell = |class| here.map(|node| self.index.cell(node, class));
            let whole = |class| cell(class).filter(|cell| cell.is_in_host());
            if attention.is_some_and(|page| whole(page).is_none()) {
                break;
            }
            held.extend(classes.iter().filter_map(|&class| whole(class)?.entry()));
            first = first.or(held.first().copied().filter(|_| attention.is_some()));
            node = here;
            block += 1;
        }
        // The deepest first, a block's page last.
        held.reverse();
        let lacks = |&id: &EntryId| {
            let entry = self.entries.get(id);
            !tiers.without(entry.members.with(entry.copying)).is_empty()
        };
        if held.iter().any(lacks) {
            let mut held = Held {
                entries: held,
                tip: None,
            };
            if let Some(page) = first.filter(|_| from > 0) {
                if self.protects(HOST, page) {
                    held.tip = Some(self.tip_at(page, from));
                } else {
                    let above =
                        std::iter::successors(self.support(page), |&page| self.support(page));
                    held.entries.extend(above);
                }
            }
            self.tips.hold(held.tip);
            self.hold(&held.entries);
            self.offer_all(held, tiers);
        }
        let more = block - from >= PORTION && block < keys.len();
        more.then_some(Unoffered {
            from: block,
            to: keys.len(),
        })
    }
}
