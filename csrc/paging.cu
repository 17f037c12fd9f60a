// Moves tiles of the payload between the engine's memory and the slots, through shared memory,
// where they are also hashed. See paging.h for the payload.
//
// Every thread of a block walks the same pieces, so that all branches around __syncthreads are
// uniform. A word of a tile is moved by the same thread whatever piece it lies in: neighbouring
// pieces, however small, keep different threads busy.
#include "digest.cuh"
#include "paging.h"

namespace hybrid_pages {

struct alignas(16) Word16 {
    u64 low, high;
};

// The bytes of a packed piece from some byte on.
struct Adjacent {
    // Words that a thread has under way at a time. 512 threads move a tile in one go.
    static constexpr u32 UNDER_WAY = 2;

    u64 address;

    __device__ u64 at(u32 offset) const { return address + offset; }
};

// The bytes of a strided piece from some byte on.
struct Repeated {
    static constexpr u32 UNDER_WAY = 1;  // more take registers, and then memory

    const Strided& piece;
    u64 address;  // of the run in which the bytes begin
    u32 within;   // the first byte in that run

    __device__ Repeated(const Strided& piece, u64 skip) : piece(piece) {
        const u64 before = skip / piece.run;
        within = static_cast<u32>(skip - before * piece.run);
        address = piece.address + before * static_cast<u64>(piece.stride);
    }

    __device__ u64 at(u32 offset) const {
        const u32 begin = within + offset;
        const u32 runs = begin / piece.run;
        return address + runs * static_cast<u64>(piece.stride) + (begin - runs * piece.run);
    }
};

enum class Way { IN, OUT };  // of shared memory

// Moves words first, first + blockDim.x, ... of a tile, those below `count`: reads, then writes.
template <typename Word, Way WAY, u32 UNDER_WAY>
__device__ inline void move_words(const u64 (&memory)[UNDER_WAY], u8* tile, u32 first, u32 count) {
    Word* const words = reinterpret_cast<Word*>(tile);
    Word held[UNDER_WAY];
#pragma unroll
    for (u32 k = 0; k < UNDER_WAY; ++k) {
        const u32 i = first + k * blockDim.x;
        if (i < count) {
            held[k] = WAY == Way::OUT ? words[i] : *reinterpret_cast<const Word*>(memory[k]);
        }
    }
#pragma unroll
    for (u32 k = 0; k < UNDER_WAY; ++k) {
        const u32 i = first + k * blockDim.x;
        if (i < count) {
            if (WAY == Way::OUT) {
                *reinterpret_cast<Word*>(memory[k]) = held[k];
            } else {
                words[i] = held[k];
            }
        }
    }
}

// Moves bytes in the largest words that divide `alignment`, the bitwise or of all that they must
// divide.
template <Way WAY, typename Place>
__device__ void move_bytes(const Place& place, u8* tile, u32 begin, u32 bytes, u32 alignment) {
    alignment |= begin | bytes;
    const u32 shift = alignment % 4 != 0 ? alignment % 2 == 0
                      : alignment % 8 != 0 ? 2
                      : alignment % 16 != 0 ? 3
                                            : 4;
    const u32 count = bytes >> shift;
    const u32 before = (begin >> shift) % blockDim.x;
    const u32 first = threadIdx.x >= before ? threadIdx.x - before
                                            : threadIdx.x + blockDim.x - before;
    constexpr u32 UNDER_WAY = Place::UNDER_WAY;
    tile += begin;
#pragma unroll 1
    for (u32 i = first; i < count; i += UNDER_WAY * blockDim.x) {
        u64 memory[UNDER_WAY];
#pragma unroll
        for (u32 k = 0; k < UNDER_WAY; ++k) {
            memory[k] = place.at(i + k * blockDim.x << shift);
        }
        switch (shift) {
            case 4: move_words<Word16, WAY>(memory, tile, i, count); break;
            case 3: move_words<u64, WAY>(memory, tile, i, count); break;
            case 2: move_words<u32, WAY>(memory, tile, i, count); break;
            case 1: move_words<u16, WAY>(memory, tile, i, count); break;
            default: move_words<u8, WAY>(memory, tile, i, count);
        }
    }
}

// Moves `bytes` of a piece, from its byte `skip` on, from or to the tile's byte `begin`.
template <Way WAY>
__device__ void move(const Packed& piece, u64 skip, u8* tile, u32 begin, u32 bytes) {
    const Adjacent place{piece.address + skip};
    move_bytes<WAY>(place, tile, begin, bytes, static_cast<u32>(place.address));
}

template <Way WAY>
__device__ void move(const Strided& piece, u64 skip, u8* tile, u32 begin, u32 bytes) {
    const Repeated place(piece, skip);
    u32 alignment = static_cast<u32>(place.address) + place.within;
    if (bytes > piece.run - place.within) {
        alignment |= static_cast<u32>(piece.stride) | piece.run | place.within;
    }
    move_bytes<WAY>(place, tile, begin, bytes, alignment);
}

__device__ inline void clear(u8* tile, u32 begin, u32 end) {
#pragma unroll 1
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        tile[i] = 0;
    }
}

