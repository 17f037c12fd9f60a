//! Stores, from what the steps of an engine fill to published entries: a call a step, and a call a report.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use hybrid_pages::cache::WriteLease;
use hybrid_pages::error::Error;
use hybrid_pages::guarded::lock;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::run::{Plan, Request, State};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::cache::{PyCache, Room, StateSource, namespace_id};
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::heard::{self, Heard};
use crate::lease::left_out;
use crate::number::{Whole, whole};
use crate::pins::{pin, unpin};
use crate::run::{Asked, PyRules, PyRun, blocks_of, offers, pool_of};
use crate::stores::PyStoreEntries;
use crate::tables::{PyTableColumns, tables_in};

/// Its number, and what it copies.
type Job = (usize, Py<PyStoreEntries>);

/// A step of the engine, as it says itself.
pub struct Step<'a, 'py> {
    /// Those that are followed, by name.
    pub requests: &'a Bound<'py, PyDict>,
    /// Tokens of the requests that run in it.
    pub scheduled: &'a Bound<'py, PyDict>,
    /// What has states that it hands over, by request, and the requests that have blocks.
    pub state: &'a Bound<'py, PyAny>,
    /// Called before a step of a request that doesn't just go on.
    pub begins: &'a Bound<'py, PyAny>,
    /// Called with each request of which something is stored.
    pub planned: Option<&'a Bound<'py, PyAny>>,
}

/// Entries on their way out of the engine.
struct Store {
    lease: WriteLease,
    /// Whose they are.
    request: Py<PyAny>,
    /// The engine's blocks that are copied, which it gives to nobody else meanwhile.
    pins: Vec<Py<PyAny>>,
    entries: usize,
    /// The source blocks turned out to hold something else.
    void: bool,
    heard: Heard,
}

/// Plans stores and publishes what every rank has copied.
#[pyclass(frozen, name = "Stores", module = "hybrid_pages._core")]
pub struct PyStores {
    cache: Py<PyCache>,
    columns: Py<PyTableColumns>,
    rules: Py<PyRules>,
    /// Each recurrent class, and its groups among the recurrent ones.
    recurrent: Vec<(usize, Range<usize>)>,
    ranks: usize,
    /// Whether this engine stores at all.
    writes: bool,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    /// By job, ascending.
    stores: Vec<(usize, Store)>,
    next: usize,
    /// Bytes of what was published, and seconds that copies of it took on all ranks, since they were last taken.
    copied: (usize, f64),
}

impl InFlight {
    fn place(&self, job: usize) -> Option<usize> {
        self.stores.binary_search_by_key(&job, |&(job, _)| job).ok()
    }

    fn get_mut(&mut self, job: usize) -> Option<&mut Store> {
        self.place(job).map(|at| &mut self.stores[at].1)
    }

    fn remove(&mut self, job: usize) -> Option<Store> {
        self.place(job).map(|at| self.stores.remove(at).1)
    }
}

