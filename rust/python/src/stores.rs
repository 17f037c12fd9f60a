//! Stores of the entries that vLLM's steps complete, as a Python object: one call per step, and one per report.

use hybrid_pages_vllm::entries::StoreEntries;
use hybrid_pages_vllm::stores::Stores;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block_tables::{PyTableColumns, PyTables};
use crate::cache::PyCache;
use crate::error::{Raised, to_py};
use crate::geometry::PyGeometry;
use crate::number::{Whole, whole};
use crate::outcomes;
use crate::run::PyRules;
use crate::step_request::{VllmRequest, handed_over, run_of};
use crate::store_entries::PyStoreEntries;
use crate::vllm_engine::{PyHandles, VllmEngine};

/// A store job: its number, and the entries that it copies.
type PyJob = (usize, Py<PyStoreEntries>);

/// A step of vLLM.
struct VllmStep<'a, 'py> {
    /// The connector's objects of requests, by name.
    requests: &'a Bound<'py, PyDict>,
    /// Number of new tokens of each request that runs in the step.
    scheduled: &'a Bound<'py, PyDict>,
    /// vLLM's object with the states that it hands over, by request, and the requests that have blocks.
    state: &'a Bound<'py, PyAny>,
    /// Called before a step of a request that does not simply continue the last one.
    begins: &'a Bound<'py, PyAny>,
    /// Called with each request of which entries are stored.
    planned: Option<&'a Bound<'py, PyAny>>,
}

/// Plans stores, and publishes the entries that every rank has copied.
#[pyclass(frozen, name = "Stores", module = "hybrid_pages._core")]
pub struct PyStores {
    inner: Stores<PyHandles>,
    rules: Py<PyRules>,
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
        cache: &PyCache,
        columns: &PyTableColumns,
        rules: Py<PyRules>,
        writes: bool,
    ) -> PyResult<Self> {
        let (cache, columns) = (cache.shared(), columns.inner.clone());
        let followed = rules.get().inner.clone();
        let inner = Stores::new(&geometry.inner, cache, columns, followed, writes);
        Ok(Self {
            inner: inner.map_err(to_py)?,
            rules,
        })
    }

    fn __len__(&self) -> usize {
        self.inner.in_flight()
    }

    fn __contains__(&self, job: Whole) -> bool {
        self.inner.contains(job.0)
    }

    /// Plans stores of the entries that a step completes. Returns them by job number.
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
        let step = VllmStep {
            requests,
            scheduled,
            state,
            begins,
            planned,
        };
        let jobs = self.plan_step(engine, &step)?;
        Ok(jobs.unwrap_or_else(|| PyDict::new(engine.py())))
    }

    /// Plans a store of the entries that accepted drafts have completed.
    fn report(
        &self,
        engine: &Bound<'_, PyAny>,
        tracked: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PyJob>> {
        let engine = self.engine(engine);
        let job = self.inner.report(&VllmRequest::of(&engine, tracked)?)?;
        self.made(&engine, job)
    }

    /// Plans a store of the remaining entries of a request that has ended.
    fn finish<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        tracked: &Bound<'py, PyAny>,
        tables: &Bound<'py, PyAny>,
    ) -> PyResult<Option<PyJob>> {
        let engine = self.engine(engine);
        let request = VllmRequest::of(&engine, tracked)?.with_tables(PyTables::of(tables)?);
        let job = self.inner.finish(&request)?;
        self.made(&engine, job)
    }

    /// Makes stores under way publish nothing if `wrong`, called with their request and blocks, returns true.
    fn void(&self, py: Python<'_>, wrong: &Bound<'_, PyAny>) -> PyResult<()> {
        let under_way = self.inner.map_in_flight(|request, pins| {
            let pins: Vec<_> = pins.iter().map(|pin| pin.clone_ref(py)).collect();
            (request.clone_ref(py), pins)
        });
        for (job, given) in under_way {
            if wrong.call1(given)?.is_truthy()? {
                self.inner.void(job);
            }
        }
        Ok(())
    }

    /// Gives up stores that were not sent to any worker.
    fn drop_jobs(&self, engine: &Bound<'_, PyAny>, jobs: Vec<Whole>) -> PyResult<()> {
        let engine = self.engine(engine);
        for Whole(job) in jobs {
            self.inner.give_up(&engine, job)?;
        }
        Ok(())
    }

    /// Takes outcomes of ranks, by job, and publishes the entries that all ranks have copied.
    fn ended(
        &self,
        engine: &Bound<'_, PyAny>,
        outcomes: &Bound<'_, PyDict>,
        trusted: bool,
    ) -> PyResult<()> {
        let engine = self.engine(engine);
        // Calls of the engine's object may change the dictionary.
        let outcomes: Vec<_> = outcomes.iter().collect();
        let mut all = Ok(());
        for (job, outcomes) in outcomes {
            // An exception that ends the engine must not cost other jobs their outcome.
            all = all.and(self.ended_one(&engine, &job, &outcomes, trusted));
        }
        all
    }

    fn take_copied(&self) -> (usize, f64) {
        self.inner.take_copied()
    }
}

