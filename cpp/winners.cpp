#include "winners.h"

namespace slimtier {

void Winners::size(int64_t tokens, int64_t chunks, bool sums) {
  chunks_ = chunks;
  sums_ = sums;
  const size_t wanted = size_t(tokens * chunks);
  if (values_.size() < wanted) { values_.resize(wanted); ids_.resize(wanted); }
  if (sums && totals_.size() < wanted) totals_.resize(wanted);
}

void Winners::take(int64_t token, int64_t chunk, const float* scores, int64_t rows, int64_t first, const int32_t* ids) {
  const size_t at = size_t(token * chunks_ + chunk);
  float value;
  int64_t index;
  kernels().argmax(scores, rows, &value, &index);
  int32_t id = int32_t(first + index);
  if (ids != nullptr) {  // in any order: the lowest id of the equals
    id = ids[index];
    for (int64_t i = index + 1; i < rows; ++i)
      if ((scores[i] == value || (value != value && scores[i] != scores[i])) && ids[i] < id) id = ids[i];
  }
  values_[at] = value;
  ids_[at] = id;
  if (sums_) totals_[at] = kernels().sum_exp(scores, nullptr, rows, value);
}

Winner Winners::merge(int64_t token) const {
  const size_t at = size_t(token * chunks_);
  Winner best{values_[at], ids_[at], 0.0f};
  for (size_t i = at + 1; i < at + size_t(chunks_); ++i) {
    const bool nan = values_[i] != values_[i], best_nan = best.value != best.value;
    const bool equal = (nan && best_nan) || values_[i] == best.value;
    if (equal ? ids_[i] < best.id : !best_nan && (nan || values_[i] > best.value)) best = {values_[i], ids_[i], 0.0f};
  }
  if (sums_) best.probability = 1.0f / kernels().sum_exp(&values_[at], &totals_[at], chunks_, best.value);
  return best;
}

}  // namespace slimtier
