// Eight floats and eight int32 as one value, on AVX2 (and AVX-512 with its extra registers), NEON and plain C++.
// Included once per instruction set, inside that set's namespace: nothing here may be shared between them.
// Every operation is elementwise and every fused multiply-add is written as such, so a result does not depend on
// which lane or which tail it was computed in.

struct F8;
struct I8;

#if defined(__AVX2__) && !defined(SLIMTIER_PLAIN)

struct F8 { __m256 v; };
struct I8 { __m256i v; };

inline F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 splat(float x) { return {_mm256_set1_ps(x)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
// A NaN in b comes through; a NaN in a does not.
inline F8 maximum(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 minimum(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 nearest(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline I8 to_int(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline F8 exponent_of_two(F8 n) {  // 2^n for an integral n in -126 .. 127
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
inline F8 load_half(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void store_half(uint16_t* p, F8 a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, 0)); }
inline F8 load_bf16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
}
inline I8 zero_int() { return {_mm256_setzero_si256()}; }
inline I8 add_int(I8 a, I8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline void store_codes(int16_t* p, const I8 (&a)[4]) {  // 32 codes
  for (int i = 0; i < 4; i += 2) {
    const __m256i packed = _mm256_packs_epi32(a[i].v, a[i + 1].v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * i), _mm256_permute4x64_epi64(packed, 0xd8));
  }
}
inline void store_codes(int8_t* p, const I8 (&a)[4]) {
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a[0].v, a[1].v), _mm256_packs_epi32(a[2].v, a[3].v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
inline bool any_not_below(F8 a, float x) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, _mm256_set1_ps(x), _CMP_NLE_UQ)) != 0; }
inline bool any_at_least(F8 a, float x) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, _mm256_set1_ps(x), _CMP_GE_OQ)) != 0; }

// q8: 8 rows x 2 k of weights, widened to int16; Pair: 2 k of one token.
struct W16 { __m256i v; };
struct Pair { __m256i v; };
inline W16 load_w16(const uint8_t* p) { return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline __m256i splat_32(const void* x) {
  int32_t bits;
  __builtin_memcpy(&bits, x, 4);
  return _mm256_set1_epi32(bits);
}
inline Pair splat_pair(const int16_t* x) { return {splat_32(x)}; }
inline I8 as_ints(W16 w) { return {w.v}; }  // row by row, the first of two codes below the second
inline I8 load_ints(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
template <int N> inline I8 shift_left(I8 a) { return {_mm256_slli_epi32(a.v, N)}; }
template <int N> inline I8 shift_right(I8 a) { return {_mm256_srli_epi32(a.v, N)}; }
inline I8 and_int(I8 a, int32_t mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(mask))}; }
// acc[row] += w[row][0] * x[0] + w[row][1] * x[1]: int16 products never overflow int32 (2 * 128 * 32767 a step).
inline I8 add_pair(I8 acc, W16 w, Pair x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return {_mm256_dpwssd_epi32(acc.v, w.v, x.v)};
#else
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(w.v, x.v))};
#endif
}

// q4: 8 k of 8 rows are two vectors of bytes 0 .. 15, k .. k+3 (low) and k+4 .. k+7 (high); Quad: 4 k of one token.
// Sums over at most 32 k. Without VNNI the products are summed in int16: 8 of them reach at most
// 8 * 2 * 15 * 127 = 30480 < 32767, so nothing saturates, and each lane is widened once.
struct U8 { __m256i v; };
struct Quad { __m256i v; };
inline U8 low_nibbles(const uint8_t* p) {
  return {_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_set1_epi8(15))};
}
inline U8 high_nibbles(const uint8_t* p) {
  return {_mm256_and_si256(_mm256_srli_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 4), _mm256_set1_epi8(15))};
}
inline Quad splat_quad(const int8_t* x) { return {splat_32(x)}; }
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
using Nibbles = I8;
inline I8 zero_nibbles() { return zero_int(); }
inline I8 add_quad(I8 a, U8 w, Quad x) { return {_mm256_dpbusd_epi32(a.v, w.v, x.v)}; }
inline I8 sum_nibbles(I8 a) { return a; }
#else
struct Nibbles { __m256i v; };
inline Nibbles zero_nibbles() { return {_mm256_setzero_si256()}; }
inline Nibbles add_quad(Nibbles a, U8 w, Quad x) { return {_mm256_add_epi16(a.v, _mm256_maddubs_epi16(w.v, x.v))}; }
inline I8 sum_nibbles(Nibbles a) { return {_mm256_madd_epi16(a.v, _mm256_set1_epi16(1))}; }
#endif

