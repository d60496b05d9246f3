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
