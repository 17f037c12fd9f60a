//! Finds entries that tiers below have and this cache has not put there: from before a restart, or from other machines.

use super::queries::{AGAIN, PORTION, Prompt, Query, prompt_of};
use super::state::CacheState;
use crate::error::Result;
use crate::ids::{EntryId, EntryKey, NamespaceId, NodeId, PrefixKey};
use crate::prefix::{Hit, boundary_name, check_chain};
use crate::slot::Places;
use crate::tier::Found;

/// The result of asking the tiers below in a lookup.
pub(super) struct Discovered {
    pub(super) hit: Hit,
    /// Whether a tier asks somebody for more.
    pub(super) asking: bool,
}

/// How far a call has come in asking the tiers below about its prompt, a portion at a time.
#[derive(Default)]
pub(super) struct Discovery {
    portions: usize,
    /// Whether nothing is left to ask at once.
    pub(super) done: bool,
}

impl Discovery {
    /// Counts a portion. What one prompt makes known may push another's out of a tier, so a call ends, too, when it has
    /// asked about each block twice.
    const fn count(&mut self, more: bool, blocks: usize) {
        self.portions += 1;
        self.done = !more || self.portions > 2 * (blocks / PORTION + 1);
    }
}

/// How far a search in a tier has come.
struct Search {
    tier: usize,
    namespace: NamespaceId,
    /// Leading boundaries whose pages are known to be in the tier.
    known: usize,
    /// The page of the last of these boundaries.
    last: Option<EntryId>,
    /// The entries that are pinned in the tier while room is made there, with those that were found: shallow first.
    pinned: Option<Vec<EntryId>>,
    /// Whether the tier asks somebody for what comes next.
    asking: bool,
    /// Whether any entry was made known.
    changed: bool,
    /// Blocks that may still be asked about.
    left: usize,
    /// Whether there were more blocks to ask about than that.
    more: bool,
}

/// Boundaries of a prompt that a lookup asks a shared tier about beyond the hit, from the deepest page that is known.
const MOST_OTHERS: usize = 256;

impl CacheState {
    /// Takes note of copies that ended, and asks the tiers below about a portion of the entries that this cache has not
    /// put there.
    pub(super) fn discover(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        discovery: &mut Discovery,
    ) -> Result<Discovered> {
        self.index.namespaces.check(namespace)?;
        check_chain(keys, 0)?;
        if !self.tiers.has_lower() || self.index.is_clearing() {
            discovery.done = true;
            let hit = self.hit_anywhere(namespace, keys);
            return Ok(Discovered { hit, asking: false });
        }
        // A failed read, or making room, may take the last boundary of a namespace that nobody holds.
        self.index.namespaces.hold(namespace);
        self.poll();
        let mut discovered = Discovered {
            hit: self.index.hits(namespace, keys),
            asking: false,
        };
        let mut more = false;
        for tier in self.tiers.below_host() {
            let mut search = Search {
                tier,
                namespace,
                known: 0,
                last: None,
                pinned: None,
                asking: false,
                changed: false,
                left: PORTION,
                more: false,
            };
            self.search(&mut search, keys, discovered.hit.blocks);
            discovered.asking |= search.asking;
            more |= search.more;
            if search.changed {
                discovered.hit = self.index.hits(namespace, keys);
            }
        }
        discovery.count(more, keys.len());
        self.index.namespaces.let_go(namespace);
        Ok(discovered)
    }

    /// Discovers what tiers below have of a prompt, unless that is done. False if the lock is to be free before the
    /// caller goes on: there is more to ask, or the prompt is long, so that what follows takes a hold of its own.
    pub(super) fn discover_on(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        discovery: &mut Discovery,
    ) -> Result<bool> {
        if discovery.done {
            return Ok(true);
        }
        self.discover(namespace, keys, discovery)?;
        Ok(discovery.done && keys.len() <= PORTION)
    }

    /// Forgets the questions that a lookup of this prompt has asked: nobody waits for the answers.
    pub(super) fn forget_queries(&mut self, namespace: NamespaceId, keys: &[PrefixKey]) {
        let Some(prompt) = prompt_of(namespace, keys) else {
            return;
        };
        for lower in &mut self.tiers.below {
            lower.queries.forget(&prompt);
        }
    }

    /// Makes known what a tier has of a prefix from before this cache, or from others. The search begins behind the
    /// last page that is known to be there, and goes on while the tier has the next page with the known bytes. `hit`:
    /// the joint hit so far.
    fn search(&mut self, search: &mut Search, keys: &[PrefixKey], hit: usize) {
        let Some(prompt) = prompt_of(search.namespace, keys) else {
            return;
        };
        match self.index.roles().attention {
            Some(attention) => self.search_behind(search, keys, hit, attention),
            None => {
                self.find_unread(search, keys);
                self.search_alone(search, keys, prompt);
            }
        }
        if !search.asking && self.index.roles().attention.is_some() {
            self.tiers.lower_mut(search.tier).queries.forget(&prompt);
        }
        if let Some(pinned) = search.pinned.take() {
            self.tiers.lower_mut(search.tier).prefix_pin = None;
            self.unpin_in(search.tier, pinned.into_iter().rev());
        }
    }

