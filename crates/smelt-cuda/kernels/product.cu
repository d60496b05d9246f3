// Products of packed weights and activations on tensor cores.
//
// Weights are the row operand, tokens the columns, so a token's result does not depend on others.  The sum of a group of
// columns is a chain of products from zero; scaled sums of groups join in the order of groups, in f32:
//     y = fma(p_last, s_last, ... fma(p_1, s_1, fma(p_0, s_0, 0)))
// Every kernel keeps that order, so all give the same bits for any number of tokens, tile and split.

#define SCALE_NONE 0
#define SCALE_F16 1
// An f16 for each span of columns times a signed byte for each group.
#define SCALE_FACTORS 2

// What a result becomes.
#define STORE 0
#define ADD 1
#define SWIGLU 2
// Activations: as they are, or turned by GELU.
#define HALVES 3
#define HALVES_ERF 4
#define HALVES_TANH 5

// Columns that one warp of a kernel for few tokens takes at a time.
#define UNIT 128

// A form of weights: bits of a level, columns of a group, how scales lie, whether there are zero points, minima.
template <int BITS_, int GROUP_, int SCALE_, bool ZEROS_, bool MINS_> struct Form {
    static constexpr int BITS = BITS_, GROUP = GROUP_, SCALE = SCALE_;
    static constexpr bool ZEROS = ZEROS_, MINS = MINS_;
    // Weights of graphs are halves whose groups are long: more becomes of their products than of others'.
    static constexpr bool OF_GRAPHS = GROUP_ > UNIT;
    // Columns of the 16 bytes that a lane reads at once.
    static constexpr int COLUMNS = 256 / BITS_;
};

struct Product {
    const uint4* weights;     // [rows / 64][k / COLUMNS][4 tiles][32 lanes]
    const void* scales;       // [rows / 64][k / GROUP][8][4 tiles][row g, row g + 8]
    const u8* zeros;          // the same, bytes
    const void* mins;         // as scales
    const void* spans;        // f16 of factors, [rows / 64][k / 256][8][4][2]
    const void* min_spans;
    const float* row_scales;  // [rows]
    const float* bias;        // [rows]
    const u32* x;             // halves in blocks, [k / 64][tokens / 8][8][8][8]
    const float* sums;        // [k / GROUP][tokens / 8 * 8], sums of activations, where there are minima
    void* out;                // f32 [tokens][stride], or halves in blocks
    u32 tokens, rows, padded_rows, columns, stride, mode;
    u32 rounds;               // of kernels for few tokens
    const float* norm;        // [hidden], of kernels that norm: x is a token's state, f32 [hidden]
    u32 hidden;
    float eps;
    const float* before;      // what is added to, as `out` lies
    const float* gains;       // [rows], what is added is multiplied with
};

#define PRODUCT_PARAMETERS                                                                                   \
    const uint4 *__restrict__ weights, const void *__restrict__ scales, const u8 *__restrict__ zeros,        \
        const void *__restrict__ mins, const void *__restrict__ spans, const void *__restrict__ min_spans,   \
        const float *__restrict__ row_scales, const float *__restrict__ bias, const u32 *x,                  \
        const float *sums, void *out, u32 tokens, u32 rows, u32 padded_rows, u32 columns, u32 stride, u32 mode, \
        u32 rounds, const float *norm, u32 hidden, float eps, const float *before, const float *__restrict__ gains
#define PRODUCT_ARGUMENTS                                                                                    \
    { weights, scales, zeros, mins, spans, min_spans, row_scales, bias, x, sums, out, tokens, rows,          \
      padded_rows, columns, stride, mode, rounds, norm, hidden, eps, before, gains }

// Columns that share an f16 where scales are factors.
#define SPAN_COLUMNS 256

// Where the number of a row of a 64-row piece in a group lies.
__device__ __forceinline__ u32 group_at(u32 row, u32 group, u32 groups) {
    u32 inside = row % 64;
    return ((row / 64 * groups + group) * 8 + inside % 8) * 8 + inside / 16 * 2 + inside % 16 / 8;
}

// Where the first lane's 16 bytes of a tile of 16 rows lie.
template <class F> __device__ __forceinline__ u64 weights_at(const Product& p, u32 tile, u32 read) {
    return (((u64)(tile / 4) * (p.columns / F::COLUMNS) + read) * 4 + tile % 4) * 32;
}

// The scale, or the minimum, of a row in a group.
template <class F> __device__ __forceinline__ float group_number(
    const void* numbers, const void* spans, u32 row, u32 group, u32 columns) {
    u32 at = group_at(row, group, columns / F::GROUP);
    if (F::SCALE == SCALE_F16) return half_value(((const u16*)numbers)[at]);
    u32 span = group_at(row, group * F::GROUP / SPAN_COLUMNS, columns / SPAN_COLUMNS);
    return half_value(((const u16*)spans)[span]) * (float)((const signed char*)numbers)[at];
}

