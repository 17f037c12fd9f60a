//! Reads the ranks' reports about one store.

use hybrid_pages::error::Error;
use hybrid_pages_vllm::stores::Reported;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::{Raised, to_py};
use crate::number::whole;

/// Reads the outcomes of a store. Also returns the first error found in them.
pub fn read(outcomes: &Bound<'_, PyAny>, ranks: usize) -> (Reported<Py<PyAny>>, Option<Raised>) {
    let (mut reported, mut trouble) = (Vec::with_capacity(ranks), None);
    let nobody = || outcomes.clone().unbind();
    let mut note = |rank: PyResult<usize>, outcome: Py<PyAny>| match rank {
        Ok(rank) => reported.push((Some(rank), outcome)),
        Err(error) => {
            reported.push((None, outcome));
            trouble.get_or_insert(Raised(error));
        }
    };
    match outcomes.try_iter() {
        Ok(each) => {
            for outcome in each {
                match outcome {
                    Ok(outcome) => note(rank_of(&outcome, ranks), outcome.unbind()),
                    Err(error) => {
                        note(Err(error), nobody());
                        break;
                    }
                }
            }
        }
        Err(error) => note(Err(error), nobody()),
    }
    (reported, trouble)
}

fn rank_of(outcome: &Bound<'_, PyAny>, ranks: usize) -> PyResult<usize> {
    let rank = whole(&outcome.getattr(intern!(outcome.py(), "rank"))?)?;
    if rank < ranks {
        return Ok(rank);
    }
    Err(to_py(Error::InvalidArgument(format!(
        "rank: expected one below {ranks}, found {rank}"
    ))))
}
