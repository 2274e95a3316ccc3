// y[M, N] = x[M, K] · W[N, K]ᵀ for 1…64 tokens, W packed so that one 16-byte load is one A
// fragment.
//
// A CTA owns 16 rows of W (blockIdx.x) and one of S slices of K (blockIdx.y); its NW warps share
// that slice. Each warp streams its own run of 32-wide K blocks through the tensor core, U blocks a
// trip; shared memory then adds the warps in order, and for S > 1 the CTA that arrives last adds
// the slices in order. The order of every addition follows from (K, NW, S) alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <numeric.cuh>
#include <ptx.cuh>

namespace packed_gemv {

using bf16 = __nv_bfloat16;

constexpr int kRows = 16;         // rows of W in one fragment
constexpr int kBlock = 32;        // k in one K block: two mma, one 16-byte load of x a lane
constexpr int kUnits = 64;        // 16-byte units in one (row block, K block): 2 steps × 32 lanes
constexpr int kTile = kRows * 8;  // accumulators of one mma: 16 rows × 8 tokens
constexpr int kMaxTokenBlocks = 8;
constexpr int kMaxWarps = 16;

// Registers that hold fragments: per matrix, U K blocks of W in flight and NB accumulators.
constexpr int kFragmentRegisters = 80;
constexpr bool supported(int nb, int mats, int u) {
  return mats * (8 * u + 4 * nb) <= kFragmentRegisters;
}

// The reduction holds one tile per warp, token block and matrix: 512 bytes each, 16 KiB in all.
// Large accumulators also want few warps: 16 of them leave each thread 128 registers, 8 leave 255.
constexpr int kMaxTiles = 32;
constexpr int max_warps(int nb, int mats) {
  int warps = kMaxWarps;
  while (warps * nb * mats > kMaxTiles) warps /= 2;
  return warps;
}

struct Params {
  const bf16* x;        // [M, K], rows ldx elements apart
  const uint4* w[2];    // packed [RB, KB, 2, 32] units; w[1] only when DUAL
  const bf16* bias[2];  // [N] or null
  void* y[2];           // [M, N], rows ldy elements apart; y[1] only when DUAL and not fused
  float* partials;      // S > 1: [RB, S, MATS, NB, 4, 32]
  unsigned* arrivals;   // S > 1: [RB], zero at launch
  int m, n, k;
  long long ldx, ldy;
  bool fused;     // DUAL: y[0] = silu(x · w[0]ᵀ) · (x · w[1]ᵀ)
  bool out_fp32;  // y is FP32, otherwise BF16
};

// A lane's eight activations k…k+7 of one token. What lies beyond K is 0 whatever memory holds
// there, because 0 · NaN is not 0.
template <bool VEC>
__device__ __forceinline__ uint4 load_x(const bf16* row, int k, int K) {
  if (VEC) {  // K, the row stride and the pointer are multiples of 16 bytes
    return k < K ? __ldg(reinterpret_cast<const uint4*>(row + k)) : make_uint4(0, 0, 0, 0);
  }
  const unsigned short* value = reinterpret_cast<const unsigned short*>(row);
  unsigned pair[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const unsigned low = k + 2 * j < K ? __ldg(value + k + 2 * j) : 0;
    const unsigned high = k + 2 * j + 1 < K ? __ldg(value + k + 2 * j + 1) : 0;
    pair[j] = low | high << 16;
  }
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// One trip: U K blocks of W are requested before the first is used.
template <int NB, int MATS, int U, bool VEC>
__device__ __forceinline__ void trip(float (&acc)[MATS][NB][4], const uint4* const (&wp)[MATS],
                                     const bf16* const (&xr)[NB], int i, int k, int K) {
  uint4 a[MATS][U][2];
#pragma unroll
  for (int u = 0; u < U; u++) {
#pragma unroll
    for (int mat = 0; mat < MATS; mat++) {
      a[mat][u][0] = ld_stream(wp[mat] + static_cast<size_t>(i + u) * kUnits);
      a[mat][u][1] = ld_stream(wp[mat] + static_cast<size_t>(i + u) * kUnits + 32);
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
#pragma unroll
    for (int nb = 0; nb < NB; nb++) {
      const uint4 xv = load_x<VEC>(xr[nb], k + u * kBlock, K);
#pragma unroll
      for (int mat = 0; mat < MATS; mat++) {
        mma16816(acc[mat][nb], a[mat][u][0], xv.x, xv.y);
        mma16816(acc[mat][nb], a[mat][u][1], xv.z, xv.w);
      }
    }
  }
}

// Tells whether this CTA is the last of its row block to arrive. One thread calls it, after a
// barrier: the first fence publishes what the whole CTA wrote before that barrier, the second makes
// what the others published visible to all that follows this thread's next barrier.
__device__ __forceinline__ bool arrive_last(unsigned* arrivals, unsigned expected) {
  __threadfence();
  const bool last = atomicAdd(arrivals, 1u) == expected - 1;
  __threadfence();
  return last;
}

// Epilogue of element e of this CTA's tiles, e = (nb, register, lane) in the order of the
// fragments.
template <int MATS>
__device__ __forceinline__ void finish(const Params& p, float (&sum)[MATS], int rb, int e) {
  const int lane = e & 31, r = (e >> 5) & 3, nb = e / kTile;
  const int row = rb * kRows + (lane >> 2) + 8 * (r >> 1);
  const int token = nb * 8 + 2 * (lane & 3) + (r & 1);
  if (row >= p.n || token >= p.m) return;
#pragma unroll
  for (int mat = 0; mat < MATS; mat++) {
    if (p.bias[mat]) sum[mat] = __fadd_rn(sum[mat], __bfloat162float(p.bias[mat][row]));
  }
  if (MATS == 2 && p.fused) sum[0] = __fmul_rn(silu(sum[0]), sum[MATS - 1]);
  const int outputs = p.fused ? 1 : MATS;
  const size_t at = static_cast<size_t>(token) * p.ldy + row;
  for (int out = 0; out < outputs; out++) {
    if (p.out_fp32) {
      store(static_cast<float*>(p.y[out]) + at, sum[out]);
    } else {
      store(static_cast<bf16*>(p.y[out]) + at, sum[out]);
    }
  }
}

template <int NB, int MATS, int U, bool VEC>
__global__ void __launch_bounds__(max_warps(NB, MATS) * 32, 1) gemv_kernel(const Params p) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int rb = blockIdx.x, sidx = blockIdx.y;
  const int NW = blockDim.x >> 5, S = gridDim.y;
  const int K = p.k, KB = K / kBlock + (K % kBlock != 0);

  // This warp's run of K blocks: an even share, the first few warps taking one more if need be.
  const int parts = S * NW, part = sidx * NW + warp;
  const int share = KB / parts, extra = KB % parts;
  const int kb0 = part * share + min(part, extra);
  const int KBW = share + (part < extra);

  const size_t woff = (static_cast<size_t>(rb) * KB + kb0) * kUnits + lane;
  const uint4* wp[MATS];
#pragma unroll
  for (int mat = 0; mat < MATS; mat++) wp[mat] = p.w[mat] + woff;
  const bf16* xr[NB];
#pragma unroll
  for (int nb = 0; nb < NB; nb++) {
    const int token = min(nb * 8 + g, p.m - 1);  // a clamped token is computed and never stored
    xr[nb] = p.x + token * static_cast<size_t>(p.ldx);
  }

  float acc[MATS][NB][4] = {};
  const int k0 = kb0 * kBlock + t * 8;
  int i = 0;
#pragma unroll 1
  for (; i + U <= KBW; i += U) trip<NB, MATS, U, VEC>(acc, wp, xr, i, k0 + i * kBlock, K);
#pragma unroll 1
  for (; i < KBW; i++) trip<NB, MATS, 1, VEC>(acc, wp, xr, i, k0 + i * kBlock, K);

  // [mat][warp][nb][register][lane]: every lane's accumulators verbatim, free of bank conflicts.
  float* const shared = dynamic_shared();
#pragma unroll
  for (int mat = 0; mat < MATS; mat++) {
#pragma unroll
    for (int nb = 0; nb < NB; nb++) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
        shared[((mat * NW + warp) * NB + nb) * kTile + r * 32 + lane] = acc[mat][nb][r];
      }
    }
  }
  __syncthreads();

