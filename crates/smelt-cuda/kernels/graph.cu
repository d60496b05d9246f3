// What graphs compute beside products: norms, heads that attend to everything, operators on single numbers, gathers.
//
// Values are f32 that lie anywhere; what only products read lies in blocks of halves.  Sums run in one order that depends on
// shapes alone, and no number depends on what else is in its batch.

// Threads of a block, and numbers that each takes, of operators on single numbers.
#define MAP_THREADS 128
#define MAP_EACH 4
// Most words of what such a launch computes, and most operands.
#define MAP_WORDS 160
#define MAP_OPERANDS 8
// Threads of a block of what moves numbers.
#define MOVE_THREADS 256

// A weight of rows that lie anywhere as halves in strips of 64 rows; what fills them is zero.  A thread writes one half.
KERNEL void __launch_bounds__(MOVE_THREADS) pack_halves(
    u16* out, const void* from, u64 by_row, u64 by_column, u64 count, u32 kind, u32 rows, u32 columns, u32 padded_columns) {
    wait_for_earlier();
    const u64 at = (u64)blockIdx.x * MOVE_THREADS + threadIdx.x;
    if (at >= count) return;
    const u32 strip = at / (64ull * padded_columns), inside = at % (64ull * padded_columns);
    const u32 half = inside % 8, lane = inside / 8 % 32, tile = inside / 256 % 4, read = inside / 1024;
    const u32 row = strip * 64 + tile * 16 + half / 2 % 2 * 8 + lane / 4;
    const u32 column = read * 16 + half / 4 * 8 + lane % 4 * 2 + half % 2;
    const bool counts = row < rows && column < columns;
    out[at] = counts ? held_half(stored_number(from, row * by_row + column * by_column, kind)) : 0;
}

// Eight numbers of a row from number `first` on, wherever the row begins; zero where there are none.
__device__ __forceinline__ void load_any_eight(float (&out)[8], const float* row, u32 first, u32 count) {
    if ((u64)row % 16 == 0) return load_eight(out, row, first, count);
#pragma unroll
    for (u32 i = 0; i < 8; i++) out[i] = first + i < count ? row[first + i] : 0.0f;
}

// Runs of eight numbers of a row that a lane keeps between looking at them.
#define RUNS_HELD 4

// Rows normed by their deviation, or by their root mean square where they are not centred; into rows of f32, or where there
// are `columns` into activations of so many.  A warp takes a row, and its lane t the runs of eight numbers t, t + 32, ..  The
// rows of a block are a block of activations, which it writes line by line.
KERNEL void __launch_bounds__(ROW_THREADS, 3) norm_numbers(
    void* out, const float* x, const float* scale, const float* bias, u32 rows, u32 width, u32 columns, u32 eights, u32 centred,
    float eps) {
    constexpr u32 ROWS = ROW_THREADS / 32, RUN = 256, HELD = RUNS_HELD * RUN;
    static_assert(ROWS == 8, "a block of activations");
    __shared__ __align__(16) u16 lines[2][ROWS][RUN + 8];
    __shared__ __align__(16) float scales[HELD], biases[HELD];
    let_next_begin();
    for (u32 k = threadIdx.x; k < HELD && k < width; k += ROW_THREADS) {
        scales[k] = scale ? __ldg(scale + k) : 1.0f;
        biases[k] = bias ? __ldg(bias + k) : 0.0f;
    }
    wait_for_writes();
    const u32 first_row = blockIdx.x * ROWS, row_at = first_row + threadIdx.x / 32;
    const float* row = x + (u64)min(row_at, rows - 1) * width;
    const u32 own = threadIdx.x % 32 * 8, end = columns > width ? columns : width;
    float held[RUNS_HELD][8], more[8];
    // All that is held is on its way before the first of it is looked at.
    if ((u64)row % 16 == 0 && width % 8 == 0) {
#pragma unroll
        for (u32 i = 0; i < RUNS_HELD * 2; i++) {
            const u32 first = own + i / 2 * RUN;
            const float4 four = first < width ? *(const float4*)(row + first + i % 2 * 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float* to = held[i / 2] + i % 2 * 4;
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < RUNS_HELD * 8; i++) {
            const u32 k = own + i / 8 * RUN + i % 8;
            held[i / 8][i % 8] = k < width ? row[k] : 0.0f;
        }
    }
    // Numbers behind those are read each time.
    auto each_more = [&](auto look) {
#pragma unroll 1
        for (u32 first = own + HELD; first < width; first += RUN) {
            load_any_eight(more, row, first, width);
#pragma unroll
            for (u32 i = 0; i < 8; i++) look(first + i, more[i]);
        }
    };
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < RUNS_HELD * 8; i++) sum = __fadd_rn(sum, held[i / 8][i % 8]);
        each_more([&](u32, float number) { sum = __fadd_rn(sum, number); });
        mean = __fdiv_rn(warp_sum(sum), (float)width);
    }
    float squares = 0.0f;
    auto square = [&](u32 k, float number) {
        const float apart = k < width ? __fadd_rn(number, -mean) : 0.0f;
        squares = __fmaf_rn(apart, apart, squares);
    };
