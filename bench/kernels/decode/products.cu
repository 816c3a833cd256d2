// y = x W^T for up to 32 rows of x, with W in NF4, W never written out. Python's side: `products.py`.
//
// Compiled for one shape: COLUMNS of W, TILES of eight rows of x, WEIGHTS that are joined, and what is fused:
// NORM (x is normalized first), GATED (y = silu(x G^T) * (x U^T)), RANK of the adapters, 0 for none, SIDE rows of x that
// are multiplied with a row of A at a time. WARPS of a block, RESIDENT blocks of a multiprocessor, STAGES as below.
//
// u = s x A^T of the adapters is made by the first blocks, a row of A each, which have the fewest rows of W. Each number
// lies beside the number of the launch that made it, and who needs it reads it until that is this one: no fence, and
// nothing to be cleared. A block asks for u while it computes its first sums, and has u and its rows of B in shared
// memory. Blocks begin in their order, so none waits for one that cannot begin.
//
// A block computes 16 rows of W at a time; its warps share the columns, 256 at a time. Tensor cores multiply 16 rows of
// W by 8 rows of x (mma.m16n8k16). Which of W's columns a lane holds is free as long as x agrees, so a lane takes 16
// columns that follow each other, and no number changes its lane after it was read.
//
// The next kernel may start before this one ends, and this one may have started before the last one ended: only weights
// are read before `await_inputs`.
//
// Each warp copies its codes and scales into shared memory, STAGES chunks ahead. Warps meet only where their sums are
// added. A byte of codes is two numbers. Their pair comes from a table in shared memory with a copy for
// each lane, so that lanes never wait for each other: one load a byte. The scale of 64 numbers multiplies their sum, in
// float32. Where registers allow, a lane's part of x stays in them for all rows of W.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr int LANES = 32, THREADS = LANES * WARPS;
constexpr int BLOCKS = COLUMNS / 64;  // of 64 numbers with one scale, in a row of W
constexpr int CHUNK = 4;              // blocks that a warp takes at a time
constexpr int CHUNKS = (BLOCKS + CHUNK * WARPS - 1) / (CHUNK * WARPS);  // of each warp
constexpr bool IS_EVEN = BLOCKS % CHUNK == 0;
constexpr bool IS_FULL = BLOCKS % (CHUNK * WARPS) == 0;
constexpr int HIGH = 16, WIDE = 8 * TILES;     // of the part of y^T that a block computes at a time
constexpr int STEP = GATED ? HIGH / 2 : HIGH;  // rows of y to a part
constexpr bool HOLDS = CHUNKS * TILES <= 2;    // x in registers
constexpr bool AHEAD = !HOLDS && !NORM && TILES == 1;  // a chunk of it in registers, read a turn before it is needed
constexpr int ROW = CHUNK * 32 + 32;           // bytes of a row in shared memory: eight rows fall on all its banks
constexpr int STAGE = HIGH * ROW + HIGH * 8;   // codes, four scales of each row, and the scale of those
constexpr int HEIGHT = WEIGHTS * RANK;         // rows of every A
constexpr int ASKED = 2;                       // numbers of u that a thread asks for before it needs them
constexpr bool COPIES_B = RANK > 0 && RANK % 8 == 0;  // a row of B begins at 16 bytes

struct Weight {
  const u32* codes;
  const u8* scales;
  const float* scale_levels;
  const float* scale_scales;
  const float* offset;
  const u16* b;  // the adapter's B (rows, RANK) in bf16, null where there is none
  int rows;
  int first;  // its first row of y
};

struct Arguments {
  Weight weights[3];
  const float* levels;  // NF4's sixteen
  const u16* x;     // (count, COLUMNS) bf16
  const u16* norm;  // (COLUMNS,) bf16
  const u16* onto;  // (count, stride) bf16, added to y; null for none
  const u16* a;     // (HEIGHT, COLUMNS) bf16, every A
  u64* u;           // (count, HEIGHT), s x A^T without the norm's factor, float32, and above it the launch
  u32* launch;      // this one's number, from 1 on; and blocks that have read it, 0 before and afterwards
  u16* y;           // (count, stride) bf16
  int count, stride, parts;
  float eps, scaling;
};

__device__ __forceinline__ float wide(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ __forceinline__ u16 narrow(float number) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

__device__ __forceinline__ u32 times(u32 a, u32 b) {  // two bf16 each
  u32 product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

__device__ __forceinline__ u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

__device__ __forceinline__ void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy4(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// A number that other blocks write or read meanwhile: whole, and not from a cache of this multiprocessor.
__device__ __forceinline__ u64 load(const u64* from) {
  u64 number;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(number) : "l"(from) : "memory");
  return number;
}

__device__ __forceinline__ void store(u64* to, u64 number) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(number) : "memory");
}

