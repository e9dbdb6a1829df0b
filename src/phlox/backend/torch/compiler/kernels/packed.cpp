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
// The bits of a mask, and others that are set: numbers whose last bits they are.
inline Words down(Words x, int bits) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits)); }
inline Words flipped(Words x, int bits) { return _mm512_xor_si512(x, _mm512_set1_epi32(bits)); }
inline Vector masked(Words x, int mask, int others) {
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(x, _mm512_set1_epi32(mask), _mm512_set1_epi32(others), 0xEA));
}
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
inline Words flipped(Words x, int bits) { return _mm256_xor_si256(x, _mm256_set1_epi32(bits)); }
inline Vector masked(Words x, int mask, int others) {
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi32(mask)), _mm256_set1_epi32(others)));
}
inline float sum(Vector x) {
  float lanes[kLanes], total = 0;
  store(lanes, x);
  for (const float lane : lanes) total += lane;
  return total;
}

#endif

constexpr int64_t kAhead = 8;  // steps of some rows, in which what is fetched arrives

struct Matrix {
  const int32_t* words;
  int64_t rows, n;  // words in a row
  const float* scales;
  int64_t groups;
  const float* levels;
};

// The level of a code that is lowest in the words; of an integer's odd codes, which are one byte higher, times 256.
//
// An integer becomes a float without conversion: as the last bits of a number from 2^23 on, which is then subtracted. A
// signed one, whose highest bit is flipped, is larger by 128.
template <Kind kind>
inline Vector level(Words words, int64_t code, const Table& table) {
  if (kind == kTable) return table[words];
  const int place = code % 2 ? 256 : 1;
  return masked(words, 255 * place, 0x4B000000) - all(8388608.0f + (kind == kSigned ? 128 * place : 0));
}

template <int64_t Parts>
inline Vector joined(const Vector (&parts)[Parts]) {
  if constexpr (Parts == 4) return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  return parts[0];
}

// `M` rows of x, in vectors' order, times `Rows` rows of the matrix.
template <Kind kind, int64_t M, int64_t Rows>
void products(const float* x, const Matrix& w, int64_t row, float* y, const int32_t* places) {
  constexpr int64_t codes = kind == kTable ? 8 : 4;
  const int64_t blocks = (w.n + kLanes - 1) / kLanes, of_group = w.n / w.groups;
  // Blocks of a group, or groups of a block. (Divisions would take most of the time of a block.)
  const int64_t long_group = w.groups == 1 ? blocks : of_group / kLanes, short_groups = long_group ? 0 : kLanes / of_group;
  int64_t group = 0, left = long_group;
  const Table table(w.levels);
  constexpr int64_t parts = Rows * M == 1 ? 4 : 1;  // sums that do not wait for each other
  Vector sums[Rows][M][parts], total[Rows][M];
#pragma GCC unroll 4
  for (int64_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (int64_t m = 0; m < M; m++) {
      total[r][m] = all(0);
#pragma GCC unroll 4
      for (int64_t part = 0; part < parts; part++) sums[r][m][part] = all(0);
    }
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t begin = block * kLanes, count = w.n - begin;
    Words words[Rows];
#pragma GCC unroll 4
    for (int64_t r = 0; r < Rows; r++) {
      const int32_t* at = w.words + (row + r) * w.n + begin;
      words[r] = flipped(load_words(at, count), kind == kSigned ? 0x80808080 : 0);
      __builtin_prefetch(at + kAhead * Rows * w.n, 0, 3);
    }
#pragma GCC unroll 8
    for (int64_t code = 0; code < codes; code++) {
      Vector factor[M];
#pragma GCC unroll 4
      for (int64_t m = 0; m < M; m++) factor[m] = load(x + ((m * blocks + block) * codes + code) * kLanes);
#pragma GCC unroll 4
      for (int64_t r = 0; r < Rows; r++) {
        const Vector number = level<kind>(words[r], code, table);
#pragma GCC unroll 4
        for (int64_t m = 0; m < M; m++) {
          Vector& part = sums[r][m][code % parts];
          part = fma(number, factor[m], part);
        }
        if (kind == kTable || code == 1) words[r] = down(words[r], kind == kTable ? 4 : 16);
      }
    }
    if (w.scales == nullptr || --left > 0) continue;
#pragma GCC unroll 4
    for (int64_t r = 0; r < Rows; r++) {
      const float* scales = w.scales + (row + r) * w.groups + group;
      const Vector scale = long_group ? all(*scales) : picked(load_some(scales, w.groups - group), places);
#pragma GCC unroll 4
      for (int64_t m = 0; m < M; m++) {
        total[r][m] = fma(joined(sums[r][m]), scale, total[r][m]);
#pragma GCC unroll 4
        for (int64_t part = 0; part < parts; part++) sums[r][m][part] = all(0);
      }
    }
    group += long_group ? 1 : short_groups;
    left = long_group;
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (int64_t m = 0; m < M; m++) y[m * w.rows + row + r] = sum(w.scales == nullptr ? joined(sums[r][m]) : total[r][m]);
}

template <Kind kind, int64_t M>
void multiply(const float* x, const Matrix& w, float* y, const int32_t* places, int threads) {
  // Bytes of one row come from memory faster than those of several; codes of four bits take longer than their bytes.
  constexpr int64_t rows = M > 1 ? 2 : kind == kTable ? 4 : 1;
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
      const float factor = kind != kTable && code % 2 ? 1.0f / 256 : 1.0f;  // see `level`
      ordered[i * padded + to] = column < columns ? x[i * columns + column] * factor : 0;
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
