// The tensor core's m16n8k16 BF16 -> FP32, bit for bit and fast.
//
// A tensor core neither rounds each product nor adds in sequence. It lines all terms of a fused sum
// up with the largest one, drops what falls below a fixed number of fraction bits, adds the rest
// exactly and rounds once:
//
//     E = max exponent of the terms        q = 2^(E - fraction_bits)
//     d = RZ_fp32( q * sum of trunc(term / q) )
//
// mma_plain.h says the same term by term in wide integers and is the version to read first. Here
// eight columns are computed at once, without a branch. The few floating-point operations multiply
// small integers and powers of two, which is exact, or convert to integers, which is toward zero by
// definition: instruction set, rounding mode and compiler flags cannot change a bit.
//
// A header of inline functions without state: any number of shared libraries may include it.

#ifndef LANECHECK_MMA_H_
#define LANECHECK_MMA_H_

#include <cstdint>
#include <cstring>

// A build for baseline x86-64 still uses AVX2 where the machine has it. A test at run time decides,
// not an ifunc (target_clones), whose resolver would run before a sanitizer is ready.
#ifndef LANECHECK_MMA_AVX2_DISPATCH
#if defined(__x86_64__) && !defined(__AVX2__)
#define LANECHECK_MMA_AVX2_DISPATCH 1
#else
#define LANECHECK_MMA_AVX2_DISPATCH 0
#endif
#endif

namespace lanecheck {

// Ampere: sm_80, sm_86, sm_89. Hopper: sm_90 and, as published, sm_100 and sm_120.
enum class Model { ampere = 0, hopper = 1 };

// What distinguishes the models. A zero term takes part in the maximum with `zero_exponent`.
struct Constants {
  int fraction_bits;
  int terms;  // products in one fused sum; C, or the previous sum, is one term more
  int zero_exponent;
};

constexpr Constants constants(Model model) {
  return model == Model::ampere ? Constants{24, 8, -132} : Constants{25, 16, -133};
}

// Under sanitizers the arithmetic would be up to forty times slower, and none is the kernel's.
#ifndef LANECHECK_MMA_UNCHECKED
#define LANECHECK_MMA_UNCHECKED __attribute__((no_sanitize("address", "thread", "undefined")))
#endif
#define LANECHECK_MMA_INLINE inline __attribute__((always_inline)) LANECHECK_MMA_UNCHECKED

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // how vectors are passed: no call here survives inlining

namespace mma_detail {

// Aligned explicitly: without AVX GCC would align them to 16 bytes, and in an AVX2 function to 32.
typedef int32_t Ints __attribute__((vector_size(32), aligned(32)));
typedef uint32_t Words __attribute__((vector_size(32), aligned(32)));
typedef float Floats __attribute__((vector_size(32), aligned(32)));
typedef uint16_t Halves __attribute__((vector_size(16), aligned(16)));

// The exponent given to a zero factor: below every other, and so never the maximum. The floor of E
// stands in for `zero_exponent`, which is exact because C always takes part: with at least -126 if
// it is not zero, and with `zero_exponent` if it is.
constexpr int32_t kNoExponent = -1024;
constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kNaN = 0x7FFFFFFF;

// Sixteen rows of eight FP32 bit patterns.
struct Tile {
  Words row[16];
};

// Factors as exponent and signed significand. A[i][k] meets a whole row B[k].
struct alignas(32) DecodedA {
  int32_t exponent[16][16];
  float significand[16][16];
  bool special;  // an infinity or a NaN somewhere
};

struct DecodedB {
  Ints exponent[16];
  Floats significand[16];
  bool special;
};

LANECHECK_MMA_INLINE bool any(const Ints& mask) {
  int64_t part[4];
  std::memcpy(part, &mask, sizeof part);
  return (part[0] | part[1] | part[2] | part[3]) != 0;
}

// Eight BF16 to exponent and signed integer significand; adds to `special` where one is Inf or NaN.
LANECHECK_MMA_INLINE void decode8(const uint16_t* bits, Ints& exponent, Floats& significand,
                                  Ints& special) {
  Halves half;
  std::memcpy(&half, bits, sizeof half);
  const Ints x = __builtin_convertvector(half, Ints);
  const Ints field = (x >> 7) & 0xFF;
  const Ints normal = field != 0;
  const Ints sign = -(x >> 15);
  const Ints magnitude = (x & 0x7F) | (normal & 0x80);
  exponent = field + normal - 126;  // a subnormal has field 0 and the exponent of field 1
  exponent = magnitude == 0 ? Ints{} + kNoExponent : exponent;
  significand = __builtin_convertvector((magnitude ^ sign) - sign, Floats);
  special |= field == 0xFF;
}

template <Model kModel>
LANECHECK_MMA_INLINE void decode_a(const uint16_t a[16][16], DecodedA& out) {
  // The product of two significands has 14 fraction bits: A brings those that are still missing.
  constexpr float kScale = 1 << (constants(kModel).fraction_bits - 14);
  Ints special{};
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; k += 8) {
      Ints exponent;
      Floats significand;
      decode8(&a[i][k], exponent, significand, special);
      significand *= kScale;
      std::memcpy(&out.exponent[i][k], &exponent, sizeof exponent);
      std::memcpy(&out.significand[i][k], &significand, sizeof significand);
    }
  }
  out.special = any(special);
}