__device__ __forceinline__ void multiply(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Place {
  int weight, row;
};

// The weight, and its row, of one of a part's 16 rows.
__device__ __forceinline__ Place place_of(const Arguments& a, int part, int high) {
  if (GATED) {
    const int side = high / STEP;
    return {side, min(part * STEP + high % STEP, a.weights[0].rows - 1)};
  }
  int weight = 0;
#pragma unroll
  for (int next = 1; next < WEIGHTS; next++) weight += part * STEP >= a.weights[next].first;
  return {weight, min(part * STEP + high - a.weights[weight].first, a.weights[weight].rows - 1)};
}

// Ask for a block's first row of A, which comes from far away.
__device__ __forceinline__ void ask_for_a(const Arguments& a) {
  constexpr int EACH = 64;  // numbers: 128 bytes
  if (blockIdx.x < HEIGHT)
    for (int at = threadIdx.x * EACH; at < COLUMNS; at += THREADS * EACH)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.a + (u64)blockIdx.x * COLUMNS + at));
}

// Start to copy a part's rows of B.
__device__ __forceinline__ void fetch_b(u16* to, const Arguments& a, int part, int lane) {
  if (part < a.parts)
    for (int piece = lane; piece < HIGH * RANK / 8; piece += LANES) {
      const Place place = place_of(a, part, piece * 8 / RANK);
      const u16* b = a.weights[place.weight].b;
      if (b != nullptr) copy16(address(to + piece * 8), b + (u64)place.row * RANK + piece * 8 % RANK);
    }
}

// Start to copy what a warp needs of a chunk. Every lane ends its group of copies, even of none.
__device__ __forceinline__ void fetch(u8* stage, const Arguments& a, int part, int block, int lane) {
  if (part < a.parts && block < BLOCKS) {
#pragma unroll
    for (int turn = 0; turn < HIGH * 8 / LANES; turn++) {
      const int high = turn * (LANES / 8) + lane / 8, piece = lane % 8;
      const Place place = place_of(a, part, high);
      const u8* codes = (const u8*)a.weights[place.weight].codes + (u64)place.row * (COLUMNS / 2);
      if (IS_EVEN || block + piece / 2 < BLOCKS) copy16(address(stage + high * ROW + piece * 16), codes + block * 32 + piece * 16);
    }
    const int high = lane % HIGH;
    const Place place = place_of(a, part, high);
    const Weight& weight = a.weights[place.weight];
    const u64 first = (u64)place.row * BLOCKS + block;
    u8* to = stage + HIGH * ROW + high * 4;
    if (lane >= HIGH)
      copy4(address(to + HIGH * 4), weight.scale_scales + (first >> 8));
    else if (IS_EVEN)
      copy4(address(to), weight.scales + first);
    else
      for (int one = 0; one < min(CHUNK, BLOCKS - block); one++) to[one] = weight.scales[first + one];
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// The sum of the squares of a pair.
__device__ __forceinline__ float square_of(u32 pair) {
  const float low = wide((u16)pair), high = wide((u16)(pair >> 16));
  return low * low + high * high;
}

// The 16 numbers of a row of x that belong to a lane's columns of one block, as pairs, times the norm's weights. Rows
// after the last are the last one again: what is made of them is not written. The squares of x are added to `squares`.
__device__ __forceinline__ void take(u32 (&x)[TILES][8], const Arguments& a, int group, int column, float* squares) {
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const uint4* from = (const uint4*)(a.x + (u64)min(tile * 8 + group, a.count - 1) * COLUMNS + column);
    *(uint4*)&x[tile][0] = from[0];
    *(uint4*)&x[tile][4] = from[1];
  }
  if (NORM) {
    if (squares != nullptr)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int pair = 0; pair < 8; pair++) squares[tile] += square_of(x[tile][pair]);
    u32 weights[8];
    *(uint4*)&weights[0] = *(const uint4*)(a.norm + column);
    *(uint4*)&weights[4] = *(const uint4*)(a.norm + column + 8);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int pair = 0; pair < 8; pair++) x[tile][pair] = times(x[tile][pair], weights[pair]);
  }
}

