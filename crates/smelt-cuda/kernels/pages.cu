// Attention of decoders over the pages of their slots: of many rows at once, or page by page with what joins them.

__device__ __forceinline__ u32 seen_of_page(u32 seen, u32 page) {
    u32 before = page * 64;
    return seen <= before ? 0 : (seen - before < 64 ? seen - before : 64);
}

// Many queries: a block is 64 rows of one key head of one run; grid [row tiles, key heads, runs].
KERNEL void __launch_bounds__(128) attend_prompt(
    u16* out, const u16* queries, const Run* runs, const u8* pool, const u32* tables, u64 page_bytes, u32 tokens, u32 heads,
    u32 kv_heads, u32 dim) {
    extern __shared__ __align__(128) u8 shared_pages[];
    constexpr u32 PAGE = 2 * D_BLOCKS * 64 * 16;
    wait_for_writes();
    const Run run = runs[blockIdx.z];
    const u32 kv_head = blockIdx.y, group = heads / kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 first_row = (gridDim.x - 1 - blockIdx.x) * 64;
    if (first_row >= run.tokens * group) return;
    const Pages pages = {(u8*)pool, tables, page_bytes, kv_heads};
    const u32 last_row = min(first_row + 63, run.tokens * group - 1);
    const u32 end = run.start + run.tokens, seen_all = run.start + last_row / group + 1, count = (seen_all + 63) / 64;
    const u32 base = shared_address(shared_pages);

    u32 q[D_STEPS][4], seen[2];
    load_queries(q, queries, run, first_row + warp * 16, heads, kv_head, group);
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 token = (first_row + warp * 16 + lane / 4 + high * 8) / group;
        seen[high] = token < run.tokens ? run.start + token + 1 : 0;
    }
    float so_far[D_BLOCKS][4], largest[2] = {NO_SCORE, NO_SCORE}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D_BLOCKS * 4; i++) so_far[i / 4][i % 4] = 0.0f;

    copy_page<128>(base, head_of(pages, run.table, 0, kv_head), end);
    for (u32 page = 0; page < count; page++) {
        if (page + 1 < count) {
            const u32 next = page + 1;
            copy_page<128>(base + next % 2 * PAGE, head_of(pages, run.table, next, kv_head), end - next * 64);
        } else {
            end_copies();
        }
        await_copies<1>();
        __syncthreads();
        const Visible visible = {{seen_of_page(seen[0], page), seen_of_page(seen[1], page)}};
        if (__any_sync(~0u, visible.count[0] + visible.count[1] > 0)) {
            Partial part;
            attend_page(part, q, base + page % 2 * PAGE, visible);
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
        __syncthreads();
    }
    let_next_begin();
    const u32 eights = (tokens + 7) / 8;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = first_row + warp * 16 + lane / 4 + high * 8;
        if (row >= run.tokens * group) continue;
        const u32 token = run.row + row / group, head = kv_head * group + row % group;
        const float inverse = __fdiv_rn(1.0f, sum[high]);
#pragma unroll
        for (int block = 0; block < D_BLOCKS; block++) {
            const u32 d = block * 8 + lane % 4 * 2;
            if (d < dim)
                *(u32*)(out + activation_at(head * dim + d, token, eights)) =
                    held_pair(attended(so_far[block][high * 2], inverse), attended(so_far[block][high * 2 + 1], inverse));
        }
    }
}

// Few queries: a warp is one page of one key head of one run of at most 16 rows; grid [pages, key heads, runs].
// Partial results go to `parts` [runs][key heads][pages][rows_max][HEAD_PAD] and `marks`, alike, of two: largest and sum.
KERNEL void __launch_bounds__(32) attend_pages(
    float* parts, float2* marks, const u16* queries, const Run* runs, const u8* pool, const u32* tables, u64 page_bytes,
    u32 heads, u32 kv_heads, u32 rows_max) {
    extern __shared__ __align__(128) u8 shared_pages[];
    wait_for_earlier();
    const Run run = runs[blockIdx.z];
    const u32 page = blockIdx.x, kv_head = blockIdx.y, group = heads / kv_heads, lane = threadIdx.x;
    const u32 end = run.start + run.tokens;
    if (page * 64 >= end || run.tokens == 0) return;
    const Pages pages = {(u8*)pool, tables, page_bytes, kv_heads};
    const u32 base = shared_address(shared_pages);
    copy_page<32>(base, head_of(pages, run.table, page, kv_head), end - page * 64);
    u32 q[D_STEPS][4];
    Visible visible;
    load_queries(q, queries, run, 0, heads, kv_head, group);
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 token = (lane / 4 + high * 8) / group;
        visible.count[high] = token < run.tokens ? seen_of_page(run.start + token + 1, page) : 0;
    }
    await_copies<0>();
    __syncwarp();
    Partial part;
    attend_page(part, q, base, visible);
    const u64 slot = ((u64)blockIdx.z * kv_heads + kv_head) * gridDim.x + page;
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
}

