//! Random calls of several tenants with random hints, on a cache with tiers below: whatever they retain, however
//! long they hold it and however copies end, shares and slots add up and everything can be given up again.

use crate::tiers_support;

use hybrid_pages::cache::{Arrival, ClassConfig, ReadLease, WriteLease};
use hybrid_pages::ids::NamespaceId;
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use proptest::prelude::*;
use tiers_support::cache_support::{engines, keys};
use tiers_support::{Engine, Handle, Size};

const TENANTS: usize = 3;

#[derive(Debug, Clone)]
enum Call {
    /// A request of a tenant arrives so many milliseconds later.
    Arrive(usize, String, u64, Hints),
    Reserve(usize, String, Hints),
    Commit(usize),
    Abort(usize),
    Acquire(usize, String),
    Release(usize),
    Invalidate(usize),
    Promote(usize, String),
    /// A tenant's namespace is released, and asked for again.
    Rename(usize),
    End(usize, usize),
    FailRead(usize),
    Clear,
}

struct World {
    engine: Engine,
    slots: usize,
    share: usize,
    tiers: Vec<(Handle, Size)>,
    namespaces: Vec<NamespaceId>,
    now: u64,
    reads: Vec<ReadLease>,
    writes: Vec<(String, WriteLease)>,
}

fn identity(tenant: usize) -> [u8; 1] {
    [b'a' + tenant as u8]
}

impl World {
    fn new(
        classes: &[ClassConfig],
        spare: usize,
        cut: usize,
        sizes: Vec<Size>,
        policy: &str,
    ) -> Self {
        let least: usize = classes.iter().map(|class| class.slots_per_entry).sum();
        let slots = least + spare;
        let share = least + spare * cut / 8;
        let tiers: Vec<_> = sizes
            .into_iter()
            .map(|size| (Handle::default(), size))
            .collect();
        tiers.iter().for_each(|(shelf, _)| shelf.pause());
        let engine = Engine::with_share(classes, slots, &tiers, policy, Some(share));
        let namespaces = (0..TENANTS)
            .map(|tenant| {
                let name = identity(tenant);
                engine.cache.namespace_of(&name, &name).unwrap()
            })
            .collect();
        Self {
            engine,
            slots,
            share,
            tiers,
            namespaces,
            now: 0,
            reads: vec![],
            writes: vec![],
        }
    }

    fn run(&mut self, call: Call) {
        let cache = &self.engine.cache;
        match call {
            Call::Arrive(tenant, prompt, later, hints) => {
                self.now += later;
                let keys = keys(&prompt);
                let arrival = Arrival {
                    now: self.now,
                    tokens: keys.len() as u64 * 16 + 1,
                    limit: keys.len(),
                    hints,
                };
                cache
                    .admit(self.namespaces[tenant], &keys, arrival)
                    .unwrap();
            }
            Call::Reserve(tenant, prompt, hints) => {
                let classes = self.engine.classes.len();
                let wanted: Vec<_> = (0..prompt.len())
                    .flat_map(|block| (0..classes).map(move |class| (class, block)))
                    .collect();
                let keys = keys(&prompt);
                let namespace = self.namespaces[tenant];
                let lease = cache
                    .reserve_hinted(namespace, &keys, &wanted, &hints)
                    .unwrap();
                self.writes.push((prompt, lease));
            }
            Call::Commit(at) if !self.writes.is_empty() => {
                let at = at % self.writes.len();
                let (prompt, mut lease) = self.writes.swap_remove(at);
                self.engine.commit(&prompt, &mut lease);
            }
            Call::Abort(at) if !self.writes.is_empty() => {
                self.writes.swap_remove(at % self.writes.len());
            }
            Call::Acquire(tenant, prompt) => {
                let lease = cache.acquire(self.namespaces[tenant], &keys(&prompt), 0);
                self.reads.extend(lease.unwrap());
            }
            Call::Release(at) if !self.reads.is_empty() => {
                self.reads.swap_remove(at % self.reads.len());
            }
            Call::Invalidate(at) if !self.reads.is_empty() => {
                let lease = &self.reads[at % self.reads.len()];
                cache.invalidate(lease).unwrap();
            }
            Call::Promote(tenant, prompt) => {
                cache
                    .promote(self.namespaces[tenant], &keys(&prompt), 0)
                    .unwrap();
            }
            Call::Rename(tenant) => {
                let name = identity(tenant);
                cache.release_namespace(self.namespaces[tenant]).unwrap();
                self.namespaces[tenant] = cache.namespace_of(&name, &name).unwrap();
            }
            Call::End(tier, copies) => {
                let shelf = &self.tiers[tier % self.tiers.len()].0;
                shelf.lock().ends = Some(copies);
                cache.poll();
                shelf.lock().ends = Some(0);
            }
            Call::FailRead(tier) => {
                self.tiers[tier % self.tiers.len()].0.lock().fail_reads += 1;
            }
            Call::Clear => {
                cache.clear();
                self.engine.weights += 1;
            }
            Call::Commit(_) | Call::Abort(_) | Call::Release(_) | Call::Invalidate(_) => {}
        }
    }

