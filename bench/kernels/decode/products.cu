// y = x W^T for up to 32 rows of x, with W in NF4, W never written out. Python's side: `products.py`.
//
// Compiled for one shape: COLUMNS of W, TILES of eight rows of x, WEIGHTS that are joined, and what is fused:
// NORM (x is normalized first), GATED (y = silu(x G^T) * (x U^T)), RANK of the adapters, 0 for none, SIDE rows of x that
// are multiplied with OF_U rows of A at a time. WARPS of a block, RESIDENT blocks of a multiprocessor, STAGES and PANELS
// as below.
//
// u = s x A^T of the adapters is made by the first blocks, OF_U rows of A each, which have the fewest rows of W. Each
// number lies beside the number of the launch that made it, and who needs it reads it until that is this one: no fence,
// and nothing to be cleared. A block asks for u while it computes its first sums, and has u and its rows of B in shared
// memory. Blocks begin in their order, so none waits for one that cannot begin.
//
// A block computes a part of y^T at a time, PANELS of 16 rows of W; its warps share the columns, 256 at a time. Tensor
// cores multiply 16 rows of W by 8 rows of x (mma.m16n8k16). Which of W's columns a lane holds is free as long as x
// agrees, so a lane takes 16 columns that follow each other, and no number changes its lane after it was read. Panels of
// a part share what was read of x.
//
// The next kernel may start before this one ends, and this one may have started before the last one ended: only weights
// are read before `await_inputs`.
//
// Each warp copies its codes into shared memory, STAGES chunks ahead; a part's scales are copied for all warps while they
// compute the part before. Warps meet only where their sums are added. A byte of codes is two numbers. Their pair comes from a table in shared memory with a copy for
// each lane, so that lanes never wait for each other: one load a byte. The scale of 64 numbers multiplies their sum, in
// float32. Where registers allow, a lane's part of x stays in them for all rows of W.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr int LANES = 32, THREADS = LANES * WARPS, LEVELS = 256;
constexpr int BLOCKS = COLUMNS / 64;  // of 64 numbers with one scale, in a row of W
constexpr int CHUNK = 4;              // blocks that a warp takes at a time
constexpr int CHUNKS = (BLOCKS + CHUNK * WARPS - 1) / (CHUNK * WARPS);  // of each warp
constexpr bool IS_EVEN = BLOCKS % CHUNK == 0;
constexpr bool IS_FULL = BLOCKS % (CHUNK * WARPS) == 0;
constexpr int HIGH = 16, WIDE = 8 * TILES;     // of the part of y^T that a block computes at a time
constexpr int TALL = PANELS * HIGH;            // rows of W to a part
constexpr int STEP = GATED ? TALL / 2 : TALL;  // rows of y to a part
constexpr bool HOLDS = CHUNKS * TILES <= 2;    // x in registers
constexpr bool AHEAD = !HOLDS && !NORM && TILES == 1;  // a chunk of it in registers, read a turn before it is needed
constexpr int TURNS = CHUNKS * PANELS;         // of a warp, for a part
constexpr int ROW = CHUNK * 32 + 32;           // bytes of a row in shared memory: eight rows fall on all its banks
constexpr int STAGE = HIGH * ROW;              // codes of a chunk
constexpr int SIDES = GATED ? 2 : 1;           // weights of a part
constexpr int PIECE = BLOCKS % 16 == 0 ? 16 : IS_EVEN ? 4 : 1;   // scales that are copied at once
constexpr int PIECES = BLOCKS / PIECE;         // of a row
constexpr int SCALES = (BLOCKS + 3) / 4 * 4 + 16;  // bytes of a row's scales in shared memory: on all banks as well
constexpr int OUTER = STEP * BLOCKS / 256 + 2; // scales of scales of a part, of each weight
constexpr int PART = (TALL * SCALES + SIDES * OUTER * 4 + 15) / 16 * 16;  // bytes of a part's scales
constexpr int SLOTS = (STAGES - 1 + TURNS - 1) / TURNS + 2;  // parts whose scales and rows of B are there or under way
constexpr int HEIGHT = WEIGHTS * RANK;         // rows of every A
constexpr int SUMS = PANELS * WARPS * HIGH * WIDE;
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
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all groups of copies but the last STAGES - 1 are there.
__device__ __forceinline__ void await_group() { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory"); }

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

// The weight, and its row, at which a part begins; of gate and up, the first.
__device__ __forceinline__ Place place_of(const Arguments& a, int part) {
  int weight = 0;
#pragma unroll
  for (int next = 1; next < (GATED ? 1 : WEIGHTS); next++) weight += part * STEP >= a.weights[next].first;
  return {weight, part * STEP - a.weights[weight].first};
}

// Ask for a block's first rows of A, which comes from far away.
__device__ __forceinline__ void ask_for_a(const Arguments& a) {
  constexpr int EACH = 64;  // numbers: 128 bytes
  for (int row = blockIdx.x * OF_U; row < min(HEIGHT, (blockIdx.x + 1) * OF_U); row++)
    for (int at = threadIdx.x * EACH; at < COLUMNS; at += THREADS * EACH)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.a + (u64)row * COLUMNS + at));
}

