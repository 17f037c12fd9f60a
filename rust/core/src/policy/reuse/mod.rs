//! Keeps the checkpoints that are expected to save most for the room and time that they take.

mod hazard;
mod order;
mod tree;

use hashbrown::HashMap;

use super::list::Lists;
use super::{Entry, EntryKind, Policy, Request};
use crate::ids::EntryId;
use hazard::{BINS, Features, Hazards, Kind, Origin};
use order::Order;
use tree::Tree;

const NONE: u32 = u32::MAX;
/// Of a window page that goes with its block's page.
const WINDOW: u32 = u32::MAX - 1;
/// Records kept of checkpoints that are not resident.
const GHOSTS: usize = 16_384;
/// Ages that one request brings up to date at most.
const UPDATES: usize = 256;
/// Rescorings that one eviction does at most.
const RESCORES: usize = 64;
/// One request in so many tells about boundaries that get no checkpoint.
const SAMPLE: u64 = 8;
/// Requests for which a page may wait for its first checkpoint.
const PATIENCE: u64 = 256;
/// First age bin of which only every other renews the index: about a quarter of an hour.
const COARSE: usize = 20;
/// Blocks before the end where a checkpoint is considered.
const OFFSETS: [usize; 8] = [1, 2, 3, 5, 8, 13, 21, 34];

/// A checkpoint that is resident, or was, or might have been.
#[derive(Debug, Clone, Copy)]
struct Record {
    boundary: u64,
    /// When it was made or last used.
    since: u64,
    origin: Origin,
    kind: Kind,
    features: Features,
    hits: u32,
    bin: u8,
    /// Its entry and its page, if it is resident.
    entry: u32,
    page: u32,
    held: bool,
    units: u32,
    index: f32,
    /// Blocks that it saves over the room that it frees, as of when it was last weighed.
    density: f32,
    /// The largest index among evicted ones whose requests would now resume here, and whose it is.
    inherited: f32,
    source: u32,
    /// If it is not resident: who inherited from it.
    heir: u32,
}

impl Record {
    const fn is_resident(&self) -> bool {
        self.entry != NONE
    }
}

/// See the module: hazards of reuse learned by class and age, and the room that each checkpoint owns.
///
/// - *States own pages*: a page goes as soon as no checkpoint at or below it is left.
/// - *Admission*: the end of a prompt, the branch point and the boundary before the end; more of those
///   before as their learned worth exceeds that of what is being evicted, and all of them while there
///   is room for nothing better.
/// - *Eviction*: least index x (blocks from the nearest checkpoint above) / (its units + the pages that
///   only it needs). The index is Gittins': the most expected uses an expected time held.
/// - *Inheritance*: what would have resumed at an evicted checkpoint now resumes at the nearest one
///   above, which counts for as much until the evicted one's time has passed.
pub struct Reuse {
    hazards: Hazards,
    records: Vec<Record>,
    vacant: Vec<u32>,
    by_boundary: HashMap<u64, u32>,
    /// Records by age bin, oldest first.
    ages: Lists,
    /// Records without an entry, oldest first.
    ghosts: Lists,
    ghost_count: usize,
    /// Evictable checkpoints by score.
    order: Order,
    tree: Tree,
    /// Record of each checkpoint's entry, by entry number; `NONE` for pages.
    record_of: Vec<u32>,
    /// Pages that nothing needs: those left behind, and those that wait for a checkpoint.
    bare: Lists,
    /// Request at which a waiting page was released, by entry number.
    waiting: Vec<u64>,
    held: Vec<bool>,
    now: u64,
    requests: u64,
    /// Running mean of the scores of what is evicted.
    threshold: f32,
    checkpoint_units: u32,
}

const LEFT: usize = 0;
const WAITING: usize = 1;