#pragma unroll
    for (u32 i = 0; i < RUNS_HELD * 8; i++) square(own + i / 8 * RUN + i % 8, held[i / 8][i % 8]);
    each_more(square);
    const float mean_square = __fdiv_rn(warp_sum(squares), (float)width);
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean_square, eps)));
    __syncthreads();
    // The run that is next lies first, so that the code is there once: more of it takes longer to be fetched than to run.
#pragma unroll 1
    for (u32 run = 0; run * RUN < end; run++) {
        const u32 first = run * RUN + own;
        float (&numbers)[8] = held[0], by[8], added[8];
        if (run < RUNS_HELD) {
            load_eight(by, scales, first, HELD), load_eight(added, biases, first, HELD);
        } else {
            load_any_eight(numbers, row, first, width);
            if (scale) load_any_eight(by, scale, first, width);
            if (bias) load_any_eight(added, bias, first, width);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 k = first + i;
            float value = __fmul_rn(__fadd_rn(numbers[i], -mean), inverse);
            if (scale) value = __fmul_rn(value, by[i]);
            if (bias) value = __fadd_rn(value, added[i]);
            numbers[i] = k < width ? value : 0.0f;
        }
        if (!columns) {
#pragma unroll
            for (u32 i = 0; i < 8; i++)
                if (first + i < width && row_at < rows) ((float*)out)[(u64)row_at * width + first + i] = numbers[i];
        } else {
            *(uint4*)(lines[run % 2][threadIdx.x / 32] + own) =
                make_uint4(held_pair(numbers[0], numbers[1]), held_pair(numbers[2], numbers[3]),
                           held_pair(numbers[4], numbers[5]), held_pair(numbers[6], numbers[7]));
            __syncthreads();
            const u32 its_row = threadIdx.x % ROWS, its = threadIdx.x / ROWS * 8, k = run * RUN + its;
            if (k < columns && first_row + its_row < rows)
                *(uint4*)((u16*)out + activation_at(k, first_row + its_row, eights)) = *(const uint4*)(lines[run % 2][its_row] + its);
        }
#pragma unroll
        for (u32 i = 0; i < (RUNS_HELD - 1) * 8; i++) held[i / 8][i % 8] = held[i / 8 + 1][i % 8];
    }
}

// Heads of numbers that lie anywhere as activations of rows `[batch, rows]` and columns `[heads, HEAD_PAD]`.  A thread writes
// eight numbers of a row.
KERNEL void __launch_bounds__(MOVE_THREADS) arrange_heads(
    u16* out, const void* from, u64 by_batch, u64 by_head, u64 by_row, u64 by_number, u64 count, u32 kind, u32 heads, u32 rows,
    u32 numbers, u32 eights) {
    wait_for_earlier();
    const u64 at = (u64)blockIdx.x * MOVE_THREADS + threadIdx.x;
    if (at >= count) return;
    const u32 eight = at % D_BLOCKS, row = at / D_BLOCKS % rows, head = at / D_BLOCKS / rows;
    const u64 first = head / heads * by_batch + head % heads * by_head + row * by_row;
    float own[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 d = eight * 8 + i;
        own[i] = d < numbers ? stored_number(from, first + d * by_number, kind) : 0.0f;
    }
    *(uint4*)(out + activation_at(head % heads * HEAD_PAD + eight * 8, head / heads * rows + row, eights)) =
        make_uint4(held_pair(own[0], own[1]), held_pair(own[2], own[3]), held_pair(own[4], own[5]), held_pair(own[6], own[7]));
}

