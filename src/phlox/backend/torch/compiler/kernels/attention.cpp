// Softmax attention, forward: y = softmax(scale q k^T) v, of heads whose numbers lie in one piece.
//
// A panel of queries at a time stands in the lanes of vectors, so that what is done with its weights needs no sums
// across them. All its weights are in the second cache: there is no need to begin with less than all keys, as there is
// where these are many thousands.

#include <omp.h>

#include <cmath>

#if defined(PHLOX_VECTORS)

namespace {

struct Sizes {
  int64_t batch, heads, queries, keys, size, causal;

  int64_t seen(int64_t query) const { return !causal || query >= keys ? keys : query + 1; }
};

struct Rows {
  const float* first;
  int64_t apart;

  const float* operator[](int64_t i) const { return first + i * apart; }
};

// What a thread works in: the queries of a panel turned, their weights for every key, and the values.
struct Room {
  float *queries, *weights, *values;

  explicit Room(const Sizes& of) {
    queries = scratch.of((of.size + of.keys) * kPanel + of.keys * of.size);
    weights = queries + of.size * kPanel;
    values = weights + of.keys * kPanel;
  }
};

// Later keys than a query have the weight `value`.
inline void hide(float* weights, int64_t first, int64_t seen, float value) {
  for (int64_t key = first + 1; key < seen; key++)
    for (int64_t lane = 0; lane < key - first && lane < kPanel; lane++) weights[key * kPanel + lane] = value;
}

template <int64_t Queries>
void mix(const float* weights, int64_t seen, const float* values, int64_t size, const float* factor, float* y, int64_t apart) {
  int64_t column = 0;
  for (; column + kPanel <= size; column += kPanel) product<Queries, 2>(weights, 1, kPanel, seen, values + column, size, y + column, apart, false);
  if (column < size) product<Queries, 1>(weights, 1, kPanel, seen, values + column, size, y + column, apart, false);
  for (int64_t i = 0; i < Queries; i++)
    for (int64_t at = 0; at < size; at += kLanes) store(y + i * apart + at, load(y + i * apart + at) * all(factor[i]));
}

// Attention of up to a panel of queries, the first of which is number `first`.
void panel_of(const Sizes& of, int64_t first, int64_t count, Rows q, Rows k, Rows v, float scale, float* y, int64_t y_apart, float* sums, int64_t sums_apart, const Room& room) {
  const int64_t seen = of.seen(first + count - 1);
  for (int64_t at = 0; at < of.size; at++)
    for (int64_t lane = count; lane < kPanel; lane++) room.queries[at * kPanel + lane] = 0;
  for (int64_t lane = 0; lane < count; lane++)
    for (int64_t at = 0; at < of.size; at++) room.queries[at * kPanel + lane] = q[first + lane][at];
  int64_t key = 0;
  for (; key + kRows <= seen; key += kRows) product<kRows, 2>(k[key], k.apart, 1, of.size, room.queries, kPanel, room.weights + key * kPanel, kPanel, false);
  for (; key < seen; key++) product<1, 2>(k[key], k.apart, 1, of.size, room.queries, kPanel, room.weights + key * kPanel, kPanel, false);
  if (of.causal) hide(room.weights, first, seen, -INFINITY);
  float tops[kPanel], totals[kPanel];
  for (int64_t v = 0; v < kPanel; v += kLanes) {
    float* const weights = room.weights + v;
    Vector most = all(-INFINITY), total = all(0);
    for (key = 0; key < seen; key++) most = larger(most, load(weights + key * kPanel));
    const Vector factor = all(scale), shift = most * all(-scale);
    for (key = 0; key < seen; key++) {
      const Vector weight = exponential(fma(load(weights + key * kPanel), factor, shift));
      store(weights + key * kPanel, weight);
      total = total + weight;
    }
    store(tops + v, most * factor);
    store(totals + v, total);
  }
  if (of.causal) hide(room.weights, first, seen, 0);
  // Values far from each other would take each other's place in the cache.
  for (key = 0; key < seen; key++)
    for (int64_t at = 0; at < of.size; at += kLanes) store(room.values + key * of.size + at, load(v[key] + at));
  float factors[kPanel];
  for (int64_t lane = 0; lane < count; lane++) {
    factors[lane] = 1.0f / totals[lane];
    sums[(first + lane) * sums_apart] = tops[lane] + std::log(totals[lane]);
  }
  int64_t lane = 0;
  for (; lane + kRows <= count; lane += kRows)
    mix<kRows>(room.weights + lane, of.seen(first + lane + kRows - 1), room.values, of.size, factors + lane, y + (first + lane) * y_apart, y_apart);
  for (; lane < count; lane++)
    mix<1>(room.weights + lane, of.seen(first + lane), room.values, of.size, factors + lane, y + (first + lane) * y_apart, y_apart);
}

}  // namespace

extern "C" {

// `sizes`: batch, heads, queries, keys, size of a head (a multiple of a vector), and whether a query sees no later keys.
// The strides of q, k, v, y [batch, heads, length, size] and of the sums [batch, heads, queries] stand one behind the
// other. The sums are the logarithms of what the weights were divided by.
void attend(const int64_t* sizes, const int64_t* strides, const float* q, const float* k, const float* v, float scale, float* y, float* sums, int threads) {
  const Sizes of = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
#pragma omp parallel num_threads(threads)
  {
    const Room room(of);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t panel = (of.queries - 1) / kPanel; panel >= 0; panel--)
      for (int64_t index = 0; index < of.batch * of.heads; index++) {
        const int64_t first = panel * kPanel, left = of.queries - first;
        const auto head = [&](int64_t which) { return index / of.heads * strides[3 * which] + index % of.heads * strides[3 * which + 1]; };
        panel_of(of, first, left < kPanel ? left : kPanel, {q + head(0), strides[2]}, {k + head(1), strides[5]}, {v + head(2), strides[8]}, scale, y + head(3), strides[11], sums + head(4), strides[14], room);
      }
  }
}
}

#endif
