//! Stores: planned from what the steps of an engine complete, published when every rank has copied.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_pages::cache::{Cache, Skipped, WriteLease};
use hybrid_pages::error::{Error, Result as CoreResult};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::guarded::lock;
use hybrid_pages::ids::ClassKind;

use crate::engine::{Handles, RankCopy, ServingEngine, StepRequest, TrackedRun};
use crate::entries::{StoreEntries, StoreEntry};
use crate::reports::Reports;
use crate::room::{Reserved, RoomRequest, StateSource, TailSource, make_room};
use crate::runs::{HandOver, ProvenState, RunRules, StateBlocks, StorePlan, Tail};
use crate::tables::{EntrySource, TableColumns};

/// A planned store: its number, and the entries that it copies.
pub type Job = (usize, StoreEntries);

/// Outcomes of one store as they were reported, each with its rank where that could be read.
pub type Reported<O> = Vec<(Option<usize>, O)>;

/// Entries on their way out of the engine.
struct StoreInFlight<H: Handles> {
    lease: WriteLease,
    request: H::Name,
    pins: Vec<H::Pin>,
    entries: usize,
    /// Whether the source blocks turned out to hold something else.
    void: bool,
    reports: Reports<H::Outcome>,
}

struct Jobs<H: Handles> {
    /// The stores in flight, by number, ascending.
    in_flight: Vec<(usize, StoreInFlight<H>)>,
    next: usize,
    /// Bytes that were published since this was last taken, and the seconds that copying them took on all ranks.
    copied: (usize, f64),
}

impl<H: Handles> Jobs<H> {
    fn place(&self, job: usize) -> Option<usize> {
        let found = self.in_flight.binary_search_by_key(&job, |&(job, _)| job);
        found.ok()
    }

    fn get_mut(&mut self, job: usize) -> Option<&mut StoreInFlight<H>> {
        self.place(job).map(|at| &mut self.in_flight[at].1)
    }

    fn remove(&mut self, job: usize) -> Option<StoreInFlight<H>> {
        self.place(job).map(|at| self.in_flight.remove(at).1)
    }
}

/// A recurrent class.
struct StateClass {
    class: usize,
    /// The indices of its groups.
    groups: Vec<usize>,
    /// Where these are among all recurrent groups.
    places: Range<usize>,
}

/// Plans stores of what steps complete, and publishes what every rank has copied.
pub struct Stores<H: Handles> {
    cache: Arc<Cache>,
    columns: TableColumns,
    rules: RunRules,
    recurrent: Vec<StateClass>,
    ranks: usize,
    /// Whether this engine stores at all.
    writes: bool,
    jobs: Mutex<Jobs<H>>,
}

impl<H: Handles> Stores<H> {
    /// Stores of an engine with this geometry. Without `writes`, runs are followed but nothing is stored.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the rules have the geometry's recurrent groups.
    pub fn new(
        geometry: &Geometry,
        cache: Arc<Cache>,
        columns: TableColumns,
        rules: RunRules,
        writes: bool,
    ) -> CoreResult<Self> {
        let (mut recurrent, mut first) = (Vec::new(), 0);
        for (index, class) in geometry.classes().iter().enumerate() {
            if class.kind == ClassKind::Recurrent {
                let end = first + class.groups.len();
                recurrent.push(StateClass {
                    class: index,
                    groups: class.groups.clone(),
                    places: first..end,
                });
                first = end;
            }
        }
        let found = rules.groups.len();
        if found != first {
            return Err(Error::InvalidArgument(format!(
                "rules: expected the geometry's {first} recurrent groups, found {found}"
            )));
        }
        Ok(Self {
            cache,
            columns,
            rules,
            recurrent,
            ranks: geometry.ranks(),
            writes,
            jobs: Mutex::new(Jobs {
                in_flight: Vec::new(),
                next: 0,
                copied: (0, 0.0),
            }),
        })
    }