// What is added to scores, `[batch, heads, queries, keys]` by steps of numbers.
struct Mask {
    const void* numbers;
    u64 by_batch, by_head, by_query, by_key;
    u32 kind;
};

// A number that hides is held where a sum of such is still one.
__device__ __forceinline__ float masked(const Mask& mask, u64 at, float score) {
    const float sum = __fmaf_rn(stored_number(mask.numbers, at, mask.kind), LOG2_E, score);
    return sum < -3.402823466e38f ? -3.402823466e38f : sum;
}

// Heads in activations of so many eights of rows: where columns of the first begin, columns from one to the next, and how many
// numbers one has; what fills the last eight is zero.
struct HeadBlocks {
    const u16* halves;
    u32 eights, first, by_head, numbers;
    // Eight numbers of a row.
    __device__ __forceinline__ u32 place(u32 head, u32 eight, u32 token) const {
        return activation_at(first + head * by_head + eight * 8, token, eights);
    }
};

// A part of a page, 64 rows of a head as blocks [numbers / 8][64 rows][8 numbers], that 128 threads copy: each has the pieces
// of one row.  What is not there becomes zero.
struct PagePart {
    const u16* halves;
    u32 from[D_BLOCKS / 2], eights;
    __device__ __forceinline__ PagePart(const HeadBlocks& heads, u32 head, u32 token) : halves(heads.halves), eights((heads.numbers + 7) / 8) {
#pragma unroll
        for (u32 i = 0; i < D_BLOCKS / 2; i++) from[i] = heads.place(head, min(2 * i + threadIdx.x / 64, eights - 1), token);
    }
    __device__ __forceinline__ void copy(u32 to, bool counts) const {
#pragma unroll
        for (u32 i = 0; i < D_BLOCKS / 2; i++)
            copy16(to + threadIdx.x * 16 + i * 2048, halves + from[i], counts && 2 * i + threadIdx.x / 64 < eights);
    }
    // 64 rows on.
    __device__ __forceinline__ void next() { halves += 64 / 8 * 512; }
};

