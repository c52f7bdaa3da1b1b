#include "draft_head.h"

#include <cstring>
#include <limits>

namespace slimtier {

namespace {
constexpr int64_t kSmallProduct = 128 << 10;  // bytes of weights · tokens that are not worth meeting the other threads for
constexpr int64_t kFill = 1 << 16;
constexpr int64_t kRoutedTokens = 8, kRowBlock = 64;  // tokens whose scores are kept at once; candidates taken at a time
constexpr float kNone = -std::numeric_limits<float>::infinity();
}  // namespace

DraftHead::DraftHead(Parts parts) : parts_(std::move(parts)) {
  if (parts_.exact == nullptr) return;
  exact_ = by_rows(*parts_.exact);
  parts_.exact = nullptr;
  parts_.candidates = std::min(parts_.candidates, parts_.vocab);
}

size_t DraftHead::bytes() const {
  return parts_.rows->bytes + (parts_.down ? parts_.down->bytes : 0) + size_t(parts_.candidates * exact_.row_bytes);
}

void DraftHead::begin(int64_t m, int threads, bool probabilities) {
  m_ = m;
  threads_ = threads;
  probabilities_ = probabilities;
  const Packed* first = parts_.down ? parts_.down.get() : parts_.rows.get();
  input_.size(m, width(), first->wants(Kind::q8) || exact_.kind == Kind::q8, first->wants(Kind::q4));
  if (parts_.down) {
    middle_.resize(size_t(m * parts_.down->n));
    middle_input_.size_for(m, parts_.down->n, {parts_.rows.get()});
  }
  chunk_.resize(size_t(threads) * kTokensChunk * kRowsChunk);
  row_winners_.size(m, row_chunks(*parts_.rows), probabilities && exact_.n == 0 ? Winners::Also::sums : Winners::Also::nothing);
  if (exact_.n > 0) {
    const int64_t together = std::min(m, kRoutedTokens);
    if (int64_t(select_.size()) < together) select_.resize(size_t(together));
    for (TopSelect& select : select_) select.size(parts_.rows->n, parts_.candidates);
    chosen_scores_.resize(size_t(parts_.candidates * kRoutedTokens));
  }
  results_.resize(size_t(m));
}

Activations DraftHead::project(Lane& lane, const float* hidden) {
  const int64_t k = width();
  const auto each = [&](const auto& body) {
    lane.share(m_, 1, [&](int64_t first, int64_t last) { for (int64_t t = first; t < last; ++t) body(t); });
  };
  if (!parts_.down) {
    each([&](int64_t t) { input_.quantize(hidden + t * k, t); });
    return input_.view(hidden);
  }
  const Packed& down = *parts_.down;
  const bool small = int64_t(down.bytes) * m_ <= kSmallProduct;
  each([&](int64_t t) {
    input_.quantize(hidden + t * k, t);
    if (!small) return;
    kernels().linear(down, input_.view(hidden).slice(t, 1), &middle_[size_t(t * down.n)], down.n, 0, down.n);
    middle_input_.quantize(&middle_[size_t(t * down.n)], t);
  });
  if (!small) {
    share_linears(lane, threads_, input_.view(hidden), {{&down, middle_.data()}});
    each([&](int64_t t) { middle_input_.quantize(&middle_[size_t(t * down.n)], t); });
  }
  return middle_input_.view(middle_.data());
}

template <class Each>
void DraftHead::route(Lane& lane, const float* hidden, const Each& each) {
  const Activations low = project(lane, hidden), high = input_.view(hidden);
  const int64_t candidates = parts_.candidates, blocks = (candidates + kRowBlock - 1) / kRowBlock;
  for (int64_t base = 0; base < m_; base += kRoutedTokens) {
    const int64_t count = std::min(kRoutedTokens, m_ - base), segments = select_[0].segments();
    share_row_chunks(lane, *parts_.rows, low.slice(base, count), own_chunk(lane),
                     [&](int64_t first, int64_t rows, int64_t, int64_t, const float* scores) {
      for (int64_t i = 0; i < count; ++i) {
        row_winners_.take(base + i, first / kRowsChunk, scores + i * rows, rows, first, nullptr);
        select_[size_t(i)].put(first, scores + i * rows, rows);
      }
    });
    lane.share(count, 1, [&](int64_t i, int64_t) { select_[size_t(i)].threshold(); });
    lane.share(count * segments, 1, [&](int64_t i, int64_t) { select_[size_t(i / segments)].collect(i % segments); });
    lane.share(count, 1, [&](int64_t i, int64_t) { select_[size_t(i)].cut(); });
    lane.share(count * blocks, 1, [&](int64_t item, int64_t) {
      const int64_t i = item / blocks, first = item % blocks * kRowBlock;
      const std::vector<int32_t>& chosen = select_[size_t(i)].rows();  // fewer than `candidates` beside a NaN
      const int64_t rows = std::min(kRowBlock, int64_t(chosen.size()) - first);
      if (rows > 0)
        kernels().chosen_rows(exact_, high.slice(base + i, 1), &chosen[size_t(first)], rows, &chosen_scores_[size_t(i * candidates + first)]);
    });
    lane.share(count, 1, [&](int64_t i, int64_t) {
      const std::vector<int32_t>& chosen = select_[size_t(i)].rows();
      each(base + i, chosen.data(), &chosen_scores_[size_t(i * candidates)], int64_t(chosen.size()));
    });
  }
}

void DraftHead::argmax(Lane& lane, const float* hidden) {
  if (exact_.n > 0) {
    route(lane, hidden, [&](int64_t t, const int32_t* rows, const float* scores, int64_t count) {
      const Winner low = row_winners_.merge(t);
      if (low.value != low.value) { results_[size_t(t)] = {low.value, low.id, low.value}; return; }
      float value;
      int64_t index;
      kernels().argmax(scores, count, &value, &index);
      const float probability = probabilities_ ? 1.0f / kernels().sum_exp(scores, nullptr, count, value) : 0.0f;
      results_[size_t(t)] = {value, rows[index], probability};
    });
    return;
  }
  const int32_t* ids = parts_.ids.empty() ? nullptr : parts_.ids.data();
  share_row_chunks(lane, *parts_.rows, project(lane, hidden), own_chunk(lane),
                   [&](int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores) {
    for (int64_t i = 0; i < count; ++i)
      row_winners_.take(t + i, first / kRowsChunk, scores + i * rows, rows, first, ids == nullptr ? nullptr : ids + first);
  });
  lane.share(m_, 8, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) results_[size_t(t)] = row_winners_.merge(t);
  });
}

