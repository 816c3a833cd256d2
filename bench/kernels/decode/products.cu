// y = x W^T for up to 32 rows of x, with W in NF4 and never written out. `products.py` is the Python side.
//
// Compiled for one shape: COLUMNS of W, TILES of eight rows of x, WEIGHTS that are joined, and what is fused: NORM (x
// is normalized first), GATED (y = silu(x G^T) * (x U^T)), RANK of the adapters (0: none); for u, X_BLOCK_ROWS rows of
// x times A_BLOCK_ROWS rows of A at a time. WARPS per block, RESIDENT blocks per multiprocessor, STAGES and PANELS as
// below.
//
// The first blocks, which have the fewest rows of W, compute u = s x A^T of the adapters, A_BLOCK_ROWS rows of A each.
// An element of u is stored with the number of the launch that wrote it; a reader polls until that is the current
// launch, so no fence is needed and nothing is cleared. A block requests u while it computes its first sums, then keeps
// u and its rows of B in shared memory. Blocks start in order, so no block waits for one that cannot start.
//
// A block computes one part of y^T at a time, PANELS x 16 rows of W; its warps divide the columns, 256 at a time.
// Tensor cores multiply 16 rows of W by 8 rows of x (mma.m16n8k16). The assignment of W's columns to lanes is free as
// long as x has the same one, so a lane takes 16 consecutive columns and no number moves between lanes after it was
// read. The panels of a part share the loaded x.
//
// The next kernel may start before this one ends, and this one before the previous one ends: only weights are read
// before `await_inputs`.
//
// Each warp copies its codes into shared memory, STAGES chunks ahead; a part's scales are copied for all warps during
// the part before. Warps synchronize only to add their sums. A byte of codes is two numbers. A table in shared memory
// maps it to the pair, one load per byte, with a copy for each lane, so that there are no bank conflicts. The scale of
// 64 numbers multiplies their sum, in float32. If registers allow, a lane keeps its part of x in them for all rows of
// W.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr int LANES = 32, THREADS = LANES * WARPS, LEVELS = 256;
constexpr int BLOCKS = COLUMNS / 64;  // blocks of 64 numbers with one scale, per row of W
constexpr int CHUNK = 4;              // blocks that a warp processes at a time
constexpr int CHUNKS = (BLOCKS + CHUNK * WARPS - 1) / (CHUNK * WARPS);  // chunks per warp
constexpr bool IS_EVEN = BLOCKS % CHUNK == 0;
constexpr bool IS_FULL = BLOCKS % (CHUNK * WARPS) == 0;
constexpr int PANEL_ROWS = 16, X_ROWS = 8 * TILES;
constexpr int PART_ROWS = PANELS * PANEL_ROWS;                  // rows of W per part
constexpr int OUTPUT_ROWS = GATED ? PART_ROWS / 2 : PART_ROWS;  // rows of y^T per part
constexpr bool KEEPS_X = CHUNKS * TILES <= 2;                   // x stays in registers
constexpr bool PRELOADS_X = !KEEPS_X && !NORM && TILES == 1;    // a chunk of x is loaded one turn ahead
constexpr int TURNS = CHUNKS * PANELS;              // turns of a warp per part
constexpr int ROW_BYTES = CHUNK * 32 + 32;          // in shared memory; eight rows cover all banks
constexpr int STAGE_BYTES = PANEL_ROWS * ROW_BYTES; // codes of a chunk
constexpr int PART_WEIGHTS = GATED ? 2 : 1;
constexpr int COPIED_SCALES = BLOCKS % 16 == 0 ? 16 : IS_EVEN ? 4 : 1;  // scales per copy
constexpr int ROW_COPIES = BLOCKS / COPIED_SCALES;
constexpr int SCALE_ROW_BYTES = (BLOCKS + 3) / 4 * 4 + 16;   // in shared memory; also covers all banks
constexpr int OUTER_SCALES = OUTPUT_ROWS * BLOCKS / 256 + 2; // per part and weight
constexpr int PART_SCALE_BYTES = (PART_ROWS * SCALE_ROW_BYTES + PART_WEIGHTS * OUTER_SCALES * 4 + 15) / 16 * 16;
constexpr int SLOTS = (STAGES - 1 + TURNS - 1) / TURNS + 2;  // parts whose scales and rows of B are loaded or loading
constexpr int A_ROWS = WEIGHTS * RANK;                       // rows of all A
constexpr int SUM_COUNT = PANELS * WARPS * PANEL_ROWS * X_ROWS;
constexpr int PREFETCHED_U = 2;                       // elements of u that a thread requests ahead
constexpr bool COPIES_B = RANK > 0 && RANK % 8 == 0;  // rows of B are aligned to 16 bytes

