// What happens to rows between products: embeddings, norms, rotation, keys and values put into pages.
//
// The states of tokens are rows of f32; what products take lies in blocks of halves.  Sums run in one order that depends on
// the row's length alone.

// out[token] = table[ids[token]]
KERNEL void __launch_bounds__(ROW_THREADS) embed_rows(
    float* out, const void* table, const u32* ids, u32 hidden, u32 kind) {
    wait_for_earlier();
    const u32 token = blockIdx.x;
    const u64 from = (u64)ids[token] * hidden;
    for (u32 k = threadIdx.x; k < hidden; k += ROW_THREADS) out[(u64)token * hidden + k] = stored_number(table, from + k, kind);
}

// x[rows[i]] = from[sources[i]], or += where `adds`.
KERNEL void __launch_bounds__(ROW_THREADS) scatter_rows(
    float* x, const void* from, const u32* rows, const u32* sources, u32 hidden, u32 kind, u32 adds) {
    wait_for_earlier();
    const u64 row = (u64)rows[blockIdx.x] * hidden, source = (u64)sources[blockIdx.x] * hidden;
    for (u32 k = threadIdx.x; k < hidden; k += ROW_THREADS) {
        float value = stored_number(from, source + k, kind);
        x[row + k] = adds ? __fadd_rn(x[row + k], value) : value;
    }
}

// Row `rows[i]` of x, or row i, normed into token i's column.
KERNEL void __launch_bounds__(ROW_THREADS) norm_rows(
    u16* out, const float* x, const float* weight, const u32* rows, u32 tokens, u32 hidden, u32 columns, float eps) {
    __shared__ float warps[ROW_THREADS / 32];
    const u32 token = blockIdx.x, eights = (tokens + 7) / 8;
    float by[8];
    load_eight(by, weight, threadIdx.x * 8, hidden);
    wait_for_earlier();
    const NormedRow normed = {x + (u64)(rows ? rows[token] : token) * hidden, weight, hidden, columns, eps};
    norm_row(normed, by, warps, [&](u32 k, uint4 eight) { *(uint4*)(out + activation_at(k, token, eights)) = eight; });
}

// silu(gate) * up of rows that were multiplied apart, into columns; columns up to `columns` are zero.
KERNEL void __launch_bounds__(ROW_THREADS) swiglu_rows(
    u16* out, const float* gates, const float* ups, u32 tokens, u32 width, u32 gate_stride, u32 up_stride, u32 columns) {
    wait_for_earlier();
    const u32 token = blockIdx.x, eights = (tokens + 7) / 8;
    for (u32 k = threadIdx.x; k < columns; k += ROW_THREADS) {
        float value = 0.0f;
        if (k < width) value = swiglu_of(gates[(u64)token * gate_stride + k], ups[(u64)token * up_stride + k]);
        out[activation_at(k, token, eights)] = held_half(value);
    }
}

// Columns of activations in another order, for weights whose columns were sorted: out column i is column order[i].
KERNEL void __launch_bounds__(ROW_THREADS) reorder_columns(
    u16* out, const u16* x, const u32* order, u32 tokens, u32 columns, u32 padded_columns) {
    wait_for_earlier();
    const u32 token = blockIdx.x, eights = (tokens + 7) / 8;
    for (u32 k = threadIdx.x; k < padded_columns; k += ROW_THREADS) {
        u16 value = 0;
        if (k < columns) value = x[activation_at(order[k], token, eights)];
        out[activation_at(k, token, eights)] = value;
    }
}

// sums[group][token]: activations of each group of columns added up in their order.
KERNEL void __launch_bounds__(ROW_THREADS) group_sums(float* sums, const u16* x, u32 tokens, u32 columns, u32 group) {
    wait_for_earlier();
    const u32 eights = (tokens + 7) / 8, groups = columns / group;
    const u32 at = blockIdx.x * ROW_THREADS + threadIdx.x, token = at % (eights * 8), own = at / (eights * 8);
    if (own >= groups) return;
    float sum = 0.0f;
    for (u32 k = own * group; k < (own + 1) * group; k++) sum = __fadd_rn(sum, half_value(x[activation_at(k, token, eights)]));
    sums[at] = sum;
}

