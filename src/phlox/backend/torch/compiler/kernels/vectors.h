// What the kernels of this folder share: vectors of floats, products of them, and memory to work in.
//
// It stands before each of them when they are compiled. Where there is neither AVX-512 nor AVX2, there are no vectors.

#include <cstdint>
#include <cstdlib>

#if defined(__AVX512F__)

#include <immintrin.h>
#define PHLOX_VECTORS
using Vector = __m512;
constexpr int64_t kLanes = 16, kRows = 8, kGateRows = 6;
static inline Vector load(const float* at) { return _mm512_loadu_ps(at); }
static inline void store(float* at, Vector x) { _mm512_storeu_ps(at, x); }
static inline Vector all(float x) { return _mm512_set1_ps(x); }
static inline Vector fma(Vector x, Vector y, Vector z) { return _mm512_fmadd_ps(x, y, z); }
static inline Vector smaller(Vector x, Vector y) { return _mm512_min_ps(x, y); }  // y, if one is NaN
static inline Vector larger(Vector x, Vector y) { return _mm512_max_ps(x, y); }
static inline Vector rounded(Vector x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Vector times_power_of_two(Vector x, Vector whole) { return _mm512_scalef_ps(x, whole); }
static inline Vector about_inverse(Vector x) { return _mm512_rcp14_ps(x); }
static inline Vector where_small(Vector x, float limit, Vector small, Vector large) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), all(limit), _CMP_LT_OQ), large, small);
}
// Of the lower, or upper, halves of both, a number of each in turn.
static inline Vector merged_low(Vector x, Vector y) {
  return _mm512_permutex2var_ps(x, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), y);
}
static inline Vector merged_high(Vector x, Vector y) {
  return _mm512_permutex2var_ps(x, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), y);
}

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
#define PHLOX_VECTORS
using Vector = __m256;
constexpr int64_t kLanes = 8, kRows = 4, kGateRows = 2;
static inline Vector load(const float* at) { return _mm256_loadu_ps(at); }
static inline void store(float* at, Vector x) { _mm256_storeu_ps(at, x); }
static inline Vector all(float x) { return _mm256_set1_ps(x); }
static inline Vector fma(Vector x, Vector y, Vector z) { return _mm256_fmadd_ps(x, y, z); }
static inline Vector smaller(Vector x, Vector y) { return _mm256_min_ps(x, y); }
static inline Vector larger(Vector x, Vector y) { return _mm256_max_ps(x, y); }
static inline Vector rounded(Vector x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Vector times_power_of_two(Vector x, Vector whole) {
  return x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23));
}
static inline Vector about_inverse(Vector x) { return _mm256_rcp_ps(x); }
static inline Vector where_small(Vector x, float limit, Vector small, Vector large) {
  const Vector size = _mm256_andnot_ps(all(-0.0f), x);
  return _mm256_blendv_ps(large, small, _mm256_cmp_ps(size, all(limit), _CMP_LT_OQ));
}
static inline Vector merged_low(Vector x, Vector y) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x20); }
static inline Vector merged_high(Vector x, Vector y) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x31); }

#endif

#if defined(PHLOX_VECTORS)

extern "C" int64_t lanes() { return kLanes; }

namespace {

constexpr int64_t kPanel = 2 * kLanes;

// Memory that a thread keeps from call to call.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  float* of(int64_t count) {
    if (count > count_) {
      std::free(memory_);
      count_ = (count + 63) / 64 * 64;
      memory_ = static_cast<float*>(std::aligned_alloc(64, count_ * sizeof(float)));
      if (memory_ == nullptr) std::abort();
    }
    return memory_;
  }

 private:
  float* memory_ = nullptr;
  int64_t count_ = 0;
};

thread_local Scratch scratch;

// --- functions

// e^x, to the last bit or two, of at most 87 in size; Cody and Waite, "Software Manual for the Elementary Functions" (1980).
inline Vector exponential(Vector x) {
  x = larger(all(-87.0f), smaller(all(87.0f), x));
  const Vector whole = rounded(x * all(1.44269504f));
  const Vector rest = fma(whole, all(2.12194440e-4f), fma(whole, all(-0.693359375f), x));
  Vector y = all(1.0f / 5040);
  const float others[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (const float factor : others) y = fma(y, rest, all(factor));
  return times_power_of_two(y, whole);
}

// 1 / x by a step of Newton's.
inline Vector inverse(Vector x) {
  const Vector about = about_inverse(x);
  return about * fma(all(-1.0f) * x, about, all(2.0f));
}

inline Vector sigmoid(Vector x) { return inverse(all(1.0f) + exponential(all(-1.0f) * x)); }

// Near zero by its continued fraction, for there the other form has no digits left.
inline Vector hyperbolic_tangent(Vector x) {
  const Vector large = fma(all(-2.0f), inverse(all(1.0f) + exponential(x + x)), all(1.0f)), z = x * x;
  const Vector above = fma(z, fma(z, all(21.0f), all(1260.0f)), all(10395.0f));
  const Vector below = fma(z, fma(z, fma(z, all(1.0f), all(210.0f)), all(4725.0f)), all(10395.0f));
  return where_small(x, 0.5f, x * above * inverse(below), large);
}

// --- products

// `Rows` rows, `row` apart, of numbers `step` apart, times a panel of `Vectors` vectors, `next` apart; into `to`, or added.
template <int64_t Rows, int64_t Vectors>
inline void product(const float* x, int64_t row, int64_t step, int64_t count, const float* panel, int64_t next, float* to, int64_t stride, bool is_added) {
  Vector sums[Rows][Vectors];
  for (int64_t i = 0; i < Rows; i++)
    for (int64_t v = 0; v < Vectors; v++) sums[i][v] = all(0);
  for (int64_t k = 0; k < count; k++) {
    Vector factor[Vectors];
    for (int64_t v = 0; v < Vectors; v++) factor[v] = load(panel + k * next + v * kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < Rows; i++) {
      const Vector number = all(x[i * row + k * step]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < Vectors; v++) sums[i][v] = fma(number, factor[v], sums[i][v]);
    }
  }
  for (int64_t i = 0; i < Rows; i++)
    for (int64_t v = 0; v < Vectors; v++) {
      float* at = to + i * stride + v * kLanes;
      store(at, is_added ? load(at) + sums[i][v] : sums[i][v]);
    }
}

// All rows, those of `x` one behind the other, times a panel that lies in one piece.
template <int64_t Vectors>
void products(const float* x, int64_t rows, int64_t count, const float* panel, float* to) {
  constexpr int64_t width = Vectors * kLanes;
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) product<kRows, Vectors>(x + i * count, count, 1, count, panel, width, to + i * width, width, false);
  for (; i + 2 <= rows; i += 2) product<2, Vectors>(x + i * count, count, 1, count, panel, width, to + i * width, width, false);
  for (; i < rows; i++) product<1, Vectors>(x + i * count, count, 1, count, panel, width, to + i * width, width, false);
}

}  // namespace

#else

extern "C" int64_t lanes() { return 0; }

#endif
