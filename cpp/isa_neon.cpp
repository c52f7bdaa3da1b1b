#define SLIMTIER_ISA isa_neon
#include "isa.inc"

namespace slimtier {
extern const Kernels kernels_neon;
const Kernels kernels_neon = SLIMTIER_TABLE("neon");
}  // namespace slimtier
