// The part of CUDA C++ that small kernels use, for a host compiler. Not an emulation of the CUDA
// runtime: one device, one launch at a time, and only what can be done faithfully.
#pragma once

#include <simt.h>
#include <stdint.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

// --- Qualifiers ---------------------------------------------------------------------------------

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static
#define __align__(n) alignas(n)

// The runtime swaps this section when it goes from one CTA to the next, which is how each gets its
// own copy. gcc ignores the attribute inside templates; shared.ld collects those.
#define __shared__ static __attribute__((section("simt_shared")))

// --- Built-in variables -------------------------------------------------------------------------

// Constant for whoever can read them: the runtime sets them whenever a thread goes on.
#pragma GCC visibility push(hidden)
extern const uint3 threadIdx, blockIdx, blockDim, gridDim;
#pragma GCC visibility pop
constexpr int warpSize = 32;

// --- Synchronisation and warp functions ---------------------------------------------------------

#define SIMT_LINE int line = __builtin_LINE()

__forceinline__ void __syncthreads(SIMT_LINE) {
  simt::detail::barrier(simt::detail::Reduce::none, 0, line);
}
__forceinline__ int __syncthreads_or(int predicate, SIMT_LINE) {
  return simt::detail::barrier(simt::detail::Reduce::any, predicate, line);
}
__forceinline__ int __syncthreads_and(int predicate, SIMT_LINE) {
  return simt::detail::barrier(simt::detail::Reduce::all, predicate, line);
}
__forceinline__ int __syncthreads_count(int predicate, SIMT_LINE) {
  return simt::detail::barrier(simt::detail::Reduce::count, predicate, line);
}
__forceinline__ void __syncwarp(unsigned mask = 0xFFFFFFFFu, SIMT_LINE) {
  simt::detail::syncwarp(mask, line);
}
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, SIMT_LINE) {
  return simt::detail::ballot(mask, predicate, line);
}
__forceinline__ int __any_sync(unsigned mask, int predicate, SIMT_LINE) {
  return simt::detail::ballot(mask, predicate, line) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate, SIMT_LINE) {
  return simt::detail::ballot(mask, !predicate, line) == 0;
}

// Any set of lanes that holds the caller is a legal answer; the smallest is the least forgiving.
__forceinline__ unsigned __activemask() { return 1u << simt::detail::lane_id(); }

namespace simt::detail {
template <typename T>
__forceinline__ T shuffled(Shuffle how, unsigned mask, T value, unsigned argument, int width,
                           int line) {
  static_assert(sizeof(T) == 4, "only 4-byte values are shuffled");
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = shuffle(how, mask, bits, argument, width, line);
  std::memcpy(&value, &bits, 4);
  return value;
}
}  // namespace simt::detail

#define SIMT_SHUFFLE(name, how)                                                                    \
  template <typename T>                                                                            \
  __forceinline__ T name(unsigned mask, T value, unsigned argument, int width = 32, SIMT_LINE) {   \
    return simt::detail::shuffled(simt::detail::Shuffle::how, mask, value, argument, width, line); \
  }
SIMT_SHUFFLE(__shfl_sync, index)
SIMT_SHUFFLE(__shfl_up_sync, up)
SIMT_SHUFFLE(__shfl_down_sync, down)
SIMT_SHUFFLE(__shfl_xor_sync, exclusive_or)
#undef SIMT_SHUFFLE

// --- Fences and atomics -------------------------------------------------------------------------

__forceinline__ void __threadfence_block() { simt::detail::fence(simt::detail::Scope::cta); }
__forceinline__ void __threadfence() { simt::detail::fence(simt::detail::Scope::gpu); }
__forceinline__ void __threadfence_system() { simt::detail::fence(simt::detail::Scope::gpu); }

#define SIMT_ATOMIC(type, name, op)                                                               \
  __forceinline__ type name(type* p, type v) {                                                    \
    return static_cast<type>(simt::detail::atomic(simt::detail::Atomic::op, p, sizeof(type), v)); \
  }