impl PyStores {
    fn engine<'a, 'py>(&'a self, given: &'a Bound<'py, PyAny>) -> VllmEngine<'a, 'py> {
        let rules = self.rules.get();
        VllmEngine { given, rules }
    }

    /// Converts a planned store to Python objects.
    fn made(
        &self,
        engine: &VllmEngine<'_, '_>,
        job: Option<(usize, StoreEntries)>,
    ) -> PyResult<Option<PyJob>> {
        let Some((job, inner)) = job else {
            return Ok(None);
        };
        match Py::new(engine.py(), PyStoreEntries { inner }) {
            Ok(entries) => Ok(Some((job, entries))),
            Err(error) => {
                self.inner.give_up(engine, job)?;
                Err(error)
            }
        }
    }

    /// Takes outcomes of ranks for one job, which ends when all ranks have reported.
    fn ended_one<'py>(
        &self,
        engine: &VllmEngine<'_, 'py>,
        job: &Bound<'py, PyAny>,
        outcomes: &Bound<'py, PyAny>,
        trusted: bool,
    ) -> PyResult<()> {
        let found = job.extract::<Whole>().map(|Whole(number)| number);
        let number = found.ok().filter(|&number| self.inner.contains(number));
        let Some(number) = number else {
            return engine.not_in_flight(job);
        };
        let outcomes = outcomes::read(outcomes, self.inner.ranks());
        Ok(self.inner.reported(engine, number, outcomes, trusted)?)
    }

    /// Plans the stores of a step, by job; `None` if there are none.
    fn plan_step<'py>(
        &self,
        engine: &Bound<'py, PyAny>,
        step: &VllmStep<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut jobs = None;
        let planned = self.plan_all(&self.engine(engine), step, &mut jobs);
        if let (Err(_), Some(jobs)) = (&planned, &jobs) {
            // The caller gets the error and not the jobs.
            self.drop_jobs(engine, jobs.keys().extract()?)?;
        }
        planned.map(|()| jobs)
    }

    fn plan_all<'py>(
        &self,
        engine: &VllmEngine<'_, 'py>,
        step: &VllmStep<'_, 'py>,
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
            // A hand-over may come for a request that has blocks and isn't scheduled in this step. If it has no
            // position, it waits for a load, and its states were loaded.
            if !step.scheduled.contains(&name)?
                && step
                    .state
                    .getattr(intern!(py, "req_ids"))?
                    .contains(&name)?
                && let Some(tracked) = step.requests.get_item(&name)?
                && run_of(&tracked)?.try_borrow()?.inner.run.position.is_some()
            {
                self.plan(engine, step, &tracked, 0, Some(offers), jobs)?;
            }
        }
        Ok(())
    }

    /// Adds the stores of the entries that `new_tokens` more tokens of a request complete, and of a state inside a
    /// block that the engine hands over.
    fn plan<'py>(
        &self,
        engine: &VllmEngine<'_, 'py>,
        step: &VllmStep<'_, 'py>,
        tracked: &Bound<'py, PyAny>,
        new_tokens: usize,
        offers: Option<Bound<'py, PyAny>>,
        jobs: &mut Option<Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let made = match self.plan_one(engine, step.begins, tracked, new_tokens, offers.as_ref()) {
            Ok(made) => made,
            Err(error) => return engine.not_planned(tracked, error),
        };
        Self::add(step, tracked, made, jobs)?;
        let Some(offers) = offers else {
            return Ok(());
        };
        match self.plan_handed_over(engine, tracked, new_tokens, &offers) {
            Ok(made) => Self::add(step, tracked, made, jobs),
            Err(error) => engine.not_planned(tracked, error),
        }
    }

    /// Adds a store that was planned.
    fn add<'py>(
        step: &VllmStep<'_, 'py>,
        tracked: &Bound<'py, PyAny>,
        made: Option<PyJob>,
        jobs: &mut Option<Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let Some((job, entries)) = made else {
            return Ok(());
        };
        let jobs = jobs.get_or_insert_with(|| PyDict::new(tracked.py()));
        jobs.set_item(job, entries)?;
        if let Some(planned) = step.planned {
            planned.call1((tracked,))?;
        }
        Ok(())
    }

    fn plan_one<'py>(
        &self,
        engine: &VllmEngine<'_, 'py>,
        begins: &Bound<'py, PyAny>,
        tracked: &Bound<'py, PyAny>,
        new_tokens: usize,
        offered: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<PyJob>> {
        let request = VllmRequest::of(engine, tracked)?.beginning(begins);
        let offers = offered.map(|given| || handed_over(given).map_err(Raised));
        let job = self.inner.step(&request, new_tokens, offers)?;
        self.made(engine, job)
    }

    fn plan_handed_over<'py>(
        &self,
        engine: &VllmEngine<'_, 'py>,
        tracked: &Bound<'py, PyAny>,
        new_tokens: usize,
        offered: &Bound<'py, PyAny>,
    ) -> PyResult<Option<PyJob>> {
        let request = VllmRequest::of(engine, tracked)?;
        let offers = handed_over(offered)?;
        let job = self.inner.hand_over(&request, new_tokens, &offers)?;
        self.made(engine, job)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStores>()
}
