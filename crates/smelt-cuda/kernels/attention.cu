// Attention over pages of 64 positions.
//
// A page gives a query one partial result: its largest score, the sum of its weights and their values.  Partial results
// join in the order of pages, by the same steps wherever that is done, so a query's bits do not depend on the way.
// Queries that share a key head are rows of one tile: row r is token r / group, head r % group of its key head.

struct Run { u32 row, tokens, start, table; };  // first row of the pass, how many, position of the first, its pages

#define D_BLOCKS (HEAD_PAD / 8)
#define D_STEPS (HEAD_PAD / 16)
#define NO_SCORE __uint_as_float(0xFF800000)

struct Partial {
    float out[D_BLOCKS][4];
    float largest[2], sum[2];
};

// Pieces of 16 bytes of the keys, or of the values, of a head of a page.
#define PART_PIECES ((KV_BYTES ? D_STEPS : D_BLOCKS) * 64)

// What becomes of a position of a page.
#define COPIED 0
#define ZERO 1
#define LEFT 2

// Puts pieces of a page into shared memory as halves, by thread `thread` of THREADS; `fate` says of each position what becomes of
// it.
template <int THREADS, class Fate>
__device__ __forceinline__ void copy_pieces(u32 to, const u8* head, u32 thread, u32 first, u32 last, const Fate& fate) {
#if KV_BYTES
    const float* scales = (const float*)(head + 2 * 64 * HEAD_PAD);
    for (u32 at = first + thread; at < last; at += THREADS) {
        const u32 position = at % 64, part = at / 64, its = fate(position);
        u32 words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (its == LEFT) continue;
        if (its == COPIED) {
            const uint4 levels = *(const uint4*)(head + at * 16);
            const float scale = scales[part / D_STEPS * 64 + position];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 two = word_of(levels, i / 2) >> (i % 2 * 16);
                words[i] = held_pair(__fmul_rn((float)(signed char)two, scale), __fmul_rn((float)(signed char)(two >> 8), scale));
            }
        }
        u32 from = to + (part * 2 * 64 + position) * 16;
        store16(from, make_uint4(words[0], words[1], words[2], words[3]));
        store16(from + 1024, make_uint4(words[4], words[5], words[6], words[7]));
    }
#else
    for (u32 at = first + thread; at < last; at += THREADS) {
        const u32 its = fate(at % 64);
        if (its != LEFT) copy16(to + at * 16, head + at * 16, its == COPIED);
    }
#endif
    end_copies();
}

// Of a page whose positions from `end` on are zero.
struct UpTo {
    u32 end;
    __device__ __forceinline__ u32 operator()(u32 position) const { return position < end ? COPIED : ZERO; }
};

// All of such a page.
template <int THREADS> __device__ __forceinline__ void copy_page(u32 to, const u8* head, u32 end) {
    copy_pieces<THREADS>(to, head, threadIdx.x, 0, 2 * PART_PIECES, UpTo{end});
}

// Queries of rows g and g + 8 of a tile of 16 rows from row `first` of a run's tile on; rows that are not there are zero.
__device__ __forceinline__ void load_queries(
    u32 (&q)[D_STEPS][4], const u16* queries, const Run& run, u32 first, u32 heads, u32 kv_head, u32 group) {
    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = first + g + high * 8, token = row / group;
        const bool counts = token < run.tokens;
        const u64 head = (u64)(run.row + (counts ? token : 0)) * heads + kv_head * group + row % group;
        const u32* from = (const u32*)(queries + head * HEAD_PAD) + t;
#pragma unroll
        for (int step = 0; step < D_STEPS; step++) {
            q[step][high] = counts ? from[step * 8] : 0;
            q[step][2 + high] = counts ? from[step * 8 + 4] : 0;
        }
    }
}

// What rows g and g + 8 see of a page: the first so many positions.
struct Visible {
    u32 count[2];
    __device__ __forceinline__ float operator()(float score, int high, u32 position) const {
        return position >= count[high] ? NO_SCORE : score;
    }
};

// Scores of the 64 positions of a page, which go through `seen`, become weights.
template <class Seen> __device__ __forceinline__ void weigh_scores(Partial& part, float (&scores)[8][4], const Seen& seen) {
    const u32 t = threadIdx.x % 4;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        float largest = NO_SCORE;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float& score = scores[i / 2][high * 2 + i % 2];
            score = seen(score, high, i / 2 * 8 + t * 2 + i % 2);
            largest = fmaxf(largest, score);
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        part.largest[high] = largest;
        const float down = largest == NO_SCORE ? 0.0f : largest;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float& score = scores[i / 2][high * 2 + i % 2];
            score = exp2_fast(__fadd_rn(score, -down));
            sum = __fadd_rn(sum, score);
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        part.sum[high] = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    }
}