struct Weight {
  const u32* codes;
  const u8* scales;
  const float* scale_levels;
  const float* scale_scales;
  const float* offset;
  const u16* b;  // the adapter's B (rows, RANK) in bf16, null without an adapter
  int rows;
  int first;  // its first column of y
};

struct Arguments {
  Weight weights[3];
  const float* levels;  // NF4's sixteen values
  const u16* x;         // (count, COLUMNS) bf16
  const u16* norm;      // (COLUMNS,) bf16
  const u16* residual;  // (count, stride) bf16, added to y, or null
  const u16* a;         // (A_ROWS, COLUMNS) bf16, all A
  u64* u;               // (count, A_ROWS): low half s x A^T in float32 without the norm's factor, high half the launch
  u32* launch;          // number of this launch, from 1 on; count of blocks that have read it, 0 between launches
  u16* y;               // (count, stride) bf16
  int count, stride, parts;
  float eps, scaling;
};

__device__ __forceinline__ float to_float(u16 number) { return __uint_as_float((u32)number << 16); }

__device__ __forceinline__ u16 to_bf16(float number) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {  // pairs of bf16
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

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all groups of copies except the last STAGES - 1 are complete.
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory"); }

// Load a number that other blocks may write at the same time: undivided, and not from this multiprocessor's cache.
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

__device__ __forceinline__ void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct WeightRow {
  int weight, row;
};

// Weight and row at which a part begins; for gate and up, of gate.
__device__ __forceinline__ WeightRow weight_row_of(const Arguments& a, int part) {
  int weight = 0;
#pragma unroll
  for (int next = 1; next < (GATED ? 1 : WEIGHTS); next++) weight += part * OUTPUT_ROWS >= a.weights[next].first;
  return {weight, part * OUTPUT_ROWS - a.weights[weight].first};
}

// Prefetch a block's first rows of A into L2.
__device__ __forceinline__ void prefetch_a(const Arguments& a) {
  constexpr int EACH = 64;  // 64 numbers are 128 bytes
  for (int row = blockIdx.x * A_BLOCK_ROWS; row < min(A_ROWS, (blockIdx.x + 1) * A_BLOCK_ROWS); row++)
    for (int at = threadIdx.x * EACH; at < COLUMNS; at += THREADS * EACH)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.a + (u64)row * COLUMNS + at));
}

// Start the copy of a part's rows of B.
__device__ __forceinline__ void fetch_b(u16* to, const Arguments& a, int part, int lane) {
  const WeightRow position = weight_row_of(a, part);
  for (int piece = lane; piece < PART_ROWS * RANK / 8; piece += LANES) {
    const int part_row = piece * 8 / RANK;
    const u16* b = a.weights[position.weight + part_row / OUTPUT_ROWS].b;
    if (b != nullptr) copy16(address(to + piece * 8), b + (u64)(position.row + part_row % OUTPUT_ROWS) * RANK +
        piece * 8 % RANK);
  }
}

// Start the copy of a part's scales and outer scales.
__device__ __forceinline__ void fetch_scales(u8* to, const Arguments& a, int part) {
  const WeightRow position = weight_row_of(a, part);
  for (int at = threadIdx.x; at < PART_ROWS * ROW_COPIES; at += THREADS) {
    const int part_row = at / ROW_COPIES, piece = at % ROW_COPIES * COPIED_SCALES;
    const u8* from = a.weights[position.weight + part_row / OUTPUT_ROWS].scales +
        (u64)(position.row + part_row % OUTPUT_ROWS) * BLOCKS + piece;
    u8* target = to + part_row * SCALE_ROW_BYTES + piece;
    if (COPIED_SCALES == 16)
      copy16(address(target), from);
    else if (COPIED_SCALES == 4)
      copy4(address(target), from);
    else
      *target = *from;
  }
  const int first = (u64)position.row * BLOCKS >> 8;
  for (int at = threadIdx.x; at < PART_WEIGHTS * OUTER_SCALES; at += THREADS) {
    const Weight& weight = a.weights[position.weight + at / OUTER_SCALES];
    const int last = ((u64)weight.rows * BLOCKS - 1) >> 8;
    copy4(address(to + PART_ROWS * SCALE_ROW_BYTES + at * 4), weight.scale_scales +
        min(first + at % OUTER_SCALES, last));
  }
}

