//! Random geometries, layouts and entries against a model that moves one byte at a time.
#![cfg(target_os = "linux")]

use crate::transfer_random;
use crate::transfer_support;

use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::HostEngine;
use proptest::prelude::*;
use transfer_random::{Case, check};
use transfer_support::Memory;

type Groups = Vec<(ClassKind, Vec<usize>, usize)>;

/// Layers of any size or, often, of equally many bytes of each token.
fn any_groups(block_tokens: usize) -> impl Strategy<Value = (usize, Groups)> {
    let kinds = vec![
        ClassKind::Attention,
        ClassKind::Window,
        ClassKind::Recurrent,
    ];
    let group = (
        prop::sample::select(kinds),
        1_usize..4,
        prop::bool::weighted(0.9),
    )
        .prop_flat_map(move |(kind, blocks, even)| {
            let unit = if even {
                (block_tokens / blocks).max(1)
            } else {
                1
            };
            let layer = (1_usize..60).prop_map(move |bytes| bytes.next_multiple_of(unit));
            prop::collection::vec(layer, 1..4).prop_map(move |layers| (kind, layers, blocks))
        });
    prop::collection::vec(group, 1..5).prop_map(move |groups| (block_tokens, groups))
}

prop_compose! {
    fn any_case()(
        (block_tokens, groups) in prop::sample::select(vec![12_usize, 6, 1]).prop_flat_map(any_groups),
        ranks in 1_usize..4,
        rank_slot_bytes in 1_usize..120,
        entries in 0_usize..6,
        overlaid in any::<bool>(),
        seed in any::<u64>(),
    ) -> Case {
        Case { groups, block_tokens, ranks, rank_slot_bytes, entries, overlaid, seed }
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