    /// The number of ranks, each of which reports once of every store.
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// The number of stores in flight.
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight.len()
    }

    /// Whether a store is in flight.
    pub fn contains(&self, job: usize) -> bool {
        self.lock().place(job).is_some()
    }

    /// The bytes that were published since the last call, and the seconds that copies of them took on all ranks.
    pub fn take_copied(&self) -> (usize, f64) {
        std::mem::take(&mut self.lock().copied)
    }

    fn lock(&self) -> MutexGuard<'_, Jobs<H>> {
        lock(&self.jobs)
    }

    // ---- what to store

    /// Plans a store of what the next step of a request completes: a step over `new_tokens` tokens, in which the engine
    /// hands over the states that `handed_over` reads, if there are any.
    ///
    /// # Errors
    /// Errors of the engine's objects. Nothing stays reserved or pinned then.
    pub fn step<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
        new_tokens: usize,
        handed_over: Option<impl FnOnce() -> Result<Vec<HandOver>, R::Error>>,
    ) -> Result<Option<Job>, R::Error> {
        let rules = &self.rules;
        let mut tracked = request.tracked()?;
        let start = request.computed()?;
        let end = start + new_tokens;
        if handed_over.is_none() && tracked.run.passes(start, end) {
            return Ok(None);
        }
        let goes_on = tracked.run.position.is_some_and(|at| start >= at);
        if !goes_on || tracked.steered || rules.drafts {
            drop(tracked);
            request.begins(start, new_tokens)?;
            tracked = request.tracked()?;
        }
        if !self.writes {
            tracked.run.advance(rules, start, end, request)?;
            return Ok(None);
        }
        let offers = match handed_over.map_or_else(|| Ok(Vec::new()), |read| read()) {
            Ok(offers) => offers,
            Err(error) => {
                tracked.run.advance(rules, start, end, request)?;
                return Err(error);
            }
        };
        let plan = tracked.run.step(rules, (start, end), &offers, request)?;
        self.planned(request, &mut tracked, plan)
    }

    /// Plans a store of the state inside a block that the engine hands over in the step of a request that was
    /// planned last, over `new_tokens` tokens.
    ///
    /// # Errors
    /// Errors of the engine's objects. Nothing stays reserved or pinned then.
    pub fn hand_over<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
        new_tokens: usize,
        offers: &[HandOver],
    ) -> Result<Option<Job>, R::Error> {
        if !self.writes {
            return Ok(None);
        }
        let mut tracked = request.tracked()?;
        let start = request.computed()?;
        let step = (start, start + new_tokens);
        let tail = tracked
            .run
            .tail_handed_over(&self.rules, step, offers, request)?;
        let plan = tail.map(|tail| StorePlan {
            tail: Some(tail),
            ..StorePlan::default()
        });
        self.planned(request, &mut tracked, plan)
    }

    /// Plans a store of what accepted drafts have completed.
    ///
    /// # Errors
    /// Errors of the engine's objects. Nothing stays reserved or pinned then.
    pub fn report<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
    ) -> Result<Option<Job>, R::Error> {
        let mut tracked = request.tracked()?;
        let plan = tracked.run.report(&self.rules, request)?;
        self.planned(request, &mut tracked, plan)
    }

    /// Plans a store of what is left of a request that has ended.
    ///
    /// # Errors
    /// Errors of the engine's objects. Nothing stays reserved or pinned then.
    pub fn finish<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
    ) -> Result<Option<Job>, R::Error> {
        let mut tracked = request.tracked()?;
        let plan = tracked.run.finish(&self.rules, request)?;
        self.planned(request, &mut tracked, plan)
    }

    fn planned<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
        tracked: &mut TrackedRun,
        plan: Option<StorePlan>,
    ) -> Result<Option<Job>, R::Error> {
        let Some(StorePlan {
            reach,
            states,
            tail,
        }) = plan
        else {
            return Ok(None);
        };
        let engine = request.engine();
        let first = tracked.run.offered;
        let states = self.sources(engine, states)?;
        let barred = match (tracked.stores, tracked.stale) {
            (false, _) => Some("hint"),
            (true, true) => Some("stale"),
            (true, false) => None,
        };
        let tail = match (tail, barred) {
            (
                Some(Tail::State {
                    tokens,
                    blocks,
                    overwritten: true,
                }),
                None,
            ) if !engine.can_spare(blocks.len())? => {
                tracked.run.refuse_tail(tokens);
                engine.skipped_tail("no_free_blocks").map(|()| None)?
            }
            (
                Some(Tail::State {
                    tokens,
                    blocks,
                    overwritten,
                }),
                None,
            ) => self.tail_source(request, tokens, (&blocks, overwritten))?,
            (Some(Tail::State { .. }), Some(reason)) | (Some(Tail::Skipped(reason)), _) => {
                engine.skipped_tail(reason).map(|()| None)?
            }
            (None, _) => None,
        };
        // Pages before a tail are of use only if the tail itself is stored.
        let end = first
            .max(reach)
            .max(tail.as_ref().map_or(0, |tail| tail.block));
        if states.is_empty() && first == end && tail.is_none() {
            return Ok(None);
        }
        let job = match barred {
            None => self.offer(request, tracked, first..end, &states, tail.as_ref())?,
            Some(reason) => {
                let (pages, _) = self.columns.pages(request.tables()?, first..end, 0)?;
                let entries = states.len() + pages.len();
                if entries > 0 {
                    engine.skipped(reason, entries)?;
                }
                None
            }
        };
        tracked.run.offered = end;
        Ok(job)
    }

    /// The states of each class whose groups' blocks are all known.
    fn sources<E: ServingEngine<Handles = H>>(
        &self,
        engine: &E,
        states: Vec<ProvenState>,
    ) -> Result<Vec<StateSource>, E::Error> {
        let mut sources = Vec::with_capacity(states.len() * self.recurrent.len());
        for state in states {
            for each in &self.recurrent {
                let blocks = state.blocks[each.places.clone()].to_vec();
                if blocks.contains(&0) {
                    engine.skipped("partial_state", 1)?;
                } else {
                    sources.push(StateSource {
                        class: each.class,
                        block: state.boundary - 1,
                        blocks,
                    });
                }
            }
        }
        Ok(sources)
    }

    /// The key of the tail that ends after so many tokens of a request, and the engine blocks of its entries; `None` if
    /// it can't be stored, which the engine is told. `states`: those of its states, and whether the next step overwrites
    /// them.
    fn tail_source<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
        tokens: usize,
        (states, overwritten): (&StateBlocks, bool),
    ) -> Result<Option<TailSource>, R::Error> {
        request.read_keys()?;
        let n = self.rules.block_tokens;
        let (block, tables) = (tokens / n, request.tables()?);
        if request.leading_keys(block).len() < block {
            return request.engine().skipped_tail("unknown_key").map(|()| None);
        }
        let Some(key) = request.tail_key(tokens)? else {
            return Ok(None);
        };
        let pages = self
            .columns
            .tail_pages(tables, (block, tokens % n), tokens)?;
        let Some((mut entries, mut blocks)) = pages else {
            return request.engine().skipped_tail("partial_page").map(|()| None);
        };
        for each in &self.recurrent {
            let from = blocks.len();
            blocks.extend_from_slice(&states[each.places.clone()]);
            entries.push(EntrySource {
                class: each.class,
                block,
                blocks: from..blocks.len(),
                tokens: None,
                overwritten,
            });
        }
        Ok(Some(TailSource {
            block,
            key,
            entries,
            blocks,
        }))
    }

    /// Reserves states and pages, and pins their engine blocks. Nothing stays reserved or pinned if it fails.
    fn offer<R: StepRequest<Engine: ServingEngine<Error = R::Error, Handles = H>>>(
        &self,
        request: &R,
        tracked: &TrackedRun,
        blocks: Range<usize>,
        states: &[StateSource],
        tail: Option<&TailSource>,
    ) -> Result<Option<Job>, R::Error> {
        let engine = request.engine();
        request.read_keys()?;
        let room = RoomRequest {
            namespace: tracked.namespace,
            columns: &self.columns,
            tables: request.tables()?,
            blocks,
            states,
            tail,
            hints: tracked.hints,
        };
        let keys = |limit| Ok(request.leading_keys(limit));
        let Some(mut reserved) = make_room(&self.cache, &room, keys)? else {
            return Ok(None);
        };
        for (reason, count) in left_out(reserved.lease.skipped()) {
            engine.skipped(reason, count)?;
        }
        if reserved.entries.is_empty() {
            return Ok(None);
        }
        let request = request.name()?;
        let pins = self.pin(engine, &mut reserved)?;
        // Nothing fails from here on.
        let store = StoreInFlight {
            lease: reserved.lease,
            request,
            pins,
            entries: reserved.entries.len(),
            void: false,
            reports: Reports::none_yet(self.ranks),
        };
        let mut jobs = self.lock();
        let job = jobs.next;
        jobs.next += 1;
        jobs.in_flight.push((job, store));
        Ok(Some((job, reserved.entries)))
    }

    /// Pins the engine blocks that entries are read from. Those that the next step overwrites are copied to others, which
    /// are taken for that and not pinned once more.
    fn pin<E: ServingEngine<Handles = H>>(
        &self,
        engine: &E,
        reserved: &mut Reserved,
    ) -> Result<Vec<H::Pin>, E::Error> {
        let entries = &mut reserved.entries;
        if reserved.overwritten.is_empty() {
            return engine.pin(&entries.sources());
        }
        let class = |(index, entry): (usize, StoreEntry<'_>)| {
            let class = self.recurrent.iter().find(|each| each.class == entry.class);
            let is_overwritten = reserved.overwritten.contains(&index);
            class.filter(|_| is_overwritten).map(|class| (index, class))
        };
        let overwritten: Vec<_> = entries.iter().enumerate().filter_map(class).collect();
        let blocks = overwritten.iter().map(|(_, class)| class.groups.len());
        let (ids, mut pins): (Vec<_>, Vec<_>) = engine.take(blocks.sum())?.into_iter().unzip();
        let mut next = ids.iter().copied();
        for (entry, class) in overwritten {
            entries.read_copies(entry, &class.groups, &mut next);
        }
        let mut others = entries.sources();
        others.retain(|id| !ids.contains(id));
        match engine.pin(&others) {
            Ok(more) => pins.extend(more),
            Err(error) => return engine.unpin(&pins).and(Err(error)),
        }
        Ok(pins)
    }

    // ---- what becomes of stores in flight

    /// Calls `of` with the request and the pins of each store in flight. Returns each store's number with the result.
    pub fn map_in_flight<T>(&self, of: impl Fn(&H::Name, &[H::Pin]) -> T) -> Vec<(usize, T)> {
        let jobs = self.lock();
        let in_flight = jobs.in_flight.iter();
        in_flight
            .map(|(job, store)| (*job, of(&store.request, &store.pins)))
            .collect()
    }

    /// Prevents the publication of a store, if it is in flight: its source blocks hold something else.
    pub fn void(&self, job: usize) {
        if let Some(store) = self.lock().get_mut(job) {
            store.void = true;
        }
    }

    /// Gives up a store that no worker was told of, if it is in flight.
    ///
    /// # Errors
    /// Errors of the engine's block pool.
    pub fn give_up<E: ServingEngine<Handles = H>>(
        &self,
        engine: &E,
        job: usize,
    ) -> Result<(), E::Error> {
        let store = self.lock().remove(job);
        let Some(mut store) = store else {
            return Ok(());
        };
        store.lease.abort();
        engine.unpin(&store.pins)
    }

    /// Takes the reports of ranks about a store in flight, and what made no sense about them. The store ends when all
    /// ranks have reported; then it is published, unless the workers are not `trusted`.
    ///
    /// # Errors
    /// Errors of the engine's listener. An error of the store alone goes to the listener.
    pub fn reported<E: ServingEngine<Handles = H>>(
        &self,
        engine: &E,
        job: usize,
        (outcomes, trouble): (Reported<H::Outcome>, Option<E::Error>),
        trusted: bool,
    ) -> Result<(), E::Error> {
        let (trouble, ended) = self.note(job, outcomes, trouble);
        let told = trouble.map_or(Ok(()), |error| engine.not_published(job, error));
        let Some(mut store) = ended else {
            return told;
        };
        let ended = self.end(engine, &mut store, trusted);
        told.and(ended.or_else(|error| engine.not_published(job, error)))
    }

    /// Notes reports of a store: what makes no sense about them, and the store, if it has ended.
    fn note<Err: From<Error>>(
        &self,
        job: usize,
        outcomes: Reported<H::Outcome>,
        trouble: Option<Err>,
    ) -> (Option<Err>, Option<StoreInFlight<H>>) {
        let mut jobs = self.lock();
        let Some(store) = jobs.get_mut(job) else {
            return (trouble, None);
        };
        let trouble = store.reports.add(outcomes, trouble);
        let all = store.reports.all_in();
        (trouble, all.then(|| jobs.remove(job)).flatten())
    }

    /// Publishes what every rank has copied, and lets go of its source blocks.
    fn end<E: ServingEngine<Handles = H>>(
        &self,
        engine: &E,
        store: &mut StoreInFlight<H>,
        trusted: bool,
    ) -> Result<(), E::Error> {
        let published = if store.reports.is_doubtful() {
            Ok(()) // That was told when it came.
        } else if store.void {
            engine.skipped("invalid", store.entries)
        } else if !trusted {
            engine.skipped("unconfirmed", store.entries)
        } else {
            publish(engine, store).map(|(bytes, seconds)| {
                let copied = &mut self.lock().copied;
                *copied = (copied.0 + bytes, copied.1 + seconds);
            })
        };
        store.lease.abort(); // Does nothing after a commit.
        engine.unpin(&store.pins)?;
        published
    }
}

