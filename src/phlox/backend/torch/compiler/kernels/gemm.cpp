// Products of matrices: rows times a weight, plus a bias.
//
// The weight is multiplied in panels, a column of vectors each, which are read from the front to the back. Every thread
// has rows of its own, that it has probably written before, or columns where those are more; who is through with them
// helps others, for cores are seldom equally fast. While a panel is used the next one is fetched.

#include <omp.h>

#include <cstring>
#include <vector>

#if defined(PHLOX_VECTORS)

namespace {

constexpr int64_t kDeep = 8192 / kPanel;  // numbers of each column that stay in the first cache
constexpr int64_t kTall = 8 * kRows;      // rows that are multiplied with a panel while it is there
constexpr int64_t kLine = 64 / sizeof(float);
constexpr int64_t kAhead = 8;             // steps of the depth that are fetched while others are put in order
constexpr int64_t kPart = 1024;           // numbers of each row and column that are put in order together
constexpr int64_t kWide = 4096;           // the most rows, or columns, for which that is done at once

// A matrix of any strides.
struct Matrix {
  const float* at;
  int64_t down, across;
};

// What a tile does with its sums: add a bias, of a number a column, or what lies where they go; or nothing.
struct Result {
  float* to;
  int64_t stride;
  const float* bias;
  bool is_added;
};

// What is needed next: pieces of some lines each, which are fetched while there is something else to do.
struct Ahead {
  const float* at;
  int64_t stride, lines, pieces;
  int64_t line = 0;

  inline void fetch() {
    if (pieces <= 0) return;
    __builtin_prefetch(at + line * kLine, 0, 2);
    if (++line < lines) return;
    line = 0;
    at += stride;
    pieces--;
  }
};

// `kRows` rows times a part of a panel. The rows are `row` apart, or lie in turns. Some lines of what is needed next are
// fetched every eight numbers. Of a panel whose second half is of no interest, one of its two vectors is multiplied.
template <bool InTurns, int64_t kVectors = 2>
inline void tile(const float* x, int64_t row, int64_t count, const float* panel, Result y, Ahead& next, int64_t lines) {
  Vector sums[kRows][kVectors];
  for (int64_t i = 0; i < kRows; i++)
    for (int64_t v = 0; v < kVectors; v++) sums[i][v] = all(0);
  const auto add = [&](int64_t k) __attribute__((always_inline)) {
    Vector columns[kVectors];
    for (int64_t v = 0; v < kVectors; v++) columns[v] = load(panel + k * kPanel + v * kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; i++) {
      const Vector number = all(InTurns ? x[k * kRows + i] : x[i * row + k]);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; v++) sums[i][v] = fma(number, columns[v], sums[i][v]);
    }
  };
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    for (int64_t line = 0; line < lines; line++) next.fetch();
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; j++) add(k + j);
  }
  for (; k < count; k++) add(k);
  for (int64_t i = 0; i < kRows; i++)
    for (int64_t v = 0; v < kVectors; v++) {
      float* to = y.to + i * y.stride + v * kLanes;
      const Vector more = y.is_added ? load(to) : y.bias == nullptr ? all(0) : load(y.bias + v * kLanes);
      store(to, sums[i][v] + more);
    }
}

// The same where the result has fewer rows, or columns.
template <bool InTurns>
void tile_at_edge(const float* x, int64_t row, int64_t count, const float* panel, Result y, int64_t rows, int64_t columns) {
  alignas(64) float sums[kRows * kPanel];
  Ahead nothing = {panel, 0, 0, 0};
  const auto any_tile = columns <= kLanes ? tile<InTurns, 1> : tile<InTurns>;
  any_tile(x, row, count, panel, {sums, kPanel, nullptr, false}, nothing, 0);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      float* to = y.to + i * y.stride + j;
      *to = sums[i * kPanel + j] + (y.is_added ? *to : y.bias == nullptr ? 0 : y.bias[j]);
    }
}