    fn search_behind(
        &mut self,
        search: &mut Search,
        keys: &[PrefixKey],
        hit: usize,
        attention: usize,
    ) {
        let Search {
            tier, namespace, ..
        } = *search;
        search.known = self.pages_in(tier, namespace, keys);
        let parent = self.index.end(namespace, &keys[..search.known]);
        search.last = parent.and_then(|node| self.index.cell(node, attention).entry());
        if self.tiers.lower(tier).tier.is_shared() {
            // Beyond the hit, others may have added what was missing at boundaries whose page is known.
            let from = hit.max(search.known.saturating_sub(MOST_OTHERS));
            let mut node = parent;
            for block in (from..search.known).rev() {
                let above = node.and_then(|node| self.index.parent(node));
                self.find_others(search, (node, above), block, &keys[block]);
                node = above;
            }
        }
        self.find_unread(search, keys);
        if search.changed {
            search.known = self.pages_in(tier, namespace, keys);
        }
        let mut parent = self.index.end(namespace, &keys[..search.known]);
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        for (block, key) in keys.iter().enumerate().skip(search.known) {
            if search.left == 0 {
                search.more = true;
                return;
            }
            search.left -= 1;
            let known = self.index.child(parent, block, namespace, key);
            if known.is_none() && self.index.has(namespace, key) {
                return; // The key is known behind another prefix, so keys are not chained.
            }
            let mut node = known;
            for &class in &classes {
                let found = self.find(search, (node, parent), block, key, class);
                if found.is_none() && class == attention {
                    if search.asking && self.tiers.lower(tier).tier.asks_for_each() {
                        self.ask_for_rest(search, keys, block);
                    }
                    return;
                }
                node = found.or(node);
            }
            parent = node;
        }
    }

    /// Searches where no pages link blocks. All blocks are asked about once; when the tier waits for no more answers,
    /// each lookup asks about some again.
    fn search_alone(&mut self, search: &mut Search, keys: &[PrefixKey], prompt: Prompt) {
        let blocks = keys.len();
        let before = self.tiers.lower(search.tier).queries.get(&prompt);
        let mut query = before.unwrap_or_default();
        let count = match blocks {
            ..=PORTION => blocks,
            _ if query.all => AGAIN,
            _ => PORTION.min(blocks - query.next),
        };
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        for _ in 0..count {
            let block = query.next;
            let key = &keys[block];
            query.next = (block + 1) % blocks;
            let mut node = self.index.child(None, block, search.namespace, key);
            if node.is_some() {
                continue; // `find_unread` looks for entries at known boundaries.
            }
            if self.index.has(search.namespace, key) {
                query.next = 0;
                break; // As above: keys are not chained.
            }
            for &class in &classes {
                node = self.find(search, (node, None), block, key, class).or(node);
            }
        }
        query.asking |= search.asking;
        search.asking = query.asking;
        if query.next == 0 || query.asking && query.all {
            // The next lookup begins anew while the tier asks.
            query.all = !query.asking;
            query.asking = false;
            query.next = 0;
        }
        search.more = query.next != 0 && !query.all;
        if blocks > PORTION {
            self.tiers.lower_mut(search.tier).queries.set(prompt, query);
        }
    }

