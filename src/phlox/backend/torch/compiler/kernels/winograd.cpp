// Convolutions of 3x3 filters, of stride 1, in a quarter of the multiplications: Winograd's F(4x4, 3x3).
//
// Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016). Sixteen results of a channel, a tile, come
// of 6x6 pixels. Both the pixels and the filters are taken as polynomials, which are evaluated at six points along each
// axis; there convolving is multiplying, and summing over the channels a matrix product for each of the 36 pairs.
// The points are 0, +-5/8, +-3/2 and infinity: the error is about half of that with 0, +-1, +-2, and twice to three
// times that of multiplying out.
//
// Images lie with their channels last. Their channels are a multiple of `lanes()`.

#if defined(PHLOX_VECTORS)

namespace {

constexpr int64_t kPoints = 36, kTile = 4, kReach = 6;
constexpr int64_t kTiles = 32;    // of a block, whose pixels at the points stay in the second cache
constexpr int64_t kInCache = 1 << 20;
constexpr int64_t kSummed = 64;   // tiles whose products are summed before anything else is added to them
constexpr float kA = 0.625f, kB = 1.5f;

struct Sizes {
  int64_t images, height, width, in, out, above, left, rows, columns;  // of the pixels, and of the results

  int64_t down() const { return (rows + kTile - 1) / kTile; }
  int64_t across() const { return (columns + kTile - 1) / kTile; }
  int64_t tiles() const { return images * down() * across(); }
};

struct Tile {
  int64_t image, row, column;  // of its first result

  Tile(const Sizes& of, int64_t number) {
    const int64_t across = of.across(), each = of.down() * across;
    image = number / each;
    row = number % each / across * kTile;
    column = number % across * kTile;
  }
};

// --- along one axis

// Six pixels at the points.
inline void pixels_at_points(const Vector* d, Vector* at) {
  const Vector a2 = all(-kA * kA), b2 = all(-kB * kB), sum = all(-(kA * kA + kB * kB)), product = all(kA * kA * kB * kB);
  const Vector even = fma(b2, d[2], d[4]), odd = all(kA) * fma(b2, d[1], d[3]);
  const Vector even_b = fma(a2, d[2], d[4]), odd_b = all(kB) * fma(a2, d[1], d[3]);
  at[0] = fma(product, d[0], fma(sum, d[2], d[4]));
  at[1] = even + odd;
  at[2] = even - odd;
  at[3] = even_b + odd_b;
  at[4] = even_b - odd_b;
  at[5] = fma(product, d[1], fma(sum, d[3], d[5]));
}

// Four results of what is at the points.
inline void results_of_points(const Vector* at, Vector* y) {
  const Vector even = at[1] + at[2], odd = at[1] - at[2], even_b = at[3] + at[4], odd_b = at[3] - at[4];
  y[0] = at[0] + even + even_b;
  y[1] = fma(all(kA), odd, all(kB) * odd_b);
  y[2] = fma(all(kA * kA), even, all(kB * kB) * even_b);
  y[3] = fma(all(kA * kA * kA), odd, fma(all(kB * kB * kB), odd_b, at[5]));
}

// Four gradients of results at the points: the transpose of the above.
inline void gradients_at_points(const Vector* g, Vector* at) {
  const Vector even = fma(all(kA * kA), g[2], g[0]), odd = fma(all(kA * kA * kA), g[3], all(kA) * g[1]);
  const Vector even_b = fma(all(kB * kB), g[2], g[0]), odd_b = fma(all(kB * kB * kB), g[3], all(kB) * g[1]);
  at[0] = g[0];
  at[1] = even + odd;
  at[2] = even - odd;
  at[3] = even_b + odd_b;
  at[4] = even_b - odd_b;
  at[5] = g[3];
}

// What three elements of a filter are multiplied by at each point: its powers, over the products of its distances.
struct FilterAtPoints {
  float factor[kReach][3];

