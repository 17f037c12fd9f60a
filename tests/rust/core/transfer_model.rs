//! Random geometries, layouts and entries against a model that moves one byte at a time.
#![cfg(target_os = "linux")]

use crate::transfer_random;
use crate::transfer_support;

use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::HostEngine;
use proptest::prelude::*;
use transfer_random::{Case, check};
use transfer_support::Memory;

prop_compose! {
    fn any_case()(
        groups in prop::collection::vec((
            prop::sample::select(vec![ClassKind::Attention, ClassKind::Window, ClassKind::Recurrent]),
            prop::collection::vec(1_usize..60, 1..4),
            1_usize..4,
        ), 1..5),
        ranks in 1_usize..4,
        rank_slot_bytes in 1_usize..120,
        entries in 0_usize..6,
        overlaid in any::<bool>(),
        seed in any::<u64>(),
    ) -> Case {
        Case { groups, ranks, rank_slot_bytes, entries, overlaid, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn what_is_stored_comes_back_in_any_layout(case in any_case(), threads in 1_usize..4) {
        check(&case, Memory::new, |layout, slots| {
            HostEngine::new(layout, slots, threads).unwrap()
        });
    }
}
