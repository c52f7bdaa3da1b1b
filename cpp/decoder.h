// A Llama-family decoder: all layers of a forward pass in one call, and its head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layers.h"
#include "winners.h"

namespace slimtier {

// What one forward pass is asked for. Skipped sublayers leave the residual stream as it is.
struct Pass {
  const int32_t* tokens;
  std::vector<Run> runs;               // in the order of the tokens
  std::vector<uint8_t> attention, mlp;  // a flag a layer; empty = all run
  std::vector<int64_t> capture;         // layers whose residual stream is wanted
  float* hidden;                        // [tokens, hidden], after the final norm
  float* features;                      // [capture, tokens, hidden]
};

struct TopK {
  std::vector<float> values;       // [m, k], largest first
  std::vector<int32_t> ids;        // [m, k]; the lower id first among equals
  std::vector<float> logsumexp;    // [m]
};

class Decoder {
 public:
  Decoder(Network network, Weights embedding, Weights head, Vector final_norm, std::shared_ptr<Pool> pool);
  ~Decoder();

  void forward(const Pass& pass);
  void logits(const float* hidden, int64_t m, float* out);                     // [m, vocab]
  // The best logit of each row, and if `seconds` is not null the second best; NaN wins, so that it is seen.
  void argmax(const float* hidden, int64_t m, int32_t* ids, float* values, float* seconds);
  TopK topk(const float* hidden, int64_t m, int64_t k);

  const Network& network() const { return network_; }
  const Shape& shape() const { return network_.shape; }
  int64_t num_layers() const { return int64_t(network_.layers.size()); }
  int64_t vocab() const { return head_->n; }
  int64_t positions() const { return network_.ropes[0].positions; }
  const Timing& timing() const { return timing_; }
  void reset_timing() { timing_ = Timing(); }

 private:
  struct Scratch;
  void run(Lane& lane, const LayerPass& layers, const Pass& pass);
  template <class Body>
  void over_head_chunks(const float* hidden, int64_t m, const Body& body);

  Network network_;
  Weights embedding_, head_;
  Vector final_norm_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Scratch> scratch_;
  Timing timing_;
};

}  // namespace slimtier
