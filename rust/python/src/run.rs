//! Runs of requests, and what they ask an engine's objects.

use std::cell::OnceCell;

use hybrid_pages::error::Error;
use hybrid_pages::run::{Mode, Offer, Request, Rules, Run, StateGroup};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::error::to_py;
use crate::hints::PyHints;
use crate::keys::PyPrefixKeys;
use crate::number::{Whole, whole};
use crate::tables::{PyBlockTables, Tables, block_id, engine_block, table_of, tables_in};

/// What the steps of one request fill, and which states they leave behind.
#[pyclass(name = "Run", module = "hybrid_pages._core")]
pub struct PyRun {
    pub inner: Run,
    pub request: Py<PyAny>,
    pub keys: Py<PyPrefixKeys>,
    #[pyo3(get, set)]
    pub namespace: usize,
    #[pyo3(get, set)]
    pub hints: Option<Py<PyHints>>,
    /// Whether its request wants to be stored.
    #[pyo3(get, set)]
    pub stores: bool,
    #[pyo3(get, set)]
    pub stale: bool,
    #[pyo3(get, set)]
    pub steered: bool,
}

#[pymethods]
impl PyRun {
    #[new]
    fn new(request: Py<PyAny>, keys: Py<PyPrefixKeys>, namespace: Whole) -> Self {
        Self {
            inner: Run::default(),
            request,
            keys,
            namespace: namespace.0,
            hints: None,
            stores: true,
            stale: false,
            steered: false,
        }
    }

    #[getter]
    fn position(&self) -> Option<usize> {
        self.inner.position
    }

    #[getter]
    fn quiet_until(&self) -> usize {
        self.inner.quiet_until
    }

    #[getter]
    fn offered_blocks(&self) -> usize {
        self.inner.offered
    }

    #[setter]
    fn set_offered_blocks(&mut self, blocks: Whole) {
        self.inner.offered = blocks.0;
    }

    fn want(&mut self, boundaries: &Bound<'_, PyAny>) -> PyResult<()> {
        let boundaries = boundaries.try_iter()?.map(|item| whole(&item?));
        let boundaries = boundaries.collect::<PyResult<Vec<_>>>()?;
        self.inner.want(boundaries);
        Ok(())
    }

    #[getter]
    fn wanted(&self) -> Vec<usize> {
        self.inner.wanted().collect()
    }

    #[getter]
    fn passed_over(&self) -> Vec<usize> {
        self.inner.passed_over().collect()
    }

    fn take_back(&mut self, first: Whole) {
        self.inner.take_back(first.0);
    }

    fn restart(&mut self) {
        self.inner.restart();
        self.stale = false;
        self.keys.get().clear();
    }
}

/// How an engine cuts prompts, and which states are wanted.
#[pyclass(frozen, name = "RunRules", module = "hybrid_pages._core")]
pub struct PyRules {
    pub inner: Rules,
    /// Hashes of a block.
    pub stride: usize,
    /// How many keys a request has, if that is not for its hashes to say.
    pub known: Option<Py<PyAny>>,
    pub carries: Py<PyAny>,
    pub processed: Py<PyAny>,
    pub pin: Py<PyAny>,
    pub unpin: Py<PyAny>,
}

#[pymethods]
impl PyRules {
    #[new]
    #[pyo3(
        signature = (block_tokens, stride, groups, mode, *, carries, processed, pin, unpin, known = None,
            exports_states = false, drops_last_block = false, drafts = false, narrow = false),
        text_signature = "(block_tokens, stride, groups, mode, *, carries, processed, pin, unpin, known=None, \
            exports_states=False, drops_last_block=False, drafts=False, narrow=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        block_tokens: Whole,
        stride: Whole,
        groups: Vec<(Whole, Whole)>,
        mode: &str,
        carries: Py<PyAny>,
        processed: Py<PyAny>,
        pin: Py<PyAny>,
        unpin: Py<PyAny>,
        known: Option<Py<PyAny>>,
        exports_states: bool,
        drops_last_block: bool,
        drafts: bool,
        narrow: bool,
    ) -> PyResult<Self> {
        let mode = match mode {
            "none" => Mode::None,
            "adaptive" => Mode::Adaptive,
            "align" => Mode::Align,
            "all" => Mode::All,
            found => {
                return Err(to_py(Error::InvalidArgument(format!(
                    "mode: expected none, adaptive, align or all, found {found:?}"
                ))));
            }
        };
        if block_tokens.0 == 0 || stride.0 == 0 {
            return Err(to_py(Error::InvalidArgument(format!(
                "rules: expected blocks of at least 1 token and 1 hash, found {} and {}",
                block_tokens.0, stride.0
            ))));
        }
        let group = |(table, per_block): (Whole, Whole)| StateGroup {
            table: table.0,
            per_block: per_block.0,
        };
        Ok(Self {
            inner: Rules {
                block_tokens: block_tokens.0,
                groups: groups.into_iter().map(group).collect(),
                exports_states,
                drops_last_block,
                drafts,
                narrow,
                mode,
            },
            stride: stride.0,
            known,
            carries,
            processed,
            pin,
            unpin,
        })
    }
}