SIMT_ATOMIC(int, atomicAdd, add)
SIMT_ATOMIC(unsigned, atomicAdd, add)
SIMT_ATOMIC(unsigned long long, atomicAdd, add)
SIMT_ATOMIC(int, atomicExch, exchange)
SIMT_ATOMIC(unsigned, atomicExch, exchange)
SIMT_ATOMIC(unsigned, atomicInc, increment)
SIMT_ATOMIC(unsigned, atomicMin, minimum)
SIMT_ATOMIC(unsigned, atomicMax, maximum)
SIMT_ATOMIC(unsigned, atomicAnd, bit_and)
SIMT_ATOMIC(unsigned, atomicOr, bit_or)
#undef SIMT_ATOMIC

__forceinline__ int atomicSub(int* p, int v) { return atomicAdd(p, -v); }
__forceinline__ unsigned atomicSub(unsigned* p, unsigned v) { return atomicAdd(p, 0u - v); }

__forceinline__ int atomicCAS(int* p, int compare, int v) {
  return static_cast<int>(simt::detail::atomic(simt::detail::Atomic::compare, p, 4,
                                               static_cast<unsigned>(v),
                                               static_cast<unsigned>(compare)));
}
__forceinline__ unsigned atomicCAS(unsigned* p, unsigned compare, unsigned v) {
  return static_cast<unsigned>(
      simt::detail::atomic(simt::detail::Atomic::compare, p, 4, v, compare));
}

// --- Memory and arithmetic ----------------------------------------------------------------------

template <typename T>
__forceinline__ T __ldg(const T* p, SIMT_LINE) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) simt::detail::misaligned(p, sizeof(T), line);
  return *p;
}

namespace simt::detail {
template <typename To, typename From>
__forceinline__ To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace simt::detail

__forceinline__ unsigned __float_as_uint(float f) { return simt::detail::bits<unsigned>(f); }
__forceinline__ int __float_as_int(float f) { return simt::detail::bits<int>(f); }
__forceinline__ float __uint_as_float(unsigned u) { return simt::detail::bits<float>(u); }
__forceinline__ float __int_as_float(int i) { return simt::detail::bits<float>(i); }

__forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__forceinline__ float __fsub_rn(float a, float b) { return a - b; }
__forceinline__ float __fmul_rn(float a, float b) { return a * b; }
__forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

__forceinline__ float atomicAdd(float* p, float v) {
  return __uint_as_float(static_cast<unsigned>(
      simt::detail::atomic(simt::detail::Atomic::add_float, p, 4, __float_as_uint(v))));
}
__forceinline__ float atomicExch(float* p, float v) {
  return __uint_as_float(static_cast<unsigned>(
      simt::detail::atomic(simt::detail::Atomic::exchange, p, 4, __float_as_uint(v))));
}

#define SIMT_MIN_MAX(type)                                                     \
  __forceinline__ constexpr type min(type a, type b) { return b < a ? b : a; } \
  __forceinline__ constexpr type max(type a, type b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX

// --- Host API -----------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};

typedef struct CUstream_st* cudaStream_t;

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorLaunchTimeout:
      return "the launch timed out and was terminated";
    case cudaErrorMisalignedAddress:
      return "misaligned address";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorUnknown:
      break;
  }
  return "unknown error";
}

namespace simt::detail {
inline cudaError_t last_error = cudaSuccess;
inline cudaError_t noted(int code) {
  const cudaError_t error = static_cast<cudaError_t>(code);
  if (error != cudaSuccess) last_error = error;
  return error;
}
}  // namespace simt::detail

inline cudaError_t cudaPeekAtLastError() { return simt::detail::last_error; }
inline cudaError_t cudaGetLastError() {
  return std::exchange(simt::detail::last_error, cudaSuccess);
}

// A launch has ended when it returns, so there is nothing to wait for.
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t = nullptr) {
  std::memset(p, value, bytes);
  return cudaSuccess;
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
};

union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative;
  int priority;
  int programmaticStreamSerializationAllowed;
  struct {
    unsigned x, y, z;
  } clusterDim;
};

struct cudaLaunchAttribute {  // accepted, and without effect
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return simt::detail::noted(
      simt::detail::allow_dynamic_shared(reinterpret_cast<const void*>(kernel), value));
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> parameters;
  };
  const Call call{kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)};
  simt::detail::Launch launch;
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  launch.dynamic_bytes = config->dynamicSmemBytes;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.arguments = &call;
  launch.call = [](const void* arguments) {
    const Call& call = *static_cast<const Call*>(arguments);
    std::apply(call.kernel, call.parameters);
  };
  return simt::detail::noted(simt::detail::launch(launch));
}

#undef SIMT_LINE
