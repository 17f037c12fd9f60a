//! What others do between the portions of a long store.

use super::*;
use crate::cache::{Cache, CacheConfig, ClassConfig};
use crate::ids::ClassKind;

const BLOCKS: usize = 3 * PORTION;

#[test]
fn a_long_store_holds_nothing_behind_pages_that_were_stored_anew() {
    let config = CacheConfig {
        classes: vec![ClassConfig {
            kind: ClassKind::Attention,
            window_blocks: 0,
            slots_per_entry: 1,
        }],
        ranks: 1,
        slots: 2 * BLOCKS,
        slot_bytes: 1,
        policy: "lru".into(),
        tenant_slots: None,
    };
    let cache = Cache::new(&config).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    let key = |block: usize| PrefixKey::new(&block.to_le_bytes()).unwrap();
    let keys: Vec<PrefixKey> = (0..BLOCKS).map(key).collect();
    let pages: Vec<(usize, usize)> = (0..BLOCKS).map(|block| (0, block)).collect();
    let most = 2 * PORTION;
    let put = || {
        let lease = cache.reserve(namespace, &keys[..most], &pages[..most]);
        lease.unwrap().commit_without_checksums().unwrap()
    };
    assert_eq!(put(), most);

    let roles = &cache.locked.roles;
    let mut store = Store::new(roles, namespace, &keys, &pages, &Hints::NONE).unwrap();
    let mut reservation = Reservation::default();
    let mut go_on = |reservation: &mut Reservation| {
        let portion = |state: &mut CacheState| {
            state.reserve_on(&mut store, reservation, &mut |_, _, _, _| ())
        };
        cache.locked.with(portion).unwrap().unwrap()
    };
    assert_eq!(go_on(&mut reservation), (false, false));
    let lease = cache.acquire(namespace, &keys[..1], 0).unwrap();
    cache.invalidate(&lease.unwrap()).unwrap();
    assert_eq!(put(), most);
    assert_eq!(go_on(&mut reservation), (false, false));
    assert_eq!(cache.audit(), None);

    reservation.settle(roles);
    cache.locked.unpin(reservation.pinned);
    assert_eq!((cache.audit(), cache.stats().leased_slots), (None, 0));
}
