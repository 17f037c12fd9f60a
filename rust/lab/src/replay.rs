//! Replays of every trace with every policy and budget.

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::time::Instant;

use hybrid_pages::error::Error;

use crate::bound::bound;
use crate::error::Result;
use crate::network::{NetworkLink, RemoteUse};
use crate::one_replay::{OneReplay, ReplayOutcome};
use crate::parallel::on_all_cores;
use crate::policies;
use crate::simulated_store::RemoteTraffic;
use crate::trace::Trace;

/// The name that stands for the upper bound in a list of policies.
pub const BOUND: &str = "bound";

/// The size limit of a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// A share of the trace's footprint.
    Fraction(f64),
    /// A size, where a page has size 1.
    Size(u64),
}

impl Budget {
    /// The budget as a size and as a share of a trace's footprint.
    pub(crate) fn resolve(self, footprint: u64) -> Result<(u64, f64)> {
        match self {
            Self::Fraction(share) if share.is_finite() && share >= 0.0 => {
                // The float nearest to 0.29 is less, but 29 % of 100 shall be 29.
                let size = share * footprint as f64 * (1.0 + 1e-12);
                Ok((size.floor() as u64, share))
            }
            Self::Fraction(share) => Err(Error::InvalidArgument(format!(
                "budget: expected a share of the footprint from 0 on, found {share}"
            ))
            .into()),
            Self::Size(size) => Ok((size, size as f64 / footprint.max(1) as f64)),
        }
    }
}

/// A tier below the host. It is written when entries are published.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayedTier {
    /// A disk.
    Disk {
        /// Size limit of the disk.
        budget: Budget,
        /// Name of the disk's policy.
        policy: String,
    },
    /// A remote store without a limit. Every policy is replayed with each [`RemoteUse`].
    Remote(NetworkLink),
}

/// The outcome of one policy on one trace with one budget.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayRow {
    /// Index of the trace among those given.
    pub trace: usize,
    /// Name of the policy.
    pub policy: String,
    /// Size of a checkpoint; a page has size 1.
    pub ratio: u32,
    /// Size limit of the host, as a share of the footprint.
    pub budget_fraction: f64,
    /// Size limit of the host.
    pub budget_size: u64,
    /// Number of requests.
    pub requests: usize,
    /// Tokens of all prompts together.
    pub input_tokens: u64,
    /// Tokens that requests resumed over.
    pub hit_tokens: u64,
    /// The part of `hit_tokens` that the host alone would not have found.
    pub disk_hit_tokens: u64,
    /// Total size of all entries written to the host.
    pub written_size: u64,
    /// Size limit of the disk; 0 without a disk.
    pub disk_size: u64,
    /// Total size of all entries written to the disk.
    pub disk_written_size: u64,
    /// Total size of all entries read from the disk.
    pub disk_read_size: u64,
    /// How the remote store is used; `None` without a remote store, and for the bound.
    pub admit: Option<RemoteUse>,
    /// Traffic between the host and the remote store.
    pub traffic: RemoteTraffic,
    /// The largest size of the host's entries after any request.
    pub most_size: u64,
    /// Average share of checkpoints in the size of the host's entries.
    pub state_share: f64,
    /// Microseconds of the replay per request, the lab's bookkeeping included.
    pub policy_us_per_request: f64,
    /// Bytes of memory that the policies held at the end.
    pub metadata_bytes: usize,
}

impl ReplayRow {
    /// Share of all prompt tokens that requests resumed over.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hit_tokens as f64 / self.input_tokens.max(1) as f64
    }
}

/// Replays every trace with every policy and budget, on all cores. The rows are in that order. `done` is called with
/// each row when it is made. After a break no replay begins, and the rows so far are returned.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown policy, a ratio of 0 or a budget out of range, before
/// anything runs.
pub fn replay<T: Borrow<Trace> + Sync>(
    traces: &[T],
    policies: &[String],
    budgets: &[Budget],
    ratio: u32,
    done: &(dyn Fn(&ReplayRow) -> ControlFlow<()> + Sync),
) -> Result<Vec<ReplayRow>> {
    replay_over(traces, policies, budgets, ratio, None, done)
}

