#include "pool.h"

#include <cstdlib>

namespace slimtier {

Pool::Pool(int threads) : threads_(threads < 1 ? 1 : threads), stages_(new Stage[kMostStages]) {
  for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(Lane&)>& region) {
  std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
  region_ = &region;
  gate_.store(0, std::memory_order_release);
  if (threads_ > 1) {
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      wake_.notify_all();
    }
  }
  Lane lane(*this, 0);
  region(lane);
  if (lane.stage_ > kMostStages) std::abort();  // a model of over a thousand layers: the stages are too few
  gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  spin_until([&] { return gate_.load(std::memory_order_acquire) == kClosed; });
  for (size_t i = 0; i < lane.stage_; ++i) {
    stages_[i].next.store(0, std::memory_order_relaxed);
    stages_[i].done.store(0, std::memory_order_relaxed);
  }
}

void Pool::work(int thread) {
  for (uint32_t seen = 0;;) {
    // A decoding loop comes back within microseconds: spin a little before sleeping.
    for (int spins = 0; spins < 20000 && generation_.load(std::memory_order_acquire) == seen; ++spins) relax();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    int inside = gate_.load(std::memory_order_acquire);
    while (!(inside & kClosed) && !gate_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) {
    }
    if (inside & kClosed) continue;
    Lane lane(*this, thread);
    (*region_)(lane);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace slimtier
