#define SLIMTIER_ISA isa_avx2
#include "isa.inc"

namespace slimtier {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = SLIMTIER_TABLE("avx2");
}  // namespace slimtier
