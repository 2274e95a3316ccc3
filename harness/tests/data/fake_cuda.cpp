// A CUDA driver on whose device memory is the host's: what lanecheck.cuda_driver calls, for tests.
// A mapped range is readable and writable, a reserved one is neither.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {
constexpr int kOutOfMemory = 2, kNoDevice = 100, kIllegalAddress = 700;
constexpr size_t kGranule = 1 << 21;
std::map<uint64_t, size_t> allocated;
int pending = 0;  // what the next synchronisation reports
}  // namespace

extern "C" {

size_t fake_reserved = 0, fake_mapped = 0;  // bytes
void fake_fault() { pending = kIllegalAddress; }
void fake_heal() { pending = 0; }
size_t fake_allocations() { return allocated.size(); }

int cuInit(unsigned) { return getenv("FAKE_CUDA_ABSENT") ? kNoDevice : 0; }
int cuDeviceGet(int* device, int number) { return *device = number, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &pending, 0; }
int cuCtxSetCurrent(void* context) { return context == &pending ? 0 : 1; }
int cuCtxSynchronize() { return pending; }
int cuStreamCreate(void** stream, unsigned) { return *stream = &allocated, 0; }

int cuMemGetAllocationGranularity(size_t* size, const void*, int) { return *size = kGranule, 0; }

int cuMemAddressReserve(uint64_t* address, size_t size, size_t, uint64_t, uint64_t) {
  const size_t whole = size + kGranule;
  const auto base = reinterpret_cast<uint64_t>(
      mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  *address = (base + kGranule - 1) / kGranule * kGranule;
  fake_reserved += size;
  return 0;
}
int cuMemAddressFree(uint64_t, size_t size) { return fake_reserved -= size, 0; }

int cuMemCreate(uint64_t* handle, size_t size, const void*, uint64_t) {
  if (size > size_t{1} << 40) return kOutOfMemory;
  return *handle = 1, 0;
}
int cuMemRelease(uint64_t) { return 0; }
int cuMemMap(uint64_t, size_t size, size_t, uint64_t, uint64_t) { return fake_mapped += size, 0; }
int cuMemSetAccess(uint64_t address, size_t size, const void*, size_t) {
  return mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE) ? 1 : 0;
}
int cuMemUnmap(uint64_t address, size_t size) {
  fake_mapped -= size;
  return mprotect(reinterpret_cast<void*>(address), size, PROT_NONE) ? 1 : 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t size) {
  *address = reinterpret_cast<uint64_t>(aligned_alloc(256, (size + 255) / 256 * 256));
  memset(reinterpret_cast<void*>(*address), 0xEE, size);
  allocated[*address] = size;
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  if (!allocated.erase(address)) return 1;
  return free(reinterpret_cast<void*>(address)), 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void*) {
  return memcpy(reinterpret_cast<void*>(to), from, size), pending;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void*) {
  return memcpy(to, reinterpret_cast<void*>(from), size), pending;
}

int cuGetErrorName(int code, const char** name) {
  return *name = code == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR", 0;
}
int cuGetErrorString(int code, const char** text) {
  return *text = code == kOutOfMemory ? "out of memory" : "an illegal memory access", 0;
}

}  // extern "C"
