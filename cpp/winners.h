// The largest score of each token, found chunk by chunk of a head's rows and merged in the order of the chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "activations.h"

namespace slimtier {

struct Winner {
  float value = 0;
  int32_t id = -1;
  float probability = 0;  // e^value / Σ e^score, if sums were asked for
  float second = 0;       // the largest score but this one, if seconds were
};

class Winners {
 public:
  enum class Also { nothing, sums, seconds };
  void size(int64_t tokens, int64_t chunks, Also also);
  // Scores of one chunk; `ids` names its rows, or null: their ids are first, first + 1, …
  void take(int64_t token, int64_t chunk, const float* scores, int64_t rows, int64_t first, const int32_t* ids);
  // NaN first, then the larger, then the lower id.
  Winner merge(int64_t token) const;

 private:
  int64_t chunks_ = 0;
  Also also_ = Also::nothing;
  std::vector<float> values_, others_;  // [tokens][chunks]; others_: sums or seconds
  std::vector<int32_t> ids_;
};

}  // namespace slimtier
