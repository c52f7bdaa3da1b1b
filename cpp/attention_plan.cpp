#include "attention_plan.h"

#include <algorithm>
#include <limits>

#include "layers.h"

namespace slimtier {

namespace {

constexpr int64_t kTaskQueries = 4 * kQueryTile;  // they share a block of keys while it is in cache
constexpr int64_t kTasksPerThread = 4;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The calling thread's memory for `count` partial results of `width` floats each, kept from task to task.
float* scratch(int64_t count, int64_t width) {
  thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < count * width) memory.resize(size_t(count * width));
  return memory.data();
}

Partials nothing(float* values, int64_t width) {
  Partials p;
  for (int i = 0; i < 8; ++i) {
    p.maximum[i] = kNothing;
    p.sum[i] = 0.0f;
    p.values[i] = i < kQueryTile ? values + i * width : nullptr;
  }
  return p;
}

}  // namespace

AttentionPlan::AttentionPlan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window, int threads)
    : heads_(heads), group_(heads / kv_heads), head_dim_(head_dim), window_(window) {
  const auto end_block = [](int64_t position) { return position / kKeyBlock + 1; };
  int64_t work = 0;  // blocks times queries
  for (const Run& run : runs)
    work += run.count * heads * (run.count == 0 ? 0 : end_block(run.start + run.count - 1) - first_block(run.start));
  const int64_t fair = work / (kTasksPerThread * threads) + 1;
  int64_t token = 0, size = 0;
  for (const Run& run : runs) {
    if (run.count == 0) continue;
    const int64_t queries = run.count * group_, from = first_block(run.start), to = end_block(run.start + run.count - 1);
    const int64_t pieces = std::min(to - from, ((to - from) * std::min(queries, kTaskQueries) + fair - 1) / fair);
    for (int64_t kv = 0; kv < kv_heads; ++kv)
      for (int64_t query = 0; query < queries; query += kTaskQueries) {
        AttentionTask task{&run, token, kv, query, std::min(query + kTaskQueries, queries), from, to};
        if (pieces == 1) {
          task.first_block = first_block(run.start + query / group_);
          task.last_block = end_block(run.start + (task.last_query - 1) / group_);
          tasks_.push_back(task);
          continue;
        }
        for (int64_t i = 0; i < pieces; ++i) {
          task.first_block = from + (to - from) * i / pieces;
          task.last_block = from + (to - from) * (i + 1) / pieces;
          tasks_.push_back(task);
        }
      }
    for (int64_t i = 0; i < run.count; ++i) {
      tokens_.push_back({from, to, pieces == 1 ? -1 : size});
      if (pieces > 1) size += heads * (to - from) * kept_width();
    }
    token += run.count;
  }
  kept_.resize(size_t(size));
  chunk_ = std::max<int64_t>(1, tasks() / (kTasksPerThread * threads));
}

float* AttentionPlan::kept(int64_t token, int64_t head, int64_t block) const {
  const Token& t = tokens_[size_t(token)];
  return &kept_[size_t(t.kept + (head * (t.last_block - t.first_block) + block - t.first_block) * kept_width())];
}

KvNext AttentionPlan::read_at(const AttentionTask& task, int64_t block, int64_t layer) const {
  const KvStore& store = *task.run->kv;
  const int64_t first = block * kKeyBlock, key = head_dim_ * (store.half() ? 2 : 4);
  const int64_t count = std::min<int64_t>(task.run->start + task.run->count - first, kKeyBlock);
  return {store.keys(layer, task.kv_head) + first * key, store.values(layer, task.kv_head) + first * key, count * key};
}

// What is read after a task's block: its next one, or the next task's first.
KvNext AttentionPlan::after(const AttentionTask& task, int64_t block, const AttentionTask* next, int64_t layer) const {
  if (block + 1 < task.last_block) return read_at(task, block + 1, layer);
  return next == nullptr ? KvNext{nullptr, nullptr, 0} : read_at(*next, next->first_block, layer);
}

AttentionTile AttentionPlan::tile_at(const AttentionTask& task, int64_t query, const float* q, float softcap) const {
  AttentionTile tile{int(std::min<int64_t>(kQueryTile, task.last_query - query)), {}, {}, {}, int(head_dim_), softcap};
  for (int i = 0; i < tile.queries; ++i) {
    const int64_t position = task.run->start + (query + i) / group_;
    tile.q[i] = q + (token_of(task, query + i) * heads_ + head_of(task, query + i)) * head_dim_;
    tile.first[i] = first_visible(position);
    tile.last[i] = position + 1;
  }
  return tile;
}

