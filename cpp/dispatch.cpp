#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace slimtier {

#if defined(SLIMTIER_X86)
extern const Kernels kernels_avx2, kernels_avx512;
#elif defined(SLIMTIER_ARM64)
extern const Kernels kernels_neon;
#endif
extern const Kernels kernels_plain;

const Kernels* kernels_named(const char* name) {
  if (std::strcmp(name, "plain") == 0) return &kernels_plain;
#if defined(SLIMTIER_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vnni");
  if (std::strcmp(name, "avx2") == 0 && avx2) return &kernels_avx2;
  if (std::strcmp(name, "avx512") == 0 && avx512) return &kernels_avx512;
#elif defined(SLIMTIER_ARM64)
  if (std::strcmp(name, "neon") == 0) return &kernels_neon;
#endif
  return nullptr;
}

static const Kernels& choose() {
  const char* wanted = std::getenv("SLIMTIER_ISA");
  if (wanted != nullptr && *wanted != '\0') {
    if (const Kernels* found = kernels_named(wanted)) return *found;
    throw std::runtime_error(std::string("SLIMTIER_ISA=") + wanted + " does not run on this machine; unset it");
  }
  for (const char* name : {"avx512", "avx2", "neon"})
    if (const Kernels* found = kernels_named(name)) return *found;
  return kernels_plain;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace slimtier
