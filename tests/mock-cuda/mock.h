// Shared by the parts of the mock. One mutex guards everything but memory, which has its own:
// take `mock.mutex` first. Operations of streams run without it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver_api.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using Lock = std::unique_lock<std::mutex>;

struct Stream;

/// One for each device: its primary context.
struct Context {
    CUdevice device = 0;
    int references = 0;
    std::atomic<CUresult> sticky{CUDA_SUCCESS};
    /// How often it broke: what was given to streams before that never runs, even after a reset.
    std::atomic<uint64_t> breaks{0};
    std::shared_ptr<Stream> legacy;
};

/// A place in a stream that was reached or not.
struct Mark {
    bool reached = false;
    std::chrono::steady_clock::time_point at;
};

struct Event {
    Context* context;
    unsigned flags;
    std::shared_ptr<Mark> mark;
};

/// An operation's chance to run.
struct Turn {
    Context& context;
    uint64_t breaks;

    bool is_over() const { return context.breaks != breaks; }
};

struct Operation {
    std::function<void(const Turn&)> run;
    uint64_t breaks;
    std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> after;
};

struct Stream {
    Context* context;
    unsigned flags;
    int priority;
    uint64_t number;
    std::deque<Operation> queue;
    uint64_t enqueued = 0;
    uint64_t done = 0;
    bool closing = false;
    bool capturing = false;
    bool invalidated = false;
    std::thread::id capturer;
};

struct Module {
    Context* context;
};

struct Mock {
    std::mutex mutex;
    std::condition_variable changed;
    bool initialised = false;
    std::vector<Context> contexts;
    std::map<CUstream, std::shared_ptr<Stream>> streams;
    std::set<Event*> events;
    std::set<Module*> modules;
    std::map<std::string, long> history;  // what was counted since the last reset
    std::atomic<long> violations{0};      // counted by streams, which do not hold the mutex
    std::atomic<int> delay_us{0};
    std::atomic<uint64_t> seed{1};
};

/// Never destroyed: streams outlive `main`.
extern Mock& mock;

enum Trait : unsigned {
    PLAIN = 0,
    CONTEXT = 1,   // needs a current context that is whole
    UNSAFE = 2,    // may not run while another thread captures in mode GLOBAL
    RELEASE = 4,   // happens even where it reports an error
    BEFORE_INIT = 8,
    STALLS = 16,   // allocates, frees, waits for the device or asks it: not while it serves
};

/// Every driver function runs through here: counting, injected errors, context and capture.
CUresult call(const char* name, unsigned traits, const std::function<CUresult(Lock&)>& body);

/// The value that `mock_cuda_set` set, or the environment variable `MOCK_CUDA_...`, as a number: DEVICES,
/// CAPABILITY (90 for 9.0), MULTIPROCESSORS, INTEGRATED, DRIVER_VERSION, NUMA_NODE, NO_BATCH, NO_WORDS, NO_CUBIN,
/// NO_PTX, NO_PINNING, COPY_US and KERNEL_US, a pause before each; and what a driver is unkind in:
/// REGISTER_MOST, the bytes above which registering fails, REGISTER_US, for a MiB of it, PAGE_BYTES,
/// of a page, which two registrations may not share, DEEP, the length from which queues make submits
/// slow, REFUSE_BATCH and HALVE_BATCH, a code that every batch of copies ends with, none or half of it
/// taken, WRONG, a kernel that goes wrong (see kernels.cpp), and SERVING, while which no call may
/// stall. From the environment alone: DELAY_US, SEED and FAIL, see calls.cpp.
long setting(const char* name, long otherwise);

/// Says it on stderr and counts it: a use of the API that a driver need not notice.
void violation(const std::string& what);

/// From now on the driver is this process's: it does not work in forks.
void note_start();

Context* current();

/// Null, and `error` says why, where the handle is not one of the current context.
std::shared_ptr<Stream> find_stream(CUstream handle, CUresult& error);
void enqueue(const std::shared_ptr<Stream>& stream, std::function<void(const Turn&)> run);
void drain(Lock& lock, const std::shared_ptr<Stream>& stream);
/// Waits for all that the current context's streams were given, as every free does.
void drain_all(Lock& lock);
/// Between these, a stream holds all multiprocessors.
void enter_pass(const Turn& turn, const Stream* stream);
void leave_pass(const Stream* stream);
/// Whether a pass holds all multiprocessors; a kernel of another stream waits for it.
void await_pass(const Turn& turn, const Stream* stream, int priority);
/// Sleeps a random while, within the bound that was set.
void dawdle();
uint64_t roll(uint64_t below);

/// Whether the calling thread may do unsafe things; if not, captures are invalidated.
bool capture_allows(const char* name);
CUresult capture_check(const std::shared_ptr<Stream>& stream);

enum class Use { COPY, KERNEL };
/// The caller holds `memory_in_use()`.
bool accessible(const Context& context, uint64_t address, uint64_t bytes, Use use);
bool is_device(uint64_t address);
bool is_pinned(uint64_t address);
/// While it is held, nothing is freed or unregistered.
std::shared_ptr<void> memory_in_use();
long live_memory(const std::string& kind);

/// Addresses in which memory can be mapped. What is mapped there is memory of the device.
void reserve(uint64_t address, uint64_t bytes);
bool unreserve(uint64_t address);
bool is_reserved(uint64_t address, uint64_t bytes, bool empty = false);
void map(uint64_t address, uint64_t bytes);
/// Forgets what is mapped there, and releases it while nothing uses memory.
bool unmap(uint64_t address, uint64_t bytes, const std::function<bool()>& release);

/// Result of a fault injected into the current call: the code that its operation will end with.
CUresult take_late_fault();
void fail_context(Context& context, CUresult code);
