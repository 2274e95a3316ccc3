// What CUDA source needs of the runtime that executes it on a CPU, one fiber a thread.
//
// The first part is for host twins of PTX wrappers; `detail` is what cuda_runtime.h is spelled
// with. `line` is the caller's, for diagnostics: pass on a defaulted __builtin_LINE() of your own.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

// One library holds one kernel and one runtime. Nothing of it may be seen by the next library.
#pragma GCC visibility push(hidden)

namespace simt {

// d = a · b + c of one warp, in the registers of mma.sync.m16n8k16.row.col.f32.bf16.bf16.f32. All
// 32 lanes must arrive at the same line before any goes on.
void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                       int line = __builtin_LINE());

// This CTA's dynamic shared memory: 16-byte aligned, and flush against an inaccessible page.
void* dynamic_shared();

namespace detail {

enum class Reduce { none, any, all, count };
enum class Shuffle { index, up, down, exclusive_or };
enum class Atomic {
  add,
  add_float,
  exchange,
  compare,
  increment,
  minimum,
  maximum,
  bit_and,
  bit_or
};
enum class Scope { cta, gpu };

int barrier(Reduce reduce, int predicate, int line);
void syncwarp(uint32_t mask, int line);
uint32_t ballot(uint32_t mask, bool predicate, int line);
uint32_t shuffle(Shuffle how, uint32_t mask, uint32_t value, uint32_t argument, int width,
                 int line);
uint64_t atomic(Atomic op, void* p, unsigned size, uint64_t operand, uint64_t compare = 0);
void fence(Scope scope);
uint32_t lane_id();

[[noreturn]] void misaligned(const void* p, unsigned size, int line);

struct Launch {
  dim3 grid, block;
  size_t dynamic_bytes;
  const void* kernel;
  void (*call)(const void* arguments);  // runs the kernel as one thread
  const void* arguments;
};

// The two return CUDA error codes.
int launch(const Launch& launch);
int allow_dynamic_shared(const void* kernel, int bytes);

}  // namespace detail

// One 16-byte load, aligned as the hardware wants it.
inline __attribute__((always_inline)) uint4 load16(const void* p, int line = __builtin_LINE()) {
  if (reinterpret_cast<uintptr_t>(p) % 16) detail::misaligned(p, 16, line);
  return *static_cast<const uint4*>(p);
}

}  // namespace simt

#pragma GCC visibility pop
