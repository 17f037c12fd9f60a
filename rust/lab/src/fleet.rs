//! A simulation of one fleet of engines over a remote store: hits, and the load on the store.
//!
//! Each engine has a host of its own. Together the engines get as many copies of a trace as they could just compute
//! without a hit. The first half of the time fills the caches; counts are of the second half.

use std::ops::ControlFlow;

use hybrid_pages::ids::PrefixKey;

use crate::engine::{CHECKPOINT, PAGE, SimulatedEngine, imbalance};
use crate::error::Result;
use crate::network::{NetworkLink, RemoteUse};
use crate::packs::SimulatedPacks;
use crate::router::{Route, Router};
use crate::scaled_trace::{ScaledRequest, ScaledTrace};
use crate::store_load::{PackFormat, StoreLoad};
use crate::trace::Trace;

/// Number of requests between two reports of progress.
const REPORT: usize = 1000;

/// The settings that all fleets have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetTerms {
    /// Name of the policy of each host.
    pub policy: String,
    /// Size of a checkpoint; a page has size 1.
    pub ratio: u32,
    /// Size limit of each host.
    pub host_size: u64,
    /// The network between an engine and the store.
    pub link: NetworkLink,
    /// The format of the store's objects.
    pub packing: PackFormat,
    /// Whether blocks that many sessions of the trace share are the same in all copies.
    pub share: bool,
    /// How many milliseconds of the trace to simulate; `None` for all.
    pub lasts: Option<u64>,
}

/// A fleet of engines over one remote store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// Number of engines.
    pub engines: usize,
    /// How a router chooses an engine for a request.
    pub route: Route,
    /// How engines use the store; `None` if they have none.
    pub admit: Option<RemoteUse>,
}

/// The results of a fleet in the second half of the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetRow {
    /// The fleet.
    pub fleet: Fleet,
    /// Number of copies of the trace.
    pub copies: f64,
    /// Seconds that are counted.
    pub seconds: f64,
    /// Number of requests.
    pub requests: u64,
    /// Tokens of all prompts.
    pub input_tokens: u64,
    /// Tokens that requests resumed over.
    pub hit_tokens: u64,
    /// The part of `hit_tokens` that was fetched.
    pub remote_hit_tokens: u64,
    /// Tokens that the store had and the host lacked, in prefixes that are faster to compute than to fetch.
    pub remote_slow_tokens: u64,
    /// Seconds of computing that fetching saved, minus the seconds that it took.
    pub saved_seconds: f64,
    /// Tokens that the busiest engine computed in the whole time, divided by the mean of all engines.
    pub imbalance: f64,
    /// Counts of requests to the store and of bytes.
    pub load: StoreLoad,
    /// For each of these counts, the highest value in any one second.
    pub most: StoreLoad,
    /// Number of packs in the store at the end.
    pub packs: u64,
    /// Number of entries in the store at the end. The index of each engine holds as many.
    pub entries: u64,
    /// Bytes in the store at the end.
    pub stored_bytes: u64,
}

/// The time span that is counted, in ms: the whole seconds of the second half.
pub(crate) fn counted(trace: &Trace) -> (u64, u64) {
    let end = trace.lasts() / 1000 * 1000;
    ((trace.lasts() / 2).div_ceil(1000) * 1000, end)
}

/// How many copies of a trace this number of engines can just serve without hits.
pub(crate) fn copies(trace: &Trace, terms: &FleetTerms, engines: usize) -> f64 {
    let per_second = trace.input_tokens() as f64 * 1000.0 / trace.lasts().max(1) as f64;
    engines as f64 * terms.link.speed / per_second
}

/// Simulates one fleet; `None` if `progress` says to stop.
pub(crate) fn run(
    trace: &Trace,
    terms: &FleetTerms,
    fleet: Fleet,
    progress: &dyn Fn(usize) -> ControlFlow<()>,
) -> Result<Option<FleetRow>> {
    let copies = copies(trace, terms, fleet.engines);
    let scaled = ScaledTrace::new(trace, copies, terms.share)?;
    let mut engines = Vec::with_capacity(fleet.engines);
    for _ in 0..fleet.engines {
        engines.push(SimulatedEngine::new(
            &terms.policy,
            terms.ratio,
            terms.host_size as usize,
        )?);
    }
    let router = Router::new(fleet.route, &engines, terms.link.speed / 1000.0)?;
    let blocks = fleet.admit.map_or(0, |_| scaled.block_count());
    let (half, end) = counted(trace);
    let mut simulation = Simulation {
        terms,
        block_tokens: trace.block_tokens(),
        admit: fleet.admit,
        scaled: &scaled,
        engines,
        router,
        packs: SimulatedPacks::new(terms.packing, terms.link, blocks, fleet.engines),
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
            load: StoreLoad::default(),
            most: StoreLoad::default(),
            packs: 0,
            entries: 0,
            stored_bytes: 0,
        },
        blocks: Vec::new(),
        keys: Vec::new(),
    };
    let before_end = scaled.requests.partition_point(|request| request.now < end);
    for requests in scaled.requests[..before_end].chunks(REPORT) {
        for request in requests {
            simulation.step(request, request.now >= half)?;
        }
        if progress(requests.len()).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(simulation.end(half, end)))
}

struct Simulation<'a> {
    terms: &'a FleetTerms,
    block_tokens: u64,
    admit: Option<RemoteUse>,
    scaled: &'a ScaledTrace<'a>,
    engines: Vec<SimulatedEngine>,
    router: Router,
    packs: SimulatedPacks,
    row: FleetRow,
    /// Blocks of the current request.
    blocks: Vec<usize>,
    /// Keys of the current request.
    keys: Vec<PrefixKey>,
}

impl Simulation<'_> {
    fn step(&mut self, request: &ScaledRequest, counted: bool) -> Result<()> {
        let (now, traced) = (request.now, self.scaled.traced(request));
        self.blocks.clear();
        self.blocks.extend(self.scaled.blocks(request));
        self.keys.clear();
        for &block in &self.blocks {
            self.keys.push(self.scaled.key(block)?);
        }
        let (at, _) = self
            .router
            .choose(now, traced.tokens, self.block_tokens, &self.keys);
        let before = self.row;
        let fetched = match self.admit {
            Some(admit) if !self.keys.is_empty() => self.fetch(at, now, traced.tokens, admit)?,
            _ => 0,
        };
        let engine = &mut self.engines[at];
        let ran = engine.run(traced, now, self.block_tokens, &self.keys, fetched)?;
        let hit_tokens = ran.resumed as u64 * self.block_tokens;
        let computed = traced.tokens - hit_tokens;
        self.router.hear(at, engine, now, computed, &self.keys);
        match self.admit {
            Some(RemoteUse::All) => {
                for &(kind, block) in &ran.published {
                    self.packs.store(at, kind, self.blocks[block], now);
                }
            }
            Some(RemoteUse::Auto) => {
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
            self.row.input_tokens += traced.tokens;
            self.row.hit_tokens += hit_tokens;
        } else {
            self.row = before;
        }
        Ok(())
    }

    /// If `admit` wants it, fetches the entries of a prompt that the store has and the host lacks. Returns the number
    /// of blocks that the request then resumes over.
    fn fetch(&mut self, at: usize, now: u64, tokens: u64, admit: RemoteUse) -> Result<usize> {
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
            if admit == RemoteUse::Auto {
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