#elif defined(__aarch64__) && !defined(SLIMTIER_PLAIN)

struct F8 { float32x4_t a, b; };
struct I8 { int32x4_t a, b; };

inline F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, F8 x) { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); }
inline F8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F8 fma(F8 x, F8 y, F8 z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
inline F8 operator+(F8 x, F8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
inline F8 operator-(F8 x, F8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
inline F8 operator*(F8 x, F8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
inline F8 operator/(F8 x, F8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
inline F8 maximum(F8 x, F8 y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
inline F8 minimum(F8 x, F8 y) { return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b)}; }
inline F8 nearest(F8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
inline I8 to_int(F8 x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }
inline F8 to_float(I8 x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
inline F8 exponent_of_two(F8 n) {
  const I8 i = to_int(n);
  return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(i.a, vdupq_n_s32(127)), 23)),
          vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(i.b, vdupq_n_s32(127)), 23))};
}
inline F8 load_half(const uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
inline void store_half(uint16_t* p, F8 x) { vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b))); }
inline F8 load_bf16(const uint16_t* p) {
  const uint16x8_t h = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
inline I8 zero_int() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline I8 add_int(I8 x, I8 y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
inline void store_codes(int16_t* p, const I8 (&a)[4]) {  // 32 codes
  for (int i = 0; i < 4; ++i) vst1q_s16(p + 8 * i, vqmovn_high_s32(vqmovn_s32(a[i].a), a[i].b));
}
inline void store_codes(int8_t* p, const I8 (&a)[4]) {
  for (int i = 0; i < 4; ++i) vst1_s8(p + 8 * i, vqmovn_s16(vqmovn_high_s32(vqmovn_s32(a[i].a), a[i].b)));
}
inline bool any_not_below(F8 a, float x) {
  const float32x4_t y = vdupq_n_f32(x);
  return vminvq_u32(vandq_u32(vcleq_f32(a.a, y), vcleq_f32(a.b, y))) == 0;
}
inline bool any_at_least(F8 a, float x) {
  const float32x4_t y = vdupq_n_f32(x);
  return vmaxvq_u32(vorrq_u32(vcgeq_f32(a.a, y), vcgeq_f32(a.b, y))) != 0;
}

struct W16 { int16x8_t a, b; };
struct Pair { int16x8_t v; };
inline W16 load_w16(const uint8_t* p) {
  const int8x16_t w = vld1q_s8(reinterpret_cast<const int8_t*>(p));
  return {vmovl_s8(vget_low_s8(w)), vmovl_high_s8(w)};
}
inline int32x4_t splat_32(const void* x) {
  int32_t bits;
  __builtin_memcpy(&bits, x, 4);
  return vdupq_n_s32(bits);
}
inline Pair splat_pair(const int16_t* x) { return {vreinterpretq_s16_s32(splat_32(x))}; }
inline I8 as_ints(W16 w) { return {vreinterpretq_s32_s16(w.a), vreinterpretq_s32_s16(w.b)}; }
inline I8 load_ints(const uint8_t* p) { return {vreinterpretq_s32_u8(vld1q_u8(p)), vreinterpretq_s32_u8(vld1q_u8(p + 16))}; }
template <int N> inline I8 shift_left(I8 x) { return {vshlq_n_s32(x.a, N), vshlq_n_s32(x.b, N)}; }
template <int N> inline I8 shift_right(I8 x) {  // by nothing is not an instruction
  if constexpr (N == 0) return x;
  else return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.a), N)), vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.b), N))};
}
inline I8 and_int(I8 x, int32_t mask) { return {vandq_s32(x.a, vdupq_n_s32(mask)), vandq_s32(x.b, vdupq_n_s32(mask))}; }
inline I8 add_pair(I8 acc, W16 w, Pair x) {
  return {vaddq_s32(acc.a, vpaddq_s32(vmull_s16(vget_low_s16(w.a), vget_low_s16(x.v)), vmull_high_s16(w.a, x.v))),
          vaddq_s32(acc.b, vpaddq_s32(vmull_s16(vget_low_s16(w.b), vget_low_s16(x.v)), vmull_high_s16(w.b, x.v)))};
}

