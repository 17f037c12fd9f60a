// Devices, their primary contexts, the contexts of each thread, and the names of errors.

#include <cstdio>
#include <cstring>

#include "mock.h"

namespace {

thread_local std::vector<Context*> stack;

bool is_device_number(CUdevice device) {
    return device >= 0 && static_cast<size_t>(device) < mock.contexts.size();
}

bool is_alive(CUcontext context) {
    for (Context& one : mock.contexts) {
        if (&one == context) return one.references > 0;
    }
    return false;
}

struct Name {
    CUresult code;
    const char* name;
    const char* text;
};

const Name names[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Name* find_name(CUresult code) {
    for (const Name& name : names) {
        if (name.code == code) return &name;
    }
    return nullptr;
}

}  // namespace

Context* current() {
    if (stack.empty() || !is_alive(stack.back())) return nullptr;
    return stack.back();
}

EXPORT CUresult cuInit(unsigned flags) {
    return call("cuInit", BEFORE_INIT, [&](Lock&) -> CUresult {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        long devices = setting("DEVICES", 2);
        if (devices == 0) return CUDA_ERROR_NO_DEVICE;
        if (mock.initialised) return CUDA_SUCCESS;
        mock.initialised = true;
        note_start();
        mock.contexts = std::vector<Context>(devices);
        for (long i = 0; i < devices; ++i) mock.contexts[i].device = static_cast<CUdevice>(i);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", BEFORE_INIT, [&](Lock&) -> CUresult {
        *version = static_cast<int>(setting("DRIVER_VERSION", 12080));
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", PLAIN, [&](Lock&) -> CUresult {
        *count = static_cast<int>(mock.contexts.size());
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return call("cuDeviceGet", PLAIN, [&](Lock&) -> CUresult {
        if (!is_device_number(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    return call("cuDeviceGetName", PLAIN, [&](Lock&) -> CUresult {
        if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
        std::snprintf(name, static_cast<size_t>(length), "Mock GPU");
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return call("cuDeviceGetUuid_v2", PLAIN, [&](Lock&) -> CUresult {
        if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
        std::memset(uuid->bytes, 0x5a, sizeof uuid->bytes);
        uuid->bytes[15] = static_cast<char>(device);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    return call("cuDeviceGetAttribute", PLAIN, [&](Lock&) -> CUresult {
        if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
        long capability = setting("CAPABILITY", 90);
        switch (attribute) {
            case 1: *value = 1024; break;              // threads a block
            case 10: *value = 32; break;               // warp size
            case 16: *value = static_cast<int>(setting("MULTIPROCESSORS", 16)); break;
            case 18: *value = static_cast<int>(setting("INTEGRATED", 0)); break;
            case 15: case 19: case 31: case 41: case 91: case 99: *value = 1; break;
            case 33: *value = 0x10 + device; break;    // PCI bus
            case 34: case 50: *value = 0; break;       // PCI device and domain
            case 39: *value = 2048; break;             // threads a multiprocessor
            case 40: *value = 3; break;                // copy engines
            case 75: *value = static_cast<int>(capability / 10); break;
            case 76: *value = static_cast<int>(capability % 10); break;
            case 97: *value = 232448; break;           // bytes of shared memory, for a block that asks for them
            case 106: *value = 32; break;              // blocks a multiprocessor
            case 134:                                  // NUMA node of the host
                if (setting("NUMA_NODE", -2) < -1) return CUDA_ERROR_INVALID_VALUE;
                *value = static_cast<int>(setting("NUMA_NODE", -2));
                break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return call("cuDevicePrimaryCtxRetain", PLAIN, [&](Lock&) -> CUresult {
        if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
        *context = &mock.contexts[device];
        ++(*context)->references;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return call("cuDevicePrimaryCtxRelease_v2", RELEASE, [&](Lock&) -> CUresult {
        if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
        Context& context = mock.contexts[device];
        if (context.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
        --context.references;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    return call("cuCtxPushCurrent_v2", PLAIN, [&](Lock&) -> CUresult {
        if (!is_alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
        stack.push_back(context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    return call("cuCtxPopCurrent_v2", RELEASE, [&](Lock&) -> CUresult {
        if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
        if (context) *context = stack.back();
        stack.pop_back();
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    return call("cuCtxSetCurrent", PLAIN, [&](Lock&) -> CUresult {
        if (context && !is_alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
        if (!stack.empty()) stack.pop_back();
        if (context) stack.push_back(context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return call("cuCtxGetStreamPriorityRange", CONTEXT, [&](Lock&) -> CUresult {
        if (least) *least = 0;
        if (greatest) *greatest = -5;
        return CUDA_SUCCESS;
    });
}

// Errors are named even in a forked child, and are never injected.
EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
    const Name* found = find_name(code);
    *name = found ? found->name : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
    const Name* found = find_name(code);
    *text = found ? found->text : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- what tests control ----

/// How many contexts the calling thread has pushed.
EXPORT long mock_cuda_depth() { return static_cast<long>(stack.size()); }
