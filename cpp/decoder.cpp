#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace slimtier {

struct Decoder::Scratch {
  LayerScratch layers;
  Prepared head_input;
  Winners winners;
  Vector chunk;  // [threads][tokens of a chunk][rows of it]
};

Decoder::Decoder(Network network, Weights embedding, Weights head, Vector final_norm, std::shared_ptr<Pool> pool)
    : network_(std::move(network)), embedding_(std::move(embedding)), head_(std::move(head)),
      final_norm_(std::move(final_norm)), pool_(std::move(pool)), scratch_(new Scratch) {}

Decoder::~Decoder() = default;

void Decoder::run(Lane& lane, const LayerPass& layers, const Pass& pass) {
  const Kernels& kernel = kernels();
  const int64_t width = shape().hidden, n = layers.n;
  LayerScratch& s = layers.s;
  Cursor c{lane};
  layers.each_token(c, [&](int64_t t) {
    float* x = &s.x[t * width];
    embedding_->row(pass.tokens[t], x);
    for (int64_t i = 0; i < width; ++i) x[i] *= shape().embedding_scale;
  });
  for (int64_t i = 0; i < num_layers(); ++i) {
    lane.share(1, 1, [&](int64_t, int64_t) { layers.size_inputs(network_.layers[i]); });  // layers may differ in precision
    if (pass.attention.empty() || pass.attention[i]) layers.attention(c, i);
    if (pass.mlp.empty() || pass.mlp[i]) layers.mlp(c, i);
    for (size_t slot = 0; slot < pass.capture.size(); ++slot) {
      if (pass.capture[slot] != i) continue;
      layers.each_token(c, [&](int64_t t) {
        layers.settle(c, t);
        std::memcpy(pass.features + (int64_t(slot) * n + t) * width, &s.x[t * width], size_t(width) * 4);
      });
      c.pending = false;
    }
  }
  layers.each_token(c, [&](int64_t t) {
    layers.settle(c, t);
    kernel.rms_norm(&s.x[t * width], final_norm_.data(), shape().eps, width, pass.hidden + t * width);
  });
  layers.lap(c, &Timing::other);
}

void Decoder::forward(const Pass& pass) {
  LayerPass layers(network_, scratch_->layers, pass.runs, pool_->size(), timing_);
  if (layers.n == 0) return;
  layers.plan();
  pool_->run([&](Lane& lane) { run(lane, layers, pass); });
}

// ---- head ----

// body(first row of the chunk, rows of it, first hidden row, hidden rows, scores [hidden rows][rows of it], thread).
template <class Body>
void Decoder::over_head_chunks(const float* hidden, int64_t m, const Body& body) {
  const int64_t started = now(), k = shape().hidden;
  Scratch& s = *scratch_;
  s.head_input.size_for(m, k, {head_.get()});
  s.chunk.resize(size_t(pool_->size()) * kTokensChunk * kRowsChunk);
  pool_->run([&](Lane& lane) {
    lane.share(m, 1, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) s.head_input.quantize(hidden + t * k, t);
    });
    float* own = &s.chunk[size_t(lane.thread) * kTokensChunk * kRowsChunk];
    share_row_chunks(lane, *head_, s.head_input.view(hidden), own, [&](int64_t first, int64_t rows, int64_t t, int64_t count, float* scores) {
      if (shape().head_softcap > 0.0f) kernels().softcap(scores, count * rows, shape().head_softcap);
      body(first, rows, t, count, scores, lane.thread);
    });
  });
  timing_.head += now() - started;
}

void Decoder::logits(const float* hidden, int64_t m, float* out) {
  over_head_chunks(hidden, m, [&](int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores, int) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out + (t + i) * head_->n + first, scores + i * rows, size_t(rows) * 4);
  });
}

void Decoder::argmax(const float* hidden, int64_t m, int32_t* ids, float* values, float* seconds) {
  Winners& winners = scratch_->winners;
  winners.size(m, row_chunks(*head_), seconds != nullptr ? Winners::Also::seconds : Winners::Also::nothing);
  over_head_chunks(hidden, m, [&](int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores, int) {
    for (int64_t i = 0; i < count; ++i) winners.take(t + i, first / kRowsChunk, scores + i * rows, rows, first, nullptr);
  });
  for (int64_t i = 0; i < m; ++i) {
    const Winner winner = winners.merge(i);
    ids[i] = winner.id;
    values[i] = winner.value;
    if (seconds != nullptr) seconds[i] = winner.second;
  }
}

TopK Decoder::topk(const float* hidden, int64_t m, int64_t k) {
  const int64_t threads = pool_->size(), chunks = row_chunks(*head_);
  using Entry = std::pair<float, int32_t>;
  const auto before = [](const Entry& a, const Entry& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
  std::vector<std::vector<Entry>> kept(size_t(threads * m));
  std::vector<float> maxima(size_t(chunks * m)), sums(size_t(chunks * m));
  over_head_chunks(hidden, m, [&](int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores, int thread) {
    for (int64_t i = 0; i < count; ++i) {
      std::vector<Entry>& mine = kept[size_t(thread * m + t + i)];
      const float* row = scores + i * rows;
      float top;
      int64_t index;
      kernels().argmax(row, rows, &top, &index);
      const size_t at = size_t((t + i) * chunks + first / kRowsChunk);
      maxima[at] = top;
      sums[at] = kernels().sum_exp(row, nullptr, rows, top);
      if (int64_t(mine.size()) == k && top < mine.back().first) continue;
      for (int64_t j = 0; j < rows; ++j) {
        const Entry entry{row[j], int32_t(first + j)};
        if (int64_t(mine.size()) == k && !before(entry, mine.back())) continue;
        if (int64_t(mine.size()) == k) mine.pop_back();
        mine.insert(std::upper_bound(mine.begin(), mine.end(), entry, before), entry);
      }
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