// Asks for what a group of a row is scaled with.
template <class F> __device__ __forceinline__ void ask_group(const Product& p, u32 row, u32 group) {
    const u32 at = group_at(row, group, p.columns / F::GROUP);
    if (F::SCALE == SCALE_F16) ask((const u16*)p.scales + at);
    if (F::ZEROS) ask(p.zeros + at);
}

// The numbers of rows g and g + 8 of TILES tiles of 16 rows, from tile `tile` of a 64-row piece on.
template <class F, int TILES> __device__ __forceinline__ void group_numbers(
    float (&out)[TILES][2], const void* numbers, const void* spans, u32 row, u32 group, u32 columns, u32 g) {
    u32 at = group_at(row, group, columns / F::GROUP) + g * 8;
    if (F::SCALE == SCALE_F16) {
        const u32* pairs = (const u32*)((const u16*)numbers + at);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            u32 both = __ldg(pairs + i);
            out[i][0] = low_value(both), out[i][1] = high_value(both);
        }
    } else if (F::SCALE == SCALE_FACTORS) {
        u32 span = group_at(row, group * F::GROUP / SPAN_COLUMNS, columns / SPAN_COLUMNS) + g * 8;
        const signed char* factors = (const signed char*)numbers + at;
        const u16* halves = (const u16*)spans + span;
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) out[i / 2][i % 2] = half_value(halves[i]) * (float)factors[i];
    }
}

// Halves of rows g and g + 8 of TILES tiles in a group, as they lie.
template <int TILES> __device__ __forceinline__ void load_pairs(
    u32 (&out)[TILES], const void* numbers, u32 row, u32 group, u32 groups, u32 g) {
    const u16* from = (const u16*)numbers + group_at(row, group, groups) + g * 8;
#pragma unroll
    for (int i = 0; i < TILES; i++) out[i] = load_word(from + i * 2);
}

// The rows operand of one k-step (16 columns) out of what a lane read; `step` counts inside of it.
struct Fragment { u32 a0, a1, a2, a3; };

// `zeros` are the zero points of rows g and g + 8.
template <class F> __device__ __forceinline__ Fragment unpack(const uint4& read, int step, const u32 (&zeros)[2]) {
    Fragment f;
    if (F::BITS == 16) {
        f.a0 = read.x, f.a1 = read.y, f.a2 = read.z, f.a3 = read.w;
    } else if (F::BITS == 8) {
        // A byte below 0x64 is the half 1024 + byte; 1152 below that is the level.
        u32 first = word_of(read, 2 * step), second = word_of(read, 2 * step + 1);
        f.a0 = sub2(__byte_perm(first, 0x64646464, 0x4140), 0x64806480);
        f.a1 = sub2(__byte_perm(first, 0x64646464, 0x4342), 0x64806480);
        f.a2 = sub2(__byte_perm(second, 0x64646464, 0x4140), 0x64806480);
        f.a3 = sub2(__byte_perm(second, 0x64646464, 0x4342), 0x64806480);
    } else {
        // A nibble in the lowest bits of 0x6400 is the half 1024 + nibble, four bits higher 1024 + 16 nibble.
        u32 word = word_of(read, step), above = word >> 8;
        // Halves 1024 + zero of row g, -(64 + zero) of row g + 8.
        u32 low = 0x64086408, high = 0xD480D480;
        if (F::ZEROS) low = 0x64006400 + zeros[0] * 0x00010001, high = 0xD400D400 + zeros[1] * 0x00100010;
        if (F::MINS) low = 0x64006400, high = 0xD400D400;
        const u32 sixteenth = 0x2C002C00;
        f.a0 = sub2(and_or(word, 0x000F000F, 0x64006400), low);
        f.a1 = fma2(and_or(word, 0x00F000F0, 0x64006400), sixteenth, high);
        f.a2 = sub2(and_or(above, 0x000F000F, 0x64006400), low);
        f.a3 = fma2(and_or(above, 0x00F000F0, 0x64006400), sixteenth, high);
    }
    return f;
}

template <class F> __device__ __forceinline__ void zero_points(u32 (&zeros)[2], const Product& p, u32 row, u32 group, u32 g) {
    if (F::ZEROS) {
        u32 at = group_at(row, group, p.columns / F::GROUP) + g * 8;
        u32 both = __ldg((const u16*)(p.zeros + at));
        zeros[0] = both & 255, zeros[1] = both >> 8;
    }
}

// The last steps of a result.
__device__ __forceinline__ float finished(const Product& p, float y, u32 row) {
    if (p.row_scales) y = __fmul_rn(y, __ldg(p.row_scales + row));
    if (p.bias) y = __fadd_rn(y, __ldg(p.bias + row));
    return y;
}

