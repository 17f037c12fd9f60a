//! When entries are used, for the next process: it has no policy that remembers.
//!
//! The cache tells the tier's policy of every use, by id, and knows nothing of clocks. A policy around it notes
//! the uses by name. An entry enters the room right after its [`find`](crate::tier::Below::find) and right
//! before its [`write`](crate::tier::Below::write): that is how its id gets its name.

use std::sync::{Arc, Mutex};

use hashbrown::HashMap;

use super::book::minute;
use super::door::Door;
use super::format::Name;
use super::lock;
use crate::ids::{EntryId, TenantId};
use crate::policy::{Hints, NewEntry, Policy, Request};

/// Uses of entries.
#[derive(Debug)]
pub(super) struct Uses {
    /// For the time.
    door: Arc<dyn Door>,
    /// Each with the minute of its last use.
    names: HashMap<EntryId, (Name, u64)>,
    found: Option<Name>,
    entered: Option<EntryId>,
    /// Used since they were last taken: of each, the first use of a minute.
    used: Vec<Name>,
}

impl Uses {
    pub(super) fn new(door: Arc<dyn Door>) -> Self {
        Self {
            door,
            names: HashMap::new(),
            found: None,
            entered: None,
            used: Vec::new(),
        }
    }

    /// An entry was found: if one enters next, it is this one.
    pub(super) fn found(&mut self, name: Name) {
        self.found = Some(name);
    }

    /// The entry that entered last is written.
    pub(super) fn writes(&mut self, name: Name) {
        self.found = None;
        if let Some(id) = self.entered.take() {
            self.names.insert(id, (name, minute(&*self.door)));
        }
    }

    /// What was used since the last call.
    pub(super) fn take(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.used)
    }

    fn enter(&mut self, id: EntryId) {
        self.entered = Some(id);
        match self.found.take() {
            Some(name) => self.names.insert(id, (name, minute(&*self.door))),
            None => self.names.remove(&id),
        };
    }

    fn touch(&mut self, id: EntryId) {
        let now = minute(&*self.door);
        if let Some((name, used)) = self.names.get_mut(&id)
            && *used < now
        {
            *used = now;
            self.used.push(*name);
        }
    }

    fn bytes(&self) -> usize {
        self.names.allocation_size() + self.used.capacity() * size_of::<Name>()
    }
}

/// A policy whose uses are noted.
pub(super) struct Noting {
    policy: Box<dyn Policy>,
    uses: Arc<Mutex<Uses>>,
}

impl Noting {
    pub(super) fn new(policy: Box<dyn Policy>, uses: Arc<Mutex<Uses>>) -> Self {
        Self { policy, uses }
    }
}

impl Policy for Noting {
    fn admit(&mut self, request: &Request<'_>, admitted: &mut Vec<usize>) {
        self.policy.admit(request, admitted);
    }

    fn refreshes_path(&self) -> bool {
        self.policy.refreshes_path()
    }

    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        self.policy.finish(boundaries, end, output_tokens);
    }

    fn enter(&mut self, entry: &NewEntry) {
        lock(&self.uses).enter(entry.id);
        self.policy.enter(entry);
    }

    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        self.policy.keep(id, tenant, hints);
    }

    fn release(&mut self, id: EntryId) {
        lock(&self.uses).touch(id);
        self.policy.release(id);
    }

    fn hold(&mut self, id: EntryId) {
        self.policy.hold(id);
    }

    fn wants(&mut self, entry: &NewEntry) -> bool {
        self.policy.wants(entry)
    }

    fn leave(&mut self, id: EntryId) {
        lock(&self.uses).names.remove(&id);
        self.policy.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.policy.victim()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.policy.victim_of(tenant)
    }

    fn bytes(&self) -> usize {
        self.policy.bytes() + lock(&self.uses).bytes()
    }
}
