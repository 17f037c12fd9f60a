//! A wrapper around any policy that keeps entries which requests asked to retain.
//!
//! For the policy within, a retained entry is held until its time is over. So it leaves after everything
//! that is not retained, and the retained leave by priority, then by remaining time: a cache never waits
//! for them. What stands on an entry never stays longer than the entry: a request retains all that its
//! deepest entry stands on, and of several requests the longest time and the highest priority count.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::{Hints, NewEntry, NewRequest, Policy};
use crate::ids::{EntryId, TenantId};
use crate::rows::Rows;

/// The most entries whose time is over that one request frees: after an idle hour there may be very many.
const EXPIRIES: usize = 4096;

/// The facts about a retained entry.
#[derive(Debug, Clone, Copy)]
struct Retained {
    until: u64,
    priority: i8,
    tenant: TenantId,
    /// Number of its last release, counted from 1, while the entry is in the orders; otherwise 0.
    turn: u64,
}

/// Whose an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The policy's.
    Other,
    /// Retained, and nobody holds it.
    Free,
    /// Retained and held. It stays in the orders until it is met there.
    Held,
}

/// The order in which retained entries leave: by priority, time left, number of release, and id.
type Rank = (i8, u64, u64, u32);

impl Retained {
    const fn rank(&self, id: EntryId) -> Rank {
        (self.priority, self.until, self.turn, id.0)
    }
}

/// A policy, and the entries that it does not give up before their time is over.
pub(super) struct Retaining<P> {
    policy: P,
    now: u64,
    releases: u64,
    kept: HashMap<EntryId, Retained>,
    /// By the number of the entry: a request holds very many at once.
    marks: Rows<Mark>,
    /// Retained entries that nobody holds, and some that are held, in the order in which they leave.
    order: BTreeSet<Rank>,
    /// Those of tenants, by tenant.
    of_tenants: BTreeSet<(TenantId, Rank)>,
    /// All of them by the end of their time.
    ends: BTreeSet<(u64, u64, EntryId)>,
}

impl<P: Policy> Retaining<P> {
    pub(super) fn new(policy: P) -> Self {
        Self {
            policy,
            now: 0,
            releases: 0,
            kept: HashMap::new(),
            marks: Rows::default(),
            order: BTreeSet::new(),
            of_tenants: BTreeSet::new(),
            ends: BTreeSet::new(),
        }
    }

    fn mark(&mut self, id: EntryId, mark: Mark) {
        let at = id.0 as usize;
        self.marks.grow(at + 1, &Mark::Other);
        self.marks[at] = mark;
    }

    fn is_held(&self, id: EntryId) -> bool {
        self.marks.get(id.0 as usize) == Some(&Mark::Held)
    }

    /// Retains an entry no longer. Returns what was known about it.
    fn forget(&mut self, id: EntryId) -> Option<Retained> {
        let kept = self.kept.remove(&id)?;
        self.unlist(id, &kept);
        self.mark(id, Mark::Other);
        Some(kept)
    }

    /// The first entry of an order that nobody holds. Those before it leave the orders.
    fn first_free(&mut self, first: impl Fn(&Self) -> Option<EntryId>) -> Option<EntryId> {
        loop {
            let id = first(self)?;
            if !self.unlist_held(id) {
                return Some(id);
            }
        }
    }

    /// Takes an entry out of the orders, if somebody holds it. Returns whether somebody does.
    fn unlist_held(&mut self, id: EntryId) -> bool {
        if !self.is_held(id) {
            return false;
        }
        if let Some(kept) = self.kept.get_mut(&id) {
            let listed = std::mem::replace(kept, Retained { turn: 0, ..*kept });
            self.unlist(id, &listed);
        }
        true
    }

    /// Takes an entry out of the orders, if it is there.
    fn unlist(&mut self, id: EntryId, kept: &Retained) {
        if kept.turn > 0 {
            self.order.remove(&kept.rank(id));
            self.of_tenants.remove(&(kept.tenant, kept.rank(id)));
            self.ends.remove(&(kept.until, kept.turn, id));
        }
    }

    /// Releases to the policy the entries that nobody holds and whose time is over, in the order of releases. Entries
    /// that are left for the next request stay retained until then.
    fn expire(&mut self) {
        for _ in 0..EXPIRIES {
            let Some(&(until, _, id)) = self.ends.first() else {
                return;
            };
            if until > self.now {
                return;
            }
            if self.unlist_held(id) {
                continue;
            }
            self.forget(id);
            self.policy.release(id);
        }
    }

