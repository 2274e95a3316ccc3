// Data races, found by what orders accesses rather than by what a schedule happened to do.
//
// The kernel is compiled with -fsanitize=thread and linked without that sanitizer's runtime: the
// calls it makes before every access arrive here. Two accesses to the same bytes, one of them a
// write, must be ordered, or both be atomic. Derived from the PTX memory model:
//
// Inside a CTA, program order, barriers and __syncwarp are causality order. mma, shuffles and votes
// carry values and order nothing. A partial __syncwarp is taken for one of the whole warp, which
// can hide a race and cannot invent one.
//
// Between CTAs (and inside one) there are fences and atomics. __threadfence() is fence.sc.gpu. Let
// F be a fence and A an atomic with F before A in causality order: by program order or over a
// barrier. Let R be an atomic on the same location that observes A (directly, or through a chain of
// read-modify-writes), and G a fence with R before G. Then F is before G in the total order of
// fence.sc: were G before F, R would be before A in causality order while it observes A, which
// coherence and atomicity forbid. So F synchronises with G, and what precedes F happens before what
// follows G. Hence, for each thread, three sets of accesses:
//
//   known     happened before what the thread does next
//   released  known at some fence in its past: what an atomic of its passes on
//   pending   passed on by an atomic that it observed: what its next fence makes known
//
//   fence      known += pending;  released = known
//   atomic A   pending += passed_on[A];  passed_on[A] += released
//   barrier    all three become the union over the CTA (over the warp for __syncwarp)
//
// An atomic without a fence on either side thus orders nothing. One exception needs none: observing
// A puts A itself, and not what preceded it, before whatever the observer does next ("causality
// order" extends "observation order"). So a plain access to an atomic's location is ordered after
// the last atomic there as soon as that one is; those before it were observed in turn. This is what
// allows the last CTA to reset a counter by a plain store.
//
// __threadfence_block() is the same with scope cta: it works between threads of one CTA only, and
// is kept apart as scope 0. Volatile accesses are strong: a store passes on, a load observes.
#pragma once

#include "schedule.h"

namespace simt::race {

enum class Access : uint8_t { read, write, atomic, strong_read };

#ifndef SIMT_RACES

inline void begin_launch() {}
inline void cta_started(Cta&) {}
inline void barrier_opened(Cta&) {}
inline void warp_synchronised(Warp&, uint32_t) {}
inline void fence(detail::Scope) {}
inline void observe(const void*, unsigned, bool, bool) {}

}  // namespace simt::race

#else

}  // namespace simt::race

#include <unordered_map>

#include "knowledge.h"

namespace simt::race {

constexpr int kScopes = 2;

struct View {
  Knowledge known, released[kScopes], pending[kScopes];

  bool empty() const {
    return known.empty() && released[0].empty() && pending[0].empty() && pending[1].empty();
  }
  void join(const View& other) {
    known.join(other.known);
    for (int s = 0; s < kScopes; s++) {
      released[s].join(other.released[s]);
      pending[s].join(other.pending[s]);
    }
  }
  void clear() {
    known.clear();
    for (int s = 0; s < kScopes; s++) released[s].clear(), pending[s].clear();
  }
};

struct ThreadHistory {
  uint32_t segment = 0;  // 0: the next access starts one
  uint32_t fence = 0;
  View view;  // beyond what the whole CTA has
};

// --- shadow memory: for every two bytes, who accessed them last ---------------------------------

// `where` holds the code address, whether the read was strong, and which of the two bytes.
struct Stamp {
  uint32_t segment, where;