  constexpr int kSums = NB * kTile;
  float* const partials = S > 1 ? p.partials + static_cast<size_t>(rb) * S * MATS * kSums : nullptr;
  for (int e = tid; e < kSums; e += blockDim.x) {
    float sum[MATS];
#pragma unroll
    for (int mat = 0; mat < MATS; mat++) {
      sum[mat] = shared[mat * NW * kSums + e];
      for (int w = 1; w < NW; w++) {
        sum[mat] = __fadd_rn(sum[mat], shared[(mat * NW + w) * kSums + e]);
      }
      if (S > 1) partials[(sidx * MATS + mat) * kSums + e] = sum[mat];
    }
    if (S == 1) finish(p, sum, rb, e);
  }
  if (S == 1) return;

  __syncthreads();
  if (!__syncthreads_or(tid == 0 && arrive_last(p.arrivals + rb, S))) return;
  for (int e = tid; e < kSums; e += blockDim.x) {
    float sum[MATS];
#pragma unroll
    for (int mat = 0; mat < MATS; mat++) {
      sum[mat] = partials[mat * kSums + e];
      for (int s = 1; s < S; s++) {
        sum[mat] = __fadd_rn(sum[mat], partials[(s * MATS + mat) * kSums + e]);
      }
    }
    finish(p, sum, rb, e);
  }
}

}  // namespace packed_gemv
