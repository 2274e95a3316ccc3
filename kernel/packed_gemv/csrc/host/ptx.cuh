// Host twins of ../ptx.cuh, for execution on a CPU. Trusted base: what only the asm can get wrong
// is for silicon to show. The defaulted line numbers are the callers', for diagnostics.
#pragma once

#include <cuda_runtime.h>
#include <simt.h>

namespace packed_gemv {

inline uint4 ld_stream(const uint4* p, int line = __builtin_LINE()) {
  return simt::load16(p, line);
}

inline void mma16816(float (&d)[4], const uint4& a, unsigned b0, unsigned b1,
                     int line = __builtin_LINE()) {
  const unsigned fragment_a[4] = {a.x, a.y, a.z, a.w}, fragment_b[2] = {b0, b1};
  simt::mma_m16n8k16_bf16(d, fragment_a, fragment_b, d, line);
}

inline float* dynamic_shared() { return static_cast<float*>(simt::dynamic_shared()); }

}  // namespace packed_gemv
