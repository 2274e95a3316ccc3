// CUDA's small vectors, with the alignment that makes one of them one memory transaction.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

#define SIMT_VECTOR(scalar, name)                                         \
  struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };            \
  struct alignas(4 * sizeof(scalar)) name##4 { scalar x, y, z, w; };      \
  constexpr name##2 make_##name##2(scalar x, scalar y) { return {x, y}; } \
  constexpr name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

SIMT_VECTOR(int, int)
SIMT_VECTOR(unsigned, uint)
SIMT_VECTOR(float, float)

#undef SIMT_VECTOR
