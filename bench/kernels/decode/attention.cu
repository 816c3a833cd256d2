// Attention of one new token of every sequence over its cache, and the rotation before it. Python's side: `attention.py`.
//
// Compiled for WIDTH of a head, GROUP of query heads that share a key head, KEYS of them.
//
// A block takes a share of one sequence's positions for one key head; its warps share these, 16 at a time. Tensor cores
// multiply 16 keys by the group's queries, and the values of 16 positions by their weights (mma.m16n8k16, whose eight
// columns are query heads). Which numbers of a key or a value a lane holds is free as long as the other side agrees, so
// keys and values stay where they were read, 16 bytes at a time; only weights change lanes. The share that holds the new
// position turns its key, and writes key and value into the cache. The block of a head that ends last joins the shares,
// in their order.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int WARPS = 8, LANES = 32, THREADS = LANES * WARPS;
constexpr int TALL = 16;               // positions of a tile
constexpr int DEPTH = 2;               // tiles that a warp has under way
constexpr int EIGHT = 8;               // numbers in 16 bytes; query heads of a product
constexpr int KEY_PIECES = WIDTH / 32, VALUE_PIECES = WIDTH / 64;  // of 16 bytes to a lane, of a position
constexpr int PRODUCTS = WIDTH / 16;   // of a tile's values
constexpr int HALF = WIDTH / 2;
constexpr int QUERY = WIDTH + 32;      // two rows fall on all banks
constexpr int SUMS = WIDTH + 4;        // of a warp and a query head: sums, the largest score, the sum of weights
constexpr float LOG2_E = 1.4426950408889634f, NONE = -1e30f;
constexpr u32 EVERY = 0xffffffffu;

