//! One fleet of engines over a remote store: hits, and the load on the store.
//!
//! Each engine has a host of its own. Together they get as many copies of a trace as they could just compute
//! without a hit. The first half of the time fills what is empty; counts are of the second half.

use std::ops::ControlFlow;

use hybrid_pages::ids::PrefixKey;

use crate::crowd::{Call, Crowd};
use crate::engine::{CHECKPOINT, Engine, PAGE, imbalance};
use crate::error::Result;
use crate::link::{Admit, Link};
use crate::load::{Load, Packing};
use crate::packs::Packs;
use crate::router::{Route, Router};
use crate::trace::Trace;

/// Requests between two reports of progress.
const REPORT: usize = 1000;

/// What all fleets have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// Of each host.
    pub policy: String,
    /// Size of a checkpoint; a page has size 1.
    pub ratio: u32,
    /// Room of each host, as a size.
    pub host_size: u64,
    /// From an engine to the store.
    pub link: Link,
    /// What is in the store.
    pub packing: Packing,
    /// Whether copies of the trace have the blocks in common that many of its sessions share.
    pub share: bool,
    /// Only so many ms of the trace; `None` for all of it.
    pub lasts: Option<u64>,
}

/// One fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// Engines.
    pub engines: usize,
    /// How requests find them.
    pub route: Route,
    /// How they use the store; `None` for not at all.
    pub admit: Option<Admit>,
}

/// What a fleet did in the second half of the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetRow {
    /// Which fleet.
    pub fleet: Fleet,
    /// Copies of the trace.
    pub copies: f64,
    /// Seconds that are counted.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Tokens of all prompts.
    pub input_tokens: u64,
    /// Tokens that were resumed over.
    pub hit_tokens: u64,
    /// Of these, what was fetched.
    pub remote_hit_tokens: u64,
    /// Tokens that the store had beyond the host in prefixes that are faster to compute.
    pub remote_slow_tokens: u64,
    /// Seconds of computing that fetching saved, less those of fetching.
    pub saved_seconds: f64,
    /// Tokens that the busiest engine computed over their mean, all the time.
    pub imbalance: f64,
    /// Requests to the store and bytes.
    pub load: Load,
    /// The most of each in one second.
    pub most: Load,
    /// Packs at the end.
    pub packs: u64,
    /// Entries at the end: what every engine's index holds.
    pub entries: u64,
    /// Bytes of them.
    pub stored_bytes: u64,
}

/// The time that is counted, in ms: whole seconds of the second half.
pub(crate) fn counted(trace: &Trace) -> (u64, u64) {
    let end = trace.lasts() / 1000 * 1000;
    ((trace.lasts() / 2).div_ceil(1000) * 1000, end)
}

/// Copies of a trace that make work for so many engines.
pub(crate) fn copies(trace: &Trace, terms: &Terms, engines: usize) -> f64 {
    let per_second = trace.input_tokens() as f64 * 1000.0 / trace.lasts().max(1) as f64;
    engines as f64 * terms.link.speed / per_second
}

/// One fleet; `None` if the progress says to stop.
pub(crate) fn run(
    trace: &Trace,
    terms: &Terms,
    fleet: Fleet,
    progress: &dyn Fn(usize) -> ControlFlow<()>,
) -> Result<Option<FleetRow>> {
    let copies = copies(trace, terms, fleet.engines);
    let crowd = Crowd::new(trace, copies, terms.share)?;
    let mut engines = Vec::with_capacity(fleet.engines);
    for _ in 0..fleet.engines {
        engines.push(Engine::new(
            &terms.policy,
            terms.ratio,
            terms.host_size as usize,
        )?);
    }
    let router = Router::new(fleet.route, &engines, terms.link.speed / 1000.0)?;
    let blocks = fleet.admit.map_or(0, |_| crowd.block_count());
    let (half, end) = counted(trace);
    let mut simulation = Simulation {
        terms,
        block_tokens: trace.block_tokens(),
        admit: fleet.admit,
        crowd: &crowd,
        engines,
        router,
        packs: Packs::new(terms.packing, terms.link, blocks, fleet.engines),
        row: FleetRow {
            fleet,
            copies,
            seconds: (end - half) as f64 / 1000.0,
            requests: 0,
            input_tokens: 0,
            hit_tokens: 0,
            remote_hit_tokens: 0,
            remote_slow_tokens: 0,
            saved_seconds: 0.0,
            imbalance: 0.0,
            load: Load::default(),
            most: Load::default(),
            packs: 0,
            entries: 0,
            stored_bytes: 0,
        },
        blocks: Vec::new(),
        keys: Vec::new(),
    };
    let before_end = crowd.calls.partition_point(|call| call.now < end);
    for calls in crowd.calls[..before_end].chunks(REPORT) {
        for call in calls {
            simulation.step(call, call.now >= half)?;
        }
        if progress(calls.len()).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(simulation.end(half, end)))
}

