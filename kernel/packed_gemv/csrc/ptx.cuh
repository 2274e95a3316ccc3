// The only PTX of this kernel, each instruction behind one function.
// host/ptx.cuh holds the twins that run on a CPU; the include path chooses.
#pragma once

#include <cuda_runtime.h>

namespace packed_gemv {

// 16 bytes of weights: each is read once, so they should not displace x in L1.
__device__ __forceinline__ uint4 ld_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// d += a · b, where a is a lane's 16 bytes of the 16×16 fragment and (b0, b1) its part of the 16×8.
__device__ __forceinline__ void mma16816(float (&d)[4], const uint4& a, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// This CTA's dynamic shared memory.
__device__ __forceinline__ float* dynamic_shared() {
  extern __shared__ float4 shared_memory[];
  return reinterpret_cast<float*>(shared_memory);
}

}  // namespace packed_gemv
