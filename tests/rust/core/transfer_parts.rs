//! Stores of pages that have not all of their tokens: what is read, what is zero, and what is rejected.
#![cfg(target_os = "linux")]

use crate::transfer_plain;
use crate::transfer_support;

use std::sync::Arc;

use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{
    Direction, EntryCopy, HostEngine, LayerMap, Plan, TokenDim, TokenPart, TransferLayout, checksum,
};
use hybrid_pages_arena::Arena;
use transfer_plain::{argument_error, geometry_error, map};
use transfer_support::{Memory, entry, geometry_in, run};

const ATTENTION: ClassKind = ClassKind::Attention;
const RECURRENT: ClassKind = ClassKind::Recurrent;

fn part(first: usize, dims: &[(usize, usize)], bytes: usize) -> TokenPart {
    let dims = dims.iter();
    TokenPart {
        first,
        dims: dims
            .map(|&(extent, tokens)| TokenDim { extent, tokens })
            .collect(),
        bytes,
    }
}

fn with_tokens(map: LayerMap, parts: &[TokenPart]) -> LayerMap {
    LayerMap {
        tokens: Some(parts.to_vec()),
        ..map
    }
}

fn first(tokens: usize, entry: EntryCopy) -> EntryCopy {
    EntryCopy {
        tokens: Some(tokens),
        ..entry
    }
}

/// What is stored of a block of 1, 2, 3, ... whose tokens lie in these parts.
fn stored(parts: &[TokenPart], bytes: u8, tokens: usize) -> Vec<u8> {
    let geometry = geometry_in(4, &[(ATTENTION, &[bytes.into()], 1)], 1);
    let memory = Memory::new((1..=bytes).collect());
    let layer = map(0, 0, memory.region(), 0, &[(0, bytes.into())]);
    let layer = with_tokens(layer, parts);
    let arena = Arc::new(Arena::create(&geometry, bytes.into(), 1).unwrap());
    arena.write(SlotId(0), &vec![255; bytes.into()]).unwrap();
    let layout = TransferLayout::new(geometry, 0, &[1], &[layer]).unwrap();
    let engine = HostEngine::new(layout, arena.memory(0).unwrap(), 1).unwrap();
    let done = run(
        &engine,
        Direction::Store,
        vec![first(tokens, entry(0, &[0], &[0]))],
    );
    let found = arena.read(SlotId(0)).unwrap();
    assert_eq!((done.error, done.checksums), (None, vec![checksum(&found)]));
    assert_eq!(done.bytes, found.iter().filter(|byte| **byte > 0).count());
    found
}

#[test]
fn only_the_bytes_of_the_tokens_are_stored_and_zeros_behind_them() {
    // One token after the other, in one block and in two kernel blocks.
    let one = [part(0, &[(4, 1)], 2)];
    assert_eq!(stored(&one, 8, 3), [1, 2, 3, 4, 5, 6, 0, 0]);
    // Two heads, each with all tokens.
    let heads = [part(0, &[(2, 0), (4, 1)], 1)];
    assert_eq!(stored(&heads, 8, 3), [1, 2, 3, 0, 5, 6, 7, 0]);
    assert_eq!(stored(&heads, 8, 1), [1, 0, 0, 0, 5, 0, 0, 0]);
    // Kernel blocks of two tokens, each with both heads.
    let kernels = [part(0, &[(2, 2), (2, 0), (2, 1)], 1)];
    assert_eq!(stored(&kernels, 8, 3), [1, 2, 3, 4, 5, 0, 7, 0]);
    assert_eq!(stored(&kernels, 8, 2), [1, 2, 3, 4, 0, 0, 0, 0]);
    // Keys in columns, then values in rows.
    let columns = [part(0, &[(2, 0), (4, 1)], 1), part(0, &[(4, 1)], 2)];
    let expected = [1, 2, 0, 0, 5, 6, 0, 0, 9, 10, 11, 12, 0, 0, 0, 0];
    assert_eq!(stored(&columns, 16, 2), expected);
    // Pairs of tokens in one word, the words of a dimension after those of another.
    let words = [part(0, &[(2, 0), (2, 2), (2, 0), (2, 1)], 1)];
    let expected = [1, 2, 3, 4, 5, 0, 7, 0, 9, 10, 11, 12, 13, 0, 15, 0];
    assert_eq!(stored(&words, 16, 3), expected);
}

/// Blocks of 2 tokens, two of them in a page, beside a state.
fn plain() -> (Arc<Geometry>, Memory, [LayerMap; 2]) {
    let geometry = geometry_in(4, &[(ATTENTION, &[6], 2), (RECURRENT, &[4], 1)], 1);
    let memory = Memory::new((0..40).collect());
    let page = map(0, 0, memory.region(), 10, &[(0, 6)]);
    let page = with_tokens(page, &[part(0, &[(2, 1)], 3)]);
    let state = map(1, 0, memory.region(), 10, &[(6, 4)]);
    (geometry, memory, [page, state])
}

