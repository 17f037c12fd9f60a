//! What an engine calls in every step, answered here unless Python has something to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use hybrid_pages::error::Error;
use hybrid_pages::guarded::lock;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet, PyTuple, PyType};

use crate::error::to_py;
use crate::stores::{PyStores, VllmStep};

/// A connector's part of each step. An engine's forward pass leaves little in the processor's caches, so that a step
/// takes as long as its code and objects take to be fetched: the usual one runs no Python.
#[pyclass(frozen, name = "StepCalls", module = "hybrid_pages._core")]
pub struct PyStepCalls {
    /// Python's answers to the same calls.
    half: Py<PyAny>,
    /// Empty while nothing is under way.
    requests: Py<PyDict>,
    arrived: Py<PySet>,
    /// How often figures of a busy engine go out.
    figures_every: Duration,
    /// When they do next.
    figures_from: Mutex<Option<Instant>>,
    /// Everything is for Python, for good.
    rests: AtomicBool,
    served: OnceLock<Served>,
}

/// What is served, and how.
struct Served {
    stores: Py<PyStores>,
    /// What the stores ask and tell.
    engine: Py<PyAny>,
    begins: Py<PyAny>,
    planned: Option<Py<PyAny>>,
    /// A step is for Python unless all of these are empty.
    waiting: Py<PyTuple>,
    /// Makes metadata of a name and stores.
    metadata: Py<PyAny>,
    name: Py<PyAny>,
    /// Metadata of a step without copies.
    nothing: Py<PyAny>,
    /// Of what the workers send.
    outcomes: Py<PyType>,
}

#[pymethods]
impl PyStepCalls {
    #[new]
    #[pyo3(signature = (half, requests, arrived, *, figures_every))]
    fn new(
        half: Py<PyAny>,
        requests: Py<PyDict>,
        arrived: Py<PySet>,
        figures_every: f64,
    ) -> PyResult<Self> {
        let figures_every = Duration::try_from_secs_f64(figures_every).map_err(|_| {
            to_py(Error::InvalidArgument(format!(
                "figures_every: expected seconds, found {figures_every}"
            )))
        })?;
        Ok(Self {
            half,
            requests,
            arrived,
            figures_every,
            figures_from: Mutex::new(None),
            rests: AtomicBool::new(false),
            served: OnceLock::new(),
        })
    }

    #[pyo3(signature = (stores, engine, *, begins, planned, waiting, metadata, name, nothing, outcomes))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn serve(
        &self,
        stores: Py<PyStores>,
        engine: Py<PyAny>,
        begins: Py<PyAny>,
        planned: Option<Py<PyAny>>,
        waiting: Py<PyTuple>,
        metadata: Py<PyAny>,
        name: Py<PyAny>,
        nothing: Py<PyAny>,
        outcomes: Py<PyType>,
    ) {
        // What was served first stays.
        self.served.get_or_init(|| Served {
            stores,
            engine,
            begins,
            planned,
            waiting,
            metadata,
            name,
            nothing,
            outcomes,
        });
    }

    fn rest(&self) {
        self.rests.store(true, Ordering::Release);
    }

    fn step<'py>(&self, scheduler_output: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = scheduler_output.py();
        let tokens = scheduler_output.getattr(intern!(py, "total_num_scheduled_tokens"))?;
        let state = scheduler_output.getattr(intern!(py, "kv_connector_block_state"))?;
        let plain = tokens.is_truthy()? && !state.is_none();
        let Some(served) = self.served(py)?.filter(|_| plain) else {
            let step = intern!(py, "step");
            return self.half.bind(py).call_method1(step, (scheduler_output,));
        };
        let scheduled = scheduler_output.getattr(intern!(py, "num_scheduled_tokens"))?;
        let step = VllmStep {
            requests: self.requests.bind(py),
            scheduled: scheduled.cast()?,
            state: &state,
            begins: served.begins.bind(py),
            planned: served.planned.as_ref().map(|planned| planned.bind(py)),
        };
        let jobs = served
            .stores
            .get()
            .plan_step(served.engine.bind(py), &step)?;
        match jobs {
            None => Ok(served.nothing.bind(py).clone()),
            Some(jobs) => served.metadata.bind(py).call1((&served.name, jobs)),
        }
    }

    fn reported(&self, connector_output: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = connector_output.py();
        let truthy = |of: &Bound<'_, PyAny>, name| of.getattr(name)?.is_truthy();
        if let Some(served) = self.served(py)?
            && !truthy(connector_output, intern!(py, "invalid_block_ids"))?
            && !truthy(connector_output, intern!(py, "finished_recving"))?
        {
            let found = connector_output.getattr(intern!(py, "kv_connector_worker_meta"))?;
            if found.is_none() {
                return Ok(());
            }
            if found.get_type().is(&served.outcomes)
                && !truthy(&found, intern!(py, "loads"))?
                && !truthy(&found, intern!(py, "reports"))?
                && !truthy(&found, intern!(py, "ready"))?
            {
                let outcomes = found.getattr(intern!(py, "stores"))?;
                let engine = served.engine.bind(py);
                return served.stores.get().ended(engine, outcomes.cast()?, true);
            }
        }
        let reported = intern!(py, "reported");
        self.half
            .bind(py)
            .call_method1(reported, (connector_output,))?;
        Ok(())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (now, busy) = (Instant::now(), self.is_busy(py)?);
        if busy && self.figures_from().is_some_and(|from| now < from) {
            return Ok(py.None().into_bound(py));
        }
        let figures = self.half.bind(py).call_method0(intern!(py, "take_stats"))?;
        if busy || !figures.is_none() {
            *self.figures_from() = now.checked_add(self.figures_every);
        }
        Ok(figures)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.half)?;
        visit.call(&self.requests)?;
        visit.call(&self.arrived)?;
        let Some(served) = self.served.get() else {
            return Ok(());
        };
        visit.call(&served.stores)?;
        visit.call(&served.engine)?;
        visit.call(&served.begins)?;
        visit.call(&served.planned)?;
        visit.call(&served.waiting)?;
        visit.call(&served.metadata)?;
        visit.call(&served.name)?;
        visit.call(&served.nothing)?;
        visit.call(&served.outcomes)
    }
}

impl PyStepCalls {
    fn figures_from(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.figures_from)
    }

    fn is_busy(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.requests.bind(py).is_empty() || !self.arrived.bind(py).is_empty() {
            return Ok(true);
        }
        match self.served.get() {
            Some(served) => Ok(!served.stores.get().is_empty()),
            None => self
                .half
                .bind(py)
                .getattr(intern!(py, "storing"))?
                .is_truthy(),
        }
    }

    /// What is served, unless Python has something to do.
    fn served(&self, py: Python<'_>) -> PyResult<Option<&Served>> {
        if self.rests.load(Ordering::Acquire) {
            return Ok(None);
        }
        let served = self.served.get();
        if let Some(served) = served {
            for waiting in served.waiting.bind(py).iter_borrowed() {
                if waiting.len()? > 0 {
                    return Ok(None);
                }
            }
        }
        Ok(served)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStepCalls>()
}
