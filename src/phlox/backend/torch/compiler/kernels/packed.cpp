// Products of few rows with a packed matrix, of 4 or 8 bits a code; see `contract/nn/packed.py`.
//
// A vector of words, each with several codes, is unpacked by shifts: first all words' first codes, then their second ones.
// So the numbers of `x` are put in that order before. What a row of the matrix has in a group is summed, then scaled.

#include <omp.h>

#if defined(PHLOX_VECTORS)

namespace {

// How a code becomes a number: by a table of sixteen, or as an integer of eight bits, with or without a sign.
enum Kind { kTable, kSigned, kUnsigned };

#if defined(__AVX512F__)

using Words = __m512i;
inline Words load_words(const int32_t* at, int64_t count) {
  return _mm512_maskz_loadu_epi32(count < kLanes ? (1u << count) - 1 : 0xFFFF, at);
}
inline Vector load_some(const float* at, int64_t count) {
  return _mm512_maskz_loadu_ps(count < kLanes ? (1u << count) - 1 : 0xFFFF, at);
}
// The number of each lane's place.
inline Vector picked(Vector x, const int32_t* places) { return _mm512_permutexvar_ps(_mm512_loadu_si512(places), x); }
struct Table {
  Vector levels;
  explicit Table(const float* at) : levels(load(at)) {}
  inline Vector operator[](Words codes) const { return _mm512_permutexvar_ps(codes, levels); }
};
inline Words down(Words x, int bits) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits)); }
inline Words low_byte(Words x) { return _mm512_and_si512(x, _mm512_set1_epi32(255)); }
inline Words signed_byte(Words x) { return _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24); }
inline Vector as_floats(Words x) { return _mm512_cvtepi32_ps(x); }
inline float sum(Vector x) { return _mm512_reduce_add_ps(x); }

#else

using Words = __m256i;
inline __m256i first(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Words load_words(const int32_t* at, int64_t count) { return _mm256_maskload_epi32(at, first(count)); }
inline Vector load_some(const float* at, int64_t count) { return _mm256_maskload_ps(at, first(count)); }
inline Vector picked(Vector x, const int32_t* places) {
  return _mm256_permutevar8x32_ps(x, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places)));
}
struct Table {
  Vector low, high;
  explicit Table(const float* at) : low(load(at)), high(load(at + 8)) {}
  inline Vector operator[](Words codes) const {
    const Vector is_high = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));  // its sign is the fourth bit
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes), is_high);
  }
};
inline Words down(Words x, int bits) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(bits)); }
inline Words low_byte(Words x) { return _mm256_and_si256(x, _mm256_set1_epi32(255)); }
inline Words signed_byte(Words x) { return _mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24); }
inline Vector as_floats(Words x) { return _mm256_cvtepi32_ps(x); }
inline float sum(Vector x) {
  float lanes[kLanes], total = 0;
  store(lanes, x);
  for (const float lane : lanes) total += lane;
  return total;
}

#endif

struct Matrix {
  const int32_t* words;
  int64_t rows, n;  // words in a row
  const float* scales;
  int64_t groups;
  const float* levels;
};

template <Kind kind>
inline Vector level(Words words, const Table& table) {
  if (kind == kTable) return table[words];
  return as_floats(kind == kSigned ? signed_byte(words) : low_byte(words));
}

