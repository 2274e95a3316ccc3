// The tensor core in volume: whole batches and whole accumulation chains, over plain arrays.

#include <lanecheck/mma.h>
#include <lanecheck/mma_plain.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace {

using lanecheck::Model;
using lanecheck::mma_detail::DecodedA;
using lanecheck::mma_detail::DecodedB;
using lanecheck::mma_detail::Tile;

using A = uint16_t[16][16];
using B = uint16_t[16][8];
using C = float[16][8];

// Columns that share one decoding of A. Their accumulators and A itself stay in the L1 cache.
constexpr size_t kColumns = 8;

// The chains of one row against some columns: acc[c] = A[l] B[c][l] + acc[c], from +0, over
// `length` steps of columns that lie `stride` steps apart.
template <Model kModel>
LANECHECK_MMA_INLINE void chains(size_t stride, size_t length, size_t columns, const A* a,
                                 const B* b, const DecodedB* decoded_b, C* d) {
  Tile acc[kColumns] = {};
  DecodedA decoded_a;
  for (size_t l = 0; l < length; ++l) {
    lanecheck::mma_detail::decode_a<kModel>(a[l], decoded_a);
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = c * stride + l;
      lanecheck::mma_detail::accumulate<kModel>(decoded_a, decoded_b[at], a[l], b[at], acc[c]);
    }
  }
  std::memcpy(d, acc, columns * sizeof(C));
}

LANECHECK_MMA_INLINE void chains(Model model, size_t stride, size_t length, size_t columns,
                                 const A* a, const B* b, const DecodedB* decoded_b, C* d) {
  if (model == Model::ampere) {
    chains<Model::ampere>(stride, length, columns, a, b, decoded_b, d);
  } else {
    chains<Model::hopper>(stride, length, columns, a, b, decoded_b, d);
  }
}

#if LANECHECK_MMA_AVX2_DISPATCH
__attribute__((target("avx2"))) LANECHECK_MMA_UNCHECKED void chains_avx2(
    Model model, size_t stride, size_t length, size_t columns, const A* a, const B* b,
    const DecodedB* decoded_b, C* d) {
  chains(model, stride, length, columns, a, b, decoded_b, d);
}
#endif

LANECHECK_MMA_UNCHECKED void run_chains(Model model, size_t stride, size_t length, size_t columns,
                                        const A* a, const B* b, const DecodedB* decoded_b, C* d) {
#if LANECHECK_MMA_AVX2_DISPATCH
  if (__builtin_cpu_supports("avx2")) {
    return chains_avx2(model, stride, length, columns, a, b, decoded_b, d);
  }
#endif
  chains(model, stride, length, columns, a, b, decoded_b, d);
}

}  // namespace

extern "C" {

void lanecheck_mma_batch(int model, size_t count, const A* a, const B* b, const C* c, C* d) {
  for (size_t i = 0; i < count; ++i) {
    lanecheck::mma_m16n8k16(a[i], b[i], c[i], d[i], Model(model));
  }
}

void lanecheck_mma_batch_plain(int model, size_t count, const A* a, const B* b, const C* c, C* d) {
  for (size_t i = 0; i < count; ++i) {
    lanecheck::mma_m16n8k16_plain(a[i], b[i], c[i], d[i], Model(model));
  }
}

// a[rows][length], b[columns][length], d[parts][rows][columns]: the chain of part p takes the steps
// bounds[p][0] … bounds[p][1] - 1. Returns 1 if memory ran out.
int lanecheck_mma_chains(int model, size_t rows, size_t columns, size_t length, size_t parts,
                         const size_t (*bounds)[2], const A* a, const B* b, C* d,
                         unsigned threads) try {
  std::vector<DecodedB> decoded_b(columns * length);
  for (size_t i = 0; i < decoded_b.size(); ++i) {
    lanecheck::mma_detail::decode_b(b[i], decoded_b[i]);
  }
  const size_t blocks = (columns + kColumns - 1) / kColumns;
  const size_t units = parts * rows * blocks;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t unit; (unit = next++) < units;) {
      const size_t part = unit / (rows * blocks), row = unit / blocks % rows;
      const size_t column = unit % blocks * kColumns, first = bounds[part][0];
      run_chains(Model(model), length, bounds[part][1] - first,
                 std::min(kColumns, columns - column), a + row * length + first,
                 b + column * length + first, decoded_b.data() + column * length + first,
                 d + (part * rows + row) * columns + column);
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, units); ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::exception&) {
      break;  // as many as the system allows
    }
  }
  work();
  for (std::thread& other : others) other.join();
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

}  // extern "C"