impl Reuse {
    /// The policy of an empty cache of so many units.
    #[must_use]
    pub fn new(units: u64) -> Self {
        let room = super::room(units);
        // A checkpoint and the pages that it owns seldom take less than four units.
        let expected = room / 4 + GHOSTS;
        Self {
            hazards: Hazards::new(),
            records: Vec::with_capacity(expected),
            vacant: Vec::new(),
            by_boundary: HashMap::with_capacity(expected),
            ages: Lists::new(BINS, expected),
            ghosts: Lists::new(1, expected),
            ghost_count: 0,
            order: Order::new(expected),
            tree: Tree::new(room),
            record_of: Vec::with_capacity(room),
            bare: Lists::new(2, room),
            waiting: Vec::with_capacity(room),
            held: Vec::with_capacity(room),
            now: 0,
            requests: 0,
            threshold: 0.0,
            checkpoint_units: 1,
        }
    }

    fn record(&mut self, at: u32) -> &mut Record {
        &mut self.records[at as usize]
    }

    /// Brings ages up to date: every bin that has passed is learned from and changes the index.
    fn grow_older(&mut self) {
        let mut left = UPDATES;
        for bin in 0..BINS - 1 {
            while let Some(at) = self.ages.first(bin) {
                let record = self.records[at as usize];
                if left == 0 || self.now < record.since + self.hazards.end(bin) {
                    break;
                }
                left -= 1;
                self.hazards.learn(&record.features, bin, 1.0, false);
                self.ages.push(bin + 1, at);
                self.record(at).bin = bin as u8 + 1;
                // Later, an index that is half an octave old is good enough.
                if bin >= COARSE && bin % 2 == 0 {
                    continue;
                }
                let leads = record.heir != NONE && self.records[record.heir as usize].source == at;
                if record.is_resident() || leads {
                    self.record(at).index = self.hazards.index(&record.features, bin + 1);
                }
                if record.is_resident() {
                    if bin % 2 == 0 {
                        self.weigh(at);
                    }
                    self.place(at);
                } else if leads {
                    self.bequeath(at);
                }
            }
        }
    }

    /// Learns from what a record has lived through since its last bin.
    fn conclude(&mut self, at: u32, used: bool) {
        let record = self.records[at as usize];
        let bin = record.bin.into();
        let age = self.now.saturating_sub(record.since);
        let share = self.hazards.share(bin, age);
        self.hazards.learn(&record.features, bin, share, used);
    }

    /// Begins a new life of a record.
    fn begin(&mut self, at: u32, kind: Kind, origin: Origin) {
        let hits = self.records[at as usize].hits;
        let features = Features::new(kind, hits, &origin);
        let index = self.hazards.index(&features, 0);
        let now = self.now;
        let record = self.record(at);
        record.kind = kind;
        record.origin = origin;
        record.features = features;
        record.since = now;
        record.bin = 0;
        record.index = index;
        let resident = record.is_resident();
        self.ages.push(0, at);
        if resident {
            self.score(at);
        } else {
            self.ghosts.push(0, at);
        }
    }

    /// A record of a boundary that has none.
    fn remember(&mut self, boundary: u64, kind: Kind, origin: Origin) -> u32 {
        let record = Record {
            boundary,
            since: self.now,
            origin,
            kind,
            features: Features::default(),
            hits: 0,
            bin: 0,
            entry: NONE,
            page: NONE,
            held: false,
            units: 0,
            index: 0.0,
            density: 0.0,
            inherited: 0.0,
            source: NONE,
            heir: NONE,
        };
        let at = match self.vacant.pop() {
            Some(at) => {
                self.records[at as usize] = record;
                at
            }
            None => {
                self.records.push(record);
                self.records.len() as u32 - 1
            }
        };
        self.by_boundary.insert(boundary, at);
        self.ghost_count += 1;
        self.begin(at, kind, origin);
        at
    }

    /// Forgets the oldest ghosts beyond their number.
    fn forget(&mut self) {
        while self.ghost_count > GHOSTS {
            let Some(at) = self.ghosts.first(0) else {
                break;
            };
            self.disinherit(at);
            self.ghosts.remove(at);
            self.ages.remove(at);
            self.by_boundary.remove(&self.records[at as usize].boundary);
            self.vacant.push(at);
            self.ghost_count -= 1;
        }
    }

