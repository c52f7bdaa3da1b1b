// What one instruction set offers: a table of functions, filled by each isa_*.cpp and chosen at run time.
#pragma once

#include <cstdint>

#include "packed.h"

namespace slimtier {

// Rows of activations [t, k] as the weights want them: float32, or integers in groups of 32 k with a scale.
// xsums = scale * sum of the group's codes: what a weight's min is multiplied with.
struct Activations {
  int64_t t = 0, k = 0;
  const float* x = nullptr;          // [t, k]
  int64_t padded = 0, stride = 0;    // k rounded up to 32 (codes past k are zero); floats between two groups' scales
  const int16_t* codes16 = nullptr;  // [t, padded], for q8 weights
  const float* scales16 = nullptr;   // [groups of 32][stride], one a token
  const float* xsums16 = nullptr;
  const int8_t* codes8 = nullptr;    // [t, padded], for q4 weights
  const float* scales8 = nullptr;
  const float* xsums8 = nullptr;

  Activations slice(int64_t first, int64_t count) const {  // rows first … first + count - 1
    return {count, k, x + first * k, padded, stride, codes16 + first * padded, scales16 + first, xsums16 + first,
            codes8 + first * padded, scales8 + first, xsums8 + first};
  }
};

// Keys of one kv head: [capacity / 8][head_dim][8], eight keys side by side; values: [capacity][head_dim].
// Elements are float32, or float16 when `half`.
struct KvView {
  const uint8_t* keys;
  const uint8_t* values;
  bool half;
};

// What a thread reads after a block: `bytes` of keys and of values, fetched meanwhile; 0 = not known.
struct KvNext {
  const uint8_t* keys;
  const uint8_t* values;
  int64_t bytes;
};

constexpr int kKeyBlock = 64;  // attention is reduced key block by key block, at absolute positions
constexpr int kQueryTile = 6;

struct AttentionTile {
  int queries;                   // 1 … kQueryTile
  const float* q[kQueryTile];    // [head_dim], already scaled
  int64_t first[kQueryTile];     // keys first … last-1 are visible
  int64_t last[kQueryTile];
  int head_dim;
  float softcap;                 // 0 = none
};

// Running softmaxes of a tile's queries: maximum, sum and weighted values of the blocks merged so far. Values are
// written and read in whole vectors: [head_dim rounded up to 8].
struct Partials {
  float maximum[8], sum[8];
  float* values[8];
};

struct Kernels {
  const char* name;
  // out[t * stride + row] for rows first … last-1 of the matrix, first a multiple of 16; pad rows are not written.
  void (*linear)(const Packed& w, const Activations& x, float* out, int64_t stride, int64_t first, int64_t last);
  // One row; the scale of group g goes to scales[g * stride].
  void (*quantize16)(const float* x, int64_t k, int16_t* codes, float* scales, float* xsums, int64_t stride);
  void (*quantize8)(const float* x, int64_t k, int8_t* codes, float* scales, float* xsums, int64_t stride);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t k, float* out);
  void (*add)(float* x, const float* y, int64_t k);
  // out = act(gate) * up; gelu: tanh approximation, else SiLU.
  void (*act_mul)(const float* gate, const float* up, bool gelu, int64_t k, float* out);
  // Rotates halves: (x[i], x[i + d/2]) by the angle of cos/sin[i], i < d/2; then multiplies by `scale`.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t head_dim, float scale);
  void (*put_key)(const float* key, uint8_t* keys, bool half, int64_t position, int64_t head_dim);
  void (*put_value)(const float* value, uint8_t* values, bool half, int64_t position, int64_t head_dim);
  // One block of keys (kKeyBlock from block * kKeyBlock) for up to six queries of one kv head. Values are read in whole
  // vectors: up to 7 elements past the last.
  void (*attend)(const AttentionTile& tile, const KvView& kv, int64_t block, const KvNext& next, Partials& out);
  // into += part, in the order of blocks.
  void (*merge)(Partials& into, const Partials& part, int queries, int64_t head_dim);
  // out[d] = values[d] / sum; nothing past out[head_dim - 1] is written.
  void (*divide)(const float* values, float sum, int64_t head_dim, float* out);
  void (*softcap)(float* x, int64_t count, float cap);
  // The largest of x[0 … count-1] and its lowest index; NaN wins over every number.
  void (*argmax)(const float* x, int64_t count, float* value, int64_t* index);
  // Σ weights[i] · e^(x[i] - maximum); weights may be null: all 1.
  float (*sum_exp)(const float* x, const float* weights, int64_t count, float maximum);
  // Of up to 64 numbers, eight maxima over every eighth of them; -inf where there is none.
  void (*maxima)(const float* x, int64_t count, float* eight);
  // Which of x[0 … count-1] reach the threshold: their values and indices (counted from `first`), in order.
  int64_t (*at_least)(const float* x, int64_t count, float threshold, int32_t first, float* values, int32_t* indices);
  // out[i] = row rows[i] of the matrix times the one token x: what `linear` gives, with 16-bit activations
  // for all codes.
  void (*chosen_rows)(const RowMatrix& w, const Activations& x, const int32_t* rows, int64_t count, float* out);
};

const Kernels& kernels();                       // the best that this machine runs, or SLIMTIER_ISA=plain|avx2|avx512|neon
const Kernels* kernels_named(const char* name);  // nullptr when absent here

}  // namespace slimtier