// Start to copy a part's rows of B.
__device__ __forceinline__ void fetch_b(u16* to, const Arguments& a, int part, int lane) {
  const Place place = place_of(a, part);
  for (int piece = lane; piece < TALL * RANK / 8; piece += LANES) {
    const int high = piece * 8 / RANK;
    const u16* b = a.weights[place.weight + high / STEP].b;
    if (b != nullptr) copy16(address(to + piece * 8), b + (u64)(place.row + high % STEP) * RANK + piece * 8 % RANK);
  }
}

// Start to copy a part's scales, and the scales of these.
__device__ __forceinline__ void fetch_scales(u8* to, const Arguments& a, int part) {
  const Place place = place_of(a, part);
  for (int at = threadIdx.x; at < TALL * PIECES; at += THREADS) {
    const int high = at / PIECES, piece = at % PIECES * PIECE;
    const u8* from = a.weights[place.weight + high / STEP].scales + (u64)(place.row + high % STEP) * BLOCKS + piece;
    u8* here = to + high * SCALES + piece;
    if (PIECE == 16)
      copy16(address(here), from);
    else if (PIECE == 4)
      copy4(address(here), from);
    else
      *here = *from;
  }
  const int first = (u64)place.row * BLOCKS >> 8;
  for (int at = threadIdx.x; at < SIDES * OUTER; at += THREADS) {
    const Weight& weight = a.weights[place.weight + at / OUTER];
    const int last = ((u64)weight.rows * BLOCKS - 1) >> 8;
    copy4(address(to + TALL * SCALES + at * 4), weight.scale_scales + min(first + at % OUTER, last));
  }
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

// The rows of u that this block makes, OF_U at a time. `room`: WARPS x OF_U x SIDE.
__device__ __forceinline__ void make_u(const Arguments& a, u32 launch, float* room) {
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  for (int row = blockIdx.x * OF_U; row < HEIGHT; row += gridDim.x * OF_U)
    for (int first = 0; first < a.count; first += SIDE) {
      float dots[OF_U][SIDE] = {};
      for (int column = thread * 8; column < COLUMNS; column += THREADS * 8) {
        u32 of_a[OF_U][4], of_x[SIDE][4], of_norm[4] = {};
        if (NORM) *(uint4*)of_norm = *(const uint4*)(a.norm + column);
#pragma unroll
        for (int one = 0; one < OF_U; one++)
          *(uint4*)of_a[one] = *(const uint4*)(a.a + (u64)min(row + one, HEIGHT - 1) * COLUMNS + column);
#pragma unroll
        for (int one = 0; one < SIDE; one++)
          *(uint4*)of_x[one] = first + one < a.count ? *(const uint4*)(a.x + (u64)(first + one) * COLUMNS + column)
                                                     : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int pair = 0; pair < 4; pair++)
#pragma unroll
          for (int each = 0; each < OF_U; each++) {
            const u32 as = of_a[each][pair];
            const float low = wide((u16)as) * (NORM ? wide((u16)of_norm[pair]) : 1.0f);
            const float high = wide((u16)(as >> 16)) * (NORM ? wide((u16)(of_norm[pair] >> 16)) : 1.0f);
#pragma unroll
            for (int one = 0; one < SIDE; one++)
              dots[each][one] += wide((u16)of_x[one][pair]) * low + wide((u16)(of_x[one][pair] >> 16)) * high;
          }
      }
#pragma unroll
      for (int each = 0; each < OF_U; each++)
#pragma unroll
        for (int one = 0; one < SIDE; one++) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) dots[each][one] += __shfl_xor_sync(0xffffffffu, dots[each][one], far);
          if (lane == 0) room[(warp * OF_U + each) * SIDE + one] = dots[each][one];
        }
      __syncthreads();
      const int of = row + thread / SIDE, at = first + thread % SIDE;
      if (thread < OF_U * SIDE && of < HEIGHT && at < a.count) {
        float dot = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++) dot += room[each * OF_U * SIDE + thread];
        store(a.u + at * HEIGHT + of, (u64)launch << 32 | __float_as_uint(a.scaling * dot));
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
  float* sums = rstd + WIDE;                            // PANELS x WARPS x HIGH x WIDE, twice
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  const int group = lane / 4, quarter = lane % 4;
  float* u = sums + 2 * SUMS;                           // count x HEIGHT
  u16* rows_of_b = (u16*)(u + WIDE * HEIGHT);           // TALL x RANK, for SLOTS parts
  u8* scales = (u8*)(rows_of_b + SLOTS * TALL * RANK);  // PART, for SLOTS parts
  u8* stages = scales + SLOTS * PART + warp * STAGES * STAGE;

  // The first copies are under way while the tables are written. Copies go on in turns, each of a chunk; with the first
  // chunk of a part go its rows of B and the next part's scales, which are there when the warps have met once more.
  const int first_part = gridDim.x - 1 - blockIdx.x;  // the last blocks may have one more
  const u8* from[SIDES];  // a lane's first codes of a part
  const auto fetch = [&](u8* stage, int part, int count, int turn) {
    const int panel = turn % PANELS, chunk = turn / PANELS, next = part + gridDim.x;
    if (turn == 0 && part < a.parts) {
      const Place place = place_of(a, part);
#pragma unroll
      for (int side = 0; side < SIDES; side++)
        from[side] = (const u8*)a.weights[place.weight + side].codes + (u64)(place.row + lane / 8) * (COLUMNS / 2) +
                     warp * CHUNK * 32 + lane % 8 * 16;
      if (COPIES_B && warp == 0) fetch_b(rows_of_b + count % SLOTS * TALL * RANK, a, part, lane);
      if (next < a.parts) fetch_scales(scales + (count + 1) % SLOTS * PART, a, next);
    }
    const int block = (chunk * WARPS + warp) * CHUNK;
    if (part < a.parts && (IS_EVEN ? IS_FULL || block < BLOCKS : block + lane % 8 / 2 < BLOCKS))
#pragma unroll
      for (int four = 0; four < HIGH / 4; four++) {
        const int row = GATED ? four % 2 * 4 : panel * HIGH + four * 4;
        copy16(address(stage + (four * 4 + lane / 8) * ROW + lane % 8 * 16),
               from[GATED ? four / 2 : 0] + row * (COLUMNS / 2) + chunk * WARPS * CHUNK * 32);
      }
    end_group();
  };
  if (first_part < a.parts) fetch_scales(scales, a, first_part);
  end_group();
