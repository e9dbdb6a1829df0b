// The steps of an LSTM, one after the other, forward and back.
//
// What depends on no other step (the products with the input, the gradients of the weights) is left to others: what
// comes here is the input's share of the gates, or goes from here as their gradients. Every thread has some of the units
// throughout, and of the recurrent weight the columns that make them, which stay in its cache from step to step; after
// each step all wait for one another. Gates are i, f, g, o. Units are a multiple of two vectors.

#include <omp.h>

#if defined(PHLOX_VECTORS)

namespace {

constexpr int64_t kGates = 4, kGatesWide = kGates * kLanes;

struct Sizes {
  int64_t steps, batch, units, reverse;

  int64_t step(int64_t number) const { return reverse ? steps - 1 - number : number; }
  int64_t states() const { return batch * units; }
};

// The part of a thread: some of the units, in panels, and where there are more threads than those, some of the rows.
struct Share {
  int64_t first_panel, last_panel, first_row, last_row;

  Share(const Sizes& of, int64_t thread, int64_t threads) {
    const int64_t panels = of.units / kPanel, across = threads < panels ? threads : panels;
    const int64_t down = threads / across < of.batch ? threads / across : of.batch;
    const int64_t column = thread % across, row = thread / across;
    first_panel = panels * column / across;
    last_panel = row < down ? panels * (column + 1) / across : first_panel;
    first_row = row < down ? of.batch * row / down : 0;
    last_row = row < down ? of.batch * (row + 1) / down : 0;
  }
};

struct Kept {
  float* gates;  // of all steps, or null where there is no way back
  float* cells;
};

constexpr int64_t kInCache = 1 << 13;  // numbers of the recurrent weight that stay in the first cache

using Product = void (*)(const float*, int64_t, int64_t, int64_t, const float*, int64_t, float*, int64_t, bool);
constexpr Product kProducts[] = {nullptr, product<1, kGates>, product<2, kGates>, product<3, kGates>, product<4, kGates>, product<5, kGates>, product<6, kGates>};

// Rows of the gates of a vector of units, before they are bent and without the input's share.
void gates_of(const float* hidden, int64_t rows, int64_t units, const float* packed, float* to) {
  constexpr int64_t most = kInCache / kGatesWide;
  const int64_t groups = (rows + kGateRows - 1) / kGateRows;
  for (int64_t first = 0; first < units; first += most) {
    const int64_t count = units - first < most ? units - first : most;
    for (int64_t group = 0; group < groups; group++) {
      const int64_t row = rows * group / groups, next = rows * (group + 1) / groups;
      kProducts[next - row](hidden + row * units + first, units, 1, count, packed + first * kGatesWide, kGatesWide, to + row * kGatesWide, kGatesWide, first != 0);
    }
  }
}

// The new states of rows of a vector of units.
inline void advance(const Sizes& of, const float* projected, const float* bias, const float* gates, int64_t rows, int64_t unit, float* cell, float* y, Kept kept) {
  Vector shift[kGates];
  for (int64_t k = 0; k < kGates; k++) shift[k] = bias == nullptr ? all(0) : load(bias + k * of.units + unit);
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = i * of.units + unit, wide = i * kGates * of.units + unit;
    Vector z[kGates];
    for (int64_t k = 0; k < kGates; k++) z[k] = load(gates + i * kGatesWide + k * kLanes) + load(projected + wide + k * of.units) + shift[k];
    z[0] = sigmoid(z[0]);
    z[1] = sigmoid(z[1]);
    z[2] = hyperbolic_tangent(z[2]);
    z[3] = sigmoid(z[3]);
    const Vector c = fma(z[1], load(cell + at), z[0] * z[2]);
    store(cell + at, c);
    store(y + at, z[3] * hyperbolic_tangent(c));
    if (kept.gates != nullptr) {
      for (int64_t k = 0; k < kGates; k++) store(kept.gates + wide + k * of.units, z[k]);
      store(kept.cells + at, c);
    }
  }
}

// The gradients of gates and cells of rows of a vector of units, those of gates also added to those of other steps; those
// of hidden states are complete.
inline void retreat(const Sizes& of, const float* gates, const float* cells, const float* before, const float* dh, int64_t rows, int64_t unit, float* dc, float* dgates, float* sums) {
  const Vector one = all(1.0f);
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = i * of.units + unit, wide = i * kGates * of.units + unit;
    Vector gate[kGates], dgate[kGates];
    for (int64_t k = 0; k < kGates; k++) gate[k] = load(gates + wide + k * of.units);
    const Vector t = hyperbolic_tangent(load(cells + at)), g = load(dh + at);
    const Vector d = fma(g * gate[3], one - t * t, load(dc + at));
    dgate[0] = d * gate[2] * gate[0] * (one - gate[0]);
    dgate[1] = d * load(before + at) * gate[1] * (one - gate[1]);
    dgate[2] = d * gate[0] * (one - gate[2] * gate[2]);
    dgate[3] = g * t * gate[3] * (one - gate[3]);
    store(dc + at, d * gate[1]);
    for (int64_t k = 0; k < kGates; k++) {
      const int64_t to = wide + k * of.units;
      store(dgates + to, dgate[k]);
      store(sums + to, load(sums + to) + dgate[k]);
    }
  }
}

}  // namespace

