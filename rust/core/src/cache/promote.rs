//! Entries come back from tiers below when a lookup needs them.

use super::asked::{AGAIN, PORTION, Prompt, Questions, prompt_of};
use super::rise::{Obstacle, Rise, Step};
use super::state::State;
use crate::error::Result;
use crate::ids::{EntryId, EntryKey, NamespaceId, NodeId, PrefixKey};
use crate::prefix::{Cell, Hit, boundary_name};
use crate::slot::Places;
use crate::tier::Found;

/// Boundaries of a prompt that a lookup asks a shared tier about beyond the hit, from the deepest page that is known.
const MOST_OTHERS: usize = 256;

/// How many leading blocks have a page, of so many: it is there only with those before it, and most often all are.
pub(super) fn leading(blocks: usize, has: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, blocks + 1);
    let mut middle = blocks;
    while low + 1 < high {
        if has(middle) {
            low = middle;
        } else {
            high = middle;
        }
        middle = low.midpoint(high);
    }
    low
}

impl State {
    /// Takes note of what happened below: copies that ended, and a portion of the entries that this cache has not
    /// put there.
    pub(super) fn catch_up(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> Result<CaughtUp> {
        self.index.namespaces.check(namespace)?;
        if self.below.is_empty() {
            let hit = self.hit_anywhere(namespace, keys);
            return Ok(CaughtUp {
                hit,
                asking: false,
                more: false,
            });
        }
        // A failed read, or making room, may take the last boundary of a namespace that nobody holds.
        self.index.namespaces.hold(namespace);
        self.poll();
        let mut caught = CaughtUp {
            hit: self.index.hits(namespace, keys),
            asking: false,
            more: false,
        };
        for tier in 1..=self.below.len() {
            let mut walk = Walk {
                tier,
                namespace,
                known: 0,
                last: None,
                kept: None,
                asking: false,
                changed: false,
                left: PORTION,
                more: false,
            };
            self.discover(&mut walk, keys, caught.hit.blocks);
            caught.asking |= walk.asking;
            caught.more |= walk.more;
            if walk.changed {
                caught.hit = self.index.hits(namespace, keys);
            }
        }
        self.index.namespaces.let_go(namespace);
        Ok(caught)
    }

    /// Nobody waits for what a lookup of this prompt has asked.
    pub(super) fn forget_questions(&mut self, namespace: NamespaceId, keys: &[PrefixKey]) {
        let Some(prompt) = prompt_of(namespace, keys) else {
            return;
        };
        for level in &mut self.below {
            level.asked.forget(&prompt);
        }
    }

    /// Starts to read what the joint hit stands on and the host lacks, in portions; without room for that, what a
    /// shallower boundary does. Says whether it is under way; `None` if there is more to ask or to read first: then
    /// `rise` is what was begun.
    pub(super) fn promote(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        rise: &mut Option<Rise>,
    ) -> Result<Option<bool>> {
        if let Some(begun) = rise.take() {
            return Ok(self.promote_on(begun, keys, rise));
        }
        if self.catch_up(namespace, keys)?.more {
            return Ok(None);
        }
        if self.below.is_empty() {
            return Ok(Some(false));
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
                return Ok(Some(false));
            }
            let used = self.stands_on(&path[..hit.blocks]);
            match self.rise(namespace, used, 0) {
                Ok(begun) => {
                    let under_way = begun.is_reading();
                    self.restores.shallower += u64::from(under_way && limit < most);
                    return Ok(match under_way {
                        true => self.promote_on(begun, keys, rise),
                        false => Some(false),
                    });
                }
                Err(Obstacle::InTheWay) => return Ok(Some(false)),
                Err(Obstacle::UnderWay) => {
                    self.restores.shallower += u64::from(limit < most);
                    return Ok(Some(true));
                }
                Err(Obstacle::NoRoom { room, used }) => {
                    limit = self.reach(&used, room).min(hit.blocks - 1);
                }
            }
        }
    }

