//! A router in front of several engines, each with a live cache that tells it what it has.
//!
//! The router knows of an engine what [`Cache::changes`] told it, what it sent there, and how much the engine
//! has still to compute. It sends a request to where it would end first. An engine computes as many tokens a
//! second as its part of the trace has, so that without hits it is just busy; the budget is shared out evenly.

use hashbrown::HashSet;
use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, Medium};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};

use crate::error::Result;
use crate::replay::Budget;
use crate::trace::{Trace, Visit};

/// How requests find their engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// In turn.
    RoundRobin,
    /// By what engines have still to compute alone.
    Load,
    /// An engine is taken to have whatever was ever sent there: what a router can know without events.
    Sent,
    /// An engine has what it announces.
    Events,
}

impl Route {
    /// Every way, with its name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("round-robin", Self::RoundRobin),
        ("load", Self::Load),
        ("sent", Self::Sent),
        ("events", Self::Events),
    ];

    /// The way of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other.
    pub fn by_name(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|&(_, route)| route).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            Error::InvalidArgument(format!("route: expected one of {names}, found {name:?}")).into()
        })
    }
}

/// The outcome of one way to route.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Routed {
    /// Tokens of all prompts.
    pub input_tokens: u64,
    /// Tokens that were resumed over.
    pub hit_tokens: u64,
    /// Tokens that the router expected to be resumed over.
    pub predicted_tokens: u64,
    /// Tokens that the busiest engine computed, over their mean.
    pub imbalance: f64,
}

/// An engine, and what the router knows of it.
struct Engine {
    cache: Cache,
    namespace: NamespaceId,
    announced: HashSet<PrefixKey>,
    sent: HashSet<PrefixKey>,
    /// Tokens computed in all.
    computed: u64,
    /// Tokens that it had still to compute at a time in ms.
    backlog: (f64, u64),
}

impl Engine {
    fn new(policy: &str, ratio: u32, slots: usize) -> Result<Self> {
        let class = |kind, slots_per_entry| ClassConfig {
            kind,
            window_blocks: 0,
            slots_per_entry,
        };
        let cache = Cache::new(&CacheConfig {
            classes: vec![
                class(ClassKind::Attention, 1),
                class(ClassKind::Recurrent, ratio as usize),
            ],
            ranks: 1,
            slots,
            slot_bytes: 1,
            policy: policy.to_owned(),
            tenant_slots: None,
        })?;
        cache.follow()?;
        Ok(Self {
            namespace: cache.namespace(b"lab")?,
            cache,
            announced: HashSet::new(),
            sent: HashSet::new(),
            computed: 0,
            backlog: (0.0, 0),
        })
    }

    /// Runs a request; returns after how many blocks it resumed.
    fn run(&mut self, visit: &Visit, block_tokens: u64, keys: &[PrefixKey]) -> Result<usize> {
        let limit = (visit.tokens.saturating_sub(1) / block_tokens) as usize;
        let arrival = Arrival {
            now: visit.now,
            tokens: visit.tokens,
            limit,
            hints: visit.hints,
        };
        let admitted = self.cache.admit(self.namespace, keys, arrival)?.boundaries;
        let within = &keys[..limit.min(keys.len())];
        let hit = self.cache.acquire(self.namespace, within, 0)?;
        let resumed = hit.map_or(0, |lease| lease.blocks());
        let mut done = resumed;
        // A step ends at each checkpoint; pages that none needs are not stored.
        for end in admitted.into_iter().filter(|&end| end > resumed) {
            let mut entries: Vec<_> = (done..end).map(|block| (0, block)).collect();
            entries.push((1, end - 1));
            let mut lease = self.cache.reserve(self.namespace, &keys[..end], &entries)?;
            let checksums = vec![[0]; lease.entries().len()];
            lease.commit(&checksums)?;
            done = end;
        }
        if !keys.is_empty() {
            let output = visit.output_tokens;
            self.cache
                .finish(self.namespace, keys, keys.len(), output)?;
        }
        let computed = visit.tokens - resumed as u64 * block_tokens;
        self.computed += computed;
        self.backlog.0 += computed as f64;
        Ok(resumed)
    }

