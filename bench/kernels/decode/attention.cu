// Attention of one new token per sequence over its cache, with the rotation before it. `attention.py` is the Python
// side.
//
// Compiled for the WIDTH of a head, KEYS key heads and GROUP query heads per key head.
//
// A block processes a share of one sequence's positions for one key head; its warps divide these, 16 at a time. Tensor
// cores multiply 16 keys by the group's queries, and the values of 16 positions by their weights (mma.m16n8k16, whose
// eight columns are query heads). The assignment of a key's or value's numbers to lanes is free as long as the other
// operand has the same one, so keys and values stay in the lane that read them, 16 bytes at a time; only weights move
// between lanes. The share with the new position rotates its key, and writes key and value into the cache. The last
// block of a head to finish joins the shares in their order.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int WARPS = 8, LANES = 32, THREADS = LANES * WARPS;
constexpr int TILE_KEYS = 16;     // positions per tile
constexpr int STAGES = 2;         // tiles that a warp loads ahead
constexpr int VECTOR = 8;         // numbers in 16 bytes; also query heads per product
constexpr int KEY_PIECES = WIDTH / 32, VALUE_PIECES = WIDTH / 64;  // of 16 bytes, per lane and position
constexpr int PRODUCTS = WIDTH / 16;      // products with a tile's values
constexpr int HALF = WIDTH / 2;
constexpr int QUERY_STRIDE = WIDTH + 32;  // two rows cover all banks
constexpr int SUM_STRIDE = WIDTH + 4;     // per warp and query head: sums, largest score, sum of weights
constexpr float LOG2_E = 1.4426950408889634f, MIN_SCORE = -1e30f;
constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float to_float(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ __forceinline__ u16 to_bf16(float number) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

__device__ __forceinline__ uint4 load16(const u16* from) { return *(const uint4*)from; }

__device__ __forceinline__ u32 word(const uint4& four, int index) {
  return index == 0 ? four.x : index == 1 ? four.y : index == 2 ? four.z : four.w;
}

// Pair of the numbers at one index of two rows of eight.
__device__ __forceinline__ u32 pair_of(const uint4& low, const uint4& high, int index) {
  return __byte_perm(word(low, index / 2), word(high, index / 2), index % 2 ? 0x7632 : 0x5410);
}

__device__ __forceinline__ u32 transpose(u32 pair) {  // 8 x 8 numbers, a pair per lane
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

// joined: (count, (GROUP + 2) KEYS WIDTH), queries, keys, values; cos, sin: (length, HALF); keys, values: (count, KEYS,
// length, WIDTH); out: (count, GROUP KEYS WIDTH); parts: per (sequence, key head, share) GROUP rows of WIDTH sums, the
// largest score and the sum of weights; tickets: per (sequence, key head), 0 before and after the launch.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_row(
    const u16* joined, const float* cos, const float* sin, const long long* position, u16* keys, u16* values, u16* out,
    float* parts, u32* tickets, int length) {
  __shared__ __align__(16) u16 queries[VECTOR][QUERY_STRIDE], new_key[WIDTH];
  __shared__ __align__(16) float sums[WARPS][GROUP][SUM_STRIDE];
  __shared__ float share_factors[GROUP][LANES];
  __shared__ u32 arrived;
  const int head = blockIdx.x, sequence = blockIdx.y, share = blockIdx.z, shares = gridDim.z;
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES, group = lane / 4, quarter = lane % 4;
  const int last = (int)*position, share_length = (last + shares) / shares;
  const int first = share * share_length, end = min(first + share_length, last + 1);
  const int tiles = (end - first + TILE_KEYS - 1) / TILE_KEYS;
  const u16* row = joined + (u64)sequence * (GROUP + 2) * KEYS * WIDTH;
  const u16* new_value = row + ((GROUP + 1) * KEYS + head) * WIDTH;
  const u64 cache = ((u64)sequence * KEYS + head) * length * WIDTH;
  // A lane holds numbers of two of the 16 keys, as rows of a product, and of four of the 16 values, as columns.
  const auto key_at = [&](int i) { return group + 8 * i; };
  const auto value_at = [&](int i) { return 2 * quarter + i % 2 + 8 * (i / 2); };
  const auto cache_offset = [&](int at) { return cache + (u64)min(at, last) * WIDTH; };
  uint4 key[STAGES][2][KEY_PIECES], value[STAGES][4][VALUE_PIECES];
  const auto load_keys = [&](int stage, int tile) {
    if (tile < tiles)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int piece = 0; piece < KEY_PIECES; piece++)
          key[stage][i][piece] = load16(keys + cache_offset(first + tile * TILE_KEYS + key_at(i)) + piece * 32 +
              quarter * VECTOR);
  };
  const auto load_values = [&](int stage, int tile) {
    if (tile < tiles)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int piece = 0; piece < VALUE_PIECES; piece++)
          value[stage][i][piece] =
              load16(values + cache_offset(first + tile * TILE_KEYS + value_at(i)) + piece * 64 + group * VECTOR);
  };
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++)
    load_keys(stage, stage * WARPS + warp), load_values(stage, stage * WARPS + warp);

