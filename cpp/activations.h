// Activation rows in the forms that weights want, and products with them shared out among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace slimtier {

using Weights = std::shared_ptr<const Packed>;
using Vector = std::vector<float>;  // empty = absent

// Quantised copies of activation rows, in whichever forms a set of weights needs.
class Prepared {
 public:
  void size(int64_t t, int64_t k, bool for_q8, bool for_q4);
  void size_for(int64_t t, int64_t k, std::initializer_list<const Packed*> weights);
  void quantize(const float* x, int64_t row);  // x [k]
  Activations view(const float* x) const;      // x [t, k]

 private:
  int64_t t_ = 0, k_ = 0, padded_ = 0, groups_ = 0;
  bool q8_ = false, q4_ = false;
  std::vector<int16_t> codes16_;
  std::vector<int8_t> codes8_;
  std::vector<float> scales16_, xsums16_, scales8_, xsums8_;
};

// Several matrices over the same input x, as one shared list of blocks of rows: out [t, n] for each.
void share_linears(Lane& lane, int threads, const Activations& x, std::initializer_list<std::pair<const Packed*, float*>> list);

// out [t, n] = x [t, k] · weightᵀ.
void linear_forward(Pool& pool, const Packed& weight, const float* x, int64_t t, float* out);

// A head's matrix is run over chunks of rows, so that its scores [tokens, rows] can be reduced while they are in cache.
constexpr int64_t kRowsChunk = 256, kTokensChunk = 64;
constexpr int64_t kSharedBytes = 96 << 10;  // of short rows a thread takes several chunks at once: each fetches the next

inline int64_t row_chunks(const Packed& w) { return (w.n + kRowsChunk - 1) / kRowsChunk; }

// body(first row, rows, first token, tokens, scores [tokens][rows]); `scores` [kTokensChunk · kRowsChunk] is the thread's own.
template <class Body>
void share_row_chunks(Lane& lane, const Packed& w, const Activations& x, float* scores, const Body& body) {
  const int64_t chunks = row_chunks(w), together = std::max<int64_t>(1, kSharedBytes * chunks / int64_t(w.bytes));
  lane.share(chunks, together, [&](int64_t chunk, int64_t end) {
    for (; chunk < end; ++chunk) {
      const int64_t first = chunk * kRowsChunk, rows = std::min(kRowsChunk, w.n - first);
      for (int64_t t = 0; t < x.t; t += kTokensChunk) {
        const int64_t count = std::min(kTokensChunk, x.t - t);
        kernels().linear(w, x.slice(t, count), scores - first, rows, first, first + rows);
        body(first, rows, t, count, scores);
      }
    }
  });
}

}  // namespace slimtier
