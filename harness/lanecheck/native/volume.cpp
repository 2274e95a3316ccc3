// The tensor core in volume: whole batches and whole accumulation chains, over plain arrays.

#include <lanecheck/mma.h>
#include <lanecheck/mma_plain.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace {

using lanecheck::Constants;
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

// A BF16 operand. A zero has an exponent that never is the maximum, as in mma.h.
struct Factor {
  double value;
  int exponent;
};

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int exponent_of(uint32_t bits) { return std::max(int(bits >> 23 & 0xFF), 1) - 127; }

Factor factor(uint16_t bf16) {
  const uint32_t bits = uint32_t(bf16) << 16;
  const double value = as_float(bits);
  return {value, value == 0 ? lanecheck::mma_detail::kNoExponent : exponent_of(bits)};
}

// One output's chain so far: what it computed, the exact sum hi + lo of its products, and how far
// the two can lie apart. lanecheck/oracles/bound.py derives the formula.
struct Running {
  uint32_t acc = 0;
  double hi = 0, lo = 0, slack = 0;
};

// Knuth's TwoSum: x + y = sum + error, exactly.
double two_sum(double x, double y, double& error) {
  const double sum = x + y, part = sum - x;
  error = (x - (sum - part)) + (y - part);
  return sum;
}

// A fused sum of `count` products and the accumulator. The definition is mma_plain.h's; float64
// holds every product, and every term in quanta.
void fused_sum(const Factor* a, const Factor* b, int count, Constants model, Running& run) {
  double terms[17] = {as_float(run.acc)};
  // No product of zero can matter: the accumulator takes part with at least zero_exponent.
  int largest = terms[0] == 0 ? model.zero_exponent : exponent_of(run.acc);
  for (int s = 0; s < count; ++s) {
    terms[s + 1] = a[s].value * b[s].value;
    largest = std::max(largest, a[s].exponent + b[s].exponent);
  }

  bool finite = std::isfinite(terms[0]);
  double hi = 0, lo = 0, error;
  for (int s = 1; s <= count; ++s) {
    hi = two_sum(hi, terms[s], error);
    lo += error;
    finite &= std::isfinite(terms[s]);
  }
  hi = two_sum(run.hi, hi, error);
  run.hi = two_sum(hi, run.lo + (lo + error), run.lo);

  const double quantum = std::ldexp(1.0, largest - model.fraction_bits);
  const double quanta = 1 / quantum;
  int64_t sum = 0;
  int truncated = 0;
  for (int s = 0; s <= count && finite; ++s) {
    const double exact = terms[s] * quanta;
    const auto whole = int32_t(exact);  // toward zero
    sum += whole;
    truncated += whole != exact;
  }
  run.acc = lanecheck::mma_plain::round_toward_zero(sum, largest - model.fraction_bits);
  const double rounded = as_float(run.acc), ulp = std::ldexp(1.0, exponent_of(run.acc) - 23);
  run.slack += truncated * quantum + (rounded == double(sum) * quantum ? 0 : ulp - quantum);
  if (!finite || std::isinf(rounded)) run.slack = std::numeric_limits<double>::infinity();
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

// Of the same chains the exact sums hi + lo, and how far from them the computed ones may lie.
void lanecheck_mma_bounds(int model, size_t rows, size_t columns, size_t length, size_t parts,
                          const size_t (*bounds)[2], const A* a, const B* b, double (*hi)[16][8],
                          double (*lo)[16][8], double (*slack)[16][8]) {
  const Constants constants = lanecheck::constants(Model(model));
  for (size_t chain = 0; chain < parts * rows * columns; ++chain) {
    const size_t* steps = bounds[chain / (rows * columns)];
    const size_t row = chain / columns % rows, column = chain % columns;
    Running running[16][8];
    for (size_t l = steps[0]; l < steps[1]; ++l) {
      Factor of_a[16][16], of_b[8][16];
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 16; ++i) of_a[i][k] = factor(a[row * length + l][i][k]);
        for (int j = 0; j < 8; ++j) of_b[j][k] = factor(b[column * length + l][k][j]);
      }
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
          for (int s = 0; s < 16; s += constants.terms) {
            fused_sum(of_a[i] + s, of_b[j] + s, constants.terms, constants, running[i][j]);
          }
        }
      }
    }
    // For what hi + lo and slack themselves lose, see bound.py.
    const double float64 = 1 + std::ldexp(double(steps[1] - steps[0]), -48);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        hi[chain][i][j] = running[i][j].hi;
        lo[chain][i][j] = running[i][j].lo;
        slack[chain][i][j] = running[i][j].slack * float64;
      }
    }
  }
}

}  // extern "C"