// Products of a page by warps: each has its 16 queries in registers.
struct WarpProducts {
    u32 at, queries[D_STEPS][4];
    __device__ __forceinline__ WarpProducts(u32 at) : at(at) {}
    __device__ __forceinline__ void load() {
        const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
        for (u32 step = 0; step < D_STEPS; step++) load_tiles(queries[step], at + ((step * 2 + lane / 16) * 64 + row) * 16);
    }
    __device__ __forceinline__ void score(float (&scores)[8][4], u32 keys) const { score_page(scores, queries, keys); }
    __device__ __forceinline__ void add(float (&out)[D_BLOCKS][4], const u32 (&weights)[4][4], u32 values) const {
        const u32 lane = threadIdx.x % 32;
        // Tiles are positions 0 to 7 and 8 to 15 of a step, then of the next eight numbers.
        const u32 value_at = values + (lane / 16 * 64 + lane / 8 % 2 * 8 + lane % 8) * 16;
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int two = 0; two < D_STEPS; two++) {
                const u32 (&a)[4] = weights[step];
                u32 b[4];
                load_tiles_turned(b, value_at + (two * 2 * 64 + step * 16) * 16);
                mma(out[2 * two], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma(out[2 * two + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
    }
};

#if defined(HAS_WGMMA) && HEAD_PAD == 64
// Whether four warps multiply at once, by products that are awaited behind what is done meanwhile.
#define ATTENDS_AHEAD

// The same by four warps at once: queries stay in shared memory, and what is put on its way is awaited elsewhere.
struct GroupProducts {
    u32 at;
    __device__ __forceinline__ void score(float (&scores)[8][4], u32 keys) const { begin_scores(scores, at, keys); }
    __device__ __forceinline__ void add(float (&out)[D_BLOCKS][4], const u32 (&weights)[4][4], u32 values) const {
        begin_products();
#pragma unroll
        for (u32 step = 0; step < 4; step++) turned_mma(out, weights[step], tiles_at(values + step * 256, 128, 1024));
        end_products();
    }
};
#endif

// What 16 queries of a warp have of the pages so far: rows g and g + 8.
struct SoFar {
    float out[D_BLOCKS][4], largest[2] = {NO_SCORE, NO_SCORE}, sum[2] = {0.0f, 0.0f};
    __device__ __forceinline__ SoFar() {
#pragma unroll
        for (int i = 0; i < D_BLOCKS * 4; i++) out[i / 4][i % 4] = 0.0f;
    }
    // Scores of a page, times `factor` exponents of two, become weights; what came before is to be scaled by `before` for the
    // largest yet.  Each lane adds up its own columns, which meet at the end.
    __device__ __forceinline__ void weigh(float (&scores)[8][4], float (&before)[2], float factor) {
#pragma unroll
        for (int high = 0; high < 2; high++) {
            float most = largest[high];
#pragma unroll
            for (int i = 0; i < 16; i++) most = fmaxf(most, scores[i / 2][high * 2 + i % 2]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float down = __fmul_rn(most == NO_SCORE ? 0.0f : most, -factor);
            before[high] = exp2_fast(__fmaf_rn(largest[high], factor, down));
            largest[high] = most;
            sum[high] = __fmul_rn(sum[high], before[high]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float (&own)[4] = scores[i];
                own[high * 2] = exp2_fast(__fmaf_rn(own[high * 2], factor, down));
                own[high * 2 + 1] = exp2_fast(__fmaf_rn(own[high * 2 + 1], factor, down));
                sum[high] = __fadd_rn(sum[high], __fadd_rn(own[high * 2], own[high * 2 + 1]));
            }
        }
    }
    __device__ __forceinline__ void scale(const float (&before)[2]) {
#pragma unroll
        for (int i = 0; i < D_BLOCKS * 4; i++) out[i / 4][i % 4] = __fmul_rn(out[i / 4][i % 4], before[i % 4 / 2]);
    }
    __device__ __forceinline__ float inverse(int high) const {
        float all = __fadd_rn(sum[high], __shfl_xor_sync(~0u, sum[high], 1));
        all = __fadd_rn(all, __shfl_xor_sync(~0u, all, 2));
        return __fdiv_rn(1.0f, all);
    }
};

// Queries that attend to all keys: a block is 64 of them of one head; grid [queries / 64, heads, batch].  What comes goes
// to rows `[batch, queries, heads, width]` of f32, or where there are `eights` into activations of so many eights of rows.
struct Attending {
    void* out;
    const HeadBlocks &queries, &keys, &values;
    u32 query_count, key_count, heads, eights;
    __device__ __forceinline__ u32 pages() const { return (key_count + 63) / 64; }
    // The first of the two queries that a thread has sums of.
    __device__ __forceinline__ u32 row() const { return blockIdx.x * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
    // The first of the keys of a page that it has scores of.
    __device__ __forceinline__ u32 key(u32 page) const { return page * 64 + threadIdx.x % 4 * 2; }
};

#define PAGE_PART_BYTES (D_BLOCKS * 64 * 16)

// Queries in shared memory, and behind them a ring of AT_ONCE pages of keys and values, which 128 threads copy.
template <u32 AT_ONCE> struct AttendedPages {
    PagePart keys, values;
    u32 at, key_count, count;
    __device__ __forceinline__ AttendedPages(const Attending& a, u32 base)
        : keys(a.keys, blockIdx.y, blockIdx.z * a.key_count + threadIdx.x % 64),
          values(a.values, blockIdx.y, blockIdx.z * a.key_count + threadIdx.x % 64),
          at(base + PAGE_PART_BYTES), key_count(a.key_count), count(a.pages()) {
        const u32 query = blockIdx.x * 64 + threadIdx.x % 64;
        PagePart(a.queries, blockIdx.y, blockIdx.z * a.query_count + query).copy(base, query < a.query_count);
    }
    __device__ __forceinline__ u32 key_at(u32 page) const { return at + page % AT_ONCE * 2 * PAGE_PART_BYTES; }
    __device__ __forceinline__ u32 value_at(u32 page) const { return key_at(page) + PAGE_PART_BYTES; }
    __device__ __forceinline__ void copy_next(u32 page) {
        const bool counts = page * 64 + threadIdx.x % 64 < key_count;
        if (page < count) keys.copy(key_at(page), counts), values.copy(value_at(page), counts);
        keys.next(), values.next();
        end_copies();
    }
    // Waits for a page, and has the next one copied.
    __device__ __forceinline__ void await_page(u32 page) {
        await_copies<0>();
#if defined(HAS_WGMMA)
        show_tensor_cores();
#endif
        __syncthreads();
        copy_next(page + 1);
    }
};

// Scores behind the last key are none.
__device__ __forceinline__ void leave_out(float (&scores)[8][4], const Attending& a, u32 page) {
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (a.key(page) + i / 4 * 8 + i % 2 >= a.key_count) scores[i / 4][i % 4] = NO_SCORE;
}

// By warps, a page behind the other.
template <bool MASKED> __device__ __forceinline__ void attend_in_turn(SoFar& so_far, const Attending& a, const Mask& mask, float factor, u32 base) {
    AttendedPages<2> pages(a, base);
    WarpProducts products(base);
    u64 mask_at[2] = {0, 0};
    if (MASKED) {
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 row = min(a.row() + high * 8, a.query_count - 1);
            mask_at[high] = blockIdx.z * mask.by_batch + blockIdx.y * mask.by_head + row * mask.by_query;
        }
    }
    pages.copy_next(0);
    for (u32 page = 0; page < pages.count; page++) {
        pages.await_page(page);
        if (page == 0) products.load();
        float scores[8][4], before[2];
        products.score(scores, pages.key_at(page));
        if (MASKED) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const u32 key = a.key(page) + i / 4 * 8 + i % 2;
                const float score = __fmul_rn(scores[i / 4][i % 4], factor);
                scores[i / 4][i % 4] = key < a.key_count ? masked(mask, mask_at[i % 4 / 2] + key * mask.by_key, score) : NO_SCORE;
            }
        } else if (page + 1 == pages.count) {
            leave_out(scores, a, page);
        }
        so_far.weigh(scores, before, MASKED ? 1.0f : factor);
        so_far.scale(before);
        u32 weights[4][4];
        halve(weights, scores);
        products.add(so_far.out, weights, pages.value_at(page));
    }
}

#if defined(ATTENDS_AHEAD)
// By four warps at once: while scores of a page become weights, values of the page before are added.
__device__ __forceinline__ void attend_ahead(SoFar& so_far, const Attending& a, float factor, u32 base) {
    AttendedPages<3> pages(a, base);
    const GroupProducts products = {base};
    float scores[8][4], before[2];
    u32 weights[4][4];
    // What is read of sums that are there is another number: the compiler would await all products otherwise.
    auto weigh = [&](float (&own)[8][4], u32 page) {
        hold(scores);
#pragma unroll
        for (int i = 0; i < 32; i++) own[i / 4][i % 4] = scores[i / 4][i % 4];
        if (page + 1 == pages.count) leave_out(own, a, page);
        so_far.weigh(own, before, factor);
    };
    auto join = [&](const float (&own)[8][4]) {
        hold(so_far.out);
        so_far.scale(before);
        halve(weights, own);
    };
    auto step = [&](u32 page) {
        float own[8][4];
        pages.await_page(page);
        products.score(scores, pages.key_at(page));
        products.add(so_far.out, weights, pages.value_at(page - 1));
        await_products<1>();
        weigh(own, page);
        await_products<0>();
        join(own);
    };
    float own[8][4];
    pages.copy_next(0);
    pages.await_page(0);
    products.score(scores, pages.key_at(0));
    await_products<0>();
    weigh(own, 0);
    join(own);
#pragma unroll 1
    for (u32 page = 1; page < pages.count; page++) step(page);
    products.add(so_far.out, weights, pages.value_at(pages.count - 1));
    await_products<0>();
    hold(so_far.out);
}
#endif

template <bool MASKED> __device__ __forceinline__ void attend_everything(const Attending& a, const Mask& mask, float factor) {
    extern __shared__ __align__(128) u8 shared_heads[];
    const u32 base = shared_address(shared_heads), lane = threadIdx.x % 32, head = blockIdx.y;
    wait_for_writes();
    SoFar so_far;
#if defined(ATTENDS_AHEAD)
    if (!MASKED) attend_ahead(so_far, a, factor, base);
    else
#endif
        attend_in_turn<MASKED>(so_far, a, mask, factor, base);
    let_next_begin();
    const u32 width = a.values.numbers;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = a.row() + high * 8, token = blockIdx.z * a.query_count + row;
        const float inverse = so_far.inverse(high);
        if (row >= a.query_count) continue;
#pragma unroll
        for (int i = 0; i < D_BLOCKS; i++) {
            const u32 d = i * 8 + lane % 4 * 2, k = head * width + d;
            const float both[2] = {attended(so_far.out[i][high * 2], inverse), attended(so_far.out[i][high * 2 + 1], inverse)};
            if (a.eights && width % 2 == 0) {
                if (d < width) *(u32*)((u16*)a.out + activation_at(k, token, a.eights)) = held_pair(both[0], both[1]);
                continue;
            }
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                if (d + j >= width) continue;
                if (a.eights) ((u16*)a.out)[activation_at(k + j, token, a.eights)] = held_half(both[j]);
                else ((float*)a.out)[(u64)token * a.heads * width + k + j] = both[j];
            }
        }
    }
}

