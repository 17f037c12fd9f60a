//! The lab: traces, and their replays on Rust's threads while Python handles signals.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hybrid_pages::error::Error;
use hybrid_pages_lab::{
    Budget, NetworkLink, ReadOptions, RemoteUse, ReplayRow, ReplayedTier, Result, Route,
    SessionIds, Trace, policies, replay_over, route,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::{lab_to_py, to_py};
use crate::number::Whole;

/// Longest time that a signal waits until it is handled.
const PATIENCE: Duration = Duration::from_millis(50);

/// Requests in order of arrival, each with the hashes of its full blocks.
#[pyclass(frozen, name = "Trace", module = "hybrid_pages._core")]
pub struct PyTrace {
    pub inner: Arc<Trace>,
}

#[pymethods]
impl PyTrace {
    #[staticmethod]
    #[pyo3(
        signature = (path, *, block_tokens = None, skip_bad = false, sessions = "given"),
        text_signature = "(path, *, block_tokens=None, skip_bad=False, sessions='given')"
    )]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        block_tokens: Option<Whole>,
        skip_bad: bool,
        sessions: &str,
    ) -> PyResult<Self> {
        let sessions = sessions_by_name(sessions)?;
        let options = ReadOptions {
            block_tokens: block_tokens.map(|Whole(tokens)| tokens),
            skip_bad,
        };
        let inner = beside(
            py,
            move |_| {
                let trace = Trace::open(&path, options)?;
                Ok(Arc::new(trace.with_sessions(sessions)))
            },
            |()| Ok(()),
        )?;
        Ok(Self { inner })
    }

    #[getter]
    fn block_tokens(&self) -> u64 {
        self.inner.block_tokens()
    }

    #[getter]
    fn requests(&self) -> usize {
        self.inner.requests()
    }

    #[getter]
    fn input_tokens(&self) -> u64 {
        self.inner.input_tokens()
    }

    #[getter]
    fn distinct_blocks(&self) -> usize {
        self.inner.distinct_blocks()
    }

    #[getter]
    fn skipped(&self) -> usize {
        self.inner.skipped()
    }

    fn __repr__(&self) -> String {
        let trace = &self.inner;
        format!(
            "Trace(requests={}, block_tokens={}, distinct_blocks={}, skipped={})",
            trace.requests(),
            trace.block_tokens(),
            trace.distinct_blocks(),
            trace.skipped()
        )
    }
}

fn sessions_by_name(name: &str) -> PyResult<SessionIds> {
    let known = SessionIds::NAMES.iter().find(|(known, _)| *known == name);
    known.map(|&(_, sessions)| sessions).ok_or_else(|| {
        let names = SessionIds::NAMES.map(|(name, _)| name).join(", ");
        to_py(Error::InvalidArgument(format!(
            "sessions: expected one of {names}, found '{name}'"
        )))
    })
}

/// The network to a remote store and an engine's speed: the costs of fetching and of computing.
#[pyclass(frozen, get_all, name = "Link", module = "hybrid_pages._core")]
pub struct PyLink {
    latency: f64,
    bandwidth: f64,
    page_bytes: u64,
    checkpoint_bytes: u64,
    tokens_per_second: f64,
}

impl PyLink {
    pub const fn link(&self) -> NetworkLink {
        NetworkLink {
            latency: self.latency,
            bandwidth: self.bandwidth,
            page_bytes: self.page_bytes,
            checkpoint_bytes: self.checkpoint_bytes,
            speed: self.tokens_per_second,
        }
    }
}

#[pymethods]
impl PyLink {
    #[new]
    #[pyo3(
        signature = (*, latency, bandwidth, page_bytes, checkpoint_bytes, tokens_per_second),
        text_signature = "(*, latency, bandwidth, page_bytes, checkpoint_bytes, tokens_per_second)"
    )]
    fn new(
        latency: f64,
        bandwidth: f64,
        page_bytes: Whole,
        checkpoint_bytes: Whole,
        tokens_per_second: f64,
    ) -> PyResult<Self> {
        let link = Self {
            latency,
            bandwidth,
            page_bytes: page_bytes.0 as u64,
            checkpoint_bytes: checkpoint_bytes.0 as u64,
            tokens_per_second,
        };
        link.link().check().map_err(lab_to_py)?;
        Ok(link)
    }

    fn break_even(&self, block_tokens: Whole) -> PyResult<Option<u64>> {
        match block_tokens.0 {
            0 => Err(to_py(Error::InvalidArgument(
                "block_tokens: expected at least 1, found 0".into(),
            ))),
            tokens => Ok(self.link().break_even(tokens as u64)),
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "Link(latency={}, bandwidth={}, page_bytes={}, checkpoint_bytes={}, tokens_per_second={})",
            self.latency,
            self.bandwidth,
            self.page_bytes,
            self.checkpoint_bytes,
            self.tokens_per_second
        )
    }
}

