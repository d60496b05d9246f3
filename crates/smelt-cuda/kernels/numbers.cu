// What kernels of decoders and of graphs share about rows of numbers: how they are kept, read and added up.

// Threads of a row.
#define ROW_THREADS 256

// Numbers of a 16-bit form: 0 f16, 1 bf16, 2 f32.
__device__ __forceinline__ float stored_number(const void* all, u64 at, u32 kind) {
    if (kind == 2) return ((const float*)all)[at];
    u16 bits = ((const u16*)all)[at];
    return kind == 1 ? __uint_as_float((u32)bits << 16) : half_value(bits);
}

// The sum over all threads of a block, the same in each.
__device__ __forceinline__ float block_sum(float own) {
    __shared__ float warps[ROW_THREADS / 32];
    own = warp_sum(own);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_THREADS / 32; i++) all = __fadd_rn(all, warps[i]);
    return all;
}

// Eight numbers of a row from number `first` on; zero where there are none.
__device__ __forceinline__ void load_eight(float (&out)[8], const float* row, u32 first, u32 count) {
    if (count % 4 == 0 && first + 8 <= count) {
        const float4 low = *(const float4*)(row + first), high = *(const float4*)(row + first + 4);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) out[i] = first + i < count ? row[first + i] : 0.0f;
}

// A row of states that is normed by its root mean square; columns from `hidden` on become zero.
struct NormedRow {
    const float *row, *weight;
    u32 hidden, columns;
    float eps;
};

// The sum over ROW_THREADS threads that lie together, the same in each; `warps` has a number of each of their warps.
__device__ __forceinline__ float row_sum(float own, float* warps) {
    own = warp_sum(own);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x % ROW_THREADS / 32] = own;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_THREADS / 32; i++) all = __fadd_rn(all, warps[i]);
    return all;
}

// Norms a row by ROW_THREADS threads that lie together: thread t takes the runs of eight numbers t, t + 256, .., of which it
// keeps the first, whose weights it has in `by`.  `put` gets the first column of a run and its halves.
template <class Put>
__device__ __forceinline__ void norm_row(const NormedRow& n, float (&by)[8], float* warps, Put put) {
    const u32 own = threadIdx.x % ROW_THREADS * 8;
    float numbers[8];
    load_eight(numbers, n.row, own, n.hidden);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) squares = __fmaf_rn(numbers[i], numbers[i], squares);
    for (u32 first = own + ROW_THREADS * 8; first < n.hidden; first += ROW_THREADS * 8) {
        float more[8];
        load_eight(more, n.row, first, n.hidden);
#pragma unroll
        for (int i = 0; i < 8; i++) squares = __fmaf_rn(more[i], more[i], squares);
    }
    const float mean = __fdiv_rn(row_sum(squares, warps), (float)n.hidden);
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, n.eps)));
    for (u32 first = own; first < n.columns; first += ROW_THREADS * 8) {
        if (first != own) load_eight(by, n.weight, first, n.hidden), load_eight(numbers, n.row, first, n.hidden);
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float two[2];
#pragma unroll
            for (int j = 0; j < 2; j++) two[j] = __fmul_rn(__fmul_rn(numbers[2 * i + j], inverse), by[2 * i + j]);
            words[i] = held_pair(two[0], two[1]);
        }
        put(first, make_uint4(words[0], words[1], words[2], words[3]));
    }
}
