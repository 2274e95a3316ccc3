// The one PTX wrapper of split_k.cu, for a CPU.
#pragma once

#include <simt.h>

inline void mma16816(float (&d)[4], const uint4& a, const uint2& b, int line = __builtin_LINE()) {
  const unsigned fragment_a[4] = {a.x, a.y, a.z, a.w}, fragment_b[2] = {b.x, b.y};
  simt::mma_m16n8k16_bf16(d, fragment_a, fragment_b, d, line);
}
