// The functions that code compiled with -fsanitize=thread calls.
#pragma once

#include "race.h"

#define SIMT_HOOK extern "C" __attribute__((visibility("hidden")))
#define SIMT_CALLER (reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1)

#define SIMT_ACCESS_HOOKS(bytes)                                                   \
  SIMT_HOOK void __tsan_read##bytes(void* p) {                                     \
    simt::race::detector.access(p, bytes, simt::race::Access::read, SIMT_CALLER);  \
  }                                                                                \
  SIMT_HOOK void __tsan_write##bytes(void* p) {                                    \
    simt::race::detector.access(p, bytes, simt::race::Access::write, SIMT_CALLER); \
  }                                                                                \
  SIMT_HOOK void __tsan_unaligned_read##bytes(void* p) {                           \
    simt::race::rare_access(p, bytes, simt::race::Access::read, SIMT_CALLER);      \
  }                                                                                \
  SIMT_HOOK void __tsan_unaligned_write##bytes(void* p) {                          \
    simt::race::rare_access(p, bytes, simt::race::Access::write, SIMT_CALLER);     \
  }                                                                                \
  SIMT_HOOK void __tsan_volatile_read##bytes(void* p) {                            \
    simt::race::volatile_access(p, bytes, false, SIMT_CALLER);                     \
  }                                                                                \
  SIMT_HOOK void __tsan_volatile_write##bytes(void* p) {                           \
    simt::race::volatile_access(p, bytes, true, SIMT_CALLER);                      \
  }                                                                                \
  SIMT_HOOK void __tsan_unaligned_volatile_read##bytes(void* p) {                  \
    simt::race::volatile_access(p, bytes, false, SIMT_CALLER);                     \
  }                                                                                \
  SIMT_HOOK void __tsan_unaligned_volatile_write##bytes(void* p) {                 \
    simt::race::volatile_access(p, bytes, true, SIMT_CALLER);                      \
  }

namespace simt::race {

// Out of line: the detector is worth a copy only where the time goes.
__attribute__((noinline)) inline void rare_access(const void* p, size_t bytes, Access kind,
                                                  uintptr_t pc) {
  detector.access(p, bytes, kind, pc);
}

// A thread that polls lets others go on, now and then: before the access, for the hook precedes it
// and what is observed here must be what is then read.
__attribute__((noinline)) inline void volatile_access(const void* p, unsigned bytes, bool writes,
                                                      uintptr_t pc) {
  Fiber* f = machine.self;
  if (!f) return;
  f->site = pc;
  machine.poll(writes);
  observe(p, bytes, !writes, writes);
}

}  // namespace simt::race

SIMT_ACCESS_HOOKS(1)
SIMT_ACCESS_HOOKS(2)
SIMT_ACCESS_HOOKS(4)
SIMT_ACCESS_HOOKS(8)
SIMT_ACCESS_HOOKS(16)

SIMT_HOOK void __tsan_read_range(void* p, size_t bytes) {
  if (bytes) simt::race::rare_access(p, bytes, simt::race::Access::read, SIMT_CALLER);
}
SIMT_HOOK void __tsan_write_range(void* p, size_t bytes) {
  if (bytes) simt::race::rare_access(p, bytes, simt::race::Access::write, SIMT_CALLER);
}

SIMT_HOOK void __tsan_init() {}
SIMT_HOOK void __tsan_func_entry(void*) {}
SIMT_HOOK void __tsan_func_exit() {}
SIMT_HOOK void __tsan_vptr_update(void*, void*) {}
SIMT_HOOK void __tsan_vptr_read(void*) {}

// Atomics of host code in the same file, such as the guard of a function's static variable.
#define SIMT_ATOMIC_HOOKS(bits, type)                                                              \
  SIMT_HOOK type __tsan_atomic##bits##_load(const volatile type* p, int) {                         \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                \
  SIMT_HOOK void __tsan_atomic##bits##_store(volatile type* p, type v, int) {                      \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                \
  SIMT_HOOK type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                   \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  SIMT_HOOK type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {                  \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  SIMT_HOOK type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {                  \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  SIMT_HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* expected,    \
                                                              type v, int, int) {                  \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }

SIMT_ATOMIC_HOOKS(8, uint8_t)
SIMT_ATOMIC_HOOKS(16, uint16_t)
SIMT_ATOMIC_HOOKS(32, uint32_t)
SIMT_ATOMIC_HOOKS(64, uint64_t)

SIMT_HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_HOOK void __tsan_atomic_signal_fence(int) {}
