// Streams: queues that a thread of their own works off, with random pauses; events and waiting.

#include "mock.h"

namespace {

/// Waits for something, on a host thread or as an operation of a stream. Nobody waits for a context
/// that has broken.
void await(Lock& lock, const Turn& turn, const std::function<bool()>& holds) {
    mock.changed.wait(lock, [&] { return turn.is_over() || holds(); });
}

void work(const std::shared_ptr<Stream>& stream) {
    Lock lock(mock.mutex);
    for (;;) {
        mock.changed.wait(lock, [&] { return !stream->queue.empty() || stream->closing; });
        if (stream->queue.empty()) return;
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        Turn turn{*stream->context, operation.breaks};
        for (const auto& [other, place] : operation.after) {
            await(lock, turn, [&, other = other, place = place] { return other->done >= place; });
        }
        lock.unlock();
        dawdle();
        operation.run(turn);
        lock.lock();
        ++stream->done;
        mock.changed.notify_all();
    }
}

std::shared_ptr<Stream> start(Context* context, unsigned flags, int priority) {
    static uint64_t count = 0;
    auto stream = std::make_shared<Stream>();
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->number = ++count;
    std::thread(work, stream).detach();
    return stream;
}

bool is_blocking(const Stream& stream) { return !(stream.flags & CU_STREAM_NON_BLOCKING); }

/// A launch of another on all multiprocessors, as a matrix product is.
struct Pass {
    const Stream* stream;
    Context* context;
};
std::vector<Pass> passes;

struct Hold {
    bool released = false;
};
std::map<uint64_t, std::shared_ptr<Hold>> holds;

}  // namespace

uint64_t roll(uint64_t below) {
    static std::atomic<uint64_t> threads{0};
    thread_local uint64_t seed = 0;
    thread_local uint64_t number = ++threads;
    thread_local uint64_t state = 0;
    if (seed != mock.seed) {
        seed = mock.seed;
        state = seed * 1000003 + number;
    }
    // SplitMix64: public domain, by Sebastiano Vigna.
    uint64_t mixed = state += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return (mixed ^ mixed >> 31) % below;
}

void dawdle() {
    int most = mock.delay_us;
    // Most operations follow each other at once: pauses that differ are what changes the order.
    if (most == 0 || roll(3) > 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(roll(static_cast<uint64_t>(most) + 1)));
}

std::shared_ptr<Stream> find_stream(CUstream handle, CUresult& error) {
    Context* context = current();
    if (reinterpret_cast<uintptr_t>(handle) <= 1) {
        if (!context->legacy) context->legacy = start(context, 0, 0);
        return context->legacy;
    }
    auto found = mock.streams.find(handle);
    if (found == mock.streams.end() || found->second->context != context) {
        error = CUDA_ERROR_INVALID_HANDLE;
        return nullptr;
    }
    return found->second;
}

void enqueue(const std::shared_ptr<Stream>& stream, std::function<void(const Turn&)> run) {
    if (stream->capturing) {
        ++mock.history["captured"];
        return;
    }
    if (CUresult code = take_late_fault()) {
        run = [code](const Turn& turn) {
            if (!turn.is_over()) fail_context(turn.context, code);
        };
    }
    Operation operation{std::move(run), stream->context->breaks, {}};
    // It may have broken since the call was let in: nothing runs on it any more.
    if (stream->context->sticky != CUDA_SUCCESS) operation.breaks = UINT64_MAX;
    // The legacy stream and the blocking ones wait for each other.
    bool legacy = stream == stream->context->legacy;
    if (legacy) {
        for (const auto& [handle, other] : mock.streams) {
            if (other->context != stream->context || !is_blocking(*other)) continue;
            operation.after.emplace_back(other, other->enqueued);
        }
    } else if (is_blocking(*stream) && stream->context->legacy) {
        operation.after.emplace_back(stream->context->legacy, stream->context->legacy->enqueued);
    }
    // A driver that has much to remember of a stream takes its time for more.
    long deep = setting("DEEP", 1024);
    if (static_cast<long>(stream->queue.size()) > deep) {
        std::this_thread::sleep_for(std::chrono::microseconds(180));
    }
    stream->queue.push_back(std::move(operation));
    ++stream->enqueued;
    long& deepest = mock.history["deepest_queue"];
    deepest = std::max<long>(deepest, static_cast<long>(stream->queue.size()));
    mock.changed.notify_all();
}

