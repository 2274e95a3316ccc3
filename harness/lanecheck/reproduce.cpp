// Runs one case without Lanecheck: loads its buffers, launches the kernel, compares bit for bit.
// Exit code 0 if every bit is the expected one, 1 if one is not or a launch fails, 2 without a GPU
// for it. case.h has the case.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

enum class Role { input, output, workspace };

// Rows of `columns` elements, `stride` elements apart, from `offset` elements behind the start.
struct Tensor {
  const char* name;
  Role role;
  size_t item, rows, columns, stride, offset, align;  // item and align in bytes
  uint32_t poison[2];  // what every other element holds before the first and the second launch
};

struct Core {
  const char* name;
  int model;             // of lanecheck/mma.h
  int capabilities[16];  // compute capabilities, as in 90
};

struct Schedule {  // of one launch on the host
  uint64_t seed;
  int residents, preempt;
  uint64_t poison;
};

void* buffer(const char* name);  // a tensor's first element; null if the case has no such tensor

#include "case.h"

using Bytes = std::vector<unsigned char>;

static std::map<std::string, void*> memory;  // what a tensor's rows and gaps lie in

static size_t span(const Tensor& t) {
  return t.rows && t.columns ? t.offset + (t.rows - 1) * t.stride + t.columns : t.offset;
}

void* buffer(const char* name) {
  for (const Tensor& t : kTensors) {
    if (!strcmp(t.name, name)) return static_cast<char*>(memory[name]) + t.offset * t.item;
  }
  return nullptr;
}

#ifdef ON_HOST  // executed by simt/runtime.cpp, whose memory is guarded by inaccessible pages

extern "C" {
void simt_configure(uint64_t schedule_seed, int model, int residents, int preempt, uint64_t poison);
void* simt_alloc(const char* name, size_t bytes, size_t align, int side, int readonly);
int simt_check(char* message, size_t bytes);
void simt_free_all();
const char* simt_report();
}

static bool runs_on(const Core&) { return true; }

static void prepare(const Core& core, int launch) {
  if (!launch) simt_free_all();
  const Schedule& how = kSchedules[launch];
  simt_configure(how.seed, core.model, how.residents, how.preempt, how.poison);
}
static void* allocate(const Tensor& t) {
  return simt_alloc(t.name, span(t) * t.item, t.align, kLowerSide, t.role == Role::input);
}
static void upload(void* to, const Bytes& from) { memcpy(to, from.data(), from.size()); }
static void download(Bytes& to, const void* from) { memcpy(to.data(), from, to.size()); }
static std::string finished(int code) {
  char damage[4096];
  const std::string report = simt_report();
  if (!report.empty()) return report;
  if (code) return "launch: CUDA error " + std::to_string(code);
  return simt_check(damage, sizeof damage) ? damage : "";
}

#else

static bool runs_on(const Core& core) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  for (int capability : core.capabilities) {
    if (capability && capability == 10 * major + minor) return true;
  }
  return false;
}
static void prepare(const Core&, int) {}
static void* allocate(const Tensor& t) {
  void* p = nullptr;
  cudaMalloc(&p, span(t) * t.item);
  return p;
}
static void upload(void* to, const Bytes& from) {
  cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice);
}
static void download(Bytes& to, const void* from) {
  cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost);
}
static std::string finished(int code) {
  const int later = cudaDeviceSynchronize();
  if (!code && !later) return "";
  return std::string("launch: ") +
         cudaGetErrorString(static_cast<cudaError_t>(code ? code : later));
}

#endif

// The tensor as it lies in memory: the file's rows, and poison around them.
static Bytes image(const Tensor& t, int launch, const std::string& file) {
  Bytes bytes(span(t) * t.item);
  for (size_t i = 0; i < span(t); i++) memcpy(&bytes[i * t.item], &t.poison[launch], t.item);
  if (file.empty()) return bytes;
  FILE* const rows = fopen(("data/" + file + ".bin").c_str(), "rb");
  for (size_t r = 0; r < t.rows; r++) {
    unsigned char* const row = bytes.data() + (t.offset + r * t.stride) * t.item;
    if (!rows || fread(row, t.item, t.columns, rows) != t.columns) {
      fprintf(stderr, "data/%s.bin cannot be read: run this in its folder\n", file.c_str());
      exit(2);
    }
  }
  fclose(rows);
  return bytes;
}

static std::string shown(const Tensor& t, const unsigned char* element) {
  uint32_t bits = 0;
  memcpy(&bits, element, t.item);
  const uint32_t wide = t.item == 2 ? bits << 16 : bits;
  float value;
  memcpy(&value, &wide, 4);
  char text[64];
  snprintf(text, sizeof text, "%.9g (0x%0*X)", value, static_cast<int>(2 * t.item), bits);
  return text;
}

// How many elements of an output are wrong, gaps between its rows included; prints the first.
static size_t compare(const Tensor& t, const Bytes& want, const char* launched) {
  Bytes held(want.size());
  download(held, memory[t.name]);
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < span(t); i++) {
    if (!memcmp(&held[i * t.item], &want[i * t.item], t.item)) continue;
    if (!wrong++) first = i;
  }
  if (!wrong) return 0;
  const size_t row = (first - t.offset) / t.stride, column = (first - t.offset) % t.stride;
  printf("%s: %s[%zu, %zu]%s is %s, expected %s (%zu elements differ)\n", launched, t.name, row,
         column, column < t.columns ? "" : " between the rows",
         shown(t, &held[first * t.item]).c_str(), shown(t, &want[first * t.item]).c_str(), wrong);
  return wrong;
}

static size_t launch_and_compare(const Core& core, int launch) {
  const std::string launched = std::string(core.name) + ", launch " + std::to_string(launch + 1);
  prepare(core, launch);
  for (const Tensor& t : kTensors) {
    if (!launch) memory[t.name] = allocate(t);
    const bool input = t.role == Role::input, left = t.role == Role::workspace && kWorkspaceStays;
    if (launch && left) continue;  // to be found as the first launch left it
    upload(memory[t.name], input ? image(t, 0, t.name) : image(t, launch, ""));
  }
  const std::string problem = finished(::launch());
  if (!problem.empty()) printf("%s: %s\n", launched.c_str(), problem.c_str());
  size_t wrong = !problem.empty();
  for (const Tensor& t : kTensors) {
    if (t.role != Role::output) continue;
    const std::string expected = std::string("expected/") + core.name + "/" + t.name;
    wrong += compare(t, image(t, launch, expected), launched.c_str());
  }
  return wrong;
}

int main() {
  size_t wrong = 0;
  bool any = false;
  for (const Core& core : kCores) {
    if (!runs_on(core)) continue;
    any = true;
    for (int launch = 0; launch < 2; launch++) wrong += launch_and_compare(core, launch);
  }
  if (!any) {
    printf("no GPU here has a tensor core whose results are in data/expected\n");
    return 2;
  }
  if (!wrong) printf("every bit is the expected one\n");
  return wrong != 0;
}
