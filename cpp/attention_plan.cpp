#include "attention_plan.h"

#include <algorithm>
#include <limits>

#include "layers.h"

namespace slimtier {

namespace {
constexpr int64_t kFewTokens = 16;
constexpr float kNothing = -std::numeric_limits<float>::infinity();
}  // namespace

AttentionPlan::AttentionPlan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window)
    : heads_(heads), kv_heads_(kv_heads), head_dim_(head_dim), window_(window) {
  const int64_t group = heads / kv_heads;
  int64_t token = 0, stored_tokens = 0;
  for (const Run& run : runs) {
    if (run.count == 0) continue;
    const bool stored = run.count <= kFewTokens;
    const int64_t queries = run.count * group;
    const int64_t first_block = first_visible(run.start) / kKeyBlock, last_block = (run.start + run.count - 1) / kKeyBlock + 1;
    for (int64_t kv = 0; kv < kv_heads; ++kv) {
      if (stored) {
        for (int64_t block = first_block; block < last_block; ++block)
          tasks.push_back({&run, token, kv, 0, queries, block, block + 1, true});
      } else {
        for (int64_t query = 0; query < queries; query += kQueryTile)
          tasks.push_back({&run, token, kv, query, std::min<int64_t>(query + kQueryTile, queries), first_block, last_block, false});
      }
    }
    for (int64_t i = 0; i < run.count; ++i) tokens_.push_back({stored, first_block, last_block});
    token += run.count;
    if (stored) {
      stored_tokens = token;
      most_blocks_ = std::max(most_blocks_, last_block - first_block);
    }
  }
  partials_.resize(size_t(stored_tokens * heads * most_blocks_ * (head_dim + 2)));
  sums_.resize(size_t(token * heads));
}

Partial AttentionPlan::slot(int64_t token, int64_t head, int64_t block) const {
  float* at = &partials_[size_t(((token * heads_ + head) * most_blocks_ + block - tokens_[size_t(token)].first_block) * (head_dim_ + 2))];
  return {at[0], at[1], at + 2};
}

void AttentionPlan::run(const AttentionTask& task, int64_t layer, const float* q, float softcap, float* attended) const {
  const Kernels& kernel = kernels();
  const int64_t group = heads_ / kv_heads_;
  const KvStore& store = *task.run->kv;
  const KvView kv{store.keys(layer, task.kv_head), store.values(layer, task.kv_head), store.half()};
  std::vector<float> fresh(size_t(kQueryTile * head_dim_));
  for (int64_t query = task.first_query; query < task.last_query; query += kQueryTile) {
    AttentionTile tile{int(std::min<int64_t>(kQueryTile, task.last_query - query)), {}, {}, {}, int(head_dim_), softcap};
    int64_t token[kQueryTile], head[kQueryTile];
    Partial merged[kQueryTile];
    for (int i = 0; i < tile.queries; ++i) {
      const int64_t offset = (query + i) / group, position = task.run->start + offset;
      token[i] = task.first_token + offset;
      head[i] = task.kv_head * group + (query + i) % group;
      tile.q[i] = q + (token[i] * heads_ + head[i]) * head_dim_;
      tile.first[i] = first_visible(position);
      tile.last[i] = position + 1;
      merged[i] = {kNothing, 0.0f, attended + (token[i] * heads_ + head[i]) * head_dim_};
    }
    for (int64_t block = task.first_block; block < task.last_block; ++block) {
      Partial part[kQueryTile];
      for (int i = 0; i < tile.queries; ++i)
        part[i] = task.stored ? slot(token[i], head[i], block) : Partial{kNothing, 0.0f, &fresh[size_t(i * head_dim_)]};
      kernel.attend(tile, kv, block, part);
      for (int i = 0; i < tile.queries; ++i) {
        if (task.stored) {
          part[i].values[-2] = part[i].maximum;
          part[i].values[-1] = part[i].sum;
        } else {
          kernel.merge(merged[i], part[i], head_dim_);
        }
      }
    }
    for (int i = 0; i < tile.queries && !task.stored; ++i) sums_[size_t(token[i] * heads_ + head[i])] = merged[i].sum;
  }
}

void AttentionPlan::finish(int64_t t, float* out) const {
  const Token& token = tokens_[size_t(t)];
  for (int64_t head = 0; head < heads_; ++head, out += head_dim_) {
    float sum = sums_[size_t(t * heads_ + head)];
    if (token.stored) {
      Partial merged{kNothing, 0.0f, out};
      for (int64_t block = token.first_block; block < token.last_block; ++block) kernels().merge(merged, slot(t, head, block), head_dim_);
      sum = merged.sum;
    }
    for (int64_t d = 0; d < head_dim_; ++d) out[d] /= sum;
  }
}

void AttentionPlanner::plan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const std::vector<Layer>& layers) {
  plans_.clear();
  for (const Layer& layer : layers)
    if (plans_.find(layer.window) == plans_.end())
      plans_.emplace(layer.window, AttentionPlan(runs, heads, kv_heads, head_dim, layer.window));
}

}  // namespace slimtier
