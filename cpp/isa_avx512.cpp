#define SLIMTIER_ISA isa_avx512
#define SLIMTIER_WIDE
#include "isa.inc"

namespace slimtier {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = SLIMTIER_TABLE("avx512");
}  // namespace slimtier