#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for `joined`: the previous kernel may still be running
#endif
  for (int at = thread; at < (VECTOR + 1) * HALF; at += THREADS) {
    const int index = at / HALF, inner = at % HALF;
    u16* to = index < VECTOR ? queries[index] : new_key;
    if (GROUP <= index && index < VECTOR) {
      to[inner] = 0, to[inner + HALF] = 0;
      continue;
    }
    const u16* from = row + (index < GROUP ? head * GROUP + index : GROUP * KEYS + head) * WIDTH;
    const float a = to_float(from[inner]), b = to_float(from[inner + HALF]);
    const float c = cos[(u64)last * HALF + inner], s = sin[(u64)last * HALF + inner];
    to[inner] = to_bf16(a * c - b * s);
    to[inner + HALF] = to_bf16(b * c + a * s);
  }
  __syncthreads();
  if (first <= last && last < end)
    for (int at = thread; at < WIDTH; at += THREADS) {
      keys[cache + (u64)last * WIDTH + at] = new_key[at];
      values[cache + (u64)last * WIDTH + at] = new_value[at];
    }

  uint4 query[KEY_PIECES];
#pragma unroll
  for (int piece = 0; piece < KEY_PIECES; piece++)
    query[piece] = load16(&queries[group][piece * 32 + quarter * VECTOR]);
  // For the query heads 2 quarter and 2 quarter + 1.
  float total[PRODUCTS][4] = {}, weight[2] = {}, max_score[2] = {MIN_SCORE, MIN_SCORE};
  const float scale = rsqrtf((float)WIDTH) * LOG2_E;
  for (int from = warp; from < tiles; from += STAGES * WARPS)
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
      const int tile = from + stage * WARPS, at = first + tile * TILE_KEYS;
      if (tile >= tiles) break;
      if (at + TILE_KEYS > min(end, last)) {
        // The cache may not hold the new position yet. Later positions hold arbitrary numbers, and 0 times an infinity
        // is NaN.
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (at + key_at(i) == last)
#pragma unroll
            for (int piece = 0; piece < KEY_PIECES; piece++)
              key[stage][i][piece] = load16(new_key + piece * 32 + quarter * VECTOR);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int value_position = at + value_at(i);
#pragma unroll
          for (int piece = 0; piece < VALUE_PIECES; piece++)
            if (value_position >= end)
              value[stage][i][piece] = make_uint4(0, 0, 0, 0);
            else if (value_position == last)
              value[stage][i][piece] = load16(new_value + piece * 64 + group * VECTOR);
        }
      }
      float scores[2][4] = {};
#pragma unroll
      for (int piece = 0; piece < KEY_PIECES; piece++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint4(&of)[2][KEY_PIECES] = key[stage];
          multiply(scores[half], word(of[0][piece], 2 * half), word(of[1][piece], 2 * half),
                   word(of[0][piece], 2 * half + 1), word(of[1][piece], 2 * half + 1), word(query[piece], 2 * half),
                   word(query[piece], 2 * half + 1));
        }
      load_keys(stage, tile + STAGES * WARPS);
      float decay[2];
      u32 weights[2];  // per key, for both query heads
      const bool is_valid[2] = {at + key_at(0) < end, at + key_at(1) < end};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float& upper = scores[0][i];
        float& lower = scores[0][2 + i];
        upper = is_valid[0] ? (upper + scores[1][i]) * scale : MIN_SCORE;
        lower = is_valid[1] ? (lower + scores[1][2 + i]) * scale : MIN_SCORE;
        float largest = fmaxf(max_score[i], fmaxf(upper, lower));
