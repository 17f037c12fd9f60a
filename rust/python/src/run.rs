//! Runs of requests and the rules that runs follow, as Python objects.

use hybrid_pages::error::Error;
use hybrid_pages_vllm::engine::TrackedRun;
use hybrid_pages_vllm::runs::{CheckpointMode, RunRules, StateGroup, Tails};
use pyo3::prelude::*;

use crate::error::to_py;
use crate::hints::PyHints;
use crate::keys::PyPrefixKeys;
use crate::number::{Whole, namespace_id, whole};

/// Follows the run of one request: which blocks its steps fill, and which states they leave.
#[pyclass(name = "Run", module = "hybrid_pages._core")]
pub struct PyRun {
    pub inner: TrackedRun,
    pub request: Py<PyAny>,
    pub keys: Py<PyPrefixKeys>,
    #[pyo3(get)]
    hints: Option<Py<PyHints>>,
}

#[pymethods]
impl PyRun {
    #[new]
    fn new(request: Py<PyAny>, keys: Py<PyPrefixKeys>, namespace: Whole) -> PyResult<Self> {
        Ok(Self {
            inner: TrackedRun::new(namespace_id(namespace)?),
            request,
            keys,
            hints: None,
        })
    }

    #[getter]
    fn namespace(&self) -> u32 {
        self.inner.namespace.0
    }

    #[setter]
    fn set_namespace(&mut self, namespace: Whole) -> PyResult<()> {
        self.inner.namespace = namespace_id(namespace)?;
        Ok(())
    }

    #[setter]
    fn set_hints(&mut self, hints: Option<Py<PyHints>>) {
        self.inner.hints = hints.as_ref().map(|hints| hints.get().inner);
        self.hints = hints;
    }

    #[getter]
    fn stores(&self) -> bool {
        self.inner.stores
    }

    #[setter]
    fn set_stores(&mut self, stores: bool) {
        self.inner.stores = stores;
    }

    #[getter]
    fn stale(&self) -> bool {
        self.inner.stale
    }

    #[setter]
    fn set_stale(&mut self, stale: bool) {
        self.inner.stale = stale;
    }

    #[getter]
    fn steered(&self) -> bool {
        self.inner.steered
    }

    #[setter]
    fn set_steered(&mut self, steered: bool) {
        self.inner.steered = steered;
    }

    #[getter]
    fn position(&self) -> Option<usize> {
        self.inner.run.position
    }

    #[getter]
    fn quiet_until(&self) -> usize {
        self.inner.run.quiet_until
    }

    #[getter]
    fn offered_blocks(&self) -> usize {
        self.inner.run.offered
    }

    #[setter]
    fn set_offered_blocks(&mut self, blocks: Whole) {
        self.inner.run.offered = blocks.0;
    }

    fn want(&mut self, boundaries: &Bound<'_, PyAny>) -> PyResult<()> {
        let boundaries = boundaries.try_iter()?.map(|item| whole(&item?));
        let boundaries = boundaries.collect::<PyResult<Vec<_>>>()?;
        self.inner.run.want(boundaries);
        Ok(())
    }

    fn want_tails(&mut self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = tokens.try_iter()?.map(|item| whole(&item?));
        let tokens = tokens.collect::<PyResult<Vec<_>>>()?;
        self.inner.run.want_tails(tokens);
        Ok(())
    }

    #[getter]
    fn wanted(&self) -> Vec<usize> {
        self.inner.run.wanted().collect()
    }

    #[getter]
    fn passed_over(&self) -> Vec<usize> {
        self.inner.run.passed_over().collect()
    }

    fn take_back(&mut self, first: Whole) {
        self.inner.run.take_back(first.0);
    }

    fn restart(&mut self) {
        self.inner.restart();
        self.keys.get().clear();
    }
}

/// How an engine cuts prompts into blocks, and which states are wanted.
#[pyclass(frozen, name = "RunRules", module = "hybrid_pages._core")]
pub struct PyRules {
    pub inner: RunRules,
    /// Number of hashes per block.
    pub stride: usize,
    /// A function that says how many keys a request has, if its hashes don't.
    pub known: Option<Py<PyAny>>,
    pub carries: Py<PyAny>,
    pub processed: Py<PyAny>,
    pub pin: Py<PyAny>,
    pub unpin: Py<PyAny>,
    pub take: Py<PyAny>,
}

#[pymethods]
impl PyRules {
    #[new]
    #[pyo3(
        signature = (block_tokens, stride, groups, mode, *, carries, processed, pin, unpin, take, known = None,
            exports_states = false, drops_last_block = false, drafts = false, narrow = false, tails = "never"),
        text_signature = "(block_tokens, stride, groups, mode, *, carries, processed, pin, unpin, take, known=None, \
            exports_states=False, drops_last_block=False, drafts=False, narrow=False, tails='never')"
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
        take: Py<PyAny>,
        known: Option<Py<PyAny>>,
        exports_states: bool,
        drops_last_block: bool,
        drafts: bool,
        narrow: bool,
        tails: &str,
    ) -> PyResult<Self> {
        let mode = match mode {
            "none" => CheckpointMode::None,
            "adaptive" => CheckpointMode::Adaptive,
            "align" => CheckpointMode::Align,
            "all" => CheckpointMode::All,
            found => {
                return Err(to_py(Error::InvalidArgument(format!(
                    "mode: expected none, adaptive, align or all, found {found:?}"
                ))));
            }
        };
        let tails = match tails {
            "never" => Tails::Never,
            "handed_over" => Tails::HandedOver,
            "in_steps" => Tails::InSteps,
            "copied" => Tails::Copied,
            found => {
                return Err(to_py(Error::InvalidArgument(format!(
                    "tails: expected never, handed_over, in_steps or copied, found {found:?}"
                ))));
            }
        };
        if block_tokens.0 == 0 || stride.0 == 0 || !block_tokens.0.is_multiple_of(stride.0) {
            return Err(to_py(Error::InvalidArgument(format!(
                "rules: expected blocks of at least 1 token, and 1 hash or more for equally many tokens, found \
                 {} tokens and {} hashes",
                block_tokens.0, stride.0
            ))));
        }
        let group = |(table, per_block): (Whole, Whole)| StateGroup {
            table: table.0,
            per_block: per_block.0,
        };
        Ok(Self {
            inner: RunRules {
                block_tokens: block_tokens.0,
                groups: groups.into_iter().map(group).collect(),
                exports_states,
                drops_last_block,
                drafts,
                narrow,
                mode,
                tails,
            },
            stride: stride.0,
            known,
            carries,
            processed,
            pin,
            unpin,
            take,
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRun>()?;
    m.add_class::<PyRules>()
}