    /// Hands the index of an evicted record to its heir.
    fn bequeath(&mut self, at: u32) {
        let Record { index, heir, .. } = self.records[at as usize];
        if heir == NONE {
            return;
        }
        let to = self.record(heir);
        if !to.is_resident() {
            self.record(at).heir = NONE;
        } else if to.source == at || index > to.inherited {
            to.source = at;
            to.inherited = index;
            self.score(heir);
        }
    }

    /// Takes back what a record's heir has from it.
    fn disinherit(&mut self, at: u32) {
        let heir = std::mem::replace(&mut self.record(at).heir, NONE);
        if heir != NONE && self.records[heir as usize].source == at {
            let to = self.record(heir);
            to.source = NONE;
            to.inherited = 0.0;
            if to.is_resident() {
                self.score(heir);
            }
        }
    }

    /// Expected saving a unit of room and time.
    fn worth(&self, at: u32) -> f32 {
        let record = &self.records[at as usize];
        record.index.max(record.inherited) * record.density
    }

    fn weigh(&mut self, at: u32) {
        let record = &mut self.records[at as usize];
        let weight = self.tree.weigh(EntryId(record.page));
        record.density = weight.blocks as f32 / (record.units + weight.pages) as f32;
    }

    /// Puts a resident record where it belongs in the order.
    fn place(&mut self, at: u32) {
        if !self.records[at as usize].held {
            let bucket = Order::bucket(self.worth(at));
            self.order.put(at, bucket);
        }
    }

    /// Weighs a resident record and puts it where it belongs.
    fn score(&mut self, at: u32) {
        self.weigh(at);
        self.place(at);
    }

    fn need(&mut self, page: EntryId) {
        let bare = &mut self.bare;
        self.tree.need(page, |page| {
            bare.remove(page.0);
        });
    }

    fn spare(&mut self, page: EntryId) {
        let Self {
            tree, bare, held, ..
        } = self;
        tree.spare(page, |page| {
            let free = !held[page.0 as usize];
            if free {
                bare.push(LEFT, page.0);
            }
            free
        });
    }

    /// Finds what a request would have used, and what it tells about the ways there. Returns the
    /// origin of what it will make.
    fn observe(&mut self, request: &Request<'_>) -> Origin {
        let known: Vec<(usize, u32)> = request
            .boundaries
            .iter()
            .enumerate()
            .filter_map(|(block, name)| Some((block + 1, *self.by_boundary.get(name)?)))
            .collect();
        let wanted = known
            .iter()
            .rev()
            .find(|&&(depth, _)| depth <= request.limit);
        let reached = wanted.map_or(0, |&(depth, _)| depth).max(request.resumed);
        let mut origin = Origin {
            turn: 0,
            added: (request.blocks() - reached.min(request.blocks())) as u32,
            blocks: request.blocks() as u32,
            tokens: request.tokens,
            output_tokens: 0,
            gap: 0,
        };
        if let Some(&(depth, at)) = wanted {
            self.conclude(at, true);
            self.disinherit(at);
            let now = self.now;
            let record = self.record(at);
            record.hits += 1;
            let (kind, from) = (record.kind, record.origin);
            if kind != Kind::Branch && (kind != Kind::Continued || from.turn > 0) {
                origin.turn = from.turn + 1;
                origin.gap = (now - record.since).max(1);
            }
            let goes_on = request.blocks() > depth;
            self.begin(at, if goes_on { Kind::Continued } else { kind }, from);
        }
        for &(depth, at) in &known {
            let record = &self.records[at as usize];
            let fresh = matches!(record.kind, Kind::End | Kind::Before(_)) && record.hits == 0;
            if fresh && depth <= reached && Some(&(depth, at)) != wanted {
                let from = record.origin;
                self.conclude(at, false);
                self.begin(at, Kind::Passed, from);
            }
        }
        origin
    }

