//! Simulations of several fleets of engines, on all cores, each fleet with a remote store of its own.

use std::ops::ControlFlow;

use hybrid_pages::error::Error;

use crate::engine::check_engines;
use crate::error::Result;
use crate::fleet::{Fleet, FleetRow, FleetTerms, copies, counted, run};
use crate::parallel::on_all_cores;
use crate::store_load::PackFormat;
use crate::trace::Trace;

/// Called with the number of requests that have run since the last call, and with the approximate total. A break
/// stops the simulation.
pub type FleetProgress<'a> = dyn Fn(usize, usize) -> ControlFlow<()> + Sync + 'a;

/// The longest trace: a hundred days. Every second has counts of its own.
const MOST_SECONDS: u64 = 100 * 24 * 3600;

/// Simulates every fleet, on all cores. Rows are in the order of fleets. A break ends all simulations, and the rows
/// are incomplete.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown policy, a number out of range, or more work than can be counted;
/// [`Error::Budget`] if a host can't hold a page and a checkpoint.
pub fn fleets(
    trace: &Trace,
    terms: &FleetTerms,
    all: &[Fleet],
    progress: &FleetProgress<'_>,
) -> Result<Vec<FleetRow>> {
    terms.link.check()?;
    let PackFormat {
        pack_bytes,
        run_bytes,
        list_keys,
        ..
    } = terms.packing;
    for (name, value) in [
        ("ratio", u64::from(terms.ratio)),
        ("pack_bytes", pack_bytes),
        ("run_bytes", run_bytes),
        ("list_keys", list_keys),
    ] {
        if value == 0 {
            return Err(
                Error::InvalidArgument(format!("{name}: expected at least 1, found 0")).into(),
            );
        }
    }
    let part = terms.lasts.map(|lasts| trace.until(lasts));
    let trace = part.as_ref().unwrap_or(trace);
    let (half, end) = counted(trace);
    if half >= end {
        return Err(Error::InvalidArgument(format!(
            "trace: expected requests over at least 3 seconds, found {} ms",
            trace.lasts()
        ))
        .into());
    }
    if end > MOST_SECONDS * 1000 {
        return Err(Error::InvalidArgument(format!(
            "trace: expected requests over at most {MOST_SECONDS} seconds, found {} ms: shorten it with `lasts`",
            trace.lasts()
        ))
        .into());
    }
    all.iter()
        .try_for_each(|fleet| check_engines(fleet.engines))?;
    let calls = |fleet: &Fleet| copies(trace, terms, fleet.engines) * trace.requests() as f64;
    let expected = all.iter().map(calls).sum::<f64>() as usize;
    let progress = |run: usize| progress(run, expected);
    // The largest fleets start first, so that the smaller ones fill the gaps.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(all[at].engines));
    let found = on_all_cores(order.len(), |index| {
        let row = run(trace, terms, all[order[index]], &progress)?;
        Ok(row.map_or(ControlFlow::Break(None), ControlFlow::Continue))
    })?;
    let mut rows = vec![None; all.len()];
    for (at, row) in order.into_iter().zip(found) {
        rows[at] = row;
    }
    Ok(rows.into_iter().flatten().collect())
}
