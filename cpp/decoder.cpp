#include "decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "attention_plan.h"

namespace slimtier {

namespace {

constexpr int64_t kRowChunk = 16;  // rows of a weight matrix are shared out in multiples of the widest panel

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t row_blocks(const Packed& w) { return (w.n + kRowChunk - 1) / kRowChunk; }

// Blocks of rows to take at a time: long enough to stream, short enough that threads finish together.
int64_t block_share(int64_t blocks, int threads) { return std::clamp<int64_t>(blocks / (threads * 4), 1, 16); }

bool any_of_kind(std::initializer_list<const Weights*> weights, Kind kind) {
  for (const Weights* w : weights)
    if ((*w)->kind == kind) return true;
  return false;
}

void linear_blocks(const Packed& w, const Activations& x, float* out, int64_t first, int64_t last) {
  kernels().linear(w, x, out, w.n, first * kRowChunk, std::min(last * kRowChunk, w.n));
}

}  // namespace

// ---- activations ----

void Prepared::size(int64_t t, int64_t k, bool for_q8, bool for_q4) {
  t_ = t; k_ = k; q8_ = for_q8; q4_ = for_q4;
  groups_ = (k + kGroup - 1) / kGroup;
  padded_ = groups_ * kGroup;
  const auto grow = [](auto& v, int64_t n) { if (int64_t(v.size()) < n) v.resize(size_t(n)); };
  if (q8_) { grow(codes16_, t * padded_); grow(scales16_, t * groups_); grow(xsums16_, t * groups_); }
  if (q4_) { grow(codes8_, t * padded_); grow(scales8_, t * groups_); grow(xsums8_, t * groups_); }
}

void Prepared::quantize(const float* x, int64_t row) {
  if (q8_) kernels().quantize16(x, k_, &codes16_[row * padded_], &scales16_[row], &xsums16_[row], t_);
  if (q4_) kernels().quantize8(x, k_, &codes8_[row * padded_], &scales8_[row], &xsums8_[row], t_);
}

Activations Prepared::view(const float* x) const {
  return {t_, k_, x, padded_, t_, codes16_.data(), scales16_.data(), xsums16_.data(),
          codes8_.data(), scales8_.data(), xsums8_.data()};
}

void linear_forward(Pool& pool, const Packed& weight, const float* x, int64_t t, float* out) {
  Prepared prepared;
  prepared.size(t, weight.k, weight.kind == Kind::q8, weight.kind == Kind::q4);
  const int64_t blocks = row_blocks(weight);
  pool.run([&](Lane& lane) {
    lane.share(t, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) prepared.quantize(x + row * weight.k, row);
    });
    lane.share(blocks, block_share(blocks, pool.size()),
               [&](int64_t first, int64_t last) { linear_blocks(weight, prepared.view(x), out, first, last); });
  });
}

// ---- key-value store ----

KvStore::KvStore(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity, bool half)
    : layers_(layers), kv_heads_(kv_heads), capacity_((capacity + 7) / 8 * 8), half_(half),
      head_bytes_(size_t(capacity_ * head_dim) * (half ? 2 : 4)),
      memory_(allocate(head_bytes_ * size_t(layers * 2 * kv_heads))) {}

void KvStore::copy_from(const KvStore& other, int64_t length) {
  const size_t wanted = head_bytes_ / size_t(capacity_) * size_t((length + 7) / 8 * 8);  // whole octets of keys
  for (int64_t i = 0; i < layers_ * 2 * kv_heads_; ++i)
    std::memcpy(memory_.get() + size_t(i) * head_bytes_, other.memory_.get() + size_t(i) * other.head_bytes_, wanted);
}

// ---- decoder ----

struct Decoder::Scratch {
  Vector x, normed, q, k, v, attended, y, gate, up, mixed;
  Prepared input, attention_out, mlp_input, mlp_mixed, head_input;
  AttentionPlanner planner;
  Vector chunk;  // [threads][64][head chunk]
};

Decoder::Decoder(Shape shape, Weights embedding, Weights head, Vector final_norm, std::vector<RopeTable> ropes,
                 std::vector<Layer> layers, std::shared_ptr<Pool> pool)
    : shape_(shape), embedding_(std::move(embedding)), head_(std::move(head)), final_norm_(std::move(final_norm)),
      ropes_(std::move(ropes)), layers_(std::move(layers)), pool_(std::move(pool)), scratch_(new Scratch) {}

Decoder::~Decoder() = default;

struct Decoder::Region {
  Decoder& d;
  Scratch& s;
  const Pass& pass;
  int64_t n;
  std::vector<const Run*> run_of;      // per token
  std::vector<int64_t> position_of;    // per token
  const Kernels& kernel = kernels();
  // How far a thread has come; the same on every thread at the same stage.
  struct Cursor {
    Lane& lane;
    bool pending = false;            // y is still to be added to x
    const Vector* post = nullptr;    // … after this norm
    int64_t stamp = 0;
  };

