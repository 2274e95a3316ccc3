// The runtime that a kernel's host build links with: entry points of simt.h, and the C ABI by which
// a test harness sets up memory and schedule and asks what happened.
#include <dlfcn.h>

#include <mutex>
#include <unordered_map>

#include "fault.h"
#include "race.h"
#include "warp.h"

#pragma GCC visibility push(hidden)
uint3 threadIdx, blockIdx, blockDim, gridDim;
#pragma GCC visibility pop

namespace simt {

Machine machine;

namespace {

std::mutex one_launch;
std::unordered_map<const void*, size_t> dynamic_limits;
constexpr size_t kDefaultDynamic = 48 << 10, kMaxDynamic = 227 << 10;

}  // namespace

// Where the kernel called, for a report.
#define SIMT_NOTE_CALLER() \
  (machine.self->site = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1)

void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                       int line) {
  SIMT_NOTE_CALLER();
  mma(d, a, b, c, line);
}

void* dynamic_shared() {
  Region* r = machine.self->cta->dynamic;
  static char none[16] __attribute__((aligned(16)));
  return r ? r->base : none + sizeof none;
}

namespace detail {

int barrier(Reduce reduce, int predicate, int line) {
  SIMT_NOTE_CALLER();
  return machine.barrier(reduce, predicate, line);
}

void syncwarp(uint32_t mask, int line) {
  SIMT_NOTE_CALLER();
  collective(Wait::syncwarp, mask, 0, 0, line);
}

uint32_t ballot(uint32_t mask, bool predicate, int line) {
  SIMT_NOTE_CALLER();
  return collective(Wait::ballot, mask, predicate, 0, line);
}

uint32_t shuffle(Shuffle how, uint32_t mask, uint32_t value, uint32_t argument, int width,
                 int line) {
  SIMT_NOTE_CALLER();
  const uint32_t packed =
      (argument & 31) | static_cast<uint32_t>(width & 63) << 8 | static_cast<uint32_t>(how) << 16;
  return collective(Wait::shuffle, mask, value, packed, line);
}

uint32_t lane_id() { return machine.self->lane; }

void fence(Scope scope) {
  SIMT_NOTE_CALLER();
  race::fence(scope);
  if (machine.preempt && machine.random() & 1) machine.yield();
}

void misaligned(const void* p, unsigned size, int line) {
  SIMT_NOTE_CALLER();
  Text& text = machine.fail("alignment", machine.self, line);
  machine.locate(static_cast<const char*>(p));
  machine.report.access = "read";
  text.add("misaligned %u-byte load at %s%+lld (size %zu)", size, machine.report.buffer,
           machine.report.offset, machine.report.size);
  machine.abandon();
}

template <typename T>
T combined(Atomic op, T old, T v, T compare) {
  switch (op) {
    case Atomic::add:
      return old + v;
    case Atomic::exchange:
      return v;
    case Atomic::compare:
      return old == compare ? v : old;
    case Atomic::increment:
      return old >= v ? 0 : old + 1;
    case Atomic::minimum:
      return v < old ? v : old;
    case Atomic::maximum:
      return v < old ? old : v;
    case Atomic::bit_and:
      return old & v;
    case Atomic::bit_or:
      return old | v;
    case Atomic::add_float:
      break;
  }
  float sum, addend;
  memcpy(&sum, &old, 4);
  memcpy(&addend, &v, 4);
  sum += addend;
  memcpy(&old, &sum, 4);
  return old;
}

template <typename T>
T atomic(Atomic op, void* p, T operand, T compare) {
  T old;
  machine.in_atomic = true;
  memcpy(&old, p, sizeof old);
  const T now = combined(op, old, operand, compare);
  race::observe(p, sizeof old, true, op != Atomic::compare || old == compare);
  if (now != old) memcpy(p, &now, sizeof now);
  machine.in_atomic = false;
  machine.poll(now != old);
  return old;
}

uint64_t atomic(Atomic op, void* p, unsigned size, uint64_t operand, uint64_t compare) {
  SIMT_NOTE_CALLER();
  if (reinterpret_cast<uintptr_t>(p) % size) misaligned(p, size, 0);
  if (machine.preempt && machine.random() & 1) machine.yield();
  if (size == 8) return atomic<uint64_t>(op, p, operand, compare);
  return atomic<uint32_t>(op, p, static_cast<uint32_t>(operand), static_cast<uint32_t>(compare));
}

int allow_dynamic_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxDynamic) return 1;
  dynamic_limits[kernel] = bytes;
  return 0;
}

