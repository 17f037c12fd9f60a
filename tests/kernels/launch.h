// Runs kernels compiled with shim.h. Included by exactly one translation unit of a program.
//
// A block of several threads runs on as many threads of the machine: *together*, as on a device
// (what ThreadSanitizer needs), or *in turn*: one after the other in a given order, each from one
// __syncthreads to the next. A forgotten __syncthreads then shows every time. A block of one thread
// runs on the caller's.
//
// Launches wait for each other, whatever thread they come from. A block in which some threads end
// while others wait in __syncthreads ends the program.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "shim.h"

__thread shim::Index threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

enum class Order : std::uint64_t { forward, reversed, shuffled };

struct Launch {
    unsigned grid = 1, block = 1;
    Order blocks = Order::forward;
    bool together = false;
    Order threads = Order::forward;  // unless together
    std::uint64_t seed = 0;          // of what is shuffled
};

inline std::vector<unsigned> in_order(unsigned count, Order order, std::uint64_t seed) {
    std::vector<unsigned> indices(count);
    std::iota(indices.begin(), indices.end(), 0);
    if (order == Order::reversed) {
        std::iota(indices.rbegin(), indices.rend(), 0);
    }
    for (unsigned i = count; i > 1 && order == Order::shuffled; --i) {
        // Knuth's MMIX generator; its upper bits are the good ones.
        seed = seed * 6364136223846793005 + 1442695040888963407;
        std::swap(indices[i - 1], indices[(seed >> 33) % i]);
    }
    return indices;
}

// The threads of a block. They stay for later launches.
class Crew {
public:
    ~Crew() {
        {
            const std::lock_guard lock(mutex);
            closing = true;
        }
        for (Member& member : members) {
            member.wake.notify_one();
            member.thread.join();
        }
    }

    // Runs `work` on as many threads as `order` has, with the thread's index.
    void run(const std::vector<unsigned>& order, bool together,
             const std::function<void(unsigned)>& work) {
        std::unique_lock lock(mutex);
        this->order = order;
        this->together = together;
        this->work = &work;
        turn = arrived = left = 0;
        ++job;
        while (members.size() < order.size()) {
            Member& member = members.emplace_back();
            const unsigned index = unsigned(members.size() - 1);
            member.done = job - 1;
            member.thread = std::thread([this, index, &member] { serve(index, member); });
        }
        for (unsigned i = 0; i < order.size(); ++i) {
            members[i].wake.notify_one();
        }
        all.wait(lock, [this] { return left == this->order.size(); });
    }

    // Waits until all threads are here. At the end of a block all have to be there for that.
    void meet(bool at_end) {
        if (blockDim.x == 1) {
            return;
        }
        std::unique_lock lock(mutex);
        if (arrived == 0) {
            end_of_block = at_end;
        } else if (end_of_block != at_end) {
            std::fputs("shim: some threads of a block ended, others wait in __syncthreads\n",
                       stderr);
            std::abort();
        }
        const std::uint64_t meeting = meetings;
        if (++arrived == order.size()) {
            arrived = 0;
            ++meetings;
        }
        if (together) {
            if (meetings != meeting) {
                all.notify_all();
            }
            all.wait(lock, [&] { return meetings != meeting; });
        } else {
            hand_on();
            wait_for_turn(lock);
        }
    }

private:
    struct Member {
        std::thread thread;
        std::condition_variable wake;
        std::uint64_t done = 0;
    };

    void serve(unsigned index, Member& member) {
        std::unique_lock lock(mutex);
        for (;;) {
            member.wake.wait(lock, [&] { return closing || ready(index, member); });
            if (closing) {
                return;
            }
            threadIdx.x = index;
            if (!together) {
                wait_for_turn(lock);
            }
            lock.unlock();
            (*work)(index);
            lock.lock();
            member.done = job;
            if (!together) {
                hand_on();
            }
            if (++left == order.size()) {
                all.notify_all();
            }
        }
    }

    bool ready(unsigned index, const Member& member) const {
        return member.done != job && index < order.size();
    }

    void hand_on() {
        turn = (turn + 1) % unsigned(order.size());
        members[order[turn]].wake.notify_one();
    }

    void wait_for_turn(std::unique_lock<std::mutex>& lock) {
        members[threadIdx.x].wake.wait(lock, [this] { return order[turn] == threadIdx.x; });
    }

    std::mutex mutex;
    std::condition_variable all;
    std::deque<Member> members;
    std::vector<unsigned> order;
    const std::function<void(unsigned)>* work = nullptr;
    std::uint64_t job = 0, meetings = 0;
    unsigned turn = 0, arrived = 0, left = 0;
    bool together = false, end_of_block = false, closing = false;
};

inline Crew& crew() {
    static Crew crew;
    return crew;
}

template <typename Parameter>
void run(void (*kernel)(Parameter), const Parameter& parameter, const Launch& launch) {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    const std::vector<unsigned> blocks = in_order(launch.grid, launch.blocks, launch.seed);
    const auto work = [&](unsigned thread) {
        gridDim = {launch.grid, 1, 1};
        blockDim = {launch.block, 1, 1};
        threadIdx = {thread, 0, 0};
        for (const unsigned block : blocks) {
            blockIdx = {block, 0, 0};
            kernel(parameter);
            crew().meet(true);
        }
    };
    if (launch.block == 1) {
        work(0);
    } else {
        crew().run(in_order(launch.block, launch.threads, launch.seed + 1), launch.together, work);
    }
}

}  // namespace shim

void __syncthreads() { shim::crew().meet(false); }