/// Replays every trace with every policy and budget, with a tier below the host. Apart from that it works as
/// [`replay`]. With a remote store, a policy has a row per [`RemoteUse`] and budget, in that order.
///
/// # Errors
/// The errors of [`replay`], also for the disk's settings, and those of [`NetworkLink::check`].
pub fn replay_over<T: Borrow<Trace> + Sync>(
    traces: &[T],
    policies: &[String],
    budgets: &[Budget],
    ratio: u32,
    below: Option<&ReplayedTier>,
    done: &(dyn Fn(&ReplayRow) -> ControlFlow<()> + Sync),
) -> Result<Vec<ReplayRow>> {
    if ratio == 0 {
        return Err(Error::InvalidArgument(
            "ratio: expected a checkpoint of at least size 1, found 0".into(),
        )
        .into());
    }
    let hosts = policies.iter().filter(|name| *name != BOUND);
    let disk = match below {
        Some(ReplayedTier::Disk { policy, .. }) => Some(policy),
        Some(ReplayedTier::Remote(link)) => {
            link.check()?;
            None
        }
        None => None,
    };
    for name in hosts.chain(disk) {
        policies::by_name(name, ratio)?;
    }
    let mut jobs = Vec::new();
    for (at, trace) in traces.iter().enumerate() {
        let footprint = trace.borrow().distinct_blocks() as u64 * (1 + u64::from(ratio));
        for name in policies {
            let tiers = match below {
                None => vec![ReplayTier::None],
                Some(ReplayedTier::Disk { budget, policy }) => {
                    vec![ReplayTier::Disk(policy, budget.resolve(footprint)?.0)]
                }
                Some(ReplayedTier::Remote(_)) if name == BOUND => vec![ReplayTier::Everything],
                Some(ReplayedTier::Remote(link)) => {
                    Vec::from(RemoteUse::ALL.map(|(_, admit)| ReplayTier::Remote(*link, admit)))
                }
            };
            for tier in tiers {
                for budget in budgets {
                    jobs.push((at, name, budget.resolve(footprint)?, tier));
                }
            }
        }
    }
    let rows = on_all_cores(jobs.len(), |index| {
        let (at, name, budget, tier) = jobs[index];
        let row = run(traces[at].borrow(), (at, name), budget, tier, ratio)?;
        Ok(match done(&row) {
            ControlFlow::Continue(()) => ControlFlow::Continue(row),
            ControlFlow::Break(()) => ControlFlow::Break(Some(row)),
        })
    })?;
    Ok(rows.into_iter().flatten().collect())
}

/// The tier below the host of one replay.
#[derive(Clone, Copy)]
enum ReplayTier<'a> {
    None,
    /// A disk with this policy, of this size.
    Disk(&'a str, u64),
    Remote(NetworkLink, RemoteUse),
    /// A store that keeps everything that was ever published: for the bound.
    Everything,
}

fn run(
    trace: &Trace,
    (at, name): (usize, &str),
    (size, share): (u64, f64),
    tier: ReplayTier<'_>,
    ratio: u32,
) -> Result<ReplayRow> {
    let start = Instant::now();
    let disk_size = match tier {
        ReplayTier::Disk(_, size) => size,
        _ => 0,
    };
    let (outcome, metadata_bytes) = if name == BOUND {
        let most = match tier {
            ReplayTier::Everything => u64::MAX >> 8,
            _ => size.saturating_add(disk_size),
        };
        let hit_tokens = bound(trace, ratio, most);
        (
            ReplayOutcome {
                hit_tokens,
                ..ReplayOutcome::default()
            },
            0,
        )
    } else {
        let mut lab = OneReplay::new(trace, policies::by_name(name, ratio)?, ratio, size);
        match tier {
            ReplayTier::Disk(policy, size) => {
                lab = lab.over(policies::by_name(policy, ratio)?, ratio, size);
            }
            ReplayTier::Remote(link, admit) => lab = lab.beside(link, admit),
            ReplayTier::None | ReplayTier::Everything => {}
        }
        lab.run()
    };
    let requests = trace.requests();
    Ok(ReplayRow {
        trace: at,
        policy: name.to_owned(),
        ratio,
        budget_fraction: share,
        budget_size: size,
        requests,
        input_tokens: trace.input_tokens(),
        hit_tokens: outcome.hit_tokens,
        disk_hit_tokens: outcome.disk_hit_tokens,
        disk_size,
        disk_written_size: outcome.disk_written_size,
        disk_read_size: outcome.disk_read_size,
        written_size: outcome.written_size,
        admit: match tier {
            ReplayTier::Remote(_, admit) => Some(admit),
            _ => None,
        },
        traffic: outcome.traffic,
        most_size: outcome.most_size,
        state_share: outcome.checkpoint_size as f64 / outcome.taken_size.max(1) as f64,
        policy_us_per_request: start.elapsed().as_secs_f64() * 1e6 / requests.max(1) as f64,
        metadata_bytes,
    })
}