// Scores of the 64 positions of the page at `keys` for 16 queries.
__device__ __forceinline__ void score_page(float (&scores)[8][4], const u32 (&q)[D_STEPS][4], u32 keys) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 32; i++) scores[i / 4][i % 4] = 0.0f;
    // Lanes 8i + r name row r of tile i: tiles are numbers 0 to 7 and 8 to 15 of a step, then of the next eight positions.
    const u32 key_at = keys + (lane / 8 % 2 * 64 + lane / 16 * 8 + lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < D_STEPS; step++)
#pragma unroll
        for (int two = 0; two < 4; two++) {
            u32 b[4];
            load_tiles(b, key_at + (step * 2 * 64 + two * 16) * 16);
            mma(scores[2 * two], q[step][0], q[step][1], q[step][2], q[step][3], b[0], b[1]);
            mma(scores[2 * two + 1], q[step][0], q[step][1], q[step][2], q[step][3], b[2], b[3]);
        }
}

#if defined(HAS_WGMMA)
// The same for 64 queries at `queries`, by four warps at once: the scores are on their way behind this.
__device__ __forceinline__ void begin_scores(float (&scores)[8][4], u32 queries, u32 keys) {
    begin_products();
    square_mma_anew(scores, tiles_at(queries, 1024, 128), tiles_at(keys, 1024, 128));
#pragma unroll
    for (u32 step = 1; step < D_STEPS; step++)
        square_mma(scores, tiles_at(queries + step * 2048, 1024, 128), tiles_at(keys + step * 2048, 1024, 128));
    end_products();
}
#endif

// Weights of the 64 positions of the page at `keys` for 16 queries, whose scores go through `seen`.
template <class Seen>
__device__ __forceinline__ void weigh_page(
    Partial& part, float (&scores)[8][4], const u32 (&q)[D_STEPS][4], u32 keys, const Seen& seen) {
    score_page(scores, q, keys);
    weigh_scores(part, scores, seen);
}

// Weights as products take them.
__device__ __forceinline__ void halve(u32 (&halves)[4][4], const float (&weights)[8][4]) {
#pragma unroll
    for (int i = 0; i < 16; i++)
        halves[i / 4][i / 2 % 2 * 2 + i % 2] = half_pair(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
}

// Sums of the page's values by these weights.
__device__ __forceinline__ void add_values(Partial& part, const float (&scores)[8][4], u32 keys) {
    const u32 lane = threadIdx.x % 32, values = keys + D_BLOCKS * 64 * 16;
#pragma unroll
    for (int i = 0; i < D_BLOCKS * 4; i++) part.out[i / 4][i % 4] = 0.0f;
    // Tiles are positions 0 to 7 and 8 to 15 of a step, then of the next eight numbers.
    const u32 value_at = values + (lane / 16 * 64 + lane / 8 % 2 * 8 + lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const u32 a0 = pair(half_bits(scores[2 * step][0]), half_bits(scores[2 * step][1]));
        const u32 a1 = pair(half_bits(scores[2 * step][2]), half_bits(scores[2 * step][3]));
        const u32 a2 = pair(half_bits(scores[2 * step + 1][0]), half_bits(scores[2 * step + 1][1]));
        const u32 a3 = pair(half_bits(scores[2 * step + 1][2]), half_bits(scores[2 * step + 1][3]));
#pragma unroll
        for (int two = 0; two < D_STEPS; two++) {
            u32 b[4];
            load_tiles_turned(b, value_at + (two * 2 * 64 + step * 16) * 16);
            mma(part.out[2 * two], a0, a1, a2, a3, b[0], b[1]);
            mma(part.out[2 * two + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
}

// What 16 queries make of the page at `keys`.
template <class Seen>
__device__ __forceinline__ void attend_page(Partial& part, const u32 (&q)[D_STEPS][4], u32 keys, const Seen& seen) {
    float scores[8][4];
    weigh_page(part, scores, q, keys, seen);
    add_values(part, scores, keys);
}

// What a partial result is multiplied with, and all before it, when they join.
struct Factors { float before, now; };
__device__ __forceinline__ Factors factors_of(float largest_before, float largest_now, float largest) {
    return {exp2_fast(__fadd_rn(largest_before, -largest)), exp2_fast(__fadd_rn(largest_now, -largest))};
}
__device__ __forceinline__ float joined(float before, float now, const Factors& by) {
    return __fmaf_rn(before, by.before, __fmul_rn(now, by.now));
}
// The last step: adding zero makes a zero of either sign one.
__device__ __forceinline__ float attended(float out, float inverse) { return __fadd_rn(__fmul_rn(out, inverse), 0.0f); }

// Joins the next page to what came of those before.
__device__ __forceinline__ void join(
    float (&so_far)[D_BLOCKS][4], float (&largest)[2], float (&sum)[2], const Partial& part) {
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const float now = fmaxf(largest[high], part.largest[high]);
        const Factors by = factors_of(largest[high], part.largest[high], now);
        largest[high] = now;
        sum[high] = joined(sum[high], part.sum[high], by);
#pragma unroll
        for (int i = 0; i < D_BLOCKS * 2; i++) {
            float& to = so_far[i / 2][high * 2 + i % 2];
            to = joined(to, part.out[i / 2][high * 2 + i % 2], by);
        }
    }
}