// The rows of u that this block makes. `room`: WARPS x SIDE.
__device__ __forceinline__ void make_u(const Arguments& a, u32 launch, float* room) {
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  for (int row = blockIdx.x; row < HEIGHT; row += gridDim.x)
    for (int first = 0; first < a.count; first += SIDE) {
      float dots[SIDE] = {};
      for (int column = thread * 8; column < COLUMNS; column += THREADS * 8) {
        const uint4 of_a = *(const uint4*)(a.a + (u64)row * COLUMNS + column);
        const uint4 of_norm = NORM ? *(const uint4*)(a.norm + column) : make_uint4(0, 0, 0, 0);
        uint4 of_x[SIDE];
#pragma unroll
        for (int one = 0; one < SIDE; one++)
          of_x[one] = first + one < a.count ? *(const uint4*)(a.x + (u64)(first + one) * COLUMNS + column)
                                            : make_uint4(0, 0, 0, 0);
        const u32 as[4] = {of_a.x, of_a.y, of_a.z, of_a.w};
        const u32 norms[4] = {of_norm.x, of_norm.y, of_norm.z, of_norm.w};
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
          const float low = wide((u16)as[pair]) * (NORM ? wide((u16)norms[pair]) : 1.0f);
          const float high = wide((u16)(as[pair] >> 16)) * (NORM ? wide((u16)(norms[pair] >> 16)) : 1.0f);
#pragma unroll
          for (int one = 0; one < SIDE; one++) {
            const u32 word = pair == 0 ? of_x[one].x : pair == 1 ? of_x[one].y : pair == 2 ? of_x[one].z : of_x[one].w;
            dots[one] += wide((u16)word) * low + wide((u16)(word >> 16)) * high;
          }
        }
      }
#pragma unroll
      for (int one = 0; one < SIDE; one++) {
#pragma unroll
        for (int far = 16; far > 0; far /= 2) dots[one] += __shfl_xor_sync(0xffffffffu, dots[one], far);
        if (lane == 0) room[warp * SIDE + one] = dots[one];
      }
      __syncthreads();
      if (thread < SIDE && first + thread < a.count) {
        float dot = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++) dot += room[each * SIDE + thread];
        store(a.u + (first + thread) * HEIGHT + row, (u64)launch << 32 | __float_as_uint(a.scaling * dot));
      }
      __syncthreads();
    }
}

// b . u over the adapters' rank, b (RANK,) in bf16.
__device__ __forceinline__ float adapted(const u16* b, const float* u) {
  float value = 0.0f;
#pragma unroll 8
  for (int inner = 0; inner < RANK; inner++) value += wide(b[inner]) * u[inner];
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) nf4_products(const Arguments a) {
  extern __shared__ __align__(16) u8 memory[];
  u32* pairs = (u32*)memory;                            // 256 pairs, a copy for each lane
  float* scale_levels = (float*)(pairs + 256 * LANES);  // 256 for each weight
  float* rstd = scale_levels + 256 * WEIGHTS;           // WIDE
  float* sums = rstd + WIDE;                            // WARPS x HIGH x WIDE, twice
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  const int group = lane / 4, quarter = lane % 4;
  float* u = sums + 2 * WARPS * HIGH * WIDE;            // count x HEIGHT
  u16* rows_of_b = (u16*)(u + WIDE * HEIGHT);           // HIGH x RANK, for three parts
  u8* stages = (u8*)(rows_of_b + 3 * HIGH * RANK) + warp * STAGES * STAGE;

  // The first copies of codes are under way while the tables are written.
  const int first_part = gridDim.x - 1 - blockIdx.x;  // the last blocks may have one more
  int ahead_part = first_part, ahead_turn = 0, ahead_of_b = 0, slot = 0;
  const auto fetch_next = [&](int to) {
    if (COPIES_B && warp == 0 && ahead_turn == 0) {
      fetch_b(rows_of_b + ahead_of_b * HIGH * RANK, a, ahead_part, lane);
      ahead_of_b = ahead_of_b == 2 ? 0 : ahead_of_b + 1;
    }
    fetch(stages + to * STAGE, a, ahead_part, (ahead_turn * WARPS + warp) * CHUNK, lane);
    if (++ahead_turn == CHUNKS) ahead_turn = 0, ahead_part += gridDim.x;
  };
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) fetch_next(stage);

  for (int byte = thread; byte < 256; byte += THREADS) {
    // The upper four bits come first.
    const u32 pair = narrow(a.levels[byte >> 4]) | ((u32)narrow(a.levels[byte & 15]) << 16);
#pragma unroll
    for (int copy = 0; copy < LANES; copy++) pairs[byte * LANES + (copy + lane) % LANES] = pair;
  }
#pragma unroll
  for (int weight = 0; weight < WEIGHTS; weight++)
    for (int level = thread; level < 256; level += THREADS)
      scale_levels[weight * 256 + level] = a.weights[weight].scale_levels[level];
  float offsets[WEIGHTS];