void DraftHead::logits(Lane& lane, const float* hidden, float* out) {
  const int64_t vocab = parts_.vocab;
  if (exact_.n > 0 || !parts_.ids.empty())
    lane.share(m_ * vocab, kFill, [&](int64_t first, int64_t last) { std::fill(out + first, out + last, kNone); });
  if (exact_.n > 0) {
    route(lane, hidden, [&](int64_t t, const int32_t* rows, const float* scores, int64_t count) {
      for (int64_t i = 0; i < count; ++i) out[t * vocab + rows[i]] = scores[i];
      const Winner low = row_winners_.merge(t);
      if (low.value != low.value) out[t * vocab + low.id] = low.value;
    });
    return;
  }
  share_row_chunks(lane, *parts_.rows, project(lane, hidden), own_chunk(lane),
                   [&](int64_t first, int64_t rows, int64_t t, int64_t count, const float* scores) {
    for (int64_t i = 0; i < count; ++i) {
      float* row = out + (t + i) * vocab;
      if (parts_.ids.empty()) { std::memcpy(row + first, scores + i * rows, size_t(rows) * 4); continue; }
      for (int64_t j = 0; j < rows; ++j) row[parts_.ids[size_t(first + j)]] = scores[i * rows + j];
    }
  });
}

}  // namespace slimtier
