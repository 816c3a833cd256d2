// u = s x A^T for up to 32 rows of x, A (HEIGHT, COLUMNS) in bf16: a block for each row of A. Python's side:
// `products.py`. With NORM, x is normalized first.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int WARPS = 8, LANES = 32, THREADS = LANES * WARPS;

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

extern "C" __global__ void __launch_bounds__(THREADS) adapter_rows(
    const u16* x, const u16* matrix, const u16* norm, float* u, int count, float scaling, float eps) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");  // for x
#endif
  __shared__ float dots[WARPS], squares[WARPS];
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const u16* own = matrix + (u64)blockIdx.x * COLUMNS;
  // As many warps to a row of x as there are for all rows at once: 8, 4, 2 or 1.
  int team = WARPS;
  while (team > 1 && WARPS / team < count) team /= 2;
  const int teams = WARPS / team, member = warp % team;
  for (int first = 0; first < count; first += teams) {
    const int row = first + warp / team;
    float dot = 0.0f, square = 0.0f;
    if (row < count) {
#pragma unroll 8
      for (int column = (member * LANES + lane) * 8; column < COLUMNS; column += team * LANES * 8) {
        const uint4 of_x = *(const uint4*)(x + (u64)row * COLUMNS + column);
        const uint4 of_a = *(const uint4*)(own + column);
        const u32 xs[4] = {of_x.x, of_x.y, of_x.z, of_x.w}, as[4] = {of_a.x, of_a.y, of_a.z, of_a.w};
        __align__(16) u32 weights[4] = {};
        if (NORM) *(uint4*)&weights[0] = *(const uint4*)(norm + column);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
          const float even = low(xs[pair]), odd = high(xs[pair]);
          square += even * even + odd * odd;
          dot += even * (NORM ? low(weights[pair]) : 1.0f) * low(as[pair]);
          dot += odd * (NORM ? high(weights[pair]) : 1.0f) * high(as[pair]);
        }
      }
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, far);
      square += __shfl_xor_sync(0xffffffffu, square, far);
    }
    if (lane == 0) dots[warp] = dot, squares[warp] = square;
    __syncthreads();
    if (threadIdx.x < teams && first + threadIdx.x < count) {
      dot = square = 0.0f;
      for (int each = 0; each < team; each++) {
        dot += dots[threadIdx.x * team + each];
        square += squares[threadIdx.x * team + each];
      }
      u[(first + threadIdx.x) * HEIGHT + blockIdx.x] =
          scaling * dot * (NORM ? rsqrtf(square / COLUMNS + eps) : 1.0f);
    }
    __syncthreads();
  }
}