    /// Computes until a time in ms, so many tokens each.
    fn work(&mut self, now: u64, speed: f64) {
        let (left, since) = self.backlog;
        let done = now.saturating_sub(since) as f64 * speed;
        self.backlog = ((left - done).max(0.0), now);
    }

    /// Takes note of a request that ran, and of what the engine says since.
    fn hear(&mut self, keys: &[PrefixKey]) {
        self.sent.extend(keys);
        let changes = self.cache.changes(Medium::Host, false);
        for removed in changes.removed {
            self.announced.remove(&removed.key);
        }
        let stored = changes.stored.into_iter().flat_map(|span| span.blocks);
        self.announced.extend(stored.map(|(key, _)| key));
    }

    /// The leading blocks that the router takes to be there.
    fn known(&self, route: Route, keys: &[PrefixKey]) -> usize {
        let known = match route {
            Route::RoundRobin | Route::Load => return 0,
            Route::Sent => &self.sent,
            Route::Events => &self.announced,
        };
        keys.iter().take_while(|key| known.contains(*key)).count()
    }
}

/// Sends the requests of a trace to so many engines, each with its part of the budget.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown policy, no engine, or a budget out of range;
/// [`Error::Budget`] if an engine's part can't hold a page and a checkpoint.
pub fn route(
    trace: &Trace,
    (policy, ratio): (&str, u32),
    route: Route,
    engines: usize,
    budget: Budget,
) -> Result<Routed> {
    if engines == 0 || ratio == 0 {
        return Err(Error::InvalidArgument(format!(
            "engines and ratio: expected at least 1 each, found {engines} and {ratio}"
        ))
        .into());
    }
    let footprint = trace.distinct_blocks() as u64 * (1 + u64::from(ratio));
    let slots = budget.resolve(footprint)?.0 as usize / engines;
    let mut fleet = Vec::with_capacity(engines);
    for _ in 0..engines {
        fleet.push(Engine::new(policy, ratio, slots)?);
    }
    let mut routed = Routed {
        input_tokens: trace.input_tokens(),
        ..Routed::default()
    };
    let block_tokens = trace.block_tokens();
    let times = trace.visits.first().zip(trace.visits.last());
    let lasts = times.map_or(0, |(first, last)| last.now - first.now).max(1);
    let speed = trace.input_tokens() as f64 / lasts as f64 / engines as f64;
    for (at, visit) in trace.visits.iter().enumerate() {
        let key = |&at: &u32| PrefixKey::new(&trace.boundaries[at as usize].name.to_le_bytes());
        let keys = trace.path(visit).iter().map(key);
        let keys = keys.collect::<std::result::Result<Vec<_>, _>>()?;
        for engine in &mut fleet {
            engine.work(visit.now, speed);
        }
        let end = |at: &usize| {
            let known = fleet[*at].known(route, &keys) as u64 * block_tokens;
            fleet[*at].backlog.0 + visit.tokens.saturating_sub(known) as f64
        };
        let chosen = match route {
            Route::RoundRobin => at % engines,
            _ => (0..engines)
                .min_by(|a, b| end(a).total_cmp(&end(b)))
                .unwrap_or_default(),
        };
        let engine = &mut fleet[chosen];
        routed.predicted_tokens += engine.known(route, &keys) as u64 * block_tokens;
        routed.hit_tokens += engine.run(visit, block_tokens, &keys)? as u64 * block_tokens;
        engine.hear(&keys);
    }
    let most = fleet
        .iter()
        .map(|engine| engine.computed)
        .max()
        .unwrap_or(0);
    let computed: u64 = fleet.iter().map(|engine| engine.computed).sum();
    routed.imbalance = (most * engines as u64) as f64 / computed.max(1) as f64;
    Ok(routed)
}