// Sum of the squares of a pair.
__device__ __forceinline__ float square_of(u32 pair) {
  const float low = to_float((u16)pair), high = to_float((u16)(pair >> 16));
  return low * low + high * high;
}

// Load the 16 numbers of a row of x for a lane's columns of one block, as pairs, times the norm's weights. Rows past
// the end repeat the last row; their results are not written. Adds the squares of x to `squares`.
__device__ __forceinline__ void load_x(u32 (&x)[TILES][8], const Arguments& a, int group, int column, float* squares) {
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
      for (int pair = 0; pair < 8; pair++) x[tile][pair] = multiply_pairs(x[tile][pair], weights[pair]);
  }
}

// Compute the rows of u of this block, A_BLOCK_ROWS at a time. `scratch`: WARPS x A_BLOCK_ROWS x X_BLOCK_ROWS.
__device__ __forceinline__ void compute_u(const Arguments& a, u32 launch, float* scratch) {
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  for (int row = blockIdx.x * A_BLOCK_ROWS; row < A_ROWS; row += gridDim.x * A_BLOCK_ROWS)
    for (int first = 0; first < a.count; first += X_BLOCK_ROWS) {
      float dots[A_BLOCK_ROWS][X_BLOCK_ROWS] = {};
      for (int column = thread * 8; column < COLUMNS; column += THREADS * 8) {
        u32 a_values[A_BLOCK_ROWS][4], x_values[X_BLOCK_ROWS][4], norm_values[4] = {};
        if (NORM) *(uint4*)norm_values = *(const uint4*)(a.norm + column);
#pragma unroll
        for (int i = 0; i < A_BLOCK_ROWS; i++)
          *(uint4*)a_values[i] = *(const uint4*)(a.a + (u64)min(row + i, A_ROWS - 1) * COLUMNS + column);
#pragma unroll
        for (int i = 0; i < X_BLOCK_ROWS; i++)
          *(uint4*)x_values[i] = first + i < a.count ? *(const uint4*)(a.x + (u64)(first + i) * COLUMNS + column)
                                                     : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int pair = 0; pair < 4; pair++)
#pragma unroll
          for (int each = 0; each < A_BLOCK_ROWS; each++) {
            const u32 as = a_values[each][pair];
            const float low = to_float((u16)as) * (NORM ? to_float((u16)norm_values[pair]) : 1.0f);
            const float high = to_float((u16)(as >> 16)) * (NORM ? to_float((u16)(norm_values[pair] >> 16)) : 1.0f);
#pragma unroll
            for (int i = 0; i < X_BLOCK_ROWS; i++)
              dots[each][i] += to_float((u16)x_values[i][pair]) * low + to_float((u16)(x_values[i][pair] >> 16)) * high;
          }
      }
#pragma unroll
      for (int each = 0; each < A_BLOCK_ROWS; each++)
#pragma unroll
        for (int i = 0; i < X_BLOCK_ROWS; i++) {
#pragma unroll
          for (int distance = 16; distance > 0; distance /= 2)
            dots[each][i] += __shfl_xor_sync(0xffffffffu, dots[each][i], distance);
          if (lane == 0) scratch[(warp * A_BLOCK_ROWS + each) * X_BLOCK_ROWS + i] = dots[each][i];
        }
      __syncthreads();
      const int u_column = row + thread / X_BLOCK_ROWS, at = first + thread % X_BLOCK_ROWS;
      if (thread < A_BLOCK_ROWS * X_BLOCK_ROWS && u_column < A_ROWS && at < a.count) {
        float dot = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++) dot += scratch[each * A_BLOCK_ROWS * X_BLOCK_ROWS + thread];
        store(a.u + at * A_ROWS + u_column, (u64)launch << 32 | __float_as_uint(a.scaling * dot));
      }
      __syncthreads();
    }
}

