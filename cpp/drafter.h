// An EAGLE-3 drafter: from the target's features and the next token to a chain of drafted tokens, in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft_head.h"
#include "layers.h"

namespace slimtier {

// Position t of a row holds the token that follows it, x[t+1], and the target's features of position t; its rotary
// position is t. From the second drafted token on the features are the drafter's own state of the position before.
class Drafter {
 public:
  struct Parts {
    Network network;  // the first layer's q, k and v take [norm of the embedding; norm of the feature], 2 · hidden wide
    Weights embedding;
    Weights fuse;              // [hidden, features]; null: the features are hidden wide and used as they are
    Vector feature_norm;       // [features], over `norm_pieces` equal pieces of them; empty: none
    int64_t norm_pieces = 1;
    Vector hidden_norm, final_norm;  // [hidden]
    bool norm_before_residual = false;  // the residual stream starts from the normed feature
    bool norm_output = false;           // what is fed back is the state after the final norm
    std::shared_ptr<DraftHead> head;
  };
  Drafter(Parts parts, std::shared_ptr<Pool> pool);
  ~Drafter();

  struct Input {
    const int32_t* tokens;  // [N]
    const float* features;  // [N, feature_width()] if `fused`, else states [N, hidden]
    bool fused;
    std::vector<Run> runs;  // in the order of the tokens
  };
  // hidden [N, hidden] is what the head takes, state [N, hidden] what is fed back.
  void forward(const Input& input, float* hidden, float* state);

  // For each run the most likely chain: up to steps[r] tokens, ended before the first that is less likely than
  // stop_below, and after one where the product of all their probabilities is below go_on. Without steps a run's keys and values are stored and no more. False if a score was not finite.
  struct Chains {
    int64_t width = 0;                 // the most steps
    std::vector<int32_t> ids;          // [runs, width], -1 past the end
    std::vector<float> probabilities;  // [runs, width], 0 past the end, and where neither they nor a stop were asked for
  };
  struct Stop {
    float below = 0.0f, go_on = 0.0f;
    bool looks() const { return below > 0.0f || go_on > 0.0f; }
  };
  bool draft(const Input& input, const std::vector<int64_t>& steps, Stop stop, bool probabilities, Chains& out);

  const Parts& parts() const { return parts_; }
  int64_t feature_width() const { return parts_.fuse ? parts_.fuse->k : parts_.network.shape.hidden; }
  const Timing& timing() const { return timing_; }
  void reset_timing() { timing_ = Timing(); }

 private:
  struct Scratch;
  struct Region;

  Parts parts_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Scratch> scratch_;
  Timing timing_;
};

}  // namespace slimtier
