//! What the lock guards, and the steps that keep its parts in agreement.
//!
//! An entry that someone holds is in nobody's list but the index's; one that nobody holds is with
//! the policy. So `slots = free + held + evictable`, always.

use super::config::{Admission, Arrival, CacheConfig};
use super::entry::LeaseEntry;
use super::stats::{Class, Stats};
use crate::error::{Error, Result};
use crate::ids::{ClassKind, EntryId, NamespaceId, NodeId, PrefixKey, SlotId};
use crate::policy::{self, EntryKind, NewEntry, Policy, Request, Seen, Shape};
use crate::prefix::{Hit, Index};
use crate::slot::{EntryTable, SlotPool};

/// Boundaries that are remembered to find forks: as many as there are slots, within these bounds.
const LEAST_SEEN: usize = 1 << 12;
const MOST_SEEN: usize = 1 << 18;

pub(super) struct State {
    pub(super) classes: Vec<Class>,
    ranks: usize,
    slot_bytes: usize,
    pub(super) index: Index,
    pub(super) entries: EntryTable,
    pub(super) pool: SlotPool,
    policy: Box<dyn Policy>,
    seen: Seen,
    /// Slots of the entries that are with the policy.
    evictable: u32,
    pub(super) writing: u64,
    reclaimed: u64,
}

/// What a read lease holds.
pub(super) struct ReadHold {
    pub(super) blocks: usize,
    pub(super) entries: Vec<LeaseEntry>,
    /// Ids of `entries`.
    pub(super) ids: Vec<EntryId>,
    /// Everything the hit stands on, in the order in which it is let go: the deepest first.
    pub(super) held: Vec<EntryId>,
}

/// What a policy calls a boundary. `seed` is the namespace's: what is remembered of a boundary is
/// still right when its identity was freed and comes back under another number.
pub(super) fn boundary(seed: u64, key: &PrefixKey) -> u64 {
    key.short() ^ seed
}

/// What a policy calls the boundaries of a prefix.
fn boundaries(seed: u64, keys: &[PrefixKey]) -> Vec<u64> {
    keys.iter().map(|key| boundary(seed, key)).collect()
}

/// What the entries of a cache take.
fn shape(config: &CacheConfig) -> Shape {
    let units = |kind: ClassKind| {
        let of_kind = config.classes.iter().filter(|class| class.kind == kind);
        of_kind.map(|class| class.slots_per_entry as u32).sum()
    };
    Shape {
        page: units(ClassKind::Attention),
        window: units(ClassKind::Window),
        checkpoint: units(ClassKind::Recurrent),
    }
}

impl State {
    pub(super) fn new(config: &CacheConfig) -> Result<Self> {
        let roles = config.roles()?;
        let pool = SlotPool::new(config.slots)?;
        config.check_budget()?;
        Ok(Self {
            // The budget holds an entry of each, so the sizes fit the slots' own type.
            classes: config
                .classes
                .iter()
                .map(|class| Class {
                    kind: class.kind,
                    slots: class.slots_per_entry as u32,
                    resident: 0,
                    evicted: 0,
                })
                .collect(),
            ranks: config.ranks,
            slot_bytes: config.slot_bytes,
            index: Index::new(roles),
            entries: EntryTable::new(config.ranks),
            pool,
            policy: policy::by_name(&config.policy, shape(config))?,
            seen: Seen::new(config.slots.clamp(LEAST_SEEN, MOST_SEEN)),
            evictable: 0,
            writing: 0,
            reclaimed: 0,
        })
    }

    pub(super) const fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn namespace(&mut self, identity: &[u8]) -> Result<NamespaceId> {
        self.index.namespaces.intern(identity)
    }

    pub(super) fn release_namespace(&mut self, namespace: NamespaceId) -> Result<()> {
        self.index.namespaces.release(namespace)
    }

