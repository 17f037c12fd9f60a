//! Everything the lock guards, and the steps that keep its parts in agreement.
//!
//! An entry in the host is held by somebody or with the host's policy, so `ready slots = free + held +
//! evictable`, always. [`leave`](super::leave) says how entries leave tiers, [`copied`](super::copied) what
//! ends of copies to tiers below and back change.

use super::asked::PORTION;
use super::config::{Admission, Arrival, CacheConfig};
use super::copies::{Copies, Held, Level};
use super::entry::{LeaseEntry, Slots};
use super::kept::Kept;
use super::passing::Passing;
use super::proven::{Proven, Unoffered};
use super::stats::{Class, RestoreStats, Stats, TierStats};
use super::tenants::Tenants;
use super::tips::Tips;
use crate::error::{Error, Result};
use crate::ids::{ClassKind, EntryId, NamespaceId, NodeId, PrefixKey, TenantId};
use crate::policy::{self, EntryKind, Hints, NewEntry, Request, Seen};
use crate::prefix::{Cell, Hit, Index, boundary_name};
use crate::slot::{EntryTable, HOST, Places};
use crate::tier::{Below, Host, Room, Tier};

/// Boundaries that are remembered to find forks: as many as there are slots, within these bounds.
const LEAST_SEEN: usize = 1 << 12;
const MOST_SEEN: usize = 1 << 18;

pub(super) struct State {
    pub(super) classes: Vec<Class>,
    ranks: usize,
    slot_bytes: usize,
    pub(super) index: Index,
    pub(super) entries: EntryTable,
    pub(super) host: Host,
    pub(super) below: Vec<Level>,
    /// Tiers below that others share.
    pub(super) shared: Places,
    pub(super) copies: Copies,
    pub(super) kept: Kept,
    pub(super) passing: Passing,
    pub(super) restores: RestoreStats,
    pub(super) seen: Seen,
    /// If a tier waits for proof.
    pub(super) proven: Option<Proven>,
    /// Blocks a second.
    pub(super) compute_rate: Option<f64>,
    pub(super) tenants: Tenants,
    pub(super) tips: Tips,
    pub(super) writing: u64,
    pub(super) reclaimed: u64,
}

/// The entries that a read lease holds.
pub(super) struct ReadHold {
    pub(super) blocks: usize,
    /// What is loaded, with its block: shallow first.
    pub(super) loads: Vec<(usize, EntryId)>,
    /// As many of these as were [described](State::describe_more).
    pub(super) entries: Vec<LeaseEntry>,
    /// Everything the hit stands on.
    pub(super) held: Held,
}

/// The policies' names of the boundaries of a prefix.
fn boundaries(seed: u64, keys: &[PrefixKey]) -> Vec<u64> {
    keys.iter().map(|key| boundary_name(seed, key)).collect()
}

impl State {
    pub(super) fn new(config: &CacheConfig, below: Vec<Box<dyn Below>>) -> Result<Self> {
        let roles = config.roles()?;
        let policy = policy::by_name(&config.policy, config.shape());
        let below: Vec<Level> = below.into_iter().map(Level::new).collect();
        let host = Host::new(config.slots, policy?)?;
        config.check_budget()?;
        check_tiers(config.slots, &below)?;
        let those = |is: fn(&dyn Below) -> bool| {
            let tiers = (1..=below.len()).filter(|&tier| is(&*below[tier - 1].tier));
            tiers.fold(Places::NONE, |tiers, tier| tiers.with(Places::of(tier)))
        };
        let waiting = those(|tier| tier.waits_for_proof());
        let shared = those(|tier| tier.is_shared());
        let remembered = config.slots.clamp(LEAST_SEEN, MOST_SEEN);
        Ok(Self {
            // The budget holds an entry of each, so the sizes fit the slots' own type.
            classes: config
                .classes
                .iter()
                .map(|class| Class {
                    kind: class.kind,
                    slots: class.slots_per_entry as u32,
                    resident: 0,
                    stored: 0,
                    evicted: 0,
                })
                .collect(),
            ranks: config.ranks,
            slot_bytes: config.slot_bytes,
            index: Index::new(roles),
            entries: EntryTable::new(config.ranks),
            host,
            below,
            shared,
            copies: Copies::default(),
            kept: Kept::default(),
            passing: Passing::default(),
            restores: RestoreStats::default(),
            seen: Seen::new(remembered),
            proven: Proven::new(waiting, remembered),
            compute_rate: None,
            tenants: Tenants::new(config.share()),
            tips: Tips::default(),
            writing: 0,
            reclaimed: 0,
        })
    }

    pub(super) fn set_ready_slots(&mut self, slots: usize) -> Result<()> {
        self.host.set_ready(slots)
    }