    #[cold]
    fn release_kept(&mut self, id: EntryId, kept: Retained) {
        if kept.until <= self.now {
            self.forget(id);
            self.policy.release(id);
            return;
        }
        self.unlist(id, &kept);
        self.releases += 1;
        let turn = self.releases;
        let kept = Retained { turn, ..kept };
        self.mark(id, Mark::Free);
        self.kept.insert(id, kept);
        self.order.insert(kept.rank(id));
        if kept.tenant != TenantId::NONE {
            self.of_tenants.insert((kept.tenant, kept.rank(id)));
        }
        self.ends.insert((kept.until, turn, id));
    }
}

impl<P: Policy> Policy for Retaining<P> {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.now = self.now.max(request.now);
        self.expire();
        self.policy.admit(request, admitted);
    }

    fn refreshes_path(&self) -> bool {
        self.policy.refreshes_path()
    }

    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        self.policy.finish(boundaries, end, output_tokens);
    }

    fn wants(&mut self, entry: &NewEntry) -> bool {
        self.policy.wants(entry)
    }

    fn enter(&mut self, entry: &NewEntry) {
        self.policy.enter(entry);
    }

    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        self.policy.keep(id, tenant, hints);
        if hints.retain == 0 {
            return;
        }
        let until = self
            .now
            .saturating_add(hints.retain.min(Hints::MOST_RETAIN));
        if !self.unlist_held(id) && !self.kept.contains_key(&id) {
            self.mark(id, Mark::Held);
        }
        let kept = self.kept.entry(id).or_insert(Retained {
            until,
            priority: hints.priority,
            tenant,
            turn: 0,
        });
        kept.until = kept.until.max(until);
        kept.priority = kept.priority.max(hints.priority);
    }

    fn go_on(&mut self, boundary: u64) {
        self.policy.go_on(boundary);
    }

    fn supersede(&mut self, id: EntryId) {
        let kept = self.kept.get(&id);
        if kept.is_none_or(|kept| kept.until <= self.now) {
            self.policy.supersede(id);
        }
    }

    fn pass_time(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.policy.pass_time(now);
    }

    fn give_up(&mut self, id: EntryId) {
        let held = self.is_held(id);
        if self.forget(id).is_some() && !held {
            self.policy.release(id);
        }
        self.policy.give_up(id);
    }

    fn release(&mut self, id: EntryId) {
        match self.kept.get(&id) {
            None => self.policy.release(id),
            Some(&kept) => self.release_kept(id, kept),
        }
    }

    fn hold(&mut self, id: EntryId) {
        match self.marks.get_mut(id.0 as usize) {
            None | Some(Mark::Other) => self.policy.hold(id),
            Some(mark) => *mark = Mark::Held,
        }
    }

    fn protects(&self, page: EntryId) -> bool {
        // Retained entries leave in an order of their own, and not while anything stands on them.
        self.policy.protects(page)
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.policy.is_stood_on(id)
    }

    fn leave(&mut self, id: EntryId) {
        self.forget(id);
        self.policy.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        // A page may be evictable under one that is held.
        let retained = |this: &Self| {
            let mut ids = this.order.iter().map(|&(.., id)| EntryId(id));
            ids.find(|&id| !this.policy.is_stood_on(id))
        };
        let victim = self.policy.victim();
        victim.or_else(|| self.first_free(retained))
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        let retained = |this: &Self| {
            let from = (tenant, (i8::MIN, 0, 0, 0));
            let of_it = this.of_tenants.range(from..);
            let mut of_it = of_it.take_while(|&&(of, _)| of == tenant);
            let free = of_it.find(|&&(_, (.., id))| !this.policy.is_stood_on(EntryId(id)));
            free.map(|&(_, (.., id))| EntryId(id))
        };
        let victim = self.policy.victim_of(tenant);
        victim.or_else(|| self.first_free(retained))
    }

    fn learnt(&self) -> Vec<u8> {
        self.policy.learnt()
    }

    fn recall(&mut self, learnt: &[u8]) -> bool {
        self.policy.recall(learnt)
    }

    fn bytes(&self) -> usize {
        // Three trees, whose nodes are at least half full.
        let listed =
            size_of::<Rank>() + size_of::<(TenantId, Rank)>() + size_of::<(u64, u64, EntryId)>();
        self.policy.bytes()
            + self.kept.allocation_size()
            + self.marks.bytes()
            + 2 * self.order.len() * listed
    }
}