/// The outcome of one policy on one trace with one budget.
#[pyclass(frozen, get_all, name = "ReplayRow", module = "hybrid_pages._core")]
pub struct PyRow {
    trace: usize,
    policy: String,
    ratio: u32,
    budget_fraction: f64,
    budget_units: u64,
    requests: usize,
    input_tokens: u64,
    hit_tokens: u64,
    hit_rate: f64,
    written_units: u64,
    disk_units: u64,
    disk_hit_tokens: u64,
    disk_written_units: u64,
    disk_read_units: u64,
    remote_admit: Option<&'static str>,
    remote_hit_tokens: u64,
    remote_slow_tokens: u64,
    remote_up_bytes: u64,
    remote_down_bytes: u64,
    remote_saved_seconds: f64,
    state_share: f64,
    policy_us_per_request: f64,
    metadata_bytes: usize,
}

impl From<ReplayRow> for PyRow {
    fn from(row: ReplayRow) -> Self {
        Self {
            hit_rate: row.hit_rate(),
            trace: row.trace,
            policy: row.policy,
            ratio: row.ratio,
            budget_fraction: row.budget_fraction,
            budget_units: row.budget_size,
            requests: row.requests,
            input_tokens: row.input_tokens,
            hit_tokens: row.hit_tokens,
            written_units: row.written_size,
            disk_units: row.disk_size,
            disk_hit_tokens: row.disk_hit_tokens,
            disk_written_units: row.disk_written_size,
            disk_read_units: row.disk_read_size,
            remote_admit: row.admit.map(RemoteUse::name),
            remote_hit_tokens: row.traffic.hit_tokens,
            remote_slow_tokens: row.traffic.slow_tokens,
            remote_up_bytes: row.traffic.up_bytes,
            remote_down_bytes: row.traffic.down_bytes,
            remote_saved_seconds: row.traffic.saved_seconds,
            state_share: row.state_share,
            policy_us_per_request: row.policy_us_per_request,
            metadata_bytes: row.metadata_bytes,
        }
    }
}

#[pymethods]
impl PyRow {
    fn __repr__(&self) -> String {
        format!(
            "ReplayRow(trace={}, policy='{}', budget_units={}, hit_rate={:.3})",
            self.trace, self.policy, self.budget_units, self.hit_rate
        )
    }
}

/// Replay every trace with every policy and budget on all cores, without the GIL.
#[pyfunction]
#[pyo3(
    signature = (traces, policies, *, ratio, fractions = Vec::new(), units = Vec::new(), disk = None, remote = None, done = None),
    text_signature = "(traces, policies, *, ratio, fractions=(), units=(), disk=None, remote=None, done=None)"
)]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
fn replay_traces(
    py: Python<'_>,
    traces: Vec<PyRef<'_, PyTrace>>,
    policies: Vec<String>,
    ratio: Whole,
    fractions: Vec<f64>,
    units: Vec<Whole>,
    disk: Option<(f64, String)>,
    remote: Option<PyRef<'_, PyLink>>,
    done: Option<Bound<'_, PyAny>>,
) -> PyResult<Vec<PyRow>> {
    let traces: Vec<_> = traces
        .iter()
        .map(|trace| Arc::clone(&trace.inner))
        .collect();
    let ratio = checkpoint_size(ratio)?;
    let budgets: Vec<_> = fractions
        .into_iter()
        .map(Budget::Fraction)
        .chain(
            units
                .into_iter()
                .map(|Whole(units)| Budget::Size(units as u64)),
        )
        .collect();
    let below = match (disk, remote) {
        (None, None) => None,
        (Some((share, policy)), None) => Some(ReplayedTier::Disk {
            budget: Budget::Fraction(share),
            policy,
        }),
        (None, Some(link)) => Some(ReplayedTier::Remote(link.link())),
        (Some(_), Some(_)) => {
            return Err(to_py(Error::InvalidArgument(
                "disk and remote: expected one tier below the host, found both".into(),
            )));
        }
    };
    let work = move |show: &(dyn Fn(ReplayRow) -> ControlFlow<()> + Sync)| {
        replay_over(
            &traces,
            &policies,
            &budgets,
            ratio,
            below.as_ref(),
            &|row| show(row.clone()),
        )
    };
    let rows = beside(py, work, |row: ReplayRow| match &done {
        Some(done) => done.call1((PyRow::from(row),)).map(drop),
        None => Ok(()),
    })?;
    Ok(rows.into_iter().map(PyRow::from).collect())
}