#pragma unroll
  for (int weight = 0; weight < WEIGHTS; weight++) offsets[weight] = *a.weights[weight].offset;

  if (RANK > 0) ask_for_a(a);
  let_next_start();
  await_inputs();
  const u32 launch = RANK > 0 ? *(volatile u32*)a.launch : 0;
  if (RANK > 0) make_u(a, launch, sums);
  u32 held[HOLDS ? CHUNKS * CHUNK : 1][TILES][8], ahead[AHEAD ? 2 : 1][AHEAD ? CHUNK : 1][TILES][8];
  float* squares = sums + WARPS * HIGH * WIDE;  // WARPS x WIDE, where the second part's sums will lie
  if (HOLDS) {
    float own[TILES] = {};
#pragma unroll
    for (int one = 0; one < CHUNKS * CHUNK; one++) {
      const int block = (one / CHUNK * WARPS + warp) * CHUNK + one % CHUNK;
      float* counted = IS_FULL || block < BLOCKS ? own : nullptr;
      take(held[HOLDS ? one : 0], a, group, min(block, BLOCKS - 1) * 64 + quarter * 16, counted);
    }
    if (NORM)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        own[tile] += __shfl_xor_sync(0xffffffffu, own[tile], 1);
        own[tile] += __shfl_xor_sync(0xffffffffu, own[tile], 2);
        if (quarter == 0) squares[warp * WIDE + tile * 8 + group] = own[tile];
      }
  } else if (NORM) {
    for (int row = warp; row < a.count; row += WARPS) {
      float square = 0.0f;
#pragma unroll
      for (int column = lane * 8; column < COLUMNS; column += LANES * 8) {
        const uint4 four = *(const uint4*)(a.x + (u64)row * COLUMNS + column);
        square += square_of(four.x) + square_of(four.y) + square_of(four.z) + square_of(four.w);
      }
#pragma unroll
      for (int far = 16; far > 0; far /= 2) square += __shfl_xor_sync(0xffffffffu, square, far);
      if (lane == 0) rstd[row] = rsqrtf(square / COLUMNS + a.eps);
    }
  }
  __syncthreads();
  if (HOLDS && NORM && thread < WIDE) {  // read after the next meeting
    float square = 0.0f;
#pragma unroll
    for (int each = 0; each < WARPS; each++) square += squares[each * WIDE + thread];
    rstd[thread] = rsqrtf(square / COLUMNS + a.eps);
  }

  const u32 mine = lane * 4;
  const u8* table = (const u8*)pairs;
  for (int part = first_part, count = 0; part < a.parts; part += gridDim.x, count++) {
    const int weights[2] = {place_of(a, part, 0).weight, place_of(a, part, HIGH - 1).weight};
    float offset[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
      offset[side] = offsets[0];
#pragma unroll
      for (int weight = 1; weight < WEIGHTS; weight++)
        offset[side] = weights[side] == weight ? offsets[weight] : offset[side];
    }
    float total[TILES][4] = {};
    u64 asked[ASKED] = {};
    const auto take_chunk = [&](int turn) {
#pragma unroll
      for (int one = 0; one < (AHEAD ? CHUNK : 0); one++) {
        const int block = min((turn * WARPS + warp) * CHUNK + one, BLOCKS - 1);
        take(ahead[AHEAD ? turn % 2 : 0][AHEAD ? one : 0], a, group, block * 64 + quarter * 16, nullptr);
      }
    };
    take_chunk(0);
#pragma unroll
    for (int turn = 0; turn < CHUNKS; turn++) {
      const int block = (turn * WARPS + warp) * CHUNK;
      if (turn + 1 < CHUNKS) take_chunk(turn + 1);
      if (RANK > 0 && turn + 1 == CHUNKS && count == 0)
#pragma unroll
        for (int one = 0; one < ASKED; one++) asked[one] = load(a.u + min(thread + one * THREADS, HEIGHT * a.count - 1));
      fetch_next(slot == 0 ? STAGES - 1 : slot - 1);
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
      __syncwarp();
      const u8* stage = stages + slot * STAGE;
      slot = slot + 1 == STAGES ? 0 : slot + 1;
      if (IS_FULL || block < BLOCKS) {
        u32 scales[2];
        float outer[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
          scales[side] = *(const u32*)(stage + HIGH * ROW + (group + 8 * side) * 4);
          outer[side] = *(const float*)(stage + HIGH * ROW + HIGH * 4 + (group + 8 * side) * 4);
        }
#pragma unroll
        for (int one = 0; one < CHUNK; one++) {
          if (!IS_EVEN && block + one >= BLOCKS) break;
          uint2 codes[2];
#pragma unroll
          for (int side = 0; side < 2; side++)
            codes[side] = *(const uint2*)(stage + (group + 8 * side) * ROW + one * 32 + quarter * 8);
          u32 x[TILES][8];
          if (!HOLDS && !AHEAD) take(x, a, group, (block + one) * 64 + quarter * 16, nullptr);
          float sum[TILES][4] = {};
#pragma unroll
          for (int step = 0; step < 4; step++) {
            u32 numbers[2][2];
#pragma unroll
            for (int side = 0; side < 2; side++) {
              const u32 word = step < 2 ? codes[side].x : codes[side].y;
#pragma unroll
              for (int half = 0; half < 2; half++) {
                const int byte = step % 2 * 2 + half;
                const u32 at = byte == 0 ? word << 7 : word >> (8 * byte - 7);
                numbers[side][half] = *(const u32*)(table + ((at & 0x7f80u) | mine));
              }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              const u32(&of_x)[8] = HOLDS   ? held[HOLDS ? turn * CHUNK + one : 0][tile]
                                    : AHEAD ? ahead[AHEAD ? turn % 2 : 0][AHEAD ? one : 0][tile]
                                            : x[tile];
              multiply(sum[tile], numbers[0][0], numbers[1][0], numbers[0][1], numbers[1][1], of_x[2 * step],
                       of_x[2 * step + 1]);
            }
          }
#pragma unroll
          for (int side = 0; side < 2; side++) {
            const float level = scale_levels[weights[side] * 256 + (scales[side] >> (8 * one) & 255)];
            float of_scales = outer[side];
            if (!IS_EVEN) {  // a chunk may lie across two of them
              const Place place = place_of(a, part, group + 8 * side);
              of_scales = a.weights[weights[side]].scale_scales[((u64)place.row * BLOCKS + block + one) >> 8];
            }
            const float scale = __fadd_rn(__fmul_rn(level, of_scales), offset[side]);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              total[tile][2 * side] += scale * sum[tile][2 * side];
              total[tile][2 * side + 1] += scale * sum[tile][2 * side + 1];
            }
          }
        }
      }
      __syncwarp();  // before a lane copies into what another still reads
    }
    // The warps' sums, always added in the same order, by one warp after the other while the others go on.
    float* all = sums + count % 2 * WARPS * HIGH * WIDE;
    float* own = all + warp * HIGH * WIDE;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      *(float2*)&own[group * WIDE + tile * 8 + quarter * 2] = make_float2(total[tile][0], total[tile][1]);
      *(float2*)&own[(group + 8) * WIDE + tile * 8 + quarter * 2] = make_float2(total[tile][2], total[tile][3]);
    }
    if (RANK > 0 && count == 0)
