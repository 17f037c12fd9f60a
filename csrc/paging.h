// The kernels' parameters. Twin of rust/cuda/src/kernels/abi.rs.
//
// The payload of a launch is the bytes of several entries one after another, each beginning at a
// multiple of TILE. Two lists, each sorted by position and disjoint, say where they lie in memory.
// They need not cut at the same positions. Bytes that the list read from does not cover count as
// zero; bytes that the list written to does not cover are not written.
#pragma once

namespace hybrid_pages {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Bytes of a tile: what a thread block holds at a time, and what a digest is of.
constexpr u32 TILE = 16384;

// What the engine launches a thread block with. The kernels are right for any number.
constexpr u32 THREADS = 512;

// Runs of adjacent bytes at equal distances: where the engine has a part of the payload.
//
// Run r holds the payload from position + r * run on, and begins at address + r * stride.
struct Strided {
    u64 position;  // in the payload, in bytes
    u64 address;   // of the first run
    u64 bytes;     // of all runs: a multiple of run
    i64 stride;    // in bytes
    u32 run;       // adjacent bytes, 1 to 2^30
    u32 reserved;  // 0
};

// Adjacent bytes: where the slots have a part of the payload.
struct Packed {
    u64 position;  // in the payload, in bytes
    u64 address;   // where they lie
    u64 bytes;     // how many
};

// One launch: its only parameter, by value.
struct Paging {
    const Strided* strided;
    const Packed* packed;
    u32 strided_count;
    u32 packed_count;
    u64 first_tile;  // the first tile of the payload that this launch takes
    u64 tile_count;  // how many it takes
    u64* digests;    // one for each of its tiles, or null
};

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "integers of these sizes");
static_assert(sizeof(Strided) == 40 && alignof(Strided) == 8, "abi.rs counts on it");
static_assert(sizeof(Packed) == 24 && alignof(Packed) == 8, "abi.rs counts on it");
static_assert(sizeof(Paging) == 48 && alignof(Paging) == 8, "abi.rs counts on it");

}  // namespace hybrid_pages
