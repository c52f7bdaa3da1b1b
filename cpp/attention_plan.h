// How the attention of a forward pass is cut into independent tasks.
//
// A run of few tokens (decoding, a draft) is cut by key block, so that even one token keeps all threads busy; its
// partial results are merged afterwards. A run of many (a prefill) is cut by queries, and each task walks the blocks.
// Both merge the same blocks in the same order, so a token's result does not depend on which way it went.
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
  int64_t first_token;          // of the run, among the packed tokens
  int64_t kv_head;
  int64_t first_query, last_query;  // among the run's queries of this kv head: token-major, head within the group
  int64_t first_block, last_block;
  bool stored;                  // partial results go to the plan's buffer, one a block
};

class AttentionPlan {
 public:
  AttentionPlan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window);

  std::vector<AttentionTask> tasks;
  void run(const AttentionTask& task, int64_t layer, const float* q, float softcap, float* attended) const;
  // Merges what token t's tasks stored, and divides by the sums: out [heads, head_dim].
  void finish(int64_t t, float* out) const;

 private:
  int64_t first_visible(int64_t position) const { return window_ > 0 && position + 1 > window_ ? position + 1 - window_ : 0; }
  Partial slot(int64_t token, int64_t head, int64_t block) const;

  int64_t heads_, kv_heads_, head_dim_, window_, most_blocks_ = 0;
  struct Token { bool stored; int64_t first_block, last_block; };
  std::vector<Token> tokens_;
  mutable std::vector<float> partials_;  // [token][head][block]: maximum, sum, values
  mutable std::vector<float> sums_;      // [token][head], of tasks that merge as they go
};

class AttentionPlanner {
 public:
  void plan(const std::vector<Run>& runs, int64_t heads, int64_t kv_heads, int64_t head_dim, const std::vector<Layer>& layers);
  const AttentionPlan& plan_for(int64_t window) const { return plans_.at(window); }

 private:
  std::map<int64_t, AttentionPlan> plans_;  // by window
};

}  // namespace slimtier
