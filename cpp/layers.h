// The layers of a Llama-family network and what runs them: a decoder's and a drafter's alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "activations.h"
#include "attention_plan.h"
#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace slimtier {

struct Shape {
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  float eps = 1e-5f, attention_scale = 1.0f, attention_softcap = 0.0f, embedding_scale = 1.0f, head_softcap = 0.0f;
  bool gelu = false;
};

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

struct Network {
  Shape shape;
  std::vector<RopeTable> ropes;
  std::vector<Layer> layers;
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
  bool fits(const Network& n) const {
    return layers_ == int64_t(n.layers.size()) && kv_heads_ == n.shape.kv_heads && head_dim_ == n.shape.head_dim;
  }

 private:
  int64_t layers_, kv_heads_, head_dim_, capacity_;
  bool half_;
  size_t head_bytes_;
  std::shared_ptr<uint8_t> memory_;
};

// `count` consecutive tokens of one row, the first at position `start`.
struct Run {
  KvStore* kv;
  int64_t start, count;
};

struct Timing {  // nanoseconds of the calls so far, by kind of work
  int64_t linear = 0, attention = 0, other = 0, head = 0;
};

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory that the passes of a network use one after another.
struct LayerScratch {
  Vector x, normed, q, k, v, attended, y, gate, up, mixed;
  Prepared input, attention_out, mlp_input, mlp_mixed;
};

// How far a thread has come in a pass; the same on every thread at the same stage.
struct Cursor {
  Lane& lane;
  bool pending = false;          // y is still to be added to x
  const Vector* post = nullptr;  // … after this norm
  int64_t stamp = now();
};

// One forward pass over packed tokens, sublayer by sublayer on the residual stream s.x [n, hidden]. Every thread calls
// the same methods in the same order; only the constructor and plan() come before the threads.
class LayerPass {
 public:
  LayerPass(const Network& network, LayerScratch& scratch, const std::vector<Run>& runs, int threads, Timing& timing);
  void plan();  // before mix()

  template <class Body>
  void each_token(Cursor& c, const Body& body) const {
    c.lane.share(n, 1, [&](int64_t first, int64_t last) { for (int64_t t = first; t < last; ++t) body(t); });
  }
  void size_inputs(const Layer& layer) const;  // on one thread, before the layer
  // x += y of the last sublayer, normed first if the layer has a norm after it.
  void settle(const Cursor& c, int64_t t) const;
  void attention(Cursor& c, int64_t layer) const;
  void mlp(Cursor& c, int64_t layer) const;
  // attention() in its three parts: s.normed and s.input from x; q, and keys and values into the stores; y from these.
  void norm_and_quantize(Cursor& c, const Vector& norm, Prepared& to) const;
  void project(Cursor& c, int64_t layer) const;
  void mix(Cursor& c, int64_t layer) const;
  void lap(Cursor& c, int64_t Timing::*kind) const;

  const Network& net;
  LayerScratch& s;
  const std::vector<Run>& runs;
  int64_t n = 0;

 private:
  void linears(Cursor& c, const Prepared& from, const Vector& x, std::initializer_list<std::pair<const Packed*, float*>> list) const;
  void rotate_and_store(const Layer& layer, int64_t index, int64_t t) const;

  int threads_;
  Timing& timing_;
  AttentionPlanner planner_;
  std::vector<const Run*> run_of_;    // per token
  std::vector<int64_t> position_of_;  // per token
  const Kernels& kernel_ = kernels();
};

}  // namespace slimtier
