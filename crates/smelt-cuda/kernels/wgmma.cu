// What Hopper alone has: products of four warps at once (`wgmma`), copies that a barrier in shared memory counts.
//
// Only sm_90a compiles this.  Where HAS_WGMMA is not there, kernels do the same by `mma`.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA

// Nothing of a product's registers may change between these.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

// What the tensor cores read next was written by ordinary stores or copies.
__device__ __forceinline__ void show_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Tiles of 8 x 8 halves, 128 bytes each: so many bytes from tile to tile along the sum, and across it.
__device__ __forceinline__ u64 tiles_at(u32 at, u32 along, u32 across) {
    return (at & 0x3FFFF) >> 4 | (u64)(along >> 4) << 16 | (u64)(across >> 4) << 32;
}

// Registers that are read and written ("+f"), or written alone ("=f").
#define REGISTERS_4(how, d, i) how(d[i][0]), how(d[i][1]), how(d[i][2]), how(d[i][3])
#define REGISTERS_8(how, d, i) REGISTERS_4(how, d, i), REGISTERS_4(how, d, i + 1)
#define REGISTERS_16(how, d, i) REGISTERS_8(how, d, i), REGISTERS_8(how, d, i + 2)
#define REGISTERS_32(how, d, i) REGISTERS_16(how, d, i), REGISTERS_16(how, d, i + 4)
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_24 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_48 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_68 NAMES_64 ",%64,%65,%66,%67"
#define NAMES_80 NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES_96 NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_104 NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103"

// c += a * b: 64 rows of a in registers as `mma` has them, 16 products, EIGHTS * 8 columns of b in shared memory.  What is
// made anew is c = a * b, and c is nothing before: a register that is said to be read may not change while products are made.
#define WIDE_MMA(EIGHTS, SHAPE, NAMES, A, B, ADDS, REGISTERS)                                       \
    WIDE_MMA_OF(wide_mma, EIGHTS, SHAPE, NAMES, A, B, ADDS, 1, REGISTERS("+f"))                     \
    WIDE_MMA_OF(wide_mma_anew, EIGHTS, SHAPE, NAMES, A, B, ADDS, 0, REGISTERS("=f"))
#define WIDE_MMA_OF(NAME, EIGHTS, SHAPE, NAMES, A, B, ADDS, adds, ...)                              \
    __device__ __forceinline__ void NAME(float (&c)[EIGHTS][4], const uint4& a, u64 b) {            \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned." SHAPE \
                     ".f32.f16.f16 {" NAMES "}, {" A "}, " B ", p, 1, 1, 0;}"                       \
                     : __VA_ARGS__ : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));    \
    }
#define OF_6(how) REGISTERS_16(how, c, 0), REGISTERS_8(how, c, 4)
#define OF_9(how) REGISTERS_32(how, c, 0), REGISTERS_4(how, c, 8)
#define OF_12(how) REGISTERS_32(how, c, 0), REGISTERS_16(how, c, 8)
#define OF_16(how) REGISTERS_32(how, c, 0), REGISTERS_32(how, c, 8)
#define OF_17(how) OF_16(how), REGISTERS_4(how, c, 16)
#define OF_20(how) OF_16(how), REGISTERS_16(how, c, 16)
#define OF_26(how) OF_16(how), REGISTERS_32(how, c, 16), REGISTERS_8(how, c, 24)
WIDE_MMA(6, "m64n48k16", NAMES_24, "%24,%25,%26,%27", "%28", "%29", OF_6)
WIDE_MMA(9, "m64n72k16", NAMES_32 ",%32,%33,%34,%35", "%36,%37,%38,%39", "%40", "%41", OF_9)
WIDE_MMA(12, "m64n96k16", NAMES_48, "%48,%49,%50,%51", "%52", "%53", OF_12)
WIDE_MMA(16, "m64n128k16", NAMES_64, "%64,%65,%66,%67", "%68", "%69", OF_16)
WIDE_MMA(17, "m64n136k16", NAMES_68, "%68,%69,%70,%71", "%72", "%73", OF_17)
WIDE_MMA(20, "m64n160k16", NAMES_80, "%80,%81,%82,%83", "%84", "%85", OF_20)
WIDE_MMA(26, "m64n208k16", NAMES_104, "%104,%105,%106,%107", "%108", "%109", OF_26)