    /// Every lease and copy ends: all that is retained gives way to a prompt of each tenant, and an empty
    /// cache counts no tenant.
    fn end(&mut self) {
        self.reads.clear();
        self.writes.clear();
        for (shelf, _) in &self.tiers {
            shelf.lock().ends = None;
        }
        self.engine.cache.poll();
        assert_eq!(self.engine.cache.stats().leased_slots, 0);
        let least: usize = self
            .engine
            .classes
            .iter()
            .map(|it| it.slots_per_entry)
            .sum();
        assert!(least <= self.share);
        for tenant in 0..TENANTS {
            let prompt = ["x", "y", "z"][tenant];
            self.run(Call::Reserve(tenant, prompt.into(), Hints::NONE));
            let (_, lease) = self.writes.pop().unwrap();
            assert_eq!(lease.entries().len(), self.engine.classes.len());
            drop(lease);
            self.engine.audit();
        }
        self.engine.cache.clear();
        let stats = self.engine.cache.stats();
        assert_eq!((stats.free_slots as usize, stats.tenants), (self.slots, 0));
        self.engine.audit();
    }
}

fn hints() -> impl Strategy<Value = Hints> {
    let retain = prop_oneof![2 => Just(0), 3 => 1..5_000_u64, 1 => Just(u64::MAX)];
    let session = prop::option::of(0..3_u64);
    (session, -10..=10_i8, retain, prop::bool::weighted(0.9)).prop_map(
        |(session, priority, retain, store)| Hints {
            session,
            priority,
            retain,
            store,
        },
    )
}

fn calls() -> impl Strategy<Value = Call> {
    let tenant = || 0..TENANTS;
    let prompt = || "[ab]{1,6}";
    prop_oneof![
        8 => (tenant(), prompt(), 0..1_000_u64, hints()).prop_map(|(t, p, l, h)| Call::Arrive(t, p, l, h)),
        9 => (tenant(), prompt(), hints()).prop_map(|(t, p, h)| Call::Reserve(t, p, h)),
        8 => any::<usize>().prop_map(Call::Commit),
        1 => any::<usize>().prop_map(Call::Abort),
        4 => (tenant(), prompt()).prop_map(|(t, p)| Call::Acquire(t, p)),
        4 => any::<usize>().prop_map(Call::Release),
        1 => any::<usize>().prop_map(Call::Invalidate),
        6 => (tenant(), prompt()).prop_map(|(t, p)| Call::Promote(t, p)),
        2 => tenant().prop_map(Call::Rename),
        6 => (0..2_usize, 1..6_usize).prop_map(|(tier, copies)| Call::End(tier, copies)),
        1 => (0..2_usize).prop_map(Call::FailRead),
        1 => Just(Call::Clear),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<Size>> {
    let size = (4..60_u64, 1..30_u64).prop_map(|(slots, queue)| Size { slots, queue });
    prop::collection::vec(size, 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn shares_and_slots_add_up_whatever_tenants_ask_for(
        classes in prop::sample::select(engines()),
        spare in 0..24_usize,
        cut in 0..=8_usize,
        sizes in sizes(),
        policy in prop::sample::select(policies()),
        calls in prop::collection::vec(calls(), 1..120),
    ) {
        let mut world = World::new(&classes, spare, cut, sizes, policy);
        for call in calls {
            world.run(call);
            world.engine.audit();
        }
        world.end();
    }
}
