// The way into every driver function: counting, injected errors, and what a call needs.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "mock.h"

Mock& mock = *new Mock;

namespace {

enum Mode { ONCE = 0, STICKY = 1, LATE = 2 };

struct Fault {
    long calls;  // until it strikes
    CUresult code;
    int mode;
};

std::atomic<pid_t> home{0};  // the process that started the driver; its forks can't use it
std::atomic<long> foreign_calls{0};
std::multimap<std::string, Fault> faults;
std::map<std::string, long> calls_of;
std::map<std::string, long> settings;
thread_local CUresult late_fault = CUDA_SUCCESS;
thread_local int outside = 0;  // of the engine: a test's own calls may stall

/// The code that this call must fail with; `mode` says how.
CUresult strike(const std::string& name, int& mode) {
    CUresult code = CUDA_SUCCESS;
    auto [fault, end] = faults.equal_range(name);
    while (fault != end) {
        if (--fault->second.calls > 0) {
            ++fault;
            continue;
        }
        code = fault->second.code;
        mode = fault->second.mode;
        fault = faults.erase(fault);
    }
    return code;
}

/// `MOCK_CUDA_FAIL=function:nth:code:mode;...`
[[maybe_unused]] const bool configured = [] {
    std::istringstream all(std::getenv("MOCK_CUDA_FAIL") ? std::getenv("MOCK_CUDA_FAIL") : "");
    for (std::string one; std::getline(all, one, ';');) {
        char name[64];
        Fault fault{1, CUDA_ERROR_UNKNOWN, ONCE};
        int found = std::sscanf(one.c_str(), "%63[^:]:%ld:%d:%d", name, &fault.calls, &fault.code,
                                &fault.mode);
        if (found >= 1) faults.emplace(name, fault);
    }
    mock.delay_us = static_cast<int>(setting("DELAY_US", 0));
    mock.seed = static_cast<uint64_t>(setting("SEED", 1));
    return true;
}();

bool is_foreign() {
    pid_t started = home;
    return started != 0 && started != getpid();
}

}  // namespace

void note_start() { home = getpid(); }

long setting(const char* name, long otherwise) {
    if (auto found = settings.find(name); found != settings.end()) return found->second;
    const char* text = std::getenv((std::string("MOCK_CUDA_") + name).c_str());
    return text ? std::strtol(text, nullptr, 10) : otherwise;
}

void violation(const std::string& what) {
    std::fprintf(stderr, "mock CUDA: %s\n", what.c_str());
    ++mock.violations;
}

CUresult take_late_fault() { return std::exchange(late_fault, CUDA_SUCCESS); }

void fail_context(Context& context, CUresult code) {
    CUresult none = CUDA_SUCCESS;
    if (context.sticky.compare_exchange_strong(none, code)) ++context.breaks;
    mock.changed.notify_all();
}

CUresult call(const char* name, unsigned traits, const std::function<CUresult(Lock&)>& body) {
    if (is_foreign()) {
        // The mutex may be locked for ever by a thread that a fork left behind.
        ++foreign_calls;
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    Lock lock(mock.mutex);
    ++calls_of[name];
    int mode = ONCE;
    CUresult fault = strike(name, mode);
    if (!mock.initialised && !(traits & BEFORE_INIT)) return CUDA_ERROR_NOT_INITIALIZED;
    if (fault == CUDA_SUCCESS && (traits & CONTEXT)) {
        Context* context = current();
        fault = context ? context->sticky.load() : CUDA_ERROR_INVALID_CONTEXT;
    }
    if ((traits & STALLS) && outside == 0 && setting("SERVING", 0)) {
        violation(std::string(name) + " while the device serves");
    }
    if (fault == CUDA_SUCCESS && (traits & UNSAFE) && !capture_allows(name)) {
        fault = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (fault != CUDA_SUCCESS && mode != ONCE && current()) {
        if (mode == LATE) {
            late_fault = fault;
            CUresult result = body(lock);
            late_fault = CUDA_SUCCESS;
            return result;
        }
        fail_context(*current(), fault);
    }
    if (fault == CUDA_SUCCESS) return body(lock);
    if (traits & RELEASE) body(lock);
    return fault;
}

// ---- what tests control ----

/// From now on, call number `nth` (from 1) of a function fails with a code: only itself (0), with
/// every later call of its context (1), or by what it put into a stream, when that runs (2).
EXPORT void mock_cuda_fail(const char* function, long nth, CUresult code, int mode) {
    Lock lock(mock.mutex);
    faults.emplace(function, Fault{nth, code, mode});
}

/// From here to the matching -1, this thread's calls are none of an engine's.
EXPORT void mock_cuda_outside(int change) { outside += change; }

/// Calls of a function since the last reset; of all functions for null.
EXPORT long mock_cuda_calls(const char* function) {
    if (is_foreign()) return foreign_calls;
    Lock lock(mock.mutex);
    if (function) return calls_of[function];
    long all = 0;
    for (const auto& [name, calls] : calls_of) all += calls;
    return all;
}

/// Live objects (contexts, streams, events, modules, device_memory, host_memory, registrations),
/// or what was counted since the last reset (violations, invalidated, captured, largest_grid, deepest_queue).
EXPORT long mock_cuda_count(const char* what) {
    Lock lock(mock.mutex);
    std::string name(what);
    long references = 0;
    for (const Context& context : mock.contexts) references += context.references;
    if (name == "violations") return mock.violations;
    if (name == "contexts") return references;
    if (name == "streams") return static_cast<long>(mock.streams.size());
    if (name == "events") return static_cast<long>(mock.events.size());
    if (name == "modules") return static_cast<long>(mock.modules.size());
    long live = live_memory(name);
    return live >= 0 ? live : mock.history[name];
}

/// Longest pause before and within each operation of a stream, and where its randomness starts.
EXPORT void mock_cuda_delay(int microseconds, uint64_t seed) {
    mock.delay_us = microseconds;
    mock.seed = seed;
}

/// Sets what is else taken from the environment: a variable without its `MOCK_CUDA_`.
EXPORT void mock_cuda_set(const char* name, long value) {
    Lock lock(mock.mutex);
    settings[name] = value;
}

/// Forgets faults, settings, counts, delays and sticky errors; live objects stay.
EXPORT void mock_cuda_reset() {
    Lock lock(mock.mutex);
    faults.clear();
    settings.clear();
    calls_of.clear();
    mock.history.clear();
    mock.violations = 0;
    mock.delay_us = 0;
    for (Context& context : mock.contexts) context.sticky = CUDA_SUCCESS;
}
