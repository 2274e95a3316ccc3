// What a thread knows to have happened before it: the vector clock of the race detector.
//
// A full clock has an entry for every thread. Barriers make most of it redundant: after one, all
// accesses of the CTA's earlier phases are known together. So knowledge is kept per CTA, as a
// phase, and beyond it per warp (phases between __syncwarp) and per thread (accesses before a
// fence).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace simt::race {

// A stretch of one thread's execution without synchronisation: all its accesses are alike.
struct Segment {
  uint32_t cta, thread;
  uint32_t phase;       // barriers of its CTA before it
  uint32_t warp_phase;  // __syncwarps of its warp before it
  uint32_t fence;       // fences of its thread before it
};

class Knowledge {
 public:
  bool empty() const { return ctas_.empty(); }
  void clear() { ctas_.clear(); }

  bool covers(const Segment& s) const {
    for (const OfCta& known : ctas_) {
      if (known.cta != s.cta) continue;
      return s.phase < known.phase || s.warp_phase < value(known.warps, s.thread / 32) ||
             s.fence < value(known.threads, s.thread);
    }
    return false;
  }

  void join(const Knowledge& other) {
    if (&other == this) return;
    for (const OfCta& theirs : other.ctas_) {
      OfCta& mine = of(theirs.cta);
      mine.phase = std::max(mine.phase, theirs.phase);
      for (const Entry& e : theirs.warps) raise(mine.warps, e);
      for (const Entry& e : theirs.threads) raise(mine.threads, e);
    }
  }

  // All that precedes the end of a segment: earlier phases of its CTA and warp, and its thread.
  void join_past(const Segment& s) {
    OfCta& mine = of(s.cta);
    mine.phase = std::max(mine.phase, s.phase);
    raise(mine.warps, {s.thread / 32, s.warp_phase});
    raise(mine.threads, {s.thread, s.fence + 1});
  }

 private:
  using Entry = std::pair<uint32_t, uint32_t>;  // warp or thread -> all below this value is known
  using Entries = std::vector<Entry>;           // sorted

  struct OfCta {
    uint32_t cta, phase;
    Entries warps, threads;
  };

  static Entries::const_iterator at(const Entries& entries, uint32_t key) {
    return std::lower_bound(entries.begin(), entries.end(), Entry{key, 0});
  }
  static uint32_t value(const Entries& entries, uint32_t key) {
    const auto e = at(entries, key);
    return e != entries.end() && e->first == key ? e->second : 0;
  }
  static void raise(Entries& entries, Entry entry) {
    const auto e = entries.begin() + (at(entries, entry.first) - entries.cbegin());
    if (e == entries.end() || e->first != entry.first) {
      entries.insert(e, entry);
    } else {
      e->second = std::max(e->second, entry.second);
    }
  }
  OfCta& of(uint32_t cta) {
    for (OfCta& known : ctas_) {
      if (known.cta == cta) return known;
    }
    ctas_.push_back({cta, 0, {}, {}});
    return ctas_.back();
  }

  std::vector<OfCta> ctas_;
};

}  // namespace simt::race