#pragma unroll
  for (int ahead = 0; ahead < STAGES - 1; ahead++)
    fetch(stages + ahead * STAGE, first_part + ahead / TURNS * gridDim.x, ahead / TURNS, ahead % TURNS);
  int slot = 0;

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
  float* squares = sums + SUMS;  // WARPS x WIDE, where the second part's sums will lie
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
  await_group();
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
    const Place place = place_of(a, part);
    u32 levels[2];  // where the levels of a row's scales lie
    float offset[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const int of_weight = GATED ? side : place.weight;
      levels[side] = of_weight * LEVELS * 4;
      offset[side] = offsets[0];
#pragma unroll
      for (int weight = 1; weight < WEIGHTS; weight++)
        offset[side] = of_weight == weight ? offsets[weight] : offset[side];
    }
    const u8* of_part = scales + count % SLOTS * PART;
    const int skipped = place.row * BLOCKS & 255;  // of the scales that the part's first scale of scales is for
    float total[PANELS][TILES][4] = {};
    u64 asked[ASKED] = {};
    const auto take_chunk = [&](int chunk) {
#pragma unroll
      for (int one = 0; one < (AHEAD ? CHUNK : 0); one++) {
        const int block = min((chunk * WARPS + warp) * CHUNK + one, BLOCKS - 1);
        take(ahead[AHEAD ? chunk % 2 : 0][AHEAD ? one : 0], a, group, block * 64 + quarter * 16, nullptr);
      }
    };
    take_chunk(0);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int panel = turn % PANELS, chunk = turn / PANELS;
      const int block = (chunk * WARPS + warp) * CHUNK;
      if (panel == 0 && chunk + 1 < CHUNKS) take_chunk(chunk + 1);
      if (RANK > 0 && turn + 1 == TURNS && count == 0)