__device__ __forceinline__ bool gives_halves(u32 mode) { return mode >= HALVES; }

// A number on its way into activations.
__device__ __forceinline__ float turned_by(u32 mode, float y) {
    return mode == HALVES_ERF ? gelu_erf(y) : mode == HALVES_TANH ? gelu_tanh(y) : y;
}
// Two of them of a row; rows that only fill a strip are zero.
template <u32 MODE> __device__ __forceinline__ u32 turned_pair(float low, float high, bool counts) {
    return counts ? held_pair(turned_by(MODE, low), turned_by(MODE, high)) : 0;
}

// Where a result goes that is stored or added.
__device__ __forceinline__ float* place_of(const Product& p, u32 row, u32 token) {
    return row < p.rows && token < p.tokens ? (float*)p.out + (u64)token * p.stride + row : nullptr;
}

// What is added to, and the sum.
template <class F> __device__ __forceinline__ const float* before_of(const Product& p) {
    return F::OF_GRAPHS ? p.before : (const float*)p.out;
}
template <class F> __device__ __forceinline__ float sum_of(const Product& p, float before, float own, u32 row) {
    return __fadd_rn(before, F::OF_GRAPHS && p.gains ? __fmul_rn(own, __ldg(p.gains + row)) : own);
}

// The last steps of what a thread has of a tile: rows `row` and `row` + 8.
template <int EIGHTS> __device__ __forceinline__ void finish_tile(const Product& p, float (&y)[EIGHTS][4], u32 row) {
    // Rows that only fill a tile have results that go nowhere, but for SwiGLU, whose weights have no such rows.
    const u32 last = (p.mode == SWIGLU ? p.padded_rows : p.rows) - 1, low = min(row, last), high = min(row + 8, last);
    if (p.row_scales) {
        const float scales[2] = {__ldg(p.row_scales + low), __ldg(p.row_scales + high)};
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) y[i / 4][i % 4] = __fmul_rn(y[i / 4][i % 4], scales[i % 4 / 2]);
    }
    if (p.bias) {
        const float biases[2] = {__ldg(p.bias + low), __ldg(p.bias + high)};
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) y[i / 4][i % 4] = __fadd_rn(y[i / 4][i % 4], biases[i % 4 / 2]);
    }
}

// Stores or adds that, of tokens `token` and `token` + 1 of each block of eight.
template <class F, int EIGHTS>
__device__ __forceinline__ void put_tile(const Product& p, const float (&y)[EIGHTS][4], u32 row, u32 token) {
    const bool adds = p.mode == ADD;
    const u64 first = (u64)token * p.stride + row;
    auto counts = [&](int eight, int i) { return token + eight * 8 + i % 2 < p.tokens && row + i / 2 * 8 < p.rows; };
    auto place = [&](int eight, int i) { return first + (u64)(eight * 8 + i % 2) * p.stride + i / 2 * 8; };
    // All that is there is on its way before the first of it is added to.
    float before[EIGHTS][4];
    if (adds) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) before[i / 4][i % 4] = counts(i / 4, i % 4) ? before_of<F>(p)[place(i / 4, i % 4)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) {
        const float own = y[i / 4][i % 4];
        if (counts(i / 4, i % 4))
            ((float*)p.out)[place(i / 4, i % 4)] = adds ? sum_of<F>(p, before[i / 4][i % 4], own, row + i % 4 / 2 * 8) : own;
    }
}

// Puts COUNT blocks of tokens of it into activations of `eights` such blocks: the tile's first row is `tile_row`, its first block
// `eight`, and blocks from `end` on are not its own.
template <int COUNT, u32 MODE, int EIGHTS>
__device__ __forceinline__ void put_halves_by(const Product& p, const float (&y)[EIGHTS][4], u32 tile_row, u32 eight, u32 end, u32 eights) {
    const u32 lane = threadIdx.x % 32, row = tile_row + lane / 4;
    const bool low = row < p.rows, high = row + 8 < p.rows;
    u32* to = (u32*)p.out + activation_at(tile_row, eight * 8, eights) / 2 + lane;
#pragma unroll
    for (int i = 0; i < COUNT; i++, to += 256) {
        const float (&own)[4] = y[i];
        const u32 first = turned(turned_pair<MODE>(own[0], own[1], low));
        const u32 second = turned(turned_pair<MODE>(own[2], own[3], high));
        if (eight + i < end) to[0] = first, to[32] = second;
    }
}

// The same: what numbers are turned by is asked once.
template <int COUNT, int EIGHTS>
__device__ __forceinline__ void put_halves(const Product& p, const float (&y)[EIGHTS][4], u32 tile_row, u32 eight, u32 end, u32 eights) {
    if (p.mode == HALVES_ERF) put_halves_by<COUNT, HALVES_ERF>(p, y, tile_row, eight, end, eights);
    else if (p.mode == HALVES_TANH) put_halves_by<COUNT, HALVES_TANH>(p, y, tile_row, eight, end, eights);
    else put_halves_by<COUNT, HALVES>(p, y, tile_row, eight, end, eights);
}