/// The outcome of one way to route a trace's requests to engines.
#[pyclass(frozen, get_all, name = "RouteRow", module = "hybrid_pages._core")]
pub struct PyRouteRow {
    input_tokens: u64,
    hit_tokens: u64,
    hit_rate: f64,
    predicted_tokens: u64,
    imbalance: f64,
}

#[pymethods]
impl PyRouteRow {
    fn __repr__(&self) -> String {
        format!(
            "RouteRow(hit_rate={:.3}, imbalance={:.2})",
            self.hit_rate, self.imbalance
        )
    }
}

/// Send the requests of a trace to several engines, each with its part of the budget.
#[pyfunction]
#[pyo3(
    signature = (trace, *, route, engines, policy, ratio, fraction),
    text_signature = "(trace, *, route, engines, policy, ratio, fraction)"
)]
fn route_trace(
    py: Python<'_>,
    trace: &PyTrace,
    route: &str,
    engines: Whole,
    policy: String,
    ratio: Whole,
    fraction: f64,
) -> PyResult<PyRouteRow> {
    let way = Route::by_name(route).map_err(lab_to_py)?;
    let ratio = checkpoint_size(ratio)?;
    let trace = Arc::clone(&trace.inner);
    let work = move |_: &(dyn Fn(()) -> ControlFlow<()> + Sync)| {
        let budget = Budget::Fraction(fraction);
        self::route(&trace, (&policy, ratio), way, engines.0, budget)
    };
    let routed = beside(py, work, |()| Ok(()))?;
    Ok(PyRouteRow {
        input_tokens: routed.input_tokens,
        hit_tokens: routed.hit_tokens,
        hit_rate: routed.hit_tokens as f64 / routed.input_tokens.max(1) as f64,
        predicted_tokens: routed.predicted_tokens,
        imbalance: routed.imbalance,
    })
}

pub fn checkpoint_size(Whole(ratio): Whole) -> PyResult<u32> {
    u32::try_from(ratio).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "ratio: expected a checkpoint of at most size {}, found {ratio}",
            u32::MAX
        )))
    })
}

/// Runs `work` on a thread of its own and shows here what it sends, while signals are handled.
///
/// If a signal's handler or `show` raises, this returns without waiting for the thread, whose next send fails.
pub fn beside<S: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&(dyn Fn(S) -> ControlFlow<()> + Sync)) -> Result<T> + Send + 'static,
    show: impl Fn(S) -> PyResult<()>,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let worker = std::thread::spawn(move || {
        work(&|part| match sender.send(part) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    });
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(PATIENCE)) {
            Ok(part) => show(part)?,
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        py.check_signals()?;
    }
    let outcome = worker.join().map_err(|_| {
        let what = "expected a result, found a panic: please report what standard error says";
        to_py(Error::Panicked(what.into()))
    })?;
    outcome.map_err(lab_to_py)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("POLICIES", PyTuple::new(m.py(), policies())?)?;
    m.add_class::<PyTrace>()?;
    m.add_class::<PyLink>()?;
    m.add_class::<PyRow>()?;
    let routes: Vec<_> = Route::ALL.iter().map(|(name, _)| name).collect();
    m.add("ROUTES", PyTuple::new(m.py(), routes)?)?;
    m.add_class::<PyRouteRow>()?;
    m.add_function(wrap_pyfunction!(replay_traces, m)?)?;
    m.add_function(wrap_pyfunction!(route_trace, m)?)
}
