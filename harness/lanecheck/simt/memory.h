// Guarded buffers. Each lies between inaccessible pages, flush against one of them; what room is
// left between is filled with canaries. Address space is reserved once and regions are used again,
// so that a case with a handful of buffers costs no system call.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "context.h"

#define SIMT_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

namespace simt {

// Copies and fills that ASan must not judge, because they cross its red zones. Under ASan even
// memcpy is intercepted, and a plain loop would be recognised as one: hence the empty asm.
SIMT_UNCHECKED inline void fill_words(void* to, size_t bytes, uint64_t word) {
  char* p = static_cast<char*>(to);
  for (; bytes >= 8; p += 8, bytes -= 8) {
    memcpy(p, &word, 8);
    if (SIMT_ASAN) asm volatile("" ::: "memory");
  }
  for (size_t i = 0; i < bytes; i++) p[i] = static_cast<char>(word >> 8 * i);
}

SIMT_UNCHECKED inline void copy_words(void* to, const void* from, size_t bytes) {
  if (!SIMT_ASAN) {
    memcpy(to, from, bytes);
    return;
  }
  uint64_t* t = static_cast<uint64_t*>(to);
  const uint64_t* f = static_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / 8; i++) {
    t[i] = f[i];
    asm volatile("" ::: "memory");
  }
}