void drain(Lock& lock, const std::shared_ptr<Stream>& stream) {
    uint64_t place = stream->enqueued;
    Turn turn{*stream->context, stream->context->breaks};
    await(lock, turn, [&] { return stream->done >= place; });
}

void drain_all(Lock& lock) {
    Context* context = current();
    auto streams = mock.streams;  // the lock is given up meanwhile
    for (auto& [handle, stream] : streams) {
        if (stream->context == context && !stream->capturing) drain(lock, stream);
    }
    if (context && context->legacy) drain(lock, context->legacy);
}

void enter_pass(const Turn& turn, const Stream* stream) {
    Lock lock(mock.mutex);
    passes.push_back(Pass{stream, &turn.context});
}

void leave_pass(const Stream* stream) {
    Lock lock(mock.mutex);
    for (auto it = passes.begin(); it != passes.end(); ++it) {
        if (it->stream != stream) continue;
        passes.erase(it);
        break;
    }
    mock.changed.notify_all();
}

void await_pass(const Turn& turn, const Stream* stream, int priority) {
    // Blocks of the greatest priority get in as soon as any block of the pass ends.
    if (priority < 0) return;
    Lock lock(mock.mutex);
    await(lock, turn, [&] {
        for (const Pass& pass : passes) {
            if (pass.context == &turn.context && pass.stream != stream) return false;
        }
        return true;
    });
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
    return call("cuStreamCreateWithPriority", CONTEXT | UNSAFE | STALLS, [&](Lock&) -> CUresult {
        if (flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
        auto stream = start(current(), flags, priority);
        *handle = stream.get();
        mock.streams[*handle] = stream;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return call("cuStreamDestroy_v2", CONTEXT | RELEASE, [&](Lock&) -> CUresult {
        auto found = mock.streams.find(handle);
        if (found == mock.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
        // Its work goes on without it.
        found->second->closing = true;
        mock.streams.erase(found);
        mock.changed.notify_all();
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
    return call("cuStreamWaitEvent", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (!mock.events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
        if (CUresult refused = capture_check(stream)) return refused;
        // What was recorded last counts; a later record does not move it.
        enqueue(stream, [mark = event->mark](const Turn& turn) {
            Lock lock(mock.mutex);
            if (mark) await(lock, turn, [&] { return mark->reached; });
        });
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    return call("cuStreamQuery", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        return stream->done == stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address, uint64_t value,
                                        unsigned flags) {
    return call("cuStreamWriteValue64_v2", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (setting("NO_WORDS", 0)) return CUDA_ERROR_NOT_SUPPORTED;
        if (address % 8 || flags) return CUDA_ERROR_INVALID_VALUE;
        if (CUresult refused = capture_check(stream)) return refused;
        enqueue(stream, [address, value](const Turn& turn) {
            auto using_it = memory_in_use();
            if (turn.is_over()) return;
            if (!accessible(turn.context, address, 8, Use::KERNEL)) {
                violation("a word is written where the device may not go");
                fail_context(turn.context, CUDA_ERROR_ILLEGAL_ADDRESS);
                return;
            }
            reinterpret_cast<std::atomic<uint64_t>*>(address)->store(value);
        });
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return call("cuStreamSynchronize", CONTEXT | UNSAFE | STALLS, [&](Lock& lock) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (stream->capturing) {
            stream->invalidated = true;
            ++mock.history["invalidated"];
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        drain(lock, stream);
        return stream->context->sticky;
    });
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void*), void* data) {
    return call("cuLaunchHostFunc", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (CUresult refused = capture_check(stream)) return refused;
        enqueue(stream, [function, data](const Turn& turn) {
            if (!turn.is_over()) function(data);
        });
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    return call("cuEventCreate", CONTEXT | STALLS, [&](Lock&) -> CUresult {
        *event = new Event{current(), flags, nullptr};
        mock.events.insert(*event);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    return call("cuEventDestroy_v2", RELEASE | STALLS, [&](Lock&) -> CUresult {
        if (!mock.events.erase(event)) return CUDA_ERROR_INVALID_HANDLE;
        delete event;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
    return call("cuEventRecord", CONTEXT, [&](Lock&) -> CUresult {
        CUresult error = CUDA_SUCCESS;
        auto stream = find_stream(handle, error);
        if (!stream) return error;
        if (!mock.events.count(event) || event->context != stream->context) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (CUresult refused = capture_check(stream)) return refused;
        event->mark = std::make_shared<Mark>();
        // The mark is reached even where a late fault takes the operation's place.
        CUresult late = take_late_fault();
        enqueue(stream, [late, mark = event->mark](const Turn& turn) {
            if (late != CUDA_SUCCESS && !turn.is_over()) fail_context(turn.context, late);
            Lock lock(mock.mutex);
            mark->reached = true;
            mark->at = std::chrono::steady_clock::now();
            mock.changed.notify_all();
        });
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventQuery(CUevent event) {
    return call("cuEventQuery", CONTEXT | UNSAFE | STALLS, [&](Lock&) -> CUresult {
        if (!mock.events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
        if (CUresult sticky = event->context->sticky) return sticky;
        return !event->mark || event->mark->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    return call("cuEventSynchronize", CONTEXT | UNSAFE | STALLS, [&](Lock& lock) -> CUresult {
        if (!mock.events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
        Context* context = event->context;
        Turn turn{*context, context->breaks};
        if (auto mark = event->mark) await(lock, turn, [&] { return mark->reached; });
        return context->sticky;
    });
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return call("cuEventElapsedTime", CONTEXT, [&](Lock&) -> CUresult {
        for (CUevent event : {start, end}) {
            if (!mock.events.count(event) || !event->mark) return CUDA_ERROR_INVALID_HANDLE;
            if (event->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
            if (!event->mark->reached) return CUDA_ERROR_NOT_READY;
        }
        std::chrono::duration<float, std::milli> elapsed = end->mark->at - start->mark->at;
        *milliseconds = elapsed.count();
        return CUDA_SUCCESS;
    });
}

// ---- what tests control ----

/// Blocks a stream of the current context from here on; 0 where there is no such stream.
EXPORT uint64_t mock_cuda_hold(CUstream handle) {
    Lock lock(mock.mutex);
    static uint64_t count = 0;
    CUresult error = CUDA_SUCCESS;
    auto stream = current() ? find_stream(handle, error) : nullptr;
    if (!stream) return 0;
    auto hold = std::make_shared<Hold>();
    holds[++count] = hold;
    enqueue(stream, [hold](const Turn& turn) {
        Lock lock(mock.mutex);
        await(lock, turn, [&] { return hold->released; });
    });
    return count;
}

EXPORT void mock_cuda_release(uint64_t number) {
    Lock lock(mock.mutex);
    if (auto found = holds.find(number); found != holds.end()) {
        found->second->released = true;
        holds.erase(found);
    }
    mock.changed.notify_all();
}

/// A pass on a stream of the current context: it holds all multiprocessors until the hold that is
/// returned is released, or for so long.
EXPORT uint64_t mock_cuda_pass(CUstream handle, long microseconds) {
    Lock lock(mock.mutex);
    static uint64_t count = uint64_t{1} << 32;
    CUresult error = CUDA_SUCCESS;
    auto stream = current() ? find_stream(handle, error) : nullptr;
    if (!stream) return 0;
    auto hold = std::make_shared<Hold>();
    if (microseconds == 0) holds[++count] = hold;
    enqueue(stream, [hold, microseconds, on = stream.get()](const Turn& turn) {
        enter_pass(turn, on);
        if (microseconds) {
            std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        } else {
            Lock lock(mock.mutex);
            await(lock, turn, [&] { return hold->released; });
        }
        leave_pass(on);
    });
    return microseconds ? 0 : count;
}

/// Flags and priorities of the live streams, in no order; how many there are.
EXPORT int mock_cuda_streams(unsigned* flags, int* priorities, int room) {
    Lock lock(mock.mutex);
    int count = 0;
    for (const auto& [handle, stream] : mock.streams) {
        if (count < room) {
            flags[count] = stream->flags;
            priorities[count] = stream->priority;
        }
        ++count;
    }
    return count;
}