// Rows times a panel, of which `columns` count, or all if there are fewer.
template <bool InTurns>
void panel_of(const float* x, int64_t row, int64_t rows, int64_t depth, const float* panel, int64_t columns, Result y, Ahead next) {
  const int64_t tiles = (rows + kRows - 1) / kRows, times = tiles * (depth / 8);
  const int64_t lines = times == 0 ? 0 : (next.lines * next.pieces + times - 1) / times;
  for (int64_t k = 0; k < depth; k += kDeep, y.is_added = true) {
    const int64_t count = depth - k < kDeep ? depth - k : kDeep;
    for (int64_t i = 0; i < tiles; i++) {
      const float* from = InTurns ? x + (i * depth + k) * kRows : x + i * kRows * row + k;
      const int64_t left = rows - i * kRows;
      const Result part = {y.to + i * kRows * y.stride, y.stride, y.bias, y.is_added};
      if (left >= kRows && columns >= kPanel)
        tile<InTurns>(from, row, count, panel + k * kPanel, part, next, lines);
      else
        tile_at_edge<InTurns>(from, row, count, panel + k * kPanel, part, left < kRows ? left : kRows, columns < kPanel ? columns : kPanel);
    }
  }
}

// Rows in turns: a number of each of `kRows`, then the next one of each; zeros where there are no more rows.
void put_in_turns(Matrix x, int64_t rows, int64_t depth, float* to) {
  for (int64_t k = 0; k < depth; k += kRows) {
    const int64_t deep = depth - k < kRows ? depth - k : kRows;
    for (int64_t top = 0; top < rows; top += kRows) {
      const int64_t count = rows - top < kRows ? rows - top : kRows;
      const float* from = x.at + top * x.down + k * x.across;
      float* turns = to + top * depth + k * kRows;
      if (count == kRows && x.down == 1)
        for (int64_t j = 0; j < deep; j++) {
          __builtin_prefetch(from + (j + kAhead) * x.across);
          std::memcpy(turns + j * kRows, from + j * x.across, kRows * sizeof(float));
        }
      else
        for (int64_t i = 0; i < kRows; i++)
          for (int64_t j = 0; j < deep; j++) turns[j * kRows + i] = i < count ? from[i * x.down + j * x.across] : 0;
    }
  }
}

// `kLanes` columns of as many numbers, the numbers of a column one behind the other, as rows `kPanel` apart.
inline void turn(const float* from, int64_t across, float* to) {
  Vector lines[kLanes];
  for (int64_t i = 0; i < kLanes; i++) lines[i] = load(from + i * across);
  for (int64_t step = 1; step < kLanes; step *= 2) {
    Vector merged[kLanes];
    for (int64_t i = 0; i < kLanes / 2; i++) {
      merged[2 * i] = merged_low(lines[i], lines[i + kLanes / 2]);
      merged[2 * i + 1] = merged_high(lines[i], lines[i + kLanes / 2]);
    }
    for (int64_t i = 0; i < kLanes; i++) lines[i] = merged[i];
  }
  for (int64_t i = 0; i < kLanes; i++) store(to + i * kPanel, lines[i]);
}

// A panel of a weight, of which `columns` count; zeros where there are no more.
void put_panel(Matrix weight, int64_t depth, int64_t columns, float* to) {
  int64_t k = 0;
  if (columns >= kPanel && weight.across == 1)
    for (; k < depth; k++)
      for (int64_t v = 0; v < 2; v++) {
        __builtin_prefetch(weight.at + (k + kAhead) * weight.down + v * kLanes);
        store(to + k * kPanel + v * kLanes, load(weight.at + k * weight.down + v * kLanes));
      }
  else if (columns >= kPanel && weight.down == 1)
    for (; k + kLanes <= depth; k += kLanes)
      for (int64_t v = 0; v < 2; v++) turn(weight.at + k + v * kLanes * weight.across, weight.across, to + k * kPanel + v * kLanes);
  const int64_t wide = columns < kPanel ? columns : kPanel;
  for (; k < depth; k++) {
    const float* from = weight.at + k * weight.down;
    float* line = to + k * kPanel;
    for (int64_t lane = 0; lane < wide; lane++) line[lane] = from[lane * weight.across];
    for (int64_t lane = wide; lane < kPanel; lane++) line[lane] = 0;
  }
}

