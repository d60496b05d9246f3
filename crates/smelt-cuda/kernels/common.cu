// What all kernels share: instructions that C has no words for, and numbers in half precision.
//
// No header is included, so that NVRTC alone compiles this.  Constants in capitals come from Rust as definitions.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__

// Largest number of half precision.
#define HALF_MAX 65504.0f

// Waits until the launch before has ended and what it wrote is seen.  Weights may be read before; whatever a launch writes
// may not.
__device__ __forceinline__ void wait_for_writes() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the launch behind this one begin once all blocks have come here.  Blocks that begin early are put where there is
// room, so a launch of long blocks, which would crowd on few multiprocessors, lets others begin as late as it can.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Both, for launches of short blocks.
__device__ __forceinline__ void wait_for_earlier() {
    let_next_begin();
    wait_for_writes();
}

__device__ __forceinline__ u16 half_bits(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Two as halves that are known to be inside the range.
__device__ __forceinline__ u32 half_pair(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// The nearest half, held inside the range; what is no number stays none.
__device__ __forceinline__ u16 held_half(float x) {
    x = x > HALF_MAX ? HALF_MAX : x;
    x = x < -HALF_MAX ? -HALF_MAX : x;
    return half_bits(x);
}

__device__ __forceinline__ float half_value(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ u32 pair(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// Two such: what is beyond the range is rounded to infinity first.
__device__ __forceinline__ u32 held_pair(float low, float high) {
    u32 both = half_pair(low, high);
    asm("{.reg .b32 most, least; mov.b32 most, 0x7BFF7BFF; mov.b32 least, 0xFBFFFBFF;"
        "min.NaN.f16x2 %0, %0, most; max.NaN.f16x2 %0, %0, least;}" : "+r"(both));
    return both;
}

__device__ __forceinline__ float low_value(u32 both) { return half_value((u16)both); }
__device__ __forceinline__ float high_value(u32 both) { return half_value((u16)(both >> 16)); }

// a - b and a * b + c on two halves at once.
__device__ __forceinline__ u32 sub2(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// (a & b) | c
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// 2 to the power of x, off by two units in the last place at most.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define LOG2_E 1.44269504088896341f

// gate / (1 + exp(-gate)) * up
__device__ __forceinline__ float swiglu_of(float gate, float up) {
    float below = __fadd_rn(1.0f, exp2_fast(__fmul_rn(gate, -LOG2_E)));
    return __fmul_rn(__fdiv_rn(gate, below), up);
}

// 1 / x, off by a unit in the last place at most.
__device__ __forceinline__ float inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// GELU by the error function, for results of half precision: erfc by Abramowitz and Stegun's 7.1.26, which is off by 1.5e-7, of
// x / sqrt(2) and halved.
__device__ __forceinline__ float gelu_erf(float x) {
    const float t = inverse_fast(__fmaf_rn(fabsf(x), 0.231641888f, 1.0f));
    float sum = __fmaf_rn(0.5307027145f, t, -0.7265760135f);
    sum = __fmaf_rn(sum, t, 0.7107068705f);
    sum = __fmaf_rn(sum, t, -0.142248368f);
    sum = __fmaf_rn(sum, t, 0.127414796f);
    const float beyond = __fmul_rn(__fmul_rn(sum, t), exp2_fast(__fmul_rn(__fmul_rn(x, x), -0.5f * LOG2_E)));
    return __fmaf_rn(-fabsf(x), beyond, fmaxf(x, 0.0f));
}

// GELU by the hyperbolic tangent, for the same: x / (1 + exp(-2 inner)).
__device__ __forceinline__ float gelu_tanh(float x) {
    const float cube = __fmul_rn(__fmul_rn(__fmul_rn(x, x), x), 0.044715f);
    const float inner = __fmul_rn(__fadd_rn(x, cube), 0.797884560802865356f);
    return __fmul_rn(x, inverse_fast(__fadd_rn(1.0f, exp2_fast(__fmul_rn(inner, -2.0f * LOG2_E)))));
}

// c += a * b of 16 rows, 8 columns and 16 products each, on halves with sums of f32.
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four tiles of 8 x 8 halves; lane 8i + r names row r of tile i.
__device__ __forceinline__ void load_tiles(u32 (&d)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_tiles_turned(u32 (&d)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
}

// A tile of 8 x 8 halves with rows and columns changed.
__device__ __forceinline__ u32 turned(u32 a) {
    u32 d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// Copies 16 bytes to shared memory, or zeros where they do not count; the source is read only if they do.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool counts) {
    u32 bytes = counts ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

__device__ __forceinline__ void store16(u32 to, uint4 four) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "r"(to), "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w) : "memory");
}

// Weights, which are read once: not kept in the first cache.
__device__ __forceinline__ uint4 load_once(const uint4* at) {
    uint4 d;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "l"(at));
    return d;
}

// Four bytes that nothing writes, where the program says so: not later, beside their use.
__device__ __forceinline__ u32 load_word(const void* at) {
    u32 d;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(d) : "l"(at));
    return d;
}

// Four bytes that a launch before has written, and such of shared memory, where the program says so.
__device__ __forceinline__ u32 load_fresh(const u32* at) {
    u32 d;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(d) : "l"(at));
    return d;
}
__device__ __forceinline__ u32 load_shared(const u32* at) {
    u32 d;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(shared_address(at)));
    return d;
}

// Asks for what lies there in the second cache.  Nothing is read, so it may still be written.
__device__ __forceinline__ void ask(const void* at) { asm volatile("prefetch.global.L2 [%0];" :: "l"(at)); }

__device__ __forceinline__ u32 word_of(const uint4& four, int index) {
    return index == 0 ? four.x : index == 1 ? four.y : index == 2 ? four.z : four.w;
}

// Sum over the lanes of a warp, the same in each.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, apart));
    return x;
}

// Activations lie in blocks of 8 tokens by 8 numbers, [k / 64][tokens / 8][8 blocks][8 tokens][8 numbers]: the index of a half.
__device__ __forceinline__ u32 activation_at(u32 k, u32 token, u32 eights) {
    return (((k / 64) * eights + token / 8) * 8 + k % 64 / 8) * 64 + token % 8 * 8 + k % 8;
}

#if __CUDA_ARCH__ >= 900
// Blocks of a cluster, and a place of the same name in the shared memory of another of them.
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ u32 cluster_size() {
    u32 size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
__device__ __forceinline__ u32 address_in(u32 rank, u32 own) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
    return at;
}
__device__ __forceinline__ float load_in_cluster(u32 at) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}
__device__ __forceinline__ float2 load_two_in_cluster(u32 at) {
    float2 x;
    asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}
// What blocks of the cluster wrote before they arrived is seen by all that wait behind it.
__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif
