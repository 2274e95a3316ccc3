// The CUDA kernel of the torch operator packed_gemv::gemv, whose schema ops.py defines.
//
// Written against LibTorch's stable ABI alone, so one build serves torch 2.10 and later and every
// Python. What is checked here keeps a launch inside its tensors' memory; ops.py explains more
// kindly.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "launch.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(std::string("packed_gemv::gemv: ") + message);
}

bool on(const Tensor& tensor, int32_t device) {
  return tensor.is_cuda() && tensor.get_device_index() == device;
}

// Columns are adjacent and rows do not overlap. A single row or column may have any stride.
bool row_strided(const Tensor& tensor) {
  if (tensor.dim() != 2) return false;
  const int64_t rows = tensor.size(0), columns = tensor.size(1);
  return (columns <= 1 || tensor.stride(1) == 1) && (rows <= 1 || tensor.stride(0) >= columns);
}

const void* packed(const Tensor& w, int64_t n, int64_t k, int32_t device) {
  require(on(w, device) && w.scalar_type() == ScalarType::BFloat16 && w.is_contiguous(),
          "every weight must be contiguous BF16 on x's device");
  require(w.dim() == 5 && w.size(0) == (n + 15) / 16 && w.size(1) == (k + 31) / 32 &&
              w.size(2) == 2 && w.size(3) == 32 && w.size(4) == 8,
          "every weight must be packed [ceil(N/16), ceil(K/32), 2, 32, 8], with N of y and K of x");
  require(reinterpret_cast<uintptr_t>(w.const_data_ptr()) % 16 == 0,
          "a weight does not start at a multiple of 16 bytes; clone it");
  return w.const_data_ptr();
}

const void* bias_of(const std::optional<Tensor>& bias, int64_t n, int32_t device) {
  if (!bias) return nullptr;
  require(on(*bias, device) && bias->scalar_type() == ScalarType::BFloat16 &&
              bias->is_contiguous() && bias->dim() == 1 && bias->size(0) == n,
          "every bias must be contiguous BF16 [N] on x's device");
  return bias->const_data_ptr();
}

void* output(const Tensor& y, const Tensor& like, int32_t device) {
  require(on(y, device) && row_strided(y),
          "every output must be [M, N] on x's device, columns adjacent and rows apart");
  require(y.scalar_type() == ScalarType::BFloat16 || y.scalar_type() == ScalarType::Float,
          "every output must be BF16 or FP32");
  require(y.size(0) == like.size(0) && y.size(1) == like.size(1) &&
              y.scalar_type() == like.scalar_type() &&
              (y.size(0) <= 1 || y.stride(0) == like.stride(0)),
          "both outputs must have the same shape, dtype and row stride");
  return y.mutable_data_ptr();
}

[[noreturn]] void launch_failed(cudaError_t error, const PackedGemvArgs& a) {
  std::string message = std::string("packed_gemv::gemv: the launch failed with ") +
                        cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
  if (error == cudaErrorInvalidValue) {
    message += ": no kernel was built for M=" + std::to_string(a.m) + ", N=" + std::to_string(a.n) +
               ", K=" + std::to_string(a.k) + ", nw=" + std::to_string(a.nw) +
               ", u=" + std::to_string(a.u) + ", s=" + std::to_string(a.s);
  } else if (error == cudaErrorNoKernelImageForDevice) {
    message += ": build the library for this GPU with `python -m packed_gemv.build`";
  }
  throw std::runtime_error(message);
}

void gemv(const Tensor& x, const Tensor& w, const std::optional<Tensor>& w2,
          const std::optional<Tensor>& bias, const std::optional<Tensor>& bias2,
          const std::vector<int64_t>& walk, bool fused, const Tensor& y,
          const std::optional<Tensor>& y2) {
  require(x.is_cuda() && x.scalar_type() == ScalarType::BFloat16 && row_strided(x),
          "x must be BF16 [M, K] on a GPU, columns adjacent and rows apart");
  require(y.dim() == 2 && y.size(0) == x.size(0), "y must be [M, N] with the M of x");
  require(x.size(0) <= 64, "x must have at most 64 tokens");
  require(walk.size() == 3, "walk must be [nw, u, s]");
  for (const int64_t value : walk) require(value >= 1 && value <= 65535, "walk is out of range");
  require(w2 || !bias2, "bias2 needs w2");
  require(w2.has_value() || !fused, "fused needs w2");
  require(y2.has_value() == (w2.has_value() && !fused), "y2 is for two weights that are not fused");
  const int32_t device = x.get_device_index();

  PackedGemvArgs args = {};
  args.m = x.size(0);
  args.n = y.size(1);
  args.k = x.size(1);
  args.ldx = args.m > 1 ? x.stride(0) : args.k;
  args.ldy = args.m > 1 ? y.stride(0) : args.n;
  args.x = x.const_data_ptr();
  args.w[0] = packed(w, args.n, args.k, device);
  args.bias[0] = bias_of(bias, args.n, device);
  args.y[0] = output(y, y, device);
  if (w2) {
    args.w[1] = packed(*w2, args.n, args.k, device);
    args.bias[1] = bias_of(bias2, args.n, device);
  }
  if (y2) args.y[1] = output(*y2, y, device);
  args.nw = static_cast<int32_t>(walk[0]);
  args.u = static_cast<int32_t>(walk[1]);
  args.s = static_cast<int32_t>(walk[2]);
  args.fused = fused;
  args.out_fp32 = y.scalar_type() == ScalarType::Float;
  if (args.m == 0) return;

  const torch::stable::accelerator::DeviceGuard guard(device);
  void* stream = nullptr;
  require(aoti_torch_get_current_cuda_stream(device, &stream) == AOTI_TORCH_SUCCESS,
          "there is no current CUDA stream");

  // The workspace may be freed before the kernel has run: its memory goes back to this stream, in
  // order.
  std::optional<Tensor> workspace;
  if (const int64_t bytes = packed_gemv_workspace_bytes(&args)) {
    workspace = torch::stable::new_empty(x, {bytes}, ScalarType::Byte);
    args.workspace = workspace->mutable_data_ptr();
  }
  const cudaError_t error = packed_gemv_launch(&args, static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) launch_failed(error, args);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(packed_gemv, CUDA, m) { m.impl("gemv", TORCH_BOX(&gemv)); }
