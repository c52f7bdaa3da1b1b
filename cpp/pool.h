// A small thread pool for regions of hundreds of short stages (a forward pass).
//
// Every thread runs the same function with a Lane of its own. At Lane::share the threads take chunks of work until none
// is left, and go on when all of it is done. Only work is waited for, never a thread: one that the system has put
// aside between two chunks does not hold up the others; it finds the stages done and catches up. Threads spin briefly
// (meeting costs well under a microsecond between two cores), then yield; an idle pool sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace slimtier {

class Pool;

// One thread's way through a region.
class Lane {
 public:
  // Calls body(first, last) for disjoint chunks that cover 0 … items, each on some thread; returns when all are done.
  // Chunks are independent, so who takes which never changes a result.
  template <class Body>
  void share(int64_t items, int64_t chunk, const Body& body);

  const int thread;

 private:
  friend class Pool;
  Lane(Pool& pool, int thread_number) : thread(thread_number), pool_(pool) {}

  Pool& pool_;
  size_t stage_ = 0;
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return threads_; }

  // Runs region(lane) on the calling thread and on every worker that is awake in time. One region at a time.
  void run(const std::function<void(Lane&)>& region);

 private:
  friend class Lane;
  struct alignas(64) Stage {
    std::atomic<int64_t> next{0}, done{0};
  };
  static constexpr size_t kMostStages = 1 << 14;
  static constexpr int kClosed = 1 << 30;

  void work(int thread);

  const int threads_;
  std::vector<std::thread> workers_;
  const std::function<void(Lane&)>* region_ = nullptr;
  std::unique_ptr<Stage[]> stages_;
  std::mutex run_mutex_, sleep_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int> gate_{kClosed};  // workers inside the region; closed: too late to join
};

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits with growing patience: spins, then gives the processor away.
template <class Done>
inline void spin_until(const Done& done) {
  for (int spins = 0; !done(); ++spins) spins < 4096 ? relax() : std::this_thread::yield();
}

template <class Body>
void Lane::share(int64_t items, int64_t chunk, const Body& body) {
  Pool::Stage& stage = pool_.stages_[stage_++];
  int64_t mine = 0;
  for (int64_t first; (first = stage.next.fetch_add(chunk, std::memory_order_relaxed)) < items;) {
    const int64_t last = first + chunk < items ? first + chunk : items;
    body(first, last);
    mine += last - first;
  }
  if (mine > 0) stage.done.fetch_add(mine, std::memory_order_release);
  spin_until([&] { return stage.done.load(std::memory_order_acquire) == items; });
}

}  // namespace slimtier