/// How many wanted entries got no room, by reason.
pub fn left_out(skipped: Skipped) -> impl Iterator<Item = (&'static str, usize)> {
    let counts = [
        ("in_writing", skipped.in_writing),
        ("no_room", skipped.no_room),
        ("not_ready", skipped.not_ready),
        ("tenant_share", skipped.tenant_share),
        ("orphan", skipped.orphan),
    ];
    counts.into_iter().filter(|&(_, count)| count > 0)
}

/// Commits what every rank has copied. Returns bytes and seconds; zero if a rank has failed.
fn publish<H: Handles, E: ServingEngine<Handles = H>>(
    engine: &E,
    store: &mut StoreInFlight<H>,
) -> Result<(usize, f64), E::Error> {
    let (mut bytes, mut seconds, mut failed) = (0, 0.0, false);
    let mut shards = Vec::new();
    for outcome in store.reports.outcomes() {
        if engine.has_failed(outcome)? {
            engine.not_copied(outcome, !failed)?;
            failed = true;
        }
        let copy: RankCopy = engine.copied(outcome)?;
        bytes += copy.bytes;
        seconds += copy.seconds;
        shards.push(copy.checksums);
    }
    if failed {
        return Ok((0, 0.0));
    }
    if shards.iter().all(Vec::is_empty) {
        store.lease.commit_without_checksums()?;
        return Ok((bytes, seconds));
    }
    let expected = size_of::<u64>() * store.entries;
    if let Some(found) = shards.iter().find(|shard| shard.len() != expected) {
        return Err(E::Error::from(Error::InvalidArgument(format!(
            "checksums: expected {expected} bytes for {} entries from each rank, found {}",
            store.entries,
            found.len()
        ))));
    }
    let shards: Vec<&[[u8; 8]]> = shards.iter().map(|shard| shard.as_chunks().0).collect();
    let mut checksums = Vec::with_capacity(store.entries * shards.len());
    for at in 0..store.entries {
        checksums.extend(shards.iter().map(|sums| u64::from_ne_bytes(sums[at])));
    }
    store.lease.commit_flat(&checksums)?;
    Ok((bytes, seconds))
}