#pragma unroll 1
      for (int at = thread, one = 0; at < HEIGHT * a.count; at += THREADS, one++) {
        u64 made = one == 0 ? asked[0] : one == 1 ? asked[1] : 0;
        while ((u32)(made >> 32) != launch) made = load(a.u + at);
        u[at] = __uint_as_float((u32)made);
      }
    __syncthreads();
    for (int at = (warp + count) % WARPS * LANES + lane; at < STEP * a.count; at += THREADS) {
      const int high = at % STEP, row = at / STEP;  // neighbours write neighbours
      const Place target = place_of(a, part, high);
      const Weight& weight = a.weights[target.weight];
      const int inside = part * STEP + high - weight.first;
      if (inside >= weight.rows) continue;
      float values[2] = {0.0f, 0.0f};
#pragma unroll
      for (int side = 0; side < (GATED ? 2 : 1); side++) {
        float value = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++) value += all[(each * HIGH + side * 8 + high) * WIDE + row];
        if (RANK > 0) {
          const int which = GATED ? side : target.weight;
          const u16* b = a.weights[which].b;
          const u16* own = COPIES_B ? rows_of_b + (count % 3 * HIGH + side * STEP + high) * RANK : b + (u64)inside * RANK;
          if (b != nullptr) value += adapted(own, u + (row * WEIGHTS + which) * RANK);
        }
        values[side] = NORM ? value * rstd[row] : value;
      }
      float value = values[0];
      if (GATED) value = values[0] / (1.0f + __expf(-values[0])) * values[1];
      const u64 to = (u64)row * a.stride + weight.first + inside;
      if (a.onto != nullptr) value += wide(a.onto[to]);
      a.y[to] = narrow(value);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  // Every thread has read the launch's number before the block's first meeting.
  if (RANK > 0 && thread == THREADS - 1 && atomicAdd(a.launch + 1, 1) == gridDim.x - 1)
    a.launch[0] = launch + 1, a.launch[1] = 0;
}