// Puts gates and what they are multiplied with, rows 0 to 7 and 8 to 15 of a tile, into activations of half as many columns.
template <int COUNT, int EIGHTS>
__device__ __forceinline__ void put_gated(const Product& p, const float (&y)[EIGHTS][4], u32 tile_row, u32 eight, u32 end, u32 eights) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float (&own)[4] = y[i];
        // Each alone: for both at once the kernel with the most sums has no registers, as NVRTC 13 gives them for Thor.
        const u32 both = turned(pair(held_half(swiglu_of(own[0], own[2])), held_half(swiglu_of(own[1], own[3]))));
        if (eight + i < end) ((u32*)p.out)[activation_at(tile_row / 2, (eight + i) * 8, eights) / 2 + lane] = both;
    }
}

// Norms the state of one token into `to`, activations of one block of tokens, by the steps of `norm_rows`.  Each ROW_THREADS
// threads do it, and the first of them write.
template <int THREADS> __device__ __forceinline__ void norm_state(u16* to, const Product& p, float (&by)[8]) {
    __shared__ float warps[THREADS / ROW_THREADS][ROW_THREADS / 32];
    const NormedRow row = {(const float*)p.x, p.norm, p.hidden, p.columns, p.eps};
    norm_row(row, by, warps[threadIdx.x / ROW_THREADS], [&](u32 k, uint4 eight) {
        if (threadIdx.x < ROW_THREADS) *(uint4*)(to + activation_at(k, 0, 1)) = eight;
    });
    __syncthreads();
}

// Steps of 16 columns whose activations are on their way at once.
#define STEPS_AHEAD 4

// Activations of steps from `step` on of up to EIGHTS blocks of tokens.  The program says when: compilers that are left to it wait
// for those of each step.
template <int EIGHTS, bool IS_SHARED>
__device__ __forceinline__ void load_steps(u32 (&b)[STEPS_AHEAD][EIGHTS][2], const u32* x, u32 step, u32 eights) {
#pragma unroll
    for (int i = 0; i < STEPS_AHEAD * EIGHTS; i++) {
        const u32 its = step + i / EIGHTS, eight = i % EIGHTS;
        const u32* from = x + ((its / 4 * eights + eight) * 8 + its % 4 * 2) * 32 + threadIdx.x % 32;
        u32 (&to)[2] = b[i / EIGHTS][eight];
        to[0] = 0, to[1] = 0;
        if (EIGHTS > 1 && eight >= eights) continue;
        if (IS_SHARED) to[0] = load_shared(from), to[1] = load_shared(from + 32);
        else to[0] = load_fresh(from), to[1] = load_fresh(from + 32);
    }
}

