// A matrix product in the shape of the kernels this is made for: warps share a slice of K, shared
// memory adds the warps, and the CTA that arrives last adds the slices. It can be asked to go
// wrong.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <ptx.cuh>

enum Fault {
  kHealthy,
  kNoBarrierBeforeReduction,
  kNoBarrierAfterFlag,
  kNoBarrierBeforeAtomic,
  kNoReleaseFence,
  kNoAcquireFence,
  kBlockFence,
  kPlainIncrement,
  kNotReset,
  kMissingLane,
  kDivergentBarrier,
  kEarlyExit,
  kOverread,
  kWriteInput,
  kWriteBeyondOutput,
  kMisaligned,
  kSharedOverrun,
  kWaitAtomic,
  kWaitVolatile,
  kStaticOverrun,
  kLaneSkipsShuffle,
  kDivideByZero,
};

constexpr int kTile = 128;

struct Params {
  const uint4* w;      // [row blocks, slices, warps, steps, 32]
  const uint2* x;      // [slices, warps, steps, 32]
  float* partials;     // [row blocks, slices, kTile]
  float* y;            // [row blocks, kTile]
  unsigned* arrivals;  // [row blocks]
  int steps;
  int fault;
};

template <int WARPS>
__device__ __forceinline__ float reduce(const float* tiles, int e) {
  float sum = 0;
  for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, tiles[w * kTile + e]);
  return sum;
}

template <int WARPS, bool DYNAMIC>
__global__ void __launch_bounds__(WARPS * 32) split_k(const Params p) {
  __shared__ float tiles_static[DYNAMIC ? 1 : WARPS * kTile];
  __shared__ bool last;
  float* const tiles = DYNAMIC ? static_cast<float*>(simt::dynamic_shared()) : tiles_static;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int rb = blockIdx.x, slice = blockIdx.y, slices = gridDim.y;

  if (p.fault == kEarlyExit && tid == 37) return;
  const int part = slice * WARPS + warp;
  const uint4* w = p.w + static_cast<size_t>(rb * slices * WARPS + part) * p.steps * 32 + lane;
  const uint2* x = p.x + part * p.steps * 32 + lane;
  if (p.fault == kOverread) w += 32;
  if (p.fault == kMisaligned) {
    w = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(w) + 8);
  }
  float acc[4] = {};
  for (int i = 0; i < p.steps; i++) {
    const uint4 a = __ldg(w + i * 32);
    const uint2 b = __ldg(x + i * 32);
    if (p.fault == kMissingLane && tid == 5 && i == 1) __syncthreads();
    mma16816(acc, a, b);
  }
  if (p.fault == kWriteInput && tid == 3) const_cast<uint2*>(p.x)[1] = make_uint2(1, 2);

  for (int r = 0; r < 4; r++) tiles[warp * kTile + r * 32 + lane] = acc[r];
  if (p.fault == kSharedOverrun) tiles[(warp + 1) * kTile + lane] = 0;
  if (p.fault == kStaticOverrun) tiles_static[WARPS * kTile + tid] = 0;
  if (p.fault == kDivergentBarrier && tid < 64) {
    __syncthreads();
  } else if (p.fault != kNoBarrierBeforeReduction) {
    __syncthreads();
  }

  float* const partials = p.partials + (rb * slices + slice) * kTile;
  for (int e = tid; e < kTile; e += WARPS * 32) partials[e] = reduce<WARPS>(tiles, e);

  if (p.fault != kNoBarrierBeforeAtomic) __syncthreads();
  if (tid == 0) {
    if (p.fault == kBlockFence) {
      __threadfence_block();
    } else if (p.fault != kNoReleaseFence) {
      __threadfence();
    }
    unsigned before;
    if (p.fault == kPlainIncrement) {
      before = p.arrivals[rb];
      p.arrivals[rb] = before + 1;
    } else {
      before = atomicAdd(p.arrivals + rb, 1u);
    }
    last = before == slices - 1u;
    if (p.fault != kNoAcquireFence) __threadfence();
  }
  if (p.fault == kWaitAtomic) {
    while (atomicAdd(p.arrivals + rb, 0u) < 1000u) continue;
  }
  if (p.fault == kWaitVolatile) {
    while (*const_cast<volatile unsigned*>(p.arrivals + rb) < 1000u) continue;
  }
  if (p.fault != kNoBarrierAfterFlag) __syncthreads();
  if (!last) return;
  for (int e = tid; e < kTile; e += WARPS * 32) {
    float sum = 0;
    for (int s = 0; s < slices; s++) {
      sum = __fadd_rn(sum, p.partials[(rb * slices + s) * kTile + e]);
    }
    p.y[rb * kTile + e] = sum;
  }
  if (p.fault == kWriteBeyondOutput && tid == 9 && rb == 0) p.y[-1] = 3;
  if (p.fault == kLaneSkipsShuffle && warp == 1 && lane != 7) __shfl_xor_sync(~0u, tid, 1);
  if (p.fault == kDivideByZero) p.y[tid / (slices - *p.arrivals)] = 0;
  if (tid == 0 && p.fault != kNotReset) p.arrivals[rb] = 0;
}

template <int WARPS, bool DYNAMIC>
cudaError_t launch(const Params& p, int row_blocks, int slices) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(row_blocks, slices);
  config.blockDim = dim3(WARPS * 32);
  config.dynamicSmemBytes = DYNAMIC ? WARPS * kTile * sizeof(float) : 0;
  return cudaLaunchKernelEx(&config, split_k<WARPS, DYNAMIC>, p);
}

extern "C" int split_k_launch(const Params* p, int row_blocks, int slices, int dynamic) {
  return dynamic ? launch<4, true>(*p, row_blocks, slices)
                 : launch<4, false>(*p, row_blocks, slices);
}
