//! One request of vLLM in one step of the engine.

use std::cell::OnceCell;

use hybrid_pages::ids::PrefixKey;
use hybrid_pages_vllm::engine::{StepRequest, TrackedRun};
use hybrid_pages_vllm::runs::{HandOver, RequestView};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::ops::{Deref, DerefMut};

use crate::block_tables::{PyBlockTables, PyTables, engine_block};
use crate::error::Raised;
use crate::keys::{BlockKeys, PyPrefixKeys, key};
use crate::number::{Whole, whole};
use crate::run::PyRun;
use crate::vllm_engine::VllmEngine;

/// A request of vLLM during one step.
pub struct VllmRequest<'a, 'py> {
    engine: &'a VllmEngine<'a, 'py>,
    /// The connector's object of the request: its attribute `run` is a [`PyRun`].
    tracked: &'a Bound<'py, PyAny>,
    run: Bound<'py, PyRun>,
    request: Bound<'py, PyAny>,
    keys: Bound<'py, PyPrefixKeys>,
    /// Called before a step that does not simply continue the last one.
    begins: Option<&'a Bound<'py, PyAny>>,
    tables: OnceCell<PyTables<'py>>,
    hashes: OnceCell<Bound<'py, PyList>>,
}

impl<'a, 'py> VllmRequest<'a, 'py> {
    pub fn of(engine: &'a VllmEngine<'a, 'py>, tracked: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let run = run_of(tracked)?;
        let (request, keys) = {
            let run = run.try_borrow()?;
            let py = tracked.py();
            (run.request.bind(py).clone(), run.keys.bind(py).clone())
        };
        Ok(Self {
            engine,
            tracked,
            run,
            request,
            keys,
            begins: None,
            tables: OnceCell::new(),
            hashes: OnceCell::new(),
        })
    }

    /// Calls `begins` before a step that does not simply continue the last one.
    pub fn beginning(self, begins: &'a Bound<'py, PyAny>) -> Self {
        Self {
            begins: Some(begins),
            ..self
        }
    }

    /// Uses these block tables, which the engine passes for a request that has ended.
    pub fn with_tables(self, tables: PyTables<'py>) -> Self {
        let tables = OnceCell::from(tables);
        Self { tables, ..self }
    }

    fn py(&self) -> Python<'py> {
        self.request.py()
    }

    fn number(&self, name: &Bound<'py, PyString>) -> Result<usize, Raised> {
        Ok(whole(&self.request.getattr(name)?)?)
    }

    fn hashes(&self) -> PyResult<&Bound<'py, PyList>> {
        if let Some(known) = self.hashes.get() {
            return Ok(known);
        }
        let hashes = self.request.getattr(intern!(self.py(), "block_hashes"))?;
        let hashes = hashes.cast_into::<PyList>()?;
        Ok(self.hashes.get_or_init(|| hashes))
    }

    fn request_id(&self) -> PyResult<Bound<'py, PyAny>> {
        self.request.getattr(intern!(self.py(), "request_id"))
    }

    fn read_tables(&self) -> PyResult<PyTables<'py>> {
        let name = self.request_id()?;
        let given = self.engine.given.getattr(intern!(self.py(), "tables"))?;
        match given.cast::<PyBlockTables>() {
            Ok(tables) => tables.get().of(&name),
            Err(_) => PyTables::of(&given.call1((name,))?),
        }
    }

    fn carries(&self, table: usize, block: u32, tokens: usize) -> PyResult<bool> {
        let (hashes, rules) = (self.hashes()?, self.engine.rules);
        let hash_tokens = rules.inner.block_tokens / rules.stride;
        let index = (tokens / hash_tokens).checked_sub(1);
        let known = |&index: &usize| tokens.is_multiple_of(hash_tokens) && index < hashes.len();
        let Some(index) = index.filter(known) else {
            return Ok(false);
        };
        let block = self.engine.block(block)?;
        let given = (block, hashes.get_item(index)?, table, tokens);
        rules.carries.bind(self.py()).call1(given)?.is_truthy()
    }
}

impl RequestView for VllmRequest<'_, '_> {
    type Error = Raised;

    fn prompt_tokens(&self) -> Result<usize, Raised> {
        self.number(intern!(self.py(), "num_prompt_tokens"))
    }