  FilterAtPoints() : factor() {
    const float points[] = {0, kA, -kA, kB, -kB};
    for (int i = 0; i < 5; i++) {
      float distances = 1;
      for (int j = 0; j < 5; j++) distances *= i == j ? 1 : points[i] - points[j];
      for (int k = 0; k < 3; k++) factor[i][k] = (k == 0 ? 1 : k == 1 ? points[i] : points[i] * points[i]) / distances;
    }
    factor[5][2] = 1;
  }
};

const FilterAtPoints filter;

// --- tiles

// A square of `Count` pixels, or gradients, along an axis at the points, `stride` apart, for all channels.
template <int64_t Count, typename AtPoints, typename Pixel>
inline void put_square(int64_t channels, AtPoints at_points, Pixel pixel, float* to, int64_t stride) {
  for (int64_t c = 0; c < channels; c += kLanes) {
    Vector half[kReach][Count];
    for (int64_t j = 0; j < Count; j++) {
      Vector column[Count], at[kReach];
      for (int64_t i = 0; i < Count; i++) column[i] = pixel(i, j, c);
      at_points(column, at);
      for (int64_t i = 0; i < kReach; i++) half[i][j] = at[i];
    }
    for (int64_t i = 0; i < kReach; i++) {
      Vector at[kReach];
      at_points(half[i], at);
      for (int64_t j = 0; j < kReach; j++) store(to + (i * kReach + j) * stride + c, at[j]);
    }
  }
}

// The pixels of a tile, zeros where there are none.
void put_pixels(const Sizes& of, const float* x, int64_t number, float* to, int64_t stride) {
  const Tile tile(of, number);
  const int64_t top = tile.row - of.above, left = tile.column - of.left;
  const float* image = x + tile.image * of.height * of.width * of.in;
  const bool is_inside = top >= 0 && left >= 0 && top + kReach <= of.height && left + kReach <= of.width;
  const auto pixel = [&](int64_t i, int64_t j, int64_t c) {
    const int64_t row = top + i, column = left + j;
    const bool is_there = is_inside || (row >= 0 && row < of.height && column >= 0 && column < of.width);
    return is_there ? load(image + (row * of.width + column) * of.in + c) : all(0);
  };
  put_square<kReach>(of.in, pixels_at_points, pixel, to, stride);
}

// The gradients of a tile's results, zeros for those that are not of the image.
void put_gradients(const Sizes& of, const float* g, int64_t number, float* to, int64_t stride) {
  const Tile tile(of, number);
  const auto gradient = [&](int64_t i, int64_t j, int64_t c) {
    const int64_t row = tile.row + i, column = tile.column + j;
    const bool is_there = row < of.rows && column < of.columns;
    return is_there ? load(g + ((tile.image * of.rows + row) * of.columns + column) * of.out + c) : all(0);
  };
  put_square<kTile>(of.out, gradients_at_points, gradient, to, stride);
}

// What is added to results, and whether they are clipped at zero.
struct Ending {
  const float* bias;   // a number a channel, or null
  const float* added;  // as the results lie, or null
  bool is_clipped;
};

// The results of a tile for a vector of channels, of what is at the points, `stride` apart.
void put_results(const Sizes& of, const float* from, int64_t stride, int64_t number, int64_t c, const Ending& ending, float* y) {
  const Tile tile(of, number);
  Vector half[kTile][kReach];
  for (int64_t j = 0; j < kReach; j++) {
    Vector at[kReach], column[kTile];
    for (int64_t i = 0; i < kReach; i++) at[i] = load(from + (i * kReach + j) * stride);
    results_of_points(at, column);
    for (int64_t i = 0; i < kTile; i++) half[i][j] = column[i];
  }
  const Vector bias = ending.bias == nullptr ? all(0) : load(ending.bias + c);
  for (int64_t i = 0; i < kTile && tile.row + i < of.rows; i++) {
    Vector row[kTile];
    results_of_points(half[i], row);
    for (int64_t j = 0; j < kTile && tile.column + j < of.columns; j++) {
      const int64_t place = ((tile.image * of.rows + tile.row + i) * of.columns + tile.column + j) * of.out + c;
      Vector result = row[j] + bias;
      if (ending.added != nullptr) result += load(ending.added + place);
      store(y + place, ending.is_clipped ? larger(all(0), result) : result);
    }
  }
}

// How many tiles are a block: all threads are to have one, and it is to stay in the cache.
int64_t tiles_of_block(const Sizes& of, int threads) {
  const int64_t most = kPoints * kTiles * of.in * static_cast<int64_t>(sizeof(float)) > kInCache ? kTiles / 2 : kTiles;
  const int64_t share = ((of.tiles() + threads - 1) / threads + kRows - 1) / kRows * kRows;
  return share < most ? share : most;
}

}  // namespace