/// A request of the engine, asked about once a step.
pub struct Asked<'a, 'py> {
    request: Bound<'py, PyAny>,
    rules: &'a PyRules,
    /// What has the engine's pool and its block tables.
    stores: &'a Bound<'py, PyAny>,
    tables: OnceCell<Tables<'py>>,
    hashes: OnceCell<Bound<'py, PyList>>,
}

impl<'a, 'py> Asked<'a, 'py> {
    pub fn new(
        request: Bound<'py, PyAny>,
        rules: &'a PyRules,
        stores: &'a Bound<'py, PyAny>,
    ) -> Self {
        Self {
            request,
            rules,
            stores,
            tables: OnceCell::new(),
            hashes: OnceCell::new(),
        }
    }

    /// With the block tables of a request that has ended, which the engine names itself.
    pub fn with(self, tables: Tables<'py>) -> Self {
        let tables = OnceCell::from(tables);
        Self { tables, ..self }
    }

    fn py(&self) -> Python<'py> {
        self.request.py()
    }

    fn number(&self, name: &Bound<'py, PyString>) -> PyResult<usize> {
        whole(&self.request.getattr(name)?)
    }

    /// Its name.
    pub fn name(&self) -> PyResult<Bound<'py, PyAny>> {
        self.request.getattr(intern!(self.py(), "request_id"))
    }

    /// Its hashes.
    pub fn hashes(&self) -> PyResult<&Bound<'py, PyList>> {
        if let Some(known) = self.hashes.get() {
            return Ok(known);
        }
        let hashes = self.request.getattr(intern!(self.py(), "block_hashes"))?;
        let hashes = hashes.cast_into::<PyList>()?;
        Ok(self.hashes.get_or_init(|| hashes))
    }

    /// Its block tables, for one step only.
    pub fn tables(&self) -> PyResult<&Tables<'py>> {
        if let Some(known) = self.tables.get() {
            return Ok(known);
        }
        let (name, given) = (
            self.name()?,
            self.stores.getattr(intern!(self.py(), "tables"))?,
        );
        let tables = match given.cast::<PyBlockTables>() {
            Ok(tables) => tables.get().of(&name)?,
            Err(_) => tables_in(&given.call1((name,))?)?,
        };
        Ok(self.tables.get_or_init(|| tables))
    }
}

impl Request for Asked<'_, '_> {
    type Error = PyErr;

    fn prompt_tokens(&self) -> PyResult<usize> {
        self.number(intern!(self.py(), "num_prompt_tokens"))
    }

    fn tokens(&self) -> PyResult<usize> {
        self.number(intern!(self.py(), "num_tokens"))
    }

    fn computed(&self) -> PyResult<usize> {
        self.number(intern!(self.py(), "num_computed_tokens"))
    }

    fn processed(&self) -> PyResult<usize> {
        let found = self
            .rules
            .processed
            .bind(self.py())
            .call1((&self.request,))?;
        // Requests that begin anew may have more of them under way than computed.
        Ok(found.extract::<isize>()?.max(0) as usize)
    }

    fn keys(&self) -> PyResult<usize> {
        match &self.rules.known {
            None => Ok(self.hashes()?.len() / self.rules.stride),
            Some(known) => whole(&known.bind(self.py()).call1((&self.request,))?),
        }
    }

    fn block(&self, table: usize, column: usize) -> PyResult<u32> {
        let table = table_of(self.tables()?, table)?;
        if column >= table.len()? {
            return Ok(0);
        }
        block_id(&table.get_item(column)?)
    }

    fn carries(&self, table: usize, block: u32, boundary: usize) -> PyResult<bool> {
        let py = self.py();
        let hashes = self.hashes()?;
        let index = (boundary * self.rules.stride).checked_sub(1);
        let Some(index) = index.filter(|&index| index < hashes.len()) else {
            return Ok(false);
        };
        let block = blocks_of(&pool_of(self.stores)?)?.get_item(block as usize)?;
        let tokens = boundary * self.rules.inner.block_tokens;
        let given = (block, hashes.get_item(index)?, table, tokens);
        self.rules.carries.bind(py).call1(given)?.is_truthy()
    }
}

/// The engine's block pool.
pub fn pool_of<'py>(stores: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let pool = stores.getattr(intern!(stores.py(), "pool"))?;
    if pool.is_none() {
        return Err(to_py(Error::InvalidArgument(
            "pool: expected the engine's block pool, found none: vLLM gives it with bind_gpu_block_pool at start"
                .into(),
        )));
    }
    Ok(pool)
}

/// All blocks of a pool.
pub fn blocks_of<'py>(pool: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    Ok(pool.getattr(intern!(pool.py(), "blocks"))?.cast_into()?)
}

/// What an engine hands over: its group, its block, and how many tokens the state includes.
pub fn offers(offered: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Offer>> {
    let mut offers = Vec::new();
    let Some(offered) = offered else {
        return Ok(offers);
    };
    for item in offered.try_iter()? {
        let (table, block, tokens): (Whole, Whole, Whole) = item?.extract()?;
        offers.push(Offer {
            table: table.0,
            block: engine_block(block)?,
            tokens: tokens.0,
        });
    }
    Ok(offers)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRun>()?;
    m.add_class::<PyRules>()
}
