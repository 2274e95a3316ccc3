// The machine: fibers for threads, grouped in warps and resident CTAs, and a seeded random
// schedule.
//
// A thread runs until it waits for others; then any thread that can go on may be next. How strongly
// the choice prefers the same warp and CTA is itself drawn for each launch, so that some schedules
// run warps ahead of each other and others interleave them finely. In most, some warps are kept
// back after a barrier until nobody else can go on: the rarest interleavings are those in which
// somebody is late by a whole phase of everybody else.
#pragma once

#include <simt.h>

#include <memory>
#include <utility>
#include <vector>

#include "context.h"
#include "memory.h"
#include "report.h"

extern "C" char simt_shared_begin[], simt_shared_end[];
#pragma GCC visibility push(hidden)
extern uint3 threadIdx, blockIdx, blockDim, gridDim;
#pragma GCC visibility pop

namespace simt {

class Random {  // wyrand: one multiplication, and a state that never waits for it
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {
    state_ = (*this)();
    state_ = (*this)() ^ seed;
  }
  uint64_t operator()() {
    state_ += 0xA0761D6478BD642F;
    const unsigned __int128 product =
        static_cast<unsigned __int128>(state_) * (state_ ^ 0xE7037ED1A0B428DB);
    return static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((*this)() >> 32) * n >> 32); }

 private:
  uint64_t state_;
};

// A set bit of a non-empty mask: the first one from a random position on.
inline unsigned pick(uint32_t mask, uint64_t random) {
  const unsigned turn = random & 31;
  return (__builtin_ctz(mask >> turn | mask << (-turn & 31)) + turn) & 31;
}
inline unsigned pick(uint64_t mask, uint64_t random) {
  const unsigned turn = random & 63;
  return (__builtin_ctzll(mask >> turn | mask << (-turn & 63)) + turn) & 63;
}

enum class Wait : uint8_t { none, barrier, syncwarp, shuffle, ballot, mma, exited, absent };
constexpr int kWaits = 8;

struct Cta;
struct Warp;
struct Fiber;

void reconsider(Warp& w);  // warp.h: a lane has exited

namespace race {  // race.h: empty unless the kernel is compiled with hooks
struct ThreadHistory;
struct CtaHistory;
void cta_started(Cta& c);
void barrier_opened(Cta& c);
void warp_synchronised(Warp& w, uint32_t lanes);
}  // namespace race

struct alignas(64) Fiber {
  Context context;
  Cta* cta;
  Warp* warp;
  uint3 index;  // threadIdx
  uint32_t thread, lane;
  Wait wait;
  int line;        // where it waits
  uintptr_t site;  // code address of its last call into the runtime
  uint32_t mask;   // of the lanes it waits for
  uint32_t value, argument, result;
  uint32_t spins;  // atomics in a row that changed nothing
  race::ThreadHistory* history = nullptr;
};

// The registers of one mma, filled lane by lane in the layout the arithmetic wants.
struct MmaTiles {
  uint16_t a[16][16];
  uint16_t b[16][8];
  alignas(32) float c[16][8];
  alignas(32) float d[16][8];
};

struct Warp {
  uint32_t id;
  uint32_t ready, alive;
  uint32_t held;             // could go on, but is kept back
  uint32_t waiting[kWaits];  // lanes by what they wait for
  int mma_line;
  uint32_t logged;  // mma, see mma_log.h
  Fiber* lanes;     // of this warp, 32 though fewer may be alive
  std::unique_ptr<MmaTiles> mma;
};

struct Cta {
  uint32_t slot, id;
  uint3 index;  // blockIdx
  uint32_t ready_warps;
  uint32_t alive, arrived;
  int barrier_line, other_line;  // where the first, and a thread elsewhere, arrived
  uint32_t first_thread, other_thread;
  int any, all, count;  // of the predicates at the barrier
  std::vector<Warp> warps;
  std::vector<Fiber> fibers;
  std::vector<char> statics;  // its static shared memory while another CTA's is in place
  Region* dynamic = nullptr;
  race::CtaHistory* history = nullptr;
};