struct Simulation<'a> {
    terms: &'a Terms,
    block_tokens: u64,
    admit: Option<Admit>,
    crowd: &'a Crowd<'a>,
    engines: Vec<Engine>,
    router: Router,
    packs: Packs,
    row: FleetRow,
    /// Of the request at hand.
    blocks: Vec<usize>,
    keys: Vec<PrefixKey>,
}

impl Simulation<'_> {
    fn step(&mut self, call: &Call, counted: bool) -> Result<()> {
        let (now, visit) = (call.now, self.crowd.visit(call));
        self.blocks.clear();
        self.blocks.extend(self.crowd.blocks(call));
        self.keys.clear();
        for &block in &self.blocks {
            self.keys.push(self.crowd.key(block)?);
        }
        let (at, _) = self
            .router
            .choose(now, visit.tokens, self.block_tokens, &self.keys);
        let before = self.row;
        let fetched = match self.admit {
            Some(admit) if !self.keys.is_empty() => self.fetch(at, now, visit.tokens, admit)?,
            _ => 0,
        };
        let engine = &mut self.engines[at];
        let ran = engine.run(visit, now, self.block_tokens, &self.keys, fetched)?;
        let hit_tokens = ran.resumed as u64 * self.block_tokens;
        let computed = visit.tokens - hit_tokens;
        self.router.hear(at, engine, now, computed, &self.keys);
        match self.admit {
            Some(Admit::All) => {
                for &(kind, block) in &ran.published {
                    self.packs.store(at, kind, self.blocks[block], now);
                }
            }
            Some(Admit::Auto) => {
                for &block in &self.blocks[..ran.resumed] {
                    self.packs.store(at, PAGE, block, now);
                }
                if let Some(last) = ran.resumed.checked_sub(1) {
                    self.packs.store(at, CHECKPOINT, self.blocks[last], now);
                }
                for &(kind, block) in ran.published.iter().filter(|&&(_, block)| block < ran.seen) {
                    self.packs.store(at, kind, self.blocks[block], now);
                }
            }
            None => {}
        }
        if counted {
            self.row.requests += 1;
            self.row.input_tokens += visit.tokens;
            self.row.hit_tokens += hit_tokens;
        } else {
            self.row = before;
        }
        Ok(())
    }

    /// Fetches what the store has beyond the host, if that is wanted. Returns after how many blocks the request
    /// then resumes.
    fn fetch(&mut self, at: usize, now: u64, tokens: u64, admit: Admit) -> Result<usize> {
        let packs = &mut self.packs;
        packs.advance(now);
        packs.look(at, now);
        let limit = (tokens.saturating_sub(1) / self.block_tokens) as usize;
        let limit = limit.min(self.keys.len());
        let hit = self.engines[at].hit(&self.keys[..limit])?;
        let beyond = self.blocks[hit.pages..limit].iter();
        let pages = hit.pages
            + beyond
                .take_while(|&&block| packs.has(at, PAGE, block, now))
                .count();
        let deepest = (hit.blocks..pages)
            .rev()
            .find(|&block| packs.has(at, CHECKPOINT, self.blocks[block], now));
        let Some(last) = deepest else {
            return Ok(0);
        };
        let first = hit.pages.min(last + 1);
        let gained = (last + 1 - hit.blocks) as u64 * self.block_tokens;
        let link = &self.terms.link;
        let bytes = link.bytes(last + 1 - first, 1);
        let saved = link.compute(gained) - link.fetch(bytes);
        if saved <= 0.0 {
            self.row.remote_slow_tokens += gained;
            if admit == Admit::Auto {
                return Ok(0);
            }
        }
        self.row.remote_hit_tokens += gained;
        self.row.saved_seconds += saved;
        let pages = self.blocks[first..=last].iter().map(|&block| (PAGE, block));
        packs.fetch(now, pages.chain([(CHECKPOINT, self.blocks[last])]));
        self.engines[at].bring(&self.keys[..=last], first)?;
        Ok(last + 1)
    }

    fn end(mut self, half: u64, end: u64) -> FleetRow {
        self.packs.advance(end);
        let row = &mut self.row;
        let seconds = self.packs.seconds.iter().take((end / 1000) as usize);
        for second in seconds.skip((half / 1000) as usize) {
            row.load.add(second);
            row.most.most(second);
        }
        row.imbalance = imbalance(&self.engines);
        row.packs = self.packs.live_packs;
        row.entries = self.packs.live_entries;
        row.stored_bytes = self.packs.live_bytes;
        self.row
    }
}
