//! What the ranks have said of one store. Each says one thing, when it copies no more.

use hybrid_pages::error::Error;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::to_py;
use crate::number::whole;

/// Outcomes as they came: with its rank, where that can be read.
type Said = Vec<(Option<usize>, Py<PyAny>)>;

/// The outcomes of a store. Its slots and blocks are the ranks' until [`all`](Self::all) have spoken.
pub struct Heard {
    /// By rank.
    outcomes: Vec<Option<Py<PyAny>>>,
    /// Somebody spoke whose rank cannot be read. Whether two of those are one rank or two, nobody knows.
    nameless: bool,
    /// Something that was said makes no sense.
    doubtful: bool,
}

impl Heard {
    pub fn nothing(ranks: usize) -> Self {
        Self {
            outcomes: (0..ranks).map(|_| None).collect(),
            nameless: false,
            doubtful: false,
        }
    }

    /// Whether no rank copies any more: the nameless one can only be the one that is missing.
    pub fn all(&self) -> bool {
        let missing = self.outcomes.iter().filter(|outcome| outcome.is_none());
        missing.count() <= usize::from(self.nameless)
    }

    /// Whether nothing may be published of it.
    pub const fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// What each rank has said, in the order of ranks.
    pub fn outcomes(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.outcomes.iter().flatten()
    }

    /// Takes what was [read](read). Returns what made no sense.
    pub fn add(&mut self, said: Said, trouble: Option<PyErr>) -> Option<PyErr> {
        let mut trouble = trouble;
        self.doubtful |= trouble.is_some();
        for (rank, outcome) in said {
            let Some(rank) = rank else {
                self.nameless = true;
                continue;
            };
            let place = &mut self.outcomes[rank];
            if place.is_some() {
                self.doubtful = true;
                trouble = trouble.or_else(|| Some(twice(rank)));
            } else {
                *place = Some(outcome);
            }
        }
        trouble
    }
}

#[cold]
fn twice(rank: usize) -> PyErr {
    to_py(Error::InvalidArgument(format!(
        "rank: expected one outcome of rank {rank}, found a second one"
    )))
}

/// Reads outcomes of a store, and the first thing about them that makes no sense.
pub fn read(outcomes: &Bound<'_, PyAny>, ranks: usize) -> (Said, Option<PyErr>) {
    let (mut said, mut trouble) = (Vec::with_capacity(ranks), None);
    let nobody = || outcomes.clone().unbind();
    let mut note = |rank: PyResult<usize>, outcome: Py<PyAny>| match rank {
        Ok(rank) => said.push((Some(rank), outcome)),
        Err(error) => {
            said.push((None, outcome));
            trouble.get_or_insert(error);
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
    (said, trouble)
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
