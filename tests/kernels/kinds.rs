//! Random launches are of every kind that a fault could hide in.

use hybrid_pages_cuda::kernels::abi::{Strided, TILE_BYTES};

use crate::case::{Case, Kernel, Limits, Order};
use crate::lists::Placed;

const TILE: u64 = TILE_BYTES as u64;

type Kind = (&'static str, fn(&Case) -> bool);

const KINDS: &[Kind] = &[
    ("gather", |case| of(case, Kernel::Gather, false)),
    ("gather with digests", |case| of(case, Kernel::Gather, true)),
    ("scatter", |case| of(case, Kernel::Scatter, false)),
    ("scatter with digests", |case| {
        of(case, Kernel::Scatter, true)
    }),
    ("digest", |case| of(case, Kernel::Digest, true)),
    ("one run", |case| any(case, |piece| piece.runs() == 1)),
    ("several runs", |case| any(case, |piece| piece.runs() > 1)),
    ("words of 1 byte", |case| {
        any(case, |piece| word(piece) == 1)
    }),
    ("words of 2 bytes", |case| {
        any(case, |piece| word(piece) == 2)
    }),
    ("words of 4 bytes", |case| {
        any(case, |piece| word(piece) == 4)
    }),
    ("words of 8 bytes", |case| {
        any(case, |piece| word(piece) == 8)
    }),
    ("words of 16 bytes", |case| {
        any(case, |piece| word(piece) >= 16)
    }),
    ("runs of 1 byte", |case| any(case, |piece| piece.run == 1)),
    ("runs over 64 KiB", |case| {
        any(case, |piece| piece.run > 64 << 10)
    }),
    ("negative strides", |case| {
        repeats(case, |_, stride| stride < 0)
    }),
    ("strides of 0", |case| {
        repeats(case, |_, stride| stride == 0)
    }),
    ("overlapping runs", |case| {
        repeats(case, |piece, stride| {
            stride.unsigned_abs() < u64::from(piece.run)
        })
    }),
    ("padded runs", |case| {
        repeats(case, |piece, stride| {
            stride.unsigned_abs() > u64::from(piece.run)
        })
    }),
    ("strides of runs that do not repeat", |case| {
        any(case, |piece| piece.runs() == 1 && piece.stride != 0)
    }),
    ("pieces of over 20,000 runs", |case| {
        any(case, |piece| piece.runs() > 20_000)
    }),
    ("pieces over 4 GiB", |case| {
        any(case, |piece| piece.bytes >> 32 > 0)
    }),
    ("packed pieces over 4 GiB", |case| {
        case.packed
            .iter()
            .any(|placed| placed.piece.bytes >> 32 > 0)
    }),
    ("positions beyond 4 GiB", |case| {
        (case.first_tile * TILE) >> 32 > 0
    }),
    ("positions across 4 GiB", |case| {
        let end = case.first_tile + case.tile_count;
        (case.first_tile * TILE) >> 32 == 0 && (end * TILE) >> 32 > 0
    }),
    ("lists cut at different positions", |case| {
        case.strided.len() > 1
            && case.packed.len() > 1
            && case.strided[1].piece.position != case.packed[1].piece.position
    }),
    ("gaps", |case| {
        let ends = |pair: &[Placed<Strided>]| pair[0].piece.position + pair[0].piece.bytes;
        let mut pairs = case.strided.windows(2);
        pairs.any(|pair| ends(pair) < pair[1].piece.position)
    }),
    ("empty lists", |case| {
        case.strided.is_empty() && case.packed.is_empty()
    }),
    ("many pieces", |case| {
        case.strided.len() > 30 && case.packed.len() > 30
    }),
    ("no tiles", |case| case.tile_count == 0),
    ("many tiles", |case| case.tile_count > 30),
    ("a part of the line", |case| {
        let last = case
            .strided
            .last()
            .map(|placed| placed.piece.position / TILE);
        last.is_some_and(|last| last >= case.first_tile + case.tile_count)
    }),
    ("more blocks than tiles", |case| case.grid > case.tile_count),
    ("uneven shares", |case| case.tile_count % case.grid != 0),
    ("blocks of 1 thread", |case| case.block == 1),
    ("blocks of some threads", |case| {
        (2..32).contains(&case.block)
    }),
    ("blocks of 512 threads", |case| case.block == 512),
    ("threads together", |case| case.block > 1 && case.together),
    ("threads reversed", |case| {
        case.block > 1 && !case.together && matches!(case.threads, Order::Reversed)
    }),
    ("blocks reversed", |case| {
        case.grid > 1 && matches!(case.blocks, Order::Reversed)
    }),
];

fn of(case: &Case, kernel: Kernel, digests: bool) -> bool {
    (case.kernel, case.digests) == (kernel, digests) && case.tile_count > 0
}

fn any(case: &Case, is: impl Fn(&Strided) -> bool) -> bool {
    case.strided.iter().any(|placed| is(&placed.piece))
}

fn repeats(case: &Case, is: impl Fn(&Strided, i64) -> bool) -> bool {
    any(case, |piece| piece.runs() > 1 && is(piece, piece.stride))
}

/// The word that every byte of a piece of several runs can be moved in.
fn word(piece: &Strided) -> u64 {
    if piece.runs() == 1 {
        return 0;
    }
    let all = piece.position | piece.address | u64::from(piece.run) | piece.stride as u64;
    1 << all.trailing_zeros().min(4)
}

#[test]
fn random_launches_are_of_every_kind() {
    const LAUNCHES: u64 = 1_000;
    let mut counts = vec![0; KINDS.len()];
    for seed in 0..LAUNCHES {
        let case = Case::random(seed, Limits::default());
        for (count, (_, is)) in counts.iter_mut().zip(KINDS) {
            *count += u64::from(is(&case));
        }
    }
    let rows = KINDS
        .iter()
        .zip(&counts)
        .map(|((name, _), count)| (*name, *count));
    println!("{:#?}", rows.clone().collect::<Vec<_>>());
    let missing: Vec<_> = rows.filter(|(_, count)| *count == 0).collect();
    assert!(
        missing.is_empty(),
        "not in {LAUNCHES} launches: {missing:?}"
    );
}
