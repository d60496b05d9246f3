// Attention of decoders over the pages of their slots: of many rows at once, or page by page with what joins them.

__device__ __forceinline__ u32 seen_of_page(u32 seen, u32 page) {
    u32 before = page * 64;
    return seen <= before ? 0 : (seen - before < 64 ? seen - before : 64);
}

// 64 rows of queries of one key head of a run, as a block of a prompt has them: row r is token r / group, head r % group of the
// key head.
struct PromptRows {
    Run run;
    u32 kv_head, heads, group, first;
    __device__ __forceinline__ u32 all() const { return run.tokens * group; }
    // The two rows that a thread has sums of.
    __device__ __forceinline__ u32 own(int high) const { return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + high * 8; }
    // Positions that one sees.
    __device__ __forceinline__ u32 seen(u32 row) const { return row < all() ? run.start + row / group + 1 : 0; }
    // Pages that any of them sees.
    __device__ __forceinline__ u32 pages() const { return (seen(min(first + 63, all() - 1)) + 63) / 64; }
    __device__ __forceinline__ Visible visible(u32 page) const {
        return {{seen_of_page(seen(own(0)), page), seen_of_page(seen(own(1)), page)}};
    }
    // The first of a row's numbers among the queries.
    __device__ __forceinline__ u64 query_at(u32 row) const {
        return ((u64)(run.row + row / group) * heads + kv_head * group + row % group) * HEAD_PAD;
    }
};

// Pages of a prompt in a ring of AT_ONCE, which 128 threads copy.
template <u32 AT_ONCE> struct PromptPages {
    static constexpr u32 PAGE = 2 * D_BLOCKS * 64 * 16;
    const Pages& pages;
    u32 base, table, kv_head, count, end;
    __device__ __forceinline__ u32 place(u32 page) const { return base + page % AT_ONCE * PAGE; }
    __device__ __forceinline__ void copy(u32 page) const {
        if (page < count) copy_page<128>(place(page), head_of(pages, table, page, kv_head), end - page * 64);
        else end_copies();
    }
};