// For few tokens: a block takes TILES * 16 rows; warp w takes units w, w + WARPS, .. of columns.  Sums of groups meet in
// shared memory every `rounds` units of a warp, where each result has one thread that adds them in order.  Where it NORMS, x
// is the state of one token.
template <class F, int EIGHTS, int TILES, int WARPS, bool NORMS> __device__ __forceinline__ void product_few(const Product& p) {
    constexpr int READS = UNIT / F::COLUMNS, GROUPS = UNIT / F::GROUP;
    constexpr int RESULTS = TILES * EIGHTS * 128, OWN = (RESULTS + WARPS * 32 - 1) / (WARPS * 32);
    extern __shared__ float shared[];
    const u32 slots = p.rounds * WARPS * GROUPS;
    float* parts = shared;                                    // [slots][RESULTS]
    float* scales = parts + slots * RESULTS;                  // [slots][TILES * 16]
    float* mins = scales + slots * TILES * 16;                // the same
    const u32* x = p.x;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    const u32 first_row = blockIdx.x * TILES * 16;
    const u32 units = p.columns / UNIT, eights = (p.tokens + 7) / 8;
    const uint4* own = p.weights + weights_at<F>(p, first_row / 16, 0) + lane;

    // Units whose weights are on their way; more of them where few warps have many, and they are few registers.
    constexpr int AHEAD = TILES * READS <= 2 && WARPS <= 8 ? 3 : 2;
    uint4 held[AHEAD][TILES][READS];
    auto load = [&](uint4 (&to)[TILES][READS], u32 unit) {
#pragma unroll
        for (int i = 0; i < READS; i++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                to[tile][i] = load_once(own + (unit * READS + i) * 128 + tile * 32);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (warp + i * WARPS < units) load(held[i], warp + i * WARPS);
    let_next_begin();
    // What the first round is scaled with is asked for while the launch before ends; other forms leave no registers for it.
    if (F::BITS == 4 && F::SCALE == SCALE_F16 && !F::MINS)
        for (u32 at = threadIdx.x; at < min(slots, units * GROUPS) * TILES * 16; at += WARPS * 32)
            ask_group<F>(p, first_row + at % (TILES * 16), at / (TILES * 16));
    if (threadIdx.x < TILES * 16 && first_row + threadIdx.x < p.rows) {
        if (p.row_scales) ask(p.row_scales + first_row + threadIdx.x);
        if (p.bias) ask(p.bias + first_row + threadIdx.x);
    }

    float y[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) y[i] = 0.0f;
    if constexpr (NORMS) {
        static_assert(EIGHTS == 1 && !F::MINS && WARPS * 32 % ROW_THREADS == 0, "one token, normed by whole rows of threads");
        u16* normed = (u16*)mins;
        float by[8];
        load_eight(by, p.norm, threadIdx.x % ROW_THREADS * 8, p.hidden);
        wait_for_writes();
        norm_state<WARPS * 32>(normed, p, by);
        x = (const u32*)normed;
    } else {
        wait_for_writes();
    }

    // Which result a thread has: its row of the block and its token.
    auto row_of = [&](u32 result) { return result / 128 / EIGHTS * 16 + result % 32 / 4 + result / 32 % 4 / 2 * 8; };
    auto token_of = [&](u32 result) { return result / 128 % EIGHTS * 8 + result % 4 * 2 + result / 32 % 2; };
    auto own_place = [&](u32 result) -> float* {
        return result < RESULTS ? place_of(p, first_row + row_of(result), token_of(result)) : nullptr;
    };
    // What is there is on its way long before it is added to.
    float before[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const float* at = p.mode == ADD ? own_place(threadIdx.x + i * WARPS * 32) : nullptr;
        before[i] = at ? before_of<F>(p)[at - (const float*)p.out] : 0.0f;
    }

    for (u32 base = 0; base < units; base += p.rounds * WARPS) {
        const u32 end = min(base + p.rounds * WARPS, units);
        for (u32 unit = base + warp; unit < end; unit += WARPS) {
            constexpr int GROUP_STEPS = F::GROUP / 16, READ_STEPS = F::COLUMNS / 16;
            float sums[TILES][EIGHTS][4];
            u32 zeros[TILES][2], b[STEPS_AHEAD][EIGHTS][2];
#pragma unroll
            for (int step = 0; step < UNIT / 16; step++) {
                if (step % STEPS_AHEAD == 0) load_steps<EIGHTS, NORMS>(b, x, unit * (UNIT / 16) + step, eights);
                const u32 slot = (unit - base) * GROUPS + step / GROUP_STEPS, group = unit * GROUPS + step / GROUP_STEPS;
                if (step % GROUP_STEPS == 0) {
                    if (lane < TILES * 16) {
                        const u32 at = slot * TILES * 16 + lane, row = first_row + lane;
                        if (F::SCALE != SCALE_NONE) scales[at] = group_number<F>(p.scales, p.spans, row, group, p.columns);
                        if (F::MINS) mins[at] = group_number<F>(p.mins, p.min_spans, row, group, p.columns);
                    }
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) zero_points<F>(zeros[tile], p, first_row + tile * 16, group, g);
#pragma unroll
                    for (int i = 0; i < TILES * EIGHTS * 4; i++) sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4] = 0.0f;
                }
                Fragment a[TILES];
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
                    a[tile] = unpack<F>(held[0][tile][step / READ_STEPS], step % READ_STEPS, zeros[tile]);
#pragma unroll
                for (int eight = 0; eight < EIGHTS; eight++) {
                    const u32 b0 = b[step % STEPS_AHEAD][eight][0], b1 = b[step % STEPS_AHEAD][eight][1];
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
                        mma(sums[tile][eight], a[tile].a0, a[tile].a1, a[tile].a2, a[tile].a3, b0, b1);
                }
                if (step % GROUP_STEPS == GROUP_STEPS - 1) {
                    float* to = parts + slot * RESULTS + lane;
#pragma unroll
                    for (int i = 0; i < TILES * EIGHTS * 4; i++) to[i * 32] = sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4];
                }
            }
#pragma unroll
            for (int later = 1; later < AHEAD; later++)
#pragma unroll
                for (int i = 0; i < TILES * READS; i++) held[later - 1][i / READS][i % READS] = held[later][i / READS][i % READS];
            if (unit + AHEAD * WARPS < units) load(held[AHEAD - 1], unit + AHEAD * WARPS);
        }
        __syncthreads();
        const u32 present = (end - base) * GROUPS;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 result = threadIdx.x + i * WARPS * 32;
            if (result < RESULTS) {
                const u32 row = row_of(result), token = token_of(result);
#pragma unroll 8
                for (u32 slot = 0; slot < present; slot++) {
                    float part = parts[slot * RESULTS + result];
                    if (F::SCALE == SCALE_NONE) y[i] = __fadd_rn(y[i], part);
                    else y[i] = __fmaf_rn(part, scales[slot * TILES * 16 + row], y[i]);
                    if (F::MINS && token < eights * 8) {
                        float sum = p.sums[(u64)(base * GROUPS + slot) * (eights * 8) + token];
                        y[i] = __fmaf_rn(-sum, mins[slot * TILES * 16 + row], y[i]);
                    }
                }
            }
        }
        __syncthreads();
    }

    if (p.mode <= ADD) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 result = threadIdx.x + i * WARPS * 32, row = first_row + row_of(result);
            float* at = own_place(result);
            if (!at) continue;
            const float own = finished(p, y[i], row);
            *at = p.mode == ADD ? sum_of<F>(p, before[i], own, row) : own;
        }
        return;
    }
    if (F::OF_GRAPHS && gives_halves(p.mode)) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 result = threadIdx.x + i * WARPS * 32, row = first_row + row_of(result), token = token_of(result);
            if (result >= RESULTS || token >= eights * 8) continue;
            const float own = finished(p, y[i], min(row, p.rows - 1));
            ((u16*)p.out)[activation_at(row, token, eights)] = row < p.rows ? held_half(turned_by(p.mode, own)) : 0;
        }
        return;
    }
    // Rows 0 to 7 of a tile are gates, 8 to 15 what they are multiplied with.
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const u32 result = threadIdx.x + i * WARPS * 32;
        if (result < RESULTS) {
            parts[result] = finished(p, y[i], first_row + row_of(result));
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < TILES * EIGHTS * 64; at += WARPS * 32) {
        // Eight numbers of a token lie together.
        const u32 tile = at / 64 / EIGHTS, eight = at / 64 % EIGHTS, inside = at % 8, token = at % 64 / 8;
        if (eight < eights) {
            const u32 result = ((tile * EIGHTS + eight) * 4 + token % 2) * 32 + inside * 4 + token / 2;
            const u32 k = (first_row / 16 + tile) * 8 + inside;
            ((u16*)p.out)[activation_at(k, eight * 8 + token, eights)] =
                held_half(swiglu_of(parts[result], parts[result + 64]));
        }
    }
}