// Where a block stands in one of the lists.
template <typename Piece>
struct Cursor {
    const Piece* pieces;
    u32 count;
    u32 next;  // the first piece that ends beyond the tile's beginning

    __device__ Cursor(const Piece* pieces, u32 count, u64 position) : pieces(pieces), count(count) {
        u32 low = 0, high = count;
        while (low < high) {
            const u32 middle = low + (high - low) / 2;
            const Piece& piece = pieces[middle];
            if (piece.position > position || position - piece.position < piece.bytes) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        next = low;
    }

    // Moves the tile that begins at `position`, then stands at the next one.
    template <Way WAY>
    __device__ void pass(u64 position, u8* tile) {
        u32 filled = 0;
        for (; next < count; ++next) {
            const Piece& piece = pieces[next];
            const bool begun = piece.position <= position;
            const u64 skip = begun ? position - piece.position : 0;
            const u64 ahead = begun ? 0 : piece.position - position;
            if (ahead >= TILE) {
                break;
            }
            const u32 begin = static_cast<u32>(ahead);
            const u32 room = TILE - begin;
            const u64 left = piece.bytes - skip;
            const u32 bytes = left < room ? static_cast<u32>(left) : room;
            if (WAY == Way::IN) {
                clear(tile, filled, begin);
            }
            move<WAY>(piece, skip, tile, begin, bytes);
            filled = begin + bytes;
            if (left != bytes) {
                break;
            }
        }
        if (WAY == Way::IN) {
            clear(tile, filled, TILE);
        }
    }
};

// The list that is not there: what `hybrid_pages_digest` writes to.
struct Nowhere {
    __device__ Nowhere(const void*, u32, u64) {}

    template <Way WAY>
    __device__ void pass(u64, u8*) {}
};

// Each block takes a contiguous share of the tiles, so that it walks the lists but once.
template <typename Source, typename Target, typename From, typename To>
__device__ void run(const Paging& paging, const From* from, u32 from_count, const To* to,
                    u32 to_count) {
    alignas(16) __shared__ u8 tile[TILE];
    __shared__ u64 sums[DIGEST_SUMS];

    const u64 share = paging.tile_count / gridDim.x;
    const u64 rest = paging.tile_count % gridDim.x;
    const u64 block = blockIdx.x;
    const u64 begin = block * share + (block < rest ? block : rest);
    const u64 end = begin + share + (block < rest ? 1 : 0);
    if (begin == end) {
        return;
    }
    const u64 start = (paging.first_tile + begin) * TILE;
    Source source(from, from_count, start);
    Target target(to, to_count, start);
    for (u64 i = begin; i < end; ++i) {
        const u64 position = (paging.first_tile + i) * TILE;
        source.template pass<Way::IN>(position, tile);
        __syncthreads();
        target.template pass<Way::OUT>(position, tile);
        if (paging.digests != nullptr) {
            digest_tile(tile, sums, paging.digests + i);
        }
        __syncthreads();
    }
}

}  // namespace hybrid_pages

using hybrid_pages::Packed;
using hybrid_pages::Paging;
using hybrid_pages::Strided;
using hybrid_pages::THREADS;

// Two blocks share a multiprocessor, so that one has memory under way while the other hashes: that
// leaves 64 registers a thread.

// From the strided pieces to the packed ones. Digests are of what was read.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    hybrid_pages_gather(const Paging paging) {
    hybrid_pages::run<hybrid_pages::Cursor<Strided>, hybrid_pages::Cursor<Packed>>(
        paging, paging.strided, paging.strided_count, paging.packed, paging.packed_count);
}

// From the packed pieces to the strided ones. Digests are of what was read.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    hybrid_pages_scatter(const Paging paging) {
    hybrid_pages::run<hybrid_pages::Cursor<Packed>, hybrid_pages::Cursor<Strided>>(
        paging, paging.packed, paging.packed_count, paging.strided, paging.strided_count);
}

// Reads the strided pieces for their digests alone.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    hybrid_pages_digest(const Paging paging) {
    hybrid_pages::run<hybrid_pages::Cursor<Strided>, hybrid_pages::Nowhere>(
        paging, paging.strided, paging.strided_count, paging.packed, paging.packed_count);
}