#[pymethods]
impl PyStores {
    #[new]
    #[pyo3(
        signature = (geometry, cache, columns, rules, *, writes = true),
        text_signature = "(geometry, cache, columns, rules, *, writes=True)"
    )]
    fn new(
        geometry: &PyGeometry,
        cache: Py<PyCache>,
        columns: Py<PyTableColumns>,
        rules: Py<PyRules>,
        writes: bool,
    ) -> PyResult<Self> {
        let (mut recurrent, mut first) = (Vec::new(), 0);
        for (index, class) in geometry.inner.classes().iter().enumerate() {
            if class.kind == ClassKind::Recurrent {
                recurrent.push((index, first..first + class.groups.len()));
                first += class.groups.len();
            }
        }
        let found = rules.get().inner.groups.len();
        if found != first {
            return Err(to_py(Error::InvalidArgument(format!(
                "rules: expected the geometry's {first} recurrent groups, found {found}"
            ))));
        }
        Ok(Self {
            cache,
            columns,
            rules,
            recurrent,
            ranks: geometry.inner.ranks(),
            writes,
            in_flight: Mutex::default(),
        })
    }

    fn __len__(&self) -> usize {
        self.lock().stores.len()
    }

    fn __contains__(&self, job: Whole) -> bool {
        self.lock().place(job.0).is_some()
    }

    /// What a step completes of each request, by job.
    #[pyo3(
        signature = (engine, requests, scheduled, state, *, begins, planned = None),
        text_signature = "($self, engine, requests, scheduled, state, *, begins, planned=None)"
    )]
    fn step<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        requests: &Bound<'py, PyDict>,
        scheduled: &Bound<'py, PyDict>,
        state: &Bound<'py, PyAny>,
        begins: &Bound<'py, PyAny>,
        planned: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let step = Step {
            requests,
            scheduled,
            state,
            begins,
            planned,
        };
        let jobs = self.plan_step(engine, &step)?;
        Ok(jobs.unwrap_or_else(|| PyDict::new(engine.py())))
    }

    /// What accepted drafts have completed.
    fn report(
        &self,
        engine: &Bound<'_, PyAny>,
        tracked: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Job>> {
        let run = run_of(tracked)?;
        let mut run = run.try_borrow_mut()?;
        let asked = self.asked(engine, &run);
        let plan = run.inner.report(&self.rules.get().inner, &asked)?;
        self.planned(engine, tracked, &mut run, &asked, plan)
    }

    /// What is left of a request that has ended.
    fn finish<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        tracked: &Bound<'py, PyAny>,
        tables: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Job>> {
        let run = run_of(tracked)?;
        let mut run = run.try_borrow_mut()?;
        let asked = self.asked(engine, &run).with(tables_in(tables)?);
        let plan = run.inner.finish(&self.rules.get().inner, &asked)?;
        self.planned(engine, tracked, &mut run, &asked, plan)
    }

    /// Publishes nothing of the stores under way of which this says so, given their request and blocks.
    fn void(&self, py: Python<'_>, wrong: &Bound<'_, PyAny>) -> PyResult<()> {
        let under_way: Vec<_> = {
            let in_flight = self.lock();
            let again = |pin: &Py<PyAny>| pin.clone_ref(py);
            let of = |(job, store): &(usize, Store)| {
                let pins: Vec<_> = store.pins.iter().map(again).collect();
                (*job, store.request.clone_ref(py), pins)
            };
            in_flight.stores.iter().map(of).collect()
        };
        for (job, request, pins) in under_way {
            if wrong.call1((request, pins))?.is_truthy()?
                && let Some(store) = self.lock().get_mut(job)
            {
                store.void = true;
            }
        }
        Ok(())
    }

    /// Gives up stores that no worker was told of.
    fn drop_jobs(&self, engine: &Bound<'_, PyAny>, jobs: Vec<Whole>) -> PyResult<()> {
        for Whole(job) in jobs {
            let store = self.lock().remove(job);
            if let Some(mut store) = store {
                store.lease.abort();
                self.unpin(engine, &store.pins)?;
            }
        }
        Ok(())
    }

    /// Takes ranks' outcomes, by job, and publishes what all of them have copied.
    pub fn ended(
        &self,
        engine: &Bound<'_, PyAny>,
        outcomes: &Bound<'_, PyDict>,
        trusted: bool,
    ) -> PyResult<()> {
        // What the engine is told may change them.
        let outcomes: Vec<_> = outcomes.iter().collect();
        let mut all = Ok(());
        for (job, outcomes) in outcomes {
            // Whoever wants the engine to end costs no other job its outcome.
            all = all.and(self.ended_one(engine, &job, &outcomes, trusted));
        }
        all
    }

    fn take_copied(&self) -> (usize, f64) {
        std::mem::take(&mut self.lock().copied)
    }
}

