// What gives a drafter's hidden states their scores: a matrix over the vocabulary, whole, of low rank, over a part of
// the vocabulary, or over rows that low-rank scores choose. Ids are the target's.
#pragma once

#include <cstdint>
#include <vector>

#include "activations.h"
#include "top_select.h"
#include "winners.h"

namespace slimtier {

class DraftHead {
 public:
  // scores = rows · (down · hidden), without `down` rows · hidden; row i stands for target id ids[i], without ids for i.
  // With `exact` [vocab, d] the scores only choose the `candidates` best rows; their scores are exact · hidden.
  struct Parts {
    Weights down, rows;
    std::vector<int32_t> ids;  // distinct
    Weights exact;
    int64_t candidates = 0, vocab = 0;
  };
  explicit DraftHead(Parts parts);

  int64_t width() const { return parts_.down ? parts_.down->k : parts_.rows->k; }
  int64_t vocab() const { return parts_.vocab; }
  size_t bytes() const;  // read for one token

  // Before the threads: for m tokens, with or without the winners' probabilities.
  void begin(int64_t m, int threads, bool probabilities);
  // On every thread; hidden [m, width]. Logits need not be written anywhere.
  void argmax(Lane& lane, const float* hidden);
  const std::vector<Winner>& winners() const { return results_; }
  // out [m, vocab], -inf where the head has no score. On every thread.
  void logits(Lane& lane, const float* hidden, float* out);

 private:
  Activations project(Lane& lane, const float* hidden);  // what `rows` is multiplied with
  float* own_chunk(const Lane& lane) { return &chunk_[size_t(lane.thread) * kTokensChunk * kRowsChunk]; }
  // each(token, rows, scores, count): the candidates' scores, on some thread.
  template <class Each>
  void route(Lane& lane, const float* hidden, const Each& each);

  Parts parts_;
  RowMatrix exact_;
  int64_t m_ = 0;
  int threads_ = 1;
  bool probabilities_ = false;
  Prepared input_, middle_input_;
  Vector middle_, chunk_, chosen_scores_;
  Winners row_winners_;
  std::vector<TopSelect> select_;  // of the tokens that are routed together
  std::vector<Winner> results_;
};

}  // namespace slimtier