// The same of 64 columns with a in shared memory.
#define SQUARE_MMA(NAME, ADDS, HOW)                                                                                          \
    __device__ __forceinline__ void NAME(float (&c)[8][4], u64 a, u64 b) {                                                   \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"                                                                 \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}"          \
                     : REGISTERS_32(HOW, c, 0) : "l"(a), "l"(b), "r"(ADDS));                                                 \
    }
SQUARE_MMA(square_mma, 1, "+f")
SQUARE_MMA(square_mma_anew, 0, "=f")

// c += a * b of 64 columns, or of 128, whose tiles in shared memory have rows and columns changed.
#define TURNED_MMA(EIGHTS, SHAPE, NAMES, A, B, ADDS, REGISTERS)                                       \
    TURNED_MMA_OF(turned_mma, EIGHTS, SHAPE, NAMES, A, B, ADDS, 1, REGISTERS("+f"))                   \
    TURNED_MMA_OF(turned_mma_anew, EIGHTS, SHAPE, NAMES, A, B, ADDS, 0, REGISTERS("=f"))
#define TURNED_MMA_OF(NAME, EIGHTS, SHAPE, NAMES, A, B, ADDS, adds, ...)                              \
    __device__ __forceinline__ void NAME(float (&c)[EIGHTS][4], const u32 (&a)[4], u64 b) {           \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned." SHAPE \
                     ".f32.f16.f16 {" NAMES "}, {" A "}, " B ", p, 1, 1, 1;}"                         \
                     : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));  \
    }
#define OF_8(how) REGISTERS_32(how, c, 0)
TURNED_MMA(8, "m64n64k16", NAMES_32, "%32,%33,%34,%35", "%36", "%37", OF_8)
TURNED_MMA(16, "m64n128k16", NAMES_64, "%64,%65,%66,%67", "%68", "%69", OF_16)

// Sums are read behind their products, wherever the compiler would have it.
template <int EIGHTS> __device__ __forceinline__ void hold(float (&sums)[EIGHTS][4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) asm volatile("" : "+f"(sums[i / 4][i % 4]));
}

// Barriers in shared memory: so many arrive, and so many bytes come, before who waits for the round's parity goes on.
__device__ __forceinline__ void make_barrier(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
}
__device__ __forceinline__ void arrive_expecting(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await(u32 at, u32 parity) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done:}"
                 :: "r"(at), "r"(parity) : "memory");
}
// Copies bytes, a multiple of 16, to shared memory.
__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Four numbers into the shared memory of another block of the cluster, and a barrier there that comes behind what a warp wrote.
__device__ __forceinline__ void store_in_cluster(u32 there, const float (&four)[4]) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};"
                 :: "r"(there), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]) : "memory");
}
__device__ __forceinline__ void arrive_in(u32 there) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}
__device__ __forceinline__ void await_in_cluster(u32 at, u32 parity) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done:}"
                 :: "r"(at), "r"(parity) : "memory");
}

// A warp group gives registers away, or takes what others gave.
template <int LEFT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(LEFT));
}
template <int ALL> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(ALL));
}

__device__ __forceinline__ uint4 load_shared16(u32 at) {
    uint4 d;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(at) : "memory");
    return d;
}
__device__ __forceinline__ u32 load_shared_word(u32 at) {
    u32 d;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(at) : "memory");
    return d;
}
// Two bytes.
__device__ __forceinline__ u32 load_shared_pair(u32 at) {
    u16 d;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(d) : "r"(at) : "memory");
    return d;
}
__device__ __forceinline__ float load_shared(u32 at) {
    float d;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(d) : "r"(at) : "memory");
    return d;
}
#endif
