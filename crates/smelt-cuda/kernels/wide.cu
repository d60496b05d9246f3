// Products for many tokens on Hopper, with the bits of `product.cu`: the same chains of columns, and the same sum of them.
//
// A block stays for many tiles of 128 rows by EIGHTS * 8 tokens.  Four warps copy what comes next to a ring of stages: 64
// columns of the rows and tokens of a tile, what the groups of those columns have, and behind all of them what is there where
// results are added.  Two groups of four warps multiply 64 rows each, which they unpack in registers, and write.

#if defined(HAS_WGMMA)
// Floats from token to token of what results are added to: a lane's eight rows and four tokens lie in 32 banks.
#define BEFORE_PITCH 132
// Warps that copy.
#define COPIERS 4
// Most blocks of tokens of a tile beside whose sums there are registers for those of one more long group.
#define GROUPS_EIGHTS_MAX 20

// The tile that is worked on, and the stages of the ring as one side goes through them.
struct WideTile {
    u32 first_row, first_eight, strips, eights;
    __device__ __forceinline__ WideTile(const Product& p, u32 work, u32 all_eights, u32 tile_eights) {
        const u32 all_strips = p.padded_rows / 64, row_tiles = (all_strips + 1) / 2;
        const u32 strip = work % row_tiles * 2;
        first_row = strip * 64, first_eight = work / row_tiles * tile_eights;
        strips = min(all_strips - strip, 2u), eights = min(all_eights - first_eight, tile_eights);
    }
    // Blocks of tokens from `from` on, so many at most.
    __device__ __forceinline__ WideTile only(u32 from, u32 most) const {
        WideTile own = *this;
        own.first_eight += from, own.eights = min(max(eights, from) - from, most);
        return own;
    }
};
template <int STAGES> struct Ring {
    u32 stage = 0, parity;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Where a tile IS_SPLIT two blocks of a cluster have it: each sums one of two chains of columns, gets what the other has of half of
// the tokens, and makes results of those.
template <class F, int EIGHTS, int STAGES, bool IS_SPLIT> struct Wide {
    static_assert(F::GROUP >= 64 && !F::MINS && F::SCALE != SCALE_FACTORS, "a stage is of one group");
    // A stage: two strips of rows, the scales and the zero points of each, tokens.
    static constexpr u32 STRIP_BYTES = F::BITS * 512, SCALE_BYTES = F::SCALE == SCALE_F16 ? 128 : 0, ZERO_BYTES = F::ZEROS ? 64 : 0;
    static constexpr u32 SCALES_AT = 2 * STRIP_BYTES, ZEROS_AT = SCALES_AT + 2 * SCALE_BYTES;
    static constexpr u32 TOKENS_AT = ZEROS_AT + 2 * ZERO_BYTES, STAGE_BYTES = TOKENS_AT + EIGHTS * 1024;
    // Blocks of tokens of a tile of which a block makes results.
    static constexpr u32 OWN_EIGHTS = IS_SPLIT ? (EIGHTS + 1) / 2 : EIGHTS;
    // What results are added to comes in as few pieces as fit stages.
    static constexpr u32 EIGHT_BYTES = 8 * BEFORE_PITCH * 4, PIECE_MOST = STAGE_BYTES / EIGHT_BYTES;
    static constexpr u32 PIECES = (OWN_EIGHTS + PIECE_MOST - 1) / PIECE_MOST, PIECE_EIGHTS = (OWN_EIGHTS + PIECES - 1) / PIECES;
    static_assert((OWN_EIGHTS + PIECE_EIGHTS - 1) / PIECE_EIGHTS == PIECES, "each piece that comes is read");
    // Stages of a group.
    static constexpr u32 GROUP_STAGES = F::GROUP / 64;
    // Whether there are registers for rows that are read while products of those before are made.
    static constexpr bool AHEAD = F::BITS < 16 || EIGHTS <= 12;
    // Whether there are registers for the sums of a group while those of the group before join.  Groups of one stage would be
    // under way where the loop begins anew, and the compiler then awaits every product.
    static constexpr bool OVERLAPS = EIGHTS <= 12 && GROUP_STAGES == 2;

    // What a lane multiplies of a stage: the operands of four steps, and the scales of its two rows.
    struct Rows {
        uint4 steps[4];
        u32 scales;
    };
    typedef float Sums[EIGHTS][4];

    const Product& p;
    u32 base, full, empty, eights, tiles;

    // The first tile of a block, and of its columns the first and how many, in stages.
    __device__ __forceinline__ u32 first_work() const { return IS_SPLIT ? blockIdx.x / 2 : blockIdx.x; }
    __device__ __forceinline__ u32 first_stage() const { return IS_SPLIT ? cluster_rank() * GROUP_STAGES : 0; }
    __device__ __forceinline__ u32 own_stages() const {
        return !IS_SPLIT ? p.columns / 64 : cluster_rank() ? p.columns / 64 - GROUP_STAGES : GROUP_STAGES;
    }
    __device__ __forceinline__ WideTile tile_of(u32 work) const { return WideTile(p, work, eights, EIGHTS); }
    // What it makes results of.
    __device__ __forceinline__ WideTile results_of(const WideTile& tile) const {
        return IS_SPLIT ? tile.only(cluster_rank() * OWN_EIGHTS, OWN_EIGHTS) : tile;
    }

    __device__ __forceinline__ u32 place(u32 stage) const { return base + stage * STAGE_BYTES; }

    // Whether the stage of columns k * 64 is the last of its group: scales come with it.
    __device__ __forceinline__ static bool ends_group(u32 k) { return (k + 1) % GROUP_STAGES == 0; }

    // Which of the warps that copy this is.  An instruction that copies keeps its warp for some 50 ns, in which 8 KiB come, so each
    // warp has one of a stage: a strip of rows, or tokens; what groups have is a warp's own.
    __device__ __forceinline__ static u32 copier() { return threadIdx.x / 32 - 8; }

    __device__ __forceinline__ void copy_rows(const WideTile& tile, u32 k, u32 stage) const {
        const u32 barrier = full + stage * 8, to = place(stage), own = copier(), scale_bytes = ends_group(k) ? SCALE_BYTES : 0;
        const u32 numbers = tile.strips * (scale_bytes + ZERO_BYTES);
        arrive_expecting(barrier, own < 2 ? (own < tile.strips ? STRIP_BYTES : 0) : own == 2 ? numbers : tile.eights * 1024);
        if (own < tile.strips) {
            const u8* from = (const u8*)p.weights + (u64)(tile.first_row / 64 + own) * p.columns * (F::BITS * 8) + k * STRIP_BYTES;
            copy_bytes(to + own * STRIP_BYTES, from, STRIP_BYTES, barrier);
        }
        if (own != 2) return;
        for (u32 i = 0; i < tile.strips; i++) {
            const u64 group = (u64)(tile.first_row / 64 + i) * (p.columns / F::GROUP) + k / GROUP_STAGES;
            if (scale_bytes) copy_bytes(to + SCALES_AT + i * SCALE_BYTES, (const u8*)p.scales + group * SCALE_BYTES, SCALE_BYTES, barrier);
            if (ZERO_BYTES) copy_bytes(to + ZEROS_AT + i * ZERO_BYTES, p.zeros + group * ZERO_BYTES, ZERO_BYTES, barrier);
        }
    }

    __device__ __forceinline__ void copy_tokens(const WideTile& tile, u32 k, u32 stage) const {
        if (copier() != 3) return;
        const u8* from = (const u8*)p.x + ((u64)k * eights + tile.first_eight) * 1024;
        copy_bytes(place(stage) + TOKENS_AT, from, tile.eights * 1024, full + stage * 8);
    }

    // Whether what is added to lies as it is copied, in pieces of 16 bytes.
    __device__ __forceinline__ bool copies_before() const {
        return p.mode == ADD && (p.rows | p.stride) % 4 == 0 && (u64)p.before % 16 == 0;
    }

    // What warps do that copy.
    __device__ __forceinline__ void copy_all() const {
        const u32 lane = threadIdx.x % 32, begin = first_stage(), stages = own_stages(), early = min((u32)STAGES, stages);
        // Weights do not wait for the launch before.
        const WideTile first = tile_of(first_work());
        if (lane == 0)
#pragma unroll 1
            for (u32 k = 0; k < early; k++) copy_rows(first, begin + k, k);
        wait_for_writes();
        if (lane == 0)
#pragma unroll 1
            for (u32 k = 0; k < early; k++) copy_tokens(first, begin + k, k);
        Ring<STAGES> ring = {0, 1};
        for (u32 work = first_work(); work < tiles; work += gridDim.x) {
            const WideTile tile = tile_of(work);
#pragma unroll 1
            for (u32 k = 0; k < stages; k++, ring.next()) {
                if (lane > 0 || (work == first_work() && k < early)) continue;
                await(empty + ring.stage * 8, ring.parity);
                copy_rows(tile, begin + k, ring.stage), copy_tokens(tile, begin + k, ring.stage);
            }
            if (copies_before()) copy_before(results_of(tile), ring);
        }
    }

    __device__ __forceinline__ void copy_before(const WideTile& tile, Ring<STAGES>& ring) const {
        const u32 lane = threadIdx.x % 32, bytes = min(p.rows - tile.first_row, 128u) * 4;
        for (u32 piece = 0; piece < OWN_EIGHTS; piece += PIECE_EIGHTS, ring.next()) {
            const u32 token = (tile.first_eight + piece) * 8, barrier = full + ring.stage * 8;
            const u32 count = token < p.tokens ? min(p.tokens - token, PIECE_EIGHTS * 8) : 0;
            if (lane == 0) {
                await(empty + ring.stage * 8, ring.parity);
                arrive_expecting(barrier, (count + COPIERS - 1 - copier()) / COPIERS * bytes);
            }
            __syncwarp();
#pragma unroll 1
            for (u32 i = lane * COPIERS + copier(); i < count; i += 32 * COPIERS) {
                const float* from = p.before + (u64)(token + i) * p.stride + tile.first_row;
                copy_bytes(place(ring.stage) + i * BEFORE_PITCH * 4, from, bytes, barrier);
            }
        }
    }

    __device__ __forceinline__ void release(u32 stage) const {
        if (threadIdx.x % 32 == 0) arrive(empty + stage * 8);
    }

    // Reads the stage that is next, and unpacks it.
    __device__ __forceinline__ void load(Rows& rows, const Ring<STAGES>& ring) const {
        constexpr int READS = 64 / F::COLUMNS, STEPS = F::COLUMNS / 16;
        const u32 lane = threadIdx.x % 32, tile = threadIdx.x / 32 % 4, strip = threadIdx.x / 128, at = place(ring.stage);
        await(full + ring.stage * 8, ring.parity);
        u32 zeros[2];
        if (F::ZEROS) {
            const u32 both = load_shared_pair(at + ZEROS_AT + strip * ZERO_BYTES + lane / 4 * 8 + tile * 2);
            zeros[0] = both & 255, zeros[1] = both >> 8;
        }
        if (F::SCALE == SCALE_F16)
            rows.scales = load_shared_word(at + SCALES_AT + strip * SCALE_BYTES + lane / 4 * 16 + tile * 4);
#pragma unroll
        for (int i = 0; i < READS; i++) {
            const uint4 read = load_shared16(at + strip * STRIP_BYTES + i * 2048 + tile * 512 + lane * 16);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const Fragment f = unpack<F>(read, step, zeros);
                rows.steps[i * STEPS + step] = make_uint4(f.a0, f.a1, f.a2, f.a3);
            }
        }
    }

    // Puts the products of a stage on their way; which stage that is.
    __device__ __forceinline__ u32 begin(Sums& sums, const Rows& rows, bool adds, Ring<STAGES>& ring) const {
        const u32 stage = ring.stage;
        const u64 b = tiles_at(place(stage) + TOKENS_AT, 128, 1024);
        begin_products();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            if (adds || step > 0) wide_mma(sums, rows.steps[step], b + step * 16);
            else wide_mma_anew(sums, rows.steps[step], b);
        }
        end_products();
        ring.next();
        return stage;
    }

    // The sums of a group join those of the groups before.
    __device__ __forceinline__ static void join(Sums& y, Sums& sums, u32 scales) {
        hold(sums);
        const float by[2] = {low_value(scales), high_value(scales)};
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) {
            float& to = y[i / 4][i % 4];
            const float part = sums[i / 4][i % 4];
            to = F::SCALE == SCALE_NONE ? __fadd_rn(to, part) : __fmaf_rn(part, by[i % 4 / 2], to);
        }
    }

    // Sums of a tile: those of a group are a chain of products, which join in order.
    __device__ __forceinline__ void multiply(Sums& y, Ring<STAGES>& ring) const {
        if constexpr (F::OF_GRAPHS) return multiply_chains(y, ring);
        const u32 stages = p.columns / 64;
        Rows first, second;
        clear(y);
        if (AHEAD) load(first, ring);
        if constexpr (OVERLAPS) {
            if (stages >= 6) return multiply_overlapping(y, first, second, stages, ring);
        }
        multiply_in_turn(y, first, second, stages, ring);
    }

    __device__ __forceinline__ static void clear(Sums& y) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) y[i / 4][i % 4] = 0.0f;
    }

    // Groups of many stages, in the order of their columns.
    __device__ __forceinline__ void multiply_chains(Sums& y, Ring<STAGES>& ring) const {
        const u32 stages = own_stages();
        multiply_chain(y, min(stages, GROUP_STAGES), ring);
        if constexpr (EIGHTS <= GROUPS_EIGHTS_MAX && !IS_SPLIT) {
#pragma unroll 1
            for (u32 k = GROUP_STAGES; k < stages; k += GROUP_STAGES) {
                Sums sums;
                multiply_chain(sums, min(stages - k, GROUP_STAGES), ring);
                join(y, sums, 0);
            }
        }
    }

    // One group, of an even number of stages.
    __device__ __forceinline__ void multiply_chain(Sums& y, u32 stages, Ring<STAGES>& ring) const {
        Rows first, second;
        clear(y);
        load(first, ring);
#pragma unroll 1
        for (u32 k = 0; k < stages; k += 2) {
            const u32 used = begin(y, first, true, ring);
            load(second, ring);
            const u32 used_next = begin(y, second, true, ring);
            await_products<1>();
            release(used);
            if (k + 2 < stages) load(first, ring);
            await_products<0>();
            release(used_next);
        }
        hold(y);
    }

    // A split tile's sums of half of the tokens: what this block has of them, and the other.
    __device__ __forceinline__ void join_halves(Sums& y) const {
        const u32 rank = cluster_rank(), other = rank ^ 1, at = base + STAGES * STAGE_BYTES + threadIdx.x * 16;
        const u32 there = address_in(other, at), joined = empty + STAGES * 8;
        // The other block has made its barriers.
        await_cluster();
        if (rank == 0) {
#pragma unroll
            for (u32 i = OWN_EIGHTS; i < EIGHTS; i++) store_in_cluster(there + (i - OWN_EIGHTS) * 4096, y[i]);
        } else {
#pragma unroll
            for (u32 i = 0; i < OWN_EIGHTS; i++) store_in_cluster(there + i * 4096, y[i]);
#pragma unroll
            for (u32 i = OWN_EIGHTS * 4; i < EIGHTS * 4; i++) y[i / 4 - OWN_EIGHTS][i % 4] = y[i / 4][i % 4];
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive_in(address_in(other, joined));
        await_in_cluster(joined, 0);
#pragma unroll
        for (u32 i = 0; i < OWN_EIGHTS; i++) {
            const uint4 four = load_shared16(at + i * 4096);
#pragma unroll
            for (int c = 0; c < 4; c++) y[i][c] = __fadd_rn(y[i][c], __uint_as_float(word_of(four, c)));
        }
    }

    // Each group is awaited before the next one begins: the other four warps multiply meanwhile.
    __device__ __forceinline__ void multiply_in_turn(Sums& y, Rows& first, Rows& second, u32 stages, Ring<STAGES>& ring) const {
        constexpr bool IS_ONE = GROUP_STAGES == 1;
        Sums sums;
#pragma unroll 1
        for (u32 k = 0; k < stages; k += 2) {
            if (!AHEAD) load(first, ring);
            const u32 used = begin(sums, first, false, ring);
            load(second, ring);
            if (IS_ONE) {
                await_products<0>();
                release(used);
                join(y, sums, first.scales);
            }
            const u32 used_next = begin(sums, second, !IS_ONE, ring);
            if (!IS_ONE) {
                await_products<1>();
                release(used);
            }
            if (AHEAD && k + 2 < stages) load(first, ring);
            await_products<0>();
            release(used_next);
            join(y, sums, second.scales);
        }
    }

    // A group of two stages joins while products of the next one are made; there are three groups or more.
    __device__ __forceinline__ void multiply_overlapping(Sums& y, Rows& first, Rows& second, u32 stages, Ring<STAGES>& ring) const {
        Sums even, odd;
        u32 used = begin(even, first, false, ring), k = 1;
        load(second, ring);
        // Stage k, whose rows are there; those of the stage before, `others`, are read no more behind it.
        auto step = [&](Rows& rows, Rows& others, Sums& sums, Sums& before, bool adds) {
            const u32 stage = begin(sums, rows, adds, ring);
            await_products<1>();
            release(used);
            if (!adds) join(y, before, others.scales);
            used = stage, k++;
        };
        auto end = [&](Sums& sums) {
            await_products<0>();
            release(used);
            join(y, sums, second.scales);
        };
        // No group is under way in two rounds of the loop, but for its first stage: the compiler sees whose sums are read.
#pragma unroll 1
        do {
            step(second, first, even, even, true);
            load(first, ring);
            step(first, second, odd, even, false);
            load(second, ring);
            step(second, first, odd, odd, true);
            load(first, ring);
            step(first, second, even, odd, false);
            load(second, ring);
        } while (k + 4 < stages);
        step(second, first, even, even, true);
        if (k == stages) return end(even);
        load(first, ring);
        step(first, second, odd, even, false);
        load(second, ring);
        step(second, first, odd, odd, true);
        end(odd);
    }

    // A third of the blocks of tokens, which are handed over at once.
    static constexpr u32 THIRD = (OWN_EIGHTS + 2) / 3;

    // Hands a tile's results over, PIECE blocks of tokens at a time, which lie first then.  Code that is there once for each block
    // takes longer to be fetched than to run.
    template <int PIECE, class Put> __device__ __forceinline__ static void by_pieces(Sums& y, const Put& put) {
#pragma unroll 1
        for (u32 first = 0; first < OWN_EIGHTS; first += PIECE) {
            put(first);
#pragma unroll
            for (int i = 0; i < (OWN_EIGHTS - PIECE) * 4; i++) y[i / 4][i % 4] = y[i / 4 + PIECE][i % 4];
        }
    }

    // Stores a tile's results, or adds them to what lies in stages, or where it was.
    template <bool ADDS, bool IS_COPIED>
    __device__ __forceinline__ void put(Sums& y, const WideTile& tile, u32 row, Ring<STAGES>& ring) const {
        const u32 lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * 16 + lane / 4, own_token = lane % 4 * 2;
        const u32 last = p.rows - 1;
        const bool has[2] = {row < p.rows, row + 8 < p.rows};
        float gains[2] = {1.0f, 1.0f};
        if (ADDS && p.gains) gains[0] = __ldg(p.gains + min(row, last)), gains[1] = __ldg(p.gains + min(row + 8, last));
        // Who multiplies has waited for no launch yet.
        if (ADDS && !IS_COPIED) wait_for_writes();
        by_pieces<PIECE_EIGHTS>(y, [&](u32 piece) {
            const u32 at = place(ring.stage) + (own_token * BEFORE_PITCH + own_row) * 4;
            if (IS_COPIED) await(full + ring.stage * 8, ring.parity);
            u32 token = (tile.first_eight + piece) * 8 + own_token;
            u64 first = (u64)token * p.stride + row;
#pragma unroll
            for (int eight = 0; eight < PIECE_EIGHTS; eight++, token += 8, first += 8 * p.stride) {
                const bool is_own = piece + eight < tile.eights;
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const bool counts = is_own && token + c % 2 < p.tokens && has[c / 2];
                    const u64 to = first + c % 2 * p.stride + c / 2 * 8;
                    float own = y[eight][c];
                    if (ADDS) {
                        const u32 inside = (eight * 8 + c % 2) * BEFORE_PITCH + c / 2 * 8;
                        const float before = IS_COPIED ? load_shared(at + inside * 4) : counts ? p.before[to] : 0.0f;
                        own = __fadd_rn(before, __fmul_rn(own, gains[c / 2]));
                    }
                    if (counts) ((float*)p.out)[to] = own;
                }
            }
            if (!IS_COPIED) return;
            __syncwarp();
            release(ring.stage);
            ring.next();
        });
    }

    // What becomes of a tile's results.
    __device__ __forceinline__ void put_all(Sums& y, const WideTile& tile, u32 tile_row, Ring<STAGES>& ring) const {
        const u32 row = tile_row + threadIdx.x % 32 / 4, end = tile.first_eight + tile.eights;
        const bool is_there = threadIdx.x / 128 < tile.strips;
        if (F::OF_GRAPHS && gives_halves(p.mode)) {
            if (is_there) by_pieces<THIRD>(y, [&](u32 piece) { put_halves<THIRD>(p, y, tile_row, tile.first_eight + piece, end, eights); });
        } else if (p.mode == SWIGLU) {
            if (is_there) by_pieces<THIRD>(y, [&](u32 piece) { put_gated<THIRD>(p, y, tile_row, tile.first_eight + piece, end, eights); });
        } else if (p.mode != ADD) {
            put<false, false>(y, tile, row, ring);
        } else if (copies_before()) {
            put<true, true>(y, tile, row, ring);
        } else {
            put<true, false>(y, tile, row, ring);
        }
    }

    // What warps do that multiply.
    __device__ __forceinline__ void multiply_all() const {
        Ring<STAGES> ring = {0, 0};
        Sums y;
        for (u32 work = first_work(); work < tiles; work += gridDim.x) {
            const WideTile tile = results_of(tile_of(work));
            multiply(y, ring);
            if constexpr (IS_SPLIT) join_halves(y);
            const u32 tile_row = tile.first_row + threadIdx.x / 32 * 16;
            finish_tile(p, y, tile_row + threadIdx.x % 32 / 4);
            put_all(y, tile, tile_row, ring);
        }
        let_next_begin();
    }
};