// As many blocks on a multiprocessor as there are registers for.
#define ATTEND_BLOCKS (HEAD_PAD <= 64 ? 4 : HEAD_PAD <= 80 ? 3 : 2)
#define ATTEND_ALL(NAME, MASKED, BLOCKS)                                                                                     \
    KERNEL void __launch_bounds__(128, BLOCKS) NAME(                                                                         \
        void* out, const u16* queries, u32 query_eights, u32 first_query, u32 by_query_head, const u16* keys, u32 key_eights,  \
        u32 first_key, u32 by_key_head, const u16* values, u32 value_eights, u32 first_value, u32 by_value_head,             \
        const void* mask, u64 by_batch, u64 by_head, u64 by_query, u64 by_key, u32 kind, float factor, u32 query_count,      \
        u32 key_count, u32 heads, u32 depth, u32 width, u32 eights) {                                                        \
        const HeadBlocks q = {queries, query_eights, first_query, by_query_head, depth};                                    \
        const HeadBlocks k = {keys, key_eights, first_key, by_key_head, depth};                                              \
        const HeadBlocks v = {values, value_eights, first_value, by_value_head, width};                                      \
        const Mask own = {mask, by_batch, by_head, by_query, by_key, kind};                                                  \
        const Attending attending = {out, q, k, v, query_count, key_count, heads, eights};                                  \
        attend_everything<MASKED>(attending, own, factor);                                                                  \
    }