impl PyStores {
    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.lock().stores.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        lock(&self.in_flight)
    }

    /// Takes ranks' outcomes of a job, which ends when all of them have spoken.
    fn ended_one(
        &self,
        engine: &Bound<'_, PyAny>,
        job: &Bound<'_, PyAny>,
        outcomes: &Bound<'_, PyAny>,
        trusted: bool,
    ) -> PyResult<()> {
        let py = engine.py();
        let found = job.extract::<Whole>().map(|Whole(number)| number);
        let number = found
            .ok()
            .filter(|&number| self.lock().place(number).is_some());
        let Some(number) = number else {
            return engine
                .call_method1(intern!(py, "not_in_flight"), (job,))
                .map(|_| ());
        };
        let (trouble, ended) = self.note(number, outcomes);
        let told = trouble.map_or(Ok(()), |error| not_published(engine, number, error));
        let Some(mut store) = ended else {
            return told;
        };
        let ended = self.end(engine, &mut store, trusted);
        told.and(ended.or_else(|error| not_published(engine, number, error)))
    }

    /// Takes ranks' outcomes of a job: what made no sense about them, and the job, if it has ended.
    fn note(&self, job: usize, outcomes: &Bound<'_, PyAny>) -> (Option<PyErr>, Option<Store>) {
        let (said, trouble) = heard::read(outcomes, self.ranks);
        let mut in_flight = self.lock();
        let Some(store) = in_flight.get_mut(job) else {
            return (trouble, None);
        };
        let trouble = store.heard.add(said, trouble);
        let all = store.heard.all();
        (trouble, all.then(|| in_flight.remove(job)).flatten())
    }

    /// Publishes what every rank has copied, and lets go of its source blocks.
    fn end(&self, engine: &Bound<'_, PyAny>, store: &mut Store, trusted: bool) -> PyResult<()> {
        let published = if store.heard.is_doubtful() {
            Ok(()) // That was told when it came.
        } else if store.void {
            skip(engine, "invalid", store.entries)
        } else if !trusted {
            skip(engine, "unconfirmed", store.entries)
        } else {
            publish(engine, store).map(|(bytes, seconds)| {
                let copied = &mut self.lock().copied;
                *copied = (copied.0 + bytes, copied.1 + seconds);
            })
        };
        store.lease.abort(); // Does nothing after a commit.
        self.unpin(engine, &store.pins)?;
        published
    }

    fn unpin(&self, engine: &Bound<'_, PyAny>, pins: &[Py<PyAny>]) -> PyResult<()> {
        unpin(self.rules.get(), &pool_of(engine)?, pins)
    }

    fn asked<'a, 'py>(&'a self, engine: &'a Bound<'py, PyAny>, run: &PyRun) -> Asked<'a, 'py> {
        let request = run.request.bind(engine.py()).clone();
        Asked::new(request, self.rules.get(), engine)
    }

    /// The stores of a step, by job; none if it has none.
    pub fn plan_step<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        step: &Step<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut jobs = None;
        let planned = self.plan_all(engine, step, &mut jobs);
        if let (Err(_), Some(jobs)) = (&planned, &jobs) {
            // Nobody will hear of them.
            self.drop_jobs(engine, jobs.keys().extract()?)?;
        }
        planned.map(|()| jobs)
    }

    fn plan_all<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        step: &Step<'_, 'py>,
        jobs: &mut Option<Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let py = engine.py();
        let offered = step.state.getattr(intern!(py, "boundary_state_offloads"))?;
        let offered = offered.cast::<PyDict>()?;
        for (name, new_tokens) in step.scheduled {
            if let Some(tracked) = step.requests.get_item(&name)? {
                let offers = if offered.is_empty() {
                    None
                } else {
                    offered.get_item(&name)?
                };
                let new_tokens = whole(&new_tokens)?;
                self.plan(engine, step, &tracked, new_tokens, offers, jobs)?;
            }
        }
        for (name, offers) in offered {
            // A hand-over may come for a request that has blocks and isn't scheduled in this step. Without a position
            // it waits, and what is handed over was loaded.
            if !step.scheduled.contains(&name)?
                && step
                    .state
                    .getattr(intern!(py, "req_ids"))?
                    .contains(&name)?
                && let Some(tracked) = step.requests.get_item(&name)?
                && run_of(&tracked)?.try_borrow()?.inner.position.is_some()
            {
                self.plan(engine, step, &tracked, 0, Some(offers), jobs)?;
            }
        }
        Ok(())
    }

    /// Adds the store of what a step over so many tokens completes of a request.
    fn plan<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        step: &Step<'_, 'py>,
        tracked: &Bound<'py, PyAny>,
        new_tokens: usize,
        offers: Option<Bound<'py, PyAny>>,
        jobs: &mut Option<Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let py = engine.py();
        match self.follow(engine, step.begins, tracked, new_tokens, offers.as_ref()) {
            Ok(None) => Ok(()),
            Ok(Some((job, entries))) => {
                let jobs = jobs.get_or_insert_with(|| PyDict::new(py));
                jobs.set_item(job, entries)?;
                if let Some(planned) = step.planned {
                    planned.call1((tracked,))?;
                }
                Ok(())
            }
            Err(error) => {
                let error = caught(py, error)?;
                let noted = intern!(py, "not_planned");
                engine.call_method1(noted, (tracked, error)).map(|_| ())
            }
        }
    }

    /// The store of what a step over so many tokens completes.
    fn follow<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        begins: &Bound<'py, PyAny>,
        tracked: &Bound<'py, PyAny>,
        new_tokens: usize,
        offered: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Job>> {
        let (rules, cell) = (&self.rules.get().inner, run_of(tracked)?);
        let mut run = cell.try_borrow_mut()?;
        let asked = self.asked(engine, &run);
        let start = asked.computed()?;
        let step = (start, start + new_tokens);
        if offered.is_none() && run.inner.passes(step.0, step.1) {
            return Ok(None);
        }
        let goes_on = run.inner.position.is_some_and(|position| start >= position);
        if !goes_on || run.steered || rules.drafts {
            drop(run);
            begins.call1((tracked, start, new_tokens))?;
            run = cell.try_borrow_mut()?;
        }
        if !self.writes {
            run.inner.advance(rules, step.0, step.1, &asked)?;
            return Ok(None);
        }
        let offers = match offers(offered) {
            Ok(offers) => offers,
            Err(error) => {
                run.inner.advance(rules, step.0, step.1, &asked)?;
                return Err(error);
            }
        };
        let plan = run.inner.step(rules, step, &offers, &asked)?;
        self.planned(engine, tracked, &mut run, &asked, plan)
    }

    /// Makes a job of a plan.
    fn planned(
        &self,
        engine: &Bound<'_, PyAny>,
        tracked: &Bound<'_, PyAny>,
        run: &mut PyRun,
        asked: &Asked<'_, '_>,
        plan: Option<Plan>,
    ) -> PyResult<Option<Job>> {
        let Some(Plan { reach, states }) = plan else {
            return Ok(None);
        };
        let first = run.inner.offered;
        let (end, states) = (first.max(reach), self.sources(engine, states)?);
        if states.is_empty() && first == end {
            return Ok(None);
        }
        let job = if run.stores && !run.stale {
            self.offer(engine, tracked, run, asked, first..end, &states)?
        } else {
            let tables = asked.tables()?;
            let (pages, _) = self.columns.get().pages(tables, first..end, 0)?;
            let reason = if run.stores { "stale" } else { "hint" };
            skip(engine, reason, states.len() + pages.len())?;
            None
        };
        run.inner.offered = end;
        Ok(job)
    }

    /// The states all of whose groups' blocks are known.
    fn sources(&self, engine: &Bound<'_, PyAny>, states: Vec<State>) -> PyResult<Vec<StateSource>> {
        let mut sources = Vec::with_capacity(states.len() * self.recurrent.len());
        for state in states {
            for (class, groups) in &self.recurrent {
                let blocks = state.blocks[groups.clone()].to_vec();
                if blocks.contains(&0) {
                    skip(engine, "partial_state", 1)?;
                } else {
                    sources.push((*class, state.boundary - 1, blocks));
                }
            }
        }
        Ok(sources)
    }

    /// Reserves states and pages, and pins their blocks. Nothing stays reserved or pinned if it fails.
    fn offer(
        &self,
        engine: &Bound<'_, PyAny>,
        tracked: &Bound<'_, PyAny>,
        run: &PyRun,
        asked: &Asked<'_, '_>,
        blocks: Range<usize>,
        states: &[StateSource],
    ) -> PyResult<Option<Job>> {
        let py = engine.py();
        let keys = run.keys.get();
        if self.rules.get().known.is_none() {
            keys.read(asked.hashes()?)?;
        } else {
            engine.call_method1(intern!(py, "read_keys"), (tracked,))?;
        }
        let room = Room {
            namespace: namespace_id(Whole(run.namespace))?,
            columns: self.columns.get(),
            tables: asked.tables()?,
            first: blocks.start,
            end: blocks.end,
            hints: run.hints.as_ref().map(|hints| hints.bind(py)),
        };
        let leading = |limit| Ok(keys.leading(limit));
        let offered = self.cache.get().make_room(&room, leading, states)?;
        let Some((lease, entries, _)) = offered else {
            return Ok(None);
        };
        for (reason, count) in left_out(lease.skipped()) {
            skip(engine, reason, count)?;
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let pool = pool_of(engine)?;
        let pins = entries.sources(&blocks_of(&pool)?)?;
        let (request, count) = (asked.name()?.unbind(), entries.len());
        let entries = Py::new(py, entries)?;
        pin(self.rules.get(), &pool, &pins)?;
        // Nothing fails from here on.
        let store = Store {
            lease,
            request,
            pins: pins.into_iter().map(Bound::unbind).collect(),
            entries: count,
            void: false,
            heard: Heard::nothing(self.ranks),
        };
        let mut in_flight = self.lock();
        let job = in_flight.next;
        in_flight.next += 1;
        in_flight.stores.push((job, store));
        drop(in_flight);
        Ok(Some((job, entries)))
    }
}

