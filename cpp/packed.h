// A weight matrix [n, k] in the order in which the kernels read it.
//
// Rows are cut into panels, and a panel's weights for one k lie side by side, one row a SIMD lane: a kernel adds
// weight * activation to a lane per output row, k by k, so that no horizontal sum is needed and an output is reduced
// in the same order whatever the number of tokens.
//   f32, f16, bf16   panels of 16 rows: [k][16]
//   q8               panels of 8 rows, group after group: codes [k/2][8 rows][2], scales [8], mins [8] (if any)
//   q4               panels of 8 rows, group after group: codes [k/8][8 rows][4] bytes, whose low nibbles hold
//                    k .. k+3 and high nibbles k+4 .. k+7; scales [8], mins [8]
// The last group of a row is shorter when k is no multiple of the group; nothing is padded but to a pair (q8) or eight (q4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace slimtier {

enum class Kind : int { f32, f16, bf16, q8, q4 };

constexpr int kGroup = 32;  // activations are quantised in groups of 32 k

struct Packed {
  Kind kind = Kind::f32;
  int64_t n = 0, k = 0;
  int group = kGroup;       // weights a scale covers: 32, or 16 for q8 without mins
  bool mins = false;        // weight = scale * code + min
  bool wide = false;        // scales and mins are float32; otherwise float16
  bool in_floats = false;   // codes that are multiplied as what they mean, in float32
  int panel = 16;           // rows in a panel
  size_t panel_bytes = 0;
  uint8_t* data = nullptr;  // aligned to 64 bytes
  std::shared_ptr<uint8_t> owner;
  size_t bytes = 0;

  int64_t panels() const { return (n + panel - 1) / panel; }
  bool wants(Kind codes) const { return kind == codes && !in_floats; }  // activations as integers for such codes
  // Row `row` as float32 [k]: an embedding is a row of the (tied) head.
  void row(int64_t row, float* out) const;
};

// values: float32 [n, k]; kind f32, f16 or bf16 (rounded to nearest even).
Packed pack_floats(const float* values, int64_t n, int64_t k, Kind kind);
// codes: [n, k] int8 (q8) or 0..15 (q4); scales, mins: float32 [n, ceil(k / group)], mins may be null for q8.
Packed pack_codes(const uint8_t* codes, const float* scales, const float* mins, int64_t n, int64_t k, int group, Kind kind);

// A weight matrix with each row's weights side by side, for reading a few rows here and there. Codes are a byte each,
// filled up with zeros to whole groups of 32; then, as float32, the row's scales and its mins, if any.
struct RowMatrix {
  Kind kind = Kind::f32;  // f32, f16, bf16, or q8 for codes of 4 or 8 bits
  int64_t n = 0, k = 0, row_bytes = 0, groups = 0, code_bytes = 0;
  int group = kGroup;
  bool mins = false;
  const uint8_t* data = nullptr;
  std::shared_ptr<uint8_t> owner;
};

// The same weights, row by row.
RowMatrix by_rows(const Packed& packed);

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);

// Zeroed memory, aligned to 64 bytes, whose pages are touched only when written.
std::shared_ptr<uint8_t> allocate(size_t bytes);
// The same out of large chunks on huge pages, where the system offers them: for weights, which are read whole.
std::shared_ptr<uint8_t> allocate_weights(size_t bytes);

}  // namespace slimtier
