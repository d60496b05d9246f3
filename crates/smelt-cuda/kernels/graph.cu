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

// Rows normed by their deviation, or by their root mean square where they are not centred; into rows of f32, or where there
// are `columns` into activations of so many.  Thread t takes the runs of eight numbers t, t + 256, ..
KERNEL void __launch_bounds__(ROW_THREADS) norm_numbers(
    void* out, const float* x, const float* scale, const float* bias, u32 width, u32 columns, u32 eights, u32 centred, float eps) {
    wait_for_earlier();
    const float* row = x + (u64)blockIdx.x * width;
    const u32 own = threadIdx.x * 8, end = columns > width ? columns : width;
    float numbers[8], mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
        for (u32 first = own; first < width; first += ROW_THREADS * 8) {
            load_any_eight(numbers, row, first, width);
#pragma unroll
            for (int i = 0; i < 8; i++) sum = __fadd_rn(sum, numbers[i]);
        }
        mean = __fdiv_rn(block_sum(sum), (float)width);
        __syncthreads();
    }
    float squares = 0.0f;
    for (u32 first = own; first < width; first += ROW_THREADS * 8) {
        load_any_eight(numbers, row, first, width);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float apart = first + i < width ? __fadd_rn(numbers[i], -mean) : 0.0f;
            squares = __fmaf_rn(apart, apart, squares);
        }
    }
    const float square = __fdiv_rn(block_sum(squares), (float)width);
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(square, eps)));
    for (u32 first = own; first < end; first += ROW_THREADS * 8) {
        load_any_eight(numbers, row, first, width);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 k = first + i;
            float value = 0.0f;
            if (k < width) {
                value = __fmul_rn(__fadd_rn(numbers[i], -mean), inverse);
                if (scale) value = __fmul_rn(value, scale[k]);
                if (bias) value = __fadd_rn(value, bias[k]);
            }
            numbers[i] = value;
            if (!columns && k < width) ((float*)out)[(u64)blockIdx.x * width + k] = value;
        }
        if (columns)
            *(uint4*)((u16*)out + activation_at(first, blockIdx.x, eights)) =
                make_uint4(held_pair(numbers[0], numbers[1]), held_pair(numbers[2], numbers[3]),
                           held_pair(numbers[4], numbers[5]), held_pair(numbers[6], numbers[7]));
    }
}

// Heads of numbers that lie anywhere as halves: queries `[batch, heads, rows, HEAD_PAD]` (form 0), or the keys (1) or values
// (2) of pages `[batch, heads, rows / 64]`.  A thread writes eight numbers of a row.
KERNEL void __launch_bounds__(MOVE_THREADS) arrange_heads(
    u16* out, const void* from, u64 by_batch, u64 by_head, u64 by_row, u64 by_number, u64 count, u32 kind, u32 heads, u32 rows,
    u32 numbers, u32 form, float scale) {
    wait_for_earlier();
    const u64 at = (u64)blockIdx.x * MOVE_THREADS + threadIdx.x;
    if (at >= count) return;
    const u32 eight = at % D_BLOCKS, row = at / D_BLOCKS % rows, head = at / D_BLOCKS / rows;
    const u64 first = head / heads * by_batch + head % heads * by_head + row * by_row;
    float own[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 d = eight * 8 + i;
        own[i] = d < numbers ? __fmul_rn(stored_number(from, first + d * by_number, kind), scale) : 0.0f;
    }
    const u64 page = (u64)head * ((rows + 63) / 64) + row / 64;
    const u64 place = form == 0 ? ((u64)head * rows + row) * HEAD_PAD + eight * 8
                                : page * (HEAD_BYTES / 2) + (form == 2 ? 64 * HEAD_PAD : 0) + (eight * 64 + row % 64) * 8;
    *(uint4*)(out + place) =
        make_uint4(held_pair(own[0], own[1]), held_pair(own[2], own[3]), held_pair(own[4], own[5]), held_pair(own[6], own[7]));
}

// What is added to scores, `[batch, heads, queries, keys]` by steps of numbers.
struct Mask {
    const void* numbers;
    u64 by_batch, by_head, by_query, by_key;
    u32 kind;
};

