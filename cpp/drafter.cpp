#include "drafter.h"

#include <cmath>
#include <cstring>

namespace slimtier {

struct Drafter::Scratch {
  LayerScratch layers;
  Prepared fuse_input;
  Vector fuse_normed, fused, embedded;       // [N, features], [N, hidden], [threads, hidden]
  Vector hidden, state;                      // [rows, hidden] of a chain's current position
  std::vector<int32_t> tokens;               // [rows]
};

Drafter::Drafter(Parts parts, std::shared_ptr<Pool> pool)
    : parts_(std::move(parts)), pool_(std::move(pool)), scratch_(new Scratch) {}

Drafter::~Drafter() = default;

// One pass in progress. Of the last layer only its keys and values are wanted for most tokens: after these are stored
// the pass goes on with `few`, the tokens whose output is asked for.
struct Drafter::Region {
  Drafter& d;
  const Input& input;
  std::vector<int64_t> kept;  // which tokens `few` are, ascending; empty and all: every token
  std::vector<Run> few_runs;
  float *hidden, *state;      // of the tokens that are kept
  Scratch& s;
  LayerPass all, few;
  int64_t width;
  const Kernels& kernel = kernels();

  // keep: for each run whether its last token is wanted; empty: every token is.
  Region(Drafter& drafter, const Input& in, const std::vector<int64_t>& keep, float* hidden_out, float* state_out)
      : d(drafter), input(in), few_runs(runs_of(in, keep, kept)), hidden(hidden_out), state(state_out), s(*drafter.scratch_),
        all(d.parts_.network, s.layers, in.runs, d.pool_->size(), d.timing_),
        few(d.parts_.network, s.layers, few_runs, d.pool_->size(), d.timing_), width(d.parts_.network.shape.hidden) {
    const auto grow = [](Vector& v, int64_t size) { if (int64_t(v.size()) < size) v.resize(size_t(size)); };
    grow(s.embedded, d.pool_->size() * width);
    if (input.fused && d.parts_.fuse) {
      grow(s.fused, all.n * width);
      grow(s.fuse_normed, all.n * d.feature_width());
      s.fuse_input.size_for(all.n, d.feature_width(), {d.parts_.fuse.get()});
    }
    if (d.parts_.network.layers.size() > 1) all.plan();
    few.plan();
  }

  static std::vector<Run> runs_of(const Input& in, const std::vector<int64_t>& keep, std::vector<int64_t>& kept) {
    if (keep.empty()) return in.runs;
    std::vector<Run> runs;
    int64_t end = 0;
    for (size_t r = 0; r < in.runs.size(); ++r) {
      const Run& run = in.runs[r];
      end += run.count;
      if (keep[r] == 0) continue;
      kept.push_back(end - 1);
      runs.push_back({run.kv, run.start + run.count - 1, 1});
    }
    return runs;
  }

  // Features [N, features] to [N, hidden].
  const float* fuse(Cursor& c) const {
    const Parts& p = d.parts_;
    if (!input.fused || !p.fuse) return input.features;
    const int64_t features = d.feature_width(), piece = features / p.norm_pieces;
    const bool normed = !p.feature_norm.empty();
    all.each_token(c, [&](int64_t t) {
      const float* x = input.features + t * features;
      for (int64_t at = 0; normed && at < features; at += piece)
        kernel.rms_norm(x + at, &p.feature_norm[size_t(at)], p.network.shape.eps, piece, &s.fuse_normed[size_t(t * features + at)]);
      s.fuse_input.quantize(normed ? &s.fuse_normed[size_t(t * features)] : x, t);
    });
    all.lap(c, &Timing::other);
    const Activations view = s.fuse_input.view(normed ? s.fuse_normed.data() : input.features);
    share_linears(c.lane, d.pool_->size(), view, {{p.fuse.get(), s.fused.data()}});
    all.lap(c, &Timing::linear);
    return s.fused.data();
  }

  // The first layer's input [norm of the embedding; norm of the feature] and the residual stream.
  void begin(Cursor& c, const float* features) const {
    const Parts& p = d.parts_;
    const Shape& shape = p.network.shape;
    float* embedded = &s.embedded[size_t(c.lane.thread * width)];
    all.each_token(c, [&](int64_t t) {
      p.embedding->row(input.tokens[t], embedded);
      for (int64_t i = 0; i < width; ++i) embedded[i] *= shape.embedding_scale;
      float* both = &s.layers.normed[size_t(t * 2 * width)];
      const float* feature = features + t * width;
      kernel.rms_norm(embedded, p.network.layers[0].input_norm.data(), shape.eps, width, both);
      kernel.rms_norm(feature, p.hidden_norm.data(), shape.eps, width, both + width);
      std::memcpy(&s.layers.x[size_t(t * width)], p.norm_before_residual ? both + width : feature, size_t(width) * 4);
      s.layers.input.quantize(both, t);
    });
    all.lap(c, &Timing::other);
  }