struct U8 { int8x16_t a, b; };
struct Quad { int8x16_t v; };
inline U8 low_nibbles(const uint8_t* p) {
  const uint8x16_t mask = vdupq_n_u8(15);
  return {vreinterpretq_s8_u8(vandq_u8(vld1q_u8(p), mask)), vreinterpretq_s8_u8(vandq_u8(vld1q_u8(p + 16), mask))};
}
inline U8 high_nibbles(const uint8_t* p) {
  return {vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(p), 4)), vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(p + 16), 4))};
}
inline Quad splat_quad(const int8_t* x) { return {vreinterpretq_s8_s32(splat_32(x))}; }
inline int32x4_t dot4(int32x4_t acc, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, w, x);
#else  // two products are at most 2 * 15 * 127: they fit int16
  return vpadalq_s16(acc, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)));
#endif
}
using Nibbles = I8;
inline I8 zero_nibbles() { return zero_int(); }
inline I8 add_quad(I8 acc, U8 w, Quad x) { return {dot4(acc.a, w.a, x.v), dot4(acc.b, w.b, x.v)}; }
inline I8 sum_nibbles(I8 a) { return a; }

#else  // plain C++

struct F8 { float v[8]; };
struct I8 { int32_t v[8]; };

#define SLIMTIER_LANES(expression) for (int i = 0; i < 8; ++i) r.v[i] = (expression); return r
inline F8 load(const float* p) { F8 r; SLIMTIER_LANES(p[i]); }
inline void store(float* p, F8 a) { for (int i = 0; i < 8; ++i) p[i] = a.v[i]; }
inline F8 splat(float x) { F8 r; SLIMTIER_LANES(x); }
inline F8 fma(F8 a, F8 b, F8 c) { F8 r; SLIMTIER_LANES(a.v[i] * b.v[i] + c.v[i]); }  // rounds twice: no FMA is assumed
inline F8 operator+(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] + b.v[i]); }
inline F8 operator-(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] - b.v[i]); }
inline F8 operator*(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] * b.v[i]); }
inline F8 operator/(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] / b.v[i]); }
inline F8 maximum(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F8 minimum(F8 a, F8 b) { F8 r; SLIMTIER_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer when |a| < 2^22, which holds wherever it is used.
inline F8 nearest(F8 a) { F8 r; SLIMTIER_LANES((a.v[i] + 12582912.0f) - 12582912.0f); }
inline I8 to_int(F8 a) {
  const F8 n = nearest(a);
  I8 r;
  SLIMTIER_LANES(n.v[i] >= -2147483648.0f && n.v[i] < 2147483648.0f ? int32_t(n.v[i]) : INT32_MIN);
}
inline F8 to_float(I8 a) { F8 r; SLIMTIER_LANES(float(a.v[i])); }
inline F8 exponent_of_two(F8 n) {
  const I8 whole = to_int(n);
  F8 r;
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = (uint32_t(whole.v[i]) + 127u) << 23;
    __builtin_memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
inline F8 load_half(const uint16_t* p) { F8 r; SLIMTIER_LANES(half_to_float(p[i])); }
inline void store_half(uint16_t* p, F8 a) { for (int i = 0; i < 8; ++i) p[i] = float_to_half(a.v[i]); }
inline F8 load_bf16(const uint16_t* p) {
  F8 r;
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = uint32_t(p[i]) << 16;
    __builtin_memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
inline I8 zero_int() { I8 r; SLIMTIER_LANES(0); }
inline I8 add_int(I8 a, I8 b) { I8 r; SLIMTIER_LANES(a.v[i] + b.v[i]); }
template <class Code>
inline void store_codes(Code* p, const I8 (&a)[4]) {  // 32 codes
  for (int i = 0; i < 32; ++i) p[i] = Code(a[i / 8].v[i % 8]);
}
inline bool any_not_below(F8 a, float x) {
  for (int i = 0; i < 8; ++i)
    if (!(a.v[i] <= x)) return true;
  return false;
}
inline bool any_at_least(F8 a, float x) {
  for (int i = 0; i < 8; ++i)
    if (a.v[i] >= x) return true;
  return false;
}

struct W16 { int16_t v[16]; };
struct Pair { int16_t v[2]; };
inline W16 load_w16(const uint8_t* p) {
  W16 w;
  for (int i = 0; i < 16; ++i) w.v[i] = int8_t(p[i]);
  return w;
}
inline Pair splat_pair(const int16_t* x) { return {{x[0], x[1]}}; }
inline I8 as_ints(W16 w) { I8 r; SLIMTIER_LANES(int32_t(uint32_t(uint16_t(w.v[2 * i])) | uint32_t(uint16_t(w.v[2 * i + 1])) << 16)); }
inline I8 load_ints(const uint8_t* p) { I8 r; SLIMTIER_LANES(int32_t(p[4 * i] | p[4 * i + 1] << 8 | p[4 * i + 2] << 16 | uint32_t(p[4 * i + 3]) << 24)); }
template <int N> inline I8 shift_left(I8 a) { I8 r; SLIMTIER_LANES(int32_t(uint32_t(a.v[i]) << N)); }
template <int N> inline I8 shift_right(I8 a) { I8 r; SLIMTIER_LANES(int32_t(uint32_t(a.v[i]) >> N)); }
inline I8 and_int(I8 a, int32_t mask) { I8 r; SLIMTIER_LANES(a.v[i] & mask); }
inline I8 add_pair(I8 acc, W16 w, Pair x) {
  I8 r;
  SLIMTIER_LANES(acc.v[i] + w.v[2 * i] * x.v[0] + w.v[2 * i + 1] * x.v[1]);
}
struct U8 { uint8_t v[32]; };
struct Quad { int8_t v[4]; };
inline U8 low_nibbles(const uint8_t* p) {
  U8 w;
  for (int i = 0; i < 32; ++i) w.v[i] = p[i] & 15;
  return w;
}
inline U8 high_nibbles(const uint8_t* p) {
  U8 w;
  for (int i = 0; i < 32; ++i) w.v[i] = p[i] >> 4;
  return w;
}
inline Quad splat_quad(const int8_t* x) { return {{x[0], x[1], x[2], x[3]}}; }
using Nibbles = I8;
inline I8 zero_nibbles() { return zero_int(); }
inline I8 add_quad(I8 acc, U8 w, Quad x) {
  for (int i = 0; i < 32; ++i) acc.v[i / 4] += w.v[i] * x.v[i % 4];
  return acc;
}
inline I8 sum_nibbles(I8 a) { return a; }
#undef SLIMTIER_LANES

#endif

inline F8 clamp(F8 a, float limit) { return minimum(splat(limit), maximum(splat(-limit), a)); }

inline float sum_lanes(F8 a) {  // always the same tree
  float v[8];
  store(v, a);
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
inline float max_lanes(F8 a) {
  float v[8];
  store(v, a);
  float m = v[0];
  for (int i = 1; i < 8; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// The first `count` (< 8) floats, zero in the other lanes: tails go through the same operations as whole vectors.
inline F8 load_some(const float* p, int64_t count) {
  float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return load(v);
}
inline void store_some(float* p, F8 a, int64_t count) {
  float v[8];
  store(v, a);
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}
inline F8 load_upto(const float* p, int64_t count) { return count >= 8 ? load(p) : load_some(p, count); }
inline void store_upto(float* p, F8 a, int64_t count) { count >= 8 ? store(p, a) : store_some(p, a, count); }

// Eight vectors as the columns of a square: rows become columns.
inline void transpose(F8 (&r)[8]) {
#if defined(__AVX2__) && !defined(SLIMTIER_PLAIN)
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    r[i].v = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20);
    r[4 + i].v = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
  }
#else
  float square[8][8], turned[8][8];
  for (int i = 0; i < 8; ++i) store(square[i], r[i]);
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) turned[j][i] = square[i][j];
  for (int i = 0; i < 8; ++i) r[i] = load(turned[i]);
#endif
}

// e^x, within 2 ulp on [-87, 88]; beyond, the value at the border. NaN stays NaN.
inline F8 exp(F8 x) {
  x = maximum(splat(-87.0f), minimum(splat(88.0f), x));
  const F8 n = nearest(x * splat(1.44269504088896341f));
  F8 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F8 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return p * exponent_of_two(n);
}
inline F8 tanh(F8 x) { return splat(1.0f) - splat(2.0f) / (exp(x + x) + splat(1.0f)); }
inline F8 silu(F8 x) { return x / (splat(1.0f) + exp(splat(0.0f) - x)); }
inline F8 gelu_tanh(F8 x) {
  const F8 inner = splat(0.7978845608028654f) * fma(splat(0.044715f) * x * x, x, x);
  return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}
