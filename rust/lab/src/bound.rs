//! An upper bound on the hit tokens of any policy, even of one that knows the future.
//!
//! # Proof
//! Let U be the budget, R a checkpoint's size, and let request i resume after d blocks. A page enters
//! the cache only when a request that contains its block is processed, and likewise a checkpoint only
//! when a request that contains its boundary is. So for i to find the pages of its blocks 1 to d, each
//! of them stayed from the last earlier request containing it up to i; and so did the checkpoint at
//! d. Say that page j stayed over the steps [p(j), i), where step t is the time between requests
//! t and t+1: the budget holds there. These stays belong to different (page, step) pairs for different
//! requests, since two stays of one page end at consecutive requests that contain it, and so do those
//! of one checkpoint; hence at every step the sizes of all stays add up to at most U.
//!
//! Give each step t a price x(t) >= 0. For any feasible choice of depths d(i),
//!
//! > sum of d(i) <= sum of d(i) + sum over t of x(t) (U - sizes of the stays at t)
//! > <= U sum of x(t) + sum over i of max over d of (d - price of the stays that d needs)
//!
//! and the last line doesn't depend on the policy: every choice of prices bounds every policy. (It is the Lagrangian
//! of the interval knapsack.) At first all steps have one price, whose best value is found by bisection. The prices
//! then move along the subgradient, and the least value seen is the bound. Another bound is the sum of the deepest
//! depths that earlier requests make possible.

use crate::trace::Trace;

/// Number of steps of the subgradient method. The bound holds after each of them.
const ROUNDS: usize = 150;

/// The depths at which one request could resume, and the stays in the cache that each depth needs, as steps [from, i).
struct ResumeOption {
    at: usize,
    /// For each block, the last earlier request that contains it. The numbers never increase.
    from: Vec<u32>,
}

/// The most tokens that any policy can resume over within a budget.
pub(crate) fn bound(trace: &Trace, ratio: u32, budget: u64) -> u64 {
    let chances = chances(trace);
    let steps = trace.requests.len();
    let most: f64 = chances.iter().map(|chance| chance.from.len() as f64).sum();
    let dual = Dual {
        chances: &chances,
        ratio: f64::from(ratio),
        budget: budget as f64,
    };
    let mut best = most;
    // The value is convex in a single price: bisect on the sign of the slope.
    let (mut low, mut high) = (0.0, 1.0);
    let mut taken = vec![0.0; steps];
    for _ in 0..40 {
        let price = (low + high) / 2.0;
        let value = dual.value(&vec![price; steps], &mut taken);
        best = best.min(value);
        let slope: f64 = taken.iter().map(|size| dual.budget - size).sum();
        if slope > 0.0 {
            high = price;
        } else {
            low = price;
        }
    }
    let mut prices = vec![high; steps];
    let mut trial = prices.clone();
    let mut stride = 0.5;
    for _ in 0..ROUNDS {
        // Multiplying keeps prices positive and needs no scale.
        let value = dual.value(&trial, &mut taken);
        if value < best {
            best = value;
            prices.copy_from_slice(&trial);
        } else {
            stride *= 0.97;
        }
        for (price, size) in trial.iter_mut().zip(&taken) {
            let excess = ((size - dual.budget) / dual.budget).clamp(-1.0, 1.0);
            *price *= (stride * excess).exp();
        }
    }
    // Floating point is not exact, so the bound is a little larger than the result.
    let blocks = (best * (1.0 + 1e-9)).min(most);
    (blocks * trace.block_tokens as f64).ceil() as u64
}

fn chances(trace: &Trace) -> Vec<ResumeOption> {
    let mut last = vec![u32::MAX; trace.boundaries.len()];
    let mut chances = Vec::new();
    for (at, request) in trace.requests.iter().enumerate() {
        let limit = (request.tokens.saturating_sub(1) / trace.block_tokens) as usize;
        let path = trace.path(request);
        let from: Vec<u32> = path
            .iter()
            .take(limit)
            .map(|&block| last[block as usize])
            .take_while(|&from| from != u32::MAX)
            .collect();
        if !from.is_empty() {
            chances.push(ResumeOption { at, from });
        }
        path.iter()
            .for_each(|&block| last[block as usize] = at as u32);
    }
    chances
}

struct Dual<'a> {
    chances: &'a [ResumeOption],
    ratio: f64,
    budget: f64,
}

impl Dual<'_> {
    /// The bound under these prices. Sets `taken` to the room that the best depths need at each step.
    fn value(&self, prices: &[f64], taken: &mut [f64]) -> f64 {
        let mut until = Vec::with_capacity(prices.len() + 1);
        let mut sum = 0.0;
        until.push(0.0);
        for price in prices {
            sum += price;
            until.push(sum);
        }
        let mut change = vec![0.0; prices.len() + 1];
        let mut value = self.budget * sum;
        for ResumeOption { at, from } in self.chances {
            let (mut cost, mut best, mut depth) = (0.0, 0.0, 0);
            for (block, &from) in from.iter().enumerate() {
                let stay = until[*at] - until[from as usize];
                cost += stay;
                let gain = (block + 1) as f64 - cost - self.ratio * stay;
                if gain > best {
                    (best, depth) = (gain, block + 1);
                }
            }
            value += best;
            for (block, &from) in from[..depth].iter().enumerate() {
                let size = 1.0 + if block + 1 == depth { self.ratio } else { 0.0 };
                change[from as usize] += size;
                change[*at] -= size;
            }
        }
        let mut now = 0.0;
        for (taken, change) in taken.iter_mut().zip(&change) {
            now += change;
            *taken = now;
        }
        value
    }
}
