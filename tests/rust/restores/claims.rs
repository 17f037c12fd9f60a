//! What was said to be durable, and what may explain that it is gone.

use std::collections::BTreeMap;

/// How often each thing has happened that can cost an entry of one tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Causes(BTreeMap<&'static str, u64>);

impl Causes {
    pub fn add(&mut self, name: &'static str, times: u64) {
        if times > 0 {
            *self.0.entry(name).or_default() += times;
        }
    }

    /// It has happened so often by now.
    pub fn set(&mut self, name: &'static str, times: u64) {
        self.0.insert(name, times);
    }

    /// These and others together.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        let mut both = self.clone();
        others.0.iter().for_each(|(name, &it)| both.add(name, it));
        both
    }

    /// What has happened most often since then. `None` if nothing has.
    pub fn since(&self, then: &Self) -> Option<&'static str> {
        let before = |name| then.0.get(name).copied().unwrap_or(0);
        let more = self.0.iter().map(|(name, &it)| (it - before(name), *name));
        more.filter(|&(times, _)| times > 0)
            .max()
            .map(|(_, name)| name)
    }
}

/// What can cost an entry of a tier: what the tier itself has counted, and what was done to its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    pub counted: Causes,
    pub done: Causes,
}

impl Record {
    /// What explains that something is gone that was there then. What the tier has counted comes first.
    pub fn since(&self, then: &Self) -> Option<&'static str> {
        let counted = self.counted.since(&then.counted);
        counted.or_else(|| self.done.since(&then.done))
    }
}

/// What was so when a prompt was reported durable: the records of the tiers that have it.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    pub disk: Option<Record>,
    pub remote: Option<Record>,
}

impl Claim {
    /// Why a prompt is gone, for the tier that was to have it longest; `Err` if nothing explains it.
    pub fn lost(
        &self,
        disk: &Record,
        remote: &Record,
    ) -> Result<(&'static str, &'static str), String> {
        let mut why = ("nowhere", "it was never durable");
        let tiers = [("disk", &self.disk, disk), ("remote", &self.remote, remote)];
        for (tier, then, now) in tiers {
            if let Some(then) = then {
                let cause = now.since(then).ok_or_else(|| {
                    format!("{tier}: nothing has happened since it was durable: {now:?}")
                })?;
                why = (tier, cause);
            }
        }
        Ok(why)
    }
}