#pragma unroll
        for (int distance = 4; distance < LANES; distance *= 2)
          largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        decay[i] = exp2f(max_score[i] - largest);
        max_score[i] = largest;
        upper = is_valid[0] ? exp2f(upper - largest) : 0.0f;
        lower = is_valid[1] ? exp2f(lower - largest) : 0.0f;
        weight[i] = weight[i] * decay[i] + upper + lower;
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
        weights[i] = transpose(to_bf16(scores[0][2 * i]) | (u32)to_bf16(scores[0][2 * i + 1]) << 16);
#pragma unroll
      for (int product = 0; product < PRODUCTS; product++) {
        constexpr int SECOND = PRODUCTS / VECTOR;  // piece with a product's lower rows
        const int lower = (product + PRODUCTS) % VECTOR;
        const uint4(&of)[4][VALUE_PIECES] = value[stage];
#pragma unroll
        for (int i = 0; i < 4; i++) total[product][i] *= decay[i % 2];
        multiply(total[product], pair_of(of[0][0], of[1][0], product), pair_of(of[0][SECOND], of[1][SECOND], lower),
                 pair_of(of[2][0], of[3][0], product), pair_of(of[2][SECOND], of[3][SECOND], lower), weights[0],
                 weights[1]);
      }
      load_values(stage, tile + STAGES * WARPS);
    }

#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int distance = 4; distance < LANES; distance *= 2)
      weight[i] += __shfl_xor_sync(ALL_LANES, weight[i], distance);
    const int query_head = 2 * quarter + i;
    if (query_head >= GROUP) continue;
    float* to = sums[warp][query_head];
#pragma unroll
    for (int lower = 0; lower < 2; lower++)
#pragma unroll
      for (int product = 0; product < PRODUCTS; product += 4) {
        const int number = product + lower * PRODUCTS, of = 2 * lower + i;
        *(float4*)&to[number / VECTOR * 64 + group * VECTOR + number % VECTOR] = make_float4(
            total[product][of], total[product + 1][of], total[product + 2][of], total[product + 3][of]);
      }
    if (group == 0) to[WIDTH] = max_score[i], to[WIDTH + 1] = weight[i];
  }
  __syncthreads();

  const u64 of_head = (u64)sequence * KEYS + head;
  float* own = parts + (of_head * shares + share) * GROUP * (WIDTH + 2);
  u16* to = out + (of_head * GROUP) * WIDTH;
  for (int at = thread; at < GROUP * WIDTH; at += THREADS) {
    const int i = at / WIDTH, inner = at % WIDTH;
    float largest = MIN_SCORE, whole = 0.0f, sum = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) largest = fmaxf(largest, sums[other][i][WIDTH]);
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
      const float decay = exp2f(sums[other][i][WIDTH] - largest);
      whole += decay * sums[other][i][WIDTH + 1];
      sum += decay * sums[other][i][inner];
    }
    if (shares == 1) {
      to[at] = to_bf16(sum / whole);
      continue;
    }
    own[i * (WIDTH + 2) + inner] = sum;
    if (inner == 0) own[i * (WIDTH + 2) + WIDTH] = largest, own[i * (WIDTH + 2) + WIDTH + 1] = whole;
  }
  if (shares == 1) return;
  __threadfence();
  __syncthreads();
  if (thread == 0) arrived = atomicAdd(tickets + of_head, 1);
  __syncthreads();
  if (arrived != shares - 1) return;
  __threadfence();
  const float* all = parts + of_head * shares * GROUP * (WIDTH + 2);
  // A warp computes the factors of a query head, a lane that of a share.
  for (int query_head = warp; query_head < GROUP; query_head += WARPS) {
    const float* from = all + (lane * GROUP + query_head) * (WIDTH + 2) + WIDTH;
    float largest = lane < shares ? __ldcg(from) : MIN_SCORE, whole = lane < shares ? __ldcg(from + 1) : 0.0f;
    const float own_largest = largest;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    const float decay = lane < shares ? exp2f(own_largest - largest) : 0.0f;
    whole *= decay;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) whole += __shfl_xor_sync(ALL_LANES, whole, distance);
    share_factors[query_head][lane] = decay / whole;
  }
  __syncthreads();
  for (int at = thread; at < GROUP * WIDTH; at += THREADS) {
    const int query_head = at / WIDTH, inner = at % WIDTH;
    float sum = 0.0f;
#pragma unroll 8
    for (int other = 0; other < shares; other++)
      sum += share_factors[query_head][other] * __ldcg(all + (other * GROUP + query_head) * (WIDTH + 2) + inner);
    to[at] = to_bf16(sum);
  }
  if (thread == 0) tickets[of_head] = 0;
}
