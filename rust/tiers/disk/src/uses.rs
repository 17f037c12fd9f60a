//! Uses of entries and the policy's knowledge, both of which the next process takes over.
//!
//! The cache reports every use to the tier's policy, by id and without a time. [`Noting`] wraps that policy: it notes
//! the uses by name, and tells the policy the age of entries of earlier processes. An entry enters the room
//! right after [`find`](hybrid_pages::tier::Below::find) and right before
//! [`write`](hybrid_pages::tier::Below::write), so these calls tell which name belongs to an id.

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::book::minute;
use crate::door::Door;
use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{Hints, NewEntry, NewRequest, Policy};
use hybrid_pages::rows::Rows;
use hybrid_pages_tiers::{Name, PriorityGuard, PriorityMutex, lock};

/// An entry that is in the room.
#[derive(Debug, Clone)]
struct Used {
    name: Name,
    /// The page before this entry, which is used whenever the entry is.
    page: Option<EntryId>,
    /// The minute of the last use.
    minute: u64,
}

/// The names of entries in the room, and their latest uses.
#[derive(Debug)]
pub(crate) struct Uses {
    /// The clock.
    door: Arc<dyn Door>,
    /// By the number of the entry.
    names: Rows<Option<Used>>,
    /// The entry that was found last, and the milliseconds since its last use if an earlier process left it.
    found: Option<(Name, Option<u64>)>,
    entered: Option<(EntryId, Option<EntryId>)>,
    /// Entries used since the last [`take`](Self::take). An entry is noted once a minute at most.
    used: Rows<Name>,
}

impl Uses {
    pub(crate) fn new(door: Arc<dyn Door>) -> Self {
        Self {
            door,
            names: Rows::default(),
            found: None,
            entered: None,
            used: Rows::default(),
        }
    }

    /// Notes that an entry was found. If an entry enters next, it is this one.
    pub(crate) fn found(&mut self, name: Name, unused: Option<u64>) {
        self.found = Some((name, unused));
    }

    /// Notes that the entry that entered last is written under this name.
    pub(crate) fn writes(&mut self, name: Name) {
        self.found = None;
        if let Some((id, page)) = self.entered.take() {
            self.name(id, page, name);
        }
    }

    /// Takes the names of the entries that were used since the last call.
    pub(crate) fn take(&mut self) -> Rows<Name> {
        std::mem::take(&mut self.used)
    }

    /// Notes that an entry enters the room. Returns the milliseconds since its last use, if an earlier process left
    /// it.
    fn enter(&mut self, id: EntryId, page: Option<EntryId>) -> Option<u64> {
        self.entered = Some((id, page));
        let Some((name, unused)) = self.found.take() else {
            self.leave(id);
            return None;
        };
        self.name(id, page, name);
        unused
    }

    fn name(&mut self, id: EntryId, page: Option<EntryId>, name: Name) {
        let minute = minute(&*self.door);
        let at = id.0 as usize;
        self.names.grow(at + 1, &None);
        self.names[at] = Some(Used { name, page, minute });
    }

    fn leave(&mut self, id: EntryId) {
        if let Some(used) = self.names.get_mut(id.0 as usize) {
            *used = None;
        }
    }

    /// Notes a use of an entry and of the pages before it, up to one that was used in this minute. The cache reports
    /// only the last page of a prefix.
    fn touch(&mut self, id: EntryId) {
        let now = minute(&*self.door);
        let mut next = Some(id);
        while let Some(Some(used)) = next.and_then(|id| self.names.get_mut(id.0 as usize))
            && used.minute < now
        {
            used.minute = now;
            self.used.push(used.name);
            next = used.page;
        }
    }

    fn bytes(&self) -> usize {
        self.names.bytes() + self.used.bytes()
    }
}

/// The tier's policy, for the threads that save and restore its knowledge.
#[derive(Clone)]
pub(crate) struct Learner(Arc<PriorityMutex<Box<dyn Policy>>>);

impl Learner {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        Self(Arc::new(PriorityMutex::new(policy)))
    }

    /// The policy's knowledge, encoded in bytes.
    pub(crate) fn learnt(&self) -> Vec<u8> {
        if self.0.is_poisoned() {
            return Vec::new();
        }
        lock(&self.0).learnt()
    }

    /// Restores the knowledge of an earlier process. False if that is not possible.
    pub(crate) fn recall(&self, learnt: &[u8]) -> bool {
        lock(&self.0).recall(learnt)
    }
}

impl Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Learner")
    }
}

/// Milliseconds that are added to the policy's clock, so that it can express uses by earlier processes.
const BEFORE: u64 = 1 << 40;

/// The tier's policy for the cache. It also notes uses.
pub(crate) struct Noting {
    policy: Learner,
    refreshes_path: bool,
    uses: Arc<PriorityMutex<Uses>>,
}

impl Noting {
    pub(crate) fn new(policy: Learner, uses: Arc<PriorityMutex<Uses>>) -> Self {
        let refreshes_path = lock(&policy.0).refreshes_path();
        Self {
            policy,
            refreshes_path,
            uses,
        }
    }

    fn policy(&self) -> PriorityGuard<'_, Box<dyn Policy>> {
        lock(&self.policy.0)
    }
}

impl Policy for Noting {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        let now = request.now.saturating_add(BEFORE);
        self.policy()
            .admit(&NewRequest { now, ..*request }, admitted);
    }

    fn refreshes_path(&self) -> bool {
        self.refreshes_path
    }

    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        self.policy().finish(boundaries, end, output_tokens);
    }

    fn enter(&mut self, entry: &NewEntry) {
        let unused = lock(&self.uses).enter(entry.id, entry.parent);
        self.policy().enter(&NewEntry { unused, ..*entry });
    }

    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        self.policy().keep(id, tenant, hints);
    }

    fn go_on(&mut self, boundary: u64) {
        self.policy().go_on(boundary);
    }

    fn supersede(&mut self, id: EntryId) {
        self.policy().supersede(id);
    }

    fn pass_time(&mut self, now: u64) {
        self.policy().pass_time(now.saturating_add(BEFORE));
    }

    fn give_up(&mut self, id: EntryId) {
        self.policy().give_up(id);
    }

    fn release(&mut self, id: EntryId) {
        lock(&self.uses).touch(id);
        self.policy().release(id);
    }

    fn hold(&mut self, id: EntryId) {
        self.policy().hold(id);
    }

    fn protects(&self, page: EntryId) -> bool {
        self.policy().protects(page)
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.policy().is_stood_on(id)
    }

    fn wants(&mut self, entry: &NewEntry) -> bool {
        self.policy().wants(entry)
    }

    fn leave(&mut self, id: EntryId) {
        lock(&self.uses).leave(id);
        self.policy().leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.policy().victim()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.policy().victim_of(tenant)
    }

    fn learnt(&self) -> Vec<u8> {
        self.policy.learnt()
    }

    fn recall(&mut self, learnt: &[u8]) -> bool {
        self.policy.recall(learnt)
    }

    fn bytes(&self) -> usize {
        self.policy().bytes() + lock(&self.uses).bytes()
    }
}
