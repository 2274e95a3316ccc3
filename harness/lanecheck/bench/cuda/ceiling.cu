// The read ceiling: the fastest loop over a buffer that does nothing but read it.
#include <cuda_runtime.h>
#include <stdint.h>

#define LANECHECK_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr unsigned kUnlikely = 0x9E3779B9u;

__device__ __forceinline__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// A CTA reads tiles of UNROLL vectors a thread, grid-stride; all loads of a tile are in flight at
// once. Each warp's sum depends on every word, so no load can be elided. With `keep` the sums are
// stored, so that the host can check that every byte was read once; without it, one warp in 2^32
// stores.
template <int UNROLL>
__global__ void read_kernel(const uint4* __restrict__ data, int64_t vectors, bool keep,
                            unsigned* __restrict__ sums) {
  const int64_t tile = int64_t{UNROLL} * blockDim.x;
  unsigned sum = 0;
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < vectors;
       first += gridDim.x * tile) {
    uint4 v[UNROLL];
    if (first + tile - blockDim.x < vectors) {
#pragma unroll
      for (int u = 0; u < UNROLL; u++) v[u] = load(data + first + u * blockDim.x);
    } else {
#pragma unroll
      for (int u = 0; u < UNROLL; u++) {
        const int64_t at = first + u * blockDim.x;
        v[u] = at < vectors ? load(data + at) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) sum += v[u].x + v[u].y + v[u].z + v[u].w;
  }
  sum = __reduce_add_sync(0xFFFFFFFFu, sum);
  if (threadIdx.x % 32 == 0 && (keep || sum == kUnlikely)) {
    sums[(int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32] = sum;
  }
}

}  // namespace

// Reads `vectors` 16-byte vectors. `threads` is a multiple of 32, `unroll` 4 or 8; `sums` holds a
// word for each of the grid's warps. Returns a CUDA error code.
LANECHECK_API int lanecheck_read(const void* data, int64_t vectors, int threads, int unroll,
                                 int ctas, int keep, unsigned* sums, cudaStream_t stream) {
  const auto kernel = unroll == 4 ? read_kernel<4> : unroll == 8 ? read_kernel<8> : nullptr;
  if (!kernel || threads < 32 || threads > 1024 || threads % 32 || ctas < 1) {
    return cudaErrorInvalidValue;
  }
  kernel<<<ctas, threads, 0, stream>>>(static_cast<const uint4*>(data), vectors, keep != 0, sums);
  return cudaGetLastError();
}