// What uninitialised memory holds: all ones, zeros, large finite numbers or noise, by the seed.
inline uint64_t poison(uint64_t seed) {
  seed = (seed + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9;
  seed = (seed ^ seed >> 27) * 0x94D049BB133111EB;
  seed ^= seed >> 31;
  switch (seed & 7) {
    case 0:
    case 1:
    case 2:
      return 0;  // often: a flag that happens to be set is the more forgiving one
    case 3:
      return 0x7F7F7F7F7F7F7F7F;
    case 4:
      return ~uint64_t{0};
    default:
      return seed;
  }
}

struct Region {
  char *begin, *end;  // the accessible pages
  char* base;         // the buffer in them
  size_t size;
  char name[64];
  bool live = false, readonly = false, shared = false;
  void* shadow = nullptr;  // of the race detector, made when first wanted

  size_t bytes() const { return end - begin; }
  bool holds(const char* p, size_t n) const { return p >= base && p + n <= base + size; }
};

class Arena {
 public:
  static constexpr size_t kPage = 4096;

  Region* allocate(const char* name, size_t bytes, size_t align, bool lower, bool readonly,
                   uint64_t seed) {
    Region* r = take(pages_for(bytes));
    if (!r) return nullptr;
    place(*r, bytes, align, lower);
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof r->name; n++) {
      const unsigned char c = name[n];
      r->name[n] = c < ' ' || c == '"' || c == '\\' || c == '{' ? '_' : c;
    }
    r->name[n] = 0;
    r->readonly = readonly;
    r->live = true;
    r->shared = false;
    live_.push_back(r);
    if (!sparse(bytes)) fill_words(r->base, bytes, poison(seed));
    return r;
  }

  void release(Region* r) {
    for (size_t i = 0; i < live_.size(); i++) {
      if (live_[i] == r) live_.erase(live_.begin() + i--);
    }
    put_back(r);
  }

  // All but the shared memory of resident CTAs, which the launches keep.
  void release_buffers() {
    std::vector<Region*> kept;
    for (Region* r : live_) {
      if (r->shared) {
        kept.push_back(r);
        continue;
      }
      put_back(r);
    }
    live_.swap(kept);
  }

  const std::vector<Region*>& live() const { return live_; }

  // The region on whose pages, or guard pages, the address lies.
  Region* find(const void* p) {
    const size_t page =
        (reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(base_)) / kPage;
    return page < owner_.size() ? owner_[page] : nullptr;
  }

  // For an address far from everything: the live buffer that is least far.
  Region* nearest(const char* p) {
    Region* best = nullptr;
    uintptr_t least = UINTPTR_MAX;
    for (Region* r : live_) {
      const uintptr_t distance = p < r->base ? r->base - p : p - r->base;
      if (distance < least) least = distance, best = r;
    }
    return least < kReserved ? best : nullptr;
  }

  // While a launch runs, read-only buffers are just that, and ASan knows the canaries.
  void begin_launch() {
    for (Region* r : live_) {
      if (r->readonly) mprotect(r->begin, r->bytes(), PROT_READ);
      poison_slack(*r, true);
    }
  }
  void end_launch() {
    for (Region* r : live_) {
      if (r->readonly) mprotect(r->begin, r->bytes(), PROT_READ | PROT_WRITE);
      poison_slack(*r, false);
    }
  }

  // Offset of the first damaged byte from the buffer's start, or kIntact.
  static constexpr long long kIntact = INT64_MIN;
  static long long damage(const Region& r) {
    for (auto [from, to] : {std::pair{r.begin, r.base}, std::pair{r.base + r.size, r.end}}) {
      const char* p = from;
      const char* first = from + (-reinterpret_cast<uintptr_t>(from) & 7);
      for (; p < to && p < first; p++) {
        if (*p != canary_byte(p)) return p - r.base;
      }
      uint64_t word;
      for (; p + 8 <= to && (memcpy(&word, p, 8), word == kCanary); p += 8) continue;
      for (; p < to; p++) {
        if (*p != canary_byte(p)) return p - r.base;
      }
    }
    return kIntact;
  }

 private:
  static constexpr size_t kReserved = size_t{64} << 30;

  // A buffer of this size is address space, for offsets that take more than 31 bits: its pages hold
  // zeros until they are touched, and are given back when it is.
  static bool sparse(size_t bytes) { return bytes >= size_t{1} << 28; }

  void put_back(Region* r) {
    r->live = false;
    if (sparse(r->bytes())) madvise(r->begin, r->bytes(), MADV_DONTNEED);
    free_[r->bytes()].push_back(r);
  }

  // NaNs as BF16 and as FP32, so that a read of them shows in what follows.
  static constexpr uint64_t kCanary = 0xFFC7FFC7FFC7FFC7;

  static char canary_byte(const void* p) {
    return static_cast<char>(kCanary >> 8 * (reinterpret_cast<uintptr_t>(p) & 7));
  }

  // Exact for small and sparse buffers; between, an eighth more at most, so that similar sizes
  // share regions.
  static size_t pages_for(size_t bytes) {
    size_t pages = bytes / kPage + (bytes % kPage != 0);
    if (pages == 0) pages = 1;
    if (sparse(bytes)) return pages;
    size_t step = 1;
    while (pages > 16 * step) step *= 2;
    return (pages + step - 1) / step * step;
  }

  Region* take(size_t pages) {
    std::vector<Region*>& free = free_[pages * kPage];
    if (!free.empty()) {
      Region* r = free.back();
      free.pop_back();
      return r;
    }
    if (!base_) {
      void* p =
          mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) return nullptr;
      base_ = static_cast<char*>(p);
    }
    const size_t first = owner_.size();
    if ((first + pages + 2) * kPage > kReserved) return nullptr;
    char* begin = base_ + (first + 1) * kPage;
    if (mprotect(begin, pages * kPage, PROT_READ | PROT_WRITE)) return nullptr;
    regions_.emplace_back();
    owner_.resize(first + pages + 2, &regions_.back());
    Region& r = regions_.back();
    r.begin = begin;
    r.end = begin + pages * kPage;
    return &r;
  }

  static void place(Region& r, size_t bytes, size_t align, bool lower) {
    if (align == 0) align = 1;
    const uintptr_t top = reinterpret_cast<uintptr_t>(r.end) - bytes;
    r.base = lower ? r.begin : reinterpret_cast<char*>(top - top % align);
    if (r.base < r.begin) r.base = r.begin;
    r.size = bytes;
    fill_canaries(r.begin, r.base);
    fill_canaries(r.base + bytes, r.end);
  }

  static void fill_canaries(char* from, char* to) {
    for (; from < to && reinterpret_cast<uintptr_t>(from) & 7; from++) *from = canary_byte(from);
    if (from < to) fill_words(from, to - from, kCanary);
  }

  static void poison_slack(const Region& r, bool on) {
#if SIMT_ASAN
    const auto set = on ? __asan_poison_memory_region : __asan_unpoison_memory_region;
    set(r.begin, r.base - r.begin);
    set(r.base + r.size, r.end - (r.base + r.size));
#else
    (void)r, (void)on;
#endif
  }

  char* base_ = nullptr;
  std::deque<Region> regions_;
  std::vector<Region*> owner_;  // by page of the arena
  std::map<size_t, std::vector<Region*>> free_;
  std::vector<Region*> live_;
};

}  // namespace simt