// Cosines and sines of each token's place, [tokens][pairs] each: angles are rounded to f32 as models were trained.
KERNEL void __launch_bounds__(64) rotations(
    float* cosines, float* sines, const u32* places, const float* frequencies, const u32* axes, u32 pairs, float factor) {
    wait_for_earlier();
    const u32 token = blockIdx.x;
    for (u32 i = threadIdx.x; i < pairs; i += 64) {
        float angle = __fmul_rn(frequencies[i], (float)places[token * 3 + axes[i]]);
        double sine, cosine;
        sincos((double)angle, &sine, &cosine);
        cosines[token * pairs + i] = __fmul_rn((float)cosine, factor);
        sines[token * pairs + i] = __fmul_rn((float)sine, factor);
    }
}

// Where a layer's keys and values of a page lie: keys in blocks of 64 positions by 8 numbers, [numbers / 8][64][8], values
// behind them alike; in bytes, blocks are of 16 numbers, and the scales of keys and values, 64 each, follow.
struct Pages {
    u8* pool;               // of this layer: page 0's heads
    const u32* tables;      // pages of slots
    u64 page_bytes;
    u32 kv_heads;
};

__device__ __forceinline__ u8* head_of(const Pages& pages, u32 table, u32 page, u32 head) {
    u64 index = pages.tables[table + page];
    return pages.pool + index * pages.page_bytes + (u64)head * HEAD_BYTES;
}

__device__ __forceinline__ void store_halves(u8* part, u32 position, const float (&own)[HEAD_OWN]) {
#pragma unroll
    for (int i = 0; i < HEAD_OWN; i++) {
        u32 d = threadIdx.x % 32 + 32 * i;
        if (d < HEAD_PAD) ((u16*)part)[(d / 8 * 64 + position) * 8 + d % 8] = held_half(own[i]);
    }
}