// For many tokens: a block takes ROW_WARPS * TILES * 16 rows by COLUMN_WARPS * EIGHTS * 8 tokens, and columns in stages of 64
// that are copied ahead.
template <class F, int TILES, int EIGHTS, int ROW_WARPS, int COLUMN_WARPS, int STAGES>
__device__ __forceinline__ void product_many(const Product& p) {
    constexpr int THREADS = ROW_WARPS * COLUMN_WARPS * 32;
    constexpr int ROW_TILES = ROW_WARPS * TILES, TOKEN_EIGHTS = COLUMN_WARPS * EIGHTS;
    constexpr int READS = 64 / F::COLUMNS, STEPS = F::COLUMNS / 16;
    constexpr int ROW_BYTES = READS * ROW_TILES * 512, STAGE_BYTES = ROW_BYTES + TOKEN_EIGHTS * 1024;
    constexpr int GROUP_STEPS = F::GROUP / 16 < 4 ? F::GROUP / 16 : 4;
    extern __shared__ __align__(128) u8 stages[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 first_tile = blockIdx.x * ROW_TILES, first_eight = blockIdx.y * TOKEN_EIGHTS;
    const u32 tiles = p.padded_rows / 16, eights = (p.tokens + 7) / 8, steps64 = p.columns / 64;
    const u32 own_tile = warp / COLUMN_WARPS * TILES, own_eight = warp % COLUMN_WARPS * EIGHTS;
    const u32 base = shared_address(stages);

    // Every 128 threads copy a piece of four tiles, or two blocks of tokens, at once; stages are copied in their order.
    static_assert(THREADS == 128 && ROW_TILES % 4 == 0 && TOKEN_EIGHTS % 2 == 0, "pieces of 128 times 16 bytes");
    constexpr int PIECES = ROW_TILES / 4;
    const u32 piece_stride = p.columns / F::COLUMNS * 128, pieces = min(tiles - first_tile, (u32)ROW_TILES) / 4;
    const uint4* next_rows = p.weights + weights_at<F>(p, first_tile, 0) + threadIdx.x;
    const uint4* next_tokens = (const uint4*)p.x + first_eight * 64 + threadIdx.x;
    const u32 present = eights - first_eight;
    u32 next_at = base + threadIdx.x * 16;
    auto copy_stage = [&]() {
#pragma unroll
        for (int i = 0; i < READS * PIECES; i++) {
            const bool counts = i % PIECES < pieces;
            copy16(next_at + i * 2048, next_rows + (counts ? i % PIECES * piece_stride : 0) + i / PIECES * 128, counts);
        }
#pragma unroll
        for (int i = 0; i < TOKEN_EIGHTS / 2; i++) {
            const bool counts = i * 2 + threadIdx.x / 64 < present;
            copy16(next_at + ROW_BYTES + i * 2048, counts ? next_tokens + i * 128 : (const uint4*)p.x, counts);
        }
        next_rows += READS * 128, next_tokens += eights * 64;
        next_at = next_at + STAGE_BYTES >= base + STAGES * STAGE_BYTES ? base + threadIdx.x * 16 : next_at + STAGE_BYTES;
    };

    float y[TILES][EIGHTS][4], sums[TILES][EIGHTS][4];
#pragma unroll
    for (int i = 0; i < TILES * EIGHTS * 4; i++) {
        y[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4] = 0.0f;
        sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4] = 0.0f;
    }
    wait_for_writes();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps64) copy_stage();
        end_copies();
    }

    // Rows that are not there read numbers of rows that are; their results go nowhere.
    const u32 row = min((first_tile + own_tile) * 16, p.padded_rows - TILES * 16);
    // The two columns of a matrix that a lane names for ldmatrix: blocks of 8 numbers, then of 8 tokens.
    u32 tile_at = base + ROW_BYTES + ((lane / 16 + own_eight) * 8 + lane / 8 % 2) * 128 + lane % 8 * 16;
    // Computed once: the compiler would do it again in every round.
    asm volatile("" : "+r"(tile_at));
    // Scales of groups that span rounds are on their way for a round before they are used.
    constexpr bool SPANS_ROUNDS = F::GROUP == 128 && F::SCALE == SCALE_F16;
    u32 ahead[TILES], stage = 0;

    for (u32 k64 = 0; k64 < steps64; k64++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        if (SPANS_ROUNDS && k64 % 2 == 0) load_pairs<TILES>(ahead, p.scales, row, k64 / 2, p.columns / F::GROUP, g);
        if (k64 + STAGES - 1 < steps64) copy_stage();
        end_copies();
        const u32 at = tile_at + stage * STAGE_BYTES;
        const u8* rows_at = stages + stage * STAGE_BYTES;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        uint4 read[TILES];
        u32 zeros[TILES][2];
        float scales[TILES][2], mins[TILES][2];
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const u32 group = (k64 * 64 + step * 16) / F::GROUP;
            if (step % GROUP_STEPS == 0) {
                if (!SPANS_ROUNDS) group_numbers<F, TILES>(scales, p.scales, p.spans, row, group, p.columns, g);
                if (F::MINS) group_numbers<F, TILES>(mins, p.mins, p.min_spans, row, group, p.columns, g);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) zero_points<F>(zeros[tile], p, row + tile * 16, group, g);
            }
            if (step % STEPS == 0) {
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
                    read[tile] = ((const uint4*)rows_at)[(step / STEPS * ROW_TILES + own_tile + tile) * 32 + lane];
            }
            u32 b[EIGHTS / 2][4];
