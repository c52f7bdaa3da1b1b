#include "packed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace slimtier {

static uint8_t* map(size_t bytes) {
#if defined(__linux__) || defined(__APPLE__)
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#else
  void* memory = ::operator new(bytes, std::align_val_t{64});
  std::memset(memory, 0, bytes);
#endif
  return static_cast<uint8_t*>(memory);
}

static void unmap(uint8_t* memory, size_t bytes) {
#if defined(__linux__) || defined(__APPLE__)
  munmap(memory, bytes);
#else
  (void)bytes;
  ::operator delete(memory, std::align_val_t{64});
#endif
}

std::shared_ptr<uint8_t> allocate(size_t bytes) {
  const size_t size = bytes == 0 ? 64 : bytes;
  return {map(size), [size](uint8_t* memory) { unmap(memory, size); }};
}

std::shared_ptr<uint8_t> allocate_weights(size_t bytes) {
  constexpr size_t kChunk = size_t{64} << 20, kHugePage = size_t{2} << 20;
  static std::mutex mutex;
  static std::weak_ptr<uint8_t> current;  // a chunk lives as long as any matrix in it
  static size_t used = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const size_t size = (bytes + 63) / 64 * 64;
  std::shared_ptr<uint8_t> chunk = current.lock();
  if (chunk == nullptr || used + size > kChunk) {
    chunk = allocate((size > kChunk ? size : kChunk) + kHugePage);
    current = chunk;
    used = (kHugePage - reinterpret_cast<uintptr_t>(chunk.get()) % kHugePage) % kHugePage;
#if defined(MADV_HUGEPAGE)
    madvise(chunk.get() + used, size > kChunk ? size : kChunk, MADV_HUGEPAGE);
#endif
  }
  std::shared_ptr<uint8_t> block(chunk, chunk.get() + used);
  used += size;
  return block;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {  // zero or subnormal: exact in float32
    const float value = std::ldexp(float(mantissa), -24);
    return sign ? -value : value;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 1023));  // NaN stays NaN
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);                               // rounds to infinity
  if (magnitude < 0x38800000) {                                                              // subnormal half
    float absolute;
    std::memcpy(&absolute, &magnitude, 4);
    return uint16_t(sign | uint16_t(std::nearbyint(std::ldexp(absolute, 24))));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

namespace {

uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

int64_t code_bytes(const Packed& p, int64_t ks) { return p.kind == Kind::q8 ? (ks + 1) / 2 * 16 : (ks + 7) / 8 * 32; }
int64_t factor_bytes(const Packed& p) { return 8 * (p.wide ? 4 : 2) * (p.mins ? 2 : 1); }

void finish(Packed& p, size_t panel_bytes) {
  p.panel_bytes = panel_bytes;
  p.bytes = panel_bytes * size_t(p.panels());
  p.owner = allocate_weights(p.bytes);
  p.data = p.owner.get();
}

void put_factor(uint8_t* out, float value, bool wide) {
  const uint16_t half = float_to_half(value);
  if (wide) std::memcpy(out, &value, 4); else std::memcpy(out, &half, 2);
}

float get_factor(const uint8_t* in, bool wide) {
  float value;
  uint16_t half;
  if (wide) { std::memcpy(&value, in, 4); return value; }
  std::memcpy(&half, in, 2);
  return half_to_float(half);
}

bool halves_suffice(const float* values, int64_t count) {
  for (int64_t i = 0; values != nullptr && i < count; ++i)
    if (half_to_float(float_to_half(values[i])) != values[i]) return false;
  return true;
}

// Where the code of (lane, j-th k of the group) lies, relative to the group's codes.
inline int64_t q8_at(int lane, int64_t j) { return j / 2 * 16 + lane * 2 + j % 2; }
inline int64_t q4_at(int lane, int64_t j) { return j / 8 * 32 + lane * 4 + j % 4; }
inline uint8_t code_at(const Packed& p, const uint8_t* group, int lane, int64_t j) {
  return p.kind == Kind::q8 ? group[q8_at(lane, j)] : uint8_t((group[q4_at(lane, j)] >> (j % 8 / 4 * 4)) & 15);
}

}  // namespace

Packed pack_floats(const float* values, int64_t n, int64_t k, Kind kind) {
  Packed p;
  p.kind = kind; p.n = n; p.k = k;
  const size_t size = kind == Kind::f32 ? 4 : 2;
  finish(p, size_t(k) * 16 * size);
  for (int64_t row = 0; row < n; ++row) {
    const float* in = values + row * k;
    uint8_t* out = p.data + row / 16 * p.panel_bytes + row % 16 * size;
    for (int64_t j = 0; j < k; ++j, out += 16 * size) {
      const uint16_t narrow = kind == Kind::f16 ? float_to_half(in[j]) : float_to_bf16(in[j]);
      if (kind == Kind::f32) std::memcpy(out, in + j, 4); else std::memcpy(out, &narrow, 2);
    }
  }
  return p;
}

Packed pack_codes(const uint8_t* codes, const float* scales, const float* mins, int64_t n, int64_t k, int group, Kind kind) {
  Packed p;
  p.kind = kind; p.n = n; p.k = k; p.group = group; p.panel = 8;
  p.mins = mins != nullptr;
  const int64_t groups = (k + group - 1) / group;
  p.wide = !(halves_suffice(scales, n * groups) && halves_suffice(mins, n * groups));
  int64_t panel_bytes = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t ks = g + 1 < groups ? group : k - g * group;
    panel_bytes += code_bytes(p, ks) + factor_bytes(p);
  }
  finish(p, size_t(panel_bytes));
  const int64_t step = p.wide ? 4 : 2;
  for (int64_t row = 0; row < n; ++row) {
    const int lane = int(row % 8);
    uint8_t* at = p.data + row / 8 * panel_bytes;
    const uint8_t* in = codes + row * k;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, ks = g + 1 < groups ? group : k - first;
      if (kind == Kind::q8)
        for (int64_t j = 0; j < ks; ++j) at[q8_at(lane, j)] = in[first + j];
      else
        for (int64_t j = 0; j < ks; ++j) at[q4_at(lane, j)] |= uint8_t((in[first + j] & 15) << (j % 8 / 4 * 4));
      at += code_bytes(p, ks);
      put_factor(at + lane * step, scales[row * groups + g], p.wide);
      if (p.mins) put_factor(at + (8 + lane) * step, mins[row * groups + g], p.wide);
      at += factor_bytes(p);
    }
  }
  return p;
}

