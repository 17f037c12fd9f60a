//! The lab: many engines over one remote store.

use std::ops::ControlFlow;
use std::sync::Arc;

use hybrid_pages::error::Error;
use hybrid_pages_lab::{
    Fleet, FleetRow, FleetTerms, PackFormat, RemoteUse, Route, StoreLoad, fleets,
};
use pyo3::prelude::*;

use crate::error::{lab_to_py, to_py};
use crate::number::Whole;
use crate::replay::{PyLink, PyTrace, beside, checkpoint_size};

/// Counts of requests to a remote store, and of bytes.
#[pyclass(frozen, get_all, name = "StoreLoad", module = "hybrid_pages._core")]
#[derive(Clone)]
pub struct PyLoad {
    looks: f64,
    lists: f64,
    table_gets: f64,
    data_gets: f64,
    puts: f64,
    table_bytes: f64,
    down_bytes: f64,
    up_bytes: f64,
}

impl PyLoad {
    fn over(load: &StoreLoad, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds;
        Self {
            looks: rate(load.looks),
            lists: rate(load.lists),
            table_gets: rate(load.table_gets),
            data_gets: rate(load.data_gets),
            puts: rate(load.puts),
            table_bytes: rate(load.table_bytes),
            down_bytes: rate(load.down_bytes),
            up_bytes: rate(load.up_bytes),
        }
    }
}

/// The results of a fleet, counted over the second half of the time.
#[pyclass(frozen, get_all, name = "FleetRow", module = "hybrid_pages._core")]
pub struct PyFleetRow {
    engines: usize,
    route: &'static str,
    admit: Option<&'static str>,
    copies: f64,
    seconds: f64,
    requests: u64,
    input_tokens: u64,
    hit_tokens: u64,
    hit_rate: f64,
    remote_hit_tokens: u64,
    remote_slow_tokens: u64,
    saved_seconds: f64,
    imbalance: f64,
    load: PyLoad,
    most: PyLoad,
    packs: u64,
    entries: u64,
    stored_bytes: u64,
}

impl From<FleetRow> for PyFleetRow {
    fn from(row: FleetRow) -> Self {
        let route = Route::ALL
            .iter()
            .find(|(_, route)| *route == row.fleet.route);
        Self {
            engines: row.fleet.engines,
            route: route.map_or("", |(name, _)| name),
            admit: row.fleet.admit.map(RemoteUse::name),
            copies: row.copies,
            seconds: row.seconds,
            requests: row.requests,
            input_tokens: row.input_tokens,
            hit_tokens: row.hit_tokens,
            hit_rate: row.hit_tokens as f64 / row.input_tokens.max(1) as f64,
            remote_hit_tokens: row.remote_hit_tokens,
            remote_slow_tokens: row.remote_slow_tokens,
            saved_seconds: row.saved_seconds,
            imbalance: row.imbalance,
            load: PyLoad::over(&row.load, row.seconds),
            most: PyLoad::over(&row.most, 1.0),
            packs: row.packs,
            entries: row.entries,
            stored_bytes: row.stored_bytes,
        }
    }
}

#[pymethods]
impl PyFleetRow {
    fn __repr__(&self) -> String {
        format!(
            "FleetRow(engines={}, route='{}', hit_rate={:.3})",
            self.engines, self.route, self.hit_rate
        )
    }
}

/// Run fleets of engines over one remote store each, on all cores, without the GIL.
#[pyfunction]
#[pyo3(
    signature = (trace, fleets, *, link, policy, ratio, host_units, pack_bytes, stale, overlap, list_keys, retention = None, share = true, lasts = None, done = None),
    text_signature = "(trace, fleets, *, link, policy, ratio, host_units, pack_bytes, stale, overlap, list_keys, retention=None, share=True, lasts=None, done=None)"
)]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
fn run_fleets(
    py: Python<'_>,
    trace: &PyTrace,
    fleets: Vec<(Whole, String, Option<String>)>,
    link: &PyLink,
    policy: String,
    ratio: Whole,
    host_units: Whole,
    pack_bytes: Whole,
    stale: Whole,
    overlap: Whole,
    list_keys: Whole,
    retention: Option<Whole>,
    share: bool,
    lasts: Option<Whole>,
    done: Option<Bound<'_, PyAny>>,
) -> PyResult<Vec<PyFleetRow>> {
    let one = |(engines, route, admit): (Whole, String, Option<String>)| {
        Ok(Fleet {
            engines: engines.0,
            route: Route::by_name(&route).map_err(lab_to_py)?,
            admit: admit.as_deref().map(admit_by_name).transpose()?,
        })
    };
    let all: Vec<Fleet> = fleets.into_iter().map(one).collect::<PyResult<_>>()?;
    let terms = FleetTerms {
        policy,
        ratio: checkpoint_size(ratio)?,
        host_size: host_units.0 as u64,
        link: link.link(),
        packing: PackFormat {
            pack_bytes: pack_bytes.0 as u64,
            stale: stale.0 as u64,
            overlap: overlap.0 as u64,
            list_keys: list_keys.0 as u64,
            retention: retention.map(|Whole(ms)| ms as u64),
            ..PackFormat::default()
        },
        share,
        lasts: lasts.map(|Whole(ms)| ms as u64),
    };
    let trace = Arc::clone(&trace.inner);
    let work = move |show: &(dyn Fn((usize, usize)) -> ControlFlow<()> + Sync)| {
        self::fleets(&trace, &terms, &all, &|run, all| show((run, all)))
    };
    let rows = beside(py, work, |(run, all): (usize, usize)| match &done {
        Some(done) => done.call1((run, all)).map(drop),
        None => Ok(()),
    })?;
    Ok(rows.into_iter().map(PyFleetRow::from).collect())
}

fn admit_by_name(name: &str) -> PyResult<RemoteUse> {
    let found = RemoteUse::ALL.iter().find(|(known, _)| *known == name);
    found.map(|&(_, admit)| admit).ok_or_else(|| {
        to_py(Error::InvalidArgument(format!(
            "admit: expected None, auto or all, found {name:?}"
        )))
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLoad>()?;
    m.add_class::<PyFleetRow>()?;
    m.add_function(wrap_pyfunction!(run_fleets, m)?)
}
