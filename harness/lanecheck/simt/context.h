// Switching stacks: what makes a fiber. Ten instructions on x86-64, ucontext elsewhere or when
// SIMT_UCONTEXT is defined (25 times slower, because it saves the signal mask with a system call).
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define SIMT_ASAN 0
#endif

namespace simt {

struct Context {
#ifdef SIMT_UCONTEXT
  ucontext_t state;
#else
  void* stack_pointer;
#endif
#if SIMT_ASAN  // told about every switch, or it takes one fiber's frames for another's
  void* fake_stack;
  const void* stack;
  size_t stack_bytes;
#endif
};

#ifndef SIMT_UCONTEXT
extern "C" __attribute__((visibility("hidden"))) void simt_swap_stacks(void** save, void* load);

// Only what a function must preserve: the caller of a function expects no more of a switch.
asm(R"(
.pushsection .text
.type simt_swap_stacks, @function
.hidden simt_swap_stacks
simt_swap_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size simt_swap_stacks, . - simt_swap_stacks
.popsection
)");
#endif

inline void jump(Context& from, const Context& to) {
#if SIMT_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#ifdef SIMT_UCONTEXT
  swapcontext(&from.state, &to.state);
#else
  simt_swap_stacks(&from.stack_pointer, to.stack_pointer);
#endif
#if SIMT_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The first thing to call on a new stack.
inline void arrived() {
#if SIMT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// `entry` never returns.
inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
#if SIMT_ASAN
  __asan_unpoison_memory_region(stack, bytes);  // frames that an aborted launch left behind
  context.stack = stack;
  context.stack_bytes = bytes;
  context.fake_stack = nullptr;
#endif
#ifdef SIMT_UCONTEXT
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
#else
  // Six registers and a return address below a gap, so that rsp % 16 is 8 on entry, as after a
  // call.
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  void** frame = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 6; i++) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void*>(entry);
  context.stack_pointer = frame;
#endif
}

// The thread's own stack, to come back to.
inline void describe_host(Context& context) {
#if SIMT_ASAN
  pthread_attr_t attributes;
  void* stack;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &context.stack_bytes);
  pthread_attr_destroy(&attributes);
  context.stack = stack;
#else
  (void)context;
#endif
}

// All stacks in one mapping without guard pages between them: thousands would exceed the kernel's
// limit on mappings. A word at the far end shows an overflow. The odd 192 bytes keep the tops of
// different stacks out of the same cache sets.
class Stacks {
 public:
  static constexpr size_t kBytes = SIMT_ASAN ? size_t{64} << 10 : size_t{16} << 10;

  void reserve(size_t count) {
    if (count <= count_) return;
    if (base_) munmap(base_, count_ * kStride);
    base_ = static_cast<char*>(mmap(nullptr, count * kStride, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    count_ = base_ == MAP_FAILED ? 0 : count;
    if (!count_) base_ = nullptr;
  }
  bool holds(size_t count) const { return count <= count_; }
  char* operator[](size_t i) const { return base_ + i * kStride; }

  void arm(size_t i) { *reinterpret_cast<uint64_t*>((*this)[i]) = kCanary; }
  bool intact(size_t i) const { return *reinterpret_cast<const uint64_t*>((*this)[i]) == kCanary; }

 private:
  static constexpr size_t kStride = kBytes + 192;
  static constexpr uint64_t kCanary = 0x57ACC0DE57ACC0DE;
  char* base_ = nullptr;
  size_t count_ = 0;
};

}  // namespace simt
