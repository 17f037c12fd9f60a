// Modules and launches: the real kernels of csrc/, run where their turn in a stream comes, after
// every address that they will touch has been checked.

#include <algorithm>
#include <cstring>

#include "mock.h"

// Blocks of one thread each, on as many streams as there are: what they share is the stream's.
#include "../kernels/shim.h"
#undef __shared__
#define __shared__ static thread_local
#include "../../csrc/paging.cu"

__thread shim::Index threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads() {}

struct Function {
    const char* name;
    void (*kernel)(hybrid_pages::Paging);
    bool packed;
};

namespace {

using hybrid_pages::Packed;
using hybrid_pages::Paging;
using hybrid_pages::Strided;
using hybrid_pages::TILE;

Function functions[] = {
    {"hybrid_pages_gather", hybrid_pages_gather, true},
    {"hybrid_pages_scatter", hybrid_pages_scatter, true},
    {"hybrid_pages_digest", hybrid_pages_digest, false},
    {"spin", nullptr, false},  // of benches/paging/driver.py: for so many nanoseconds
};

/// Waits as a kernel that spins does. One that has a block for each multiprocessor holds them all.
void spin(const Turn& turn, const Stream* stream, uint64_t nanoseconds, bool everywhere) {
    if (turn.is_over()) return;
    if (everywhere) enter_pass(turn, stream);
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
    if (everywhere) leave_pass(stream);
}

/// Code of Tegra (Orin) runs on no other GPU, nor that of others on Tegra.
bool fits(long target) {
    long capability = setting("CAPABILITY", 90);
    bool same_kind = (target == 87) == (capability == 87);
    return target / 10 == capability / 10 && target % 10 <= capability % 10 && same_kind;
}

/// A cubin says its architecture in the low or, since 2025, the second byte of its ELF flags; PTX in
/// its `.target` line.
CUresult check_image(const char* image) {
    if (std::memcmp(image, "\177ELF", 4) == 0) {
        uint32_t flags;
        std::memcpy(&flags, image + 48, sizeof flags);
        bool ours = fits(flags & 0xff) || fits(flags >> 8 & 0xff);
        bool refused = setting("NO_CUBIN", 0);
        return ours && !refused ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const char* target = std::strstr(image, ".target sm_");
    if (!target || !std::strstr(image, ".version")) return CUDA_ERROR_INVALID_IMAGE;
    if (setting("NO_PTX", 0)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    bool ours = std::strtol(target + 11, nullptr, 10) <= setting("CAPABILITY", 90);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

bool reaches(const Context& context, const Strided& piece) {
    if (piece.bytes == 0 || piece.run == 0 || piece.reserved || piece.bytes % piece.run) return false;
    for (uint64_t run = 0; run < piece.bytes / piece.run; ++run) {
        uint64_t address = piece.address + run * static_cast<uint64_t>(piece.stride);
        if (!accessible(context, address, piece.run, Use::KERNEL)) return false;
    }
    return true;
}

bool reaches(const Context& context, const Packed& piece) {
    return piece.bytes > 0 && accessible(context, piece.address, piece.bytes, Use::KERNEL);
}

/// Sorted, disjoint, and every byte where the device may go.
template <typename Piece>
bool is_sound(const Context& context, const Piece* pieces, uint64_t count) {
    if (!accessible(context, reinterpret_cast<uint64_t>(pieces), count * sizeof(Piece), Use::KERNEL)) {
        return false;
    }
    uint64_t end = 0;
    for (uint64_t i = 0; i < count; ++i) {
        if (pieces[i].position < end || !reaches(context, pieces[i])) return false;
        end = pieces[i].position + pieces[i].bytes;
    }
    return true;
}

bool is_sound(const Context& context, const Function& function, const Paging& paging) {
    uint64_t digests = reinterpret_cast<uint64_t>(paging.digests);
    return is_sound(context, paging.strided, paging.strided_count) &&
           (!function.packed || is_sound(context, paging.packed, paging.packed_count)) &&
           (!digests || accessible(context, digests, 8 * paging.tile_count, Use::KERNEL));
}

void spoil(uint64_t address) { *reinterpret_cast<unsigned char*>(address) += 1; }

/// What WRONG asks for, in kernels of which all else is right: 1 a byte that a gather wrote, 2 one that a scatter
/// wrote, 3 one beside those, 4, 5 and 6 the last digest of a gather, a scatter, a digest.
void go_wrong(const Function& function, const Paging& paging, long wrong) {
    long kernel = &function - functions;
    const Strided& strided = paging.strided[paging.strided_count - 1];
    if (wrong == 1 && kernel == 0) spoil(paging.packed[paging.packed_count - 1].address);
    if (wrong == 2 && kernel == 1) spoil(strided.address);
    if (wrong == 3 && kernel == 1) spoil(strided.address + strided.run);
    if (wrong == kernel + 4 && paging.digests) paging.digests[paging.tile_count - 1] += 1;
}

void run(const Turn& turn, const Function& function, const Paging& paging, unsigned grid, long wrong) {
    auto using_it = memory_in_use();
    if (turn.is_over()) return;
    if (!is_sound(turn.context, function, paging)) {
        violation(std::string(function.name) + " leaves its memory, or its lists are not in order");
        fail_context(turn.context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    blockDim = {1, 1, 1};
    gridDim = {grid, 1, 1};
    for (unsigned block = 0; block < grid; ++block) {
        blockIdx = {block, 0, 0};
        function.kernel(paging);
    }
    go_wrong(function, paging, wrong);
}

}  // namespace

EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, int*, void**) {
    return call("cuModuleLoadDataEx", CONTEXT | UNSAFE | STALLS, [&](Lock&) -> CUresult {
        if (CUresult refused = check_image(static_cast<const char*>(image))) return refused;
        *module = new Module{current()};
        mock.modules.insert(*module);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    return call("cuModuleUnload", CONTEXT | UNSAFE | RELEASE | STALLS, [&](Lock&) -> CUresult {
        if (!mock.modules.erase(module)) return CUDA_ERROR_INVALID_HANDLE;
        delete module;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return call("cuModuleGetFunction", CONTEXT, [&](Lock&) -> CUresult {
        if (!mock.modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
        for (Function& one : functions) {
            if (std::strcmp(one.name, name) != 0) continue;
            *function = &one;
            return CUDA_SUCCESS;
        }
        return CUDA_ERROR_NOT_FOUND;
    });
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    return call("cuFuncSetAttribute", CONTEXT, [&](Lock&) -> CUresult {
        constexpr int MOST_SHARED_BYTES = 8;
        bool known = attribute == MOST_SHARED_BYTES && value >= 0 && value <= 232448;
        return function && known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid, unsigned grid_y, unsigned grid_z,
                               unsigned threads, unsigned threads_y, unsigned threads_z, unsigned,
                               CUstream handle, void** parameters, void** extra) {
    return call("cuLaunchKernel", CONTEXT, [&](Lock&) -> CUresult {
        bool flat = grid_y == 1 && grid_z == 1 && threads_y == 1 && threads_z == 1 && !extra;
        bool bounded = grid >= 1 && threads >= 1 && threads <= hybrid_pages::THREADS;
        bool known = std::any_of(std::begin(functions), std::end(functions),
                                 [&](Function& one) { return &one == function; });
        if (!known) return CUDA_ERROR_INVALID_HANDLE;
        if (!flat || !bounded) return CUDA_ERROR_INVALID_VALUE;
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (CUresult refused = capture_check(stream)) return refused;
        if (!function->kernel) {
            uint64_t nanoseconds;
            std::memcpy(&nanoseconds, parameters[0], sizeof nanoseconds);
            bool everywhere = grid >= setting("MULTIPROCESSORS", 16);
            enqueue(stream, [on = stream.get(), nanoseconds, everywhere](const Turn& turn) {
                spin(turn, on, nanoseconds, everywhere);
            });
            return CUDA_SUCCESS;
        }
        Paging paging;
        std::memcpy(&paging, parameters[0], sizeof paging);
        mock.history["largest_grid"] = std::max<long>(mock.history["largest_grid"], grid);
        std::chrono::microseconds pause(setting("KERNEL_US", 0));
        long wrong = setting("WRONG", 0);
        auto in = [on = stream.get(), priority = stream->priority](const Turn& turn) {
            await_pass(turn, on, priority);
        };
        enqueue(stream, [function, paging, grid, pause, wrong, in](const Turn& turn) {
            in(turn);
            std::this_thread::sleep_for(pause);
            run(turn, *function, paging, grid, wrong);
        });
        return CUDA_SUCCESS;
    });
}
