//! What the stores ask and tell an engine. The binding implements these traits over the engine's objects.

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
    /// Eight bytes of each entry, in the machine's order; empty if the rank computes no checksums.
    pub checksums: Vec<u8>,
}

/// What a store in flight holds of the engine's objects.
pub trait Handles {
    /// The name of a request.
    type Name;
    /// An engine block that is pinned: given to no other request until it is unpinned.
    type Pin;
    /// What one rank reports of a store.
    type Outcome;
}

/// The name of a request of an engine.
pub type NameOf<E> = <<E as ServingEngine>::Handles as Handles>::Name;
/// A pinned block of an engine.
pub type PinOf<E> = <<E as ServingEngine>::Handles as Handles>::Pin;
/// What one rank of an engine reports of a store.
pub type OutcomeOf<E> = <<E as ServingEngine>::Handles as Handles>::Outcome;

/// The engine: its block pool, and whoever hears of what is not stored.
pub trait ServingEngine {
    /// What the engine's objects may raise.
    type Error: From<Error>;
    /// What a store in flight holds of the engine's objects.
    type Handles: Handles;

    /// Pins engine blocks by their ids: all of them, or none and an error.
    ///
    /// # Errors
    /// What the engine's pool raises.
    fn pin(&self, blocks: &[u32]) -> Result<Vec<PinOf<Self>>, Self::Error>;

    /// Lets go of pinned engine blocks.
    ///
    /// # Errors
    /// What the engine's pool raises.
    fn unpin(&self, pins: &[PinOf<Self>]) -> Result<(), Self::Error>;

    /// Hears that so many entries are not stored, and why.
    ///
    /// # Errors
    /// What the listener raises.
    fn skipped(&self, reason: &str, entries: usize) -> Result<(), Self::Error>;

    /// Whether a rank reports that it could not copy.
    ///
    /// # Errors
    /// Why the outcome can't be read.
    fn has_failed(&self, outcome: &OutcomeOf<Self>) -> Result<bool, Self::Error>;

    /// What a rank has copied.
    ///
    /// # Errors
    /// Why the outcome can't be read.
    fn copied(&self, outcome: &OutcomeOf<Self>) -> Result<RankCopy, Self::Error>;

    /// Hears of a rank that could not copy; `first`: the first one of its store.
    ///
    /// # Errors
    /// What the listener raises.
    fn not_copied(&self, outcome: &OutcomeOf<Self>, first: bool) -> Result<(), Self::Error>;

    /// Hears that a store could not be published.
    ///
    /// # Errors
    /// What the listener raises, and an error that is no store's own.
    fn not_published(&self, job: usize, error: Self::Error) -> Result<(), Self::Error>;
}

/// What is stored of a request besides what its run says.
#[derive(Debug)]
pub struct TrackedRun {
    /// What the request's steps fill.
    pub run: Run,
    /// The namespace of the request in the cache.
    pub namespace: NamespaceId,
    /// What the application says of the request, if anything.
    pub hints: Option<Hints>,
    /// Whether the request wants to be stored.
    pub stores: bool,
    /// Whether the run goes on from bytes that may be wrong: nothing of it is published.
    pub stale: bool,
    /// Whether the connector wants to hear of each step before that is planned.
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
    /// What the engine's objects raise.
    fn name(&self) -> Result<NameOf<Self::Engine>, Self::Error>;

    /// The request's run, which nobody else sees meanwhile.
    ///
    /// # Errors
    /// That somebody else has it.
    fn tracked(&self) -> Result<Self::Tracked<'_>, Self::Error>;

    /// The request's block tables, for this step only.
    ///
    /// # Errors
    /// What the engine's objects raise.
    fn tables(&self) -> Result<&Self::Tables, Self::Error>;

    /// Brings the keys up to date with the request's tokens.
    ///
    /// # Errors
    /// What the engine's objects raise.
    fn read_keys(&self) -> Result<(), Self::Error>;

    /// The keys of leading blocks, `limit` at most, as they were last read.
    fn leading_keys(&self, limit: usize) -> Self::Keys<'_>;

    /// Called before a step over `new_tokens` tokens from `start` on that is steered, speculates, or does not begin
    /// behind the one before.
    ///
    /// # Errors
    /// What the connector raises.
    fn begins(&self, start: usize, new_tokens: usize) -> Result<(), Self::Error>;
}
