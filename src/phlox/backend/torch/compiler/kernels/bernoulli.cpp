// Draws of true and false: those of `phlox.backend.threefry.generator`, bit for bit.
//
// A block of Threefry-2x32 (Salmon, Moraes, Dror and Shaw, 2011) gives two words, and so four numbers of 16 bits. They
// stand a quarter of all numbers apart, so that each block, or vector of blocks, writes to four places.

#include <algorithm>

namespace {

constexpr int64_t kBlocks = 16;
typedef uint32_t Words __attribute__((vector_size(4 * kBlocks)));
typedef uint8_t Bytes __attribute__((vector_size(kBlocks)));

template <int Count>
inline Words turned(Words x) {
  return x << Count | x >> (32 - Count);
}

template <int Count>
inline void round(Words& a, Words& b) {
  a += b;
  b = turned<Count>(b) ^ a;
}

// The blocks from `first` on.
inline void blocks(const uint32_t* key, uint32_t position, uint32_t first, Words& a, Words& b) {
  Words counter;
  for (int64_t i = 0; i < kBlocks; i++) counter[i] = first + static_cast<uint32_t>(i);
  a = Words{} + (position + key[0]);
  b = counter + key[1];
  for (uint32_t group = 0; group < 5; group++) {
    if (group % 2 == 0) {
      round<13>(a, b);
      round<15>(a, b);
      round<26>(a, b);
      round<6>(a, b);
    } else {
      round<17>(a, b);
      round<29>(a, b);
      round<16>(a, b);
      round<24>(a, b);
    }
    a += key[(group + 1) % 3];
    b += key[(group + 2) % 3] + (group + 1);
  }
}

// Ones for the numbers under the threshold; both are of 16 bits, so that their difference is negative or small.
inline Bytes under(Words numbers, uint32_t threshold) { return __builtin_convertvector((numbers - threshold) >> 31, Bytes); }

}  // namespace

extern "C" {

// Draws `start` to `start + count - 1` of `total`, true with probability `threshold` / 65536. `state` is the key of a
// stream, and the position in it.
void draw(const uint32_t* state, int64_t start, int64_t count, int64_t total, uint32_t threshold, uint8_t* to, int threads) {
  const uint32_t key[] = {state[0], state[1], state[0] ^ state[1] ^ 0x1BD11BDAu};
  const int64_t words = (total + 1) / 2, half = (words + 1) / 2, stop = start + count;
  const int64_t begins[] = {0, half, words, words + half};
  const int64_t ends[] = {half, words, std::min(words + half, total), total};
  if (count <= 0) return;
  // The blocks that are needed follow each other, from that of the first draw on; after the last comes the first.
  int64_t quarter = 3;
  while (begins[quarter] > start) quarter--;
  const int64_t all = (half + kBlocks - 1) / kBlocks, first = (start - begins[quarter]) / kBlocks;
  const int64_t needed = std::min(all, count / kBlocks + 6);  // a quarter may end, and the draws, within a block
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t number = 0; number < needed; number++) {
    const int64_t block = (first + number) % all * kBlocks;
    Words a, b;
    blocks(key, state[2], static_cast<uint32_t>(block), a, b);
    const Bytes found[] = {under(a & 0xFFFFu, threshold), under(b & 0xFFFFu, threshold), under(a >> 16, threshold), under(b >> 16, threshold)};
    for (int64_t part = 0; part < 4; part++) {
      const int64_t at = begins[part] + block;
      const int64_t low = std::max(at, start), high = std::min(std::min(at + kBlocks, ends[part]), stop);
      if (high - low == kBlocks)
        __builtin_memcpy(to + at - start, &found[part], kBlocks);
      else
        for (int64_t i = low; i < high; i++) to[i - start] = found[part][i - at];
    }
  }
}
}
