//! The engine as the stores see it: traits that the binding implements over the engine's objects.

use std::ops::{Deref, DerefMut};

use hybrid_pages::error::Error;
use hybrid_pages::ids::{NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;

use crate::runs::{RequestView, Run};
use crate::tables::Tables;

/// One rank's copy of a store's entries.
#[derive(Debug)]
pub struct RankCopy {
    /// Bytes that were copied.
    pub bytes: usize,
    /// Seconds that the copy took.
    pub seconds: f64,
    /// The checksums of the entries, eight bytes each in the machine's byte order; empty if the rank computes none.
    pub checksums: Vec<u8>,
}

/// The types of the engine's objects that a store in flight holds.
pub trait Handles {
    /// The name of a request.
    type Name;
    /// An engine block that is pinned: given to no other request until it is unpinned.
    type Pin;
    /// The report of one rank about a store.
    type Outcome;
}

/// The name of a request of an engine.
pub type NameOf<E> = <<E as ServingEngine>::Handles as Handles>::Name;
/// A pinned block of an engine.
pub type PinOf<E> = <<E as ServingEngine>::Handles as Handles>::Pin;
/// The report of one rank of an engine about a store.
pub type OutcomeOf<E> = <<E as ServingEngine>::Handles as Handles>::Outcome;

/// The engine: its block pool, and a listener that hears what is not stored.
pub trait ServingEngine {
    /// The error that the engine's objects raise.
    type Error: From<Error>;
    /// The types of the engine's objects that a store in flight holds.
    type Handles: Handles;

    /// Pins engine blocks by their ids: all of them, or none and an error.
    ///
    /// # Errors
    /// Errors of the engine's block pool.
    fn pin(&self, blocks: &[u32]) -> Result<Vec<PinOf<Self>>, Self::Error>;

    /// Lets go of engine blocks that were pinned or taken.
    ///
    /// # Errors
    /// Errors of the engine's block pool.
    fn unpin(&self, pins: &[PinOf<Self>]) -> Result<(), Self::Error>;

    /// Whether the engine can do without so many of its free blocks until a store has ended.
    ///
    /// # Errors
    /// Errors of the engine's objects.
    fn can_spare(&self, blocks: usize) -> Result<bool, Self::Error>;

    /// Takes so many free engine blocks, each with its id. They are pinned: no request has them.
    ///
    /// # Errors
    /// Errors of the engine's block pool. Nothing is taken then.
    fn take(&self, blocks: usize) -> Result<Vec<(u32, PinOf<Self>)>, Self::Error>;

    /// Tells the listener that so many entries are not stored, and why.
    ///
    /// # Errors
    /// Errors of the listener.
    fn skipped(&self, reason: &str, entries: usize) -> Result<(), Self::Error>;

    /// Tells the listener that a request's tail is not stored, and why.
    ///
    /// # Errors
    /// Errors of the listener.
    fn skipped_tail(&self, reason: &str) -> Result<(), Self::Error>;

    /// Whether a rank reports that it could not copy.
    ///
    /// # Errors
    /// If the outcome can't be read.
    fn has_failed(&self, outcome: &OutcomeOf<Self>) -> Result<bool, Self::Error>;

    /// The copy that a rank reports.
    ///
    /// # Errors
    /// If the outcome can't be read.
    fn copied(&self, outcome: &OutcomeOf<Self>) -> Result<RankCopy, Self::Error>;

    /// Tells the listener that a rank could not copy. `first`: whether it is the first such rank of its store.
    ///
    /// # Errors
    /// Errors of the listener.
    fn not_copied(&self, outcome: &OutcomeOf<Self>, first: bool) -> Result<(), Self::Error>;

    /// Tells the listener that a store could not be published.
    ///
    /// # Errors
    /// Errors of the listener, and `error` if it concerns more than this store.
    fn not_published(&self, job: usize, error: Self::Error) -> Result<(), Self::Error>;
}

/// A request's run, and what else is known for its stores.
#[derive(Debug)]
pub struct TrackedRun {
    /// The request's run, from step to step.
    pub run: Run,
    /// The namespace of the request in the cache.
    pub namespace: NamespaceId,
    /// The application's hints about the request, if it gave any.
    pub hints: Option<Hints>,
    /// Whether the request wants to be stored.
    pub stores: bool,
    /// Whether the run goes on from bytes that may be wrong: then nothing of it is published.
    pub stale: bool,
    /// Whether the connector wants to hear of each step before the step is planned.
    pub steered: bool,
}

impl TrackedRun {
    /// A request that has not run yet.
    #[must_use]
    pub fn new(namespace: NamespaceId) -> Self {
        Self {
            run: Run::default(),
            namespace,
            hints: None,
            stores: true,
            stale: false,
            steered: false,
        }
    }

    /// Forgets what the request had computed: the engine has freed its blocks.
    pub fn restart(&mut self) {
        self.run.restart();
        self.stale = false;
    }
}

/// A request of the engine in one step, and the engine around it.
pub trait StepRequest: RequestView<Error: From<Error>> {
    /// The engine.
    type Engine: ServingEngine<Error = Self::Error>;
    /// The request's block tables.
    type Tables: Tables<Error = Self::Error>;
    /// Keys of leading blocks.
    type Keys<'a>: Deref<Target = [PrefixKey]>
    where
        Self: 'a;
    /// Access to the request's run.
    type Tracked<'a>: DerefMut<Target = TrackedRun>
    where
        Self: 'a;

    /// The engine.
    fn engine(&self) -> &Self::Engine;

    /// The request's name.
    ///
    /// # Errors
    /// Errors of the engine's objects.
    fn name(&self) -> Result<NameOf<Self::Engine>, Self::Error>;

    /// The request's run, which nobody else sees meanwhile.
    ///
    /// # Errors
    /// If somebody else is using it.
    fn tracked(&self) -> Result<Self::Tracked<'_>, Self::Error>;

    /// The request's block tables, for this step only.
    ///
    /// # Errors
    /// Errors of the engine's objects.
    fn tables(&self) -> Result<&Self::Tables, Self::Error>;

    /// Brings the keys up to date with the request's tokens.
    ///
    /// # Errors
    /// Errors of the engine's objects.
    fn read_keys(&self) -> Result<(), Self::Error>;

    /// The keys of leading blocks, `limit` at most, as they were last read.
    fn leading_keys(&self, limit: usize) -> Self::Keys<'_>;

    /// The key of the request's tail that ends after so many tokens; `None` if the request has no tails, of which the
    /// listener has heard. The keys were read before.
    ///
    /// # Errors
    /// Errors of the engine's objects.
    fn tail_key(&self, tokens: usize) -> Result<Option<PrefixKey>, Self::Error>;

    /// Called before a step over `new_tokens` tokens from `start` on, if the step is steered, has drafts, or does not
    /// begin where the step before ended.
    ///
    /// # Errors
    /// Errors of the connector.
    fn begins(&self, start: usize, new_tokens: usize) -> Result<(), Self::Error>;
}
