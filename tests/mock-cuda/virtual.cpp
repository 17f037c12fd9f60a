// Virtual memory of a device: addresses that are reserved, and memory that is mapped there and unmapped again.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "mock.h"

namespace {

constexpr uint64_t GRANULE = 2 << 20;

struct Allocation {
    int file;
    uint64_t bytes;
};

std::map<CUmemGenericAllocationHandle, Allocation>& allocations =
    *new std::map<CUmemGenericAllocationHandle, Allocation>;

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

bool is_whole(uint64_t value) { return value % GRANULE == 0; }

bool is_on_a_device(const CUmemLocation& location) {
    bool known = location.id >= 0 && location.id < static_cast<int>(mock.contexts.size());
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && known;
}

bool is_usual(const CUmemAllocationProp& prop) {
    return prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && is_on_a_device(prop.location);
}

/// Leaves addresses without memory.
bool clear(uint64_t address, uint64_t bytes) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    return mmap(pointer(address), bytes, PROT_NONE, how, -1, 0) != MAP_FAILED;
}

}  // namespace

EXPORT CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* prop, int) {
    return call("cuMemGetAllocationGranularity", PLAIN, [&](Lock&) -> CUresult {
        if (!is_usual(*prop)) return CUDA_ERROR_INVALID_VALUE;
        *bytes = GRANULE;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags) {
    return call("cuMemAddressReserve", PLAIN, [&](Lock&) -> CUresult {
        bool odd = bytes == 0 || !is_whole(bytes) || alignment > GRANULE || wanted || flags;
        if (odd) return CUDA_ERROR_INVALID_VALUE;
        int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* memory = mmap(nullptr, bytes + GRANULE, PROT_NONE, how, -1, 0);
        if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        auto first = reinterpret_cast<uint64_t>(memory);
        *address = (first + GRANULE - 1) / GRANULE * GRANULE;
        if (*address > first) munmap(memory, *address - first);
        munmap(pointer(*address + bytes), first + GRANULE - *address);
        reserve(*address, bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return call("cuMemAddressFree", PLAIN, [&](Lock&) -> CUresult {
        if (!unreserve(address)) return CUDA_ERROR_INVALID_VALUE;
        munmap(pointer(address), bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                            unsigned long long flags) {
    return call("cuMemCreate", CONTEXT, [&](Lock&) -> CUresult {
        if (bytes == 0 || !is_whole(bytes) || !is_usual(*prop) || flags) return CUDA_ERROR_INVALID_VALUE;
        static CUmemGenericAllocationHandle count = 0;
        int file = memfd_create("mock-cuda", MFD_CLOEXEC);
        if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        if (ftruncate(file, static_cast<off_t>(bytes))) {
            close(file);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *handle = ++count;
        allocations[*handle] = Allocation{file, bytes};
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return call("cuMemRelease", PLAIN, [&](Lock&) -> CUresult {
        auto found = allocations.find(handle);
        if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
        close(found->second.file);
        allocations.erase(found);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    return call("cuMemMap", PLAIN, [&](Lock&) -> CUresult {
        auto found = allocations.find(handle);
        bool whole = found != allocations.end() && found->second.bytes == bytes && offset == 0 && flags == 0;
        if (!whole || !is_whole(address) || !is_reserved(address, bytes, true)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        int how = MAP_SHARED | MAP_FIXED;
        void* memory = mmap(pointer(address), bytes, PROT_NONE, how, found->second.file, 0);
        return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
    return call("cuMemSetAccess", CONTEXT, [&](Lock&) -> CUresult {
        bool usual = count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
                     is_on_a_device(access->location);
        if (!usual || !is_reserved(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        if (mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE)) return CUDA_ERROR_INVALID_VALUE;
        std::memset(pointer(address), 0xa5, bytes);
        map(address, bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return call("cuMemUnmap", PLAIN | STALLS, [&](Lock&) -> CUresult {
        if (!is_whole(address) || !is_reserved(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        bool done = unmap(address, bytes, [&] { return clear(address, bytes); });
        return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    });
}
