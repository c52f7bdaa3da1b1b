// The rows of the k largest scores, without sorting the vocabulary.
//
// As the scores are made, eight maxima are kept of every 64. The k-th largest maximum is at most the k-th largest score,
// so only scores from there on (hardly more than k of them) are collected; these are cut to k.
#pragma once

#include <cstdint>
#include <vector>

namespace slimtier {

class TopSelect {
 public:
  static constexpr int64_t kTile = 64, kSegment = 4096;

  void size(int64_t rows, int64_t k);
  int64_t segments() const { return (rows_ + kSegment - 1) / kSegment; }

  // In this order; put() and collect() on any thread, for disjoint rows; the others on one.
  void put(int64_t first, const float* scores, int64_t count);  // first a multiple of kTile
  void threshold();
  void collect(int64_t segment);
  void cut();

  // Ascending. Among equal scores the lower row is in; a NaN never is.
  const std::vector<int32_t>& rows() const { return chosen_; }

 private:
  int64_t bin(float value) const;
  void span(const float* values, int64_t count);  // bins for these
  // The highest bin from which on there are at least k values, and how many there are above it.
  int64_t border(const float* values, int64_t count, int64_t k, int64_t* above);

  int64_t rows_ = 0, k_ = 0;
  float low_ = 0, scale_ = 0, threshold_ = 0;
  std::vector<float> scores_, maxima_, found_;  // [rows], [rows / 8], [rows]: a segment's finds at its own place
  std::vector<int32_t> indices_, counts_, chosen_;
  std::vector<int32_t> histogram_;
};

}  // namespace slimtier
