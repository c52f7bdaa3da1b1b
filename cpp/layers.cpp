#include "layers.h"

#include <cstring>

namespace slimtier {

// ---- key-value store ----

KvStore::KvStore(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity, bool half)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), capacity_((capacity + 7) / 8 * 8), half_(half),
      head_bytes_(size_t(capacity_ * head_dim) * (half ? 2 : 4)),
      memory_(allocate(head_bytes_ * size_t(layers * 2 * kv_heads) + 32)) {}  // values are read in whole vectors

void KvStore::copy_from(const KvStore& other, int64_t length) {
  const size_t wanted = head_bytes_ / size_t(capacity_) * size_t((length + 7) / 8 * 8);  // whole octets of keys
  for (int64_t i = 0; i < layers_ * 2 * kv_heads_; ++i)
    std::memcpy(memory_.get() + size_t(i) * head_bytes_, other.memory_.get() + size_t(i) * other.head_bytes_, wanted);
}

// ---- a pass ----

LayerPass::LayerPass(const Network& network, LayerScratch& scratch, const std::vector<Run>& run_list, int threads, Timing& timing)
    : net(network), s(scratch), runs(run_list), threads_(threads), timing_(timing) {
  for (const Run& run : runs)
    for (int64_t i = 0; i < run.count; ++i, ++n) {
      run_of_.push_back(&run);
      position_of_.push_back(run.start + i);
    }
  const Shape& shape = net.shape;
  int64_t widest = shape.hidden;
  for (const Layer& layer : net.layers) widest = std::max(widest, layer.q->k);
  const auto grow = [&](Vector& v, int64_t width) { if (int64_t(v.size()) < n * width) v.resize(size_t(n * width)); };
  for (Vector* v : {&s.x, &s.y}) grow(*v, shape.hidden);
  grow(s.normed, widest);
  for (Vector* v : {&s.q, &s.attended}) grow(*v, shape.heads * shape.head_dim);
  for (Vector* v : {&s.k, &s.v}) grow(*v, shape.kv_heads * shape.head_dim);
  for (Vector* v : {&s.gate, &s.up, &s.mixed}) grow(*v, shape.intermediate);
}

void LayerPass::plan() { planner_.plan(runs, net.shape.heads, net.shape.kv_heads, net.shape.head_dim, net.layers, threads_); }

void LayerPass::size_inputs(const Layer& layer) const {
  const Shape& h = net.shape;
  s.input.size_for(n, layer.q->k, {layer.q.get(), layer.k.get(), layer.v.get()});
  s.attention_out.size_for(n, h.heads * h.head_dim, {layer.o.get()});
  s.mlp_input.size_for(n, h.hidden, {layer.gate.get(), layer.up.get()});
  s.mlp_mixed.size_for(n, h.intermediate, {layer.down.get()});
}

void LayerPass::lap(Cursor& c, int64_t Timing::*kind) const {
  if (c.lane.thread != 0) return;
  const int64_t stamp = now();
  timing_.*kind += stamp - c.stamp;
  c.stamp = stamp;
}

void LayerPass::settle(const Cursor& c, int64_t t) const {
  if (!c.pending) return;
  const int64_t width = net.shape.hidden;
  float* y = &s.y[t * width];
  if (c.post != nullptr && !c.post->empty()) kernel_.rms_norm(y, c.post->data(), net.shape.eps, width, y);
  kernel_.add(&s.x[t * width], y, width);
}

void LayerPass::norm_and_quantize(Cursor& c, const Vector& norm, Prepared& to) const {
  const int64_t width = net.shape.hidden;
  each_token(c, [&](int64_t t) {
    settle(c, t);
    kernel_.rms_norm(&s.x[t * width], norm.data(), net.shape.eps, width, &s.normed[t * width]);
    to.quantize(&s.normed[t * width], t);
  });
  c.pending = false;
  lap(c, &Timing::other);
}

void LayerPass::linears(Cursor& c, const Prepared& from, const Vector& x, std::initializer_list<std::pair<const Packed*, float*>> list) const {
  share_linears(c.lane, threads_, from.view(x.data()), list);
  lap(c, &Timing::linear);
}