  Region(Decoder& decoder, const Pass& p) : d(decoder), s(*decoder.scratch_), pass(p), n(0) {
    for (const Run& run : p.runs)
      for (int64_t i = 0; i < run.count; ++i, ++n) {
        run_of.push_back(&run);
        position_of.push_back(run.start + i);
      }
    const Shape& shape = d.shape_;
    const auto grow = [&](Vector& v, int64_t width) { if (int64_t(v.size()) < n * width) v.resize(size_t(n * width)); };
    for (Vector* v : {&s.x, &s.normed, &s.y}) grow(*v, shape.hidden);
    for (Vector* v : {&s.q, &s.attended}) grow(*v, shape.heads * shape.head_dim);
    for (Vector* v : {&s.k, &s.v}) grow(*v, shape.kv_heads * shape.head_dim);
    for (Vector* v : {&s.gate, &s.up, &s.mixed}) grow(*v, shape.intermediate);
    s.planner.plan(p.runs, shape.heads, shape.kv_heads, shape.head_dim, d.layers_);
  }

  void lap(Cursor& c, int64_t Timing::*kind) const {
    if (c.lane.thread != 0) return;
    const int64_t stamp = now();
    d.timing_.*kind += stamp - c.stamp;
    c.stamp = stamp;
  }

  template <class Body>
  void each_token(Cursor& c, const Body& body) const {
    c.lane.share(n, 1, [&](int64_t first, int64_t last) { for (int64_t t = first; t < last; ++t) body(t); });
  }

  // x += y, normed first if the layer has a norm after the sublayer.
  void settle(const Cursor& c, int64_t t) const {
    if (!c.pending) return;
    const int64_t width = d.shape_.hidden;
    float* y = &s.y[t * width];
    if (c.post != nullptr && !c.post->empty()) kernel.rms_norm(y, c.post->data(), d.shape_.eps, width, y);
    kernel.add(&s.x[t * width], y, width);
  }

  void norm_and_quantize(Cursor& c, const Vector& norm, Prepared& to) const {
    const int64_t width = d.shape_.hidden;
    each_token(c, [&](int64_t t) {
      settle(c, t);
      kernel.rms_norm(&s.x[t * width], norm.data(), d.shape_.eps, width, &s.normed[t * width]);
      to.quantize(&s.normed[t * width], t);
    });
    c.pending = false;
    lap(c, &Timing::other);
  }

  // Several matrices over the same input, as one shared list of row blocks.
  void linears(Cursor& c, const Prepared& from, const Vector& x, std::initializer_list<std::pair<const Packed*, float*>> list) const {
    int64_t blocks = 0;
    for (const auto& [w, out] : list) blocks += row_blocks(*w);
    const Activations view = from.view(x.data());
    c.lane.share(blocks, block_share(blocks, d.pool_->size()), [&](int64_t first, int64_t last) {
      int64_t base = 0;
      for (const auto& [w, out] : list) {
        const int64_t mine = row_blocks(*w), a = std::max(first, base), b = std::min(last, base + mine);
        if (a < b) linear_blocks(*w, view, out, a - base, b - base);
        base += mine;
      }
    });
    lap(c, &Timing::linear);
  }

  void rotate_and_store(const Layer& layer, int64_t index, int64_t t) const {
    const Shape& h = d.shape_;
    const int64_t dim = h.head_dim, position = position_of[t];
    const RopeTable& rope = d.ropes_[layer.local_rope ? 1 : 0];
    const float* cos = &rope.cos[position * dim / 2];
    const float* sin = &rope.sin[position * dim / 2];
    const KvStore& kv = *run_of[t]->kv;
    for (int64_t head = 0; head < h.heads; ++head) {
      float* q = &s.q[(t * h.heads + head) * dim];
      if (!layer.q_bias.empty()) kernel.add(q, &layer.q_bias[head * dim], dim);
      if (!layer.q_norm.empty()) kernel.rms_norm(q, layer.q_norm.data(), h.eps, dim, q);
      kernel.rope(q, cos, sin, dim, h.attention_scale);
    }
    for (int64_t head = 0; head < h.kv_heads; ++head) {
      float* k = &s.k[(t * h.kv_heads + head) * dim];
      float* v = &s.v[(t * h.kv_heads + head) * dim];
      if (!layer.k_bias.empty()) kernel.add(k, &layer.k_bias[head * dim], dim);
      if (!layer.v_bias.empty()) kernel.add(v, &layer.v_bias[head * dim], dim);
      if (!layer.k_norm.empty()) kernel.rms_norm(k, layer.k_norm.data(), h.eps, dim, k);
      kernel.rope(k, cos, sin, dim, 1.0f);
      kernel.put_key(k, kv.keys(index, head), kv.half(), position, dim);
      kernel.put_value(v, kv.values(index, head), kv.half(), position, dim);
    }
  }

