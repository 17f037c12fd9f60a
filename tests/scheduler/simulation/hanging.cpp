// Reads and writes of a disk tier's files that wait until they are let go, for a process that preloads this.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

std::atomic<bool> hangs{false};
std::atomic<long> waiting{0};

bool is_of_a_lane(int file) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = 0;
  return std::strstr(path, "/lane-") != nullptr;
}

void wait(int file) {
  if (!hangs || !is_of_a_lane(file)) return;
  ++waiting;
  while (hangs) usleep(1000);
  --waiting;
}

template <typename Call>
Call system_call(const char *name) {
  return reinterpret_cast<Call>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

void hanging_set(int on) { hangs = on != 0; }

long hanging_waiting() { return waiting; }

ssize_t pread64(int file, void *bytes, size_t count, off64_t offset) {
  static const auto call = system_call<ssize_t (*)(int, void *, size_t, off64_t)>("pread64");
  wait(file);
  return call(file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
  static const auto call = system_call<ssize_t (*)(int, const void *, size_t, off64_t)>("pwrite64");
  wait(file);
  return call(file, bytes, count, offset);
}
}
