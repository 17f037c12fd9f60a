//! What the ranks report of one store. Each rank reports once, when it copies no more.

use hybrid_pages::error::Error;

/// The reports of a store's ranks. The store's slots and engine blocks are the ranks' until [`Reports::all_in`].
#[derive(Debug)]
pub struct Reports<O> {
    /// By rank.
    outcomes: Vec<Option<O>>,
    /// Somebody reported whose rank cannot be read. Whether two of those are one rank or two, nobody knows.
    nameless: bool,
    /// Something that was reported makes no sense.
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

    /// Whether no rank copies any more: a nameless report can only be that of the one rank that is missing.
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