    fn promote_on(
        &mut self,
        mut begun: Rise,
        keys: &[PrefixKey],
        rise: &mut Option<Rise>,
    ) -> Option<bool> {
        match self.rise_on(&mut begun, keys) {
            Step::More => {
                *rise = Some(begun);
                None
            }
            Step::Done => {
                self.end_rise(&begun);
                Some(true)
            }
            // What was begun is read all the same.
            Step::NoRoom | Step::Lost => Some(begun.has_begun()),
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

    /// Makes known what a tier has of a prefix from before this cache, or from others: from where the
    /// pages that are known to be there end, for as long as the next is there with the bytes that are known. `hit`: the
    /// joint hit so far.
    fn discover(&mut self, walk: &mut Walk, keys: &[PrefixKey], hit: usize) {
        let Some(prompt) = prompt_of(walk.namespace, keys) else {
            return;
        };
        match self.index.roles().attention {
            Some(attention) => self.discover_behind(walk, keys, hit, attention),
            None => {
                self.find_unread(walk, keys);
                self.discover_alone(walk, keys, prompt);
            }
        }
        if !walk.asking && self.index.roles().attention.is_some() {
            self.below[walk.tier - 1].asked.forget(&prompt);
        }
        if let Some(kept) = walk.kept.take() {
            self.below[walk.tier - 1].tip = None;
            self.let_go_in(walk.tier, kept.into_iter().rev());
        }
    }

    fn discover_behind(
        &mut self,
        walk: &mut Walk,
        keys: &[PrefixKey],
        hit: usize,
        attention: usize,
    ) {
        let Walk {
            tier, namespace, ..
        } = *walk;
        walk.known = self.pages_in(tier, namespace, keys);
        let mut parent = self.index.end(namespace, &keys[..walk.known]);
        walk.last = parent.and_then(|node| self.index.cell(node, attention).entry());
        if self.below[tier - 1].tier.is_shared() {
            // Beyond the hit, others may have added what was missing at boundaries whose page is known.
            let from = hit.max(walk.known.saturating_sub(MOST_OTHERS));
            let mut node = parent;
            for block in (from..walk.known).rev() {
                let above = node.and_then(|node| self.index.parent(node));
                self.find_others(walk, (node, above), block, &keys[block]);
                node = above;
            }
        }
        self.find_unread(walk, keys);
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        for (block, key) in keys.iter().enumerate().skip(walk.known) {
            if walk.left == 0 {
                walk.more = true;
                return;
            }
            walk.left -= 1;
            let known = self.index.child(parent, block, namespace, key);
            if known.is_none() && self.index.has(namespace, key) {
                return; // No hash chained to those before it.
            }
            let mut node = known;
            for &class in &classes {
                let found = self.find(walk, (node, parent), block, key, class);
                if found.is_none() && class == attention {
                    if walk.asking && self.below[tier - 1].tier.asks_for_each() {
                        self.ask_for_rest(walk, keys, block);
                    }
                    return;
                }
                node = found.or(node);
            }
            parent = node;
        }
    }

    /// The same without pages that link blocks: all blocks are asked about, and when the tier asks nobody any more, some
    /// in each lookup.
    fn discover_alone(&mut self, walk: &mut Walk, keys: &[PrefixKey], prompt: Prompt) {
        let blocks = keys.len();
        let before = self.below[walk.tier - 1].asked.get(&prompt);
        let mut questions = before.unwrap_or_default();
        let count = match blocks {
            ..=PORTION => blocks,
            _ if questions.all => AGAIN,
            _ => PORTION.min(blocks - questions.next),
        };
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        for _ in 0..count {
            let block = questions.next;
            let key = &keys[block];
            questions.next = (block + 1) % blocks;
            let mut node = self.index.child(None, block, walk.namespace, key);
            if node.is_some() {
                continue; // What reads failed for is looked for apart.
            }
            if self.index.has(walk.namespace, key) {
                questions.next = 0;
                break; // No hash chained to those before it.
            }
            for &class in &classes {
                node = self.find(walk, (node, None), block, key, class).or(node);
            }
        }
        questions.asking |= walk.asking;
        walk.asking = questions.asking;
        if questions.next == 0 || questions.asking && questions.all {
            // The next lookup begins anew while the tier asks.
            questions.all = !questions.asking;
            questions.asking = false;
            questions.next = 0;
        }
        walk.more = questions.next != 0 && !questions.all;
        if blocks > PORTION {
            self.below[walk.tier - 1].asked.set(prompt, questions);
        }
    }

    /// How many leading blocks have their page in a tier, or on its way there.
    pub(super) fn pages_in(
        &self,
        tier: usize,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> usize {
        let Some(class) = self.index.roles().attention else {
            return 0;
        };
        let has = |blocks: usize| {
            let node = self.index.end(namespace, &keys[..blocks]);
            let page = node.and_then(|node| self.index.cell(node, class).entry());
            page.is_some_and(|page| self.entries.get(page).members.has(tier))
        };
        leading(keys.len(), has)
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

    /// Looks for what reads at known boundaries of a prefix have failed for.
    fn find_unread(&mut self, walk: &mut Walk, keys: &[PrefixKey]) {
        let unread = &self.below[walk.tier - 1].unread;
        if unread.is_empty() {
            return;
        }
        let linked = self.index.roles().attention.is_some();
        let at = |block: usize| match linked {
            true => self.index.end(walk.namespace, &keys[..=block]),
            false => self.index.child(None, block, walk.namespace, &keys[block]),
        };
        let mut found: Vec<_> = unread
            .iter()
            .filter(|&(&(node, _), &block)| block < keys.len() && at(block) == Some(node))
            .map(|(&(node, class), &block)| (block, class, node))
            .collect();
        found.sort_unstable_by_key(|&(block, class, _)| (block, class));
        for (block, class, node) in found {
            let at = (Some(node), self.index.parent(node));
            self.find_again(walk, at, block, &keys[block], class);
        }
    }

    /// Looks for what a read at a known boundary has failed for, until it is in the tier again.
    fn find_again(
        &mut self,
        walk: &mut Walk,
        at: (Option<NodeId>, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
        class: usize,
    ) {
        let Some(node) = at.0 else { return };
        let known = self.index.cell(node, class).entry();
        let there = known.is_some_and(|id| self.is_at(id, walk.tier));
        if there || self.find(walk, at, block, key, class).is_some() {
            self.below[walk.tier - 1].unread.remove(&(node, class));
        }
    }

    /// Asks a tier that asks for the page of a block for everything from there on, a portion at a time and once.
    /// Without that page nothing can be made known: it is all asked for again.
    fn ask_for_rest(&mut self, walk: &mut Walk, keys: &[PrefixKey], from: usize) {
        let Some(prompt) = prompt_of(walk.namespace, keys) else {
            return;
        };
        let roles = self.index.roles();
        let (attention, classes) = (roles.attention, roles.pages_first().collect::<Vec<_>>());
        let before = self.below[walk.tier - 1].asked.get(&prompt);
        let same = before.filter(|questions| questions.from == from);
        let mut questions = same.unwrap_or(Questions {
            from,
            next: from,
            ..Questions::default()
        });
        let end = keys.len().min(questions.next + walk.left);
        for (block, key) in keys.iter().enumerate().take(end).skip(questions.next) {
            for &class in &classes {
                if block > from || Some(class) != attention {
                    let name = self.name(walk.namespace, block, key, class);
                    self.below[walk.tier - 1].tier.find(&name);
                }
            }
        }
        walk.left -= end - questions.next;
        questions.next = end;
        walk.more = end < keys.len();
        self.below[walk.tier - 1].asked.set(prompt, questions);
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
            let mut chain = Vec::new();
            if let Some(page) = walk.last {
                self.below[tier - 1].tip = self.chain_below(tier, page, &mut chain);
            }
            let mut kept = self.keep_in(tier, &chain);
            kept.reverse();
            walk.kept = Some(kept);
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
        walk.changed = true;
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

/// What a lookup finds when it has asked the tiers below.
pub(super) struct CaughtUp {
    pub(super) hit: Hit,
    /// Whether a tier asks for more.
    pub(super) asking: bool,
    /// Whether there is more to ask at once.
    pub(super) more: bool,
}

/// How far a search in a tier has come.
struct Walk {
    tier: usize,
    namespace: NamespaceId,
    /// Leading boundaries whose pages are known to be in the tier.
    known: usize,
    /// The page of the last of them.
    last: Option<EntryId>,
    /// Those that are held in the tier while room is made there, and what was found: shallow first.
    kept: Option<Vec<EntryId>>,
    /// Whether the tier asks for what comes next.
    asking: bool,
    /// Whether anything was made known.
    changed: bool,
    /// Blocks that may still be asked about, and whether that is too few.
    left: usize,
    more: bool,
}
