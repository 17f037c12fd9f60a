//! Settings of a remote store.

use std::time::Duration;

use hybrid_pages::error::{Error, Result};
use hybrid_pages_tiers::EncryptKeys;

use crate::place::RemotePlace;

/// The longest deadline, first pause and write limit. It keeps clocks from overflow when a pause doubles.
const MOST_TIME: Duration = Duration::from_secs(24 * 3600);
/// The longest value of other durations: a year.
const MOST_AGE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Which entries are read from a store and written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admit {
    /// Entries that are worth it: those that are faster to read than to compute, and those that a second request has
    /// used.
    #[default]
    Auto,
    /// All entries.
    All,
}

impl Admit {
    /// The names of both choices.
    pub const NAMES: [&str; 2] = ["auto", "all"];

    /// The choice with this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other name.
    pub fn by_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            other => Err(Error::InvalidArgument(format!(
                "admit: expected one of {}, found '{other}'",
                Self::NAMES.join(", ")
            ))),
        }
    }
}

/// Settings of a remote store.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// The place of the store.
    pub place: RemotePlace,
    /// Time limit of a read, and of a listing that a lookup waits for.
    pub deadline: Duration,
    /// Which entries are read and written.
    pub admit: Admit,
    /// Bytes of slots that may wait to be written. Entries beyond that are declined.
    pub queue_bytes: u64,
    /// Wanted size of a pack, in bytes of payload. Each larger entry has a pack of its own.
    pub pack_bytes: u64,
    /// How long an entry waits for others to share a pack with.
    pub pack_age: Duration,
    /// The age from which on the catalog counts as old when a lookup misses.
    pub refresh: Duration,
    /// Most requests to the store at a time, for reads and for writes.
    pub requests: usize,
    /// The first pause before the store is tried again after failures. Pauses double, up to 64 times the first.
    pub retry: Duration,
    /// Time limit of a write.
    pub write_limit: Duration,
    /// The most by which clocks of engines may differ. If they differ more, entries of others are found later.
    pub skew: Duration,
    /// Time between two listings of everything, which find out packs that are gone, and packs of engines whose clocks
    /// differ more.
    pub whole: Duration,
    /// Most entries in the catalog. Beyond that it forgets the oldest packs.
    pub most_entries: usize,
    /// The keys that entries are encrypted with; `None` leaves them as they are.
    pub keys: Option<EncryptKeys>,
}

impl RemoteOptions {
    /// The usual settings for a place.
    #[must_use]
    pub const fn new(place: RemotePlace) -> Self {
        Self {
            place,
            deadline: Duration::from_secs(2),
            admit: Admit::Auto,
            queue_bytes: 1 << 30,
            pack_bytes: 32 << 20,
            pack_age: Duration::from_millis(400),
            refresh: Duration::from_secs(1),
            requests: 16,
            retry: Duration::from_secs(1),
            write_limit: Duration::from_secs(30),
            skew: Duration::from_secs(30),
            whole: Duration::from_secs(600),
            most_entries: 4 << 20,
            keys: None,
        }
    }

    /// How long lookups don't find an entry after its read has failed.
    pub(crate) fn suspicion(&self) -> Duration {
        self.deadline.max(self.retry)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let times = [self.deadline, self.retry, self.write_limit];
        if times.iter().any(Duration::is_zero) || times.iter().any(|time| *time > MOST_TIME) {
            return Err(Error::InvalidArgument(format!(
                "remote: expected a deadline, a pause and a limit above 0 and of at most {MOST_TIME:?}, found {times:?}"
            )));
        }
        let ages = [self.pack_age, self.refresh, self.skew, self.whole];
        if ages.iter().any(|age| *age > MOST_AGE) {
            return Err(Error::InvalidArgument(format!(
                "remote: expected ages and differences of at most {MOST_AGE:?}, found {ages:?}"
            )));
        }
        if self.requests == 0 || self.most_entries == 0 {
            return Err(Error::InvalidArgument(format!(
                "remote: expected at least 1 request at a time and 1 entry, found {} and {}",
                self.requests, self.most_entries
            )));
        }
        Ok(())
    }
}
