// The C ABI of the kernel: plain data in, a CUDA error code out. No allocation, no synchronisation.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PACKED_GEMV_API __attribute__((visibility("default")))
#else
#define PACKED_GEMV_API
#endif

extern "C" {

// One launch. Strides count elements. The workspace belongs to this launch alone until it has
// ended.
struct PackedGemvArgs {
  const void* x;        // [m, k] BF16, rows ldx apart, 2-byte aligned
  const void* w[2];     // packed BF16, 16-byte aligned; w[1] null unless dual
  const void* bias[2];  // [n] BF16, 2-byte aligned, or null
  void* y[2];       // [m, n] FP32 or BF16, aligned to its element, rows ldy apart; y[1] only when
                    // dual and not fused
  void* workspace;  // packed_gemv_workspace_bytes(), 16-byte aligned, any contents
  int64_t m, n, k, ldx, ldy;
  int32_t nw, u, s;  // warps a CTA, K blocks a trip, slices of K
  int32_t fused;     // dual: y[0] = silu(x · w[0]ᵀ) · (x · w[1]ᵀ)
  int32_t out_fp32;
};

// Launches on `stream`. Returns cudaErrorInvalidValue for arguments no kernel was built for.
PACKED_GEMV_API cudaError_t packed_gemv_launch(const PackedGemvArgs* args, cudaStream_t stream);

// Bytes of workspace that a launch needs; 0 when s is 1.
PACKED_GEMV_API int64_t packed_gemv_workspace_bytes(const PackedGemvArgs* args);

// Whether a kernel was built for nb blocks of 8 tokens, one or two matrices, nw warps and trips of
// u.
PACKED_GEMV_API int32_t packed_gemv_supported(int32_t nb, int32_t mats, int32_t nw, int32_t u);
}
