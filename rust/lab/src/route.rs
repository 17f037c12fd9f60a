//! Several engines behind a router, on one trace. Each engine has an equal part of the budget, and computes as many
//! tokens per second as its part of the trace has: without hits it is just busy.

use hybrid_pages::error::Error;
use hybrid_pages::ids::PrefixKey;

use crate::engine::{SimulatedEngine, check_engines, imbalance};
use crate::error::Result;
use crate::replay::Budget;
use crate::router::{Route, Router};
use crate::trace::Trace;

/// The result of routing a trace in one way.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RouteResult {
    /// Tokens of all prompts.
    pub input_tokens: u64,
    /// Tokens that requests resumed over.
    pub hit_tokens: u64,
    /// Tokens that the router expected requests to resume over.
    pub predicted_tokens: u64,
    /// Tokens that the busiest engine computed, divided by the mean of all engines.
    pub imbalance: f64,
}

/// Sends the requests of a trace to several engines, each of which has an equal part of the budget.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown policy, no engine, or a budget out of range;
/// [`Error::Budget`] if an engine's part can't hold a page and a checkpoint.
pub fn route(
    trace: &Trace,
    (policy, ratio): (&str, u32),
    route: Route,
    engines: usize,
    budget: Budget,
) -> Result<RouteResult> {
    if ratio == 0 {
        return Err(Error::InvalidArgument("ratio: expected at least 1, found 0".into()).into());
    }
    check_engines(engines)?;
    let footprint = trace.distinct_blocks() as u64 * (1 + u64::from(ratio));
    let slots = budget.resolve(footprint)?.0 as usize / engines;
    let mut fleet = Vec::new();
    for _ in 0..engines {
        fleet.push(SimulatedEngine::new(policy, ratio, slots)?);
    }
    let mut routed = RouteResult {
        input_tokens: trace.input_tokens(),
        ..RouteResult::default()
    };
    let block_tokens = trace.block_tokens();
    let speed = trace.input_tokens() as f64 / trace.lasts().max(1) as f64 / engines as f64;
    let mut router = Router::new(route, &fleet, speed)?;
    for request in &trace.requests {
        let key = |&at: &u32| PrefixKey::new(&trace.boundaries[at as usize].name.to_le_bytes());
        let keys = trace.path(request).iter().map(key);
        let keys = keys.collect::<std::result::Result<Vec<_>, _>>()?;
        let (at, known) = router.choose(request.now, request.tokens, block_tokens, &keys);
        let engine = &mut fleet[at];
        let ran = engine.run(request, request.now, block_tokens, &keys, 0)?;
        let hit_tokens = ran.resumed as u64 * block_tokens;
        router.hear(at, engine, request.now, request.tokens - hit_tokens, &keys);
        routed.predicted_tokens += known as u64 * block_tokens;
        routed.hit_tokens += hit_tokens;
    }
    routed.imbalance = imbalance(&fleet);
    Ok(routed)
}