  // The kept tokens' queries and residuals close up; ascending, so that nothing is overwritten before it was read.
  void close_up(const Layer& layer) const {
    const int64_t queries = d.parts_.network.shape.heads * d.parts_.network.shape.head_dim;
    for (size_t i = 0; i < kept.size(); ++i) {
      std::memmove(&s.layers.q[i * size_t(queries)], &s.layers.q[size_t(kept[i] * queries)], size_t(queries) * 4);
      std::memmove(&s.layers.x[i * size_t(width)], &s.layers.x[size_t(kept[i] * width)], size_t(width) * 4);
    }
    few.size_inputs(layer);
  }

  void run(Lane& lane) const {
    const std::vector<Layer>& layers = d.parts_.network.layers;
    Cursor c{lane};
    for (size_t i = 0; i < layers.size(); ++i) {
      const int64_t index = int64_t(i);
      lane.share(1, 1, [&](int64_t, int64_t) { all.size_inputs(layers[i]); });
      if (i == 0) begin(c, fuse(c)); else all.norm_and_quantize(c, layers[i].input_norm, s.layers.input);
      all.project(c, index);
      const bool last = i + 1 == layers.size();
      if (last && few.n < all.n) lane.share(1, 1, [&](int64_t, int64_t) { close_up(layers[i]); });
      const LayerPass& on = last ? few : all;
      if (on.n == 0) return;
      on.mix(c, index);
      on.mlp(c, index);
    }
    few.each_token(c, [&](int64_t t) {
      few.settle(c, t);
      const float* x = &s.layers.x[size_t(t * width)];
      kernel.rms_norm(x, d.parts_.final_norm.data(), d.parts_.network.shape.eps, width, hidden + t * width);
      std::memcpy(state + t * width, d.parts_.norm_output ? hidden + t * width : x, size_t(width) * 4);
    });
    few.lap(c, &Timing::other);
  }
};

void Drafter::forward(const Input& input, float* hidden, float* state) {
  const Region region(*this, input, {}, hidden, state);
  if (region.all.n > 0) pool_->run([&](Lane& lane) { region.run(lane); });
}

bool Drafter::draft(const Input& input, const std::vector<int64_t>& steps, Stop stop, bool probabilities, Chains& out) {
  const int64_t width = parts_.network.shape.hidden;
  Scratch& s = *scratch_;
  std::vector<size_t> rows;  // the runs that are still drafting
  std::vector<Run> runs;     // … each at its current position
  Vector reach;              // … and the product of its probabilities
  for (size_t r = 0; r < steps.size(); ++r) {
    if (steps[r] == 0) continue;
    rows.push_back(r);
    runs.push_back({input.runs[r].kv, input.runs[r].start + input.runs[r].count - 1, 1});
    reach.push_back(1.0f);
  }
  s.hidden.resize(std::max(s.hidden.size(), rows.size() * size_t(width)));
  s.state.resize(s.hidden.size());
  s.tokens.resize(rows.size());
  Input next = input;
  std::vector<int64_t> keep = steps;
  DraftHead& head = *parts_.head;
  for (int64_t step = 0;; ++step) {
    const Region region(*this, next, keep, s.hidden.data(), s.state.data());
    head.begin(int64_t(rows.size()), pool_->size(), probabilities || stop.looks());
    if (region.all.n > 0) {
      pool_->run([&](Lane& lane) {
        region.run(lane);
        if (rows.empty()) return;
        const int64_t started = now();
        head.argmax(lane, s.hidden.data());
        if (lane.thread == 0) timing_.head += now() - started;
      });
    }
    size_t left = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Winner& winner = head.winners()[i];
      if (!std::isfinite(winner.value)) return false;
      if (winner.probability < stop.below) continue;
      const size_t at = rows[i] * size_t(out.width) + size_t(step);
      out.ids[at] = winner.id;
      out.probabilities[at] = winner.probability;
      const float reached = reach[i] * winner.probability;
      if (step + 1 == steps[rows[i]] || reached < stop.go_on) continue;
      reach[left] = reached;
      rows[left] = rows[i];
      runs[left] = {runs[i].kv, runs[i].start + 1, 1};
      s.tokens[left] = winner.id;
      std::memmove(&s.state[left * size_t(width)], &s.state[i * size_t(width)], size_t(width) * 4);
      ++left;
    }
    rows.resize(left);
    runs.resize(left);
    if (rows.empty()) return true;
    keep.clear();
    next = {s.tokens.data(), s.state.data(), false, runs};
  }
}

}  // namespace slimtier