  void attention(Cursor& c, const Layer& layer, int64_t index) const {
    const Shape& h = d.shape_;
    norm_and_quantize(c, layer.input_norm, s.input);
    linears(c, s.input, s.normed, {{layer.q.get(), s.q.data()}, {layer.k.get(), s.k.data()}, {layer.v.get(), s.v.data()}});
    each_token(c, [&](int64_t t) { rotate_and_store(layer, index, t); });
    const AttentionPlan& plan = s.planner.plan_for(layer.window);
    c.lane.share(int64_t(plan.tasks.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        plan.run(plan.tasks[i], index, s.q.data(), h.attention_softcap, s.attended.data());
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

  void mlp(Cursor& c, const Layer& layer) const {
    const int64_t width = d.shape_.intermediate, slice = 256, slices = (width + slice - 1) / slice;
    norm_and_quantize(c, layer.mlp_norm, s.mlp_input);
    linears(c, s.mlp_input, s.normed, {{layer.gate.get(), s.gate.data()}, {layer.up.get(), s.up.data()}});
    c.lane.share(n * slices, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = i / slices * width + i % slices * slice, count = std::min(slice, width - i % slices * slice);
        kernel.act_mul(&s.gate[at], &s.up[at], d.shape_.gelu, count, &s.mixed[at]);
      }
    });
    each_token(c, [&](int64_t t) { s.mlp_mixed.quantize(&s.mixed[t * width], t); });
    lap(c, &Timing::other);
    linears(c, s.mlp_mixed, s.mixed, {{layer.down.get(), s.y.data()}});
    c.pending = true;
    c.post = &layer.post_mlp_norm;
  }

  void size_inputs(const Layer& layer) const {
    const Shape& h = d.shape_;
    const auto size = [&](Prepared& p, int64_t k, std::initializer_list<const Weights*> users) {
      p.size(n, k, any_of_kind(users, Kind::q8), any_of_kind(users, Kind::q4));
    };
    size(s.input, h.hidden, {&layer.q, &layer.k, &layer.v});
    size(s.attention_out, h.heads * h.head_dim, {&layer.o});
    size(s.mlp_input, h.hidden, {&layer.gate, &layer.up});
    size(s.mlp_mixed, h.intermediate, {&layer.down});
  }

  void embed(int64_t t) const {
    const int64_t width = d.shape_.hidden;
    float* x = &s.x[t * width];
    d.embedding_->row(pass.tokens[t], x);
    for (int64_t i = 0; i < width; ++i) x[i] *= d.shape_.embedding_scale;
  }

  void run(Lane& lane) const {
    const int64_t width = d.shape_.hidden;
    Cursor c{lane};
    c.stamp = now();
    each_token(c, [&](int64_t t) { embed(t); });
    for (int64_t i = 0; i < d.num_layers(); ++i) {
      const Layer& layer = d.layers_[i];
      c.lane.share(1, 1, [&](int64_t, int64_t) { size_inputs(layer); });  // layers may differ in precision
      if (pass.attention.empty() || pass.attention[i]) attention(c, layer, i);
      if (pass.mlp.empty() || pass.mlp[i]) mlp(c, layer);
      for (size_t slot = 0; slot < pass.capture.size(); ++slot) {
        if (pass.capture[slot] != i) continue;
        each_token(c, [&](int64_t t) {
          settle(c, t);
          std::memcpy(pass.features + (int64_t(slot) * n + t) * width, &s.x[t * width], size_t(width) * 4);
        });
        c.pending = false;
      }
    }
    each_token(c, [&](int64_t t) {
      settle(c, t);
      kernel.rms_norm(&s.x[t * width], d.final_norm_.data(), d.shape_.eps, width, pass.hidden + t * width);
    });
    lap(c, &Timing::other);
  }
};

void Decoder::forward(const Pass& pass) {
  const Region region(*this, pass);
  if (region.n == 0) return;
  pool_->run([&](Lane& lane) { region.run(lane); });
}

// ---- head ----

constexpr int64_t kHeadChunk = 256, kHeadRows = 64;

// body(thread, first row of the chunk, rows of it, first hidden row, hidden rows, scores [hidden rows][rows of it]).
template <class Body>
void Decoder::over_head_chunks(const float* hidden, int64_t m, const Body& body) {
  const int64_t started = now();
  Scratch& s = *scratch_;
  const int64_t k = shape_.hidden, chunks = (head_->n + kHeadChunk - 1) / kHeadChunk;
  s.head_input.size(m, k, head_->kind == Kind::q8, head_->kind == Kind::q4);
  s.chunk.resize(size_t(pool_->size()) * kHeadRows * kHeadChunk);
  pool_->run([&](Lane& lane) {
    float* scores = &s.chunk[size_t(lane.thread) * kHeadRows * kHeadChunk];
    lane.share(m, 1, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) s.head_input.quantize(hidden + t * k, t);
    });
    const Activations all = s.head_input.view(hidden);
    lane.share(chunks, 1, [&](int64_t first_chunk, int64_t) {
      const int64_t first = first_chunk * kHeadChunk, rows = std::min(kHeadChunk, head_->n - first);
      for (int64_t t = 0; t < m; t += kHeadRows) {
        const int64_t count = std::min(kHeadRows, m - t);
        kernels().linear(*head_, all.slice(t, count), scores - first, rows, first, first + rows);
        if (shape_.head_softcap > 0.0f) kernels().softcap(scores, count * rows, shape_.head_softcap);
        body(lane.thread, first, rows, t, count, scores);
      }
    });
  });
  timing_.head += now() - started;
}

