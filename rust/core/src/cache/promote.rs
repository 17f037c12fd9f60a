//! Entries come back from tiers below when a lookup needs them.

use super::copies::{Direction, Held};
use super::state::State;
use crate::error::Result;
use crate::ids::{EntryId, EntryKey, NamespaceId, NodeId, PrefixKey};
use crate::prefix::{Cell, boundary_name};
use crate::slot::Places;
use crate::tier::Found;

/// Boundaries of a prompt that a lookup asks a shared tier about beyond the hit, from the deepest page that is known.
const MOST_OTHERS: usize = 256;

impl State {
    /// Takes note of what happened below: copies that ended, and entries that this cache has not put there. Says
    /// whether a tier asks for more.
    pub(super) fn catch_up(&mut self, namespace: NamespaceId, keys: &[PrefixKey]) -> bool {
        if self.below.is_empty() {
            return false;
        }
        // A failed read, or making room, may take the last boundary of a namespace that nobody holds.
        self.index.namespaces.hold(namespace);
        self.poll();
        let mut asking = false;
        for tier in 1..=self.below.len() {
            asking |= self.discover(tier, namespace, keys);
        }
        self.index.namespaces.let_go(namespace);
        asking
    }

    /// Starts to read what the joint hit stands on and the host lacks; without room for that, what a
    /// shallower boundary does. Says whether it is under way.
    pub(super) fn promote(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<bool> {
        self.index.namespaces.check(namespace)?;
        self.catch_up(namespace, keys);
        if self.below.is_empty() {
            return Ok(false);
        }
        // What is read for a boundary reaches back to the start.
        let most = self.worth_reading(namespace, keys, first, 0);
        let mut limit = most;
        loop {
            let mut path = Vec::new();
            let hit = self
                .index
                .joint_hit(namespace, &keys[..limit], Cell::is_whole, |node| {
                    path.push(node);
                });
            if hit.blocks <= first {
                return Ok(false);
            }
            let used = self.stands_on(&path[..hit.blocks]);
            let room = match self.bring_up(namespace, &used, 0) {
                Reading::Nothing | Reading::InTheWay => return Ok(false),
                Reading::UnderWay => {
                    self.restores.shallower += u64::from(limit < most);
                    return Ok(true);
                }
                Reading::NoRoom(room) => room,
            };
            limit = self.reach(&used, room).min(hit.blocks - 1);
        }
    }

    /// How many leading blocks have all the pages that every later block needs, or would have with so much room.
    fn reach(&self, used: &[(usize, EntryId)], mut room: u64) -> usize {
        let attention = self.index.roles().attention;
        let mut reach = usize::MAX;
        for &(block, id) in used.iter().rev() {
            let entry = self.entries.get(id);
            if Some(entry.class) != attention || entry.slots.is_some() {
                continue;
            }
            let size = u64::from(self.classes[entry.class].slots);
            if size > room {
                reach = block;
                break;
            }
            room -= size;
        }
        reach
    }

    /// Whether an entry can't be read into the host: the engine writes it, or its slots are not free yet.
    pub(super) fn is_in_the_way(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        let read = entry.members.in_host() && !entry.copying.is_empty();
        entry.slots.is_some() && !entry.places.in_host() && !read
    }

    /// Starts to read into the host what it lacks of the entries `used`, the deepest first, and leaves `margin`
    /// slots besides. They are held until all are there.
    pub(super) fn bring_up(
        &mut self,
        namespace: NamespaceId,
        used: &[(usize, EntryId)],
        margin: u64,
    ) -> Reading {
        let mut missing = Vec::new();
        let (mut needed, mut under_way) = (0, false);
        for &(_, id) in used.iter().rev() {
            if self.is_in_the_way(id) {
                return Reading::InTheWay;
            }
            let entry = self.entries.get(id);
            if entry.slots.is_none() {
                needed += u64::from(self.classes[entry.class].slots);
                missing.push(id);
            } else {
                under_way |= !entry.places.in_host();
            }
        }
        if missing.is_empty() {
            return if under_way {
                Reading::UnderWay
            } else {
                Reading::Nothing
            };
        }
        let held: Vec<EntryId> = used.iter().map(|&(_, id)| id).collect();
        let in_host = |id: &EntryId| self.entries.get(*id).members.in_host();
        let there: Vec<EntryId> = held.iter().copied().filter(in_host).collect();
        self.hold(&there);
        let room = self.obtainable(namespace, needed + margin);
        if needed + margin > room || self.make_room_for(namespace, needed).is_err() {
            self.release(&there);
            return if under_way {
                Reading::UnderWay
            } else {
                Reading::NoRoom(room)
            };
        }
        let batch = self.copies.open(Held {
            entries: held,
            tip: None,
        });
        for id in missing {
            self.read_from_below(id, batch);
        }
        self.end_batch(batch);
        Reading::UnderWay
    }

    /// Starts to read an entry that is only below; room for it was made.
    fn read_from_below(&mut self, id: EntryId, batch: u32) {
        let entry = self.entries.get(id);
        let class = entry.class;
        let source = entry.places.tiers().next();
        let (Some(node), Some(tier)) = (entry.home, source) else {
            unreachable!("an entry that a hit stands on is known and whole somewhere");
        };
        self.enter_host(id, node, self.index.boundary(node));
        let entry = self.entries.get_mut(id);
        entry.copying = entry.copying.with(Places::of(tier));
        let copy = self.copies.start(id, tier, Direction::Up, batch);
        let key = self.index.key(node, class);
        let slots = self.slots(id);
        let size = self.classes[class].slots;
        let kept = self.kept.has(id, tier);
        let level = &mut self.below[tier - 1];
        if !kept {
            level.tier.room_mut().hold(id, size);
        }
        level.tier.read(copy, &key, &slots);
    }

    /// Makes known what a tier has of a prefix from before this cache, or from others: from where the
    /// pages that are known to be there end, for as long as the next is there with the bytes that are known. Says
    /// whether the tier asks for more.
    fn discover(&mut self, tier: usize, namespace: NamespaceId, keys: &[PrefixKey]) -> bool {
        let roles = self.index.roles();
        let attention = roles.attention;
        let classes: Vec<usize> = roles.pages_first().collect();
        let mut walk = Walk {
            tier,
            namespace,
            chain: Vec::new(),
            kept: None,
            asking: false,
        };
        let nodes = self.known_pages(&mut walk, keys);
        let mut parent = nodes.last().copied();
        if self.below[tier - 1].tier.is_shared() {
            // Beyond the hit, others may have added what was missing at boundaries whose page is known.
            let hit = self
                .index
                .joint_hit(namespace, keys, Cell::is_whole, |_| {});
            let from = hit.blocks.max(nodes.len().saturating_sub(MOST_OTHERS));
            for block in (from..nodes.len()).rev() {
                let above = block.checked_sub(1).map(|above| nodes[above]);
                let at = (Some(nodes[block]), above);
                self.find_others(&mut walk, at, block, &keys[block]);
            }
        }
        if !self.below[tier - 1].unread.is_empty() {
            for (block, &node) in nodes.iter().enumerate() {
                let above = block.checked_sub(1).map(|above| nodes[above]);
                self.find_again(&mut walk, (node, above), block, &keys[block]);
            }
        }
        'blocks: for (block, key) in keys.iter().enumerate().skip(nodes.len()) {
            let known = self.index.child(parent, block, namespace, key);
            if let Some(node) = known.filter(|_| attention.is_none()) {
                self.find_again(&mut walk, (node, parent), block, key);
                continue;
            }
            if known.is_none() && self.index.has(namespace, key) {
                break; // No hash chained to those before it.
            }
            let mut node = known;
            for &class in &classes {
                let found = self.find(&mut walk, (node, parent), block, key, class);
                if found.is_none() && Some(class) == attention {
                    if walk.asking && self.below[tier - 1].tier.asks_for_each() {
                        self.ask_for_rest(&walk, keys, block);
                    }
                    break 'blocks;
                }
                node = found.or(node);
            }
            if attention.is_some() {
                parent = node;
            }
        }
        if let Some(kept) = walk.kept {
            self.let_go_in(tier, kept.into_iter().rev());
        }
        walk.asking
    }

