// Holds an instruction set's kernels to the plain ones, without Python: for machines that are only emulated.
// Usage: selftest ISA; prints the largest relative difference of each kernel, exits 1 when one is too large.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention_plan.h"
#include "decoder.h"

using namespace slimtier;

static std::vector<float> noise(int64_t n, unsigned seed) {
  std::vector<float> v(static_cast<size_t>(n));
  for (auto& x : v) {
    seed = seed * 1664525u + 1013904223u;
    x = float(int32_t(seed)) / 2147483648.0f;
  }
  return v;
}

static bool report(const char* what, const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  float worst = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::fmax(worst, std::fabs(a[i] - b[i]));
    size = std::fmax(size, std::fabs(b[i]));
    if (a[i] != a[i]) worst = INFINITY;
  }
  std::printf("%-12s %.2e of %.2e\n", what, double(worst), double(size));
  return worst <= tolerance * size;
}

static std::vector<float> multiply(const Kernels& kernel, const Packed& w, const std::vector<float>& x, int64_t t) {
  const int64_t groups = (w.k + 31) / 32, padded = groups * 32;
  std::vector<int16_t> c16(size_t(t * padded));
  std::vector<int8_t> c8(size_t(t * padded));
  std::vector<float> s16(size_t(t * groups)), u16 = s16, s8 = s16, u8 = s16, out(size_t(t * w.n));
  for (int64_t i = 0; i < t; ++i) {
    kernel.quantize16(&x[size_t(i * w.k)], w.k, &c16[size_t(i * padded)], &s16[size_t(i)], &u16[size_t(i)], t);
    kernel.quantize8(&x[size_t(i * w.k)], w.k, &c8[size_t(i * padded)], &s8[size_t(i)], &u8[size_t(i)], t);
  }
  const Activations a{t, w.k, x.data(), padded, t, c16.data(), s16.data(), u16.data(), c8.data(), s8.data(), u8.data()};
  kernel.linear(w, a, out.data(), w.n, 0, w.n);
  return out;
}

static Packed in_floats(Packed codes) {
  codes.in_floats = true;
  return codes;
}

static bool matrices(const Kernels& kernel, const Kernels& plain) {
  bool good = true;
  const int64_t n = 45, k = 200, t = 19, groups = (k + 31) / 32;
  const auto x = noise(t * k, 1), values = noise(n * k, 2);
  auto scales = noise(n * groups, 3), mins = noise(n * groups, 4);
  std::vector<uint8_t> codes8(size_t(n * k)), codes4(size_t(n * k));
  for (size_t i = 0; i < codes8.size(); ++i) {
    codes8[i] = uint8_t(int8_t(values[i] * 127));
    codes4[i] = uint8_t(int(values[i] * 128) & 15);
  }
  const Packed packed[] = {pack_floats(values.data(), n, k, Kind::f32), pack_floats(values.data(), n, k, Kind::f16),
                           pack_floats(values.data(), n, k, Kind::bf16),
                           pack_codes(codes8.data(), scales.data(), mins.data(), n, k, 32, Kind::q8),
                           pack_codes(codes4.data(), scales.data(), mins.data(), n, k, 32, Kind::q4),
                           in_floats(pack_codes(codes8.data(), scales.data(), nullptr, n, k, 32, Kind::q8)),
                           in_floats(pack_codes(codes4.data(), scales.data(), mins.data(), n, k, 32, Kind::q4))};
  const char* names[] = {"f32", "f16", "bf16", "q8", "q4", "q8 in floats", "q4 in floats"};
  for (int i = 0; i < 7; ++i) {
    const auto all = multiply(kernel, packed[i], x, t);
    good &= report(names[i], all, multiply(plain, packed[i], x, t), 1e-5f);
    for (int64_t row = 0; row < t; ++row) {  // the same bits alone
      const std::vector<float> one(x.begin() + row * k, x.begin() + (row + 1) * k);
      const auto alone = multiply(kernel, packed[i], one, 1);
      for (int64_t j = 0; j < n; ++j) good &= alone[size_t(j)] == all[size_t(row * n + j)];
    }
  }
  return good;
}

// Rows read one by one: the bits of the same rows read in panels (4-bit codes meet other activations there).
static bool chosen(const Kernels& kernel) {
  bool good = true;
  const int64_t n = 45, k = 203, groups = (k + 31) / 32;
  const auto x = noise(k, 1), values = noise(n * k, 2), scales = noise(n * groups, 3), mins = noise(n * groups, 4);
  std::vector<uint8_t> codes(size_t(n * k));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(int8_t(values[i] * 127));
  const std::vector<int32_t> rows{44, 0, 7, 8, 3, 3, 16, 31, 40, 1, 2};
  for (const Packed& packed : {pack_floats(values.data(), n, k, Kind::f32), pack_floats(values.data(), n, k, Kind::f16),
                               pack_floats(values.data(), n, k, Kind::bf16),
                               pack_codes(codes.data(), scales.data(), nullptr, n, k, 32, Kind::q8),
                               in_floats(pack_codes(codes.data(), scales.data(), nullptr, n, k, 32, Kind::q8)),
                               pack_codes(codes.data(), scales.data(), mins.data(), n, k, 32, Kind::q8)}) {
    const auto all = multiply(kernel, packed, x, 1);
    std::vector<int16_t> c16(static_cast<size_t>(groups * 32));
    std::vector<float> s16(static_cast<size_t>(groups)), u16 = s16, out(rows.size());
    kernel.quantize16(x.data(), k, c16.data(), s16.data(), u16.data(), 1);
    const Activations a{1, k, x.data(), groups * 32, 1, c16.data(), s16.data(), u16.data(), nullptr, nullptr, nullptr};
    kernel.chosen_rows(by_rows(packed), a, rows.data(), int64_t(rows.size()), out.data());
    for (size_t i = 0; i < rows.size(); ++i) good &= out[i] == all[size_t(rows[i])];
  }
  std::printf("%-12s %s\n", "chosen rows", good ? "the same bits" : "OTHER BITS");
  return good;
}