void Decoder::logits(const float* hidden, int64_t m, float* out) {
  over_head_chunks(hidden, m, [&](int, int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out + (t + i) * head_->n + first, scores + i * rows, size_t(rows) * 4);
  });
}

void Decoder::argmax(const float* hidden, int64_t m, int32_t* ids, float* values) {
  const int64_t threads = pool_->size();
  struct Best { float value = 0; int64_t id = -1; };
  std::vector<Best> best(size_t(threads * m));
  const auto better = [](float value, int64_t id, const Best& than) {  // NaN first, then the larger, then the lower id
    if (than.id < 0) return true;
    const bool nan = value != value, than_nan = than.value != than.value;
    if (nan != than_nan) return nan;
    if (nan || value == than.value) return id < than.id;
    return value > than.value;
  };
  over_head_chunks(hidden, m, [&](int thread, int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores) {
    for (int64_t i = 0; i < count; ++i) {
      float value;
      int64_t index;
      kernels().argmax(scores + i * rows, rows, &value, &index);
      Best& mine = best[size_t(thread * m + t + i)];
      if (better(value, first + index, mine)) mine = {value, first + index};
    }
  });
  for (int64_t i = 0; i < m; ++i) {
    Best winner;
    for (int64_t thread = 0; thread < threads; ++thread) {
      const Best& one = best[size_t(thread * m + i)];
      if (one.id >= 0 && better(one.value, one.id, winner)) winner = one;
    }
    ids[i] = int32_t(winner.id);
    values[i] = winner.value;
  }
}

TopK Decoder::topk(const float* hidden, int64_t m, int64_t k) {
  const int64_t threads = pool_->size(), chunks = (head_->n + kHeadChunk - 1) / kHeadChunk;
  using Entry = std::pair<float, int32_t>;
  const auto before = [](const Entry& a, const Entry& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
  std::vector<std::vector<Entry>> kept(size_t(threads * m));
  std::vector<float> maxima(size_t(chunks * m)), sums(size_t(chunks * m));
  over_head_chunks(hidden, m, [&](int thread, int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores) {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<Entry>& mine = kept[size_t(thread * m + t + i)];
      const float* row = scores + i * rows;
      for (int64_t j = 0; j < rows; ++j) {
        const Entry entry{row[j], int32_t(first + j)};
        if (int64_t(mine.size()) == k && !before(entry, mine.back())) continue;
        if (int64_t(mine.size()) == k) mine.pop_back();
        mine.insert(std::upper_bound(mine.begin(), mine.end(), entry, before), entry);
      }
      float top;
      int64_t index;
      kernels().argmax(row, rows, &top, &index);
      const size_t at = size_t((t + i) * chunks + first / kHeadChunk);
      maxima[at] = top;
      for (int64_t j = 0; j < rows; ++j) sums[at] += std::exp(row[j] - top);
    }
  });
  TopK out;
  for (int64_t i = 0; i < m; ++i) {
    std::vector<Entry> all;
    for (int64_t thread = 0; thread < threads; ++thread)
      all.insert(all.end(), kept[size_t(thread * m + i)].begin(), kept[size_t(thread * m + i)].end());
    std::sort(all.begin(), all.end(), before);
    for (int64_t j = 0; j < k; ++j) {
      out.values.push_back(all[size_t(j)].first);
      out.ids.push_back(all[size_t(j)].second);
    }
    const float* top = &maxima[size_t(i * chunks)];
    const float highest = *std::max_element(top, top + chunks);
    double total = 0.0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[size_t(i * chunks + chunk)] * std::exp(double(top[chunk] - highest));
    out.logsumexp.push_back(float(highest + std::log(total)));
  }
  return out;
}

}  // namespace slimtier