// What 16 queries of a warp have of the pages so far.
struct PromptSums {
    float out[D_BLOCKS][4], largest[2] = {NO_SCORE, NO_SCORE}, sum[2] = {0.0f, 0.0f};
    __device__ __forceinline__ PromptSums() {
#pragma unroll
        for (int i = 0; i < D_BLOCKS * 4; i++) out[i / 4][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void add(const Partial& part) { join(out, largest, sum, part); }
};

#if defined(HAS_WGMMA) && (HEAD_PAD == 64 || HEAD_PAD == 128)
// By four warps at once: while scores of a page become weights, values of the page before are added.  Queries lie in shared
// memory before the pages.
#define PROMPT_PAGES 3
#define PROMPT_QUERY_BYTES (64 * HEAD_PAD * 2)
__device__ __forceinline__ void attend_rows(
    PromptSums& so_far, const PromptRows& rows, PromptPages<PROMPT_PAGES> pages, const u16* queries) {
    constexpr u32 PIECES = HEAD_PAD / 8;
    const u32 at = pages.base;
    pages.base += PROMPT_QUERY_BYTES;
#pragma unroll
    for (u32 i = threadIdx.x; i < 64 * PIECES; i += 128) {
        const u32 row = i / PIECES, piece = i % PIECES;
        const bool counts = rows.first + row < rows.all();
        copy16(at + (piece * 64 + row) * 16, queries + (counts ? rows.query_at(rows.first + row) + piece * 8 : 0), counts);
    }
    pages.copy(0);
    float scores[8][4];
    u32 weights[4][4];
    Partial part;
    // Waits for a page, and has the next one copied.
    auto await_page = [&](u32 page) {
        await_copies<0>();
        show_tensor_cores();
        __syncthreads();
        pages.copy(page + 1);
    };
    auto add = [&](u32 page) {
        const u32 values = pages.place(page) + D_BLOCKS * 64 * 16;
        begin_products();
        turned_mma_anew(part.out, weights[0], tiles_at(values, 128, 1024));
#pragma unroll
        for (u32 step = 1; step < 4; step++) turned_mma(part.out, weights[step], tiles_at(values + step * 256, 128, 1024));
        end_products();
    };
    // What is read of sums that are there is another number: the compiler would await all products otherwise.
    auto weigh = [&](Partial& next, float (&own)[8][4], u32 page) {
        hold(scores);
#pragma unroll
        for (int i = 0; i < 32; i++) own[i / 4][i % 4] = scores[i / 4][i % 4];
        weigh_scores(next, own, rows.visible(page));
    };
    auto begin = [&](const Partial& next, const float (&own)[8][4]) {
#pragma unroll
        for (int high = 0; high < 2; high++) part.largest[high] = next.largest[high], part.sum[high] = next.sum[high];
        halve(weights, own);
    };
    auto step = [&](u32 page) {
        float own[8][4];
        Partial next;
        await_page(page);
        begin_scores(scores, at, pages.place(page));
        add(page - 1);
        await_products<1>();
        weigh(next, own, page);
        await_products<0>();
        hold(part.out);
        so_far.add(part);
        begin(next, own);
    };
    float own[8][4];
    Partial next;
    await_page(0);
    begin_scores(scores, at, pages.place(0));
    await_products<0>();
    weigh(next, own, 0);
    begin(next, own);
#pragma unroll 1
    for (u32 page = 1; page < pages.count; page++) step(page);
    add(pages.count - 1);
    await_products<0>();
    hold(part.out);
    so_far.add(part);
}
#else
#define PROMPT_PAGES 2
// By warps, a page behind the other.
__device__ __forceinline__ void attend_rows(
    PromptSums& so_far, const PromptRows& rows, const PromptPages<PROMPT_PAGES>& pages, const u16* queries) {
    u32 q[D_STEPS][4];
    load_queries(q, queries, rows.run, rows.first + threadIdx.x / 32 * 16, rows.heads, rows.kv_head, rows.group);
    pages.copy(0);
    for (u32 page = 0; page < pages.count; page++) {
        pages.copy(page + 1);
        await_copies<1>();
        __syncthreads();
        const Visible visible = rows.visible(page);
        if (__any_sync(~0u, visible.count[0] + visible.count[1] > 0)) {
            Partial part;
            attend_page(part, q, pages.place(page), visible);
            so_far.add(part);
        }
        __syncthreads();
    }
}
#endif

// Many queries: a block is 64 rows of one key head of one run; grid [row tiles, key heads, runs].
KERNEL void __launch_bounds__(128, 2) attend_prompt(
    u16* out, const u16* queries, const Run* runs, const u8* pool, const u32* tables, u64 page_bytes, u32 tokens, u32 heads,
    u32 kv_heads, u32 dim) {
    extern __shared__ __align__(128) u8 shared_pages[];
    wait_for_writes();
    const PromptRows rows = {runs[blockIdx.z], blockIdx.y, heads, heads / kv_heads, (gridDim.x - 1 - blockIdx.x) * 64};
    if (rows.first >= rows.all()) return;
    const Run& run = rows.run;
    const Pages pages = {(u8*)pool, tables, page_bytes, kv_heads};
    const u32 base = shared_address(shared_pages);
    PromptSums so_far;
    attend_rows(so_far, rows, {pages, base, run.table, rows.kv_head, rows.pages(), run.start + run.tokens}, queries);
    let_next_begin();
    const u32 eights = (tokens + 7) / 8;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = rows.own(high);
        if (row >= rows.all()) continue;
        const u32 token = run.row + row / rows.group, head = rows.kv_head * rows.group + row % rows.group;
        const float inverse = __fdiv_rn(1.0f, so_far.sum[high]);
#pragma unroll
        for (int block = 0; block < D_BLOCKS; block++) {
            const u32 d = block * 8 + threadIdx.x % 4 * 2;
            if (d < dim)
                *(u32*)(out + activation_at(head * dim + d, token, eights)) =
                    held_pair(attended(so_far.out[block][high * 2], inverse), attended(so_far.out[block][high * 2 + 1], inverse));
        }
    }
}

// Few queries: a warp takes pages x, x + grid, .. of one key head of one run of at most 16 rows; grid [warps, key heads, runs].
// Keys and values of its next page are on their way as soon as those of its last one are done with.  Partial results go to
// `parts` [runs][key heads][pages][rows_max][HEAD_PAD] and `marks`, alike, of two: largest and sum.
KERNEL void __launch_bounds__(32) attend_pages(
    float* parts, float2* marks, const u16* queries, const Run* runs, const u8* pool, const u32* tables, u64 page_bytes,
    u32 heads, u32 kv_heads, u32 rows_max, u32 pages_max) {
    extern __shared__ __align__(128) u8 shared_pages[];
    let_next_begin();
    // Told by the host before the first launch of the pass, as are tables.
    const Run run = runs[blockIdx.z];
    const u32 kv_head = blockIdx.y, group = heads / kv_heads, lane = threadIdx.x;
    const u32 count = run.tokens == 0 ? 0 : (run.start + run.tokens + 63) / 64;
    u32 page = blockIdx.x;
    if (page >= count) return;
    const Pages pages = {(u8*)pool, tables, page_bytes, kv_heads};
    const u32 base = shared_address(shared_pages);
    auto copy = [&](u32 page, const u8* head, u32 part) {
        const u32 end = run.start + run.tokens - page * 64;
        copy_pieces<32>(base, head, lane, part * PART_PIECES, (part + 1) * PART_PIECES, UpTo{end});
    };
    const u8* head = head_of(pages, run.table, page, kv_head);
    // Pages without tokens of the run were there before the pass, and are on their way while the launch before ends.
    const bool is_new = (page + 1) * 64 > run.start;
    if (is_new) wait_for_writes();
    copy(page, head, 0);
    copy(page, head, 1);
    if (!is_new) wait_for_writes();
    u32 q[D_STEPS][4];
    load_queries(q, queries, run, 0, heads, kv_head, group);
    for (;;) {
        const u32 next = page + gridDim.x;
        const bool more = next < count;
        if (more) head = head_of(pages, run.table, next, kv_head);
        Visible visible;
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 token = (lane / 4 + high * 8) / group;
            visible.count[high] = token < run.tokens ? seen_of_page(run.start + token + 1, page) : 0;
        }
        Partial part;
        float scores[8][4];
        await_copies<1>();
        __syncwarp();
        weigh_page(part, scores, q, base, visible);
        __syncwarp();
        if (more) copy(next, head, 0);
        else end_copies();
        await_copies<1>();
        __syncwarp();
        add_values(part, scores, base);
        __syncwarp();
        if (more) copy(next, head, 1);
        const u64 slot = ((u64)blockIdx.z * kv_heads + kv_head) * pages_max + page;
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 row = lane / 4 + high * 8;
            if (row >= run.tokens * group) continue;
            const u64 at = slot * rows_max + row;
            if (lane % 4 == 0) marks[at] = make_float2(part.largest[high], part.sum[high]);
#pragma unroll
            for (int block = 0; block < D_BLOCKS; block++)
                *(float2*)(parts + at * HEAD_PAD + block * 8 + lane % 4 * 2) =
                    make_float2(part.out[block][high * 2], part.out[block][high * 2 + 1]);
        }
        if (!more) return;
        page = next;
    }
}