extern "C" {

// A weight, whose axes (out, in, row, column) have these strides, at the points: for each point and each panel of
// results, a row for every channel.
void put_filters(const float* weight, const int64_t* strides, int64_t in, int64_t out, float* filters, int threads) {
#pragma omp parallel for collapse(2) num_threads(threads)
  for (int64_t from = 0; from < out; from += kPanel)
    for (int64_t c = 0; c < in; c++) {
      const int64_t width = out - from < kPanel ? out - from : kPanel;
      for (int64_t at = 0; at < width; at += kLanes) {
        float gathered[9][kLanes];
        for (int64_t k = 0; k < 9; k++)
          for (int64_t lane = 0; lane < kLanes; lane++)
            gathered[k][lane] = weight[(from + at + lane) * strides[0] + c * strides[1] + k / 3 * strides[2] + k % 3 * strides[3]];
        for (int64_t i = 0; i < kReach; i++) {
          Vector half[3];
          const float* factor = filter.factor[i];
          for (int64_t k = 0; k < 3; k++)
            half[k] = fma(all(factor[0]), load(gathered[k]), fma(all(factor[1]), load(gathered[3 + k]), all(factor[2]) * load(gathered[6 + k])));
          for (int64_t j = 0; j < kReach; j++) {
            const float* other = filter.factor[j];
            const Vector found = fma(all(other[0]), half[0], fma(all(other[1]), half[1], all(other[2]) * half[2]));
            store(filters + (i * kReach + j) * in * out + from * in + c * width + at, found);
          }
        }
      }
    }
}

// Images convolved with filters that `put_filters` made.
void convolve(const Sizes* sizes, const float* x, const float* filters, const float* bias, const float* added, int is_clipped, float* y, int threads) {
  const Sizes of = *sizes;
  const Ending ending = {bias, added, is_clipped != 0};
  const int64_t most = tiles_of_block(of, threads), tiles = of.tiles(), panels = (of.out + kPanel - 1) / kPanel;
  const int64_t pieces = (tiles + most - 1) / most * panels;
#pragma omp parallel num_threads(threads)
  {
    float* pixels = scratch.of(kPoints * most * (of.in + kPanel));
    float* found = pixels + kPoints * most * of.in;
    int64_t there = -1;
#pragma omp for schedule(static)
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int64_t first = piece / panels * most, c = piece % panels * kPanel;
      const int64_t count = tiles - first < most ? tiles - first : most;
      if (there != first) {
        for (int64_t t = 0; t < count; t++) put_pixels(of, x, first + t, pixels + t * of.in, most * of.in);
        there = first;
      }
      const bool is_whole = of.out - c >= kPanel;
      const int64_t width = is_whole ? kPanel : kLanes;
      for (int64_t point = 0; point < kPoints; point++)
        (is_whole ? products<2> : products<1>)(
            pixels + point * most * of.in, count, of.in, filters + point * of.in * of.out + c * of.in, found + point * most * width);
      for (int64_t t = 0; t < count; t++)
        for (int64_t at = 0; at < width; at += kLanes)
          put_results(of, found + t * width + at, most * width, first + t, c + at, ending, y);
    }
  }
}

// The gradient of a weight, whose axes (out, in, row, column) have these strides, of those of the results. `sums` is room
// for a weight at the points.
void put_weight_gradient(const Sizes* sizes, const float* x, const float* g, float* sums, float* weight, const int64_t* strides, int threads) {
  const Sizes of = *sizes;
  const int64_t tiles = of.tiles();
  float* pixels = scratch.of(kPoints * kSummed * (of.in + of.out));
  float* gradients = pixels + kPoints * kSummed * of.in;
#pragma omp parallel num_threads(threads)
  {
    for (int64_t first = 0; first < tiles; first += kSummed) {
      const int64_t count = tiles - first < kSummed ? tiles - first : kSummed;
#pragma omp for schedule(static)
      for (int64_t t = 0; t < count; t++) {
        put_pixels(of, x, first + t, pixels + t * of.in, kSummed * of.in);
        put_gradients(of, g, first + t, gradients + t * of.out, kSummed * of.out);
      }
#pragma omp for schedule(static)
      for (int64_t point = 0; point < kPoints; point++)
        for (int64_t c = 0; c < of.out; c += kPanel)
          for (int64_t row = 0; row < of.in; row += kRows)
            (of.out - c >= kPanel ? product<kRows, 2> : product<kRows, 1>)(
                pixels + point * kSummed * of.in + row, 1, of.in, count, gradients + point * kSummed * of.out + c, of.out,
                sums + (point * of.in + row) * of.out + c, of.out, first != 0);
    }
#pragma omp for collapse(2) schedule(static)
    for (int64_t c = 0; c < of.out; c += kLanes)
      for (int64_t row = 0; row < of.in; row++) {
        Vector half[3][kReach];
        for (int64_t j = 0; j < kReach; j++)
          for (int64_t k = 0; k < 3; k++) {
            half[k][j] = all(0);
            for (int64_t i = 0; i < kReach; i++)
              half[k][j] = fma(all(filter.factor[i][k]), load(sums + ((i * kReach + j) * of.in + row) * of.out + c), half[k][j]);
          }
        for (int64_t k = 0; k < 9; k++) {
          Vector found = all(0);
          for (int64_t j = 0; j < kReach; j++) found = fma(all(filter.factor[j][k % 3]), half[k / 3][j], found);
          float one[kLanes];
          store(one, found);
          for (int64_t lane = 0; lane < kLanes; lane++)
            weight[(c + lane) * strides[0] + row * strides[1] + k / 3 * strides[2] + k % 3 * strides[3]] = one[lane];
        }
      }
  }
}
}

#endif
