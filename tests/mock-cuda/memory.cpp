// Memory: what is allocated, registered or flagged, and whether a copy or a kernel may touch it.
// Memory of a device is memory of the host, poisoned before it is given out and after it is freed.

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <shared_mutex>

#include "mock.h"

namespace {

enum class Kind { DEVICE, ALLOCATED, REGISTERED };

struct Range {
    uint64_t bytes;
    Kind kind;
    Context* context;
    unsigned flags;
};

using Ranges = std::map<uint64_t, Range>;

std::shared_mutex& in_use = *new std::shared_mutex;
Ranges& ranges = *new Ranges;
Ranges& pageable = *new Ranges;  // what tests flagged; empty: any memory
Ranges& reserved = *new Ranges;  // addresses without memory, until some is mapped there
Ranges& unpinnable = *new Ranges;

using Writer = std::unique_lock<std::shared_mutex>;

/// The range that holds all of the bytes.
const Range* holding(const Ranges& all, uint64_t address, uint64_t bytes) {
    auto after = all.upper_bound(address);
    if (after == all.begin()) return nullptr;
    const auto& [start, range] = *std::prev(after);
    bool inside = address - start <= range.bytes && bytes <= range.bytes - (address - start);
    return inside ? &range : nullptr;
}

bool overlaps(const Ranges& all, uint64_t address, uint64_t bytes) {
    auto after = all.lower_bound(address + bytes);
    return after != all.begin() && std::prev(after)->first + std::prev(after)->second.bytes > address;
}

CUresult allocate(uint64_t bytes, Kind kind, unsigned flags, uint64_t* address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (uint64_t{1} << 36)) return CUDA_ERROR_OUT_OF_MEMORY;
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(memory, 0xa5, bytes);
    Writer writer(in_use);
    *address = reinterpret_cast<uint64_t>(memory);
    ranges[*address] = Range{bytes, kind, current(), flags};
    return CUDA_SUCCESS;
}

CUresult release(uint64_t address, Kind kind) {
    Writer writer(in_use);
    auto found = ranges.find(address);
    if (found == ranges.end() || found->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
    void* memory = reinterpret_cast<void*>(address);
    std::memset(memory, 0xdd, found->second.bytes);
    ranges.erase(found);
    std::free(memory);
    return CUDA_SUCCESS;
}

/// Mapped pieces that lie side by side are one to a copy or a kernel.
bool is_mapped(const Context& context, uint64_t address, uint64_t bytes) {
    for (uint64_t next = address; next < address + bytes;) {
        auto after = ranges.upper_bound(next);
        if (after == ranges.begin()) return false;
        const auto& [start, range] = *std::prev(after);
        if (range.kind != Kind::DEVICE || range.context != &context) return false;
        if (next >= start + range.bytes) return false;
        next = start + range.bytes;
    }
    return true;
}

bool is_kind(uint64_t address, bool device) {
    std::shared_lock<std::shared_mutex> reader(in_use);
    const Range* range = holding(ranges, address, 0);
    return range && (range->kind == Kind::DEVICE) == device;
}

}  // namespace

std::shared_ptr<void> memory_in_use() {
    return std::make_shared<std::shared_lock<std::shared_mutex>>(in_use);
}

bool accessible(const Context& context, uint64_t address, uint64_t bytes, Use use) {
    if (bytes == 0) return true;
    if (const Range* range = holding(ranges, address, bytes)) {
        if (range->kind == Kind::DEVICE) return range->context == &context;
        bool portable = range->flags & CU_MEMHOSTREGISTER_PORTABLE;
        bool mapped = range->flags & CU_MEMHOSTREGISTER_DEVICEMAP;
        return (portable || range->context == &context) && (mapped || use == Use::COPY);
    }
    if (holding(reserved, address, 1)) return is_mapped(context, address, bytes);
    if (use == Use::KERNEL || overlaps(ranges, address, bytes)) return false;
    return pageable.empty() || holding(pageable, address, bytes);
}

bool is_device(uint64_t address) { return is_kind(address, true); }

bool is_pinned(uint64_t address) { return is_kind(address, false); }

void reserve(uint64_t address, uint64_t bytes) {
    Writer writer(in_use);
    reserved[address] = Range{bytes, Kind::DEVICE, nullptr, 0};
}

bool unreserve(uint64_t address) {
    Writer writer(in_use);
    return reserved.erase(address) > 0;
}

bool is_reserved(uint64_t address, uint64_t bytes, bool empty) {
    std::shared_lock<std::shared_mutex> reader(in_use);
    return holding(reserved, address, bytes) && (!empty || !overlaps(ranges, address, bytes));
}

void map(uint64_t address, uint64_t bytes) {
    Writer writer(in_use);
    ranges[address] = Range{bytes, Kind::DEVICE, current(), 0};
}

bool unmap(uint64_t address, uint64_t bytes, const std::function<bool()>& release) {
    Writer writer(in_use);
    auto first = ranges.lower_bound(address), last = ranges.lower_bound(address + bytes);
    ranges.erase(first, last);
    return release();
}