// What rows g and g + 8 see of a page through a mask: a number that hides is held where a sum of such is still one.
struct SeenThrough {
    const Mask& mask;
    u64 at[2];
    u32 first, count;
    __device__ __forceinline__ float operator()(float score, int high, u32 position) const {
        if (position >= count) return NO_SCORE;
        const float more = stored_number(mask.numbers, at[high] + (first + position) * mask.by_key, mask.kind);
        const float sum = __fmaf_rn(more, LOG2_E, score);
        return sum < -3.402823466e38f ? -3.402823466e38f : sum;
    }
};

// Queries that attend to all keys: a block is 64 of them of one head; grid [queries / 64, heads, batch].  What comes goes
// to rows `[batch, queries, heads, width]` of f32, or where there are `eights` into activations of so many eights of rows.
template <bool MASKED>
__device__ __forceinline__ void attend_everything(
    void* out, const u16* queries, const u8* pages, const Mask& mask, u32 query_count, u32 key_count, u32 heads, u32 width,
    u32 eights) {
    extern __shared__ __align__(128) u8 shared_heads[];
    constexpr u32 PAGE = 2 * D_BLOCKS * 64 * 16;
    wait_for_writes();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.z * heads + blockIdx.y;
    const u32 first_row = blockIdx.x * 64 + warp * 16, count = (key_count + 63) / 64;
    const u8* own_pages = pages + (u64)head * count * HEAD_BYTES;
    const u32 base = shared_address(shared_heads);
    const Run run = {head * query_count, query_count, 0, 0};
    u32 q[D_STEPS][4];
    load_queries(q, queries, run, first_row, 1, 0, 1);
    u64 mask_at[2] = {0, 0};
    if (MASKED) {
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const u32 row = min(first_row + lane / 4 + high * 8, query_count - 1);
            mask_at[high] = blockIdx.z * mask.by_batch + blockIdx.y * mask.by_head + row * mask.by_query;
        }
    }
    float so_far[D_BLOCKS][4], largest[2] = {NO_SCORE, NO_SCORE}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D_BLOCKS * 4; i++) so_far[i / 4][i % 4] = 0.0f;

    copy_page<128>(base, own_pages, key_count);
    for (u32 page = 0; page < count; page++) {
        const u32 first = page * 64, present = min(key_count - first, 64u);
        if (page + 1 < count) {
            copy_page<128>(base + (page + 1) % 2 * PAGE, own_pages + (u64)(page + 1) * HEAD_BYTES, key_count - first - 64);
        } else {
            end_copies();
        }
        await_copies<1>();
        __syncthreads();
        Partial part;
        if (MASKED) attend_page(part, q, base + page % 2 * PAGE, SeenThrough{mask, {mask_at[0], mask_at[1]}, first, present});
        else attend_page(part, q, base + page % 2 * PAGE, Visible{{present, present}});
        join(so_far, largest, sum, part);
        __syncthreads();
    }
    let_next_begin();
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const u32 row = first_row + lane / 4 + high * 8;
        if (row >= query_count) continue;
        const u32 token = blockIdx.z * query_count + row;
        const float inverse = __fdiv_rn(1.0f, sum[high]);
#pragma unroll
        for (int i = 0; i < D_BLOCKS * 2; i++) {
            const u32 d = i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (d >= width) continue;
            const float value = attended(so_far[i / 2][high * 2 + i % 2], inverse);
            const u32 k = blockIdx.y * width + d;
            if (eights) ((u16*)out)[activation_at(k, token, eights)] = held_half(value);
            else ((float*)out)[(u64)token * heads * width + k] = value;
        }
    }
}

#define ATTEND_ALL(NAME, MASKED)                                                                                         \
    KERNEL void __launch_bounds__(128) NAME(                                                                             \
        void* out, const u16* queries, const u8* pages, const void* mask, u64 by_batch, u64 by_head, u64 by_query,       \
        u64 by_key, u32 kind, u32 query_count, u32 key_count, u32 heads, u32 width, u32 eights) {                        \
        const Mask own = {mask, by_batch, by_head, by_query, by_key, kind};                                              \
        attend_everything<MASKED>(out, queries, pages, own, query_count, key_count, heads, width, eights);               \
    }
ATTEND_ALL(attend_all, false)
ATTEND_ALL(attend_masked, true)

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