    /// Looks for the entries that a boundary lacks beside its page.
    fn find_others(
        &mut self,
        search: &mut Search,
        at: (Option<NodeId>, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
    ) {
        let roles = self.index.roles();
        let (attention, classes) = (roles.attention, roles.pages_first().collect::<Vec<_>>());
        for class in classes {
            let known = at.0.and_then(|node| self.index.cell(node, class).entry());
            let there = known.is_some_and(|id| !self.lacks(search.tier, id));
            if Some(class) != attention && !there {
                self.find(search, at, block, key, class);
            }
        }
    }

    /// Looks again for entries at known boundaries of a prefix whose reads failed, until they are in the tier.
    fn find_unread(&mut self, search: &mut Search, keys: &[PrefixKey]) {
        let unread = &self.tiers.lower(search.tier).unread;
        if unread.is_empty() {
            return;
        }
        let namespace = search.namespace;
        let is_at = |state: &Self, node: NodeId, block: usize| {
            state.index.at(namespace, keys, block) == Some(node)
        };
        let mut found: Vec<_> = unread
            .iter()
            .filter(|&(&(node, _), &block)| is_at(self, node, block))
            .map(|(&(node, class), &block)| (block, class, node))
            .collect();
        found.sort_unstable_by_key(|&(block, class, _)| (block, class));
        for (block, class, node) in found {
            // Making room for one may take out the last entry of another's boundary.
            if !is_at(self, node, block) {
                continue;
            }
            let at = (Some(node), self.index.parent(node));
            let known = self.index.cell(node, class).entry();
            let there = known.is_some_and(|id| !self.lacks(search.tier, id));
            // Where the page that it hangs from has left, an entry has no place.
            let page = self.index.support(node, class);
            let fits = page.is_none_or(|page| self.entries.get(page).members.has(search.tier));
            if there || fits && self.find(search, at, block, &keys[block], class).is_some() {
                let lower = self.tiers.lower_mut(search.tier);
                lower.unread.remove(&(node, class));
                if self.index.roles().attention == Some(class) {
                    // They left the tier with the page.
                    self.find_others(search, at, block, &keys[block]);
                }
            }
        }
    }

    /// When a tier has to ask others for the page of a block, asks it for everything from there on: a portion at a
    /// time, and once. Entries behind that page can't be made known before it is, so a later lookup asks again.
    fn ask_for_rest(&mut self, search: &mut Search, keys: &[PrefixKey], from: usize) {
        let Some(prompt) = prompt_of(search.namespace, keys) else {
            return;
        };
        let roles = self.index.roles();
        let (attention, classes) = (roles.attention, roles.pages_first().collect::<Vec<_>>());
        let before = self.tiers.lower(search.tier).queries.get(&prompt);
        let same = before.filter(|query| query.from == from);
        let mut query = same.unwrap_or(Query {
            from,
            next: from,
            ..Query::default()
        });
        let end = keys.len().min(query.next + search.left);
        for (block, key) in keys.iter().enumerate().take(end).skip(query.next) {
            for &class in &classes {
                if block > from || Some(class) != attention {
                    let name = self.name(search.namespace, block, key, class);
                    self.tiers.lower_mut(search.tier).tier.find(&name);
                }
            }
        }
        search.left -= end - query.next;
        query.next = end;
        search.more = end < keys.len();
        self.tiers.lower_mut(search.tier).queries.set(prompt, query);
    }

    pub(super) fn name(
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
        search: &mut Search,
        (node, parent): (Option<NodeId>, Option<NodeId>),
        block: usize,
        key: &PrefixKey,
        class: usize,
    ) -> Option<NodeId> {
        let Search {
            tier, namespace, ..
        } = *search;
        let name = self.name(namespace, block, key, class);
        let ranks = self.classes.ranks();
        let lower = self.tiers.lower_mut(tier);
        let checksums = match lower.tier.find(&name) {
            Found::Here(checksums) => checksums,
            Found::Absent => return None,
            Found::Asking => {
                search.asking = true;
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
            if self.lacks(tier, id) {
                self.tiers.lower_mut(tier).tier.forget(&name);
            }
            return None;
        }
        if search.pinned.is_none() {
            let mut chain = Vec::new();
            if let Some(page) = search.last {
                self.pin_prefix_in(tier, page, &mut chain);
            }
            let mut pinned = self.pin_in(tier, &chain);
            pinned.reverse();
            search.pinned = Some(pinned);
        }
        if !self.make_room(tier, self.classes.slots(class).into()) {
            self.tiers.lower_mut(tier).tier.forget(&name);
            return None;
        }
        // The boundary may have been known by what has made room.
        let node = node
            .filter(|&node| self.index.knows(node))
            .unwrap_or_else(|| {
                self.index
                    .add(parent, block, namespace, key, &mut self.announced)
            });
        let id = known.unwrap_or_else(|| {
            let id = self.introduce(node, class);
            self.entries.set_checksums(id, Some(&checksums));
            id
        });
        let entry = self.entries.get_mut(id);
        entry.members = entry.members.with(Places::of(tier));
        self.add_place(id, tier);
        let seed = self.index.namespaces.known_seed(namespace);
        let new = self.as_new(id, node, (block, boundary_name(seed, key)));
        let lower = self.tiers.lower_mut(tier);
        lower.tier.room_mut().enter(&new);
        lower.stats.found += 1;
        search.pinned.get_or_insert_default().push(id);
        search.changed = true;
        Some(node)
    }

    /// Whether a known entry has the same bytes as the tier has.
    fn may_join(&self, id: EntryId, tier: usize, checksums: &[u64]) -> bool {
        let entry = self.entries.get(id);
        self.lacks(tier, id)
            && !entry.places.is_empty()
            && self.entries.checksums(id) == Some(checksums)
    }
}
