// What the instructions of PTX mean, for the C++ that translate.rs writes. Types and functions have the names that PTX
// has for them ("PTX ISA", docs.nvidia.com/cuda/parallel-thread-execution).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "../../../csrc/paging.h"
#include "../shim.h"

namespace ptx {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long long;
using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using pred = bool;

// What registers hold before anything is written to them: large and a multiple of 16, so that a kernel that takes it
// for a size or an alignment fails.
constexpr u64 JUNK = 0xA5A5A5A5A5A5A5A0;

// Sums, products and shifts are of 64 unsigned bits, where nothing overflows, and then cut.
template <typename T> constexpr T add(T a, T b) { return T(u64(a) + u64(b)); }
template <typename T> constexpr T sub(T a, T b) { return T(u64(a) - u64(b)); }
template <typename T> constexpr T mul_lo(T a, T b) { return T(u64(a) * u64(b)); }
template <typename T> constexpr T div(T a, T b) { return T(a / b); }
template <typename T> constexpr T rem(T a, T b) { return T(a % b); }
template <typename T> constexpr T max(T a, T b) { return a < b ? b : a; }

inline constexpr u64 mul_wide_u32(u32 a, u32 b) { return u64(a) * b; }

template <typename T> constexpr T bit_and(T a, T b) { return T(u64(a) & u64(b)); }
template <typename T> constexpr T bit_or(T a, T b) { return T(u64(a) | u64(b)); }
template <typename T> constexpr T bit_xor(T a, T b) { return T(u64(a) ^ u64(b)); }
template <typename T> constexpr T bit_not(T a) { return T(~u64(a)); }
template <> constexpr pred bit_not<pred>(pred a) { return !a; }

// Unlike C++, PTX shifts by any number.
template <typename T> constexpr T shl(T a, u32 by) { return by < 8 * sizeof(T) ? T(u64(a) << by) : T(0); }
template <typename T> constexpr T shr(T a, u32 by) {
    return by < 8 * sizeof(T) ? T(a >> by) : a < T(0) ? T(-1) : T(0);
}
static_assert(shl<u32>(3, 31) == 1u << 31 && shl<u32>(1, 32) == 0 && shr<u64>(~0ull, 64) == 0, "as PTX has it");
static_assert(mul_lo<u16>(65535, 65535) == 1 && sub<u32>(0, 1) == ~0u, "as PTX has it");

template <typename T> constexpr pred eq(T a, T b) { return a == b; }
template <typename T> constexpr pred ne(T a, T b) { return a != b; }
template <typename T> constexpr pred lt(T a, T b) { return a < b; }
template <typename T> constexpr pred le(T a, T b) { return a <= b; }
template <typename T> constexpr pred gt(T a, T b) { return a > b; }
template <typename T> constexpr pred ge(T a, T b) { return a >= b; }

template <typename T> constexpr T selp(T a, T b, pred p) { return p ? a : b; }

// What addresses of shared memory have added to them. An access to the wrong space then has an address that the
// processor does not have, and ends the program.
constexpr u64 SHARED = 1ull << 52;

enum class Space { global, shared, param, generic };

// What v2 moves: aligned as a whole.
template <typename T> struct alignas(2 * sizeof(T)) Pair {
    T first, second;
};

template <Space SPACE, typename T> T* place(u64 address) {
    return reinterpret_cast<T*>(SPACE == Space::shared ? address - SHARED : address);
}

template <Space SPACE, typename T, typename Register> void ld(u64 address, Register& to) {
    to = *place<SPACE, T>(address);
}

template <Space SPACE, typename T, typename Register> void ld(u64 address, Register& first, Register& second) {
    const Pair<T> pair = *place<SPACE, Pair<T>>(address);
    first = pair.first;
    second = pair.second;
}

template <Space SPACE, typename T> void st(u64 address, T value) { *place<SPACE, T>(address) = value; }

template <Space SPACE, typename T> void st(u64 address, T first, T second) {
    *place<SPACE, Pair<T>>(address) = {first, second};
}

template <typename T> u64 address_of(T& symbol) { return reinterpret_cast<u64>(&symbol); }

// The planted fault that this run has.
inline int planted() {
    const char* const number = std::getenv("HARNESS_FAULT");
    return number ? std::atoi(number) : 0;
}

// The lines of the PTX that were reached. At the program's end it prints them for harness.rs.
class Lines {
public:
    ~Lines() {
        for (std::size_t line = 0; line < MOST; ++line) {
            if (reached[line]) {
                std::fprintf(stderr, "reached: %zu\n", line);
            }
        }
    }

    void reach(std::size_t line) { reached[line].store(true, std::memory_order_relaxed); }

private:
    static constexpr std::size_t MOST = 1 << 16;
    std::atomic<bool> reached[MOST] = {};
};

}  // namespace ptx

static const int fault = ptx::planted();
static ptx::Lines lines;
