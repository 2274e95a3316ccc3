// What happens to a sum after the last mma. Every operation is correctly rounded, in a fixed order
// and never contracted, so host, device and emulator agree bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace packed_gemv {

// exp(x) from IEEE additions and multiplications alone: x = n ln 2 + r with |r| <= ln 2 / 2, a
// degree-7 Taylor polynomial in r, then 2^n in two exact steps and one rounding. ln 2 is split so
// that n · kLn2High is exact.
__device__ __forceinline__ float exp_reproducible(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693145751953125f, kLn2Low = 1.42860677e-6f;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  if (x != x) return x;
  if (x > 128.0f) return __uint_as_float(0x7F800000u);
  if (x < -160.0f) return 0.0f;
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, kLog2E), kRound), kRound);
  const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, kLn2High)), __fmul_rn(n, kLn2Low));
  constexpr float kTaylor[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                               1.0f / 6,    0.5f,       1.0f,       1.0f};
  float sum = kTaylor[0];
#pragma unroll
  for (int i = 1; i < 8; i++) sum = __fadd_rn(__fmul_rn(sum, r), kTaylor[i]);
  const int exponent = static_cast<int>(n), half = exponent / 2;
  const float scaled = __fmul_rn(sum, __int_as_float((half + 127) << 23));
  return __fmul_rn(scaled, __int_as_float((exponent - half + 127) << 23));
}

// silu(v) = v / (1 + exp(-v))
__device__ __forceinline__ float silu(float v) {
  return __fdiv_rn(v, __fadd_rn(1.0f, exp_reproducible(-v)));
}

// Every NaN is stored as the one the tensor core makes, 0x7FFFFFFF.
__device__ __forceinline__ void store(float* p, float v) {
  *p = v == v ? v : __uint_as_float(0x7FFFFFFFu);
}

__device__ __forceinline__ void store(__nv_bfloat16* p, float v) {
  *p = v == v ? __float2bfloat16_rn(v) : __ushort_as_bfloat16(0x7FFF);
}

}  // namespace packed_gemv
