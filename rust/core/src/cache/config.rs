//! Settings of a cache, and the types of its policy calls.

use crate::error::{Error, Result};
use crate::ids::ClassKind;
use crate::policy::{EntrySizes, Hints};
use crate::prefix::Roles;

/// One class of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    /// The kind of bytes that it keeps.
    pub kind: ClassKind,
    /// The number of last blocks whose pages are needed to resume: at least 1 for a window class, ignored otherwise.
    pub window_blocks: usize,
    /// Slots that one entry takes, all ranks together.
    pub slots_per_entry: usize,
}

/// A request on its arrival, for [`Cache::admit`](super::Cache::admit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Milliseconds on any clock that never goes back, the same for all calls: [`MOST_NOW`](Self::MOST_NOW) at most.
    pub now: u64,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// The deepest boundary, in blocks, from which the request could resume.
    pub limit: usize,
    /// Hints of the application.
    pub hints: Hints,
}

impl Arrival {
    /// The latest moment that is accepted: later times can be counted from it without overflow.
    pub const MOST_NOW: u64 = u64::MAX / 4;

    pub(super) fn check(&self) -> Result<()> {
        Self::check_now(self.now)
    }

    pub(super) fn check_now(now: u64) -> Result<()> {
        if now <= Self::MOST_NOW {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "now: expected at most {} milliseconds, found {now}",
            Self::MOST_NOW
        )))
    }
}

/// Boundaries that deserve a checkpoint, in blocks: the answer of [`Cache::admit`](super::Cache::admit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Boundaries that the policy chose, shallow first.
    pub boundaries: Vec<usize>,
    /// The deepest boundary, below the limit, up to which an earlier request had the same tokens; `None` unless it is
    /// deeper than the boundary to resume from. A state made there serves all requests that share the prefix. It is
    /// found by keys alone, whatever was evicted.
    pub fork: Option<usize>,
}

/// Everything a cache needs to know about the engine and the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// At most one attention class, at most one recurrent class, any number of window classes.
    pub classes: Vec<ClassConfig>,
    /// The number of ranks. Each writes a shard of every entry, and so one of the entry's checksums.
    pub ranks: usize,
    /// Slots of the arena.
    pub slots: usize,
    /// Bytes of a slot, for the counts in bytes.
    pub slot_bytes: usize,
    /// Name of the policy, as [`crate::policy::by_name`] takes it.
    pub policy: String,
    /// Slots that the entries of one tenant may take; `None`, and all slots or more, for no limit.
    pub tenant_slots: Option<usize>,
}

impl CacheConfig {
    /// The sizes of entries, in slots, as [`crate::policy::by_name`] takes them: for the policy of a tier below.
    #[must_use]
    pub fn shape(&self) -> EntrySizes {
        let size = |kind: ClassKind| {
            let of_kind = self.classes.iter().filter(|class| class.kind == kind);
            let sum = of_kind.fold(0_usize, |sum, class| {
                sum.saturating_add(class.slots_per_entry)
            });
            u32::try_from(sum).unwrap_or(u32::MAX)
        };
        EntrySizes {
            page: size(ClassKind::Attention),
            window: size(ClassKind::Window),
            checkpoint: size(ClassKind::Recurrent),
        }
    }

    /// Slots that one tenant may have, if that is less than all.
    pub(super) fn share(&self) -> Option<u64> {
        let share = self.tenant_slots.filter(|&slots| slots < self.slots)?;
        Some(share as u64)
    }

    /// The classes by role, if the configuration makes sense.
    pub(super) fn roles(&self) -> Result<Roles> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let mut roles = Roles {
            attention: None,
            windows: Vec::new(),
            recurrent: None,
            count: self.classes.len(),
        };
        if self.classes.is_empty() {
            return invalid("classes: expected at least one, found none".into());
        }
        if self.ranks == 0 {
            return invalid("ranks: expected at least 1, found 0".into());
        }
        if self.slot_bytes == 0 {
            return invalid("slot_bytes: expected at least 1, found 0".into());
        }
        for (index, class) in self.classes.iter().enumerate() {
            if class.slots_per_entry == 0 {
                return invalid(format!(
                    "class {index}: expected at least 1 slot an entry, found 0"
                ));
            }
            let taken = match class.kind {
                ClassKind::Attention => roles.attention.replace(index),
                ClassKind::Recurrent => roles.recurrent.replace(index),
                ClassKind::Window if class.window_blocks == 0 => {
                    return invalid(format!(
                        "class {index}: expected a window of at least 1 block, found 0"
                    ));
                }
                ClassKind::Window => {
                    roles.windows.push((index, class.window_blocks));
                    None
                }
            };
            if let Some(first) = taken {
                return invalid(format!(
                    "class {index}: expected one class of its kind, found class {first} to be {:?} too",
                    class.kind
                ));
            }
        }
        Ok(roles)
    }

    /// Refuses a budget that can't hold one entry of each class.
    pub(super) fn check_budget(&self) -> Result<()> {
        let slots_of = |class: &ClassConfig| class.slots_per_entry as u128;
        let needed: u128 = self.classes.iter().map(slots_of).sum();
        if self.slots as u128 >= needed {
            return self.check_share(needed);
        }
        let bytes = |slots: u128| slots * self.slot_bytes as u128;
        Err(Error::Budget(format!(
            "expected room for one entry of each class, {} bytes ({needed} slots of {} bytes), found {} \
             bytes ({} slots): raise the budget",
            bytes(needed),
            self.slot_bytes,
            bytes(self.slots as u128),
            self.slots
        )))
    }

    /// Refuses a tenant's share that can't hold one entry of each class.
    fn check_share(&self, needed: u128) -> Result<()> {
        let Some(share) = self.share().filter(|&share| u128::from(share) < needed) else {
            return Ok(());
        };
        Err(Error::Budget(format!(
            "tenant_slots: expected room for one entry of each class, {needed} slots, found {share}: raise \
             the share of a tenant, or the budget"
        )))
    }
}