// Dot product of b (RANK,) in bf16 and u.
__device__ __forceinline__ float adapted(const u16* b, const float* u) {
  float value = 0.0f;
#pragma unroll 8
  for (int inner = 0; inner < RANK; inner++) value += to_float(b[inner]) * u[inner];
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) nf4_products(const Arguments a) {
  extern __shared__ __align__(16) u8 memory[];
  u32* pairs = (u32*)memory;                            // 256 pairs, a copy per lane
  float* scale_levels = (float*)(pairs + 256 * LANES);  // 256 per weight
  float* rstd = scale_levels + 256 * WEIGHTS;           // X_ROWS
  float* sums = rstd + X_ROWS;                            // 2 x PANELS x WARPS x PANEL_ROWS x X_ROWS
  const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
  const int group = lane / 4, quarter = lane % 4;
  float* u = sums + 2 * SUM_COUNT;                           // count x A_ROWS
  u16* rows_of_b = (u16*)(u + X_ROWS * A_ROWS);           // SLOTS x PART_ROWS x RANK
  u8* scales = (u8*)(rows_of_b + SLOTS * PART_ROWS * RANK);  // SLOTS x PART_SCALE_BYTES
  u8* stages = scales + SLOTS * PART_SCALE_BYTES + warp * STAGES * STAGE_BYTES;

  // The first copies run while the tables are written. Each turn copies a chunk; the first chunk of a part is copied
  // with the part's rows of B and the next part's scales, which are complete after the next synchronization.
  const int first_part = gridDim.x - 1 - blockIdx.x;  // the last blocks may have one part more
  const u8* from[PART_WEIGHTS];  // address of the lane's first codes of a part
  const auto fetch = [&](u8* stage, int part, int count, int turn) {
    const int panel = turn % PANELS, chunk = turn / PANELS, next = part + gridDim.x;
    if (turn == 0 && part < a.parts) {
      const WeightRow position = weight_row_of(a, part);
#pragma unroll
      for (int side = 0; side < PART_WEIGHTS; side++)
        from[side] = (const u8*)a.weights[position.weight + side].codes +
            (u64)(position.row + lane / 8) * (COLUMNS / 2) +
                     warp * CHUNK * 32 + lane % 8 * 16;
      if (COPIES_B && warp == 0) fetch_b(rows_of_b + count % SLOTS * PART_ROWS * RANK, a, part, lane);
      if (next < a.parts) fetch_scales(scales + (count + 1) % SLOTS * PART_SCALE_BYTES, a, next);
    }
    const int block = (chunk * WARPS + warp) * CHUNK;
    if (part < a.parts && (IS_EVEN ? IS_FULL || block < BLOCKS : block + lane % 8 / 2 < BLOCKS))
#pragma unroll
      for (int four = 0; four < PANEL_ROWS / 4; four++) {
        const int row = GATED ? four % 2 * 4 : panel * PANEL_ROWS + four * 4;
        copy16(address(stage + (four * 4 + lane / 8) * ROW_BYTES + lane % 8 * 16),
               from[GATED ? four / 2 : 0] + row * (COLUMNS / 2) + chunk * WARPS * CHUNK * 32);
      }
    commit_copies();
  };
  if (first_part < a.parts) fetch_scales(scales, a, first_part);
  commit_copies();
#pragma unroll
  for (int turn = 0; turn < STAGES - 1; turn++)
    fetch(stages + turn * STAGE_BYTES, first_part + turn / TURNS * gridDim.x, turn / TURNS, turn % TURNS);
  int slot = 0;

  for (int byte = thread; byte < 256; byte += THREADS) {
    // The upper four bits hold the first code.
    const u32 pair = to_bf16(a.levels[byte >> 4]) | ((u32)to_bf16(a.levels[byte & 15]) << 16);
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

  if (RANK > 0) prefetch_a(a);
  start_next_kernel();
  await_inputs();
  const u32 launch = RANK > 0 ? *(volatile u32*)a.launch : 0;
  if (RANK > 0) compute_u(a, launch, sums);
  u32 kept_x[KEEPS_X ? CHUNKS * CHUNK : 1][TILES][8], preloaded_x[PRELOADS_X ? 2 : 1][PRELOADS_X ? CHUNK : 1][TILES][8];
  float* squares = sums + SUM_COUNT;  // WARPS x X_ROWS, in the memory of the second part's sums
  if (KEEPS_X) {
    float own[TILES] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS * CHUNK; i++) {
      const int block = (i / CHUNK * WARPS + warp) * CHUNK + i % CHUNK;
      float* counted = IS_FULL || block < BLOCKS ? own : nullptr;
      load_x(kept_x[KEEPS_X ? i : 0], a, group, min(block, BLOCKS - 1) * 64 + quarter * 16, counted);
    }
    if (NORM)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        own[tile] += __shfl_xor_sync(0xffffffffu, own[tile], 1);
        own[tile] += __shfl_xor_sync(0xffffffffu, own[tile], 2);
        if (quarter == 0) squares[warp * X_ROWS + tile * 8 + group] = own[tile];
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
      for (int distance = 16; distance > 0; distance /= 2) square += __shfl_xor_sync(0xffffffffu, square, distance);
      if (lane == 0) rstd[row] = rsqrtf(square / COLUMNS + a.eps);
    }
  }
  await_copies();
  __syncthreads();
  if (KEEPS_X && NORM && thread < X_ROWS) {  // read after the next synchronization
    float square = 0.0f;
#pragma unroll
    for (int each = 0; each < WARPS; each++) square += squares[each * X_ROWS + thread];
    rstd[thread] = rsqrtf(square / COLUMNS + a.eps);
  }

  const u32 lane_offset = lane * 4;
  const u8* table = (const u8*)pairs;
  for (int part = first_part, count = 0; part < a.parts; part += gridDim.x, count++) {
    const WeightRow position = weight_row_of(a, part);
    u32 levels[2];  // offsets of the scale levels of a lane's two rows
    float offset[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const int weight_index = GATED ? side : position.weight;
      levels[side] = weight_index * LEVELS * 4;
      offset[side] = offsets[0];
#pragma unroll
      for (int weight = 1; weight < WEIGHTS; weight++)
        offset[side] = weight_index == weight ? offsets[weight] : offset[side];
    }
    const u8* part_scales = scales + count % SLOTS * PART_SCALE_BYTES;
    const int skipped = position.row * BLOCKS & 255;  // scales before the part's first one that share its outer scale
    float total[PANELS][TILES][4] = {};
    u64 prefetched_u[PREFETCHED_U] = {};
    const auto load_chunk = [&](int chunk) {
#pragma unroll
      for (int i = 0; i < (PRELOADS_X ? CHUNK : 0); i++) {
        const int block = min((chunk * WARPS + warp) * CHUNK + i, BLOCKS - 1);
        load_x(preloaded_x[PRELOADS_X ? chunk % 2 : 0][PRELOADS_X ? i : 0], a, group, block * 64 + quarter * 16,
            nullptr);
      }
    };
    load_chunk(0);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int panel = turn % PANELS, chunk = turn / PANELS;
      const int block = (chunk * WARPS + warp) * CHUNK;
      if (panel == 0 && chunk + 1 < CHUNKS) load_chunk(chunk + 1);
      if (RANK > 0 && turn + 1 == TURNS && count == 0)
#pragma unroll
        for (int i = 0; i < PREFETCHED_U; i++)
          prefetched_u[i] = load(a.u + min(thread + i * THREADS, A_ROWS * a.count - 1));
      const int next_turn = turn + STAGES - 1;
      fetch(stages + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES, part + next_turn / TURNS * gridDim.x, count +
          next_turn / TURNS,
            next_turn % TURNS);
      await_copies();
      __syncwarp();
      const u8* stage = stages + slot * STAGE_BYTES;
      slot = slot + 1 == STAGES ? 0 : slot + 1;
      if (IS_FULL || block < BLOCKS) {
        u32 row_scales[2];
        float outer[2];
        const auto outer_of = [&](int side, int block) {
          const float* all = (const float*)(part_scales + PART_ROWS * SCALE_ROW_BYTES) +
              (GATED ? side * OUTER_SCALES : 0);
          return all[(skipped + (GATED ? group : panel * PANEL_ROWS + side * 8 + group) * BLOCKS + block) >> 8];
        };
#pragma unroll
        for (int side = 0; side < 2; side++) {
          row_scales[side] = *(const u32*)(part_scales + (panel * PANEL_ROWS + side * 8 + group) * SCALE_ROW_BYTES +
              block);
          outer[side] = outer_of(side, block);
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
          if (!IS_EVEN && block + i >= BLOCKS) break;
          uint2 codes[2];
#pragma unroll
          for (int side = 0; side < 2; side++)
            codes[side] = *(const uint2*)(stage + (group + 8 * side) * ROW_BYTES + i * 32 + quarter * 8);
          u32 x[TILES][8];
          if (!KEEPS_X && !PRELOADS_X) load_x(x, a, group, (block + i) * 64 + quarter * 16, nullptr);
          float sum[TILES][4] = {};
#pragma unroll
          for (int step = 0; step < 4; step++) {
            u32 numbers[2][2];
#pragma unroll
            for (int side = 0; side < 2; side++) {
              const u32 word = step < 2 ? codes[side].x : codes[side].y;
#pragma unroll
              for (int half = 0; half < 2; half++) {
                // One instruction: the byte times 128 (the size of a pair's copies) plus the lane's offset.
                const u32 at = __dp4a(word, 128u << (8 * (step % 2 * 2 + half)), lane_offset);
                numbers[side][half] = *(const u32*)(table + at);
              }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              const u32(&x_values)[8] = KEEPS_X   ? kept_x[KEEPS_X ? chunk * CHUNK + i : 0][tile]
                                    : PRELOADS_X ? preloaded_x[PRELOADS_X ? chunk % 2 : 0][PRELOADS_X ? i : 0][tile]
                                            : x[tile];
              multiply(sum[tile], numbers[0][0], numbers[1][0], numbers[0][1], numbers[1][1], x_values[2 * step],
                       x_values[2 * step + 1]);
            }
          }
#pragma unroll
          for (int side = 0; side < 2; side++) {
            const u32 at = __dp4a(row_scales[side], 4u << (8 * i), levels[side]);
            const float level = *(const float*)((const u8*)scale_levels + at);
            if (!IS_EVEN) outer[side] = outer_of(side, block + i);  // a chunk may span two outer scales
            const float scale = __fadd_rn(__fmul_rn(level, outer[side]), offset[side]);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
              total[panel][tile][2 * side] += scale * sum[tile][2 * side];
              total[panel][tile][2 * side + 1] += scale * sum[tile][2 * side + 1];
            }
          }
        }
      }
      __syncwarp();  // no lane may overwrite what another still reads
    }
    // The warps' sums are added in a fixed order, by one warp after another, while the other warps continue.
    float* all = sums + count % 2 * SUM_COUNT;
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
      float* own = all + (panel * WARPS + warp) * PANEL_ROWS * X_ROWS;
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const float(&four)[4] = total[panel][tile];
        *(float2*)&own[group * X_ROWS + tile * 8 + quarter * 2] = make_float2(four[0], four[1]);
        *(float2*)&own[(group + 8) * X_ROWS + tile * 8 + quarter * 2] = make_float2(four[2], four[3]);
      }
    }
    if (RANK > 0 && count == 0)