#pragma unroll
        for (int one = 0; one < ASKED; one++) asked[one] = load(a.u + min(thread + one * THREADS, HEIGHT * a.count - 1));
      const int then = turn + STAGES - 1;
      fetch(stages + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE, part + then / TURNS * gridDim.x, count + then / TURNS,
            then % TURNS);
      await_group();
      __syncwarp();
      const u8* stage = stages + slot * STAGE;
      slot = slot + 1 == STAGES ? 0 : slot + 1;
      if (IS_FULL || block < BLOCKS) {
        u32 of_rows[2];
        float outer[2];
        const auto outer_of = [&](int side, int block) {
          const float* all = (const float*)(of_part + TALL * SCALES) + (GATED ? side * OUTER : 0);
          return all[(skipped + (GATED ? group : panel * HIGH + side * 8 + group) * BLOCKS + block) >> 8];
        };
#pragma unroll
        for (int side = 0; side < 2; side++) {
          of_rows[side] = *(const u32*)(of_part + (panel * HIGH + side * 8 + group) * SCALES + block);
          outer[side] = outer_of(side, block);
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
                // The byte times 128, what its pair's copies take, and this lane's place among them: one instruction.
                const u32 at = __dp4a(word, 128u << (8 * (step % 2 * 2 + half)), mine);
                numbers[side][half] = *(const u32*)(table + at);
              }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              const u32(&of_x)[8] = HOLDS   ? held[HOLDS ? chunk * CHUNK + one : 0][tile]
                                    : AHEAD ? ahead[AHEAD ? chunk % 2 : 0][AHEAD ? one : 0][tile]
                                            : x[tile];
              multiply(sum[tile], numbers[0][0], numbers[1][0], numbers[0][1], numbers[1][1], of_x[2 * step],
                       of_x[2 * step + 1]);
            }
          }
#pragma unroll
          for (int side = 0; side < 2; side++) {
            const u32 at = __dp4a(of_rows[side], 4u << (8 * one), levels[side]);
            const float level = *(const float*)((const u8*)scale_levels + at);
            if (!IS_EVEN) outer[side] = outer_of(side, block + one);  // a chunk may lie across two of them
            const float scale = __fadd_rn(__fmul_rn(level, outer[side]), offset[side]);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              total[panel][tile][2 * side] += scale * sum[tile][2 * side];
              total[panel][tile][2 * side + 1] += scale * sum[tile][2 * side + 1];
            }
          }
        }
      }
      __syncwarp();  // before a lane copies into what another still reads
    }
    // The warps' sums, always added in the same order, by one warp after the other while the others go on.
    float* all = sums + count % 2 * SUMS;
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
      float* own = all + (panel * WARPS + warp) * HIGH * WIDE;
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const float(&four)[4] = total[panel][tile];
        *(float2*)&own[group * WIDE + tile * 8 + quarter * 2] = make_float2(four[0], four[1]);
        *(float2*)&own[(group + 8) * WIDE + tile * 8 + quarter * 2] = make_float2(four[2], four[3]);
      }
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
      float values[2] = {0.0f, 0.0f};
#pragma unroll
      for (int side = 0; side < (GATED ? 2 : 1); side++) {
        float value = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++)
          value += all[((high / HIGH * WARPS + each) * HIGH + side * 8 + high % HIGH) * WIDE + row];
        if (RANK > 0) {
          const int which = place.weight + side;
          const u16* b = a.weights[which].b;
          const u16* own = COPIES_B ? rows_of_b + (count % SLOTS * TALL + side * STEP + high) * RANK
                                    : b + (u64)(place.row + high) * RANK;
          if (b != nullptr) value += adapted(own, u + (row * WEIGHTS + which) * RANK);
        }
        values[side] = NORM ? value * rstd[row] : value;
      }
      float value = values[0];
      if (GATED) value = values[0] / (1.0f + __expf(-values[0])) * values[1];
      const u64 to = (u64)row * a.stride + a.weights[place.weight].first + place.row + high;
      if (a.onto != nullptr) value += wide(a.onto[to]);
      a.y[to] = narrow(value);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  // Every thread has read the launch's number before the block's first meeting.
  if (RANK > 0 && thread == THREADS - 1 && atomicAdd(a.launch + 1, 1) == gridDim.x - 1)
    a.launch[0] = launch + 1, a.launch[1] = 0;
}
