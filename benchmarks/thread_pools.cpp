// What it costs to share work out and to wait for it: slimtier's pool beside the system's OpenMP (libgomp), 2 threads.
//
// A forward pass is one region of hundreds of stages. A stage's items (spins of a given length) are shared out, and the
// next stage begins when all are done. Arguments: threads rounds busy_core (-1: none). With a busy core, a process of
// its own spins on it meanwhile. Prints a JSON list of {"pool", "stages", "item_us", "microseconds": [a round's time]}.

#include <omp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "pool.h"

using Clock = std::chrono::steady_clock;

static void work(double microseconds) {
  const auto end = Clock::now() + std::chrono::nanoseconds(int64_t(1e3 * microseconds));
  while (microseconds > 0 && Clock::now() < end) slimtier::relax();
}

template <class Region>
static void measure(const char* pool, int stages, double item_us, int rounds, bool& first, const Region& region) {
  for (int i = 0; i < 3; ++i) region();
  std::printf("%s{\"pool\": \"%s\", \"stages\": %d, \"item_us\": %g, \"microseconds\": [", first ? "" : ", ", pool, stages, item_us);
  first = false;
  for (int i = 0; i < rounds; ++i) {
    const auto started = Clock::now();
    region();
    const std::chrono::duration<double, std::micro> passed = Clock::now() - started;
    std::printf("%s%.3f", i ? ", " : "", passed.count());
  }
  std::printf("]}");
}

static int keep_busy(int core) {
#if defined(__linux__)
  if (core < 0) return 0;
  const pid_t child = fork();
  if (child != 0) return child;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
  const pid_t parent = getppid();
  for (;;) {
    for (volatile int i = 0; i < 1000000; ++i) {
    }
    if (getppid() != parent) _exit(0);
  }
#else
  return 0 * core;
#endif
}

static void stop(int child) {
#if defined(__linux__)
  if (child <= 0) return;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
#endif
}

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]), rounds = std::atoi(arguments[2]);
  const int child = keep_busy(std::atoi(arguments[3]));
  const int items = 8 * threads;
  slimtier::Pool pool(threads);
  omp_set_num_threads(threads);
  bool first = true;
  std::printf("[");
  for (const int stages : {1, 200})
    for (const double item_us : {0.0, 2.0}) {
      measure("slimtier", stages, item_us, rounds, first, [&] {
        pool.run([&](slimtier::Lane& lane) {
          for (int s = 0; s < stages; ++s)
            lane.share(items, 1, [&](int64_t from, int64_t to) { for (; from < to; ++from) work(item_us); });
        });
      });
      measure("libgomp", stages, item_us, rounds, first, [&] {
#pragma omp parallel
        for (int s = 0; s < stages; ++s) {
#pragma omp for schedule(static)
          for (int i = 0; i < items; ++i) work(item_us);
        }
      });
    }
  std::printf("]\n");
  stop(child);
}
