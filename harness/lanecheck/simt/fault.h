// Signals that end a launch instead of the process: a page fault, and a loop without end.
//
// The handlers are in place only while a launch runs. They leave by switching to the host's stack,
// which is sound because the interrupted code is the kernel's: it holds no lock and is not resumed.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include "schedule.h"

namespace simt {

class SignalGuard {
 public:
  SignalGuard() {
    active_ = this;
    thread_ = pthread_self();
    stack_t own = {};
    own.ss_sp = own_stack_;
    own.ss_size = sizeof own_stack_;
    sigaltstack(&own, &stack_);
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    action.sa_sigaction = on_fault;
    for (int i = 0; i < kFaults; i++) sigaction(kSignals[i], &action, &previous_[i]);
    action.sa_flags |= SA_RESTART;
    action.sa_sigaction = on_tick;
    sigaction(SIGVTALRM, &action, &previous_[kFaults]);
    set_timer(machine.seconds_limit);
  }
  ~SignalGuard() {
    set_timer(0);
    sigaction(SIGVTALRM, &previous_[kFaults], nullptr);
    for (int i = 0; i < kFaults; i++) sigaction(kSignals[i], &previous_[i], nullptr);
    sigaltstack(&stack_, nullptr);
    active_ = nullptr;
  }

 private:
  static constexpr int kFaults = 3;
  static constexpr int kSignals[kFaults] = {SIGSEGV, SIGBUS, SIGFPE};

  static void set_timer(double seconds) {  // of CPU time; then every 20 ms
    itimerval timer = {};
    timer.it_value.tv_sec = static_cast<time_t>(seconds);
    timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - timer.it_value.tv_sec) * 1e6);
    if (seconds > 0) timer.it_interval.tv_usec = 20'000;
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
  }

  static uintptr_t interrupted_pc(void* context) {
#ifdef __x86_64__
    return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
#else
    (void)context;
    return 0;
#endif
  }

  static const char* access(void* context) {
#ifdef __x86_64__
    return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
    (void)context;
    return "access";
#endif
  }

  static bool in_this_library(uintptr_t pc) {
    Dl_info info;
    return pc && dladdr(reinterpret_cast<void*>(pc), &info) &&
           reinterpret_cast<uintptr_t>(info.dli_fbase) == machine.code_base;
  }

  static void on_fault(int signal, siginfo_t* info, void* context) {
    if (!machine.self || !pthread_equal(pthread_self(), active_->thread_)) {
      for (int i = 0; i < kFaults; i++) {  // not ours: it happens again under the previous handler
        if (kSignals[i] == signal) sigaction(signal, &active_->previous_[i], nullptr);
      }
      return;
    }
    Fiber& f = *machine.self;
    const uintptr_t pc = interrupted_pc(context);
    if (!machine.in_atomic && in_this_library(pc)) f.site = pc;
    machine.in_atomic = false;
    if (signal == SIGFPE) {
      machine.fail("arithmetic", &f).add("integer division by zero");
    } else {
      machine.memory_error(static_cast<const char*>(info->si_addr), access(context));
    }
    machine.abandon();
  }

  static void on_tick(int, siginfo_t*, void* context) {
    if (!active_) return;
    if (!pthread_equal(pthread_self(), active_->thread_)) {
      pthread_kill(active_->thread_, SIGVTALRM);
      return;
    }
    // A thread that does not even get to the next switch within a tick is in the kernel's own code.
    if (machine.expire() || !machine.self || machine.busy) return;
    const uintptr_t pc = interrupted_pc(context);
    if (!in_this_library(pc)) return;
    machine.self->site = pc;
    machine.fail("limit", machine.self).add("still running after %g s", machine.seconds_limit);
    machine.abandon();
  }

  static inline SignalGuard* active_ = nullptr;
  static inline char own_stack_[64 << 10];
  pthread_t thread_;
  stack_t stack_;
  struct sigaction previous_[kFaults + 1];
};

}  // namespace simt