    /// Notes that a boundary gets a checkpoint of a kind.
    fn plan(&mut self, boundary: u64, kind: Kind, origin: Origin) {
        let Some(&at) = self.by_boundary.get(&boundary) else {
            self.remember(boundary, kind, origin);
            return;
        };
        let record = &self.records[at as usize];
        if record.since == self.now && record.kind == Kind::Continued {
            return;
        }
        let better = matches!(
            (record.kind, kind),
            (Kind::Passed, _)
                | (Kind::End, Kind::End)
                | (Kind::Before(_), Kind::End | Kind::Branch)
        );
        if better {
            let kind = if record.hits > 0 {
                Kind::Continued
            } else {
                kind
            };
            self.conclude(at, false);
            self.begin(at, kind, origin);
        }
    }
}

impl Policy for Reuse {
    fn admit(&mut self, request: &Request<'_>, admitted: &mut Vec<usize>) {
        self.now = self.now.max(request.now);
        self.requests += 1;
        self.grow_older();
        let origin = self.observe(request);
        let end = request.blocks();
        let from = request.resumed;
        let mut add = |this: &mut Self, depth: usize, kind| {
            this.plan(request.boundaries[depth - 1], kind, origin);
            if depth > from {
                admitted.push(depth);
            }
        };
        if end > 0 {
            add(self, end, Kind::End);
        }
        let fork = request.pages;
        if fork > from && fork < end {
            add(self, fork, Kind::Branch);
        }
        for (step, offset) in OFFSETS.into_iter().enumerate() {
            if end <= from + offset || end - offset == fork {
                break;
            }
            if step > 0 {
                let kind = Kind::Before(offset as u32);
                let index = self.hazards.index(&Features::new(kind, 0, &origin), 0);
                let blocks = (end - offset - from) as f32;
                if index * blocks / (self.checkpoint_units as f32) < self.threshold {
                    // A sample is remembered all the same: what is never tried is never learned.
                    if self.requests.is_multiple_of(SAMPLE) {
                        self.plan(request.boundaries[end - offset - 1], kind, origin);
                    }
                    continue;
                }
            }
            add(self, end - offset, Kind::Before(offset as u32));
        }
        self.forget();
    }

    fn finish(&mut self, boundary: u64, output_tokens: u64) {
        let Some(&at) = self.by_boundary.get(&boundary) else {
            return;
        };
        let record = &self.records[at as usize];
        if record.kind != Kind::End {
            return;
        }
        let mut origin = record.origin;
        origin.output_tokens = output_tokens;
        let features = Features::new(Kind::End, record.hits, &origin);
        let index = self.hazards.index(&features, record.bin.into());
        let record = self.record(at);
        record.origin = origin;
        record.features = features;
        record.index = index;
        if record.is_resident() {
            self.score(at);
        }
    }

    fn enter(&mut self, entry: &Entry) {
        let at = entry.id.0 as usize;
        if at >= self.record_of.len() {
            self.record_of.resize(at + 1, NONE);
            self.held.resize(at + 1, false);
            self.waiting.resize(at + 1, 0);
        }
        self.held[at] = true;
        self.record_of[at] = NONE;
        let page = match (entry.kind, entry.parent) {
            (EntryKind::Page, parent) => {
                self.tree.add(entry.id, parent, entry.depth);
                if let Some(parent) = parent {
                    self.need(parent);
                }
                return;
            }
            (EntryKind::Window, Some(_)) => {
                self.record_of[at] = WINDOW;
                return;
            }
            (EntryKind::Window, None) => {
                self.tree.add(entry.id, None, entry.depth);
                return;
            }
            (EntryKind::Checkpoint, Some(page)) => page,
            (EntryKind::Checkpoint, None) => {
                // Without pages a checkpoint stands alone: it is its own.
                self.tree.add(entry.id, None, entry.depth);
                entry.id
            }
        };
        self.checkpoint_units = entry.units;
        let record = match self.by_boundary.get(&entry.boundary) {
            Some(&record) => record,
            None => {
                let origin = Origin {
                    turn: 0,
                    added: entry.depth,
                    blocks: entry.depth,
                    tokens: 0,
                    output_tokens: 0,
                    gap: 0,
                };
                self.remember(entry.boundary, Kind::End, origin)
            }
        };
        self.record_of[at] = record;
        self.ghosts.remove(record);
        self.ghost_count -= 1;
        self.disinherit(record);
        self.tree.mark(page, Some(record));
        self.need(page);
        let bin = self.records[record as usize].bin.into();
        let index = self
            .hazards
            .index(&self.records[record as usize].features, bin);
        let held = self.record(record);
        held.entry = entry.id.0;
        held.page = page.0;
        held.units = entry.units;
        held.held = true;
        held.index = index;
        held.inherited = 0.0;
        held.source = NONE;
    }