ATTEND_ALL(attend_all, false, ATTEND_BLOCKS)
ATTEND_ALL(attend_masked, true, 2)

#define ROOT_HALF 0.707106781186547524f

// The same of each of four numbers.
template <class One> __device__ __forceinline__ float4 each(float4 a, float4 b, One one) {
    return make_float4(one(a.x, b.x), one(a.y, b.y), one(a.z, b.z), one(a.w, b.w));
}

// One operator of a chain; words as Rust has them.
__device__ __forceinline__ float4 link_of(u32 op, float4 a, float4 b) {
    switch (op) {
        case 0: return each(a, b, [](float a, float) { return fabsf(a); });
        case 1: return each(a, b, [](float a, float) { return __fsqrt_rn(a); });
        case 2: return each(a, b, [](float a, float) { return __fdiv_rn(1.0f, a); });
        case 3: return each(a, b, [](float a, float) { return cosf(a); });
        case 4: return each(a, b, [](float a, float) { return sinf(a); });
        case 5: return each(a, b, [](float a, float) { return erff(a); });
        case 6: return each(a, b, [](float a, float) { return tanhf(a); });
        case 7: return each(a, b, [](float a, float) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-a))); });
        case 8: return each(a, b, [](float a, float) { return expf(a); });
        case 9: return each(a, b, [](float a, float) { return -a; });
        case 10:
            return each(a, b, [](float a, float) {
                return __fmul_rn(__fmul_rn(0.5f, a), __fadd_rn(1.0f, erff(__fmul_rn(a, ROOT_HALF))));
            });
        case 11:
            return each(a, b, [](float a, float) {
                const float cube = __fmul_rn(__fmul_rn(__fmul_rn(a, a), a), 0.044715f);
                const float inner = __fmul_rn(__fadd_rn(a, cube), 0.797884560802865356f);
                return __fmul_rn(__fmul_rn(0.5f, a), __fadd_rn(1.0f, tanhf(inner)));
            });
        case 12: return each(a, b, [](float a, float) { return half_value(half_bits(a)); });
        case 13:
            return each(a, b, [](float a, float) {
                const u32 bits = __float_as_uint(a), near = bits + 0x7FFF + (bits >> 16 & 1);
                return a != a ? a : __uint_as_float(near & 0xFFFF0000);
            });
        case 16: return each(a, b, [](float a, float b) { return __fadd_rn(a, b); });
        case 17: return each(a, b, [](float a, float b) { return __fadd_rn(a, -b); });
        case 18: return each(a, b, [](float a, float b) { return __fmul_rn(a, b); });
        case 19: return each(a, b, [](float a, float b) { return __fdiv_rn(a, b); });
        case 20:
            return each(a, b, [](float a, float b) {
                return b == 2.0f ? __fmul_rn(a, a) : b == 3.0f ? __fmul_rn(__fmul_rn(a, a), a) : powf(a, b);
            });
        case 21: return each(a, b, [](float a, float b) { return fminf(a, b); });
        default: return each(a, b, [](float a, float b) { return fmaxf(a, b); });
    }
}

