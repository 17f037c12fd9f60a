// XXH3-64 with seed 0 of a tile in shared memory, by a thread block.
//
// Names and steps follow the xxHash specification (doc/xxhash_spec.md of Cyan4973/xxHash, XXH3,
// "Algorithm Overview (240 bytes+)") for an input of exactly TILE bytes: 16 blocks of 16 stripes of
// 8 words. Within a block the stripes are only summed up, so that all blocks are summed at once;
// what joins the blocks, the scrambling, is a chain.
#pragma once

#include "paging.h"

namespace hybrid_pages {

constexpr u32 LANES = 8;                         // words of a stripe, accumulators
constexpr u32 STRIPES = 16;                      // of a block
constexpr u32 BLOCKS = TILE / (8 * LANES * STRIPES);  // of a tile
constexpr u32 DIGEST_SUMS = BLOCKS * LANES;
static_assert(BLOCKS == 16, "the last stripe is the last of a full block");

constexpr u64 PRIME32_1 = 0x9E3779B1, PRIME32_2 = 0x85EBCA77, PRIME32_3 = 0xC2B2AE3D;
constexpr u64 PRIME64_1 = 0x9E3779B185EBCA87, PRIME64_2 = 0xC2B2AE3D27D4EB4F,
              PRIME64_3 = 0x165667B19E3779F9, PRIME64_4 = 0x85EBCA77C2B2AE63,
              PRIME64_5 = 0x27D4EB2F165667C5;
constexpr u64 PRIME_MX1 = 0x165667919E3779F9;

// The accumulators at the beginning.
__device__ const u64 INITIAL[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                       PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

// The default secret, as little-endian words.
__device__ const u64 SECRET[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

// The word of the secret that begins at byte `offset`, which is not a multiple of 8.
__device__ inline u64 secret_at(u32 offset) {
    const u32 shift = offset % 8 * 8;
    return SECRET[offset / 8] >> shift | SECRET[offset / 8 + 1] << (64 - shift);
}

// The halves of the 128-bit product, one xor the other.
__device__ inline u64 fold_product(u64 a, u64 b) {
    const u64 a_low = a & 0xFFFFFFFF, a_high = a >> 32;
    const u64 b_low = b & 0xFFFFFFFF, b_high = b >> 32;
    const u64 cross = a_high * b_low + (a_low * b_low >> 32);
    const u64 middle = a_low * b_high + (cross & 0xFFFFFFFF);
    const u64 high = a_high * b_high + (cross >> 32) + (middle >> 32);
    return a * b ^ high;
}

// What the stripes of a block add to one accumulator.
__device__ inline u64 sum_lane(const u64* words, u32 block, u32 lane) {
    u64 sum = 0;
#pragma unroll 2
    for (u32 step = 0; step < STRIPES; ++step) {
        // In another order for each block, so that threads of a warp read different banks.
        const u32 stripe = (step + block) % STRIPES;
        const u64* const data = words + (block * STRIPES + stripe) * LANES;
        const bool last = block == BLOCKS - 1 && stripe == STRIPES - 1;
        const u64 secret = last ? secret_at(121 + 8 * lane) : SECRET[stripe + lane];
        const u64 key = data[lane] ^ secret;
        sum += data[lane ^ 1] + (key & 0xFFFFFFFF) * (key >> 32);
    }
    return sum;
}

// One accumulator after all blocks.
__device__ inline u64 chain_lane(const u64* sums, u32 lane) {
    u64 accumulator = INITIAL[lane];
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) {
        accumulator += sums[block * LANES + lane];
        if (block < BLOCKS - 1) {
            accumulator = (accumulator ^ accumulator >> 47 ^ SECRET[16 + lane]) * PRIME32_1;
        }
    }
    return accumulator;
}

__device__ inline u64 merge(const u64* accumulators) {
    u64 hash = TILE * PRIME64_1;
#pragma unroll
    for (u32 lane = 0; lane < LANES; lane += 2) {
        hash += fold_product(accumulators[lane] ^ secret_at(11 + 8 * lane),
                             accumulators[lane + 1] ^ secret_at(19 + 8 * lane));
    }
    hash = (hash ^ hash >> 37) * PRIME_MX1;
    return hash ^ hash >> 32;
}

// Writes the digest of `tile`, which all threads see, to `digest`. All threads of the block call it;
// they may write to `tile` and `sums` again after the next __syncthreads.
__device__ inline void digest_tile(const u8* tile, u64* sums, u64* digest) {
    const u64* const words = reinterpret_cast<const u64*>(tile);
    for (u32 i = threadIdx.x; i < DIGEST_SUMS; i += blockDim.x) {
        sums[i] = sum_lane(words, i / LANES, i % LANES);
    }
    __syncthreads();
    for (u32 lane = threadIdx.x; lane < LANES; lane += blockDim.x) {
        sums[lane] = chain_lane(sums, lane);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *digest = merge(sums);
    }
}

}  // namespace hybrid_pages