    pub(super) const fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) const fn slot_bytes(&self) -> u64 {
        self.slot_bytes as u64
    }

    pub(super) fn namespace(&mut self, identity: &[u8], tenant: &[u8]) -> Result<NamespaceId> {
        self.index.namespaces.intern(identity, tenant)
    }

    pub(super) fn release_namespace(&mut self, namespace: NamespaceId) -> Result<()> {
        self.index.namespaces.release(namespace)
    }

    pub(super) fn room(&self, tier: usize) -> &Room {
        match tier.checked_sub(1) {
            None => self.host.room(),
            Some(below) => self.below[below].tier.room(),
        }
    }

    pub(super) fn tier_name(&self, tier: usize) -> String {
        match tier.checked_sub(1) {
            None => self.host.name().to_owned(),
            Some(below) => self.below[below].tier.name().to_owned(),
        }
    }

    pub(super) fn room_mut(&mut self, tier: usize) -> &mut Room {
        match tier.checked_sub(1) {
            None => self.host.room_mut(),
            Some(below) => self.below[below].tier.room_mut(),
        }
    }

    /// The joint hit; `None` if tiers below are to be asked more first, in the next call.
    pub(super) fn lookup(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> Result<Option<Hit>> {
        let caught = self.catch_up(namespace, keys)?;
        let mut hit = caught.hit;
        hit.asking = caught.asking && hit.blocks < keys.len();
        Ok((!caught.more).then_some(hit))
    }

    pub(super) fn hit_anywhere(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Hit {
        self.index
            .joint_hit(namespace, keys, Cell::is_whole, |_| ())
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
            .joint_hit(namespace, keys, Cell::is_in_host, |node| path.push(node));
        if hit.blocks <= first {
            return Ok(None);
        }
        let used = self.stands_on(&path[..hit.blocks]);
        let loads = used.iter().rev().filter(|&&(block, _)| block >= first);
        let loads = loads.copied().collect();
        let held: Vec<EntryId> = used.into_iter().map(|(_, id)| id).collect();
        self.hold(&held);
        self.touch_below(&held);
        let held = Held {
            entries: held,
            tip: None,
        };
        Ok(Some(self.read_hold(hit.blocks, loads, held)))
    }

    /// What a read lease of so many blocks has, described as far as a portion goes.
    pub(super) fn read_hold(
        &self,
        blocks: usize,
        loads: Vec<(usize, EntryId)>,
        held: Held,
    ) -> ReadHold {
        let mut hold = ReadHold {
            blocks,
            loads,
            entries: Vec::new(),
            held,
        };
        self.describe_more(&mut hold);
        hold
    }

    /// Describes a portion of what is loaded. Slots and checksums of what is held stay the same, wherever else it
    /// leaves.
    pub(super) fn describe_more(&self, hold: &mut ReadHold) {
        for &(block, id) in hold.loads.iter().skip(hold.entries.len()).take(PORTION) {
            let checksums = self.entries.checksums(id);
            hold.entries.push(LeaseEntry {
                class_index: self.entries.get(id).class,
                block_index: block,
                slots: self.slots(id),
                checksums: checksums.map(<[u64]>::to_vec).unwrap_or_default(),
            });
        }
    }

    /// Every entry, with its block, that a resumption at the end of this path needs: the deepest first, a
    /// block's page last.
    pub(super) fn stands_on(&self, path: &[Option<NodeId>]) -> Vec<(usize, EntryId)> {
        let roles = self.index.roles();
        let last = path.len() - 1;
        let mut used = Vec::with_capacity(path.len() + 1);
        let mut add = |block: usize, class: usize| {
            let entry = path[block].and_then(|node| self.index.cell(node, class).entry());
            used.extend(entry.map(|id| (block, id)));
        };
        roles
            .recurrent
            .into_iter()
            .for_each(|class| add(last, class));
        for block in (0..path.len()).rev() {
            roles
                .windows_over(block, last)
                .for_each(|class| add(block, class));
            roles
                .attention
                .into_iter()
                .for_each(|class| add(block, class));
        }
        used
    }

    /// An entry as its holders see it.
    pub(super) fn describe(&self, block_index: usize, id: EntryId) -> LeaseEntry {
        let entry = self.entries.get(id);
        let checksums = if entry.places.in_host() {
            self.entries.checksums(id)
        } else {
            None
        };
        LeaseEntry {
            class_index: entry.class,
            block_index,
            slots: self.slots(id),
            checksums: checksums.map(<[u64]>::to_vec).unwrap_or_default(),
        }
    }

    /// Slots of the host that an entry owns, in payload order.
    pub(super) fn slots(&self, id: EntryId) -> Slots {
        let slots = self.entries.get(id).slots.as_ref();
        slots.map_or_else(Slots::new, |set| self.host.slots_of(set).collect())
    }

    /// Which boundaries of a request deserve a checkpoint, and what is still to be offered of those that
    /// it proves.
    pub(super) fn admit(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<(Admission, Option<Unoffered>)> {
        let seed = self.index.namespaces.seed(namespace)?;
        arrival.check()?;
        let limit = arrival.limit.min(keys.len());
        let mut path = Vec::new();
        let whole = self
            .index
            .joint_hit(namespace, keys, Cell::is_whole, |node| path.push(node));
        self.reconsider(&path);
        self.forget_questions(namespace, keys);
        let pages = whole.pages;
        // A hit within the limit is the hit under it.
        let resumed = if whole.blocks <= limit {
            whole.blocks
        } else {
            self.hit_anywhere(namespace, &keys[..limit]).blocks
        };
        let boundaries = boundaries(seed, keys);
        let hints = arrival.hints;
        let seen = if hints.store {
            self.seen.visit(&boundaries)
        } else {
            self.seen.look(&boundaries)
        };
        let seen = seen.max(pages);
        let unoffered = self.prove(namespace, keys, &boundaries[..seen]);
        let request = Request {
            now: arrival.now,
            tokens: arrival.tokens,
            boundaries: &boundaries,
            limit,
            resumed,
            pages,
            seen,
            free: 0,
            hints,
        };
        let mut admitted = self.host.room_mut().admit(&request);
        for level in &mut self.below {
            // It learns of the request; the host's policy says which checkpoints are made.
            level.tier.room_mut().admit(&request);
        }
        admitted.sort_unstable();
        admitted.dedup();
        if hints.retain > 0 {
            self.retain_hit(namespace, &keys[..resumed], &hints);
        }
        let fork = seen.min(if hints.store { limit } else { 0 });
        let admission = Admission {
            boundaries: admitted,
            fork: (fork > resumed).then_some(fork),
        };
        Ok((admission, unoffered))
    }

    /// Retains what a request finds in the host.
    fn retain_hit(&mut self, namespace: NamespaceId, keys: &[PrefixKey], hints: &Hints) {
        let mut path = Vec::new();
        let hit = self
            .index
            .joint_hit(namespace, keys, Cell::is_in_host, |node| path.push(node));
        if hit.blocks == 0 {
            return;
        }
        let used = self.stands_on(&path[..hit.blocks]);
        let ids: Vec<EntryId> = used.into_iter().map(|(_, id)| id).collect();
        self.hold(&ids);
        self.keep(&ids, hints);
        self.release(&ids);
    }

    /// Tells the policy with which hints entries of the host are stored or used, which are held.
    pub(super) fn keep(&mut self, ids: &[EntryId], hints: &Hints) {
        for &id in ids.iter().filter(|_| hints.keep()) {
            let tenant = self.tenants.owner(id);
            self.host.room_mut().keep(id, tenant, hints);
        }
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
        for tier in 0..=self.below.len() {
            self.room_mut(tier).finish(&boundaries, end, output_tokens);
        }
        self.seen.visit(&boundaries);
        Ok(())
    }

    /// An entry as policies see it. `at`: the block and the name of its boundary.
    pub(super) fn as_new(&self, id: EntryId, node: NodeId, at: (usize, u64)) -> NewEntry {
        let class = self.entries.get(id).class;
        NewEntry {
            id,
            kind: match self.classes[class].kind {
                ClassKind::Attention => EntryKind::Page,
                ClassKind::Window => EntryKind::Window,
                ClassKind::Recurrent => EntryKind::Checkpoint,
            },
            parent: self.index.support(node, class),
            depth: at.0 as u32 + 1,
            size: self.classes[class].slots,
            boundary: at.1,
            tenant: TenantId::NONE,
            unused: None,
            proven: self.is_proven(at.1),
        }
    }

    /// Makes an entry, which owns no slots, a member of the host, held once. Room must have been made, and
    /// the page that it hangs from be a member.
    pub(super) fn enter_host(&mut self, id: EntryId, node: NodeId, at: (usize, u64)) {
        let new = self.as_new(id, node, at);
        let tenant = if self.tenants.is_counted() {
            let name = self.index.tenant(node);
            self.tenants.enter(id, name, new.size)
        } else {
            TenantId::NONE
        };
        let slots = self.host.enter(&NewEntry { tenant, ..new });
        let entry = self.entries.get_mut(id);
        entry.slots = Some(slots);
        entry.members = entry.members.with(Places::HOST);
        entry.holds = 1;
    }

    /// Keeps members of the host from eviction until [`release`](Self::release).
    pub(super) fn hold(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            if entry.holds == 0 {
                self.host.room_mut().hold(id, entry.slots_len());
                self.tenants.hold(id, entry.slots_len());
            }
            entry.holds += 1;
        }
    }

    /// Ends holds in the order given: what nobody else holds goes back to the policy, or to the pool
    /// if it left the host meanwhile.
    pub(super) fn release(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            entry.holds -= 1;
            if entry.holds > 0 {
                continue;
            }
            if entry.members.in_host() {
                self.host.room_mut().release(id, entry.slots_len());
                self.tenants.release(id, entry.slots_len());
                continue;
            }
            if let Some(slots) = entry.slots.take() {
                self.tenants.give(id, slots.len());
                self.host.give(slots);
            }
            if entry.home.is_none() {
                self.entries.remove(id);
            }
        }
    }

    /// Lets lookups see entries that were being written, unless they left meanwhile.
    pub(super) fn publish<'a>(
        &mut self,
        written: impl Iterator<Item = (EntryId, Option<&'a [u64]>)>,
    ) -> usize {
        let mut published = 0;
        for (id, checksums) in written {
            self.writing -= 1;
            let entry = self.entries.get(id);
            if !entry.members.in_host() {
                continue;
            }
            let class = entry.class;
            let same = checksums.is_some() && self.entries.checksums(id) == checksums;
            if !entry.places.is_empty() && !same {
                // Computed again, perhaps with other bytes: an entry has the same everywhere.
                self.take_out(&[id], Places::BELOW);
            }
            self.entries.set_checksums(id, checksums);
            self.classes[class].stored += 1;
            self.add_place(id, HOST);
            published += 1;
        }
        published
    }

    /// Notes that the bytes of a member are whole in a tier.
    pub(super) fn add_place(&mut self, id: EntryId, tier: usize) {
        let entry = self.entries.get_mut(id);
        let Some(node) = entry.home else { return };
        entry.places = entry.places.with(Places::of(tier));
        self.index
            .set(node, entry.class, Cell::of(id, entry.places, self.shared));
        if tier == HOST {
            self.classes[entry.class].resident += 1;
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let host = self.host.room().usage();
        let mut stats = Stats {
            slots: self.host.slots() as u64,
            ready_slots: host.capacity,
            free_slots: host.free,
            slot_bytes: self.slot_bytes as u64,
            leased_slots: host.capacity - host.free - host.evictable,
            writing_entries: self.writing,
            nodes: self.index.len() as u64,
            reclaimed: self.reclaimed,
            tenants: self.tenants.len() as u64,
            metadata_bytes: self.metadata_bytes() as u64,
            ..Stats::default()
        };
        for class in &self.classes {
            stats.add(class);
        }
        stats
    }

    pub(super) fn tiers(&self) -> Vec<TierStats> {
        self.below.iter().map(Level::stats).collect()
    }

    /// What is said of a cache that nobody gets at any more: none of its slots is ever free again.
    pub(super) fn when_closed(&self) -> (Stats, Vec<TierStats>) {
        let slots = self.host.slots() as u64;
        let stats = Stats {
            slots,
            ready_slots: slots,
            leased_slots: slots,
            slot_bytes: self.slot_bytes(),
            ..Stats::default()
        };
        let named = |level: &Level| TierStats {
            name: level.tier.name().to_owned(),
            ..TierStats::default()
        };
        (stats, self.below.iter().map(named).collect())
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.bytes()
            + self.entries.bytes()
            + self.host.bytes()
            + self.seen.bytes()
            + self.proven.as_ref().map_or(0, Proven::bytes)
            + self.tenants.bytes()
            + self.tips.bytes()
            + self.copies.bytes()
            + self.kept.bytes()
            + self.passing.bytes()
            + self.below.iter().map(Level::bytes).sum::<usize>()
    }
}

/// Refuses more tiers, or more room in them, than entries can have names for.
fn check_tiers(slots: usize, below: &[Level]) -> Result<()> {
    if below.len() >= Places::MAX_TIERS {
        return Err(Error::InvalidArgument(format!(
            "tiers: expected at most {} below the host, found {}",
            Places::MAX_TIERS - 1,
            below.len()
        )));
    }
    let capacity = |level: &Level| u128::from(level.tier.room().usage().capacity);
    let total = slots as u128 + below.iter().map(capacity).sum::<u128>();
    if total > EntryTable::MAX_ENTRIES as u128 {
        return Err(Error::InvalidArgument(format!(
            "tiers: expected at most {} slots in all of them, the host included, found {total}",
            EntryTable::MAX_ENTRIES
        )));
    }
    Ok(())
}
