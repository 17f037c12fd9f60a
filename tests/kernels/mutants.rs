//! Faults planted in the kernels: each must be found by few launches.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::{self, Sanitizer, sources};
use crate::case::Limits;
use crate::compare;
use crate::harness::Harness;

/// Launches within which a fault is found.
pub const LAUNCHES: u64 = 1500;

struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Occurs exactly once in the file.
    snippet: &'static str,
    instead: &'static str,
    sanitizer: Sanitizer,
}

const fn mutant(
    name: &'static str,
    file: &'static str,
    snippet: &'static str,
    instead: &'static str,
) -> Mutant {
    Mutant {
        name,
        file,
        snippet,
        instead,
        sanitizer: Sanitizer::Address,
    }
}

const fn race(
    name: &'static str,
    file: &'static str,
    snippet: &'static str,
    instead: &'static str,
) -> Mutant {
    Mutant {
        sanitizer: Sanitizer::Thread,
        ..mutant(name, file, snippet, instead)
    }
}

const MUTANTS: &[Mutant] = &[
    mutant(
        "a block leaves out its last tile",
        "paging.cu",
        "begin + share + (block < rest ? 1 : 0)",
        "begin + share",
    ),
    mutant(
        "blocks begin too late when tiles do not divide",
        "paging.cu",
        "block * share + (block < rest ? block : rest)",
        "block * share + block",
    ),
    mutant(
        "positions are cut to 32 bits",
        "paging.cu",
        "u64 position = (paging.first_tile + i) * TILE",
        "u64 position = static_cast<u32>(paging.first_tile + i) * TILE",
    ),
    mutant(
        "the way into a piece is cut to 32 bits",
        "paging.cu",
        "u64 before = skip / piece.run;",
        "u64 before = static_cast<u32>(skip) / piece.run;",
    ),
    mutant(
        "what is left of a piece is cut to 32 bits",
        "paging.cu",
        "const u64 left = piece.bytes - skip;",
        "const u32 left = static_cast<u32>(piece.bytes - skip);",
    ),
    mutant(
        "digests count from the block's first tile",
        "paging.cu",
        "paging.digests + i",
        "paging.digests + (i - begin)",
    ),
    mutant(
        "16-byte words where 8 bytes are aligned",
        "paging.cu",
        "alignment % 16 != 0 ? 3",
        "alignment % 16 != 0 ? 4",
    ),
    mutant(
        "strides do not count for the size of words",
        "paging.cu",
        "static_cast<u32>(piece.stride) | piece.run | place.within",
        "piece.run | place.within",
    ),
    mutant(
        "the address does not count for the size of words",
        "paging.cu",
        "u32 alignment = static_cast<u32>(place.address) + place.within;",
        "u32 alignment = 0;",
    ),
    mutant(
        "runs do not count for the size of words",
        "paging.cu",
        "static_cast<u32>(piece.stride) | piece.run | place.within",
        "static_cast<u32>(piece.stride) | place.within",
    ),
    mutant(
        "the way into the first run does not count",
        "paging.cu",
        "const u32 runs = begin / piece.run;",
        "const u32 runs = offset / piece.run;",
    ),
    mutant(
        "steps are cut to 32 bits",
        "paging.cu",
        "runs * static_cast<u64>(piece.stride)",
        "runs * static_cast<u32>(piece.stride)",
    ),
    mutant(
        "a piece does not end with the tile",
        "paging.cu",
        "left < room ? static_cast<u32>(left) : room",
        "static_cast<u32>(left)",
    ),
    mutant(
        "a piece is left with its first tile",
        "paging.cu",
        "if (left != bytes) {",
        "if (false) {",
    ),
    mutant(
        "the byte after a word is written as it was",
        "paging.cu",
        "*reinterpret_cast<Word*>(memory[k]) = held[k];",
        "*reinterpret_cast<Word*>(memory[k]) = held[k];
         reinterpret_cast<volatile u8*>(memory[k])[sizeof(Word)] |= 0;",
    ),
    mutant(
        "gaps between pieces keep what was there",
        "paging.cu",
        "clear(tile, filled, begin);",
        ";",
    ),
    mutant(
        "the tile's end keeps what was there",
        "paging.cu",
        "clear(tile, filled, TILE);",
        ";",
    ),
    mutant(
        "the last stripe takes the secret of the others",
        "digest.cuh",
        "last ? secret_at(121 + 8 * lane) : SECRET[stripe + lane]",
        "SECRET[stripe + lane]",
    ),
    mutant(
        "the last stripe takes the secret 2 bytes later",
        "digest.cuh",
        "secret_at(121 + 8 * lane)",
        "secret_at(123 + 8 * lane)",
    ),
    mutant(
        "the last block is scrambled",
        "digest.cuh",
        "if (block < BLOCKS - 1) {",
        "if (true) {",
    ),
    mutant(
        "a tile is passed on before it is there",
        "paging.cu",
        "source.template pass<Way::IN>(position, tile);\n        __syncthreads();",
        "source.template pass<Way::IN>(position, tile);",
    ),
    mutant(
        "a tile is overwritten before it is hashed",
        "paging.cu",
        "digest_tile(tile, sums, paging.digests + i);\n        }\n        __syncthreads();",
        "digest_tile(tile, sums, paging.digests + i);\n        }",
    ),
    mutant(
        "some threads leave a block",
        "paging.cu",
        "if (begin == end) {",
        "if (begin == end || (share > 1 && threadIdx.x > 6)) {",
    ),
    race(
        "accumulators are merged before they are there",
        "digest.cuh",
        "sums[lane] = chain_lane(sums, lane);\n    }\n    __syncthreads();",
        "sums[lane] = chain_lane(sums, lane);\n    }",
    ),
    race(
        "every thread writes the digest",
        "digest.cuh",
        "if (threadIdx.x == 0) {",
        "if (true) {",
    ),
];

/// A copy of the kernels with the fault in.
fn plant(mutant: &Mutant) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels/mutant");
    fs::create_dir_all(&folder).expect("the target folder can be written");
    for entry in sources().read_dir().expect("can be listed") {
        let path = entry.expect("can be listed").path();
        let Some(name) = path.file_name().filter(|_| path.is_file()) else {
            continue;
        };
        let mut text = fs::read(&path).expect("can be read");
        if name == mutant.file {
            let sound = String::from_utf8(text).expect("sources are text");
            assert_eq!(
                sound.matches(mutant.snippet).count(),
                1,
                "mutant {:?}: expected {:?} once in {}: bring it up to date",
                mutant.name,
                mutant.snippet,
                mutant.file
            );
            text = sound.replace(mutant.snippet, mutant.instead).into_bytes();
        }
        fs::write(folder.join(name), text).expect("the target folder can be written");
    }
    folder
}

#[test]
fn planted_faults_are_found() {
    let survivors: Vec<&str> = MUTANTS
        .iter()
        .filter(|mutant| {
            let limits = match mutant.sanitizer {
                Sanitizer::Address => Limits::default(),
                Sanitizer::Thread => Limits::TOGETHER,
            };
            let program = build::compiled(&plant(mutant), mutant.sanitizer);
            let mut harness = Harness::new(&program, mutant.sanitizer, 0);
            let found = compare(&mut harness, limits, 0..LAUNCHES);
            let said = found.as_deref().and_then(|text| text.lines().next());
            println!("{}: {}", mutant.name, said.unwrap_or("survives"));
            found.is_none()
        })
        .map(|mutant| mutant.name)
        .collect();
    assert!(
        survivors.is_empty(),
        "not found in {LAUNCHES} launches: {survivors:#?}"
    );
}
