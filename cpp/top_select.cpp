#include "top_select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.h"

namespace slimtier {

namespace {
constexpr int64_t kBins = 2048;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

void TopSelect::size(int64_t rows, int64_t k) {
  rows_ = rows;
  k_ = std::min(k, rows);
  scores_.resize(size_t(rows));
  maxima_.resize(size_t((rows + kTile - 1) / kTile * 8));
  found_.resize(size_t(rows));
  indices_.resize(size_t(rows));
  counts_.resize(size_t(segments()));
  histogram_.resize(size_t(kBins));
}

void TopSelect::put(int64_t first, const float* scores, int64_t count) {
  std::memcpy(&scores_[size_t(first)], scores, size_t(count) * 4);
  for (int64_t i = 0; i < count; i += kTile)
    kernels().maxima(scores + i, std::min(kTile, count - i), &maxima_[size_t((first + i) / 8)]);
}

int64_t TopSelect::bin(float value) const {
  const float at = (value - low_) * scale_;
  return at >= float(kBins - 1) ? kBins - 1 : at > 0.0f ? int64_t(at) : 0;
}

void TopSelect::span(const float* values, int64_t count) {
  float high = -kInfinity;
  low_ = kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] == -kInfinity) continue;
    low_ = std::min(low_, values[i]);
    high = std::max(high, values[i]);
  }
  scale_ = high > low_ ? float(kBins) / (high - low_) : 0.0f;
  if (!std::isfinite(scale_)) scale_ = 0.0f;  // all in one bin: slower, not wrong
}

int64_t TopSelect::border(const float* values, int64_t count, int64_t k, int64_t* above) {
  std::fill(histogram_.begin(), histogram_.end(), 0);
  for (int64_t i = 0; i < count; ++i) ++histogram_[size_t(bin(values[i]))];
  int64_t b = kBins - 1;
  for (*above = 0; b > 0 && *above + histogram_[size_t(b)] < k; --b) *above += histogram_[size_t(b)];
  return b;
}

void TopSelect::threshold() {
  const int64_t count = int64_t(maxima_.size());
  threshold_ = -kInfinity;
  if (count < k_) return;
  int64_t above;
  span(maxima_.data(), count);
  const int64_t b = border(maxima_.data(), count, k_, &above);
  threshold_ = kInfinity;
  for (const float value : maxima_)
    if (bin(value) >= b) threshold_ = std::min(threshold_, value);
}

void TopSelect::collect(int64_t segment) {
  const int64_t first = segment * kSegment, count = std::min(kSegment, rows_ - first);
  const float* scores = &scores_[size_t(first)];
  counts_[size_t(segment)] =
      int32_t(kernels().at_least(scores, count, threshold_, int32_t(first), &found_[size_t(first)], &indices_[size_t(first)]));
}

void TopSelect::cut() {
  int64_t count = 0;
  for (int64_t segment = 0; segment < segments(); ++segment) {  // close up
    const size_t from = size_t(segment * kSegment), found = size_t(counts_[size_t(segment)]);
    std::memmove(&found_[size_t(count)], &found_[from], found * 4);
    std::memmove(&indices_[size_t(count)], &indices_[from], found * 4);
    count += int64_t(found);
  }
  chosen_.clear();
  if (count <= k_) {
    chosen_.assign(indices_.begin(), indices_.begin() + count);
    return;
  }
  int64_t above;
  span(found_.data(), count);
  const int64_t b = border(found_.data(), count, k_, &above);
  std::vector<int64_t> equals;  // of the border's bin, as far as they belong to the k
  for (int64_t i = 0; i < count; ++i)
    if (bin(found_[size_t(i)]) == b) equals.push_back(i);
  const auto before = [&](int64_t i, int64_t j) {
    return found_[size_t(i)] > found_[size_t(j)] || (found_[size_t(i)] == found_[size_t(j)] && i < j);
  };
  const auto last = equals.begin() + (k_ - above - 1);
  std::nth_element(equals.begin(), last, equals.end(), before);
  const int64_t cutoff = *last;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = bin(found_[size_t(i)]);
    if (at > b || (at == b && !before(cutoff, i))) chosen_.push_back(indices_[size_t(i)]);
  }
}

}  // namespace slimtier