class __attribute__((visibility("hidden"))) Machine {
 public:
  // --- settings
  Random random;
  uint64_t poison_seed = 0;
  int model = 1;
  unsigned residents = 4;
  bool preempt = false;
  uint64_t switch_limit = 200'000'000;
  double seconds_limit = 10;

  // --- state of the launch
  Arena arena;
  Report report;
  uint64_t switches = 0;  // of all launches, counting a thread's switch to itself
  Fiber* self = nullptr;  // null while the host runs
  uint32_t threads = 0;
  const detail::Launch* launch = nullptr;
  std::vector<Cta> ctas;            // the resident ones
  bool moved = true;                // some thread did, since the last check
  volatile int busy = 0;            // in code that a signal must not cut short
  volatile bool in_atomic = false;  // a fault there is its caller's

  void run(const detail::Launch& l);

  void yield() { go(choose()); }
  void park() {  // returns when somebody has made this thread ready again
    unready();
    yield();
  }
  void poll(bool changed);  // after an atomic: who spins on one lets others go on
  void make_ready(Warp& w, Cta& c, uint32_t lanes) {
    w.ready |= lanes;
    c.ready_warps |= 1u << w.id;
    ready_ctas_ |= uint64_t{1} << c.slot;
  }
  int barrier(detail::Reduce reduce, int predicate, int line);
  void open_barrier(Cta& c);
  [[noreturn]] void exit_fiber();
  [[noreturn]] void abandon();
  bool expire();  // out of time: the next switch will end the launch; false if that was said before

  Text& fail(const char* kind, const Fiber* f, int line = 0);  // starts a report
  void locate(const char* p);  // names buffer and offset in the report
  void memory_error(const char* p, const char* access);
  void check_dynamic_shared();
  void finish_report();
  uintptr_t code_base = 0;  // of this library

 private:
  Fiber* choose();
  Warp* choose_warp();
  void unready();
  void go(Fiber* next);
  void start(Cta& c, uint32_t id);
  void load(Cta& c);
  void release_held();
  void describe_deadlock();
  bool check_progress();
  static void enter();

  Context host_;
  Stacks stacks_;
  Cta* loaded_ = nullptr;  // whose static shared memory is in place
  uint32_t slots_ = 0;     // resident CTAs of this launch
  uint64_t ready_ctas_ = 0;
  unsigned current_cta_ = 0;
  Warp* current_warp_ = nullptr;
  uint64_t held_ctas_ = 0;
  unsigned leave_warp_ = 0, leave_cta_ = 0;  // how often to leave, out of 65536
  unsigned hold_ = 0;                        // how often to keep a warp back, out of 256
  static constexpr uint32_t kCheckEvery = 4096, kIdleChecks = 256;
  uint32_t until_check_ = kCheckEvery, idle_checks_ = 0;
  uint64_t launch_switches_ = 0;
  bool aborted_ = false, expired_ = false;
};

extern Machine machine;

inline size_t static_shared_bytes() { return simt_shared_end - simt_shared_begin; }

// --- choosing who runs --------------------------------------------------------------------------

inline Fiber* Machine::choose() {
  if (--until_check_ == 0 && !check_progress()) return nullptr;
  const uint64_t r = random();
  Warp* w = current_warp_;
  if (__builtin_expect(!w->ready || (r & 0xFFFF) < leave_warp_, 0)) {
    w = choose_warp();
    if (!w) return nullptr;
    current_warp_ = w;
  }
  return &w->lanes[pick(w->ready, r >> 16)];
}

inline Warp* Machine::choose_warp() {
  if (!ready_ctas_ && held_ctas_) release_held();
  if (!ready_ctas_) {
    describe_deadlock();
    return nullptr;
  }
  const uint64_t r = random();
  if (!(ready_ctas_ >> current_cta_ & 1) || (r & 0xFFFF) < leave_cta_) {
    current_cta_ = pick(ready_ctas_, r >> 16);
  }
  Cta& c = ctas[current_cta_];
  return &c.warps[pick(c.ready_warps, r >> 32)];
}