LANECHECK_MMA_INLINE void decode_b(const uint16_t b[16][8], DecodedB& out) {
  Ints special{};
  for (int k = 0; k < 16; ++k) {
    decode8(b[k], out.exponent[k], out.significand[k], special);
  }
  out.special = any(special);
}

// bits = (sum + c) * 2^quantum, toward zero to FP32.
LANECHECK_MMA_INLINE void add_and_round(const Ints& sum, const Ints& c, const Ints& quantum,
                                        Words& bits) {
  // |sum| < 2^31 and |c| <= 2^26, so only the magnitude of the total fits 32 bits.
  const Ints sum_sign = sum >> 31;
  const Ints magnitude = (sum ^ sum_sign) - sum_sign;
  const Ints addend = (c ^ sum_sign) - sum_sign;
  const Ints flip = magnitude < -addend;
  const Words total = (((Words)magnitude + (Words)addend) ^ (Words)flip) - (Words)flip;

  // The position of the leading one is the exponent of its conversion to float; clearing the bit
  // after it keeps the conversion from rounding up to the next power of two.
  const Words top = total >> 31;
  const Words low = (total >> top) | 1u;
  const Floats power = __builtin_convertvector((Ints)(low & ~(low >> 1)), Floats);
  const Ints leading = (Ints)(((Words)power >> 23) + top) - 127;

  // Keep 24 bits, or those down to 2^-149. Both shifts are below 24, and one of them is zero.
  const Ints normal = leading - 23;
  const Ints floor = -149 - quantum;
  const Ints shift = normal > floor ? normal : floor;
  const Ints right = shift & (shift > 0);
  const Ints left = -shift & (shift < 0);
  const Words kept = (total >> (Words)right) << (Words)left;

  const Ints exponent = quantum + shift + 149;  // the biased one, less the implicit leading one
  bits = kept + ((Words)exponent << 23);
  bits = exponent > 253 ? Words{} + kInfinity : bits;
  bits |= (Words)(sum_sign ^ flip) & 0x80000000u;
  bits &= (Words)(kept != 0);  // a zero is +0, whatever the signs
}

// Adds significand * 2^(exponent - largest), toward zero: how many quanta the term is worth.
// The product is exact, an integer below 2^27 by 2^0 ... 2^-126; what lies lower counts as 0.
LANECHECK_MMA_INLINE void add_aligned(const Floats& significand, const Ints& exponent,
                                      const Ints& largest, Ints& sum) {
  Ints field = exponent - (largest - 127);
  field = field > 0 ? field : Ints{};
  sum += __builtin_convertvector(significand * (Floats)(field << 23), Ints);
}

// One fused sum over the slots kFirst ... for every output; true if C holds an Inf or a NaN.
template <Model kModel, int kFirst>
LANECHECK_MMA_INLINE bool fused_sum(const DecodedA& a, const DecodedB& b, const Tile& c, Tile& d) {
  constexpr Constants k = constants(kModel);
  constexpr int kEnd = kFirst + k.terms;
  constexpr float kScale = 1 << (k.fraction_bits - 23);
  Ints special{};
  for (int i = 0; i < 16; ++i) {
    const Ints c_bits = (Ints)c.row[i];
    const Ints c_sign = c_bits >> 31;
    const Ints c_field = (c_bits >> 23) & 0xFF;
    const Ints c_normal = c_field != 0;
    const Ints c_magnitude = (c_bits & 0x7FFFFF) | (c_normal & 0x800000);
    const Floats c_significand =
        __builtin_convertvector((c_magnitude ^ c_sign) - c_sign, Floats) * kScale;
    Ints c_exponent = c_field + c_normal - 126;
    c_exponent = c_magnitude == 0 ? Ints{} + kNoExponent : c_exponent;
    special |= c_field == 0xFF;

    Ints largest = Ints{} + k.zero_exponent;
    largest = c_exponent > largest ? c_exponent : largest;
    for (int s = kFirst; s < kEnd; ++s) {
      const Ints exponent = a.exponent[i][s] + b.exponent[s];
      largest = exponent > largest ? exponent : largest;
    }

    Ints sum{};
    for (int s = kFirst; s < kEnd; ++s) {
      add_aligned(a.significand[i][s] * b.significand[s], a.exponent[i][s] + b.exponent[s], largest,
                  sum);
    }
    Ints addend{};
    add_aligned(c_significand, c_exponent, largest, addend);
    add_and_round(sum, addend, largest - k.fraction_bits, d.row[i]);
  }
  return any(special);
}