// Sums of exponentials, maxima, and what reaches a threshold.
static std::vector<float> reduced(const Kernels& kernel, int64_t count) {
  const auto x = noise(count, 10), weights = noise(count, 11);
  std::vector<float> out{kernel.sum_exp(x.data(), nullptr, count, 0.5f), kernel.sum_exp(x.data(), weights.data(), count, 0.5f)};
  std::vector<float> found(size_t(count) + 8);
  std::vector<int32_t> indices(static_cast<size_t>(count));
  kernel.maxima(x.data(), count, &found[size_t(count)]);
  for (int64_t i = 0; i < 8 && i < count; ++i) out.push_back(found[size_t(count + i)]);
  const int64_t many = kernel.at_least(x.data(), count, x[0], 3, found.data(), indices.data());
  for (int64_t i = 0; i < many; ++i) { out.push_back(found[size_t(i)]); out.push_back(float(indices[size_t(i)])); }
  return out;
}

static std::vector<float> rowwise(const Kernels& kernel, int64_t k) {
  auto x = noise(k, 5), y = noise(k, 6);
  for (auto& v : x) v *= 8.0f;
  std::vector<float> out(size_t(4 * k));
  kernel.rms_norm(x.data(), y.data(), 1e-5f, k, &out[0]);
  kernel.act_mul(x.data(), y.data(), false, k, &out[size_t(k)]);
  kernel.act_mul(x.data(), y.data(), true, k, &out[size_t(2 * k)]);
  kernel.softcap(x.data(), k, 5.0f);
  std::copy(x.begin(), x.end(), out.begin() + 3 * k);
  return out;
}

static std::vector<float> attended(const Kernels& kernel, bool half) {
  const int64_t tokens = 100, dim = 40;
  KvStore store(1, 1, dim, tokens, half);
  const auto k = noise(tokens * dim, 7), v = noise(tokens * dim, 8), q = noise(3 * dim, 9);
  for (int64_t t = 0; t < tokens; ++t) {
    kernel.put_key(&k[size_t(t * dim)], store.keys(0, 0), half, t, dim);
    kernel.put_value(&v[size_t(t * dim)], store.values(0, 0), half, t, dim);
  }
  AttentionTile tile{3, {&q[0], &q[size_t(dim)], &q[size_t(2 * dim)]}, {0, 10, 70}, {98, 99, 100}, int(dim), 0.0f};
  std::vector<float> out(size_t(3 * dim)), values(out), fresh(out);
  Partials merged{}, part{};
  for (int i = 0; i < 3; ++i) {
    merged.maximum[i] = -INFINITY;
    merged.values[i] = &values[size_t(i * dim)];
    part.values[i] = &fresh[size_t(i * dim)];
  }
  for (int64_t block = 0; block < 2; ++block) {
    kernel.attend(tile, {store.keys(0, 0), store.values(0, 0), half}, block, {nullptr, nullptr, 0}, part);
    kernel.merge(merged, part, 3, dim);
  }
  for (int i = 0; i < 3; ++i) kernel.divide(merged.values[i], merged.sum[i], dim, &out[size_t(i * dim)]);
  return out;
}

int main(int argc, char** argv) {
  const Kernels* kernel = argc > 1 ? kernels_named(argv[1]) : nullptr;
  if (kernel == nullptr) {
    std::fprintf(stderr, "usage: selftest avx2|avx512|neon|plain, one that this machine runs\n");
    return 2;
  }
  const Kernels& plain = *kernels_named("plain");
  bool good = matrices(*kernel, plain);
  for (int64_t k : {5, 8, 77}) good &= report("row-wise", rowwise(*kernel, k), rowwise(plain, k), 1e-5f);
  for (int64_t count : {3, 8, 61}) good &= report("reductions", reduced(*kernel, count), reduced(plain, count), 1e-5f);
  good &= chosen(*kernel);
  good &= report("attention", attended(*kernel, false), attended(plain, false), 1e-5f);
  good &= report("attention16", attended(*kernel, true), attended(plain, true), 1e-3f);
  std::printf("%s\n", good ? "agree" : "DISAGREE");
  return good ? 0 : 1;
}
