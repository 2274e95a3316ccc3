// What went wrong in a launch: the first error only, for the rest may be its consequence.
//
// Written on whatever stack found it, a signal handler's included, so without allocation. Code
// addresses appear in the message as {0x1234}, offsets into the library, for the reader to look up.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace simt {

class Text {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vsnprintf(text_ + length_, sizeof text_ - length_, format, arguments);
    va_end(arguments);
    if (wanted > 0) length_ += wanted;
    if (length_ > sizeof text_ - 1) length_ = sizeof text_ - 1;
  }
  void clear() { text_[length_ = 0] = 0; }
  const char* str() const { return text_; }

 private:
  char text_[2048] = "";
  size_t length_ = 0;
};

struct Report {
  const char* kind = nullptr;  // null: nothing to report
  Text message;
  char buffer[64] = "";
  long long offset = 0;
  size_t size = 0;
  const char* access = "";
  unsigned block[3] = {0, 0, 0};
  int thread = -1;
  int line = 0;
  uintptr_t pc = 0;

  int error_code() const {  // of cudaError_t
    if (!kind) return 0;
    if (!strcmp(kind, "memory")) return 700;
    if (!strcmp(kind, "limit")) return 702;
    if (!strcmp(kind, "alignment")) return 716;
    return 719;
  }

  // One JSON object, or "". The names that go in hold no character that JSON would escape.
  void write(char* out, size_t bytes) const {
    if (!kind) {
      out[0] = 0;
      return;
    }
    snprintf(out, bytes,
             "{\"kind\": \"%s\", \"message\": \"%s\", \"buffer\": \"%s\", \"offset\": %lld, "
             "\"size\": %zu, \"access\": \"%s\", \"block\": [%u, %u, %u], \"thread\": %d, "
             "\"line\": %d, \"pc\": %llu}",
             kind, message.str(), buffer, offset, size, access, block[0], block[1], block[2],
             thread, line, static_cast<unsigned long long>(pc));
  }
};

}  // namespace simt