    fn tokens(&self) -> Result<usize, Raised> {
        self.number(intern!(self.py(), "num_tokens"))
    }

    fn computed(&self) -> Result<usize, Raised> {
        self.number(intern!(self.py(), "num_computed_tokens"))
    }

    fn processed(&self) -> Result<usize, Raised> {
        let processed = self.engine.rules.processed.bind(self.py());
        let found = processed.call1((&self.request,))?;
        // A request that begins anew may have more tokens under way than computed.
        Ok(found.extract::<isize>()?.max(0) as usize)
    }

    fn keys(&self) -> Result<usize, Raised> {
        match &self.engine.rules.known {
            None => Ok(self.hashes()?.len() / self.engine.rules.stride),
            Some(known) => Ok(whole(&known.bind(self.py()).call1((&self.request,))?)?),
        }
    }

    fn block(&self, table: usize, column: usize) -> Result<u32, Raised> {
        Ok(self.tables()?.block(table, column)?)
    }

    fn carries(&self, table: usize, block: u32, tokens: usize) -> Result<bool, Raised> {
        Ok(self.carries(table, block, tokens)?)
    }
}

/// The run of a Python object, borrowed exclusively.
pub struct Borrowed<'py>(PyRefMut<'py, PyRun>);

impl Deref for Borrowed<'_> {
    type Target = TrackedRun;

    fn deref(&self) -> &TrackedRun {
        &self.0.inner
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut TrackedRun {
        &mut self.0.inner
    }
}

impl<'a, 'py> StepRequest for VllmRequest<'a, 'py> {
    type Engine = VllmEngine<'a, 'py>;
    type Tables = PyTables<'py>;
    type Keys<'k>
        = BlockKeys<'k>
    where
        Self: 'k;
    type Tracked<'t>
        = Borrowed<'py>
    where
        Self: 't;

    fn engine(&self) -> &VllmEngine<'a, 'py> {
        self.engine
    }

    fn name(&self) -> Result<Py<PyAny>, Raised> {
        Ok(self.request_id()?.unbind())
    }

    fn tracked(&self) -> Result<Borrowed<'py>, Raised> {
        Ok(Borrowed(self.run.try_borrow_mut().map_err(PyErr::from)?))
    }

    fn tables(&self) -> Result<&PyTables<'py>, Raised> {
        if let Some(known) = self.tables.get() {
            return Ok(known);
        }
        let tables = self.read_tables()?;
        Ok(self.tables.get_or_init(|| tables))
    }

    fn read_keys(&self) -> Result<(), Raised> {
        if self.engine.rules.known.is_none() {
            return Ok(self.keys.get().read(self.hashes()?)?);
        }
        let read = intern!(self.py(), "read_keys");
        self.engine.given.call_method1(read, (self.tracked,))?;
        Ok(())
    }

    fn leading_keys(&self, limit: usize) -> BlockKeys<'_> {
        self.keys.get().leading(limit)
    }

    fn tail_key(&self, tokens: usize) -> Result<Option<PrefixKey>, Raised> {
        let name = intern!(self.py(), "tail_key");
        let found = self
            .engine
            .given
            .call_method1(name, (self.tracked, tokens))?;
        if found.is_none() {
            return Ok(None);
        }
        Ok(Some(key(&found)?))
    }

    fn begins(&self, start: usize, new_tokens: usize) -> Result<(), Raised> {
        if let Some(begins) = self.begins {
            begins.call1((self.tracked, start, new_tokens))?;
        }
        Ok(())
    }
}

/// The run in the connector's object for a request.
pub fn run_of<'py>(tracked: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyRun>> {
    let run = tracked.getattr(intern!(tracked.py(), "run"))?;
    Ok(run.cast_into::<PyRun>()?)
}

/// Reads the states that the engine hands over. Each has a group, a block, and the number of tokens that it includes.
pub fn handed_over(given: &Bound<'_, PyAny>) -> PyResult<Vec<HandOver>> {
    let mut states = Vec::new();
    for item in given.try_iter()? {
        let (table, block, tokens): (Whole, Whole, Whole) = item?.extract()?;
        states.push(HandOver {
            table: table.0,
            block: engine_block(block)?,
            tokens: tokens.0,
        });
    }
    Ok(states)
}