    fn release(&mut self, id: EntryId) {
        self.held[id.0 as usize] = false;
        let record = self.record_of[id.0 as usize];
        if record == WINDOW {
            return;
        }
        if record != NONE {
            if std::mem::take(&mut self.record(record).held) {
                self.score(record);
            }
        } else if !self.tree.is_needed(id) {
            self.waiting[id.0 as usize] = self.requests;
            self.bare.push(WAITING, id.0);
        }
    }

    fn hold(&mut self, id: EntryId) {
        self.held[id.0 as usize] = true;
        let record = self.record_of[id.0 as usize];
        match record {
            WINDOW => {}
            NONE => {
                self.bare.remove(id.0);
            }
            record => {
                self.record(record).held = true;
                self.order.take(record);
            }
        }
    }

    fn leave(&mut self, id: EntryId) {
        let record = std::mem::replace(&mut self.record_of[id.0 as usize], NONE);
        self.bare.remove(id.0);
        if record == WINDOW {
            return;
        }
        if record == NONE {
            if let Some(parent) = self.tree.remove(id) {
                self.spare(parent);
            }
            return;
        }
        self.order.take(record);
        let page = EntryId(self.records[record as usize].page);
        let above = self.tree.weigh(page).above;
        self.tree.mark(page, None);
        if page == id {
            self.tree.remove(page);
        }
        self.spare(page);
        let gone = self.record(record);
        gone.entry = NONE;
        gone.page = NONE;
        gone.held = false;
        gone.inherited = 0.0;
        let source = std::mem::replace(&mut gone.source, NONE);
        gone.heir = above.unwrap_or(NONE);
        self.ghosts.push(0, record);
        self.ghost_count += 1;
        self.bequeath(record);
        if source != NONE {
            self.record(source).heir = above.unwrap_or(NONE);
            self.bequeath(source);
        }
        self.forget();
    }

    fn victim(&mut self) -> Option<EntryId> {
        if let Some(page) = self.bare.first(LEFT) {
            return Some(EntryId(page));
        }
        let waiting = self.bare.first(WAITING);
        if let Some(page) = waiting
            && self.waiting[page as usize] + PATIENCE < self.requests
        {
            return Some(EntryId(page));
        }
        for _ in 0..RESCORES {
            let Some((at, bucket)) = self.order.least() else {
                return waiting.map(EntryId);
            };
            // What happened around it since it was last weighed may have made it worth more.
            self.weigh(at);
            let worth = self.worth(at);
            let now = Order::bucket(worth);
            if now <= bucket {
                self.threshold += 0.02 * (worth - self.threshold);
                return Some(EntryId(self.records[at as usize].entry));
            }
            self.order.put(at, now);
        }
        let (at, _) = self.order.least()?;
        Some(EntryId(self.records[at as usize].entry))
    }

    fn surplus(&mut self) -> Option<EntryId> {
        self.bare.first(LEFT).map(EntryId)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.hazards.bytes()
            + self.records.capacity() * size_of::<Record>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.by_boundary.allocation_size()
            + self.ages.bytes()
            + self.ghosts.bytes()
            + self.order.bytes()
            + self.tree.bytes()
            + self.record_of.capacity() * size_of::<u32>()
            + self.bare.bytes()
            + self.waiting.capacity() * size_of::<u64>()
            + self.held.capacity()
    }
}