// Joins the partial results of one row in the order of pages; grid [rows_max, key heads, runs], a thread for two numbers.
#define JOIN_THREADS 64
#define PAGES_AHEAD 16
KERNEL void __launch_bounds__(JOIN_THREADS, 1) join_pages(
    u16* out, const float* parts, const float2* marks, const Run* runs, u32 tokens, u32 heads, u32 kv_heads, u32 dim,
    u32 rows_max, u32 pages_max) {
    __shared__ float2 by[JOIN_THREADS];
    __shared__ float sums[JOIN_THREADS], first_warp;
    wait_for_earlier();
    const Run run = runs[blockIdx.z];
    const u32 row = blockIdx.x, kv_head = blockIdx.y, group = heads / kv_heads;
    if (row >= run.tokens * group) return;
    const u32 count = (run.start + row / group + 1 + 63) / 64;
    const u64 slot = ((u64)blockIdx.z * kv_heads + kv_head) * pages_max;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = threadIdx.x * 2;
    float largest = NO_SCORE, sum = 0.0f;
    float2 so_far = make_float2(0.0f, 0.0f);
    for (u32 first = 0; first < count; first += JOIN_THREADS) {
        // The largest up to each page and before it.
        const u32 page = first + threadIdx.x;
        float2 mark = page < count ? marks[(slot + page) * rows_max + row] : make_float2(NO_SCORE, 0.0f);
        float up_to = mark.x;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            float other = __shfl_up_sync(~0u, up_to, apart);
            if (lane >= apart) up_to = fmaxf(up_to, other);
        }
        __syncthreads();
        if (threadIdx.x == 31) first_warp = up_to;
        __syncthreads();
        float before = __shfl_up_sync(~0u, up_to, 1);
        if (lane == 0) before = NO_SCORE;
        if (warp == 1) before = fmaxf(before, first_warp), up_to = fmaxf(up_to, first_warp);
        before = fmaxf(before, largest), up_to = fmaxf(up_to, largest);
        const Factors factors = factors_of(before, mark.x, up_to);
        by[threadIdx.x] = make_float2(factors.before, factors.now);
        sums[threadIdx.x] = mark.y;
        const u32 here = min(count - first, (u32)JOIN_THREADS);
        __syncthreads();
        if (own < HEAD_PAD) {
            const float* from = parts + ((slot + first) * rows_max + row) * HEAD_PAD + own;
            // Many pages are on their way at once.
            for (u32 i = 0; i < here; i += PAGES_AHEAD) {
                float2 now[PAGES_AHEAD];
#pragma unroll
                for (u32 j = 0; j < PAGES_AHEAD; j++)
                    if (i + j < here) now[j] = *(const float2*)(from + (u64)(i + j) * rows_max * HEAD_PAD);
#pragma unroll
                for (u32 j = 0; j < PAGES_AHEAD; j++) {
                    if (i + j >= here) break;
                    const Factors step = {by[i + j].x, by[i + j].y};
                    so_far.x = joined(so_far.x, now[j].x, step), so_far.y = joined(so_far.y, now[j].y, step);
                    sum = joined(sum, sums[i + j], step);
                }
            }
        }
        // The largest of all pages so far is that of the last.
        float last = __shfl_sync(~0u, up_to, (here - 1) % 32);
        __syncthreads();
        if (lane == 0 && warp == (here - 1) / 32) first_warp = last;
        __syncthreads();
        largest = first_warp;
    }
    if (own < dim) {
        const u32 token = run.row + row / group, head = kv_head * group + row % group, eights = (tokens + 7) / 8;
        const float inverse = __fdiv_rn(1.0f, sum);
        *(u32*)(out + activation_at(head * dim + own, token, eights)) =
            held_pair(attended(so_far.x, inverse), attended(so_far.y, inverse));
    }
}