// Joins the partial results of one row in the order of pages; grid [rows_max * parts of 32 numbers, key heads, runs].  All threads
// copy pages ahead, in stages, and find what each is multiplied with; one warp joins numbers, and one sums of weights.
#define JOIN_THREADS 128
#define JOIN_STAGES 3
#define JOIN_NUMBERS (HEAD_PAD % 32 ? 16 : 32)
KERNEL void __launch_bounds__(JOIN_THREADS, 1) join_pages(
    u16* out, const float* parts, const float2* marks, const Run* runs, u32 tokens, u32 heads, u32 kv_heads, u32 dim,
    u32 rows_max, u32 pages_max) {
    extern __shared__ __align__(128) u8 shared_parts[];       // [JOIN_STAGES][pages of a stage][JOIN_NUMBERS]
    __shared__ float2 by[JOIN_THREADS];
    __shared__ float sums[JOIN_THREADS], warps[JOIN_THREADS / 32], so_large, sum_of_all;
    constexpr u32 SPLITS = HEAD_PAD / JOIN_NUMBERS, PIECES = JOIN_NUMBERS / 4;
    wait_for_earlier();
    const Run run = runs[blockIdx.z];
    const u32 row = blockIdx.x / SPLITS, first_number = blockIdx.x % SPLITS * JOIN_NUMBERS, kv_head = blockIdx.y;
    const u32 group = heads / kv_heads;
    if (row >= run.tokens * group) return;
    const u32 count = (run.start + row / group + 1 + 63) / 64, stage_pages = min(pages_max, (u32)JOIN_THREADS);
    const u64 slot = ((u64)blockIdx.z * kv_heads + kv_head) * pages_max * rows_max + row;
    const u32 own = threadIdx.x, lane = own % 32, warp = own / 32, stage_bytes = stage_pages * JOIN_NUMBERS * 4;
    const u32 base = shared_address(shared_parts);
    auto copy_stage = [&](u32 stage) {
        const u32 first = stage * stage_pages, here = first < count ? min(count - first, stage_pages) : 0;
        const float* from = parts + (slot + (u64)first * rows_max) * HEAD_PAD + first_number;
        const u32 to = base + stage % JOIN_STAGES * stage_bytes;
        for (u32 at = own; at < here * PIECES; at += JOIN_THREADS)
            copy16(to + at * 16, from + (u64)(at / PIECES) * rows_max * HEAD_PAD + at % PIECES * 4, true);
        end_copies();
    };
    auto mark_of = [&](u32 page) {
        const bool counts = own < stage_pages && page < count;
        return counts ? marks[slot + (u64)page * rows_max] : make_float2(NO_SCORE, 0.0f);
    };
    float2 mark = mark_of(own);
#pragma unroll
    for (u32 stage = 0; stage < JOIN_STAGES - 1; stage++) copy_stage(stage);
    float largest = NO_SCORE, value = 0.0f;
    for (u32 stage = 0, first = 0; first < count; stage++, first += stage_pages) {
        // The largest up to each page and before it.
        float up_to = mark.x;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            float other = __shfl_up_sync(~0u, up_to, apart);
            if (lane >= apart) up_to = fmaxf(up_to, other);
        }
        if (lane == 31) warps[warp] = up_to;
        float before = __shfl_up_sync(~0u, up_to, 1);
        if (lane == 0) before = NO_SCORE;
        __syncthreads();
        float earlier = largest;
#pragma unroll
        for (u32 i = 0; i < JOIN_THREADS / 32 - 1; i++)
            if (i < warp) earlier = fmaxf(earlier, warps[i]);
        before = fmaxf(before, earlier), up_to = fmaxf(up_to, earlier);
        const Factors factors = factors_of(before, mark.x, up_to);
        by[own] = make_float2(factors.before, factors.now);
        sums[own] = mark.y;
        const u32 here = min(count - first, stage_pages);
        if (own == here - 1) so_large = up_to;
        mark = mark_of(first + stage_pages + own);
        await_copies<JOIN_STAGES - 2>();
        __syncthreads();
        copy_stage(stage + JOIN_STAGES - 1);
        largest = so_large;
        if (warp == 0) {
            const float* from = (const float*)(shared_parts + stage % JOIN_STAGES * stage_bytes) + lane % JOIN_NUMBERS;
#pragma unroll 8
            for (u32 i = 0; i < here; i++) value = joined(value, from[i * JOIN_NUMBERS], {by[i].x, by[i].y});
        } else if (warp == 1) {
#pragma unroll 8
            for (u32 i = 0; i < here; i++) value = joined(value, sums[i], {by[i].x, by[i].y});
        }
        __syncthreads();
    }
    if (own == 32) sum_of_all = value;
    __syncthreads();
    if (warp > 0) return;
    value = attended(value, __fdiv_rn(1.0f, sum_of_all));
    const float next = __shfl_down_sync(~0u, value, 1);
    const u32 number = first_number + lane;
    if (lane < JOIN_NUMBERS && number < dim && number % 2 == 0) {
        const u32 token = run.row + row / group, head = kv_head * group + row % group, eights = (tokens + 7) / 8;
        *(u32*)(out + activation_at(head * dim + number, token, eights)) = held_pair(value, next);
    }
}

