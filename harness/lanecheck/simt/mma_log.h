// The executed mma with every lane's registers: to find the first that is not as it should be.
//
// Off by default. The memory is taken when it is turned on, for what writes into it is the kernel's
// threads, which a signal may cut short at any instruction.
#pragma once

#include <vector>

#include "schedule.h"

namespace simt {

struct MmaRecord {
  uint32_t block[3];  // blockIdx
  uint32_t warp;      // in its CTA
  uint32_t number;    // among the mma of its warp
  uint32_t a[32][4], b[32][2];
  float c[32][4], d[32][4];
};

class MmaLog {
 public:
  // From now on, the mma of the CTA `block`, or of all if it is null; `limit` at most.
  void begin(const uint32_t* block, size_t limit) {
    limit_ = limit;
    one_ = block != nullptr;
    if (one_) block_ = {block[0], block[1], block[2]};
    executed_ = 0;
    std::vector<MmaRecord>().swap(records_);
    records_.reserve(limit);
  }

  bool on() const { return limit_ != 0; }
  const MmaRecord* records() const { return records_.data(); }
  size_t executed() const { return executed_; }  // more than were kept, if it exceeds the limit

  __attribute__((noinline)) void add(Warp& w, const Cta& c) {
    if (one_ && (c.index.x != block_.x || c.index.y != block_.y || c.index.z != block_.z)) return;
    const uint32_t number = w.logged++;
    if (++executed_ > limit_) return;
    records_.emplace_back();
    MmaRecord& r = records_.back();
    r = {{c.index.x, c.index.y, c.index.z}, w.id, number, {}, {}, {}, {}};
    const MmaTiles& tiles = *w.mma;
    for (unsigned lane = 0; lane < 32; lane++) {  // as mma() in warp.h takes them
      const unsigned g = lane / 4, k = lane % 4 * 2;
      for (unsigned i = 0; i < 4; i++) {
        memcpy(&r.a[lane][i], &tiles.a[g + i % 2 * 8][k + i / 2 * 8], 4);
      }
      for (unsigned i = 0; i < 2; i++) {
        r.b[lane][i] = tiles.b[k + 8 * i][g] | uint32_t{tiles.b[k + 8 * i + 1][g]} << 16;
        memcpy(&r.c[lane][2 * i], &tiles.c[g + 8 * i][k], 8);
        memcpy(&r.d[lane][2 * i], &tiles.d[g + 8 * i][k], 8);
      }
    }
  }

 private:
  size_t limit_ = 0, executed_ = 0;
  bool one_ = false;
  uint3 block_ = {};
  std::vector<MmaRecord> records_;
};

inline MmaLog mma_log;

}  // namespace simt