// Every few thousand switches: false, and a report, if this launch will never end.
inline bool Machine::check_progress() {
  switches += kCheckEvery;
  launch_switches_ += kCheckEvery;
  until_check_ = kCheckEvery;
  idle_checks_ = std::exchange(moved, false) ? 0 : idle_checks_ + 1;
  if (idle_checks_ && held_ctas_) release_held();
  if (!expired_ && launch_switches_ < switch_limit && idle_checks_ < kIdleChecks) return true;
  Text& text = fail("limit", self);
  if (expired_) {
    text.add("still running after %g s", seconds_limit);
  } else if (launch_switches_ >= switch_limit) {
    text.add("more than %llu switches in one launch",
             static_cast<unsigned long long>(switch_limit));
  } else {
    text.add("the threads wait without end: none has moved on for %u switches",
             kCheckEvery * kIdleChecks);
  }
  return false;
}

inline void Machine::release_held() {
  Cta& c = ctas[pick(held_ctas_, random())];
  held_ctas_ &= ~(uint64_t{1} << c.slot);
  for (Warp& w : c.warps) {
    if (w.held) make_ready(w, c, std::exchange(w.held, 0));
  }
}

inline void Machine::go(Fiber* next) {
  if (!next) {  // an error, and a report of it
    aborted_ = true;
    if (self) abandon();
    return;
  }
  if (next == self) return;
  if (next->cta != loaded_) load(*next->cta);
  Context& from = self ? self->context : host_;
  self = next;
  threadIdx = next->index;
  jump(from, next->context);
}

inline void Machine::unready() {
  Fiber& f = *self;
  Warp& w = *f.warp;
  if (!(w.ready &= ~(1u << f.lane))) {
    if (!(f.cta->ready_warps &= ~(1u << w.id))) ready_ctas_ &= ~(uint64_t{1} << f.cta->slot);
  }
}

inline void Machine::poll(bool changed) {
  if (changed) self->spins = 0, moved = true;
  const bool spins = !changed && ++self->spins % 8 == 0;
  if (!spins && !(preempt && random() & 1)) return;
  current_cta_ =
      pick(ready_ctas_, random());  // elsewhere: it is not its own warp that it waits for
  Cta& c = ctas[current_cta_];
  current_warp_ = &c.warps[pick(c.ready_warps, random())];
  yield();
}

// --- CTAs ---------------------------------------------------------------------------------------

inline void Machine::load(Cta& c) {
  blockIdx = c.index;
  const size_t bytes = static_shared_bytes();
  if (bytes && loaded_) copy_words(loaded_->statics.data(), simt_shared_begin, bytes);
  if (bytes) copy_words(simt_shared_begin, c.statics.data(), bytes);
  loaded_ = &c;
}

inline void Machine::start(Cta& c, uint32_t id) {
  c.id = id;
  const dim3 grid = launch->grid, block = launch->block;
  c.index = {id % grid.x, id / grid.x % grid.y, id / grid.x / grid.y};
  c.alive = threads;
  c.arrived = 0;
  c.ready_warps = 0;
  const uint64_t word = poison(poison_seed + id);
  fill_words(c.statics.data(), c.statics.size(), word);
  if (c.dynamic) fill_words(c.dynamic->base, c.dynamic->size, word);
  for (uint32_t t = 0; t < c.fibers.size(); t++) {
    Fiber& f = c.fibers[t];
    f.cta = &c;
    f.warp = &c.warps[t / 32];
    f.thread = t;
    f.lane = t % 32;
    f.wait = t < threads ? Wait::none : Wait::absent;
    f.line = 0;
    f.site = 0;
    f.spins = 0;
    if (t >= threads) continue;
    f.index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
    const size_t stack = c.slot * c.fibers.size() + t;
    stacks_.arm(stack);
    prepare(f.context, stacks_[stack], Stacks::kBytes, enter);
  }
  for (Warp& w : c.warps) {
    const uint32_t left = threads - w.id * 32;
    w.alive = left >= 32 ? ~0u : (1u << left) - 1;
    for (uint32_t& lanes : w.waiting) lanes = 0;
    w.ready = w.held = 0;
    w.logged = 0;
    make_ready(w, c, w.alive);
  }
}

inline void Machine::enter() {
  arrived();
  machine.launch->call(machine.launch->arguments);
  machine.exit_fiber();
}