struct alignas(64) Counter {
  int64_t taken;
};

// Hands out numbered tasks. Every thread has a share of its own, and helps with those of others in the end.
class Tasks {
 public:
  Tasks(Scratch& memory, int64_t shares) : shares_(shares), counters_(reinterpret_cast<Counter*>(memory.of(shares * sizeof(Counter) / sizeof(float)))) {
    for (int64_t share = 0; share < shares; share++) counters_[share].taken = 0;
  }

  int64_t shares() const { return shares_; }

  int64_t take(int64_t share) {
    int64_t task;
#pragma omp atomic capture
    task = counters_[share].taken++;
    return task;
  }

 private:
  int64_t shares_;
  Counter* counters_;
};

thread_local Scratch counters;

// Rows times panels that lie one behind the other, into several results; the threads share the rows.
void multiply_panels(Matrix x, int64_t rows, int64_t depth, const float* panels, int64_t count, const int64_t* widths, const Result* results, int threads) {
  int64_t across = 0;
  for (int64_t i = 0; i < count; i++) across += (widths[i] + kPanel - 1) / kPanel;
  const int64_t tiles = (rows + kRows - 1) / kRows;
  Tasks tasks(counters, threads < tiles ? threads : tiles);
#pragma omp parallel num_threads(threads)
  {
    int64_t in_turns = -1;
    float* turns = scratch.of(kTall * depth);
    for (int64_t turn = 0; turn < tasks.shares(); turn++) {
      const int64_t share = (omp_get_thread_num() + turn) % tasks.shares();
      const int64_t first = tiles * share / tasks.shares() * kRows, end = tiles * (share + 1) / tasks.shares() * kRows;
      const int64_t last = end < rows ? end : rows, blocks = (last - first + kTall - 1) / kTall;
      for (int64_t task; (task = tasks.take(share)) < blocks * across;) {
        const int64_t panel = task % across, top = first + task / across * kTall, next = panel + 1 < across ? panel + 1 : 0;
        const int64_t tall = last - top < kTall ? last - top : kTall;
        int64_t column = panel * kPanel, which = 0;
        while (column >= widths[which]) column -= (widths[which++] + kPanel - 1) / kPanel * kPanel;
        Result y = results[which];
        y.to += top * y.stride + column;
        y.bias += y.bias == nullptr ? 0 : column;
        const float* from = panels + panel * kPanel * depth;
        const Ahead ahead = {panels + next * kPanel * depth, 0, depth * kPanel / kLine, 1};
        const Matrix block = {x.at + top * x.down, x.down, x.across};
        const int64_t columns = widths[which] - column;
        if (x.across == 1 && tall % kRows == 0) {
          panel_of<false>(block.at, x.down, tall, depth, from, columns, y, ahead);
          continue;
        }
        if (in_turns != top) put_in_turns(block, tall, depth, turns);
        in_turns = top;
        panel_of<true>(turns, 0, tall, depth, from, columns, y, ahead);
      }
    }
  }
}

void put_all_panels(Matrix weight, int64_t depth, int64_t width, float* panels, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t column = 0; column < width; column += kPanel)
    put_panel({weight.at + column * weight.across, weight.down, weight.across}, depth, width - column, panels + column * depth);
}