// Where number `index` of a shape of `dims` sizes lies by steps.
__device__ __forceinline__ u32 place_of(u32 index, u32 dims, const u32* sizes, const u32* steps) {
    u32 place = 0;
    for (u32 i = dims; i-- > 1;) {
        place += index % sizes[i] * steps[i];
        index /= sizes[i];
    }
    return place + index * steps[0];
}

// How numbers lie by their steps: anywhere, side by side as the shape has them, or as one row for all.
#define ANYWHERE 0
#define SIDE_BY_SIDE 1
#define ONE_ROW 2

__device__ __forceinline__ u32 way_of(u32 dims, const u32* sizes, const u32* steps) {
    u32 run = 1;
    bool is_side_by_side = true, is_row = steps[dims - 1] == 1;
    for (u32 i = dims; i-- > 0;) {
        is_side_by_side = is_side_by_side && steps[i] == run;
        is_row = is_row && (i + 1 == dims || steps[i] == 0);
        run *= sizes[i];
    }
    return is_side_by_side ? SIDE_BY_SIDE : is_row ? ONE_ROW : ANYWHERE;
}

// Operators on single numbers, one behind another.  `program` is: how many dimensions, operands and links; sizes; steps of
// the result; for each operand its kind and its steps, or of a number that is the same for all (kind 3) itself; for each link
// its operator and what it reads: an operand, or 16 and a link.  The result goes to f32 by its steps, or where there are
// `columns` into activations of rows of so many.
KERNEL void __launch_bounds__(MAP_THREADS) map_numbers(
    void* out, const void* a0, const void* a1, const void* a2, const void* a3, const void* a4, const void* a5, const void* a6,
    const void* a7, const u32* program, u32 words_count, u32 count, u32 columns, u32 eights) {
    extern __shared__ __align__(16) float values[];  // [operands and links][MAP_THREADS][MAP_EACH]
    __shared__ u32 words[MAP_WORDS], ways[MAP_OPERANDS + 1];
    __shared__ const void* operands_at[MAP_OPERANDS];
    for (u32 i = threadIdx.x; i < words_count; i += MAP_THREADS) words[i] = program[i];
    if (threadIdx.x == 0) {
        operands_at[0] = a0, operands_at[1] = a1, operands_at[2] = a2, operands_at[3] = a3;
        operands_at[4] = a4, operands_at[5] = a5, operands_at[6] = a6, operands_at[7] = a7;
    }
    __syncthreads();
    const u32 dims = words[0], operands = words[1], links = words[2];
    const u32 *sizes = words + 3, *out_steps = sizes + dims, *all = out_steps + dims;
    if (threadIdx.x <= operands)
        ways[threadIdx.x] = way_of(dims, sizes, threadIdx.x == operands ? out_steps : all + threadIdx.x * (1 + dims) + 1);
    wait_for_earlier();
    __syncthreads();
    // Numbers that lie in one run of every operand need one place.
    const bool in_run = sizes[dims - 1] % MAP_EACH == 0;
    // Four numbers at once where they lie so.
    static_assert(MAP_EACH == 4, "a vector of four");
    auto is_vector = [&](const void* at) { return in_run && (u64)at % 16 == 0; };
    float4* own = (float4*)values + threadIdx.x;
    const u32 first = (blockIdx.x * MAP_THREADS + threadIdx.x) * MAP_EACH;
    if (first >= count) return;
    auto begin = [&](u32 way, const u32* steps) {
        return way == SIDE_BY_SIDE ? first
             : way == ONE_ROW      ? first % sizes[dims - 1]
                                   : place_of(first, dims, sizes, steps);
    };
    const u32* from = all;
    for (u32 operand = 0; operand < operands; operand++, from += 1 + dims) {
        float4& to = own[operand * MAP_THREADS];
        const u32 kind = from[0], *steps = from + 1;
        if (kind == 3) {
            const float number = __uint_as_float(steps[0]);
            to = make_float4(number, number, number, number);
            continue;
        }
        const u32 way = ways[operand], place = begin(way, steps), step = steps[dims - 1];
        const void* at = operands_at[operand];
        if (kind == 2 && way != ANYWHERE && is_vector((const float*)at + place)) {
            to = *(const float4*)((const float*)at + place);
            continue;
        }
        float read[MAP_EACH];
#pragma unroll
        for (u32 i = 0; i < MAP_EACH; i++) {
            const u32 index = min(first + i, count - 1);
            read[i] = stored_number(at, in_run ? place + i * step : place_of(index, dims, sizes, steps), kind);
        }
        to = make_float4(read[0], read[1], read[2], read[3]);
    }
    float4 result = own[0];
    for (u32 link = 0; link < links; link++, from += 3) {
        const u32 a = from[1] < 16 ? from[1] : operands + from[1] - 16, b = from[2] < 16 ? from[2] : operands + from[2] - 16;
        result = link_of(from[0], own[a * MAP_THREADS], own[b * MAP_THREADS]);
        own[(operands + link) * MAP_THREADS] = result;
    }
    const float results[MAP_EACH] = {result.x, result.y, result.z, result.w};
    if (columns == 0) {
        const u32 way = ways[operands], place = begin(way, out_steps), step = out_steps[dims - 1];
        if (way == SIDE_BY_SIDE && is_vector((float*)out + place)) {
            *(float4*)((float*)out + place) = result;
            return;
        }
#pragma unroll
        for (u32 i = 0; i < MAP_EACH; i++)
            if (first + i < count)
                ((float*)out)[in_run ? place + i * step : place_of(first + i, dims, sizes, out_steps)] = results[i];
    } else if (columns % MAP_EACH == 0) {
        *(uint2*)((u16*)out + activation_at(first % columns, first / columns, eights)) =
            make_uint2(held_pair(results[0], results[1]), held_pair(results[2], results[3]));
    } else {
#pragma unroll
        for (u32 i = 0; i < MAP_EACH; i++)
            if (first + i < count)
                ((u16*)out)[activation_at((first + i) % columns, (first + i) / columns, eights)] = held_half(results[i]);
    }
}

// out[i, j, k] = from[i, indices[j], k], of `inner` numbers k and `count` indices into `size` places.
KERNEL void __launch_bounds__(MOVE_THREADS) gather_numbers(
    float* out, const void* from, const u32* indices, u64 total, u32 kind, u32 size, u32 count, u32 inner) {
    wait_for_earlier();
    const u64 at = (u64)blockIdx.x * MOVE_THREADS + threadIdx.x;
    if (at >= total) return;
    const u64 row = at / inner;
    out[at] = stored_number(from, (row / count * size + indices[row % count]) * inner + at % inner, kind);
}