// `M` rows of x, in vectors' order, times `Rows` rows of the matrix.
template <Kind kind, int64_t M, int64_t Rows>
void products(const float* x, const Matrix& w, int64_t row, float* y, const int32_t* places) {
  constexpr int64_t codes = kind == kTable ? 8 : 4;
  const int64_t blocks = (w.n + kLanes - 1) / kLanes, of_group = w.n / w.groups;
  const Table table(w.levels);
  Vector sums[Rows][M], total[Rows][M];
  for (int64_t r = 0; r < Rows; r++)
    for (int64_t m = 0; m < M; m++) sums[r][m] = total[r][m] = all(0);
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t begin = block * kLanes, count = w.n - begin;
    Words words[Rows];
    for (int64_t r = 0; r < Rows; r++) words[r] = load_words(w.words + (row + r) * w.n + begin, count);
#pragma GCC unroll 8
    for (int64_t code = 0; code < codes; code++) {
      Vector factor[M];
      for (int64_t m = 0; m < M; m++) factor[m] = load(x + ((m * blocks + block) * codes + code) * kLanes);
#pragma GCC unroll 4
      for (int64_t r = 0; r < Rows; r++) {
        const Vector number = level<kind>(words[r], table);
        for (int64_t m = 0; m < M; m++) sums[r][m] = fma(number, factor[m], sums[r][m]);
        words[r] = down(words[r], 32 / codes);
      }
    }
    const int64_t end = begin + kLanes;
    if (w.scales == nullptr || (of_group > kLanes && end % of_group && end < w.n)) continue;
    for (int64_t r = 0; r < Rows; r++) {
      const float* scales = w.scales + (row + r) * w.groups + begin / of_group;
      const Vector scale = of_group >= kLanes ? all(*scales) : picked(load_some(scales, (count + of_group - 1) / of_group), places);
      for (int64_t m = 0; m < M; m++) {
        total[r][m] = fma(sums[r][m], scale, total[r][m]);
        sums[r][m] = all(0);
      }
    }
  }
  for (int64_t r = 0; r < Rows; r++)
    for (int64_t m = 0; m < M; m++) y[m * w.rows + row + r] = sum(w.scales == nullptr ? sums[r][m] : total[r][m]);
}

template <Kind kind, int64_t M>
void multiply(const float* x, const Matrix& w, float* y, const int32_t* places, int threads) {
  constexpr int64_t rows = M == 1 ? 4 : 2;
  const int64_t whole = w.rows / rows;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 64)
  for (int64_t i = 0; i < whole; i++) products<kind, M, rows>(x, w, i * rows, y, places);
  for (int64_t row = whole * rows; row < w.rows; row++) products<kind, M, 1>(x, w, row, y, places);
}

template <Kind kind>
void multiply(const float* x, int64_t m, int64_t columns, const Matrix& w, float* y, int threads) {
  constexpr int64_t codes = kind == kTable ? 8 : 4;
  const int64_t padded = (w.n + kLanes - 1) / kLanes * kLanes * codes;
  float* ordered = scratch.of(m * padded);
  for (int64_t i = 0; i < m; i++)
    for (int64_t to = 0; to < padded; to++) {
      const int64_t block = to / (kLanes * codes), code = to / kLanes % codes, word = block * kLanes + to % kLanes;
      const int64_t column = word * codes + code;
      ordered[i * padded + to] = column < columns ? x[i * columns + column] : 0;
    }
  int32_t places[kLanes];
  for (int64_t lane = 0; lane < kLanes; lane++) places[lane] = lane / (w.n / w.groups);
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) multiply<kind, 4>(ordered + i * padded, w, y + i * w.rows, places, threads);
  for (; i + 2 <= m; i += 2) multiply<kind, 2>(ordered + i * padded, w, y + i * w.rows, places, threads);
  for (; i < m; i++) multiply<kind, 1>(ordered + i * padded, w, y + i * w.rows, places, threads);
}

}  // namespace

// x [m, columns] times the packed matrix [rows, columns] transposed: y [m, rows]. A group is of a vector's words, or of a
// multiple or a part of these. `kind` is one of the above, `levels` its table.
extern "C" void multiply_packed(const float* x, int64_t m, int64_t columns, const int32_t* words, int64_t rows, int64_t n, const float* scales, int64_t groups, const float* levels, int kind, float* y, int threads) {
  const Matrix w = {words, rows, n, scales, groups, levels};
  if (kind == kTable) multiply<kTable>(x, m, columns, w, y, threads);
  else if (kind == kSigned) multiply<kSigned>(x, m, columns, w, y, threads);
  else multiply<kUnsigned>(x, m, columns, w, y, threads);
}

#endif