static int invalid(const Launch& l) {
  const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
  if (!l.kernel) return 98;
  if (!threads || l.block.x > 1024 || l.block.y > 1024 || l.block.z > 64 || threads > 1024)
    return 9;
  if (!l.grid.x || !l.grid.y || !l.grid.z) return 9;
  if (l.grid.x > 0x7FFFFFFF || l.grid.y > 65535 || l.grid.z > 65535) return 9;
  if (uint64_t{l.grid.x} * l.grid.y * l.grid.z > 0x7FFFFFFF) return 801;  // not of CUDA, of ours
  const auto limit = dynamic_limits.find(l.kernel);
  if (l.dynamic_bytes > (limit == dynamic_limits.end() ? kDefaultDynamic : limit->second)) return 1;
  return 0;
}

int launch(const Launch& l) {
  std::lock_guard<std::mutex> lock(one_launch);
  if (const int error = invalid(l)) return error;
  if (!machine.code_base) {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&simt_shared_begin), &info);
    machine.code_base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  }
  machine.report = Report();
  machine.busy = 1;
  race::begin_launch();
  {
    SignalGuard signals;
    machine.run(l);
  }
  machine.arena.end_launch();
  machine.check_dynamic_shared();
  machine.finish_report();
  return machine.report.error_code();
}

}  // namespace detail
}  // namespace simt

// --- C ABI --------------------------------------------------------------------------------------

using simt::machine;

#define SIMT_EXPORT extern "C" __attribute__((visibility("default")))

SIMT_EXPORT void simt_configure(uint64_t schedule_seed, int model, int resident_ctas, int preempt,
                                uint64_t poison_seed) {
  machine.random = simt::Random(schedule_seed);
  machine.model = model;
  machine.residents = resident_ctas < 1 ? 1 : resident_ctas > 64 ? 64 : resident_ctas;
  machine.preempt = preempt != 0;
  machine.poison_seed = poison_seed;
}

// A launch ends with an error after so many switches, or seconds of CPU time.
SIMT_EXPORT void simt_limits(uint64_t switches, double seconds) {
  machine.switch_limit = switches;
  machine.seconds_limit = seconds;
}

SIMT_EXPORT void* simt_alloc(const char* name, size_t bytes, size_t align, int side,
                             int readonly_during_launch) {
  simt::Region* r = machine.arena.allocate(name, bytes, align, side == 1,
                                           readonly_during_launch != 0, machine.poison_seed);
  return r ? r->base : nullptr;
}

SIMT_EXPORT int simt_check(char* message, size_t n) {
  int damaged = 0;
  size_t length = 0;
  if (n) message[0] = 0;
  for (const simt::Region* r : machine.arena.live()) {
    const long long at = simt::Arena::damage(*r);
    if (at == simt::Arena::kIntact) continue;
    damaged++;
    if (length >= n) continue;
    const int wanted = snprintf(message + length, n - length,
                                "%swritten outside of its buffer: %s%+lld (size %zu)",
                                length ? "\n" : "", r->name, at, r->size);
    length += wanted > 0 ? wanted : 0;
  }
  return damaged;
}

SIMT_EXPORT void simt_free_all() { machine.arena.release_buffers(); }

SIMT_EXPORT const char* simt_report() {
  static char json[4096];
  machine.report.write(json, sizeof json);
  return json;
}

SIMT_EXPORT void simt_clear() { machine.report = simt::Report(); }

SIMT_EXPORT uint64_t simt_switches() { return machine.switches; }

// From now on, logs the mma of the CTA `block`, of all if it is null; a limit of 0 ends that.
SIMT_EXPORT void simt_log_mma(const uint32_t* block, size_t limit) {
  simt::mma_log.begin(block, limit);
}

// The records of the first `limit` of the mma that were executed since.
SIMT_EXPORT const simt::MmaRecord* simt_mma_log(size_t* executed) {
  *executed = simt::mma_log.executed();
  return simt::mma_log.records();
}
