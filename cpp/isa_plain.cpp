#define SLIMTIER_ISA isa_plain
#define SLIMTIER_PLAIN
#include "isa.inc"

namespace slimtier {
extern const Kernels kernels_plain;
const Kernels kernels_plain = SLIMTIER_TABLE("plain");
}  // namespace slimtier