__device__ __forceinline__ float wide(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ __forceinline__ u16 narrow(float number) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

__device__ __forceinline__ uint4 take(const u16* from) { return *(const uint4*)from; }

__device__ __forceinline__ u32 word(const uint4& four, int which) {
  return which == 0 ? four.x : which == 1 ? four.y : which == 2 ? four.z : four.w;
}

// The numbers at one place of two rows of eight, as a pair.
__device__ __forceinline__ u32 pair_of(const uint4& low, const uint4& high, int which) {
  return __byte_perm(word(low, which / 2), word(high, which / 2), which % 2 ? 0x7632 : 0x5410);
}

__device__ __forceinline__ u32 transposed(u32 pair) {  // of 8 x 8 numbers, a pair of a row to a lane
  u32 other;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

__device__ __forceinline__ void multiply(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// joined: (count, (GROUP + 2) KEYS WIDTH), queries, keys, values; cos, sin: (length, HALF); keys, values:
// (count, KEYS, length, WIDTH); out: (count, GROUP KEYS WIDTH); parts: for each (sequence, key head, share) GROUP rows of
// WIDTH sums, and their largest score and the sum of weights; tickets: 0 for each (sequence, key head), and 0 afterwards.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_row(
    const u16* joined, const float* cos, const float* sin, const long long* position, u16* keys, u16* values, u16* out,
    float* parts, u32* tickets, int length) {
  __shared__ __align__(16) u16 queries[EIGHT][QUERY], new_key[WIDTH];
  __shared__ __align__(16) float sums[WARPS][GROUP][SUMS];
  __shared__ float joins[GROUP][LANES];
  __shared__ u32 arrived;
  const int head = blockIdx.x, sequence = blockIdx.y, share = blockIdx.z, shares = gridDim.z;
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES, group = lane / 4, quarter = lane % 4;
  const int last = (int)*position, each = (last + shares) / shares;
  const int first = share * each, end = min(first + each, last + 1);
  const int tiles = (end - first + TALL - 1) / TALL;
  const u16* row = joined + (u64)sequence * (GROUP + 2) * KEYS * WIDTH;
  const u16* new_value = row + ((GROUP + 1) * KEYS + head) * WIDTH;
  const u64 cache = ((u64)sequence * KEYS + head) * length * WIDTH;
  // Of 16 keys a lane holds numbers of two, as rows of a product; of 16 values it holds numbers of four, as columns.
  const auto key_at = [&](int one) { return group + 8 * one; };
  const auto value_at = [&](int one) { return 2 * quarter + one % 2 + 8 * (one / 2); };
  const auto place = [&](int at) { return cache + (u64)min(at, last) * WIDTH; };
  uint4 key[DEPTH][2][KEY_PIECES], value[DEPTH][4][VALUE_PIECES];
  const auto load_keys = [&](int depth, int tile) {
    if (tile < tiles)
#pragma unroll
      for (int one = 0; one < 2; one++)
#pragma unroll
        for (int piece = 0; piece < KEY_PIECES; piece++)
          key[depth][one][piece] = take(keys + place(first + tile * TALL + key_at(one)) + piece * 32 + quarter * EIGHT);
  };
  const auto load_values = [&](int depth, int tile) {
    if (tile < tiles)
#pragma unroll
      for (int one = 0; one < 4; one++)
#pragma unroll
        for (int piece = 0; piece < VALUE_PIECES; piece++)
          value[depth][one][piece] = take(values + place(first + tile * TALL + value_at(one)) + piece * 64 + group * EIGHT);
  };
#pragma unroll
  for (int depth = 0; depth < DEPTH; depth++) load_keys(depth, depth * WARPS + warp), load_values(depth, depth * WARPS + warp);

#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for `joined`; the kernel before this one may still be running
#endif
  for (int at = thread; at < (EIGHT + 1) * HALF; at += THREADS) {
    const int which = at / HALF, inner = at % HALF;
    u16* to = which < EIGHT ? queries[which] : new_key;
    if (GROUP <= which && which < EIGHT) {
      to[inner] = 0, to[inner + HALF] = 0;
      continue;
    }
    const u16* from = row + (which < GROUP ? head * GROUP + which : GROUP * KEYS + head) * WIDTH;
    const float a = wide(from[inner]), b = wide(from[inner + HALF]);
    const float c = cos[(u64)last * HALF + inner], s = sin[(u64)last * HALF + inner];
    to[inner] = narrow(a * c - b * s);
    to[inner + HALF] = narrow(b * c + a * s);
  }
  __syncthreads();
  if (first <= last && last < end)
    for (int at = thread; at < WIDTH; at += THREADS) {
      keys[cache + (u64)last * WIDTH + at] = new_key[at];
      values[cache + (u64)last * WIDTH + at] = new_value[at];
    }

  uint4 query[KEY_PIECES];
#pragma unroll
  for (int piece = 0; piece < KEY_PIECES; piece++) query[piece] = take(&queries[group][piece * 32 + quarter * EIGHT]);
  // Of the query heads 2 quarter and 2 quarter + 1.
  float total[PRODUCTS][4] = {}, weight[2] = {}, most[2] = {NONE, NONE};
  const float scale = rsqrtf((float)WIDTH) * LOG2_E;
  for (int from = warp; from < tiles; from += DEPTH * WARPS)
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) {
      const int tile = from + depth * WARPS, at = first + tile * TALL;
      if (tile >= tiles) break;
      if (at + TALL > min(end, last)) {
        // What lies at the new position is not there yet. What lies behind it may be anything, and 0 times an infinity
        // is none.
#pragma unroll
        for (int one = 0; one < 2; one++)
          if (at + key_at(one) == last)
#pragma unroll
            for (int piece = 0; piece < KEY_PIECES; piece++)
              key[depth][one][piece] = take(new_key + piece * 32 + quarter * EIGHT);
#pragma unroll
        for (int one = 0; one < 4; one++) {
          const int here = at + value_at(one);
#pragma unroll
          for (int piece = 0; piece < VALUE_PIECES; piece++)
            if (here >= end)
              value[depth][one][piece] = make_uint4(0, 0, 0, 0);
            else if (here == last)
              value[depth][one][piece] = take(new_value + piece * 64 + group * EIGHT);
        }
      }
      float scores[2][4] = {};
#pragma unroll
      for (int piece = 0; piece < KEY_PIECES; piece++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint4(&of)[2][KEY_PIECES] = key[depth];
          multiply(scores[half], word(of[0][piece], 2 * half), word(of[1][piece], 2 * half),
                   word(of[0][piece], 2 * half + 1), word(of[1][piece], 2 * half + 1), word(query[piece], 2 * half),
                   word(query[piece], 2 * half + 1));
        }
      load_keys(depth, tile + DEPTH * WARPS);
      float kept[2];
      u32 weights[2];  // of the two keys, for both query heads
      const bool is_there[2] = {at + key_at(0) < end, at + key_at(1) < end};
#pragma unroll
      for (int one = 0; one < 2; one++) {
        float& upper = scores[0][one];
        float& lower = scores[0][2 + one];
        upper = is_there[0] ? (upper + scores[1][one]) * scale : NONE;
        lower = is_there[1] ? (lower + scores[1][2 + one]) * scale : NONE;
        float largest = fmaxf(most[one], fmaxf(upper, lower));
#pragma unroll
        for (int far = 4; far < LANES; far *= 2) largest = fmaxf(largest, __shfl_xor_sync(EVERY, largest, far));
        kept[one] = exp2f(most[one] - largest);
        most[one] = largest;
        upper = is_there[0] ? exp2f(upper - largest) : 0.0f;
        lower = is_there[1] ? exp2f(lower - largest) : 0.0f;
        weight[one] = weight[one] * kept[one] + upper + lower;
      }
#pragma unroll
      for (int one = 0; one < 2; one++)
        weights[one] = transposed(narrow(scores[0][2 * one]) | (u32)narrow(scores[0][2 * one + 1]) << 16);
#pragma unroll
      for (int product = 0; product < PRODUCTS; product++) {
        constexpr int SECOND = PRODUCTS / EIGHT;  // the piece of a product's lower rows
        const int lower = (product + PRODUCTS) % EIGHT;
        const uint4(&of)[4][VALUE_PIECES] = value[depth];
#pragma unroll
        for (int one = 0; one < 4; one++) total[product][one] *= kept[one % 2];
        multiply(total[product], pair_of(of[0][0], of[1][0], product), pair_of(of[0][SECOND], of[1][SECOND], lower),
                 pair_of(of[2][0], of[3][0], product), pair_of(of[2][SECOND], of[3][SECOND], lower), weights[0],
                 weights[1]);
      }
      load_values(depth, tile + DEPTH * WARPS);
    }

#pragma unroll
  for (int one = 0; one < 2; one++) {
#pragma unroll
    for (int far = 4; far < LANES; far *= 2) weight[one] += __shfl_xor_sync(EVERY, weight[one], far);
    const int query_head = 2 * quarter + one;
    if (query_head >= GROUP) continue;
    float* to = sums[warp][query_head];
#pragma unroll
    for (int lower = 0; lower < 2; lower++)
#pragma unroll
      for (int product = 0; product < PRODUCTS; product += 4) {
        const int number = product + lower * PRODUCTS, of = 2 * lower + one;
        *(float4*)&to[number / EIGHT * 64 + group * EIGHT + number % EIGHT] = make_float4(
            total[product][of], total[product + 1][of], total[product + 2][of], total[product + 3][of]);
      }
    if (group == 0) to[WIDTH] = most[one], to[WIDTH + 1] = weight[one];
  }
  __syncthreads();

  const u64 of_head = (u64)sequence * KEYS + head;
  float* own = parts + (of_head * shares + share) * GROUP * (WIDTH + 2);
  u16* to = out + (of_head * GROUP) * WIDTH;
  for (int at = thread; at < GROUP * WIDTH; at += THREADS) {
    const int one = at / WIDTH, inner = at % WIDTH;
    float largest = NONE, whole = 0.0f, sum = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) largest = fmaxf(largest, sums[other][one][WIDTH]);
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
      const float kept = exp2f(sums[other][one][WIDTH] - largest);
      whole += kept * sums[other][one][WIDTH + 1];
      sum += kept * sums[other][one][inner];
    }
    if (shares == 1) {
      to[at] = narrow(sum / whole);
      continue;
    }
    own[one * (WIDTH + 2) + inner] = sum;
    if (inner == 0) own[one * (WIDTH + 2) + WIDTH] = largest, own[one * (WIDTH + 2) + WIDTH + 1] = whole;
  }
  if (shares == 1) return;
  __threadfence();
  __syncthreads();
  if (thread == 0) arrived = atomicAdd(tickets + of_head, 1);
  __syncthreads();
  if (arrived != shares - 1) return;
  __threadfence();
  const float* all = parts + of_head * shares * GROUP * (WIDTH + 2);
  // A warp finds the factors of a query head, a lane of a share.
  for (int query_head = warp; query_head < GROUP; query_head += WARPS) {
    const float* from = all + (lane * GROUP + query_head) * (WIDTH + 2) + WIDTH;
    float largest = lane < shares ? __ldcg(from) : NONE, whole = lane < shares ? __ldcg(from + 1) : 0.0f;
    const float its = largest;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) largest = fmaxf(largest, __shfl_xor_sync(EVERY, largest, far));
    const float kept = lane < shares ? exp2f(its - largest) : 0.0f;
    whole *= kept;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) whole += __shfl_xor_sync(EVERY, whole, far);
    joins[query_head][lane] = kept / whole;
  }
  __syncthreads();
  for (int at = thread; at < GROUP * WIDTH; at += THREADS) {
    const int query_head = at / WIDTH, inner = at % WIDTH;
    float sum = 0.0f;
#pragma unroll 8
    for (int other = 0; other < shares; other++)
      sum += joins[query_head][other] * __ldcg(all + (other * GROUP + query_head) * (WIDTH + 2) + inner);
    to[at] = narrow(sum);
  }
  if (thread == 0) tickets[of_head] = 0;
}
