// How the attention of a forward pass is cut into independent tasks.
//
// A task is some queries of a run and a kv head over some key blocks, and merges the blocks in order. Where that leaves
// too few tasks for the threads (few rows), a run's blocks are shared out too: their partial results are kept, one a
// block, and merged afterwards. Both merge the same blocks in the same order, so a token's result does not depend on
// which way it went.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kernels.h"

namespace slimtier {

struct Layer;
struct Run;

struct AttentionTask {
  const Run* run;
  int64_t first_token;              // of the run, among the packed tokens
  int64_t kv_head;
  int64_t first_query, last_query;  // among the run's queries of this kv head: token-major, head within the group
  int64_t first_block, last_block;
};

class AttentionPlan {
 public:
  AttentionPlan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window, int threads);

  int64_t tasks() const { return int64_t(tasks_.size()); }
  int64_t chunk() const { return chunk_; }  // tasks to take at a time: neighbours fetch each other's keys
  // Tasks first … last-1 of a layer: q [tokens, heads, head_dim], attended the same.
  void run(int64_t first, int64_t last, int64_t layer, const float* q, float softcap, float* attended) const;
  // Merges what token t's tasks kept, if any: out [heads, head_dim].
  void finish(int64_t t, float* out) const;

 private:
  struct Token {
    int64_t first_block, last_block;
    int64_t kept;  // where its partial results are kept, -1 = nowhere: [head][block][width of one]
  };

  int64_t first_visible(int64_t position) const { return window_ > 0 && position + 1 > window_ ? position + 1 - window_ : 0; }
  int64_t first_block(int64_t position) const { return first_visible(position) / kKeyBlock; }
  int64_t padded_dim() const { return (head_dim_ + 7) / 8 * 8; }
  int64_t kept_width() const { return padded_dim() + 8; }  // values, then maximum and sum
  float* kept(int64_t token, int64_t head, int64_t block) const;
  KvNext read_at(const AttentionTask& task, int64_t block, int64_t layer) const;
  KvNext after(const AttentionTask& task, int64_t block, const AttentionTask* next, int64_t layer) const;
  AttentionTile tile_at(const AttentionTask& task, int64_t query, const float* q, float softcap) const;
  void run(const AttentionTask& task, const AttentionTask* next, int64_t layer, const float* q, float softcap, float* attended) const;
  int64_t token_of(const AttentionTask& task, int64_t query) const { return task.first_token + query / group_; }
  int64_t head_of(const AttentionTask& task, int64_t query) const { return task.kv_head * group_ + query % group_; }

  int64_t heads_, group_, head_dim_, window_, chunk_ = 1;
  std::vector<AttentionTask> tasks_;
  std::vector<Token> tokens_;
  mutable std::vector<float> kept_;
};

class AttentionPlanner {
 public:
  void plan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, const std::vector<Layer>& layers, int threads);
  const AttentionPlan& plan_for(int64_t window) const { return plans_.at(window); }

 private:
  std::map<int64_t, AttentionPlan> plans_;  // by window
};

}  // namespace slimtier
