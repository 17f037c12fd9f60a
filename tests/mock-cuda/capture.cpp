// Stream capture: who may do what while some stream is being captured.

#include "mock.h"

namespace {

thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult begin(CUstream handle) {
    CUresult error = CUDA_SUCCESS;
    auto stream = current() ? find_stream(handle, error) : nullptr;
    if (!stream || stream->capturing) return CUDA_ERROR_INVALID_HANDLE;
    stream->capturing = true;
    stream->invalidated = false;
    stream->capturer = std::this_thread::get_id();
    return CUDA_SUCCESS;
}

CUresult end(CUstream handle) {
    CUresult error = CUDA_SUCCESS;
    auto stream = current() ? find_stream(handle, error) : nullptr;
    if (!stream || !stream->capturing) return CUDA_ERROR_INVALID_HANDLE;
    stream->capturing = false;
    return stream->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

}  // namespace

bool capture_allows(const char* name) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return true;
    bool allowed = true;
    for (const auto& [handle, stream] : mock.streams) {
        if (!stream->capturing) continue;
        // A mode of its own lets a thread ignore the captures of others.
        bool own = stream->capturer == std::this_thread::get_id();
        if (thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !own) continue;
        stream->invalidated = true;
        allowed = false;
    }
    if (!allowed) {
        ++mock.history["invalidated"];
        mock.history[std::string("invalidated by ") + name]++;
    }
    return allowed;
}

CUresult capture_check(const std::shared_ptr<Stream>& stream) {
    if (stream->capturing && stream->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream != stream->context->legacy) return CUDA_SUCCESS;
    for (const auto& [handle, other] : mock.streams) {
        bool blocking = !(other->flags & CU_STREAM_NON_BLOCKING);
        if (!other->capturing || !blocking || other->context != stream->context) continue;
        other->invalidated = true;
        ++mock.history["invalidated"];
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int* status) {
    return call("cuStreamIsCapturing", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        for (const auto& [key, other] : mock.streams) {
            bool blocking = !(other->flags & CU_STREAM_NON_BLOCKING);
            bool ours = other->context == stream->context;
            if (stream == stream->context->legacy && ours && blocking && other->capturing) {
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
        *status = !stream->capturing ? 0 : stream->invalidated ? 2 : 1;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    return call("cuThreadExchangeStreamCaptureMode", PLAIN, [&](Lock&) -> CUresult {
        if (*mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
        std::swap(*mode, thread_mode);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    return call("cuStreamBeginCapture_v2", CONTEXT, [&](Lock&) -> CUresult {
        // The mock knows no other.
        if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
        return begin(handle);
    });
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    return call("cuStreamEndCapture", CONTEXT, [&](Lock&) -> CUresult {
        static char nothing;
        CUresult result = end(handle);
        *graph = result == CUDA_SUCCESS ? &nothing : nullptr;
        return result;
    });
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    return call("cuGraphDestroy", PLAIN, [&](Lock&) { return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}

// ---- what tests control ----

/// Begins capturing a stream of the current context, in mode GLOBAL.
EXPORT CUresult mock_cuda_begin_capture(CUstream handle) {
    Lock lock(mock.mutex);
    return begin(handle);
}

/// Ends it: 901 where something has invalidated it.
EXPORT CUresult mock_cuda_end_capture(CUstream handle) {
    Lock lock(mock.mutex);
    return end(handle);
}