void Packed::row(int64_t index, float* out) const {
  const uint8_t* at = data + index / panel * panel_bytes;
  const int lane = int(index % panel);
  if (kind == Kind::f32 || kind == Kind::f16 || kind == Kind::bf16) {
    for (int64_t j = 0; j < k; ++j) {
      uint16_t half;
      if (kind == Kind::f32) { std::memcpy(out + j, at + (j * 16 + lane) * 4, 4); continue; }
      std::memcpy(&half, at + (j * 16 + lane) * 2, 2);
      const uint32_t bits = uint32_t(half) << 16;
      if (kind == Kind::f16) out[j] = half_to_float(half); else std::memcpy(out + j, &bits, 4);
    }
    return;
  }
  const int64_t step = wide ? 4 : 2;
  for (int64_t first = 0; first < k; first += group) {
    const int64_t ks = first + group < k ? group : k - first;
    const uint8_t* factors = at + code_bytes(*this, ks);
    const float scale = get_factor(factors + lane * step, wide);
    const float min = mins ? get_factor(factors + (8 + lane) * step, wide) : 0.0f;
    for (int64_t j = 0; j < ks; ++j) {
      const int code = int(int8_t(code_at(*this, at, lane, j)));
      out[first + j] = scale * float(code) + min;
    }
    at = factors + factor_bytes(*this);
  }
}

RowMatrix by_rows(const Packed& p) {
  RowMatrix m;
  m.kind = p.in_floats ? Kind::f32 : p.kind == Kind::q4 ? Kind::q8 : p.kind;
  m.n = p.n; m.k = p.k; m.group = p.group; m.mins = p.mins;
  const bool codes = p.panel == 8 && !p.in_floats;
  const int64_t size = m.kind == Kind::f32 ? 4 : 2;
  m.groups = (m.k + m.group - 1) / m.group;
  m.code_bytes = (m.k + kGroup - 1) / kGroup * kGroup;
  m.row_bytes = codes ? m.code_bytes + m.groups * (m.mins ? 8 : 4) : p.k * size;
  m.owner = allocate_weights(size_t(m.n * m.row_bytes) + 64);  // whole vectors are read at the end of the last row
  m.data = m.owner.get();
  for (int64_t row = 0; row < m.n; ++row) {
    const uint8_t* at = p.data + row / p.panel * p.panel_bytes;
    uint8_t* out = m.owner.get() + row * m.row_bytes;
    if (p.in_floats) { p.row(row, reinterpret_cast<float*>(out)); continue; }
    const int lane = int(row % p.panel);
    for (int64_t j = 0; !codes && j < m.k; ++j) std::memcpy(out + j * size, at + (j * 16 + lane) * size, size_t(size));
    float* scales = reinterpret_cast<float*>(out + m.code_bytes);
    for (int64_t g = 0; codes && g < m.groups; ++g) {
      const int64_t first = g * m.group, ks = std::min<int64_t>(m.group, m.k - first);
      for (int64_t j = 0; j < ks; ++j) out[first + j] = code_at(p, at, lane, j);
      const uint8_t* factors = at + code_bytes(p, ks);
      scales[g] = get_factor(factors + lane * (p.wide ? 4 : 2), p.wide);
      if (m.mins) scales[m.groups + g] = get_factor(factors + (8 + lane) * (p.wide ? 4 : 2), p.wide);
      at = factors + factor_bytes(p);
    }
  }
  return m;
}

}  // namespace slimtier