// Blocks of a split tile have one each: there are as many as tiles need.
template <class F, int EIGHTS, int STAGES, bool IS_SPLIT> __device__ __forceinline__ void product_wide(const Product& p) {
    extern __shared__ __align__(128) u8 stages[];
    __shared__ u64 barriers[2 * STAGES + 1];
    const u32 full = shared_address(barriers), eights = (p.tokens + 7) / 8;
    const u32 tiles = (p.padded_rows + 127) / 128 * ((eights + EIGHTS - 1) / EIGHTS);
    const Wide<F, EIGHTS, STAGES, IS_SPLIT> wide = {p, shared_address(stages), full, full + STAGES * 8, eights, tiles};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(full + i * 8, COPIERS), make_barrier(full + (STAGES + i) * 8, 8);
        if (IS_SPLIT) make_barrier(full + 2 * STAGES * 8, 8);
        show_barriers();
    }
    __syncthreads();
    if (IS_SPLIT) arrive_in_cluster();
    // Who copies needs few registers.
    if (threadIdx.x < 256) {
        take_registers<232>();
        wide.multiply_all();
    } else {
        give_registers<40>();
        wide.copy_all();
    }
}

#define WIDE(NAME, FORM, EIGHTS, STAGES, IS_SPLIT)                              \
    KERNEL void __launch_bounds__(384, 1) NAME(PRODUCT_PARAMETERS) {            \
        Product p = PRODUCT_ARGUMENTS;                                          \
        product_wide<FORM, EIGHTS, STAGES, IS_SPLIT>(p);                        \
    }
#else
#define WIDE(NAME, FORM, EIGHTS, STAGES, IS_SPLIT)
#endif
