#include "activations.h"

namespace slimtier {

namespace {

constexpr int64_t kRowBlock = 16;  // rows of a weight matrix are shared out in multiples of the widest panel
constexpr int64_t kMostTokens = 128;  // multiplied with a block of rows at a time, so that they stay in a core's cache

int64_t row_blocks(const Packed& w) { return (w.n + kRowBlock - 1) / kRowBlock; }

// Blocks of rows to take at a time: long enough to stream, short enough that threads finish together.
int64_t block_share(int64_t blocks, int threads) { return std::clamp<int64_t>(blocks / (threads * 4), 1, 16); }

}  // namespace

void Prepared::size_for(int64_t t, int64_t k, std::initializer_list<const Packed*> weights) {
  bool for_q8 = false, for_q4 = false;
  for (const Packed* w : weights) {
    for_q8 |= w->wants(Kind::q8);
    for_q4 |= w->wants(Kind::q4);
  }
  size(t, k, for_q8, for_q4);
}

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

void share_linears(Lane& lane, int threads, const Activations& x, std::initializer_list<std::pair<const Packed*, float*>> list) {
  int64_t blocks = 0;
  for (const auto& [w, out] : list) blocks += row_blocks(*w);
  lane.share(blocks, block_share(blocks, threads), [&](int64_t first, int64_t last) {
    int64_t base = 0;
    for (const auto& [w, out] : list) {
      const int64_t mine = row_blocks(*w), a = std::max(first, base), b = std::min(last, base + mine);
      for (int64_t t = 0; a < b && t < x.t; t += kMostTokens)
        kernels().linear(*w, x.slice(t, std::min(kMostTokens, x.t - t)), out + t * w->n, w->n, (a - base) * kRowBlock,
                         std::min((b - base) * kRowBlock, w->n));
      base += mine;
    }
  });
}

void linear_forward(Pool& pool, const Packed& weight, const float* x, int64_t t, float* out) {
  Prepared prepared;
  prepared.size_for(t, weight.k, {&weight});
  pool.run([&](Lane& lane) {
    lane.share(t, 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) prepared.quantize(x + row * weight.k, row);
    });
    share_linears(lane, pool.size(), prepared.view(x), {{&weight, out}});
  });
}

}  // namespace slimtier