    pub(super) fn lookup(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<Hit> {
        self.index.namespaces.check(namespace)?;
        Ok(self.index.joint_hit(namespace, keys, |_| ()))
    }

    pub(super) fn acquire(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<ReadHold>> {
        self.index.namespaces.check(namespace)?;
        let mut path = Vec::new();
        let hit = self
            .index
            .joint_hit(namespace, keys, |node| path.push(node));
        if hit.blocks <= first {
            return Ok(None);
        }
        let roles = self.index.roles();
        let last = hit.blocks - 1;
        let mut used = Vec::with_capacity(hit.blocks + 1);
        let mut add = |block: usize, class: usize| {
            let entry = path[block].and_then(|node| self.index.cell(node, class).entry());
            used.extend(entry.map(|id| (block, id)));
        };
        roles
            .recurrent
            .into_iter()
            .for_each(|class| add(last, class));
        for block in (0..hit.blocks).rev() {
            roles
                .windows_over(block, last)
                .for_each(|class| add(block, class));
            roles
                .attention
                .into_iter()
                .for_each(|class| add(block, class));
        }
        let loads = used.iter().rev().filter(|&&(block, _)| block >= first);
        let entries = loads
            .clone()
            .map(|&(block, id)| self.describe(block, id))
            .collect();
        let ids = loads.map(|&(_, id)| id).collect();
        let held: Vec<EntryId> = used.into_iter().map(|(_, id)| id).collect();
        self.hold(&held);
        Ok(Some(ReadHold {
            blocks: hit.blocks,
            entries,
            ids,
            held,
        }))
    }

    /// An entry as its holders see it.
    pub(super) fn describe(&self, block_index: usize, id: EntryId) -> LeaseEntry {
        let entry = self.entries.get(id);
        let checksums = if entry.resident {
            self.entries.checksums(id)
        } else {
            &[]
        };
        LeaseEntry {
            class_index: entry.class,
            block_index,
            slots: self.pool.slots(&entry.slots).collect(),
            checksums: checksums.to_vec(),
        }
    }

    /// Which boundaries of a request deserve a checkpoint.
    pub(super) fn admit(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<Admission> {
        let seed = self.index.namespaces.seed(namespace)?;
        let limit = arrival.limit.min(keys.len());
        let whole = self.index.joint_hit(namespace, keys, |_| ());
        let pages = whole.pages;
        // A hit within the limit is the hit under it.
        let resumed = if whole.blocks <= limit {
            whole.blocks
        } else {
            self.index
                .joint_hit(namespace, &keys[..limit], |_| ())
                .blocks
        };
        let boundaries = boundaries(seed, keys);
        let seen = self.seen.visit(&boundaries).max(pages);
        let mut admitted = Vec::new();
        let request = Request {
            now: arrival.now,
            tokens: arrival.tokens,
            boundaries: &boundaries,
            limit,
            resumed,
            pages,
            seen,
            free: self.pool.free().into(),
        };
        self.policy.admit(&request, &mut admitted);
        admitted.sort_unstable();
        admitted.dedup();
        let fork = seen.min(limit);
        Ok(Admission {
            boundaries: admitted,
            fork: (fork > resumed).then_some(fork),
        })
    }

    /// Tells the policy how much a request produced, and remembers all its boundaries.
    pub(super) fn finish(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        end: usize,
        output_tokens: u64,
    ) -> Result<()> {
        let boundaries = boundaries(self.index.namespaces.seed(namespace)?, keys);
        if end == 0 || end > keys.len() {
            return Err(Error::InvalidArgument(format!(
                "end: expected 1 to {}, the number of keys, found {end}",
                keys.len()
            )));
        }
        self.policy.finish(&boundaries, end, output_tokens);
        self.seen.visit(&boundaries);
        Ok(())
    }

    /// Shows the policy an entry that was just made, and is held.
    pub(super) fn introduce(&mut self, boundary: u64, node: NodeId, block: usize, id: EntryId) {
        let class = self.entries.get(id).class;
        self.policy.enter(&NewEntry {
            id,
            kind: match self.classes[class].kind {
                ClassKind::Attention => EntryKind::Page,
                ClassKind::Window => EntryKind::Window,
                ClassKind::Recurrent => EntryKind::Checkpoint,
            },
            parent: self.index.support(node, class),
            depth: block as u32 + 1,
            size: self.classes[class].slots,
            boundary,
        });
    }

    /// Keeps entries from eviction until [`release`](Self::release).
    pub(super) fn hold(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            if entry.holds == 0 {
                self.policy.hold(id);
                self.evictable -= entry.slots.len();
            }
            entry.holds += 1;
        }
    }

    /// Ends holds in the order given: what nobody else holds goes back to the policy, or to the pool
    /// if it was dropped meanwhile.
    pub(super) fn release(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            entry.holds -= 1;
            if entry.holds > 0 {
                continue;
            }
            if entry.home.is_some() {
                self.evictable += entry.slots.len();
                self.policy.release(id);
            } else {
                let entry = self.entries.remove(id);
                self.pool.give(entry.slots);
            }
        }
    }

    /// Lets lookups see entries that were being written, unless they were dropped meanwhile.
    pub(super) fn publish<'a>(
        &mut self,
        written: impl Iterator<Item = (EntryId, &'a [u64])>,
    ) -> usize {
        let mut published = 0;
        for (id, checksums) in written {
            self.writing -= 1;
            let entry = self.entries.get_mut(id);
            let Some(node) = entry.home else { continue };
            entry.resident = true;
            let class = entry.class;
            self.index.publish(node, class, id);
            self.entries.set_checksums(id, checksums);
            self.classes[class].resident += 1;
            published += 1;
        }
        published
    }

    /// Drops entries that will not be written after all.
    pub(super) fn abandon(&mut self, ids: &[EntryId]) {
        self.writing -= ids.len() as u64;
        let dropped = self.drop_entries(ids);
        self.reclaimed += dropped;
    }

    pub(super) fn invalidate(&mut self, ids: &[EntryId]) -> usize {
        let named = ids
            .iter()
            .filter(|&&id| self.entries.get(id).home.is_some())
            .count() as u64;
        let dropped = self.drop_entries(ids);
        self.reclaimed += dropped - named;
        dropped as usize
    }

    pub(super) fn clear(&mut self) -> usize {
        let mut gone = Vec::new();
        self.index.clear(&mut gone);
        self.seen.clear();
        self.detach(&gone) as usize
    }

    /// Evicts until so many slots are free; changes nothing if that can't be.
    pub(super) fn make_room(&mut self, slots: u64) -> bool {
        if slots > u64::from(self.pool.free()) + u64::from(self.evictable) {
            return false;
        }
        while u64::from(self.pool.free()) < slots {
            let Some(victim) = self.policy.victim() else {
                return false;
            };
            self.classes[self.entries.get(victim).class].evicted += 1;
            self.reclaimed += self.drop_entries(&[victim]) - 1;
        }
        true
    }

    /// Drops entries, and what can't be reached without them, from the index. Returns how many
    /// resident ones there were.
    fn drop_entries(&mut self, ids: &[EntryId]) -> u64 {
        let mut gone = Vec::new();
        for &id in ids {
            let entry = self.entries.get_mut(id);
            // Taken here, so that an entry dropped with one before it isn't dropped twice.
            if let Some(node) = entry.home {
                let (class, from) = (entry.class, gone.len());
                let known = entry.resident || entry.again;
                self.index.vacate(node, class, known, &mut gone);
                for &id in &gone[from..] {
                    self.entries.get_mut(id).home = None;
                }
            }
        }
        self.detach(&gone)
    }

    /// Gives up entries that just left the index: at once, or when their last lease ends.
    fn detach(&mut self, gone: &[EntryId]) -> u64 {
        let mut resident = 0;
        // What hangs from a page leaves before it.
        for &id in gone.iter().rev() {
            self.policy.leave(id);
            let entry = self.entries.get_mut(id);
            entry.home = None;
            if entry.resident {
                resident += 1;
                self.classes[entry.class].resident -= 1;
            }
            if entry.holds == 0 {
                self.evictable -= entry.slots.len();
                let entry = self.entries.remove(id);
                self.pool.give(entry.slots);
            }
        }
        resident
    }

    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats {
            slots: self.pool.total().into(),
            free_slots: self.pool.free().into(),
            slot_bytes: self.slot_bytes as u64,
            leased_slots: (self.pool.total() - self.pool.free() - self.evictable).into(),
            writing_entries: self.writing,
            nodes: self.index.len() as u64,
            reclaimed: self.reclaimed,
            metadata_bytes: self.metadata_bytes() as u64,
            ..Stats::default()
        };
        for class in &self.classes {
            stats.add(class);
        }
        stats
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.bytes()
            + self.entries.bytes()
            + self.pool.bytes()
            + self.policy.bytes()
            + self.seen.bytes()
    }