#if __CUDA_ARCH__ >= 900
// What `rotate_and_keep`, `attend_pages` and `join_pages` do, in one launch, for few rows of queries: a cluster of blocks takes a
// key head of a run, and its pages are dealt to the warps of all blocks from the last one on.  Each block makes all queries of
// the head, and keys and values of those tokens whose page it has, which go into that page in shared memory as well.  Partial
// results stay in shared memory, where the blocks join some numbers each.  Grid [blocks of the cluster, key heads, runs];
// shared memory is pages [page_warps], parts [own_max][rows_max][HEAD_PAD] and marks, alike, of two.
#define TOGETHER_WARPS 4
KERNEL void __launch_bounds__(TOGETHER_WARPS * 32) attend_together(
    u16* out, const float* all, const float* query_norm, const float* key_norm, const float* cosines, const float* sines,
    const Run* runs, u8* pool, const u32* tables, u64 page_bytes, u32 tokens, u32 heads, u32 kv_heads, u32 dim, u32 stride,
    float eps, float query_scale, u32 rows_max, u32 own_max, u32 page_warps) {
    extern __shared__ __align__(128) u8 shared_pages[];
    // Rows that a bank apart from each other begin.
    __shared__ __align__(16) u16 queries[16][HEAD_PAD + 8];
    __shared__ float turning[TOGETHER_WARPS][HEAD_PAD];
    constexpr u32 PAGE = 2 * D_BLOCKS * 64 * 16;
    const u32 rank = cluster_rank(), ranks = cluster_size(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* parts = (float*)(shared_pages + page_warps * PAGE);
    float2* marks = (float2*)(parts + own_max * rows_max * HEAD_PAD);
    let_next_begin();
    // Told by the host before the first launch of the pass, as are tables.
    const Run run = runs[blockIdx.z];
    if (run.tokens == 0) return;
    const u32 kv_head = blockIdx.y, group = heads / kv_heads, rows = run.tokens * group;
    const u32 end = run.start + run.tokens, count = (end + 63) / 64;
    const Pages pages = {pool, tables, page_bytes, kv_heads};
    const u32 base = shared_address(shared_pages) + warp * PAGE;
    // The pages of this warp are those that are so far from the last one; its first is asked for in the second cache.
    u32 from_last = warp < page_warps ? rank + ranks * warp : count;
    const u8* head = nullptr;
    if (from_last < count) {
        head = head_of(pages, run.table, count - 1 - from_last, kv_head);
        for (u32 at = lane * 128; at < HEAD_BYTES; at += 32 * 128) ask(head + at);
    }
    Head query, key;
    query.load_norm(query_norm, dim), key.load_norm(key_norm, dim);
    wait_for_writes();

    // Tokens of the run are not in pages yet.
    auto copy = [&](u32 page, const u8* head, u32 part) {
        copy_pieces<32>(base, head, lane, part * PART_PIECES, (part + 1) * PART_PIECES, [&](u32 inside) {
            const u32 position = page * 64 + inside;
            return position < run.start ? COPIED : position < end ? LEFT : ZERO;
        });
    };
    if (head) copy(count - 1 - from_last, head, 0), copy(count - 1 - from_last, head, 1);
    for (u32 row = warp; row < rows; row += TOGETHER_WARPS) {
        const u32 token = run.row + row / group;
        query.load(all + (u64)token * stride + (kv_head * group + row % group) * dim, dim);
        query.load_turn(cosines + token * (dim / 2), sines + token * (dim / 2), dim);
        query.turn(turning[warp], query_norm, dim, eps);
        query.store_query(queries[row], query_scale);
    }
    // Warps that have fewer queries begin.  Pages of tokens of the run are the first ones of the first warps.
    for (u32 work = TOGETHER_WARPS - 1 - warp; work < 2 * run.tokens; work += TOGETHER_WARPS) {
        const u32 position = run.start + work / 2, token = run.row + work / 2, is_value = work % 2;
        const u32 place = count - 1 - position / 64;
        if (place % ranks != rank) continue;
        key.load(all + (u64)token * stride + (heads + is_value * kv_heads + kv_head) * dim, dim);
        if (!is_value) {
            key.load_turn(cosines + token * (dim / 2), sines + token * (dim / 2), dim);
            key.turn(turning[warp], key_norm, dim, eps);
        }
        key.keep(head_of(pages, run.table, position / 64, kv_head), shared_pages + place / ranks * PAGE, position % 64, is_value);
    }
    __syncthreads();

    u32 q[D_STEPS][4];
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = lane / 4 + high * 8;
        const u32* from = (const u32*)queries[row] + lane % 4;
#pragma unroll
        for (int step = 0; step < D_STEPS; step++) {
            q[step][high] = row < rows ? from[step * 8] : 0;
            q[step][2 + high] = row < rows ? from[step * 8 + 4] : 0;
        }
    }
    for (u32 own = warp; from_last < count; own += page_warps) {
        const u32 page = count - 1 - from_last;
        from_last += ranks * page_warps;
        const bool more = from_last < count;
        if (more) head = head_of(pages, run.table, count - 1 - from_last, kv_head);
        Visible visible;
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 token = (lane / 4 + high * 8) / group;
            visible.count[high] = token < run.tokens ? seen_of_page(run.start + token + 1, page) : 0;
        }
        Partial part;
        float scores[8][4];
        await_copies<1>();
        __syncwarp();
        weigh_page(part, scores, q, base, visible);
        __syncwarp();
        if (more) copy(count - 1 - from_last, head, 0);
        else end_copies();
        await_copies<1>();
        __syncwarp();
        add_values(part, scores, base);
        __syncwarp();
        if (more) copy(count - 1 - from_last, head, 1);
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 row = lane / 4 + high * 8, at = own * rows_max + row;
            if (row >= rows) continue;
            if (lane % 4 == 0) marks[at] = make_float2(part.largest[high], part.sum[high]);
#pragma unroll
            for (int block = 0; block < D_BLOCKS; block++)
                *(float2*)(parts + at * HEAD_PAD + block * 8 + lane % 4 * 2) =
                    make_float2(part.out[block][high * 2], part.out[block][high * 2 + 1]);
        }
    }
    arrive_in_cluster();
    await_cluster();

    const u32 parts_at = shared_address(parts), marks_at = shared_address(marks), eights = (tokens + 7) / 8;
    for (u32 at = (warp * ranks + rank) * 32 + lane; at < rows * HEAD_PAD; at += ranks * TOGETHER_WARPS * 32) {
        const u32 row = at / HEAD_PAD, d = at % HEAD_PAD, seen = (run.start + row / group + 1 + 63) / 64;
        float largest = NO_SCORE, sum = 0.0f, value = 0.0f;
#pragma unroll 8
        for (u32 page = 0; page < seen; page++) {
            const u32 place = count - 1 - page, from = place % ranks, own = place / ranks * rows_max + row;
            const float2 mark = load_two_in_cluster(address_in(from, marks_at + own * 8));
            const float part = load_in_cluster(address_in(from, parts_at + (own * HEAD_PAD + d) * 4));
            const float now = fmaxf(largest, mark.x);
            const Factors by = factors_of(largest, mark.x, now);
            largest = now;
            sum = joined(sum, mark.y, by);
            value = joined(value, part, by);
        }
        if (d >= dim) continue;
        const u32 token = run.row + row / group, number = (kv_head * group + row % group) * dim + d;
        out[activation_at(number, token, eights)] = held_half(attended(value, __fdiv_rn(1.0f, sum)));
    }
    // Nobody leaves while another reads from it.
    arrive_in_cluster();
    await_cluster();
}
#endif