    /// The leading boundaries whose pages are known to be in the tier.
    fn known_pages(&self, walk: &mut Walk, keys: &[PrefixKey]) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        let Some(attention) = self.index.roles().attention else {
            return nodes;
        };
        for (block, key) in keys.iter().enumerate() {
            let parent = nodes.last().copied();
            let known = self.index.child(parent, block, walk.namespace, key);
            let page = known.and_then(|node| {
                let page = self.index.cell(node, attention).entry()?;
                let is_there = self.entries.get(page).members.has(walk.tier);
                is_there.then_some((node, page))
            });
            let Some((node, page)) = page else {
                break;
            };
            nodes.push(node);
            walk.chain.push(page);
        }
        nodes
    }

    /// Looks for what a boundary lacks beside its page.
    fn find_others(
        &mut self,
        walk: &mut Walk,
        at: (Option<NodeId>, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
    ) {
        let roles = self.index.roles();
        let (attention, classes) = (roles.attention, roles.pages_first().collect::<Vec<_>>());
        for class in classes {
            let known = at.0.and_then(|node| self.index.cell(node, class).entry());
            let there = known.is_some_and(|id| self.is_at(id, walk.tier));
            if Some(class) != attention && !there {
                self.find(walk, at, block, key, class);
            }
        }
    }

    /// Looks for what a read at a known boundary has failed for, until it is in the tier again.
    fn find_again(
        &mut self,
        walk: &mut Walk,
        (node, parent): (NodeId, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
    ) {
        for class in self.index.roles().pages_first() {
            let unread = (node, class);
            if !self.below[walk.tier - 1].unread.contains(&unread) {
                continue;
            }
            let known = self.index.cell(node, class).entry();
            let there = known.is_some_and(|id| self.is_at(id, walk.tier));
            if there
                || self
                    .find(walk, (Some(node), parent), block, key, class)
                    .is_some()
            {
                self.below[walk.tier - 1].unread.remove(&unread);
            }
        }
    }

    /// Asks a tier that asks for the page of a block for everything from there on. Without that page nothing
    /// can be made known: it is all asked for again.
    fn ask_for_rest(&mut self, walk: &Walk, keys: &[PrefixKey], from: usize) {
        let roles = self.index.roles();
        let (attention, classes) = (roles.attention, roles.pages_first().collect::<Vec<_>>());
        for (block, key) in keys.iter().enumerate().skip(from) {
            for &class in &classes {
                if block > from || Some(class) != attention {
                    let name = self.name(walk.namespace, block, key, class);
                    self.below[walk.tier - 1].tier.find(&name);
                }
            }
        }
    }

    fn name(
        &self,
        namespace: NamespaceId,
        block_index: usize,
        key: &PrefixKey,
        class_index: usize,
    ) -> EntryKey {
        EntryKey {
            namespace: self.index.namespaces.identity(namespace),
            prefix: *key,
            block_index,
            class_index,
        }
    }

    /// Makes an entry known that the tier has. Returns its boundary.
    fn find(
        &mut self,
        walk: &mut Walk,
        (node, parent): (Option<NodeId>, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
        class: usize,
    ) -> Option<NodeId> {
        let Walk {
            tier, namespace, ..
        } = *walk;
        let name = self.name(namespace, block, key, class);
        let ranks = self.ranks();
        let level = &mut self.below[tier - 1];
        let checksums = match level.tier.find(&name) {
            Found::Here(checksums) => checksums,
            Found::Absent => return None,
            Found::Asking => {
                walk.asking = true;
                return None;
            }
        };
        if checksums.len() != ranks {
            return None;
        }
        let known = node.and_then(|node| self.index.cell(node, class).entry());
        if let Some(id) = known
            && !self.may_join(id, tier, &checksums)
        {
            if !self.is_at(id, tier) {
                self.below[tier - 1].tier.forget(&name);
            }
            return None;
        }
        if walk.kept.is_none() {
            walk.kept = Some(self.keep_in(tier, &walk.chain));
        }
        if !self.make_room(tier, self.classes[class].slots.into()) {
            self.below[tier - 1].tier.forget(&name);
            return None;
        }
        let node = node.unwrap_or_else(|| self.index.add(parent, block, namespace, key));
        let id = known.unwrap_or_else(|| {
            let id = self.entries.insert(class, node);
            self.entries.set_checksums(id, Some(&checksums));
            self.index
                .set(node, class, Cell::of(id, Places::NONE, Places::NONE));
            id
        });
        let entry = self.entries.get_mut(id);
        entry.members = entry.members.with(Places::of(tier));
        self.add_place(id, tier);
        let seed = self.index.namespaces.known_seed(namespace);
        let new = self.as_new(id, node, (block, boundary_name(seed, key)));
        let level = &mut self.below[tier - 1];
        level.tier.room_mut().enter(&new);
        level.stats.found += 1;
        walk.kept.get_or_insert_default().push(id);
        Some(node)
    }

    /// Whether an entry is a member of a tier, or is copied from or to it.
    fn is_at(&self, id: EntryId, tier: usize) -> bool {
        let entry = self.entries.get(id);
        entry.members.with(entry.copying).has(tier)
    }

    /// Whether an entry that is known has the bytes that a tier was found to have of it.
    fn may_join(&self, id: EntryId, tier: usize, checksums: &[u64]) -> bool {
        let entry = self.entries.get(id);
        !self.is_at(id, tier)
            && !entry.places.is_empty()
            && self.entries.checksums(id) == Some(checksums)
    }
}

/// What became of an attempt to read into the host.
pub(super) enum Reading {
    /// Nothing is missing.
    Nothing,
    /// What is missing is being read.
    UnderWay,
    /// There is only so much room.
    NoRoom(u64),
    /// The engine writes an entry at this moment, or the slots of one are not free yet.
    InTheWay,
}

/// How far a search in a tier has come.
struct Walk {
    tier: usize,
    namespace: NamespaceId,
    /// Pages of the known boundaries, all in the tier.
    chain: Vec<EntryId>,
    /// Those that are held in the tier while room is made there, and what was found.
    kept: Option<Vec<EntryId>>,
    /// Whether the tier asks for what comes next.
    asking: bool,
}