  static constexpr uint32_t kStrong = 1u << 29;
  unsigned bytes() const { return where >> 30; }
  uint32_t pc() const { return where & (kStrong - 1); }
};

// Two readers, because a writer must find one other than itself.
struct Cell {
  Stamp write, atomic, read[2];
};

struct CtaHistory {
  uint32_t phase = 0;
  uint32_t first_segment = 0;  // older stamps in shared memory are another CTA's
  std::vector<uint32_t> warp_phase;
  std::vector<ThreadHistory> threads;
  View view;
  Cell* statics = nullptr;
};

inline Cell* new_shadow(size_t bytes) {
  void* p = mmap(nullptr, (bytes / 2 + 1) * sizeof(Cell), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<Cell*>(p);
}

// While it allocates, a signal must not end the launch.
struct Busy {
  Busy() { machine.busy = machine.busy + 1; }
  ~Busy() { machine.busy = machine.busy - 1; }
};

class Detector {
 public:
  void begin_launch() {
    // Segments are numbered on from launch to launch, so older stamps need no clearing.
    first_ += static_cast<uint32_t>(segments_.size());
    segments_.clear();
    passed_on_.clear();
    if (first_ > 0x80000000u) {
      for (auto [cells, bytes] : shadows_) madvise(cells, bytes, MADV_DONTNEED);
      first_ = 1;
    }
  }

  void cta_started(Cta& c) {
    if (!c.history) c.history = new CtaHistory;
    CtaHistory& h = *c.history;
    h.phase = 0;
    h.first_segment = first_ + static_cast<uint32_t>(segments_.size());
    h.warp_phase.assign(c.warps.size(), 0);
    h.threads.resize(c.fibers.size());
    h.view.clear();
    for (size_t t = 0; t < h.threads.size(); t++) {
      ThreadHistory& thread = h.threads[t];
      thread.segment = thread.fence = 0;
      if (!thread.view.empty()) thread.view.clear();
      c.fibers[t].history = &thread;
    }
    if (!h.statics && static_shared_bytes()) h.statics = shadow(static_shared_bytes());
    if (c.dynamic && !c.dynamic->shadow) c.dynamic->shadow = shadow(c.dynamic->bytes());
  }

  void barrier_opened(Cta& c) {
    Busy busy;
    CtaHistory& h = *c.history;
    h.phase++;
    for (ThreadHistory& t : h.threads) {
      t.segment = 0;
      if (t.view.empty()) continue;
      h.view.join(t.view);
      t.view.clear();
    }
  }

  void warp_synchronised(Warp& w, uint32_t lanes) {
    Busy busy;
    View all;
    w.lanes[0].cta->history->warp_phase[w.id]++;
    for (int i = 0; i < 32; i++) {
      if (!w.lanes[i].history) continue;
      w.lanes[i].history->segment = 0;
      if (lanes >> i & 1) all.join(w.lanes[i].history->view);
    }
    if (all.empty()) return;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      w.lanes[__builtin_ctz(rest)].history->view = all;
    }
  }

  void fence(detail::Scope scope) {
    Busy busy;
    Fiber& f = *machine.self;
    ThreadHistory& t = *f.history;
    const View& cta = f.cta->history->view;
    const Segment now = segments_[current(f) - first_];
    for (int s = 0; s <= static_cast<int>(scope); s++) {
      t.view.known.join(cta.pending[s]);
      t.view.known.join(t.view.pending[s]);
      t.view.pending[s].clear();
    }
    Knowledge released = cta.known;
    released.join(t.view.known);
    released.join_past(now);
    for (int s = 0; s <= static_cast<int>(scope); s++) t.view.released[s].join(released);
    t.fence++;
    t.segment = 0;
  }

  // An atomic or volatile access by the thread that runs.
  void observe(const void* p, bool reads, bool writes) {
    Busy busy;
    Fiber& f = *machine.self;
    ThreadHistory& t = *f.history;
    const View& cta = f.cta->history->view;
    for (int s = 0; s < kScopes; s++) {
      // At scope cta, and in shared memory, each CTA has a ledger of its own.
      const uint64_t owner = s == 0 || is_shared(p) ? f.cta->id + uint64_t{1} : 0;
      const uint64_t key = (reinterpret_cast<uintptr_t>(p) ^ owner << 48) * 2 + s;
      const bool releases = writes && !(cta.released[s].empty() && t.view.released[s].empty());
      const auto found = passed_on_.find(key);
      if (reads && found != passed_on_.end()) t.view.pending[s].join(found->second);
      if (!releases) continue;
      Knowledge& ledger = passed_on_[key];
      ledger.join(cta.released[s]);
      ledger.join(t.view.released[s]);
    }
  }

  __attribute__((always_inline)) void access(const void* address, size_t bytes, Access kind,
                                             uintptr_t pc) {
    Fiber* f = machine.self;
    if (!f) return;  // host code in the same file
    f->site = pc;
    const char* p = static_cast<const char*>(address);
    const size_t statics = p - simt_shared_begin;
    Cell* cells;
    size_t offset;
    uint32_t oldest = first_;
    if (statics < static_shared_bytes()) {
      cells = f->cta->history->statics;
      offset = statics;
      oldest = f->cta->history->first_segment;
    } else {
      Region* r = machine.arena.find(p);
      if (!r) return;
      if (!r->holds(p, bytes)) return out_of_bounds(*r, p, bytes, kind);
      if (r->readonly || !r->live) return;
      if (!r->shadow) r->shadow = shadow(r->bytes());
      cells = static_cast<Cell*>(r->shadow);
      offset = p - r->begin;
      if (r->shared) oldest = f->cta->history->first_segment;
    }
    if (!cells) return;
    const uint32_t me = f->history->segment ? f->history->segment : current(*f);
    const uint32_t where = static_cast<uint32_t>(pc - machine.code_base) & (Stamp::kStrong - 1);
    const size_t last = (offset + bytes - 1) / 2;
    for (size_t i = offset / 2; i <= last; i++) {
      const unsigned mask = (2 * i >= offset ? 1 : 0) | (2 * i + 1 < offset + bytes ? 2 : 0);
      if (!update(cells[i], kind, me, where | mask << 30, oldest)) {
        return conflict(*f, cells[i], kind, me, where | mask << 30, oldest, p + (2 * i - offset));
      }
    }
  }

 private:
  Cell* shadow(size_t bytes) {
    Busy busy;
    Cell* cells = new_shadow(bytes);
    if (cells) shadows_.push_back({cells, (bytes / 2 + 1) * sizeof(Cell)});
    return cells;
  }

  static bool is_shared(const void* address) {
    const char* p = static_cast<const char*>(address);
    if (static_cast<size_t>(p - simt_shared_begin) < static_shared_bytes()) return true;
    const Region* r = machine.arena.find(p);
    return r && r->shared;
  }

  // The segment of the thread that runs.
  __attribute__((noinline)) uint32_t current(Fiber& f) {
    ThreadHistory& t = *f.history;
    if (t.segment) return t.segment;
    Busy busy;
    const CtaHistory& h = *f.cta->history;
    segments_.push_back({f.cta->id, f.thread, h.phase, h.warp_phase[f.warp->id], t.fence});
    return t.segment = first_ + static_cast<uint32_t>(segments_.size()) - 1;
  }

  bool ordered(const Stamp& stamp, uint32_t me, uint32_t oldest) const {
    if (stamp.segment < oldest || stamp.segment == me) return true;
    const Segment& then = segments_[stamp.segment - first_];
    const Segment& now = segments_[me - first_];
    if (then.cta == now.cta) {
      if (then.thread == now.thread || then.phase < now.phase) return true;
      if (then.thread / 32 == now.thread / 32 && then.warp_phase < now.warp_phase) return true;
    }
    const Fiber& f = *machine.self;
    return f.history->view.known.covers(then) || f.cta->history->view.known.covers(then);
  }

  bool clash(const Stamp& stamp, uint32_t me, uint32_t where, uint32_t oldest) const {
    return (stamp.where & where) >> 30 && !ordered(stamp, me, oldest);
  }

  // Records the access. False if it races with one recorded before.
  __attribute__((always_inline)) bool update(Cell& cell, Access kind, uint32_t me, uint32_t where,
                                             uint32_t oldest) {
    if (kind == Access::read || kind == Access::strong_read) {
      if (clash(cell.write, me, where, oldest)) return false;
      if (kind == Access::read && clash(cell.atomic, me, where, oldest)) return false;
      if (kind == Access::strong_read) where |= Stamp::kStrong;
      const bool second = cell.read[0].segment != me && !(cell.read[0].segment < oldest) &&
                          (cell.read[1].segment == me || !ordered(cell.read[0], me, oldest));
      Stamp& slot = cell.read[second];
      if (slot.segment == me) {  // a plain read among them makes them all plain
        where = (where | (slot.where & 3u << 30)) & ~(~slot.where & Stamp::kStrong);
      }
      slot = {me, where};
      return true;
    }
    if (clash(cell.write, me, where, oldest)) return false;
    if (kind == Access::write && clash(cell.atomic, me, where, oldest)) return false;
    for (const Stamp& read : cell.read) {
      if (kind == Access::atomic && read.where & Stamp::kStrong) continue;
      if (clash(read, me, where, oldest)) return false;
    }
    if (where >> 30 == 3) cell.read[0] = cell.read[1] = Stamp{0, 0};  // all before this access
    Stamp& slot = kind == Access::write ? cell.write : cell.atomic;
    if (slot.segment == me) where |= slot.where & 3u << 30;
    slot = {me, where};
    return true;
  }

  void describe(Text& text, const char* verb, const Segment& s, uint32_t pc, bool with_block) {
    text.add("%s by ", verb);
    const dim3 grid = machine.launch->grid;
    if (with_block) {
      text.add("block (%u,%u,%u) ", s.cta % grid.x, s.cta / grid.x % grid.y,
               s.cta / grid.x / grid.y);
    }
    text.add("thread %u ({0x%x})", s.thread, pc);
  }

  __attribute__((noinline)) void conflict(Fiber& f, const Cell& cell, Access kind, uint32_t me,
                                          uint32_t where, uint32_t oldest, const char* p) {
    const bool reads = kind == Access::read || kind == Access::strong_read;
    const Stamp* other = &cell.write;
    const char* verb = "write";
    if (!clash(*other, me, where, oldest)) {
      other = &cell.atomic, verb = "atomic";
      if (kind == Access::atomic || !clash(*other, me, where, oldest)) {
        verb = "read";
        other = &cell.read[0];
        if (!clash(*other, me, where, oldest)) other = &cell.read[1];
      }
    }
    const Segment then = segments_[other->segment - first_], now = segments_[me - first_];
    machine.fail("race", &f);
    machine.locate(p);
    Report& report = machine.report;
    report.access = reads ? "read" : kind == Access::write ? "write" : "atomic";
    Text& text = report.message;
    text.add("race on %s%+lld: ", report.buffer, report.offset);
    describe(text, verb, then, other->pc(), then.cta != now.cta);
    text.add(" and ");
    describe(text, report.access, now, where & (Stamp::kStrong - 1), true);
    text.add(then.cta == now.cta ? ", no barrier between" : ", no fence and atomic order them");
    machine.abandon();
  }

  __attribute__((noinline)) void out_of_bounds(const Region& r, const char* p, size_t bytes,
                                               Access kind) {
    if (p >= r.end || p + bytes <= r.begin) return;  // a guard page: it will fault
    const bool reads = kind == Access::read || kind == Access::strong_read;
    machine.memory_error(p, reads ? "read" : "write");
    machine.abandon();
  }

  uint32_t first_ = 1;  // number of this launch's first segment
  std::vector<Segment> segments_;
  std::unordered_map<uint64_t, Knowledge> passed_on_;
  std::vector<std::pair<void*, size_t> > shadows_;
};

inline Detector detector;

inline void begin_launch() { detector.begin_launch(); }
inline void cta_started(Cta& c) { detector.cta_started(c); }
inline void barrier_opened(Cta& c) { detector.barrier_opened(c); }
inline void warp_synchronised(Warp& w, uint32_t lanes) { detector.warp_synchronised(w, lanes); }
inline void fence(detail::Scope scope) { detector.fence(scope); }
__attribute__((noinline)) inline void observe(const void* p, unsigned bytes, bool reads,
                                              bool writes) {
  detector.access(p, bytes, writes ? Access::atomic : Access::strong_read, machine.self->site);
  detector.observe(p, reads, writes);
}

}  // namespace simt::race

#include "hooks.h"

#endif