// IEEE's answer for the outputs among whose terms is an Inf or a NaN; the others are left alone.
LANECHECK_MMA_UNCHECKED inline void patch_special(const uint16_t a[16][16], const uint16_t b[16][8],
                                                  const Tile& c, Tile& d, int first, int end) {
  uint32_t terms[16][8], out[16][8];
  std::memcpy(terms, &c, sizeof terms);
  std::memcpy(out, &d, sizeof out);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      bool nan = false, infinite[2] = {false, false};
      const auto see = [&](uint32_t magnitude, uint32_t sign) {
        nan |= magnitude > kInfinity;
        infinite[sign] |= magnitude == kInfinity;
      };
      see(terms[i][j] & 0x7FFFFFFF, terms[i][j] >> 31);
      for (int s = first; s < end; ++s) {
        const uint32_t x = uint32_t(a[i][s] & 0x7FFF) << 16, y = uint32_t(b[s][j] & 0x7FFF) << 16;
        const uint32_t larger = x > y ? x : y, smaller = x > y ? y : x;
        if (larger < kInfinity) continue;
        see(smaller == 0 ? kNaN : larger, (a[i][s] ^ b[s][j]) >> 15);
      }
      if (nan || (infinite[0] && infinite[1])) {
        out[i][j] = kNaN;
      } else if (infinite[0] || infinite[1]) {
        out[i][j] = kInfinity | uint32_t(infinite[1]) << 31;
      }
    }
  }
  std::memcpy(&d, out, sizeof out);
}

// acc = A B + acc. The undecoded A and B are read only if they hold an Inf or a NaN.
template <Model kModel>
LANECHECK_MMA_INLINE void accumulate(const DecodedA& a, const DecodedB& b,
                                     const uint16_t a_bits[16][16], const uint16_t b_bits[16][8],
                                     Tile& acc) {
  constexpr int kTerms = constants(kModel).terms;
  Tile next;
  bool special = fused_sum<kModel, 0>(a, b, acc, next);
  if (special | a.special | b.special) patch_special(a_bits, b_bits, acc, next, 0, kTerms);
  if constexpr (kTerms == 16) {
    acc = next;
  } else {
    special = fused_sum<kModel, 8>(a, b, next, acc);
    if (special | a.special | b.special) patch_special(a_bits, b_bits, next, acc, 8, 16);
  }
}

template <Model kModel>
LANECHECK_MMA_INLINE void multiply(const uint16_t a[16][16], const uint16_t b[16][8],
                                   const float c[16][8], float d[16][8]) {
  DecodedA decoded_a;
  DecodedB decoded_b;
  Tile acc;
  decode_a<kModel>(a, decoded_a);
  decode_b(b, decoded_b);
  std::memcpy(&acc, c, sizeof acc);
  accumulate<kModel>(decoded_a, decoded_b, a, b, acc);
  std::memcpy(d, &acc, sizeof acc);
}

LANECHECK_MMA_INLINE void multiply(const uint16_t a[16][16], const uint16_t b[16][8],
                                   const float c[16][8], float d[16][8], Model model) {
  if (model == Model::ampere) {
    multiply<Model::ampere>(a, b, c, d);
  } else {
    multiply<Model::hopper>(a, b, c, d);
  }
}

#if LANECHECK_MMA_AVX2_DISPATCH
__attribute__((target("avx2"))) LANECHECK_MMA_UNCHECKED inline void multiply_avx2(
    const uint16_t a[16][16], const uint16_t b[16][8], const float c[16][8], float d[16][8],
    Model model) {
  multiply(a, b, c, d, model);
}
#endif

}  // namespace mma_detail

#pragma GCC diagnostic pop

// d = A B + C for row-major fragments, every BF16 and FP32 by its bits. d may be c.
LANECHECK_MMA_UNCHECKED inline void mma_m16n8k16(const uint16_t a[16][16], const uint16_t b[16][8],
                                                 const float c[16][8], float d[16][8],
                                                 Model model) {
#if LANECHECK_MMA_AVX2_DISPATCH
  if (__builtin_cpu_supports("avx2")) return mma_detail::multiply_avx2(a, b, c, d, model);
#endif
  mma_detail::multiply(a, b, c, d, model);
}

}  // namespace lanecheck

#endif  // LANECHECK_MMA_H_