    pub(super) fn audit(&self) -> Option<String> {
        if let Some(found) = self.index.audit() {
            return Some(found);
        }
        let mut owned = vec![false; self.pool.total() as usize];
        let mut claim = |slot: SlotId| std::mem::replace(&mut owned[slot.0 as usize], true);
        if self.pool.free_slots().any(&mut claim) {
            return Some("a slot is free twice".into());
        }
        let mut evictable = 0;
        for (id, entry) in self.entries.iter() {
            if self.pool.slots(&entry.slots).any(&mut claim) {
                return Some(format!("entry {} owns a slot that is not its own", id.0));
            }
            if entry.holds == 0 {
                evictable += entry.slots.len();
            }
            let Some(node) = entry.home else {
                if entry.holds == 0 {
                    return Some(format!("entry {} is kept for nobody", id.0));
                }
                continue;
            };
            let cell = self.index.cell(node, entry.class);
            if cell.entry() != Some(id) || cell.is_resident() != entry.resident {
                return Some(format!("entry {} is not what the index knows", id.0));
            }
            let support = self.index.support(node, entry.class);
            if entry.holds > 0 && support.is_some_and(|page| self.entries.get(page).holds == 0) {
                return Some(format!("entry {} is held, the page before it is not", id.0));
            }
        }
        if evictable != self.evictable {
            return Some(format!(
                "{evictable} slots are evictable, {} are counted",
                self.evictable
            ));
        }
        owned.contains(&false).then(|| "a slot is lost".into())
    }
}