#[test]
fn blocks_behind_the_tokens_may_be_missing() {
    let (geometry, memory, maps) = plain();
    let arena = Arc::new(Arena::create(&geometry, 12, 2).unwrap());
    let layout = TransferLayout::new(geometry, 0, &[4, 4], &maps).unwrap();
    let engine = HostEngine::new(layout, arena.memory(0).unwrap(), 1).unwrap();
    let mut lacking = first(2, entry(0, &[0], &[1, 3]));
    lacking.blocks[1] = None;
    let whole = first(2, entry(0, &[1], &[1, 3]));
    let done = run(&engine, Direction::Store, vec![lacking, whole]);
    assert_eq!((done.error, done.bytes), (None, 12));
    let expected = [10, 11, 12, 13, 14, 15, 0, 0, 0, 0, 0, 0];
    for slot in [0, 1] {
        assert_eq!(arena.read(SlotId(slot)).unwrap(), expected);
    }
    // A load brings whole pages into the blocks that there are.
    let mut load = entry(0, &[0], &[0, 2]);
    load.blocks[0] = None;
    assert_eq!(run(&engine, Direction::Load, vec![load]).bytes, 6);
    assert_eq!(memory.bytes()[20..26], [0; 6]);
}

#[test]
fn tokens_that_no_page_has_are_refused() {
    let (geometry, memory, maps) = plain();
    let arena = Arc::new(Arena::create(&geometry, 12, 4).unwrap());
    let slots = arena.memory(0).unwrap();
    let plan = |maps: &[LayerMap], direction, entry: EntryCopy| {
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4, 4], maps).unwrap();
        argument_error(Plan::new(&layout, &slots, direction, vec![entry]).map(drop))
    };
    let page = || entry(0, &[0], &[0, 1]);
    for tokens in [0, 4, usize::MAX] {
        let why = plan(&maps, Direction::Store, first(tokens, page()));
        assert!(
            why.contains(&format!(
                "entry 0: tokens: expected 1 to 3, fewer than a block has, found {tokens}"
            )),
            "{why}"
        );
    }
    let why = plan(&maps, Direction::Store, first(2, entry(1, &[0], &[0])));
    assert!(
        why.contains("tokens: expected none, since class 1 has checkpoints, found 2"),
        "{why}"
    );
    let why = plan(&maps, Direction::Load, first(2, page()));
    assert!(
        why.contains("tokens: a load copies whole pages, expected none, found 2"),
        "{why}"
    );
    let mut lacking = first(3, page());
    lacking.blocks[1] = None;
    let why = plan(&maps, Direction::Store, lacking);
    assert!(
        why.contains("a store needs every block that has tokens"),
        "{why}"
    );
    let [whole, state] = &maps;
    let whole = LayerMap {
        tokens: None,
        ..whole.clone()
    };
    let why = plan(&[whole, state.clone()], Direction::Store, first(2, page()));
    assert!(
        why.contains("expected a layer map of '0.0' that says where tokens lie"),
        "{why}"
    );
    drop(memory);
}

#[test]
fn token_parts_that_do_not_fit_a_layer_are_refused() {
    let (geometry, memory, [page, state]) = plain();
    let refused = |parts: &[TokenPart], why: &str| {
        let maps = [with_tokens(page.clone(), parts), state.clone()];
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4, 4], &maps);
        let found = geometry_error(layout.map(drop));
        assert!(
            found.contains("layer '0.0'") && found.contains(why),
            "{found}"
        );
    };
    let consecutive = "expected cells of consecutive tokens";
    refused(&[], "expected 6 bytes in all, found 0");
    refused(&[part(0, &[(2, 1)], 2)], "expected 6 bytes in all, found 4");
    refused(&[part(0, &[(2, 1)], usize::MAX)], consecutive);
    refused(&[part(0, &[(2, 1), (0, 0)], 3)], consecutive);
    refused(&[part(0, &[(2, 1)], 0)], consecutive);
    refused(&[part(0, &[(2, 2)], 3)], consecutive);
    refused(&[part(0, &[(2, 1), (3, 1)], 1)], consecutive);
    refused(
        &[part(1, &[(2, 1)], 3)],
        "expected tokens below 2, found 2 from 1 on",
    );
    refused(
        &[part(0, &[(3, 1)], 2)],
        "expected tokens below 2, found 3 from 0 on",
    );
    refused(&[part(usize::MAX, &[(2, 1)], 3)], "expected tokens below 2");
    refused(
        &[part(0, &[(2, 1)], 2), part(0, &[], 2)],
        "expected equally many bytes of each of 2 tokens, found 4 of token 0 and 2 of token 1",
    );
    let maps = [page.clone(), with_tokens(state, &[part(0, &[(4, 1)], 1)])];
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4, 4], &maps);
    let why = geometry_error(layout.map(drop));
    assert!(why.contains("expected none of a recurrent layer"), "{why}");
    let uneven = geometry_in(5, &[(ATTENTION, &[6], 2)], 1);
    let why = geometry_error(TransferLayout::new(uneven, 0, &[4], &[page]).map(drop));
    assert!(
        why.contains("expected 5 tokens in equal parts, found 2 blocks"),
        "{why}"
    );
    drop(memory);
}
