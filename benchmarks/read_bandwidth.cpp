// How fast memory can be read: THREADS threads each add up their part of BYTES bytes, ROUNDS times over. On Linux the
// bytes lie on huge pages where the system has them, as the kernels' weights do.
// Arguments: threads bytes rounds. Prints the seconds of each round as a JSON list.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

static uint64_t add_up(const uint64_t* values, size_t count) {
  uint64_t sums[32] = {};  // independent sums: the loop waits for memory, not for additions
  for (size_t i = 0; i + 32 <= count; i += 32)
    for (size_t j = 0; j < 32; ++j) sums[j] += values[i + j];
  uint64_t sum = 0;
  for (uint64_t one : sums) sum += one;
  return sum;
}

int main(int, char** arguments) {
  const size_t threads = std::strtoul(arguments[1], nullptr, 10), count = std::strtoul(arguments[2], nullptr, 10) / 8;
  const int rounds = std::atoi(arguments[3]);
  constexpr size_t kHugePage = size_t(2) << 20;
  auto* values = static_cast<uint64_t*>(std::aligned_alloc(kHugePage, (count * 8 + kHugePage - 1) / kHugePage * kHugePage));
  if (values == nullptr) return 1;
#if defined(__linux__)
  madvise(values, count * 8, MADV_HUGEPAGE);
#endif
  for (size_t i = 0; i < count; ++i) values[i] = 1;
  std::vector<uint64_t> sums(threads * 8);  // 64 bytes apart
  std::printf("[");
  for (int round = 0; round < rounds; ++round) {
    const auto started = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    const size_t part = count / threads;
    for (size_t t = 0; t < threads; ++t)
      workers.emplace_back([&, t] { sums[t * 8] = add_up(values + t * part, part); });
    for (auto& worker : workers) worker.join();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
    for (size_t t = 0; t < threads; ++t)
      if (sums[t * 8] != part / 32 * 32) return 1;
    std::printf("%s%.9f", round ? ", " : "", passed.count());
  }
  std::printf("]\n");
  std::free(values);
}
