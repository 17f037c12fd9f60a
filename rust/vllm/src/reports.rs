//! The reports of the ranks about one store. Each rank reports once, when it has stopped copying.

use hybrid_pages::error::Error;

/// The reports of a store's ranks. Until [`Reports::all_in`], ranks may use the store's slots and engine blocks.
#[derive(Debug)]
pub struct Reports<O> {
    /// The outcomes by rank; `None` for a rank that has not reported.
    outcomes: Vec<Option<O>>,
    /// Whether a report came whose rank can't be read. Two such reports may be from one rank or from two.
    nameless: bool,
    /// Whether any report made no sense.
    doubtful: bool,
}

impl<O> Reports<O> {
    /// The state before any of so many ranks has reported.
    #[must_use]
    pub fn none_yet(ranks: usize) -> Self {
        Self {
            outcomes: (0..ranks).map(|_| None).collect(),
            nameless: false,
            doubtful: false,
        }
    }

    /// Whether no rank copies any more. A report without a rank stands for the missing rank, if only one is missing.
    #[must_use]
    pub fn all_in(&self) -> bool {
        let missing = self.outcomes.iter().filter(|outcome| outcome.is_none());
        missing.count() <= usize::from(self.nameless)
    }

    /// Whether nothing of the store may be published, since a report made no sense.
    #[must_use]
    pub const fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// The outcomes that were reported, in the order of ranks.
    pub fn outcomes(&self) -> impl Iterator<Item = &O> {
        self.outcomes.iter().flatten()
    }

    /// Takes outcomes, each with its rank where that could be read, and what made no sense about them. Returns the
    /// first thing that makes no sense.
    pub fn add<E: From<Error>>(
        &mut self,
        outcomes: Vec<(Option<usize>, O)>,
        trouble: Option<E>,
    ) -> Option<E> {
        let mut trouble = trouble;
        self.doubtful |= trouble.is_some();
        for (rank, outcome) in outcomes {
            let Some(rank) = rank else {
                self.nameless = true;
                continue;
            };
            match self.outcomes.get_mut(rank) {
                Some(place) if place.is_none() => *place = Some(outcome),
                place => {
                    self.doubtful = true;
                    let known = place.is_some();
                    trouble = trouble.or_else(|| Some(senseless(rank, known).into()));
                }
            }
        }
        trouble
    }
}

#[cold]
fn senseless(rank: usize, known: bool) -> Error {
    Error::InvalidArgument(if known {
        format!("rank: expected one outcome of rank {rank}, found a second one")
    } else {
        format!("rank: expected one of the store's ranks, found {rank}")
    })
}