// A product of which the weight is the larger factor: the threads share its columns, and bring them into order on the
// way, while the next ones are fetched.
void multiply_columns(Matrix x, int64_t rows, int64_t depth, Matrix weight, int64_t width, Result result, int threads) {
  static thread_local Scratch memory;
  const bool are_turned = x.across != 1 || rows % kRows != 0;
  float* turns = are_turned ? memory.of((rows + kRows - 1) / kRows * kRows * depth) : nullptr;
  const int64_t across = (width + kPanel - 1) / kPanel;
  Tasks tasks(counters, threads < across ? threads : across);
#pragma omp parallel num_threads(threads)
  {
    if (are_turned) {
#pragma omp for
      for (int64_t top = 0; top < rows; top += kTall)
        put_in_turns({x.at + top * x.down, x.down, x.across}, rows - top < kTall ? rows - top : kTall, depth, turns + top * depth);
    }
    float* panel = scratch.of(kPanel * depth);
    for (int64_t turn = 0; turn < tasks.shares(); turn++) {
      const int64_t share = (omp_get_thread_num() + turn) % tasks.shares();
      const int64_t first = across * share / tasks.shares(), end = across * (share + 1) / tasks.shares();
      for (int64_t task; (task = tasks.take(share)) < end - first;) {
        const int64_t column = (first + task) * kPanel;
        const Matrix mine = {weight.at + column * weight.across, weight.down, weight.across};
        const float* next = mine.at + kPanel * weight.across;
        Ahead ahead = {next, weight.down, kPanel / kLine, depth};
        if (weight.down == 1) ahead = {next, weight.across, depth / kLine, kPanel};
        if (first + task + 1 >= end) ahead.pieces = 0;
        put_panel(mine, depth, width - column, panel);
        Result y = {result.to + column, result.stride, result.bias == nullptr ? nullptr : result.bias + column, result.is_added};
        if (are_turned)
          panel_of<true>(turns, 0, rows, depth, panel, width - column, y, ahead);
        else
          panel_of<false>(x.at, x.down, rows, depth, panel, width - column, y, ahead);
      }
    }
  }
}

}  // namespace

extern "C" {

// A weight [depth, width], of any strides, in panels.
void put_panels(const float* weight, const int64_t* strides, int64_t depth, int64_t width, float* panels, int threads) {
  put_all_panels({weight, strides[0], strides[1]}, depth, width, panels, threads);
}

// Rows [rows, depth] times several weights whose panels lie one behind the other, each into an array of its own. The bias
// of all of them may be null.
void linear(const float* x, int64_t rows, int64_t depth, const float* panels, const float* bias, int64_t count, const int64_t* widths, float* const* results, int threads) {
  std::vector<Result> parts;
  for (int64_t i = 0; i < count; i++) {
    parts.push_back({results[i], widths[i], bias, false});
    if (bias != nullptr) bias += widths[i];
  }
  multiply_panels({x, depth, 1}, rows, depth, panels, count, widths, parts.data(), threads);
}

// Rows [rows, depth] times a weight [depth, width], of any strides, plus a bias, which may be null.
void multiply(const int64_t* sizes, const float* x, const float* weight, const float* bias, float* y, int threads) {
  const int64_t rows = sizes[0], depth = sizes[1], width = sizes[2];
  const Matrix left = {x, sizes[3], sizes[4]}, right = {weight, sizes[5], sizes[6]};
  const int64_t parts = (depth + kPart - 1) / kPart, deep = ((depth + parts - 1) / parts + 7) / 8 * 8;
  static thread_local Scratch memory;
  const bool by_columns = rows <= width && rows <= kWide;
  const int64_t most = by_columns ? width : kWide;
  for (int64_t column = 0; column < width; column += most) {
    const int64_t wide = width - column < most ? width - column : most;
    for (int64_t k = 0; k < depth; k += deep) {
      const int64_t count = depth - k < deep ? depth - k : deep;
      const Matrix rows_of = {left.at + k * left.across, left.down, left.across};
      const Matrix columns_of = {right.at + k * right.down + column * right.across, right.down, right.across};
      const Result to = {y + column, width, bias == nullptr ? nullptr : bias + column, k > 0};
      if (by_columns) {
        multiply_columns(rows_of, rows, count, columns_of, wide, to, threads);
        continue;
      }
      float* panels = memory.of((wide + kPanel - 1) / kPanel * kPanel * deep);
      put_all_panels(columns_of, count, wide, panels, threads);
      multiply_panels(rows_of, rows, count, panels, 1, &wide, &to, threads);
    }
  }
}
}

#endif
