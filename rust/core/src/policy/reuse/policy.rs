//! The policy `reuse` as the cache calls it.

use super::order::{SURPLUS, WAITING};
use super::origin::{CheckpointKind, Origin};
use super::record::NONE;
use super::selection::Selection;
use super::state::Reuse;
use crate::ids::{EntryId, TenantId};
use crate::policy::{EntryKind, Hints, NewEntry, NewRequest, Policy};

impl Reuse {
    /// Wakes or makes the record of a checkpoint that has just entered.
    fn wake(&mut self, entry: &NewEntry) -> u32 {
        let known = self.records.find(entry.boundary);
        let at = known.filter(|&at| !self.records[at].is_resident());
        let at = at.unwrap_or_else(|| {
            let at = self.records.add(entry.boundary, entry.depth);
            match entry.unused {
                None => self.begin(at, CheckpointKind::End, Origin::UNKNOWN),
                Some(age) => self.resume(at, age),
            }
            at
        });
        self.disinherit(at);
        let record = &mut self.records[at];
        record.density = 0.0;
        record.inherited = 0.0;
        record.source = NONE;
        record.superseded = false;
        self.records.wake(at, entry.id.0);
        self.watch(at);
        at
    }

    /// Forgets the oldest ghosts beyond their number.
    fn forget_excess(&mut self) {
        while let Some(at) = self.records.excess() {
            self.forget(at);
        }
    }

    /// Forgets a ghost. Its heir inherits nothing from it any more.
    pub(super) fn forget(&mut self, at: u32) {
        self.disinherit(at);
        self.records.forget(at);
    }
}

impl Policy for Reuse {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.now = self.now.max(request.now);
        self.requests += 1;
        self.grow_older();
        self.choose(request, admitted);
        self.select(request);
        self.forget_excess();
    }

    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        if let Some(&last) = boundaries[..end].last() {
            self.end(last, output_tokens);
        }
        self.unneeded.give_up(boundaries, &mut self.tenants);
    }

    fn wants(&mut self, entry: &NewEntry) -> bool {
        self.selection.get_or_insert_default().wants(entry)
    }

    fn enter(&mut self, entry: &NewEntry) {
        let record = (entry.kind == EntryKind::Checkpoint).then(|| self.wake(entry));
        let Self {
            tree,
            unneeded,
            tenants,
            ..
        } = self;
        tenants.enter(entry);
        tree.add(entry, record, |page| {
            unneeded.remove(page, tenants);
        });
    }

    fn keep(&mut self, id: EntryId, _: TenantId, hints: &Hints) {
        let node = self.tree.get(id);
        if node.kind == EntryKind::Checkpoint {
            let at = node.record();
            self.records[at].priority = hints.priority;
            self.place(at);
        }
    }

    fn go_on(&mut self, boundary: u64) {
        self.continue_at(boundary);
    }

    fn supersede(&mut self, id: EntryId) {
        let node = self.tree.get(id);
        if node.kind == EntryKind::Checkpoint && self.tree.known(id) {
            self.give_way(node.record());
        }
    }

    fn release(&mut self, id: EntryId) {
        self.tree.hold(id, false);
        let node = *self.tree.get(id);
        match node.kind {
            // A window page leaves with its page.
            EntryKind::Window => {}
            EntryKind::Checkpoint if self.order.has(node.record()) => {}
            EntryKind::Checkpoint => self.offer(node.record()),
            EntryKind::Page if node.is_needed() => {}
            EntryKind::Page => {
                let Self {
                    unneeded, tenants, ..
                } = self;
                unneeded.wait(id, node.boundary(), self.requests, tenants);
            }
        }
    }

    fn hold(&mut self, id: EntryId) {
        self.tree.hold(id, true);
        let node = self.tree.get(id);
        match node.kind {
            EntryKind::Window => {}
            EntryKind::Checkpoint => {
                self.order.take(node.record());
                self.tenants.take(id);
            }
            EntryKind::Page if node.is_needed() => {}
            EntryKind::Page => self.unneeded.remove(id, &mut self.tenants),
        }
    }

    fn protects(&self, page: EntryId) -> bool {
        self.tree.get(page).needs_parent()
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.tree.is_stood_on(id)
    }

    fn leave(&mut self, id: EntryId) {
        if !self.tree.known(id) {
            return;
        }
        self.unneeded.remove(id, &mut self.tenants);
        let node = *self.tree.get(id);
        let gone = (node.kind == EntryKind::Checkpoint).then(|| {
            let at = node.record();
            self.order.take(at);
            (at, self.passed(at))
        });
        let mut goes_on =
            gone.is_some_and(|(at, _)| self.records.past[at].awaits_more(self.requests));
        let Self {
            tree,
            unneeded,
            tenants,
            requests,
            ..
        } = self;
        let above = tree.remove(id, |page| {
            if std::mem::take(&mut goes_on) {
                unneeded.wait(page, node.boundary(), *requests, tenants);
                return false;
            }
            unneeded.leave(page, tenants);
            true
        });
        tenants.leave(id);
        let Some((at, passed)) = gone else { return };
        let heir = above.or(passed).unwrap_or(NONE);
        self.records.sleep(at);
        if self.records[at].superseded {
            self.records[at].index = 0.0;
        }
        let record = &mut self.records[at];
        record.heir = heir;
        record.inherited = 0.0;
        let source = std::mem::replace(&mut record.source, NONE);
        if heir != NONE {
            self.score(heir);
        }
        self.bequeath(at);
        if source != NONE {
            self.records[source].heir = heir;
            self.bequeath(source);
        }
        self.forget_excess();
    }

    fn victim(&mut self) -> Option<EntryId> {
        if let Some(page) = self.unneeded.surplus(self.requests) {
            return Some(page);
        }
        match self.least() {
            Some(at) => Some(EntryId(self.records[at].entry)),
            None => self.unneeded.oldest(),
        }
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        let waits = self.tenants.first(tenant, WAITING);
        if let Some(page) = waits.filter(|&page| self.unneeded.is_late(page, self.requests)) {
            let surplus = self.tenants.first(tenant, SURPLUS);
            return Some(surplus.unwrap_or(page));
        }
        self.least_of(tenant)
    }

    fn learnt(&self) -> Vec<u8> {
        self.encode()
    }

    fn recall(&mut self, learnt: &[u8]) -> bool {
        self.decode(learnt).is_some()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.hazards.bytes()
            + self.records.bytes()
            + self.tree.bytes()
            + self.order.bytes()
            + self.unneeded.bytes()
            + self.tenants.bytes()
            + self.sessions.bytes()
            + self.known.capacity() * size_of::<(usize, u32)>()
            + self.selection.as_ref().map_or(0, Selection::bytes)
    }
}
