//! Everything that the cache's lock guards, and the moves that keep its parts in agreement.
//!
//! Each entry in the host is either pinned or left to the host's policy, which may evict it. So
//! `ready slots = free + pinned + evictable`, always. [`room`](super::room) says how entries leave tiers,
//! [`poll`](super::poll) what the ends of copies to tiers below and back change.

use super::announced::Announced;
use super::classes::Classes;
use super::config::CacheConfig;
use super::copies::Copies;
use super::entry::{LeaseEntry, Slots};
use super::prefix_pins::{PinSet, PrefixPin, PrefixPins};
use super::restoring::Restoring;
use super::stats::{CacheStats, TierStats};
use super::tenants::Tenants;
use super::tiers::Tiers;
use super::visits::Visits;
use crate::error::Result;
use crate::ids::{ClassKind, EntryId, NamespaceId, NodeId, TenantId};
use crate::policy::{self, EntryKind, NewEntry};
use crate::prefix::{IndexCell, PrefixIndex};
use crate::slot::{EntryTable, HOST, Places};
use crate::tier::{Below, Host, Tier};

pub(super) struct CacheState {
    pub(super) classes: Classes,
    pub(super) index: PrefixIndex,
    /// The announcements for a follower, which follow the index.
    pub(super) announced: Announced,
    pub(super) entries: EntryTable,
    pub(super) tiers: Tiers,
    pub(super) copies: Copies,
    pub(super) restoring: Restoring,
    pub(super) visits: Visits,
    pub(super) tenants: Tenants,
    pub(super) prefix_pins: PrefixPins,
    /// How often everything was forgotten, and the resident entries that this has dropped and not reported yet.
    pub(super) clears: u64,
    pub(super) dropped: u64,
}

impl CacheState {
    pub(super) fn new(config: &CacheConfig, below: Vec<Box<dyn Below>>) -> Result<Self> {
        let roles = config.roles()?;
        let policy = policy::by_name(&config.policy, config.shape());
        let host = Host::new(config.slots, policy?)?;
        config.check_budget()?;
        let tiers = Tiers::new(host, below)?;
        let waiting = tiers.those(|tier| tier.waits_for_proof());
        Ok(Self {
            classes: Classes::new(config),
            index: PrefixIndex::new(roles),
            announced: Announced::default(),
            entries: EntryTable::new(config.ranks),
            tiers,
            copies: Copies::default(),
            restoring: Restoring::default(),
            visits: Visits::new(config.slots, waiting),
            tenants: Tenants::new(config.share()),
            prefix_pins: PrefixPins::default(),
            clears: 0,
            dropped: 0,
        })
    }

    pub(super) fn set_ready_slots(&mut self, slots: usize) -> Result<()> {
        self.tiers.host.set_ready(slots)
    }

    pub(super) fn namespace(&mut self, identity: &[u8], tenant: &[u8]) -> Result<NamespaceId> {
        self.index.namespaces.intern(identity, tenant)
    }

    pub(super) fn release_namespace(&mut self, namespace: NamespaceId) -> Result<()> {
        self.index.namespaces.release(namespace)
    }

    /// Slots that an entry takes in a tier that has it.
    #[inline]
    pub(super) fn size(&self, id: EntryId) -> u32 {
        self.classes.slots(self.entries.get(id).class)
    }

    /// Every entry, with its block, that a resumption at the end of this path needs: the deepest first, a
    /// block's page last.
    pub(super) fn needed_for(&self, path: &[Option<NodeId>]) -> Vec<(usize, EntryId)> {
        let roles = self.index.roles();
        let last = path.len() - 1;
        let tail = path[last].is_some_and(|node| self.index.is_tail(node));
        let mut needed = Vec::with_capacity(path.len() + 1);
        let mut add = |block: usize, class: usize| {
            let entry = path[block].and_then(|node| self.index.cell(node, class).entry());
            needed.extend(entry.map(|id| (block, id)));
        };
        if let Some(class) = roles.recurrent {
            add(last, class);
        }
        for block in (0..path.len()).rev() {
            let windows = roles.windows_over(block, last, tail);
            windows
                .chain(roles.attention)
                .for_each(|class| add(block, class));
        }
        needed
    }

    /// The page without which an entry can't be reached.
    pub(super) fn support(&self, id: EntryId) -> Option<EntryId> {
        let entry = self.entries.get(id);
        self.index.support(entry.home?, entry.class)
    }

    /// Whether a tier has a page, and evicts no page before it in its prefix as long as it has that one.
    pub(super) fn protects(&self, tier: usize, page: EntryId) -> bool {
        self.entries.get(page).members.has(tier) && self.tiers.room(tier).protects(page)
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
        slots.map_or_else(Slots::new, |set| self.tiers.host.slots_of(set).collect())
    }

    /// An entry as policies see it. `at`: the block and the name of its boundary.
    pub(super) fn as_new(&self, id: EntryId, node: NodeId, at: (usize, u64)) -> NewEntry {
        let class = self.entries.get(id).class;
        NewEntry {
            id,
            kind: match self.classes.kind(class) {
                ClassKind::Attention => EntryKind::Page,
                ClassKind::Window => EntryKind::Window,
                ClassKind::Recurrent => EntryKind::Checkpoint,
            },
            parent: self.index.support(node, class),
            depth: at.0 as u32 + 1,
            size: self.classes.slots(class),
            boundary: at.1,
            tenant: TenantId::NONE,
            unused: None,
            proven: self.visits.is_proven(at.1),
        }
    }

