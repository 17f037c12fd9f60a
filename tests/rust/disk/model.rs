//! Random calls on engines over one disk, against a plain set of prompts: with room for all of them, what was
//! stored is restored whole, by this process and by later ones with the same weights, until a clear.

use crate::support;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use support::{Engine, Setup};

#[derive(Debug, Clone)]
enum Call {
    Store(String),
    Restore(String),
    Settle,
    Clear,
    /// The process ends; the next has weights of that number.
    Restart(u8),
}

struct World {
    setup: Setup,
    engine: Option<Engine>,
    weights: u8,
    /// Prompts that this process stored or found, each to its end.
    known: HashSet<String>,
    /// Of each weights, prompts that later processes find.
    kept: HashMap<u8, HashSet<String>>,
    cleared: bool,
    /// Clears change the bytes, as new weights do.
    changes: u64,
    tight: bool,
}

impl World {
    fn new(place: &std::path::Path, tight: bool) -> Self {
        let mut setup = Setup::small(place);
        setup.slots = 60;
        if tight {
            setup.options.quota_bytes = 20 * 20_480;
        }
        let mut world = Self {
            setup,
            engine: None,
            weights: 0,
            known: HashSet::new(),
            kept: HashMap::new(),
            cleared: false,
            changes: 0,
            tight,
        };
        world.start(0);
        world
    }

    fn start(&mut self, weights: u8) {
        if let Some(engine) = self.engine.take() {
            engine.settle();
        }
        self.weights = weights;
        self.setup.identity = [weights; 32];
        let mut engine = self.setup.engine();
        engine.weights = u64::from(weights);
        self.engine = Some(engine);
        self.cleared = false;
        self.known = self.kept.get(&weights).cloned().unwrap_or_default();
    }

    fn run(&mut self, call: Call) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        match call {
            Call::Store(prompt) => {
                // As engines do: what a lookup finds is known when more of the prompt is stored.
                engine.hit(&prompt);
                engine.store(&prompt);
                // A queue that is full, or a store that is not open yet, declines.
                engine.settle();
                if engine.tier().declined == 0 {
                    self.known.insert(prompt.clone());
                    if !self.cleared {
                        self.kept.entry(self.weights).or_default().insert(prompt);
                    }
                }
            }
            Call::Restore(prompt) => {
                // Every byte is compared in there.
                let depth = engine.restore(&prompt);
                if self.known.contains(&prompt) && !self.tight {
                    assert_eq!(depth, prompt.len(), "{prompt}: {:?}", engine.stats());
                }
                if self.known.is_empty() && engine.tier().declined == 0 {
                    assert_eq!(depth, 0, "{prompt} was never stored");
                }
            }
            Call::Settle => engine.settle(),
            Call::Clear => {
                engine.cache.clear();
                self.changes += 1;
                engine.weights = 1000 + self.changes;
                self.cleared = true;
                self.known.clear();
                self.kept.remove(&self.weights);
            }
            Call::Restart(weights) => self.start(weights),
        }
        if let Some(engine) = &self.engine {
            engine.audit();
            let stats = engine.stats();
            if !self.tight {
                assert_eq!(stats.failures, [0; 17]);
            }
        }
    }
}

fn calls() -> impl Strategy<Value = Call> {
    let prompt = || "[ab]{1,5}";
    prop_oneof![
        6 => prompt().prop_map(Call::Store),
        6 => prompt().prop_map(Call::Restore),
        1 => Just(Call::Settle),
        1 => Just(Call::Clear),
        2 => (0..2_u8).prop_map(Call::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, ..ProptestConfig::default() })]

    #[test]
    fn prompts_come_back_as_a_plain_set_has_them(
        tight in any::<bool>(),
        calls in prop::collection::vec(calls(), 1..40),
    ) {
        let place = tempfile::tempdir().unwrap();
        let mut world = World::new(place.path(), tight);
        for call in calls {
            world.run(call);
        }
    }
}
