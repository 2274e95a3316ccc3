// One kernel for each thing the host execution has to get right beyond split_k.cu.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

// --- values -------------------------------------------------------------------------------------

__global__ void warp_functions(int* out) {
  const int tid = threadIdx.x + blockDim.x * threadIdx.y, lane = tid % 32;
  int* o = out + tid * 8;
  o[0] = __shfl_sync(~0u, tid, 5);
  o[1] = __shfl_xor_sync(~0u, tid, 3);
  o[2] = __shfl_down_sync(~0u, tid, 1, 8);
  o[3] = __shfl_up_sync(~0u, tid, 2);
  o[4] = __ballot_sync(~0u, lane % 3 == 0);
  o[5] = __any_sync(~0u, lane == 7) + 2 * __all_sync(~0u, lane == 7);
  o[6] = lane < 4 ? __ballot_sync(0xFu, lane & 1) : __shfl_sync(~0xFu, lane, 4);
  o[7] = __syncthreads_count(tid % 5 == 0) + 1000 * __syncthreads_or(tid == 1) +
         2000 * __syncthreads_and(tid == 1);
}

__global__ void round_trip(const float* in, unsigned short* bits, float* out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const __nv_bfloat16 v = __float2bfloat16_rn(__ldg(in + i));
    bits[i] = __bfloat16_as_ushort(v);
    out[i] = __bfloat162float(__ushort_as_bfloat16(bits[i]));
  }
}

__global__ void atomics(unsigned* u, float* f) {
  atomicAdd(u, 2u);
  atomicInc(u + 1, 4u);
  atomicExch(u + 2, 7u);
  atomicCAS(u + 3, 0u, 1u + threadIdx.x + blockIdx.x * blockDim.x);
  atomicMax(u + 4, threadIdx.x);
  atomicAdd(f, 0.5f);
}

__global__ void whoami(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned size = blockDim.x * blockDim.y * blockDim.z;
  __shared__ unsigned mine;
  if (thread == 0) mine = block;
  __syncthreads();
  out[block * size + thread] = mine * size + thread;
}

// --- orders -------------------------------------------------------------------------------------
__global__ void early_return(int* out) {  // those who have left are not waited for
  __shared__ int value;
  if (threadIdx.x >= 40) return;
  if (threadIdx.x == 39) value = 7;
  __syncthreads();
  out[threadIdx.x] = value;
}

// ---------------------------------------------------------------------------------------

enum Order {
  kWarpExchange,          // shared memory between lanes, __syncwarp
  kShuffleIsNoFence,      // the same, with a shuffle instead: a race
  kEveryoneFences,        // fence by all, barrier, atomic by one
  kFenceAfterBarrier,     // atomic by one, barrier, fence by all
  kWarpThenFence,         // __syncwarp, then fence and atomic by lane 0
  kVolatileFlag,          // message passing by a volatile flag
  kVolatileWithoutFence,  // a race
  kAtomicFlag,            // one CTA waits for another
  kBytes,                 // neighbouring bytes by different threads
  kSameWord,              // a race between writes of equal values
  kPassedOn,              // T to U to V, through two flags
};

