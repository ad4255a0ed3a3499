// How the threads of a step keep together: a barrier between phases and a queue of work items within a phase.
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

namespace {

// Wait until all threads of the step are here. Waiting threads spin for a moment, because phases are short and
// balanced, and then sleep on a futex, so that a thread whose core was taken by another process doesn't keep the others
// burning theirs.
inline void wait_for_all(weir::PhaseBarrier& barrier, int num_threads) {
  constexpr int kSpins = 4000;  // about 50 us
  if (num_threads == 1) return;
  const int32_t mine = __atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&barrier.arrived, 1, __ATOMIC_ACQ_REL) == num_threads) {
    __atomic_store_n(&barrier.arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&barrier.generation, mine + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&barrier.sleepers, __ATOMIC_SEQ_CST) != 0)
      syscall(SYS_futex, &barrier.generation, FUTEX_WAKE_PRIVATE, num_threads, nullptr, nullptr, 0);
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (__atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE) != mine) return;
    __builtin_ia32_pause();
  }
  __atomic_add_fetch(&barrier.sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&barrier.generation, __ATOMIC_ACQUIRE) == mine)
    syscall(SYS_futex, &barrier.generation, FUTEX_WAIT_PRIVATE, mine, nullptr, nullptr, 0);
  __atomic_sub_fetch(&barrier.sleepers, 1, __ATOMIC_SEQ_CST);
}

// One thread's view of the items 0..n-1 of a phase. The first part of the items is dealt out in equal contiguous runs
// (consecutive items are consecutive memory, and no atomic is needed); the rest is taken one at a time, so that a
// thread that lost its core for a while doesn't hold up the phase. Each phase of a step has its own counter, zeroed
// before the step, so that no phase has to wait for a reset. `peek` names the item that `next` will return.
class WorkQueue {
 public:
  WorkQueue(weir::PhaseCounter& counter, int num_items, int thread, int num_threads, int dealt_percent)
      : counter_(counter), num_items_(num_items) {
    const int share = num_threads == 1 ? num_items : (int)((int64_t)num_items * dealt_percent / 100 / num_threads);
    position_ = share * thread;
    dealt_end_ = position_ + share;
    common_begin_ = share * num_threads;
    if (share == 0) position_ = take();
  }

  int peek() const { return position_; }  // -1: none left

  int next() {
    const int item = position_;
    if (item < 0) return item;
    position_ = item < dealt_end_ - 1 ? item + 1 : take();
    return item;
  }

 private:
  int take() {
    dealt_end_ = 0;
    const int item = common_begin_ + __atomic_fetch_add(&counter_.taken, 1, __ATOMIC_RELAXED);
    return item < num_items_ ? item : -1;
  }

  weir::PhaseCounter& counter_;
  int num_items_, position_, dealt_end_, common_begin_;
};

}  // namespace