long live_memory(const std::string& name) {
    std::shared_lock<std::shared_mutex> reader(in_use);
    const std::map<std::string, Kind> kinds = {{"device_memory", Kind::DEVICE},
                                               {"host_memory", Kind::ALLOCATED},
                                               {"registrations", Kind::REGISTERED}};
    auto kind = kinds.find(name);
    if (kind == kinds.end()) return -1;
    long count = 0;
    for (const auto& [address, range] : ranges) count += range.kind == kind->second;
    return count;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return call("cuMemAlloc_v2", CONTEXT | UNSAFE | STALLS, [&](Lock&) -> CUresult {
        uint64_t place = 0;
        CUresult result = allocate(bytes, Kind::DEVICE, 0, &place);
        *address = place;
        return result;
    });
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return call("cuMemFree_v2", CONTEXT | UNSAFE | RELEASE | STALLS, [&](Lock& lock) {
        drain_all(lock);
        return release(address, Kind::DEVICE);
    });
}

EXPORT CUresult cuMemGetInfo_v2(size_t* unused, size_t* all) {
    return call("cuMemGetInfo_v2", CONTEXT, [&](Lock&) {
        *all = size_t{1} << 36;
        *unused = *all / 2;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
    return call("cuMemHostAlloc", CONTEXT | UNSAFE | STALLS, [&](Lock&) -> CUresult {
        uint64_t place = 0;
        CUresult result = allocate(bytes, Kind::ALLOCATED, flags, &place);
        *address = reinterpret_cast<void*>(place);
        return result;
    });
}

EXPORT CUresult cuMemFreeHost(void* address) {
    return call("cuMemFreeHost", CONTEXT | UNSAFE | RELEASE | STALLS, [&](Lock& lock) {
        drain_all(lock);
        return release(reinterpret_cast<uint64_t>(address), Kind::ALLOCATED);
    });
}

EXPORT CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
    return call("cuMemHostRegister_v2", CONTEXT | UNSAFE, [&](Lock&) -> CUresult {
        auto address = reinterpret_cast<uint64_t>(memory);
        if (bytes == 0 || flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
        if (setting("NO_PINNING", 0)) return CUDA_ERROR_OUT_OF_MEMORY;
        long most = setting("REGISTER_MOST", 0);
        if (most && bytes > static_cast<size_t>(most)) return CUDA_ERROR_OPERATING_SYSTEM;
        if (overlaps(unpinnable, address, bytes)) return CUDA_ERROR_OPERATING_SYSTEM;
        // Every other call waits for it: the mock's mutex is held, as the driver's is.
        long pause = setting("REGISTER_US", 0) * static_cast<long>((bytes >> 20) + 1);
        std::this_thread::sleep_for(std::chrono::microseconds(pause));
        Writer writer(in_use);
        // Registrations share no page.
        uint64_t page = static_cast<uint64_t>(setting("PAGE_BYTES", 4096));
        uint64_t first = address / page * page, end = (address + bytes + page - 1) / page * page;
        for (const auto& [start, range] : ranges) {
            if (range.kind != Kind::REGISTERED) continue;
            uint64_t from = start / page * page, to = (start + range.bytes + page - 1) / page * page;
            if (from < end && first < to) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
        ranges[address] = Range{bytes, Kind::REGISTERED, current(), flags};
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostUnregister(void* memory) {
    return call("cuMemHostUnregister", CONTEXT | UNSAFE | RELEASE | STALLS, [&](Lock& lock) -> CUresult {
        drain_all(lock);
        Writer writer(in_use);
        auto found = ranges.find(reinterpret_cast<uint64_t>(memory));
        if (found == ranges.end() || found->second.kind != Kind::REGISTERED) {
            return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        }
        ranges.erase(found);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* mapped, void* host, unsigned flags) {
    return call("cuMemHostGetDevicePointer_v2", CONTEXT, [&](Lock&) -> CUresult {
        auto address = reinterpret_cast<uint64_t>(host);
        auto reading = memory_in_use();
        const Range* range = holding(ranges, address, 1);
        bool mappable = range && range->kind != Kind::DEVICE &&
                        range->flags & CU_MEMHOSTREGISTER_DEVICEMAP;
        if (!mappable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
        *mapped = address;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr address) {
    return call("cuPointerGetAttribute", CONTEXT, [&](Lock&) -> CUresult {
        auto reading = memory_in_use();
        const Range* range = holding(ranges, address, 1);
        if (!range) return CUDA_ERROR_INVALID_VALUE;
        bool device = range->kind == Kind::DEVICE;
        switch (attribute) {
            case 1: *static_cast<CUcontext*>(data) = range->context; break;
            case 2: *static_cast<unsigned*>(data) = device ? 2 : 1; break;
            case 9: *static_cast<int*>(data) = range->context->device; break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}

// ---- what tests control ----

/// From now on, registering any of such memory fails; with null, all memory can be registered again.
EXPORT void mock_cuda_unpinnable(void* memory, size_t bytes) {
    Writer writer(in_use);
    if (!memory) return unpinnable.clear();
    unpinnable[reinterpret_cast<uint64_t>(memory)] = Range{bytes, Kind::REGISTERED, nullptr, 0};
}

/// From now on, a copy may touch only such memory of the host, beside what is pinned.
EXPORT void mock_cuda_flag_pageable(void* memory, size_t bytes) {
    Writer writer(in_use);
    pageable[reinterpret_cast<uint64_t>(memory)] = Range{bytes, Kind::ALLOCATED, nullptr, 0};
}
