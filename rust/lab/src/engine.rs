//! A simulated engine, one of a fleet: a real cache whose entries have no bytes.

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, Medium};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::prefix::Hit;

use crate::error::Result;
use crate::policies::policies;
use crate::trace::TraceRequest;

/// Index of the class of pages.
pub(crate) const PAGE: usize = 0;
/// Index of the class of checkpoints.
pub(crate) const CHECKPOINT: usize = 1;

/// The most engines of a fleet, each of which has a cache of its own.
const MOST_ENGINES: usize = 1 << 12;

/// Checks that a fleet can have this number of engines.
pub(crate) fn check_engines(engines: usize) -> Result<()> {
    if (1..=MOST_ENGINES).contains(&engines) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "engines: expected 1 to {MOST_ENGINES}, found {engines}"
    ))
    .into())
}

pub(crate) struct SimulatedEngine {
    cache: Cache,
    namespace: NamespaceId,
    /// Tokens that the engine has computed.
    pub(crate) computed: u64,
}

/// The result of one request.
#[derive(Debug, Default)]
pub(crate) struct RequestResult {
    /// Blocks that the request resumed over.
    pub(crate) resumed: usize,
    /// Leading blocks that an earlier request had, if the cache still remembers it.
    pub(crate) seen: usize,
    /// Class and block of each entry that the request published.
    pub(crate) published: Vec<(usize, usize)>,
}

impl SimulatedEngine {
    pub(crate) fn new(policy: &str, ratio: u32, slots: usize) -> Result<Self> {
        let class = |kind, slots_per_entry| ClassConfig {
            kind,
            window_blocks: 0,
            slots_per_entry,
        };
        policies();
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
        Ok(Self {
            namespace: cache.namespace(b"lab")?,
            cache,
            computed: 0,
        })
    }

    /// Makes the cache record changes for [`changes`](Self::changes) from now on.
    pub(crate) fn follow(&self) -> Result<()> {
        Ok(self.cache.follow()?)
    }

    /// Blocks that left the cache since the last call, and blocks that came.
    pub(crate) fn changes(&self) -> (Vec<PrefixKey>, Vec<PrefixKey>) {
        let changes = self.cache.changes(Medium::Host, false);
        let removed = changes.removed.into_iter().map(|removed| removed.key);
        let stored = changes.stored.into_iter().flat_map(|span| span.blocks);
        (removed.collect(), stored.map(|(key, _)| key).collect())
    }

    /// The joint hit of a prefix in the host.
    pub(crate) fn hit(&self, keys: &[PrefixKey]) -> Result<Hit> {
        Ok(self.cache.lookup(self.namespace, keys)?)
    }

    /// Stores fetched entries as far as there is room: the pages of a prefix from `pages_from` on, and the checkpoint
    /// at its end.
    pub(crate) fn bring(&self, keys: &[PrefixKey], pages_from: usize) -> Result<()> {
        let mut entries: Vec<_> = (pages_from..keys.len()).map(|at| (PAGE, at)).collect();
        entries.push((CHECKPOINT, keys.len() - 1));
        let mut lease = self.cache.reserve(self.namespace, keys, &entries)?;
        lease.commit_without_checksums()?;
        Ok(())
    }

    /// Runs a request that arrives at `now`, in ms, and whose first `fetched` blocks were fetched.
    pub(crate) fn run(
        &mut self,
        request: &TraceRequest,
        now: u64,
        block_tokens: u64,
        keys: &[PrefixKey],
        fetched: usize,
    ) -> Result<RequestResult> {
        let limit = (request.tokens.saturating_sub(1) / block_tokens) as usize;
        let arrival = Arrival {
            now,
            tokens: request.tokens,
            limit,
            hints: request.hints,
        };
        let admission = self.cache.admit(self.namespace, keys, arrival)?;
        let within = &keys[..limit.min(keys.len())];
        let hit = self.cache.acquire(self.namespace, within, 0)?;
        let resumed = hit.map_or(0, |lease| lease.blocks()).max(fetched);
        let mut ran = RequestResult {
            resumed,
            seen: admission.fork.unwrap_or(0).max(resumed),
            published: Vec::new(),
        };
        let mut done = resumed;
        // A step ends at each checkpoint. Pages behind the last checkpoint are not stored.
        for end in admission
            .boundaries
            .into_iter()
            .filter(|&end| end > resumed)
        {
            let mut entries: Vec<_> = (done..end).map(|block| (PAGE, block)).collect();
            entries.push((CHECKPOINT, end - 1));
            let mut lease = self.cache.reserve(self.namespace, &keys[..end], &entries)?;
            let written = lease.entries().iter();
            ran.published
                .extend(written.map(|entry| (entry.class_index, entry.block_index)));
            lease.commit_without_checksums()?;
            done = end;
        }
        if !keys.is_empty() {
            let output = request.output_tokens;
            self.cache
                .finish(self.namespace, keys, keys.len(), output)?;
        }
        self.computed += request.tokens - resumed as u64 * block_tokens;
        Ok(ran)
    }
}

/// Tokens that the busiest engine computed, divided by the mean of all engines.
pub(crate) fn imbalance(fleet: &[SimulatedEngine]) -> f64 {
    let most = fleet.iter().map(|engine| engine.computed).max();
    let computed: u64 = fleet.iter().map(|engine| engine.computed).sum();
    most.unwrap_or(0) as f64 * fleet.len() as f64 / computed.max(1) as f64
}