void LayerPass::rotate_and_store(const Layer& layer, int64_t index, int64_t t) const {
  const Shape& h = net.shape;
  const int64_t dim = h.head_dim, position = position_of_[t];
  const RopeTable& rope = net.ropes[layer.local_rope ? 1 : 0];
  const float* cos = &rope.cos[position * dim / 2];
  const float* sin = &rope.sin[position * dim / 2];
  const KvStore& kv = *run_of_[t]->kv;
  for (int64_t head = 0; head < h.heads; ++head) {
    float* q = &s.q[(t * h.heads + head) * dim];
    if (!layer.q_bias.empty()) kernel_.add(q, &layer.q_bias[head * dim], dim);
    if (!layer.q_norm.empty()) kernel_.rms_norm(q, layer.q_norm.data(), h.eps, dim, q);
    kernel_.rope(q, cos, sin, dim, h.attention_scale);
  }
  for (int64_t head = 0; head < h.kv_heads; ++head) {
    float* k = &s.k[(t * h.kv_heads + head) * dim];
    float* v = &s.v[(t * h.kv_heads + head) * dim];
    if (!layer.k_bias.empty()) kernel_.add(k, &layer.k_bias[head * dim], dim);
    if (!layer.v_bias.empty()) kernel_.add(v, &layer.v_bias[head * dim], dim);
    if (!layer.k_norm.empty()) kernel_.rms_norm(k, layer.k_norm.data(), h.eps, dim, k);
    kernel_.rope(k, cos, sin, dim, 1.0f);
    kernel_.put_key(k, kv.keys(index, head), kv.half(), position, dim);
    kernel_.put_value(v, kv.values(index, head), kv.half(), position, dim);
  }
}

void LayerPass::project(Cursor& c, int64_t index) const {
  const Layer& layer = net.layers[size_t(index)];
  linears(c, s.input, s.normed, {{layer.q.get(), s.q.data()}, {layer.k.get(), s.k.data()}, {layer.v.get(), s.v.data()}});
  each_token(c, [&](int64_t t) { rotate_and_store(layer, index, t); });
}

void LayerPass::mix(Cursor& c, int64_t index) const {
  const Shape& h = net.shape;
  const Layer& layer = net.layers[size_t(index)];
  const AttentionPlan& plan = planner_.plan_for(layer.window);
  c.lane.share(plan.tasks(), plan.chunk(), [&](int64_t first, int64_t last) {
    plan.run(first, last, index, s.q.data(), h.attention_softcap, s.attended.data());
  });
  each_token(c, [&](int64_t t) {
    float* out = &s.attended[t * h.heads * h.head_dim];
    plan.finish(t, out);
    s.attention_out.quantize(out, t);
  });
  lap(c, &Timing::attention);
  linears(c, s.attention_out, s.attended, {{layer.o.get(), s.y.data()}});
  c.pending = true;
  c.post = &layer.post_attention_norm;
}

void LayerPass::attention(Cursor& c, int64_t index) const {
  norm_and_quantize(c, net.layers[size_t(index)].input_norm, s.input);
  project(c, index);
  mix(c, index);
}

void LayerPass::mlp(Cursor& c, int64_t index) const {
  const Layer& layer = net.layers[size_t(index)];
  const int64_t width = net.shape.intermediate, slice = 256, slices = (width + slice - 1) / slice;
  norm_and_quantize(c, layer.mlp_norm, s.mlp_input);
  linears(c, s.mlp_input, s.normed, {{layer.gate.get(), s.gate.data()}, {layer.up.get(), s.up.data()}});
  c.lane.share(n * slices, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = i / slices * width + i % slices * slice, count = std::min(slice, width - i % slices * slice);
      kernel_.act_mul(&s.gate[at], &s.up[at], net.shape.gelu, count, &s.mixed[at]);
    }
  });
  each_token(c, [&](int64_t t) { s.mlp_mixed.quantize(&s.mixed[t * width], t); });
  lap(c, &Timing::other);
  linears(c, s.mlp_mixed, s.mixed, {{layer.down.get(), s.y.data()}});
  c.pending = true;
  c.post = &layer.post_mlp_norm;
}

}  // namespace slimtier