#pragma unroll
            for (int two = 0; two < EIGHTS / 2; two++)
                load_tiles(b[two], at + two * 2048 + step * 256);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                Fragment a = unpack<F>(read[tile], step % STEPS, zeros[tile]);
#pragma unroll
                for (int eight = 0; eight < EIGHTS; eight++)
                    mma(sums[tile][eight], a.a0, a.a1, a.a2, a.a3, b[eight / 2][eight % 2 * 2], b[eight / 2][eight % 2 * 2 + 1]);
            }
            const bool ends_stage = F::OF_GRAPHS ? (k64 + 1) % (F::GROUP / 64) == 0 || k64 + 1 == steps64 : k64 % 2 == 1;
            const bool ends = F::GROUP >= UNIT ? step == 3 && ends_stage : step % GROUP_STEPS == GROUP_STEPS - 1;
            if (ends) {
                if (SPANS_ROUNDS) {
#pragma unroll
                    for (int i = 0; i < TILES; i++) scales[i][0] = low_value(ahead[i]), scales[i][1] = high_value(ahead[i]);
                }
#pragma unroll
                for (int eight = 0; eight < EIGHTS; eight++) {
                    float2 x = make_float2(0.0f, 0.0f);
                    if (F::MINS) {
                        u32 token = (first_eight + own_eight + eight) * 8 + t * 2;
                        if (token < eights * 8) x = *(const float2*)(p.sums + (u64)group * (eights * 8) + token);
                    }
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            float& to = y[tile][eight][c];
                            float& part = sums[tile][eight][c];
                            to = F::SCALE == SCALE_NONE ? __fadd_rn(to, part) : __fmaf_rn(part, scales[tile][c / 2], to);
                            if (F::MINS) to = __fmaf_rn(c % 2 ? -x.y : -x.x, mins[tile][c / 2], to);
                            part = 0.0f;
                        }
                }
            }
        }
    }

    let_next_begin();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const u32 tile_row = (first_tile + own_tile + tile) * 16 + g;
        if (first_tile + own_tile + tile >= tiles) continue;
        finish_tile<EIGHTS>(p, y[tile], tile_row);
        if (F::OF_GRAPHS && gives_halves(p.mode)) {
            put_halves<EIGHTS>(p, y[tile], tile_row - g, first_eight + own_eight, eights, eights);
            continue;
        }
        if (p.mode == SWIGLU) put_gated<EIGHTS>(p, y[tile], tile_row - g, first_eight + own_eight, eights, eights);
        else put_tile<F, EIGHTS>(p, y[tile], tile_row, (first_eight + own_eight) * 8 + t * 2);
    }
}