__global__ void orders(int order, int* data, unsigned* flags, unsigned char* bytes, int* out) {
  __shared__ int exchange[64];
  __shared__ unsigned arrived;
  const int tid = threadIdx.x, b = blockIdx.x;
  volatile unsigned* flag = flags;
  switch (order) {
    case kWarpExchange:
    case kShuffleIsNoFence:
      exchange[tid] = tid;
      if (order == kWarpExchange)
        __syncwarp();
      else
        __shfl_sync(~0u, tid, 0);
      out[b * 64 + tid] = exchange[tid ^ 1];
      break;
    case kEveryoneFences:
    case kFenceAfterBarrier:
    case kWarpThenFence:
      data[b * 64 + tid] = tid;
      if (order == kEveryoneFences) __threadfence();
      if (order == kWarpThenFence)
        __syncwarp();
      else
        __syncthreads();
      if (order == kWarpThenFence ? tid % 32 == 0 : tid == 0) {
        if (order != kEveryoneFences) __threadfence();
        const unsigned before = atomicAdd(flags, 1u);
        if (order == kWarpThenFence)
          exchange[tid / 32] = before;
        else
          arrived = before;
        if (order != kFenceAfterBarrier) __threadfence();
      }
      if (order == kWarpThenFence) {
        __syncwarp();
        if (exchange[tid / 32] + 1u != 2 * gridDim.x) return;
      } else {
        __syncthreads();
        if (order == kFenceAfterBarrier) __threadfence();
        if (arrived + 1 != gridDim.x) return;
      }
      for (unsigned i = tid % 32; i < gridDim.x * 64; i += 32) {
        if (tid < 32 || order == kWarpThenFence) out[i] = data[i];
      }
      break;
    case kVolatileFlag:
    case kVolatileWithoutFence:
      if (tid) return;
      if (b == 0) {
        data[0] = 5;
        if (order == kVolatileFlag) __threadfence();
        *flag = 1;
      } else if (b == 1) {
        while (!*flag) continue;
        __threadfence();
        out[0] = data[0];
      }
      break;
    case kAtomicFlag:
    case kPassedOn:
      if (tid) return;
      if (b == 0) {
        data[0] = 5;
        __threadfence();
        atomicExch(flags, 1u);
      } else if (b == 1) {
        while (!atomicAdd(flags, 0u)) continue;
        __threadfence();
        if (order == kAtomicFlag) out[0] = data[0];
        atomicExch(flags + 1, 1u);
      } else if (b == 2 && order == kPassedOn) {
        while (!atomicAdd(flags + 1, 0u)) continue;
        __threadfence();
        out[0] = data[0];
      }
      break;
    case kBytes:
      bytes[b * 64 + tid] = tid;
      out[b * 64 + tid] = bytes[b * 64 + tid];
      break;
    case kSameWord:
      data[0] = 5;
      break;
  }
}

// --- C ABI --------------------------------------------------------------------------------------

static cudaLaunchConfig_t config(dim3 grid, dim3 block, size_t dynamic = 0) {
  cudaLaunchConfig_t c = {};
  c.gridDim = grid;
  c.blockDim = block;
  c.dynamicSmemBytes = dynamic;
  return c;
}

extern "C" int run_warp_functions(int* out) {
  const cudaLaunchConfig_t c = config(1, dim3(32, 2));
  return cudaLaunchKernelEx(&c, warp_functions, out);
}
extern "C" int run_round_trip(const float* in, unsigned short* bits, float* out, int n) {
  const cudaLaunchConfig_t c = config(3, 96);
  return cudaLaunchKernelEx(&c, round_trip, in, bits, out, n);
}
extern "C" int run_atomics(unsigned* u, float* f) {
  const cudaLaunchConfig_t c = config(4, 64);
  return cudaLaunchKernelEx(&c, atomics, u, f);
}
extern "C" int run_early_return(int* out) {
  const cudaLaunchConfig_t c = config(1, 128);
  return cudaLaunchKernelEx(&c, early_return, out);
}
extern "C" int run_whoami(unsigned* out, int gx, int gy, int gz, int bx, int by, int bz,
                          size_t dynamic, int allowed) {
  if (allowed) {
    const cudaError_t error =
        cudaFuncSetAttribute(whoami, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed);
    if (error != cudaSuccess) return error;
  }
  const cudaLaunchConfig_t c = config(dim3(gx, gy, gz), dim3(bx, by, bz), dynamic);
  return cudaLaunchKernelEx(&c, whoami, out);
}
extern "C" int run_orders(int order, int* data, unsigned* flags, unsigned char* bytes, int* out) {
  const cudaLaunchConfig_t c = config(3, 64);
  return cudaLaunchKernelEx(&c, orders, order, data, flags, bytes, out);
}