void AttentionPlan::run(int64_t first, int64_t last, int64_t layer, const float* q, float softcap, float* attended) const {
  const AttentionTask& begin = tasks_[size_t(first)];
  const KvNext here = read_at(begin, begin.first_block, layer);  // nobody has fetched it
  for (int64_t at = 0; at < here.bytes; at += 64) __builtin_prefetch(here.keys + at);
  for (int64_t at = 0; at < here.bytes; at += 64) __builtin_prefetch(here.values + at);
  for (int64_t i = first; i < last; ++i)
    run(tasks_[size_t(i)], i + 1 < last ? &tasks_[size_t(i + 1)] : nullptr, layer, q, softcap, attended);
}

void AttentionPlan::run(const AttentionTask& task, const AttentionTask* next, int64_t layer, const float* q, float softcap,
                        float* attended) const {
  constexpr int64_t kMostTiles = kTaskQueries / kQueryTile;
  const Kernels& kernel = kernels();
  const KvStore& store = *task.run->kv;
  const KvView kv{store.keys(layer, task.kv_head), store.values(layer, task.kv_head), store.half()};
  const bool keeps = tokens_[size_t(task.first_token)].kept >= 0;
  const int64_t tiles = (task.last_query - task.first_query + kQueryTile - 1) / kQueryTile, width = padded_dim();
  float* memory = scratch((kMostTiles + 1) * kQueryTile, width);
  Partials part = nothing(memory, width), merged[kMostTiles];
  AttentionTile tile[kMostTiles];
  for (int64_t i = 0; i < tiles; ++i) {
    tile[i] = tile_at(task, task.first_query + i * kQueryTile, q, softcap);
    merged[i] = nothing(memory + (i + 1) * kQueryTile * width, width);
  }
  for (int64_t block = task.first_block; block < task.last_block; ++block)
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t query = task.first_query + i * kQueryTile;
      for (int j = 0; j < tile[i].queries && keeps; ++j)
        part.values[j] = kept(token_of(task, query + j), head_of(task, query + j), block);
      kernel.attend(tile[i], kv, block, i == 0 ? after(task, block, next, layer) : KvNext{nullptr, nullptr, 0}, part);
      if (!keeps) kernel.merge(merged[i], part, tile[i].queries, head_dim_);
      for (int j = 0; j < tile[i].queries && keeps; ++j) {
        part.values[j][width] = part.maximum[j];
        part.values[j][width + 1] = part.sum[j];
      }
    }
  for (int64_t i = 0; i < tiles && !keeps; ++i)
    for (int j = 0; j < tile[i].queries; ++j) {
      const int64_t query = task.first_query + i * kQueryTile + j;
      float* out = attended + (token_of(task, query) * heads_ + head_of(task, query)) * head_dim_;
      kernel.divide(merged[i].values[j], merged[i].sum[j], head_dim_, out);
    }
}

void AttentionPlan::finish(int64_t t, float* out) const {
  const Token& token = tokens_[size_t(t)];
  if (token.kept < 0) return;
  const int64_t width = padded_dim();
  float* memory = scratch(kQueryTile, width);
  for (int64_t head = 0; head < heads_; head += kQueryTile) {
    const int count = int(std::min<int64_t>(kQueryTile, heads_ - head));
    Partials merged = nothing(memory, width), part = merged;
    for (int64_t block = token.first_block; block < token.last_block; ++block) {
      for (int i = 0; i < count; ++i) {
        part.values[i] = kept(t, head + i, block);
        part.maximum[i] = part.values[i][width];
        part.sum[i] = part.values[i][width + 1];
      }
      kernels().merge(merged, part, count, head_dim_);
    }
    for (int i = 0; i < count; ++i) kernels().divide(merged.values[i], merged.sum[i], head_dim_, out + (head + i) * head_dim_);
  }
}

void AttentionPlanner::plan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            const std::vector<Layer>& layers, int threads) {
  plans_.clear();
  for (const Layer& layer : layers)
    if (plans_.find(layer.window) == plans_.end())
      plans_.emplace(layer.window, AttentionPlan(runs, heads, kv_heads, head_dim, layer.window, threads));
}

}  // namespace slimtier
