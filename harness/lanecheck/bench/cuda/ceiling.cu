// The ceilings: the fastest loops over buffers that do nothing but read one, or copy one to
// another.
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

// A thread's UNROLL vectors of a tile, `blockDim.x` apart, all of the loads in flight at once;
// zeros beyond the end. Returns whether the whole tile lies before it.
template <int UNROLL>
__device__ __forceinline__ bool load_tile(uint4 (&v)[UNROLL], const uint4* data, int64_t first,
                                          int64_t vectors) {
  const bool whole = first + (UNROLL - 1) * int64_t{blockDim.x} < vectors;
  if (whole) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) v[u] = load(data + first + u * blockDim.x);
  } else {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int64_t at = first + u * blockDim.x;
      v[u] = at < vectors ? load(data + at) : make_uint4(0, 0, 0, 0);
    }
  }
  return whole;
}

// A CTA reads tiles of UNROLL vectors a thread, grid-stride. Each warp's sum depends on every word,
// so no load can be elided. With `keep` the sums are stored, so that the host can check that every
// byte was read once; without it, one warp in 2^32 stores.
template <int UNROLL>
__global__ void read_kernel(const uint4* __restrict__ data, int64_t vectors, bool keep,
                            unsigned* __restrict__ sums) {
  const int64_t tile = int64_t{UNROLL} * blockDim.x;
  unsigned sum = 0;
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < vectors;
       first += gridDim.x * tile) {
    uint4 v[UNROLL];
    load_tile(v, data, first, vectors);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) sum += v[u].x + v[u].y + v[u].z + v[u].w;
  }
  sum = __reduce_add_sync(0xFFFFFFFFu, sum);
  if (threadIdx.x % 32 == 0 && (keep || sum == kUnlikely)) {
    sums[(int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32] = sum;
  }
}

// The same walk; what is read is written.
template <int UNROLL>
__global__ void copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to,
                            int64_t vectors) {
  const int64_t tile = int64_t{UNROLL} * blockDim.x;
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < vectors;
       first += gridDim.x * tile) {
    uint4 v[UNROLL];
    const bool whole = load_tile(v, from, first, vectors);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int64_t at = first + u * blockDim.x;
      if (whole || at < vectors) to[at] = v[u];
    }
  }
}

bool fits(int threads, int ctas) {
  return threads >= 32 && threads <= 1024 && threads % 32 == 0 && ctas >= 1;
}

}  // namespace

// Reads `vectors` 16-byte vectors. `threads` is a multiple of 32, `unroll` 4 or 8; `sums` holds a
// word for each of the grid's warps. Returns a CUDA error code.
LANECHECK_API int lanecheck_read(const void* data, int64_t vectors, int threads, int unroll,
                                 int ctas, int keep, unsigned* sums, cudaStream_t stream) {
  const auto kernel = unroll == 4 ? read_kernel<4> : unroll == 8 ? read_kernel<8> : nullptr;
  if (!kernel || !fits(threads, ctas)) return cudaErrorInvalidValue;
  kernel<<<ctas, threads, 0, stream>>>(static_cast<const uint4*>(data), vectors, keep != 0, sums);
  return cudaGetLastError();
}

// Copies `vectors` 16-byte vectors; otherwise likewise.
LANECHECK_API int lanecheck_copy(const void* from, void* to, int64_t vectors, int threads,
                                 int unroll, int ctas, cudaStream_t stream) {
  const auto kernel = unroll == 4 ? copy_kernel<4> : unroll == 8 ? copy_kernel<8> : nullptr;
  if (!kernel || !fits(threads, ctas)) return cudaErrorInvalidValue;
  kernel<<<ctas, threads, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to),
                                       vectors);
  return cudaGetLastError();
}
