#include "winners.h"

#include <cmath>

namespace slimtier {

namespace {

// The largest of the scores but that at `index`; -inf if there is no other.
float second_best(const float* scores, int64_t rows, int64_t index) {
  float second = -INFINITY;
  const int64_t ends[2][2] = {{0, index}, {index + 1, rows}};
  for (const auto& [first, last] : ends) {
    if (first == last) continue;
    float value;
    int64_t at;
    kernels().argmax(scores + first, last - first, &value, &at);
    if (!(value <= second)) second = value;
  }
  return second;
}

}  // namespace

void Winners::size(int64_t tokens, int64_t chunks, Also also) {
  chunks_ = chunks;
  also_ = also;
  const size_t wanted = size_t(tokens * chunks);
  if (values_.size() < wanted) { values_.resize(wanted); ids_.resize(wanted); }
  if (also != Also::nothing && others_.size() < wanted) others_.resize(wanted);
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
  if (also_ == Also::sums) others_[at] = kernels().sum_exp(scores, nullptr, rows, value);
  if (also_ == Also::seconds) others_[at] = second_best(scores, rows, index);
}

Winner Winners::merge(int64_t token) const {
  const size_t at = size_t(token * chunks_), end = at + size_t(chunks_);
  size_t first = at;
  for (size_t i = at + 1; i < end; ++i) {
    const bool nan = values_[i] != values_[i], best_nan = values_[first] != values_[first];
    const bool equal = (nan && best_nan) || values_[i] == values_[first];
    if (equal ? ids_[i] < ids_[first] : !best_nan && (nan || values_[i] > values_[first])) first = i;
  }
  Winner best;
  best.value = values_[first];
  best.id = ids_[first];
  if (also_ == Also::sums) best.probability = 1.0f / kernels().sum_exp(&values_[at], &others_[at], chunks_, best.value);
  if (also_ == Also::seconds) {
    best.second = others_[first];
    for (size_t i = at; i < end; ++i)
      if (i != first && !(values_[i] <= best.second)) best.second = values_[i];
  }
  return best;
}

}  // namespace slimtier
