// From plain arguments to one instantiation of the kernel.
#include <cuda_runtime.h>

#include <gemv.cuh>

#include "launch.h"

namespace packed_gemv {
namespace {

using Kernel = void (*)(Params);

template <int NB, int MATS, int U, bool VEC>
constexpr Kernel instance() {
  if constexpr (supported(NB, MATS, U)) return gemv_kernel<NB, MATS, U, VEC>;
  return nullptr;
}

// U groups loads and leaves every addition where it is, so the element path needs no more than U
// = 1.
template <int NB, int MATS>
Kernel choose_u(int u, bool vec) {
  if (!vec) return instance<NB, MATS, 1, false>();
  switch (u) {
    case 1:
      return instance<NB, MATS, 1, true>();
    case 2:
      return instance<NB, MATS, 2, true>();
    case 4:
      return instance<NB, MATS, 4, true>();
    case 8:
      return instance<NB, MATS, 8, true>();
    default:
      return nullptr;
  }
}

template <int MATS>
Kernel choose_nb(int nb, int u, bool vec) {
  switch (nb) {
    case 1:
      return choose_u<1, MATS>(u, vec);
    case 2:
      return choose_u<2, MATS>(u, vec);
    case 3:
      return choose_u<3, MATS>(u, vec);
    case 4:
      return choose_u<4, MATS>(u, vec);
    case 5:
      return choose_u<5, MATS>(u, vec);
    case 6:
      return choose_u<6, MATS>(u, vec);
    case 7:
      return choose_u<7, MATS>(u, vec);
    case 8:
      return choose_u<8, MATS>(u, vec);
    default:
      return nullptr;
  }
}

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

int token_blocks(int64_t m) { return static_cast<int>((m + 7) / 8); }
int matrices(const PackedGemvArgs& a) { return a.w[1] ? 2 : 1; }
int64_t row_blocks(const PackedGemvArgs& a) { return (a.n + kRows - 1) / kRows; }

// Partial sums of all slices, in front of the arrival counters.
int64_t partial_floats(const PackedGemvArgs& a) {
  return row_blocks(a) * a.s * matrices(a) * token_blocks(a.m) * kTile;
}

bool well_formed(const PackedGemvArgs& a) {
  constexpr int64_t kMax = int64_t{1} << 30;
  const int mats = matrices(a), nb = token_blocks(a.m);
  if (a.m < 1 || a.m > 8 * kMaxTokenBlocks || a.n < 1 || a.n > kMax || a.k < 1 || a.k > kMax) {
    return false;
  }
  if (a.ldx < a.k && a.m > 1) return false;
  if (a.ldy < a.n && a.m > 1) return false;
  if (!a.x || !a.w[0] || !a.y[0] || !aligned(a.w[0], 16) || !aligned(a.w[1], 16)) return false;
  const size_t item = a.out_fp32 ? sizeof(float) : sizeof(bf16);
  if (!aligned(a.x, sizeof(bf16)) || !aligned(a.y[0], item) || !aligned(a.y[1], item)) return false;
  if (!aligned(a.bias[0], sizeof(bf16)) || !aligned(a.bias[1], sizeof(bf16))) return false;
  if (a.fused && mats == 1) return false;
  if (mats == 2 && !a.fused && !a.y[1]) return false;
  if (a.nw < 1 || a.nw > max_warps(nb, mats) || a.s < 1 || a.s > 65535) return false;
  return a.s == 1 || (a.workspace && aligned(a.workspace, 16));
}

}  // namespace
}  // namespace packed_gemv

using namespace packed_gemv;

extern "C" int32_t packed_gemv_supported(int32_t nb, int32_t mats, int32_t nw, int32_t u) {
  if (mats < 1 || mats > 2 || nb < 1 || nb > kMaxTokenBlocks) return 0;
  if (nw < 1 || nw > max_warps(nb, mats)) return 0;
  return (mats == 1 ? choose_nb<1>(nb, u, true) : choose_nb<2>(nb, u, true)) != nullptr;
}

extern "C" int64_t packed_gemv_workspace_bytes(const PackedGemvArgs* args) {
  if (args->s == 1) return 0;
  return partial_floats(*args) * sizeof(float) + row_blocks(*args) * sizeof(unsigned);
}

extern "C" cudaError_t packed_gemv_launch(const PackedGemvArgs* args, cudaStream_t stream) {
  const PackedGemvArgs& a = *args;
  if (!well_formed(a)) return cudaErrorInvalidValue;
  const int nb = token_blocks(a.m), mats = matrices(a);
  const bool vec = a.k % 8 == 0 && aligned(a.x, 16) && (a.m == 1 || a.ldx % 8 == 0);
  const Kernel kernel = mats == 1 ? choose_nb<1>(nb, a.u, vec) : choose_nb<2>(nb, a.u, vec);
  if (!kernel) return cudaErrorInvalidValue;

  Params p = {};
  p.x = static_cast<const bf16*>(a.x);
  for (int mat = 0; mat < mats; mat++) {
    p.w[mat] = static_cast<const uint4*>(a.w[mat]);
    p.bias[mat] = static_cast<const bf16*>(a.bias[mat]);
    p.y[mat] = a.y[mat];
  }
  p.m = static_cast<int>(a.m);
  p.n = static_cast<int>(a.n);
  p.k = static_cast<int>(a.k);
  p.ldx = a.ldx;
  p.ldy = a.ldy;
  p.fused = a.fused != 0;
  p.out_fp32 = a.out_fp32 != 0;
  if (a.s > 1) {
    p.partials = static_cast<float*>(a.workspace);
    p.arrivals = reinterpret_cast<unsigned*>(p.partials + partial_floats(a));
    const size_t bytes = row_blocks(a) * sizeof(unsigned);
    const cudaError_t cleared = cudaMemsetAsync(p.arrivals, 0, bytes, stream);
    if (cleared != cudaSuccess) return cleared;
  }

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(row_blocks(a)), a.s);
  config.blockDim = dim3(a.nw * 32);
  config.dynamicSmemBytes = sizeof(float) * mats * a.nw * nb * kTile;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, p);
}
