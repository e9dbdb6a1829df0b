// Rows times a weight that stays the same, plus a bias.
//
// The weight lies in panels, a column of vectors each, which are read from the front to the back. Every thread has rows
// of its own, that it has probably written before; who is through with them helps others, for cores are seldom equally
// fast. While a panel is used the next one is fetched.

#include <omp.h>

#if defined(PHLOX_VECTORS)

namespace {

constexpr int64_t kDeep = 8192 / kPanel;  // numbers of each column that stay in the first cache
constexpr int64_t kTall = 8 * kRows;      // rows that are multiplied with a panel while it is there
constexpr int64_t kLine = 64 / sizeof(float);

// `Rows` rows, `row` apart, times a part of a panel; on top of `start`, or of what is in `to` where that is null. `lines`
// of what is needed next are fetched every eight numbers.
template <int64_t Rows>
inline void part(const float* x, int64_t row, int64_t count, const float* panel, const Vector* start, float* to, int64_t stride, const float* next, int64_t lines) {
  Vector sums[Rows][2];
  for (int64_t i = 0; i < Rows; i++)
    for (int64_t v = 0; v < 2; v++) sums[i][v] = start == nullptr ? load(to + i * stride + v * kLanes) : start[v];
  const auto add = [&](int64_t k) __attribute__((always_inline)) {
    const Vector left = load(panel + k * kPanel), right = load(panel + k * kPanel + kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < Rows; i++) {
      const Vector number = all(x[i * row + k]);
      sums[i][0] = fma(number, left, sums[i][0]);
      sums[i][1] = fma(number, right, sums[i][1]);
    }
  };
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    for (int64_t line = 0; line < lines; line++, next += kLine) __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; j++) add(k + j);
  }
  for (; k < count; k++) add(k);
  for (int64_t i = 0; i < Rows; i++)
    for (int64_t v = 0; v < 2; v++) store(to + i * stride + v * kLanes, sums[i][v]);
}

// Up to `kTall` rows times a panel.
void panel_of(const float* x, int64_t rows, int64_t depth, int64_t width, const float* panel, const float* bias, float* y, const float* next) {
  const Vector start[2] = {bias == nullptr ? all(0) : load(bias), bias == nullptr ? all(0) : load(bias + kLanes)};
  const int64_t tiles = (rows + kRows - 1) / kRows, lines = 8 * kPanel / kLine / tiles;
  for (int64_t k = 0; k < depth; k += kDeep) {
    const int64_t count = depth - k < kDeep ? depth - k : kDeep;
    const Vector* from = k == 0 ? start : nullptr;
    const float* ahead = next + k * kPanel;
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows, ahead += count / 8 * lines * kLine)
      part<kRows>(x + row * depth + k, depth, count, panel + k * kPanel, from, y + row * width, width, ahead, lines);
    for (; row < rows; row++) part<1>(x + row * depth + k, depth, count, panel + k * kPanel, from, y + row * width, width, ahead, 0);
  }
}

struct alignas(64) Counter {
  int64_t taken;
};

}  // namespace

extern "C" {

// A weight [depth, width], of any strides, in panels. The width is a multiple of theirs.
void put_panels(const float* weight, const int64_t* strides, int64_t depth, int64_t width, float* panels, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t column = 0; column < width; column += kPanel)
    for (int64_t k = 0; k < depth; k++)
      for (int64_t lane = 0; lane < kPanel; lane++)
        panels[column * depth + k * kPanel + lane] = weight[k * strides[0] + (column + lane) * strides[1]];
}

// Rows [rows, depth] times several weights whose panels lie one behind the other, each into an array of its own. The bias
// of all of them may be null.
void linear(const float* x, int64_t rows, int64_t depth, const float* panels, const float* bias, int64_t count, const int64_t* widths, float* const* results, int threads) {
  int64_t across = 0;
  for (int64_t i = 0; i < count; i++) across += widths[i] / kPanel;
  const int64_t tiles = (rows + kRows - 1) / kRows, shares = threads < tiles ? threads : tiles;
  static thread_local Scratch memory;
  Counter* counters = reinterpret_cast<Counter*>(memory.of(shares * sizeof(Counter) / sizeof(float)));
  for (int64_t share = 0; share < shares; share++) counters[share].taken = 0;
#pragma omp parallel num_threads(threads)
  for (int64_t turn = 0; turn < shares; turn++) {
    const int64_t share = (omp_get_thread_num() + turn) % shares;
    const int64_t first = tiles * share / shares * kRows, end = tiles * (share + 1) / shares * kRows;
    const int64_t last = end < rows ? end : rows, blocks = (last - first + kTall - 1) / kTall;
    for (;;) {
      int64_t task;
#pragma omp atomic capture
      task = counters[share].taken++;
      if (task >= blocks * across) break;
      const int64_t panel = task % across, top = first + task / across * kTall, next = panel + 1 < across ? panel + 1 : 0;
      int64_t column = panel * kPanel, which = 0;
      while (column >= widths[which]) column -= widths[which++];
      panel_of(x + top * depth, last - top < kTall ? last - top : kTall, depth, widths[which], panels + panel * kPanel * depth, bias == nullptr ? nullptr : bias + panel * kPanel, results[which] + top * widths[which] + column, panels + next * kPanel * depth);
    }
  }
}
}

#endif
