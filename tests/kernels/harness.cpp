// Runs launches that come over stdin and answers with what they left in memory. See harness.rs,
// which writes and reads the stream.
//
// Every region, list and array of digests is an allocation of exactly its size. With
// HARNESS_POISONS, for AddressSanitizer, what the launch has no business with is poisoned inside
// regions, too.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "../../csrc/paging.h"
#include "launch.h"
#ifdef HARNESS_POISONS
#include <sanitizer/asan_interface.h>
#endif

using hybrid_pages::Packed;
using hybrid_pages::Paging;
using hybrid_pages::Strided;
using hybrid_pages::TILE;
using hybrid_pages::u64;

extern "C" void hybrid_pages_gather(Paging);
extern "C" void hybrid_pages_scatter(Paging);
extern "C" void hybrid_pages_digest(Paging);

namespace {

void read(void* into, std::size_t bytes) {
    if (bytes != 0 && std::fread(into, bytes, 1, stdin) != 1) {
        std::fputs("harness: the stream ends within a launch\n", stderr);
        std::exit(2);
    }
}

void write(const void* from, std::size_t bytes) {
    if (bytes != 0 && std::fwrite(from, bytes, 1, stdout) != 1) {
        std::exit(3);
    }
}

// `count` values, and not a byte more.
template <typename T>
struct Block {
    std::size_t count;
    std::unique_ptr<void, decltype(&std::free)> memory;

    explicit Block(std::size_t count)
        : count(count), memory(std::malloc(count * sizeof(T)), std::free) {}

    T* data() const { return static_cast<T*>(memory.get()); }
    std::size_t bytes() const { return count * sizeof(T); }
};

struct Header {
    u64 kernel, grid, block, blocks, together, threads, seed, first_tile, tile_count, digests,
        regions, strided, packed;
};

// A region, and which of its bytes the launch may touch.
struct Region {
    Block<unsigned char> block;
    std::vector<unsigned char> open;

    explicit Region(std::size_t bytes) : block(bytes), open(bytes) {}

    void poison() const {
#ifdef HARNESS_POISONS
        for (std::size_t begin = 0, end; begin < block.count; begin = end) {
            const void* const other =
                std::memchr(open.data() + begin, !open[begin], block.count - begin);
            end = other ? static_cast<const unsigned char*>(other) - open.data() : block.count;
            if (!open[begin]) {
                __asan_poison_memory_region(block.data() + begin, end - begin);
            }
        }
#endif
    }

    void heal() const {
#ifdef HARNESS_POISONS
        __asan_unpoison_memory_region(block.data(), block.bytes());
#endif
    }
};

struct Case {
    Header header;
    std::vector<Region> regions;

    // Where the launch's tiles begin and end in a piece, whatever of it lies outside.
    template <typename Piece>
    std::pair<u64, u64> window(const Piece& piece) const {
        const auto clamp = [&](u64 tile) {
            return std::clamp(tile * TILE, piece.position, piece.position + piece.bytes) -
                   piece.position;
        };
        return {clamp(header.first_tile), clamp(header.first_tile + header.tile_count)};
    }

    void open(Region& region, u64 offset, u64 bytes) {
        if (offset > region.block.count || bytes > region.block.count - offset) {
            std::fputs("harness: a piece leaves its region\n", stderr);
            std::exit(2);
        }
        std::memset(region.open.data() + offset, 1, bytes);
    }

    void open(Region& region, const Strided& piece) {
        const auto [begin, end] = window(piece);
        for (u64 at = begin, bytes; at < end; at += bytes) {
            const u64 steps = at / piece.run * static_cast<u64>(piece.stride);
            const u64 address = piece.address + steps + at % piece.run;
            bytes = std::min(piece.run - at % piece.run, end - at);
            open(region, address, bytes);
        }
    }

    void open(Region& region, const Packed& piece) {
        const auto [begin, end] = window(piece);
        open(region, piece.address + begin, end - begin);
    }

    // Reads a list whose addresses are offsets in regions.
    template <typename Piece>
    Block<Piece> list(std::size_t count, bool used) {
        Block<Piece> pieces(count);
        for (std::size_t i = 0; i < count; ++i) {
            Piece& piece = pieces.data()[i];
            u64 region;
            read(&region, sizeof region);
            read(&piece, sizeof piece);
            if (used) {
                open(regions.at(region), piece);
            }
            piece.address += reinterpret_cast<u64>(regions.at(region).block.data());
        }
        return pieces;
    }

    void run() {
        for (std::size_t i = 0; i < header.regions; ++i) {
            u64 bytes;
            read(&bytes, sizeof bytes);
            read(regions.emplace_back(bytes).block.data(), bytes);
        }
        const bool digest = header.kernel == 2;
        const Block<Strided> strided = list<Strided>(header.strided, true);
        const Block<Packed> packed = list<Packed>(header.packed, !digest);
        const Block<u64> digests(header.digests ? header.tile_count : 0);
        std::memset(digests.data(), 0xA5, digests.bytes());
        const Paging paging{strided.data(),
                            packed.data(),
                            static_cast<unsigned>(strided.count),
                            static_cast<unsigned>(packed.count),
                            header.first_tile,
                            header.tile_count,
                            header.digests ? digests.data() : nullptr};
        shim::Launch launch;
        launch.grid = static_cast<unsigned>(header.grid);
        launch.block = static_cast<unsigned>(header.block);
        launch.blocks = static_cast<shim::Order>(header.blocks);
        launch.together = header.together != 0;
        launch.threads = static_cast<shim::Order>(header.threads);
        launch.seed = header.seed;
        for (const Region& region : regions) {
            region.poison();
        }
        shim::run(header.kernel == 0   ? hybrid_pages_gather
                  : header.kernel == 1 ? hybrid_pages_scatter
                                       : hybrid_pages_digest,
                  paging, launch);
        for (const Region& region : regions) {
            region.heal();
            write(region.block.data(), region.block.bytes());
        }
        write(digests.data(), digests.bytes());
    }
};

}  // namespace

int main() {
    Header header;
    // A launch that does not end is a failure, too.
    const char* const limit = std::getenv("HARNESS_SECONDS");
    const unsigned seconds = limit ? std::atoi(limit) : 300;
    while (std::fread(&header, sizeof header, 1, stdin) == 1) {
        alarm(seconds);
        Case{header, {}}.run();
        alarm(0);
        std::fflush(stdout);
    }
}
