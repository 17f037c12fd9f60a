//! What the calls of a tier over a Mooncake Store cost as prompts and stores grow: counted.

#[path = "../shared/tier_sizes.rs"]
mod tier_sizes;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::ClassKind;
use hybrid_pages::policy::{Lru, Placement};
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{Name, Planes};
use tier_sizes::counting::work;
use tier_sizes::{SLOTS, Scene};

use crate::shared::MooncakeShared;
use crate::state::HelperWork;
use crate::{Mooncake, MooncakeOptions};

const BYTES: usize = 64;
const SUMS: [u64; 1] = [7];

/// Does what a helper does whose store has `there`. Fails if it takes more under the lock for one batch as there are
/// more entries.
fn help(shared: &MooncakeShared, there: &mut HashSet<Name>) {
    loop {
        let (taken, cost) = work(|| shared.state().next_work(|_| BYTES));
        let Some((_, batch)) = taken else { return };
        assert!(cost.bytes < 1 << 18 && cost.calls < 256, "{cost:?}");
        let mut state = shared.state();
        match batch {
            HelperWork::Ask(questions) => {
                for question in questions {
                    let found = there.contains(&question.name);
                    state.answered(question.name, found.then(|| SUMS.to_vec()));
                }
            }
            HelperWork::Get(gets) => {
                for get in gets {
                    state.free_cells.push(get.cell);
                    if let Some(copy) = get.copy {
                        shared.end(copy, Ok(SUMS.to_vec()));
                    }
                }
            }
            HelperWork::Put(puts) => {
                for put in puts {
                    there.insert(put.name);
                    state.wrote(put.name);
                    state.unsay(&put.name);
                    if let Some(copy) = put.copy {
                        shared.end(copy, Ok(Vec::new()));
                    }
                }
            }
            HelperWork::Remove(names) => {
                for name in names {
                    there.remove(&name);
                    state.removed(&name);
                }
            }
        }
    }
}

#[test]
fn calls_of_a_mooncake_tier_cost_the_same_in_longer_prompts_and_larger_stores() {
    let segment = Segment::new("kv", Dtype::Uint8, vec![BYTES]).unwrap();
    let layer = Layer::new("attention", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
    let arena = Arena::create(&geometry, BYTES, SLOTS).unwrap();
    tier_sizes::check(|| {
        let mut options = MooncakeOptions::new("localhost:1".into(), vec!["/bin/false".into()]);
        options.weighs = false;
        let policy = Box::new(Lru::new(Placement::Every, false));
        let tier = Mooncake::open(options, &geometry, BYTES, policy).unwrap();
        let shared = tier.shared();
        shared
            .planes
            .set(Planes::of(&arena, 1, BYTES).unwrap())
            .unwrap();
        shared.state().ready = true;
        let (counts, there) = (tier.handle(), RefCell::new(HashSet::new()));
        let works = move || {
            help(&shared, &mut there.borrow_mut());
            true
        };
        let stats = move || drop(counts.stats());
        Scene::new(
            Box::new(tier),
            SUMS.to_vec(),
            Box::new(stats),
            Box::new(works),
        )
    });
}
