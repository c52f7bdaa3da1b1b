// A Llama-family decoder: all layers of a forward pass in one call, and its head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace slimtier {

struct Shape {
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  float eps = 1e-5f, attention_scale = 1.0f, attention_softcap = 0.0f, embedding_scale = 1.0f, head_softcap = 0.0f;
  bool gelu = false;
};

using Weights = std::shared_ptr<const Packed>;
using Vector = std::vector<float>;  // empty = absent

struct Layer {
  Weights q, k, v, o, gate, up, down;
  Vector input_norm, post_attention_norm, mlp_norm, post_mlp_norm, q_norm, k_norm, q_bias, k_bias, v_bias;
  int64_t window = 0;      // keys a query sees, its own included; 0 = all
  bool local_rope = false;  // uses the second table
};

// cos and sin [positions, head_dim / 2].
struct RopeTable {
  int64_t positions = 0;
  Vector cos, sin;
};

// Keys and values of one row of a batch, for `capacity` tokens in every layer; memory is touched as it fills.
class KvStore {
 public:
  KvStore(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity, bool half);
  void copy_from(const KvStore& other, int64_t length);
  uint8_t* keys(int64_t layer, int64_t head) const { return memory_.get() + ((layer * 2) * kv_heads_ + head) * head_bytes_; }
  uint8_t* values(int64_t layer, int64_t head) const { return memory_.get() + ((layer * 2 + 1) * kv_heads_ + head) * head_bytes_; }
  bool half() const { return half_; }
  int64_t capacity() const { return capacity_; }

 private:
  int64_t layers_, kv_heads_, capacity_;
  bool half_;
  size_t head_bytes_;
  std::shared_ptr<uint8_t> memory_;
};

// `count` consecutive tokens of one row, the first at position `start`.
struct Run {
  KvStore* kv;
  int64_t start, count;
};

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

struct Timing {  // nanoseconds of the calls so far, by kind of work
  int64_t linear = 0, attention = 0, other = 0, head = 0;
};

class Decoder {
 public:
  Decoder(Shape shape, Weights embedding, Weights head, Vector final_norm, std::vector<RopeTable> ropes,
          std::vector<Layer> layers, std::shared_ptr<Pool> pool);
  ~Decoder();

  void forward(const Pass& pass);
  void logits(const float* hidden, int64_t m, float* out);                     // [m, vocab]
  void argmax(const float* hidden, int64_t m, int32_t* ids, float* values);    // NaN wins, so that it is seen
  TopK topk(const float* hidden, int64_t m, int64_t k);

  const Shape& shape() const { return shape_; }
  int64_t num_layers() const { return int64_t(layers_.size()); }
  int64_t vocab() const { return head_->n; }
  int64_t positions() const { return ropes_[0].positions; }
  const Timing& timing() const { return timing_; }
  void reset_timing() { timing_ = Timing(); }

 private:
  struct Scratch;
  struct Region;  // the state of a forward pass in progress, shared by its threads
  template <class Body>
  void over_head_chunks(const float* hidden, int64_t m, const Body& body);

  Shape shape_;
  Weights embedding_, head_;
  Vector final_norm_;
  std::vector<RopeTable> ropes_;
  std::vector<Layer> layers_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Scratch> scratch_;
  Timing timing_;
};

// Quantised copies of activation rows, in whichever forms a set of weights needs.
class Prepared {
 public:
  void size(int64_t t, int64_t k, bool for_q8, bool for_q4);
  void quantize(const float* x, int64_t row);  // x [k]
  Activations view(const float* x) const;      // x [t, k]

 private:
  int64_t t_ = 0, k_ = 0, padded_ = 0, groups_ = 0;
  bool q8_ = false, q4_ = false;
  std::vector<int16_t> codes16_;
  std::vector<int8_t> codes8_;
  std::vector<float> scales16_, xsums16_, scales8_, xsums8_;
};

// out [t, n] = x [t, k] · weightᵀ.
void linear_forward(Pool& pool, const Packed& weight, const float* x, int64_t t, float* out);

}  // namespace slimtier
