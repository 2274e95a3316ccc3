// What the lanes of a warp do together: mma, shuffles, votes, __syncwarp.
//
// A lane leaves its operands and waits; the lane that arrives last does the work for all. None of
// this orders memory, except __syncwarp.
#pragma once

#include <lanecheck/mma.h>

#include "mma_log.h"
#include "schedule.h"

namespace simt {

inline void arrive(Fiber& f, Wait wait, uint32_t mask, int line) {
  f.wait = wait;
  f.mask = mask;
  f.line = line;
  f.warp->waiting[static_cast<int>(wait)] |= 1u << f.lane;
}

inline void release(Fiber& f, Wait wait, uint32_t lanes) {
  f.warp->waiting[static_cast<int>(wait)] &= ~lanes;
  machine.make_ready(*f.warp, *f.cta, lanes);
  machine.moved = true;
}

// The lane whose value a lane is given. Out of its segment of `width` lanes, it keeps its own.
inline int source_lane(const Fiber& f) {
  const int lane = static_cast<int>(f.lane), argument = static_cast<int>(f.argument & 31);
  const int width = static_cast<int>(f.argument >> 8 & 63);
  const int first = lane & -width;
  int source = lane;
  switch (static_cast<detail::Shuffle>(f.argument >> 16)) {
    case detail::Shuffle::index:
      return first | (argument & (width - 1));
    case detail::Shuffle::up:
      source = lane - argument;
      break;
    case detail::Shuffle::down:
      source = lane + argument;
      break;
    case detail::Shuffle::exclusive_or:
      source = lane ^ argument;
      break;
  }
  return source < first || source >= first + width ? lane : source;
}

// Completes the collective that f waits at, if all lanes it names, and that live, have come.
inline bool complete(Fiber& f) {
  Warp& w = *f.warp;
  const Wait wait = f.wait;
  const uint32_t named = f.mask & w.alive;
  if (named & ~w.waiting[static_cast<int>(wait)]) return false;
  uint32_t ballot = 0;
  for (uint32_t rest = named; rest; rest &= rest - 1) {
    const Fiber& g = w.lanes[__builtin_ctz(rest)];
    if (g.mask != f.mask) return false;
    if (g.value) ballot |= rest & -rest;
  }
  for (uint32_t rest = named; rest; rest &= rest - 1) {
    Fiber& g = w.lanes[__builtin_ctz(rest)];
    if (wait == Wait::ballot) g.result = ballot;
    if (wait != Wait::shuffle) continue;
    const int source = source_lane(g);
    if (!(named >> source & 1)) {
      machine.fail("warp", &g, g.line)
          .add("warp %u: __shfl_sync line %d: lane %u reads lane %d, which takes no part", w.id,
               g.line, g.lane, source);
      machine.abandon();
    }
    g.result = w.lanes[source].value;
  }
  if (wait == Wait::syncwarp) race::warp_synchronised(w, named);
  release(f, wait, named);
  return true;
}

inline uint32_t collective(Wait wait, uint32_t mask, uint32_t value, uint32_t argument, int line) {
  Fiber& f = *machine.self;
  if (!(mask >> f.lane & 1)) {
    machine.fail("warp", &f, line)
        .add("warp %u: %s line %d: lane %u is not in its own mask %08x", f.warp->id,
             wait_name(wait) + 3, line, f.lane, mask);
    machine.abandon();
  }
  f.value = value;
  f.argument = argument;
  arrive(f, wait, mask, line);
  if (complete(f)) {
    machine.yield();
  } else {
    machine.park();
  }
  f.wait = Wait::none;
  return f.result;
}

// A lane has exited: the others may have waited for it alone. Not so at mma, where all must come.
inline void reconsider(Warp& w) {
  for (const Wait wait : {Wait::syncwarp, Wait::shuffle, Wait::ballot}) {
    for (uint32_t rest = w.waiting[static_cast<int>(wait)]; rest; rest &= rest - 1) {
      Fiber& f = w.lanes[__builtin_ctz(rest)];
      if (w.waiting[static_cast<int>(wait)] & rest & -rest) complete(f);
    }
  }
}

inline __attribute__((always_inline)) void mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                                               const float c[4], int line) {
  Fiber& f = *machine.self;
  Warp& w = *f.warp;
  if (!w.mma) w.mma = std::make_unique<MmaTiles>();
  MmaTiles& tiles = *w.mma;
  uint32_t& here = w.waiting[static_cast<int>(Wait::mma)];
  const unsigned g = f.lane / 4, k = f.lane % 4 * 2;

  if (!here) w.mma_line = line;
  f.wait = Wait::mma;
  f.mask = ~0u;
  f.line = line;
  if (line != w.mma_line) {
    machine.park();  // for good: both groups of lanes now wait for each other
  }
  memcpy(&tiles.a[g][k], &a[0], 4);
  memcpy(&tiles.a[g + 8][k], &a[1], 4);
  memcpy(&tiles.a[g][k + 8], &a[2], 4);
  memcpy(&tiles.a[g + 8][k + 8], &a[3], 4);
  for (unsigned r = 0; r < 2; r++) {
    tiles.b[k + 8 * r][g] = static_cast<uint16_t>(b[r]);
    tiles.b[k + 8 * r + 1][g] = static_cast<uint16_t>(b[r] >> 16);
  }
  memcpy(&tiles.c[g][k], &c[0], 8);
  memcpy(&tiles.c[g + 8][k], &c[2], 8);

  here |= 1u << f.lane;
  if (here == ~0u) {
    lanecheck::mma_m16n8k16(tiles.a, tiles.b, tiles.c, tiles.d,
                            static_cast<lanecheck::Model>(machine.model));
    if (__builtin_expect(mma_log.on(), 0)) mma_log.add(w, *f.cta);
    release(f, Wait::mma, ~0u);
    machine.yield();
  } else {
    machine.park();
  }
  memcpy(&d[0], &tiles.d[g][k], 8);
  memcpy(&d[2], &tiles.d[g + 8][k], 8);
  f.wait = Wait::none;
}

}  // namespace simt