inline void Machine::exit_fiber() {
  Fiber& f = *self;
  Cta& c = *f.cta;
  Warp& w = *f.warp;
  if (!stacks_.intact(c.slot * c.fibers.size() + f.thread)) {
    fail("limit", &f).add("the %zu-byte host stack of a thread overflowed", Stacks::kBytes);
    abandon();
  }
  f.wait = Wait::exited;
  moved = true;
  w.alive &= ~(1u << f.lane);
  if (--c.alive == 0) {
    unready();
    jump(f.context, host_);  // which puts the next CTA here
  }
  reconsider(w);  // others may have waited for this one only
  if (c.arrived && c.arrived == c.alive) open_barrier(c);
  park();
  __builtin_unreachable();
}

inline bool Machine::expire() {
  until_check_ = 1;
  return !std::exchange(expired_, true);
}

inline void Machine::abandon() {
  aborted_ = true;
  jump(self->context, host_);
  __builtin_unreachable();
}

inline void Machine::run(const detail::Launch& l) {
  launch = &l;
  threads = l.block.x * l.block.y * l.block.z;
  const uint32_t total = l.grid.x * l.grid.y * l.grid.z;
  slots_ = residents < total ? residents : total;
  const uint32_t warps = (threads + 31) / 32;
  if (ctas.size() < slots_) ctas.resize(slots_);
  stacks_.reserve(size_t{slots_} * warps * 32);
  for (uint32_t s = 0; s < slots_; s++) {
    Cta& c = ctas[s];
    c.slot = s;
    c.fibers.resize(warps * 32);
    c.warps.resize(warps);
    c.statics.resize(static_shared_bytes());
    for (uint32_t w = 0; w < warps; w++) {
      c.warps[w].id = w;
      c.warps[w].lanes = &c.fibers[w * 32];
    }
    if (c.dynamic &&
        (c.dynamic->size != l.dynamic_bytes || Arena::damage(*c.dynamic) != Arena::kIntact)) {
      arena.release(c.dynamic);
      c.dynamic = nullptr;
    }
    if (!c.dynamic && l.dynamic_bytes) {
      c.dynamic = arena.allocate("dynamic shared", l.dynamic_bytes, 16, false, false, 0);
      c.dynamic->shared = true;
    }
  }
  std::vector<uint32_t> order(total);
  for (uint32_t i = 0; i < total; i++) {
    const uint32_t j = random.below(i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  // Other warps are not in the cache, and to change CTA costs a copy of its static shared memory.
  const uint64_t r = random();
  static constexpr unsigned kLeaveWarp[] = {0, 512, 4096, 16384};
  static constexpr unsigned kLeaveCta[] = {1024, 8192, 32768, 65536};  // on leaving a warp
  leave_warp_ = kLeaveWarp[r & 3];
  leave_cta_ = kLeaveCta[r >> 2 & 3];
  if (leave_warp_ > 512 && static_shared_bytes() > 4096) leave_cta_ /= 16;
  static constexpr unsigned kHold[] = {0, 16, 64, 64};
  hold_ = kHold[r >> 4 & 3];
  blockDim = l.block;
  gridDim = l.grid;
  aborted_ = expired_ = false;
  self = nullptr;
  loaded_ = nullptr;
  ready_ctas_ = held_ctas_ = 0;
  moved = true;
  until_check_ = kCheckEvery;
  launch_switches_ = idle_checks_ = 0;
  describe_host(host_);
  arena.begin_launch();
  for (uint32_t s = 0; s < slots_; s++) {
    start(ctas[s], order[s]);
    race::cta_started(ctas[s]);
  }
  current_warp_ = &ctas[0].warps[0];
  current_cta_ = 0;
  for (uint32_t next = slots_, done = 0; done < total; done++) {
    busy = 0;
    go(choose());
    busy = 1;
    if (aborted_) break;
    Cta& ended = *self->cta;
    self = nullptr;
    loaded_ = nullptr;  // nothing worth saving
    if (next < total) {
      start(ended, order[next++]);
      race::cta_started(ended);
    }
  }
  self = nullptr;
  switches += kCheckEvery - until_check_;
}

// --- the barrier --------------------------------------------------------------------------------

// All threads that have not exited must arrive, as on sm_70 and later, and at the same line: CUDA
// allows __syncthreads() under a condition only if the condition is the same for the whole block.
inline int Machine::barrier(detail::Reduce reduce, int predicate, int line) {
  Fiber& f = *self;
  Cta& c = *f.cta;
  if (c.arrived++ == 0) {
    c.barrier_line = c.other_line = line;
    c.first_thread = f.thread;
    c.any = 0, c.all = 1, c.count = 0;
  } else if (line != c.barrier_line) {
    c.other_line = line;
    c.other_thread = f.thread;
  }
  c.any |= predicate != 0;
  c.all &= predicate != 0;
  c.count += predicate != 0;
  f.wait = Wait::barrier;
  f.line = line;
  f.argument = static_cast<uint32_t>(reduce);
  f.warp->waiting[static_cast<int>(Wait::barrier)] |= 1u << f.lane;
  unready();
  if (c.arrived == c.alive) open_barrier(c);
  yield();
  f.wait = Wait::none;
  return static_cast<int>(f.result);
}

inline void Machine::open_barrier(Cta& c) {
  if (c.other_line != c.barrier_line) {
    const Fiber& other = c.fibers[c.other_thread];
    fail("barrier", &other, c.other_line)
        .add("divergent barrier: thread %u waits at line %d, thread %u at line %d", c.first_thread,
             c.barrier_line, c.other_thread, c.other_line);
    abandon();
  }
  moved = true;
  c.arrived = 0;
  for (Warp& w : c.warps) {
    uint32_t& lanes = w.waiting[static_cast<int>(Wait::barrier)];
    if (!lanes) continue;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      Fiber& f = w.lanes[__builtin_ctz(rest)];
      switch (static_cast<detail::Reduce>(f.argument)) {
        case detail::Reduce::none:
          break;
        case detail::Reduce::any:
          f.result = c.any;
          break;
        case detail::Reduce::all:
          f.result = c.all;
          break;
        case detail::Reduce::count:
          f.result = c.count;
          break;
      }
    }
    if (hold_ && (random() & 255) < hold_) {
      w.held = lanes;
      held_ctas_ |= uint64_t{1} << c.slot;
    } else {
      make_ready(w, c, lanes);
    }
    lanes = 0;
  }
  race::barrier_opened(c);
}

// --- errors -------------------------------------------------------------------------------------

inline Text& Machine::fail(const char* kind, const Fiber* f, int line) {
  report = Report();
  report.kind = kind;
  report.line = line;
  if (f) {
    report.pc = f->site ? f->site - code_base : 0;
    report.thread = static_cast<int>(f->thread);
    report.block[0] = f->cta->index.x;
    report.block[1] = f->cta->index.y;
    report.block[2] = f->cta->index.z;
  }
  return report.message;
}

inline void Machine::locate(const char* p) {
  Region* r = arena.find(p);
  if (!r || !r->live) r = arena.nearest(p);
  const size_t statics = p - simt_shared_begin;
  if (statics < static_shared_bytes()) {
    snprintf(report.buffer, sizeof report.buffer, "shared");
    report.offset = statics;
    report.size = static_shared_bytes();
  } else if (r) {
    snprintf(report.buffer, sizeof report.buffer, "%s", r->name);
    report.offset = p - r->base;
    report.size = r->size;
  } else {
    snprintf(report.buffer, sizeof report.buffer, "address");
    report.offset = static_cast<long long>(reinterpret_cast<uintptr_t>(p));
  }
}

inline void Machine::memory_error(const char* p, const char* access) {
  fail("memory", self);
  locate(p);
  const Region* r = arena.find(p);
  report.access = access;
  if (r && r->shared) report.kind = "shared";
  report.message.add("%s at %s", access, report.buffer);
  if (r || report.size) {
    report.message.add("%+lld (size %zu%s)", report.offset, report.size,
                       r && !r->live      ? ", freed"
                       : r && r->readonly ? ", read-only"
                                          : "");
  } else {
    report.message.add(" 0x%llx", report.offset);
  }
}

// What was written around it, at any time in the launch, and hit no inaccessible page.
inline void Machine::check_dynamic_shared() {
  for (uint32_t s = 0; s < slots_; s++) {
    const Cta& c = ctas[s];
    if (report.kind || !c.dynamic) continue;
    const long long at = Arena::damage(*c.dynamic);
    if (at == Arena::kIntact) continue;
    fail("shared", nullptr);
    locate(c.dynamic->base + at);
    report.access = "write";
    report.message.add("written outside of dynamic shared memory, at %+lld (size %zu)", at,
                       c.dynamic->size);
  }
}

// Who and where. A race has said so already.
inline void Machine::finish_report() {
  if (!report.kind || *report.kind == 'r' || report.thread < 0) return;
  const bool together = *report.kind == 'w' || *report.kind == 'b';
  report.message.add(together ? " in block (%u,%u,%u)" : " by block (%u,%u,%u) thread %d",
                     report.block[0], report.block[1], report.block[2], report.thread);
  if (report.pc) report.message.add(", {0x%llx}", static_cast<unsigned long long>(report.pc));
}

inline const char* wait_name(Wait wait) {
  switch (wait) {
    case Wait::none:
      return "running";
    case Wait::barrier:
      return "at barrier";
    case Wait::syncwarp:
      return "at __syncwarp";
    case Wait::shuffle:
      return "at __shfl_sync";
    case Wait::ballot:
      return "at __ballot_sync";
    case Wait::mma:
      return "at mma.sync";
    case Wait::exited:
      return "exited";
    case Wait::absent:
      return "never started";
  }
  return "";
}

inline void add_lanes(Text& text, uint32_t lanes) {  // 0-4,7
  for (const char* comma = ""; lanes; comma = ",") {
    const int first = __builtin_ctz(lanes);
    int last = first;
    while (last < 31 && lanes >> (last + 1) & 1) last++;
    text.add(last > first ? "%s%d-%d" : "%s%d", comma, first, last);
    lanes &= ~static_cast<uint32_t>((uint64_t{2} << last) - (uint64_t{1} << first));
  }
}

// Nobody can go on. Names the collective most lanes of a warp wait at, and where the others are.
inline void Machine::describe_deadlock() {
  for (uint32_t s = 0; s < slots_; s++) {
    Cta& c = ctas[s];
    if (!c.alive) continue;
    for (Warp& w : c.warps) {
      const Fiber* waits = nullptr;
      uint32_t here = 0;
      for (uint32_t i = 0; i < 32; i++) {
        const Fiber& f = w.lanes[i];
        if (f.wait < Wait::syncwarp || f.wait > Wait::mma) continue;
        uint32_t same = 0;
        for (uint32_t j = 0; j < 32; j++) {
          const Fiber& g = w.lanes[j];
          const bool together = f.wait == Wait::mma ? g.line == f.line : g.mask == f.mask;
          if (g.wait == f.wait && together) same |= 1u << j;
        }
        if (!waits || __builtin_popcount(same) > __builtin_popcount(here)) waits = &f, here = same;
      }
      if (!waits) continue;
      const uint32_t missing = waits->mask & ~here;
      Text& text = fail("warp", waits, waits->line);
      text.add("warp %u: %s line %d waits, lanes missing: ", w.id, wait_name(waits->wait) + 3,
               waits->line);
      add_lanes(text, missing);
      for (uint32_t rest = missing; rest;) {
        const Fiber& first = w.lanes[__builtin_ctz(rest)];
        uint32_t same = 0;
        for (uint32_t left = rest; left; left &= left - 1) {
          const Fiber& f = w.lanes[__builtin_ctz(left)];
          if (f.wait == first.wait && f.line == first.line) same |= left & -left;
        }
        rest &= ~same;
        text.add(" [%s", wait_name(first.wait));
        if (first.wait >= Wait::syncwarp && first.wait <= Wait::mma)
          text.add(" line %d", first.line);
        text.add(": ");
        add_lanes(text, same);
        text.add("]");
      }
      return;
    }
  }
  fail("deadlock", self).add("no thread can go on");
}

}  // namespace simt