#pragma unroll 1
      for (int at = thread, i = 0; at < A_ROWS * a.count; at += THREADS, i++) {
        u64 entry = i == 0 ? prefetched_u[0] : i == 1 ? prefetched_u[1] : 0;
        while ((u32)(entry >> 32) != launch) entry = load(a.u + at);
        u[at] = __uint_as_float((u32)entry);
      }
    __syncthreads();
    for (int at = (warp + count) % WARPS * LANES + lane; at < OUTPUT_ROWS * a.count; at += THREADS) {
      const int part_row = at % OUTPUT_ROWS, row = at / OUTPUT_ROWS;  // neighbouring threads write neighbouring numbers
      float values[2] = {0.0f, 0.0f};
#pragma unroll
      for (int side = 0; side < (GATED ? 2 : 1); side++) {
        float value = 0.0f;
#pragma unroll
        for (int each = 0; each < WARPS; each++)
          value += all[((part_row / PANEL_ROWS * WARPS + each) * PANEL_ROWS + side * 8 +
              part_row % PANEL_ROWS) * X_ROWS + row];
        if (RANK > 0) {
          const int weight_index = position.weight + side;
          const u16* b = a.weights[weight_index].b;
          const u16* own = COPIES_B ? rows_of_b + (count % SLOTS * PART_ROWS + side * OUTPUT_ROWS + part_row) * RANK
                                    : b + (u64)(position.row + part_row) * RANK;
          if (b != nullptr) value += adapted(own, u + (row * WEIGHTS + weight_index) * RANK);
        }
        values[side] = NORM ? value * rstd[row] : value;
      }
      float value = values[0];
      if (GATED) value = values[0] / (1.0f + __expf(-values[0])) * values[1];
      const u64 to = (u64)row * a.stride + a.weights[position.weight].first + position.row + part_row;
      if (a.residual != nullptr) value += to_float(a.residual[to]);
      a.y[to] = to_bf16(value);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  // Every thread has read the launch's number before the block's first synchronization.
  if (RANK > 0 && thread == THREADS - 1 && atomicAdd(a.launch + 1, 1) == gridDim.x - 1)
    a.launch[0] = launch + 1, a.launch[1] = 0;
}
