//! A router in front of engines, which decides where a request goes.
//!
//! A request goes to the engine where it would end first. That depends on how much the engine has still to compute,
//! and how much of the prompt the engine lacks. Engines are assumed to compute a fixed number of tokens per second.

use hashbrown::HashMap;
use hybrid_pages::error::Error;
use hybrid_pages::ids::PrefixKey;

use crate::engine::SimulatedEngine;
use crate::error::Result;

/// How a router chooses an engine for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Each engine in turn.
    RoundRobin,
    /// The engine that has the least left to compute.
    Load,
    /// The engine where the request would end first, if engines have every prompt that was ever sent there. A router
    /// knows that without events.
    Sent,
    /// The engine where the request would end first, by the blocks that engines announce.
    Events,
}

impl Route {
    /// Each choice with its name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("round-robin", Self::RoundRobin),
        ("load", Self::Load),
        ("sent", Self::Sent),
        ("events", Self::Events),
    ];

    /// The choice of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other name.
    pub fn by_name(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|&(_, route)| route).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            Error::InvalidArgument(format!("route: expected one of {names}, found {name:?}")).into()
        })
    }
}

pub(crate) struct Router {
    route: Route,
    /// Tokens that an engine computes per ms.
    speed: f64,
    /// For each engine, the time in ms when it will have computed everything that was sent there.
    idle: Vec<f64>,
    /// For each block, the engines that are assumed to have it.
    holders: HashMap<PrefixKey, Vec<u32>>,
    /// For each engine, how many leading blocks of the current prompt it is assumed to have.
    known: Vec<u32>,
    requests: usize,
}

impl Router {
    pub(crate) fn new(route: Route, fleet: &[SimulatedEngine], speed: f64) -> Result<Self> {
        if route == Route::Events {
            fleet.iter().try_for_each(SimulatedEngine::follow)?;
        }
        Ok(Self {
            route,
            speed,
            idle: vec![0.0; fleet.len()],
            holders: HashMap::new(),
            known: vec![0; fleet.len()],
            requests: 0,
        })
    }

    /// Chooses the engine for a request. Also returns how many leading blocks it is assumed to have.
    pub(crate) fn choose(
        &mut self,
        now: u64,
        tokens: u64,
        block_tokens: u64,
        keys: &[PrefixKey],
    ) -> (usize, usize) {
        let turn = self.requests % self.idle.len();
        self.requests += 1;
        if self.route == Route::RoundRobin {
            return (turn, 0);
        }
        self.known.fill(0);
        for (depth, key) in (0..).zip(keys) {
            let mut any = false;
            for &engine in self.holders.get(key).into_iter().flatten() {
                let known = &mut self.known[engine as usize];
                if *known == depth {
                    *known += 1;
                    any = true;
                }
            }
            if !any {
                break;
            }
        }
        let end = |engine: usize| {
            let left = (self.idle[engine] - now as f64).max(0.0) * self.speed;
            let known = u64::from(self.known[engine]) * block_tokens;
            left + tokens.saturating_sub(known) as f64
        };
        let mut chosen = (0, f64::INFINITY);
        for engine in 0..self.idle.len() {
            let end = end(engine);
            if end < chosen.1 {
                chosen = (engine, end);
            }
        }
        (chosen.0, self.known[chosen.0] as usize)
    }

    /// Notes that an engine ran a request, how many tokens it computed, and which blocks it announced.
    pub(crate) fn hear(
        &mut self,
        at: usize,
        engine: &SimulatedEngine,
        now: u64,
        computed: u64,
        keys: &[PrefixKey],
    ) {
        self.idle[at] = self.idle[at].max(now as f64) + computed as f64 / self.speed;
        match self.route {
            Route::RoundRobin | Route::Load => {}
            Route::Sent => {
                for key in keys {
                    let holders = self.holders.entry(*key).or_default();
                    if !holders.contains(&(at as u32)) {
                        holders.push(at as u32);
                    }
                }
            }
            Route::Events => {
                let (removed, stored) = engine.changes();
                for key in removed {
                    if let Some(holders) = self.holders.get_mut(&key) {
                        holders.retain(|&holder| holder != at as u32);
                        if holders.is_empty() {
                            self.holders.remove(&key);
                        }
                    }
                }
                for key in stored {
                    self.holders.entry(key).or_default().push(at as u32);
                }
            }
        }
    }
}