/// An error that costs one job alone; any other means that somebody wants the engine to end.
fn caught(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// Tells of an error that costs one job alone.
fn not_published(engine: &Bound<'_, PyAny>, job: usize, error: PyErr) -> PyResult<()> {
    let py = engine.py();
    let error = caught(py, error)?;
    engine
        .call_method1(intern!(py, "not_published"), (job, error))
        .map(|_| ())
}

fn run_of<'py>(tracked: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyRun>> {
    let run = tracked.getattr(intern!(tracked.py(), "run"))?;
    Ok(run.cast_into::<PyRun>()?)
}

fn skip(engine: &Bound<'_, PyAny>, reason: &str, entries: usize) -> PyResult<()> {
    let given = (reason, entries);
    engine
        .call_method1(intern!(engine.py(), "skipped"), given)
        .map(|_| ())
}

/// Commits what every rank has copied: bytes and seconds.
fn publish(engine: &Bound<'_, PyAny>, store: &mut Store) -> PyResult<(usize, f64)> {
    let py = engine.py();
    let (mut bytes, mut seconds, mut failed) = (0, 0.0, false);
    let mut shards = Vec::new();
    for outcome in store.heard.outcomes() {
        let outcome = outcome.bind(py);
        if !outcome.getattr(intern!(py, "error"))?.is_none() {
            engine.call_method1(intern!(py, "not_copied"), (outcome, !failed))?;
            failed = true;
        }
        bytes += whole(&outcome.getattr(intern!(py, "nbytes"))?)?;
        seconds += outcome.getattr(intern!(py, "seconds"))?.extract::<f64>()?;
        let checksums = outcome.getattr(intern!(py, "checksums"))?;
        shards.push(checksums.cast_into::<PyBytes>()?);
    }
    if failed {
        return Ok((0, 0.0));
    }
    let shards: Vec<&[u8]> = shards.iter().map(|shard| shard.as_bytes()).collect();
    if shards.iter().all(|shard| shard.is_empty()) {
        store.lease.commit_without_checksums().map_err(to_py)?;
        return Ok((bytes, seconds));
    }
    let expected = size_of::<u64>() * store.entries;
    if let Some(found) = shards.iter().find(|shard| shard.len() != expected) {
        return Err(to_py(Error::InvalidArgument(format!(
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
    store.lease.commit_flat(&checksums).map_err(to_py)?;
    Ok((bytes, seconds))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStores>()
}
