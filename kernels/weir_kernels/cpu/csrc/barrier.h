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

// One thread's view of the items 0..n-1 of a phase.
//
// `apart`: each thread owns a contiguous part and takes its items one by one; when it has none left it takes from the
// others' parts, so that a thread that loses its core for a while doesn't hold up the phase. Parts are the same
// fractions in every phase: a thread finds the rows it wrote in its own cache, and consecutive items are consecutive
// memory. `together`: all threads take from the beginning, for lists that are sorted longest first.
//
// `peek` names the item that `next` will return; it is already taken, so that its memory can be fetched ahead.
enum class Sharing { apart, together };

class WorkQueue {
 public:
  // counters: one for each thread, all zero.
  WorkQueue(weir::PhaseCounter* counters, int num_items, int thread, int num_threads, Sharing sharing)
      : counters_(counters),
        num_items_(num_items),
        parts_(sharing == Sharing::apart ? num_threads : 1),
        part_(sharing == Sharing::apart ? thread : 0),
        parts_left_(parts_),
        ahead_(take()) {}

  // The first item of a part.
  static int begin_of(int part, int num_items, int parts) { return (int)((int64_t)num_items * part / parts); }

  int peek() const { return ahead_; }  // -1: none left

  int next() {
    const int item = ahead_;
    if (item >= 0) ahead_ = take();
    return item;
  }

 private:
  int take() {
    for (; parts_left_ > 0; --parts_left_, part_ = part_ + 1 == parts_ ? 0 : part_ + 1) {
      const int begin = begin_of(part_, num_items_, parts_), end = begin_of(part_ + 1, num_items_, parts_);
      if (begin == end) continue;  // another thread's counter costs a trip between cores
      const int item = begin + __atomic_fetch_add(&counters_[part_].taken, 1, __ATOMIC_RELAXED);
      if (item < end) return item;
    }
    return -1;
  }

  weir::PhaseCounter* counters_;
  int num_items_, parts_, part_, parts_left_, ahead_;
};

}  // namespace
