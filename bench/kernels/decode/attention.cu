// Attention of one new token of every sequence over its cache, and the rotation before it. Python's side: `attention.py`.
//
// Compiled for WIDTH of a head, GROUP of query heads that share a key head, KEYS of them.
//
// A block takes a share of one sequence's positions for one key head. A team of lanes takes a position, eight numbers each,
// for all query heads of the group. The share that holds the new position turns its key, and writes key and value into
// the cache. The block of a head that ends last joins the shares, in their order.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int OWN = 8, TEAM = WIDTH / OWN;  // numbers of a head to a lane
constexpr int WARPS = GROUP > 4 ? 8 : 16, LANES = 32, THREADS = LANES * WARPS, TEAMS = THREADS / TEAM;
constexpr int DEPTH = 2;  // positions that a team takes at once, while it loads as many
constexpr int HALF = WIDTH / 2;
constexpr float LOG2_E = 1.4426950408889634f, NONE = -1e30f;
constexpr u32 EVERY = 0xffffffffu;

__device__ __forceinline__ float wide(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ __forceinline__ u16 narrow(float number) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

__device__ __forceinline__ uint4 take(const u16* from) { return *(const uint4*)from; }

__device__ __forceinline__ void widen(float (&to)[OWN], const uint4& numbers) {
  const u32 words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
  for (int word = 0; word < 4; word++) {
    to[2 * word] = __uint_as_float(words[word] << 16);
    to[2 * word + 1] = __uint_as_float(words[word] & 0xffff0000u);
  }
}

// joined: (count, (GROUP + 2) KEYS WIDTH), queries, keys, values; cos, sin: (length, HALF); keys, values:
// (count, KEYS, length, WIDTH); out: (count, GROUP KEYS WIDTH); parts: for each (sequence, key head, share) GROUP rows of
// WIDTH sums, and their largest score and the sum of weights; tickets: 0 for each (sequence, key head), and 0 afterwards.
extern "C" __global__ void __launch_bounds__(THREADS) attend_row(
    const u16* joined, const float* cos, const float* sin, const long long* position, u16* keys, u16* values, u16* out,
    float* parts, u32* tickets, int length) {
  __shared__ __align__(16) u16 queries[GROUP][WIDTH], new_key[WIDTH];
  __shared__ float sums[WARPS][GROUP][WIDTH + 2], factors[WARPS][GROUP], wholes[GROUP], joins[GROUP][LANES];
  __shared__ u32 arrived;
  const int head = blockIdx.x, sequence = blockIdx.y, share = blockIdx.z, shares = gridDim.z;
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES, team = thread / TEAM,
            member = thread % TEAM;
  const int last = (int)*position, each = (last + shares) / shares;
  const int first = share * each, end = min(first + each, last + 1);
  const u16* row = joined + (u64)sequence * (GROUP + 2) * KEYS * WIDTH;
  const u16* new_value = row + ((GROUP + 1) * KEYS + head) * WIDTH;
  const u64 cache = ((u64)sequence * KEYS + head) * length * WIDTH;
  // Loads are under way a turn ahead. What lies at the new position is not there yet, and replaced below.
  const auto place = [&](int at) { return cache + (u64)min(at, last) * WIDTH + member * OWN; };
  uint4 next[DEPTH][2];
  const auto load = [&](int from) {
#pragma unroll
    for (int turn = 0; turn < DEPTH; turn++) {
      const u64 from_here = place(from + turn * TEAMS + team);
      next[turn][0] = take(keys + from_here), next[turn][1] = take(values + from_here);
    }
  };
  load(first);

#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for `joined`; the kernel before this one may still be running
#endif
  for (int at = thread; at < (GROUP + 1) * HALF; at += THREADS) {
    const int which = at / HALF, inner = at % HALF;
    const u16* from = row + (which < GROUP ? head * GROUP + which : GROUP * KEYS + head) * WIDTH;
    const float a = wide(from[inner]), b = wide(from[inner + HALF]);
    const float c = cos[(u64)last * HALF + inner], s = sin[(u64)last * HALF + inner];
    u16* to = which < GROUP ? queries[which] : new_key;
    to[inner] = narrow(a * c - b * s);
    to[inner + HALF] = narrow(b * c + a * s);
  }
  __syncthreads();
  if (first <= last && last < end)
    for (int at = thread; at < WIDTH; at += THREADS) {
      keys[cache + (u64)last * WIDTH + at] = new_key[at];
      values[cache + (u64)last * WIDTH + at] = new_value[at];
    }

  float query[GROUP][OWN], total[GROUP][OWN] = {}, weight[GROUP] = {}, most[GROUP];
#pragma unroll
  for (int one = 0; one < GROUP; one++) widen(query[one], take(&queries[one][member * OWN])), most[one] = NONE;
  const float scale = rsqrtf((float)WIDTH) * LOG2_E;
  for (int from = first; from < end; from += DEPTH * TEAMS) {
    float key[DEPTH][OWN], value[DEPTH][OWN];
    bool is_there[DEPTH];
#pragma unroll
    for (int turn = 0; turn < DEPTH; turn++) {
      const int at = from + turn * TEAMS + team;
      is_there[turn] = at < end;
      if (at == last) next[turn][0] = take(new_key + member * OWN), next[turn][1] = take(new_value + member * OWN);
      // What lies behind the last position may be anything, and 0 times an infinity is none.
      if (!is_there[turn]) next[turn][1] = make_uint4(0, 0, 0, 0);
      widen(key[turn], next[turn][0]);
      widen(value[turn], next[turn][1]);
    }
    if (from + DEPTH * TEAMS < end) load(from + DEPTH * TEAMS);
#pragma unroll
    for (int one = 0; one < GROUP; one++) {
      float scores[DEPTH], largest = most[one];
#pragma unroll
      for (int turn = 0; turn < DEPTH; turn++) {
        float score = 0.0f;
#pragma unroll
        for (int inner = 0; inner < OWN; inner++) score += query[one][inner] * key[turn][inner];
#pragma unroll
        for (int far = TEAM / 2; far > 0; far /= 2) score += __shfl_xor_sync(EVERY, score, far);
        scores[turn] = is_there[turn] ? score * scale : NONE;
        largest = fmaxf(largest, scores[turn]);
      }
      const float kept = exp2f(most[one] - largest);
      most[one] = largest;
      weight[one] *= kept;
#pragma unroll
      for (int inner = 0; inner < OWN; inner++) total[one][inner] *= kept;
#pragma unroll
      for (int turn = 0; turn < DEPTH; turn++) {
        const float added = is_there[turn] ? exp2f(scores[turn] - largest) : 0.0f;
        weight[one] += added;
#pragma unroll
        for (int inner = 0; inner < OWN; inner++) total[one][inner] += added * value[turn][inner];
      }
    }
  }
  // A warp's teams, then the block's warps.
#pragma unroll
  for (int one = 0; one < GROUP; one++) {
    float largest = most[one];
#pragma unroll
    for (int far = TEAM; far < LANES; far *= 2) largest = fmaxf(largest, __shfl_xor_sync(EVERY, largest, far));
    const float kept = exp2f(most[one] - largest);
    weight[one] *= kept;
#pragma unroll
    for (int far = TEAM; far < LANES; far *= 2) weight[one] += __shfl_xor_sync(EVERY, weight[one], far);
#pragma unroll
    for (int inner = 0; inner < OWN; inner++) {
      total[one][inner] *= kept;
#pragma unroll
      for (int far = TEAM; far < LANES; far *= 2) total[one][inner] += __shfl_xor_sync(EVERY, total[one][inner], far);
      if (lane < TEAM) sums[warp][one][member * OWN + inner] = total[one][inner];
    }
    if (lane == 0) sums[warp][one][WIDTH] = largest, sums[warp][one][WIDTH + 1] = weight[one];
  }
  __syncthreads();

  const u64 of_head = (u64)sequence * KEYS + head;
  float* own = parts + (of_head * shares + share) * GROUP * (WIDTH + 2);
  u16* to = out + (of_head * GROUP) * WIDTH;
  // What each team's sums count for, beside the largest score of all.
  if (thread < GROUP) {
    float largest = NONE, whole = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) largest = fmaxf(largest, sums[other][thread][WIDTH]);
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
      const float kept = exp2f(sums[other][thread][WIDTH] - largest);
      whole += kept * sums[other][thread][WIDTH + 1];
      factors[other][thread] = kept;
    }
    wholes[thread] = whole;
    if (shares > 1) own[thread * (WIDTH + 2) + WIDTH] = largest, own[thread * (WIDTH + 2) + WIDTH + 1] = whole;
  }
  __syncthreads();
  for (int at = thread; at < GROUP * WIDTH; at += THREADS) {
    const int one = at / WIDTH, inner = at % WIDTH;
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) sum += factors[other][one] * sums[other][one][inner];
    if (shares == 1)
      to[at] = narrow(sum / wholes[one]);
    else
      own[one * (WIDTH + 2) + inner] = sum;
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