// Levels of a head's numbers; what they are multiplied with, no number where one of them is none.
__device__ __forceinline__ float levels_of(signed char (&levels)[HEAD_OWN], const float (&own)[HEAD_OWN]) {
    float largest = 0.0f;
    bool sound = true;
#pragma unroll
    for (int i = 0; i < HEAD_OWN; i++) {
        largest = fmaxf(largest, fabsf(own[i]));
        sound = sound && fabsf(own[i]) <= 3.402823466e38f;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
    sound = __all_sync(~0u, sound);
    const float scale = sound ? __fdiv_rn(largest, 127.0f) : __uint_as_float(0x7FC00000);
    const float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
#pragma unroll
    for (int i = 0; i < HEAD_OWN; i++) levels[i] = (signed char)__float2int_rn(__fmul_rn(own[i], inverse));
    return scale;
}

__device__ __forceinline__ void store_bytes(u8* part, u32 position, const signed char (&levels)[HEAD_OWN]) {
#pragma unroll
    for (int i = 0; i < HEAD_OWN; i++) {
        u32 d = threadIdx.x % 32 + 32 * i;
        if (d < HEAD_PAD) part[(d / 16 * 64 + position) * 16 + d % 16] = (u8)levels[i];
    }
}

// A head of a token on its way from a product: own numbers of a lane, what turns them, weights of the norm.
struct Head {
    float own[HEAD_OWN], cosine[HEAD_OWN], sine[HEAD_OWN], by[HEAD_OWN];

    // All that is read is on its way before the first of it is used.  Weights, which nothing writes, may be read before.
    __device__ __forceinline__ void load_norm(const float* norm, u32 dim) {
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            const u32 d = threadIdx.x % 32 + 32 * i;
            by[i] = norm && d < dim ? norm[d] : 0.0f;
        }
    }
    __device__ __forceinline__ void load(const float* from, u32 dim) {
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            const u32 d = threadIdx.x % 32 + 32 * i;
            own[i] = d < dim ? from[d] : 0.0f;
        }
    }
    // Of the token's place, [dim / 2] each.
    __device__ __forceinline__ void load_turn(const float* cosines, const float* sines, u32 dim) {
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            const u32 d = threadIdx.x % 32 + 32 * i, at = d % (dim / 2);
            cosine[i] = d < dim ? cosines[at] : 0.0f;
            sine[i] = d < dim ? sines[at] : 0.0f;
        }
    }
    // Normed where there are weights for it, and turned; `row` is a place of HEAD_PAD numbers for this warp alone.
    __device__ __forceinline__ void turn(float* row, bool is_normed, u32 dim, float eps) {
        const u32 lane = threadIdx.x % 32, half = dim / 2;
        float factor = 1.0f;
        if (is_normed) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < HEAD_OWN; i++) squares = __fmaf_rn(own[i], own[i], squares);
            float mean = __fdiv_rn(warp_sum(squares), (float)dim);
            factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
        }
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            u32 d = lane + 32 * i;
            if (d < dim) row[d] = is_normed ? __fmul_rn(__fmul_rn(own[i], factor), by[i]) : own[i];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            u32 d = lane + 32 * i;
            if (d < dim) {
                float other = d < half ? -row[d + half] : row[d - half];
                own[i] = __fadd_rn(__fmul_rn(row[d], cosine[i]), __fmul_rn(other, sine[i]));
            }
        }
        __syncwarp();
    }
    // As a query, scaled, in halves.
    __device__ __forceinline__ void store_query(u16* to, float scale) const {
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) {
            const u32 d = threadIdx.x % 32 + 32 * i;
            if (d < HEAD_PAD) to[d] = held_half(__fmul_rn(own[i], scale));
        }
    }
    // As a key or a value at a position of the page of a head at `at`; and, where there is a place `here`, as halves in a page
    // there, as attention reads them.
    __device__ __forceinline__ void keep(u8* at, u8* here, u32 position, bool is_value) {
        const u32 value_at = is_value ? 2 * 64 * HEAD_PAD : 0;
#if KV_BYTES
        signed char levels[HEAD_OWN];
        const float scale = levels_of(levels, own);
        store_bytes(at + value_at / 2, position, levels);
        if (threadIdx.x % 32 == 0) ((float*)(at + 2 * 64 * HEAD_PAD))[(is_value ? 64 : 0) + position] = scale;
#pragma unroll
        for (int i = 0; i < HEAD_OWN; i++) own[i] = __fmul_rn((float)levels[i], scale);
#else
        store_halves(at + value_at, position, own);
#endif
        if (here) store_halves(here + value_at, position, own);
    }
};

// Queries, keys and values of tokens, [tokens][stride]: heads of queries and keys are normed where there are weights for
// it and turned; queries, scaled, become halves [tokens][heads][HEAD_PAD], keys and values go into their pages.
// A warp takes one head of one token.
KERNEL void __launch_bounds__(ROW_THREADS) rotate_and_keep(
    u16* queries, const float* all, const float* query_norm, const float* key_norm, const float* cosines, const float* sines,
    const u32* row_tables, const u32* row_positions, u8* pool, const u32* tables, u64 page_bytes, u32 tokens, u32 heads,
    u32 kv_heads, u32 dim, u32 stride, float eps, float query_scale) {
    __shared__ float rows[ROW_THREADS / 32][HEAD_PAD];
    const u32 index = blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32;
    const u32 per_token = heads + 2 * kv_heads, token = index / per_token, head = index % per_token;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const float* norm = is_query ? query_norm : key_norm;
    let_next_begin();
    Head own;
    own.load_norm(is_value ? nullptr : norm, dim);
    wait_for_writes();
    if (token >= tokens) return;
    const u32 position = is_query ? 0 : row_positions[token], table = is_query ? 0 : row_tables[token];
    own.load(all + (u64)token * stride + head * dim, dim);
    if (!is_value) {
        own.load_turn(cosines + token * (dim / 2), sines + token * (dim / 2), dim);
        own.turn(rows[threadIdx.x / 32], norm, dim, eps);
    }
    if (is_query) {
        own.store_query(queries + ((u64)token * heads + head) * HEAD_PAD, query_scale);
        return;
    }
    const Pages pages = {pool, tables, page_bytes, kv_heads};
    own.keep(head_of(pages, table, position / 64, (head - heads) % kv_heads), nullptr, position % 64, is_value);
}
