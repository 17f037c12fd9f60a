// Copies: at their place in a stream, or staged where the memory of the host is pageable.

#include <algorithm>
#include <cstring>
#include <optional>

#include "mock.h"

namespace {

using Bytes = std::vector<unsigned char>;

struct Copy {
    uint64_t target;
    uint64_t source;
    uint64_t bytes;
    /// Bytes read before their turn, where the caller allowed it.
    std::shared_ptr<Bytes> early;
};

enum class Way { ANY, TO_DEVICE, TO_HOST };

/// In two parts with a pause between, so that whoever looks too early sees a torn copy.
void move(const Turn& turn, const Copy& copy, long pause) {
    auto* target = reinterpret_cast<unsigned char*>(copy.target);
    auto* source = copy.early ? copy.early->data() : reinterpret_cast<unsigned char*>(copy.source);
    uint64_t first = copy.bytes ? roll(copy.bytes + 1) : 0;
    for (auto [from, to] : {std::pair{uint64_t{0}, first}, std::pair{first, copy.bytes}}) {
        if (from > 0) dawdle();
        std::this_thread::sleep_for(std::chrono::microseconds(pause));
        auto using_it = memory_in_use();
        if (turn.is_over()) return;
        bool whole =
            accessible(turn.context, copy.target + from, to - from, Use::COPY) &&
            (copy.early || accessible(turn.context, copy.source + from, to - from, Use::COPY));
        if (!whole) {
            violation("a copy of " + std::to_string(copy.bytes) + " bytes leaves its memory");
            fail_context(turn.context, CUDA_ERROR_ILLEGAL_ADDRESS);
            return;
        }
        std::memmove(target + from, source + from, to - from);
    }
}

std::shared_ptr<Bytes> read_now(const Context& context, const Copy& copy) {
    auto using_it = memory_in_use();
    if (!accessible(context, copy.source, copy.bytes, Use::COPY)) return nullptr;
    auto* source = reinterpret_cast<unsigned char*>(copy.source);
    return std::make_shared<Bytes>(source, source + copy.bytes);
}

/// The whole copy must lie in one piece of memory; the halves are checked again when it runs.
bool is_whole(const Context& context, const Copy& copy) {
    auto using_it = memory_in_use();
    return accessible(context, copy.target, copy.bytes, Use::COPY) &&
           accessible(context, copy.source, copy.bytes, Use::COPY);
}

CUresult start(Lock& lock, std::vector<Copy> copies, CUstream handle, Way way) {
    CUresult error = CUDA_SUCCESS;
    auto stream = find_stream(handle, error);
    if (!stream) return error;
    if (CUresult refused = capture_check(stream)) return refused;
    bool waits = false;
    bool whole = true;
    for (Copy& copy : copies) {
        if (copy.bytes == 0) continue;
        bool from_device = is_device(copy.source);
        bool to_device = is_device(copy.target);
        whole = whole && is_whole(*stream->context, copy) && (way != Way::TO_DEVICE || to_device) &&
                (way != Way::TO_HOST || from_device);
        bool pageable_source = !from_device && !is_pinned(copy.source);
        bool pageable_target = !to_device && !is_pinned(copy.target);
        // The driver stages pageable memory, which it may not do during a capture.
        if ((pageable_source || pageable_target) && !capture_allows("a pageable copy")) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        if (pageable_source && !copy.early) copy.early = read_now(*stream->context, copy);
        waits = waits || pageable_target;
    }
    long pause = setting("COPY_US", 0);
    enqueue(stream, [whole, pause, copies = std::move(copies)](const Turn& turn) {
        if (!whole && !turn.is_over()) {
            violation("a copy leaves its memory, or goes the other way");
            fail_context(turn.context, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        for (const Copy& copy : copies) move(turn, copy, pause);
    });
    if (waits && !stream->capturing) drain(lock, stream);
    return waits ? stream->context->sticky.load() : CUDA_SUCCESS;
}

CUresult copy_batch(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* first_of, size_t attribute_count,
                    size_t* failed, CUstream handle) {
    return call("cuMemcpyBatchAsync", CONTEXT, [&](Lock& lock) -> CUresult {
        if (failed) *failed = SIZE_MAX;
        bool legacy = reinterpret_cast<uintptr_t>(handle) <= 1;
        bool listed = count > 0 && attribute_count > 0 && attribute_count <= count && first_of[0] == 0;
        if (legacy || !listed) return CUDA_ERROR_INVALID_VALUE;
        std::vector<Copy> copies;
        size_t attribute = 0;
        for (size_t i = 0; i < count; ++i) {
            if (attribute + 1 < attribute_count && first_of[attribute + 1] == i) ++attribute;
            int order = attributes[attribute].srcAccessOrder;
            bool known = order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
            bool in_order = order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
            if (!known || sizes[i] == 0 || (is_device(sources[i]) && !in_order)) {
                if (failed) *failed = i;
                return CUDA_ERROR_INVALID_VALUE;
            }
            // Overlapping with compute slows down long copies: a driver takes it all the same.
            unsigned flags = attributes[attribute].flags;
            if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
            if (flags == 1 && sizes[i] > (128 << 10)) violation("a long copy that prefers to overlap");
            Copy copy{targets[i], sources[i], sizes[i], nullptr};
            bool early = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
                         (order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && roll(2) == 0);
            if (early && current()) copy.early = read_now(*current(), copy);
            copies.push_back(std::move(copy));
        }
        if (attribute + 1 != attribute_count) return CUDA_ERROR_INVALID_VALUE;
        // The copies of a batch have no order among themselves.
        for (size_t i = count; i > 1; --i) std::swap(copies[i - 1], copies[roll(i)]);
        if (long code = setting("REFUSE_BATCH", 0)) return static_cast<CUresult>(code);
        if (long code = setting("HALVE_BATCH", 0)) {
            copies.resize(count / 2);
            start(lock, std::move(copies), handle, Way::ANY);
            return static_cast<CUresult>(code);
        }
        return start(lock, std::move(copies), handle, Way::ANY);
    });
}

}  // namespace

EXPORT CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
    return call("cuMemcpyAsync", CONTEXT, [&](Lock& lock) {
        return start(lock, {{target, source, bytes, nullptr}}, stream, Way::ANY);
    });
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes,
                                     CUstream stream) {
    return call("cuMemcpyHtoDAsync_v2", CONTEXT, [&](Lock& lock) {
        auto from = reinterpret_cast<uint64_t>(source);
        return start(lock, {{target, from, bytes, nullptr}}, stream, Way::TO_DEVICE);
    });
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes,
                                     CUstream stream) {
    return call("cuMemcpyDtoHAsync_v2", CONTEXT, [&](Lock& lock) {
        auto to = reinterpret_cast<uint64_t>(target);
        return start(lock, {{to, source, bytes, nullptr}}, stream, Way::TO_HOST);
    });
}

EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t,
                                    int* status) {
    return call("cuGetProcAddress_v2", BEFORE_INIT, [&](Lock&) -> CUresult {
        *function = nullptr;
        if (std::strcmp(symbol, "cuMemcpyBatchAsync") != 0 || setting("NO_BATCH", 0)) {
            if (status) *status = 1;
            return CUDA_ERROR_NOT_FOUND;
        }
        // From 13000 on it is another function, which the mock lacks.
        bool fits = version >= 12080 && version < 13000 &&
                    setting("DRIVER_VERSION", 12080) >= 12080;
        if (status) *status = fits ? 0 : 2;
        if (!fits) return CUDA_ERROR_NOT_FOUND;
        *function = reinterpret_cast<void*>(&copy_batch);
        return CUDA_SUCCESS;
    });
}