    /// Makes an entry known that no tier has yet.
    pub(super) fn introduce(&mut self, node: NodeId, class: usize) -> EntryId {
        let id = self.entries.insert(class, node);
        let again = self.set_cell(node, class, IndexCell::of(id, Places::NONE, Places::NONE));
        self.entries.get_mut(id).again = again;
        id
    }

    fn set_cell(&mut self, node: NodeId, class: usize, cell: IndexCell) -> bool {
        self.index.set(node, class, cell, &mut self.announced)
    }

    /// Makes an entry, which owns no slots, a member of the host, pinned once. Room must have been made, and
    /// the page that it hangs from be a member.
    pub(super) fn enter_host(&mut self, id: EntryId, node: NodeId, at: (usize, u64)) {
        let new = self.as_new(id, node, at);
        let tenant = if self.tenants.is_counted() {
            let name = self.index.tenant(node);
            self.tenants.enter(id, name, new.size)
        } else {
            TenantId::NONE
        };
        let slots = self.tiers.host.enter(&NewEntry { tenant, ..new });
        let entry = self.entries.get_mut(id);
        entry.slots = Some(slots);
        entry.members = entry.members.with(Places::HOST);
        entry.pins = 1;
    }

    /// Notes that the bytes of a member are whole in a tier.
    pub(super) fn add_place(&mut self, id: EntryId, tier: usize) {
        let entry = self.entries.get_mut(id);
        let (Some(node), class) = (entry.home, entry.class) else {
            return;
        };
        entry.places = entry.places.with(Places::of(tier));
        let cell = IndexCell::of(id, entry.places, self.tiers.shared());
        self.set_cell(node, class, cell);
        if tier == HOST {
            self.classes.add_resident(class);
        }
    }

    /// Keeps members of the host from eviction until [`unpin`](Self::unpin).
    pub(super) fn pin(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            if entry.pins == 0 {
                self.tiers.host.room_mut().hold(id, entry.slots_len());
                self.tenants.pin(id, entry.slots_len());
            }
            entry.pins += 1;
        }
    }

    /// Ends pins in the order given: what nobody else pins goes back to the policy, or to the pool
    /// if it left the host meanwhile.
    pub(super) fn unpin(&mut self, ids: &[EntryId]) {
        for &id in ids {
            let entry = self.entries.get_mut(id);
            entry.pins -= 1;
            if entry.pins > 0 {
                continue;
            }
            if entry.members.in_host() {
                self.tiers.host.room_mut().release(id, entry.slots_len());
                self.tenants.unpin(id, entry.slots_len());
                continue;
            }
            if let Some(slots) = entry.slots.take() {
                self.tenants.give(id, slots.len());
                self.tiers.host.give(slots);
            }
            if entry.home.is_none() {
                self.entries.remove(id);
            }
        }
    }

    /// Pins entries of the host, and the prefix that one of them stands for.
    pub(super) fn pin_all(&mut self, pinned: &PinSet) {
        self.prefix_pins.pin(pinned.prefix);
        self.pin(&pinned.entries);
    }

    /// Ends what [`pin_all`](Self::pin_all) has pinned.
    pub(super) fn unpin_all(&mut self, pinned: PinSet) {
        self.prefix_pins.unpin(pinned.prefix);
        self.unpin(&pinned.entries);
    }

    /// A pin on a page that stands for its prefix, `block` being the page's own.
    pub(super) fn prefix_pin(&self, page: EntryId, block: usize) -> PrefixPin {
        PrefixPin {
            page,
            block,
            slots: self.classes.page_slots(block + 1),
            tenant: self.tenants.owner(page),
        }
    }

    /// Adds the prefix that ends with a page of the host to `pinned`, whose last entry is or needs that page: as a
    /// prefix pin where the policy [protects](Self::protects) the prefix, and page by page otherwise.
    pub(super) fn add_prefix(&self, pinned: &mut PinSet, page: EntryId, block: usize) {
        if self.protects(HOST, page) {
            pinned.prefix = Some(self.prefix_pin(page, block));
        } else {
            let above = std::iter::successors(self.support(page), |&page| self.support(page));
            pinned.entries.extend(above);
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        let host = self.tiers.host.room().usage();
        let mut stats = CacheStats {
            slots: self.tiers.host.slots() as u64,
            ready_slots: host.capacity,
            free_slots: host.free,
            leased_slots: host.capacity - host.free - host.evictable,
            nodes: self.index.len() as u64,
            tenants: self.tenants.len() as u64,
            metadata_bytes: self.metadata_bytes() as u64,
            ..CacheStats::default()
        };
        self.classes.add_to(&mut stats);
        stats
    }

    /// The counts of a cache after a panic: none of its slots is ever free again.
    pub(super) fn when_closed(&self) -> (CacheStats, Vec<TierStats>) {
        let slots = self.tiers.host.slots() as u64;
        let stats = CacheStats {
            slots,
            ready_slots: slots,
            leased_slots: slots,
            slot_bytes: self.classes.slot_bytes(),
            ..CacheStats::default()
        };
        (stats, self.tiers.when_closed())
    }

    fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.bytes()
            + self.announced.bytes()
            + self.entries.bytes()
            + self.tiers.bytes()
            + self.visits.bytes()
            + self.tenants.bytes()
            + self.prefix_pins.bytes()
            + self.copies.bytes()
            + self.restoring.pins.bytes()
            + self.restoring.transients.bytes()
    }
}
