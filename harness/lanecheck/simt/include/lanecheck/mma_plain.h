// The tensor core's m16n8k16 BF16 -> FP32 term by term: the specification that mma.h is tested
// against. It says what mma.h says at the top, and nothing here is clever.
//
// Sources: arXiv 2511.10909 (MMA-Sim) and arXiv 2512.07004 (Khattak, Mikaitis). The Hopper model
// has been measured on an H200; the Ampere model, and every NaN being 0x7FFFFFFF on it, is
// published.

#ifndef LANECHECK_MMA_PLAIN_H_
#define LANECHECK_MMA_PLAIN_H_

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

#include "mma.h"

namespace lanecheck {
namespace mma_plain {

// A number or a product of two: (-1)^negative * significand * 2^(exponent - fraction_bits).
// A product's exponent is the sum of its factors' exponents: its significand lies in [1, 4).
struct Term {
  bool negative = false, infinite = false, nan = false;
  int exponent = 0, fraction_bits = 0;
  int64_t significand = 0;
};

// Splits a BF16 or FP32 pattern; subnormals keep exponent -126, and so does zero, for now.
inline Term decode(uint32_t bits, int fraction_bits) {
  const int64_t fraction = bits & ((1u << fraction_bits) - 1);
  const int field = bits >> fraction_bits & 0xFF;
  Term term;
  term.negative = bits >> (fraction_bits + 8);
  term.infinite = field == 255 && fraction == 0;
  term.nan = field == 255 && fraction != 0;
  term.exponent = std::max(field, 1) - 127;
  term.fraction_bits = fraction_bits;
  term.significand = field == 0 ? fraction : fraction + (int64_t{1} << fraction_bits);
  return term;
}

inline Term product(const Term& x, const Term& y) {
  const bool x_zero = x.significand == 0, y_zero = y.significand == 0;
  Term term;
  term.negative = x.negative != y.negative;
  term.nan = x.nan || y.nan || (x.infinite && y_zero) || (x_zero && y.infinite);
  term.infinite = !term.nan && (x.infinite || y.infinite);
  term.exponent = x.exponent + y.exponent;
  term.fraction_bits = x.fraction_bits + y.fraction_bits;
  term.significand = x.significand * y.significand;
  return term;
}

// sum * 2^exponent toward zero to FP32: subnormals are kept, overflow gives Inf, zero is +0.
inline uint32_t round_toward_zero(int64_t sum, int exponent) {
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  int64_t magnitude = sum < 0 ? -sum : sum;
  while (magnitude >= 1 << 24 || (magnitude != 0 && exponent < -149)) {
    magnitude >>= 1;
    exponent += 1;
  }
  if (magnitude == 0) return 0;
  while (magnitude < 1 << 23 && exponent > -149) {
    magnitude <<= 1;
    exponent -= 1;
  }
  if (magnitude < 1 << 23) return sign | uint32_t(magnitude);
  const int field = exponent + 150;
  if (field >= 255) return sign | 0x7F800000u;
  return sign | uint32_t(field) << 23 | uint32_t(magnitude - (1 << 23));
}

inline uint32_t fused_sum(const Term* terms, int count, Constants model) {
  bool nan = false, plus_infinity = false, minus_infinity = false;
  int largest = INT_MIN;
  for (int i = 0; i < count; ++i) {
    const Term& term = terms[i];
    nan |= term.nan;
    plus_infinity |= term.infinite && !term.negative;
    minus_infinity |= term.infinite && term.negative;
    const int exponent = term.significand == 0 ? model.zero_exponent : term.exponent;
    largest = std::max(largest, exponent);
  }
  if (nan || (plus_infinity && minus_infinity)) return 0x7FFFFFFFu;
  if (plus_infinity) return 0x7F800000u;
  if (minus_infinity) return 0xFF800000u;

  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const Term& term = terms[i];
    const int shift = model.fraction_bits - term.fraction_bits + term.exponent - largest;
    const int64_t magnitude =
        shift >= 0 ? term.significand << shift : term.significand >> std::min(-shift, 63);
    sum += term.negative ? -magnitude : magnitude;
  }
  return round_toward_zero(sum, largest - model.fraction_bits);
}

}  // namespace mma_plain

inline void mma_m16n8k16_plain(const uint16_t a[16][16], const uint16_t b[16][8],
                               const float c[16][8], float d[16][8], Model model) {
  const Constants k = constants(model);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      uint32_t acc;
      std::memcpy(&acc, &c[i][j], sizeof acc);
      for (int first = 0; first < 16; first += k.terms) {
        mma_plain::Term terms[17];
        terms[0] = mma_plain::decode(acc, 23);
        for (int s = 0; s < k.terms; ++s) {
          terms[s + 1] = mma_plain::product(mma_plain::decode(a[i][first + s], 7),
                                            mma_plain::decode(b[first + s][j], 7));
        }
        acc = mma_plain::fused_sum(terms, k.terms + 1, k);
      }
      std::memcpy(&d[i][j], &acc, sizeof acc);
    }
  }
}

}  // namespace lanecheck

#endif  // LANECHECK_MMA_PLAIN_H_