extern "C" {

// A recurrent weight [units, 4 * units] in the order in which the steps read it: for each vector of units, row by row.
void put_forward(const float* recurrent, int64_t units, float* packed, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t unit = 0; unit < units; unit += kLanes)
    for (int64_t row = 0; row < units; row++)
      for (int64_t k = 0; k < kGates; k++)
        store(packed + unit * kGates * units + row * kGatesWide + k * kLanes, load(recurrent + (row * kGates + k) * units + unit));
}

// The same for the way back, on which it is transposed: for each panel of units, column by column.
void put_backward(const float* recurrent, int64_t units, float* packed, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t unit = 0; unit < units; unit += kPanel)
    for (int64_t column = 0; column < kGates * units; column++)
      for (int64_t lane = 0; lane < kPanel; lane++)
        packed[unit * kGates * units + column * kPanel + lane] = recurrent[(unit + lane) * kGates * units + column];
}

// All steps. `cell` is the state of the cells before and after; gates and cells of all steps are null for use, and the
// gates may stand where the input's share of them was. A bias may be null.
void forward(const Sizes* sizes, const float* projected, const float* bias, const float* packed, const float* hidden, float* cell, float* y, float* gates, float* cells, int threads) {
  const Sizes of = *sizes;
#pragma omp parallel num_threads(threads)
  {
    const Share share(of, omp_get_thread_num(), omp_get_num_threads());
    const int64_t rows = share.last_row - share.first_row, first = share.first_row * of.units;
    float* found = scratch.of(rows * kGatesWide);
    for (int64_t number = 0; number < of.steps; number++) {
      const int64_t at = of.step(number) * of.states() + first;
      const float* before = number == 0 ? hidden + first : y + of.step(number - 1) * of.states() + first;
      const Kept kept = {gates == nullptr ? nullptr : gates + kGates * at, cells + at};
      for (int64_t unit = share.first_panel * kPanel; unit < share.last_panel * kPanel; unit += kLanes) {
        gates_of(before, rows, of.units, packed + unit * kGates * of.units, found);
        advance(of, projected + kGates * at, bias, found, rows, unit, cell + first, y + at, kept);
      }
#pragma omp barrier
    }
  }
}

// All steps back. `dh` and `dc` are the gradients of the last states, and become those of the first. `sums` are
// those of the gates over all steps, and zeros before.
void backward(const Sizes* sizes, const float* gates, const float* cells, const float* first_cell, const float* packed, const float* dy, float* dh, float* dc, float* dgates, float* sums, int threads) {
  const Sizes of = *sizes;
#pragma omp parallel num_threads(threads)
  {
    const Share share(of, omp_get_thread_num(), omp_get_num_threads());
    const int64_t rows = share.last_row - share.first_row, first = share.first_row * of.units;
    float* found = scratch.of(rows * kPanel);
    for (int64_t number = of.steps - 1; number >= 0; number--) {
      const int64_t at = of.step(number) * of.states() + first;
      const float* before = number == 0 ? first_cell + first : cells + of.step(number - 1) * of.states() + first;
      for (int64_t unit = share.first_panel * kPanel; unit < share.last_panel * kPanel; unit += kLanes) {
        for (int64_t row = 0; row < rows; row++) {
          float* state = dh + first + row * of.units + unit;
          store(state, load(state) + load(dy + at + row * of.units + unit));
        }
        retreat(of, gates + kGates * at, cells + at, before, dh + first, rows, unit, dc + first, dgates + kGates * at, sums + kGates * first);
      }
#pragma omp barrier
      for (int64_t panel = share.first_panel; panel < share.last_panel; panel++) {
        products<2>(dgates + kGates * at, rows, kGates * of.units, packed + panel * kPanel * kGates * of.units, found);
        for (int64_t row = 0; row < rows; row++)
          for (int64_t lane = 0; lane < kPanel; lane += kLanes)
            store(dh + first + row * of.units + panel * kPanel + lane, load(found + row * kPanel + lane));
      }
    }
  }
}
}

#endif