// A row of the weight in f32, one thread for each 4 numbers' lane: the embedding of a token where the head is packed.
template <class F> __device__ __forceinline__ void widen_row(const Product& p, const u32* row_ids, u32 hidden) {
    const u32 token = blockIdx.x, row = row_ids[token];
    const u32 g = row % 8, high = row % 16 / 8;
    for (u32 at = threadIdx.x; at < p.columns / F::COLUMNS * 4; at += blockDim.x) {
        const u32 read = at / 4, t = at % 4;
        const uint4 four = p.weights[weights_at<F>(p, row / 16, read) + g * 4 + t];
#pragma unroll
        for (int step = 0; step < F::COLUMNS / 16; step++) {
            const u32 k = read * F::COLUMNS + step * 16 + t * 2, group = k / F::GROUP;
            u32 zeros[2];
            zero_points<F>(zeros, p, row / 16 * 16, group, g);
            Fragment f = unpack<F>(four, step, zeros);
            const u32 near = high ? f.a1 : f.a0, far = high ? f.a3 : f.a2;
            float scale = F::SCALE == SCALE_NONE ? 1.0f : group_number<F>(p.scales, p.spans, row, group, p.columns);
            float min = F::MINS ? group_number<F>(p.mins, p.min_spans, row, group, p.columns) : 0.0f;
            if (p.row_scales) scale = __fmul_rn(scale, p.row_scales[row]);
            const float values[4] = {low_value(near), high_value(near), low_value(far), high_value(far)};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 column = k + i % 2 + i / 2 * 8;
                if (column < hidden)
                    ((float*)p.out)[(u64)token * p.stride + column] = __fadd_rn(__fmul_rn(values[i], scale), -min);
            }
        }
    }
}

// Blocks that a multiprocessor is to have room for at once, which bounds the registers of a thread: where many blocks wait for
// few bytes each, more of them at once are worth more than registers.
template <class F> constexpr int few_blocks(int eights, int tiles, int warps) {
    return F::BITS == 4 && F::GROUP == 128 && !F::MINS && eights == 1 && tiles == 2 && warps == 8 ? 3 : 1;
}

// The most registers of a thread of such blocks.  Told by threads and blocks, compilers of CUDA 12 and 13 take fewer for sixteen
// warps, and wait for loads.
template <class F> constexpr int few_registers(int eights, int tiles, int warps) {
    const int most = 65536 / (warps * 32 * few_blocks<F>(eights, tiles, warps)) / 8 * 8;
    return most < 255 ? most : 255;
}

// Kernels of one form: their names begin with that of the form.
#define FEW(NAME, FORM, EIGHTS, TILES, WARPS, NORMS)                                               \
    KERNEL void __maxnreg__(few_registers<FORM>(EIGHTS, TILES, WARPS)) NAME(PRODUCT_PARAMETERS) {  \
        Product p = PRODUCT_ARGUMENTS;                                                             \
        product_few<FORM, EIGHTS, TILES, WARPS, NORMS>(p);                                         \
    }
#define MANY(NAME, FORM, TILES, EIGHTS, ROW_WARPS, COLUMN_WARPS, STAGES)                           \
    KERNEL void __launch_bounds__(ROW_WARPS * COLUMN_WARPS * 32, 1) NAME(PRODUCT_PARAMETERS) {        \
        Product p = PRODUCT_ARGUMENTS;                                                             \
        product_many<FORM, TILES, EIGHTS, ROW_WARPS, COLUMN_WARPS, STAGES>(p);                     \
    }
#define WIDEN(NAME, FORM)                                                                          \
    KERNEL void __launch_bounds__(128) NAME(PRODUCT_PARAMETERS, const u32* row_ids, u32 width) {   \
        Product p = PRODUCT_ARGUMENTS;                                                             \
        wait_for_earlier();                                                                        \
        widen_row<FORM>(p, row_ids, width);                                                        \
    }
