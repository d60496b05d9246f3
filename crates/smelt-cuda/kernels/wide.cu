// Products of halves and many tokens on Hopper, with the bits of `product.cu`: the same chains of 128 columns, and the same
// sum of them.
//
// A block stays for many tiles of 128 rows by EIGHTS * 8 tokens.  One warp copies what comes next to a ring of stages: 64
// columns of the rows and tokens of a tile, and behind those what is there where results are added.  Two groups of four warps
// multiply 64 rows each, and write.

#if defined(HAS_WGMMA)
// Floats from token to token of what results are added to: a lane's eight rows and four tokens lie in 32 banks.
#define BEFORE_PITCH 132

// The tile that is worked on, and the stages of the ring as one side goes through them.
struct WideTile {
    u32 first_row, first_eight, strips, eights;
    __device__ __forceinline__ WideTile(const Product& p, u32 work, u32 all_eights, u32 tile_eights) {
        const u32 all_strips = p.padded_rows / 64, row_tiles = (all_strips + 1) / 2;
        const u32 strip = work % row_tiles * 2;
        first_row = strip * 64, first_eight = work / row_tiles * tile_eights;
        strips = min(all_strips - strip, 2u), eights = min(all_eights - first_eight, tile_eights);
    }
};
template <int STAGES> struct Ring {
    u32 stage = 0, parity;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

template <int EIGHTS, int STAGES, int PIECES> struct Wide {
    static constexpr u32 ROW_BYTES = 2 * 8192, STAGE_BYTES = ROW_BYTES + EIGHTS * 1024;
    // Tokens of a piece of what results are added to.
    static constexpr u32 PIECE_EIGHTS = (EIGHTS + PIECES - 1) / PIECES;
    // Whether there are registers for rows that are read while products of those before are made.
    static constexpr bool AHEAD = EIGHTS <= 12;
    static_assert(PIECE_EIGHTS * 8 * BEFORE_PITCH * 4 <= STAGE_BYTES, "a piece fits a stage");

    const Product& p;
    u32 base, full, empty, eights, tiles;

    __device__ __forceinline__ u32 place(u32 stage) const { return base + stage * STAGE_BYTES; }

    __device__ __forceinline__ void copy_rows(const WideTile& tile, u32 k, u32 stage) const {
        const u8* from = (const u8*)p.weights + (u64)tile.first_row * p.columns * 2 + k * 8192;
        const u32 barrier = full + stage * 8;
        arrive_expecting(barrier, tile.strips * 8192 + tile.eights * 1024);
        copy_bytes(place(stage), from, 8192, barrier);
        if (tile.strips > 1) copy_bytes(place(stage) + 8192, from + (u64)p.columns * 128, 8192, barrier);
    }

    __device__ __forceinline__ void copy_tokens(const WideTile& tile, u32 k, u32 stage) const {
        const u8* from = (const u8*)p.x + ((u64)k * eights + tile.first_eight) * 1024;
        copy_bytes(place(stage) + ROW_BYTES, from, tile.eights * 1024, full + stage * 8);
    }

    // What a warp does that copies.
    __device__ __forceinline__ void copy_all() const {
        const u32 lane = threadIdx.x % 32, steps = p.columns / 64, early = min((u32)STAGES, steps);
        // Weights do not wait for the launch before.
        const WideTile first(p, blockIdx.x, eights, EIGHTS);
        if (lane == 0)
#pragma unroll 1
            for (u32 k = 0; k < early; k++) copy_rows(first, k, k);
        wait_for_writes();
        if (lane == 0)
#pragma unroll 1
            for (u32 k = 0; k < early; k++) copy_tokens(first, k, k);
        Ring<STAGES> ring = {0, 1};
        for (u32 work = blockIdx.x; work < tiles; work += gridDim.x) {
            const WideTile tile(p, work, eights, EIGHTS);
#pragma unroll 1
            for (u32 k = 0; k < steps; k++, ring.next()) {
                if (lane > 0 || (work == blockIdx.x && k < early)) continue;
                await(empty + ring.stage * 8, ring.parity);
                copy_rows(tile, k, ring.stage), copy_tokens(tile, k, ring.stage);
            }
            if (p.mode == ADD) copy_before(tile, ring);
        }
    }

    __device__ __forceinline__ void copy_before(const WideTile& tile, Ring<STAGES>& ring) const {
        const u32 lane = threadIdx.x % 32, bytes = min(p.rows - tile.first_row, 128u) * 4;
        for (u32 piece = 0; piece < PIECES; piece++, ring.next()) {
            const u32 token = tile.first_eight * 8 + piece * PIECE_EIGHTS * 8, barrier = full + ring.stage * 8;
            const u32 count = token < p.tokens ? min(p.tokens - token, PIECE_EIGHTS * 8) : 0;
            if (lane == 0) {
                await(empty + ring.stage * 8, ring.parity);
                arrive_expecting(barrier, count * bytes);
            }
            __syncwarp();
#pragma unroll 1
            for (u32 i = lane; i < count; i += 32) {
                const float* from = p.before + (u64)(token + i) * p.stride + tile.first_row;
                copy_bytes(place(ring.stage) + i * BEFORE_PITCH * 4, from, bytes, barrier);
            }
        }
    }

    __device__ __forceinline__ void release(u32 stage) const {
        if (threadIdx.x % 32 == 0) arrive(empty + stage * 8);
    }

    // Sums of a tile: those of 128 columns are a chain of products, which join in order.
    __device__ __forceinline__ void multiply(float (&y)[EIGHTS][4], float (&sums)[EIGHTS][4], Ring<STAGES>& ring) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const u32 own_rows = base + warp / 4 * 8192 + warp % 4 * 512 + lane * 16, groups = p.columns / 128;
        auto load = [&](uint4 (&a)[4]) {
            await(full + ring.stage * 8, ring.parity);
#pragma unroll
            for (int step = 0; step < 4; step++) a[step] = load_shared16(own_rows + ring.stage * STAGE_BYTES + step * 2048);
        };
        auto begin = [&](const uint4 (&a)[4], bool adds) {
            const u64 b = tiles_at(place(ring.stage) + ROW_BYTES, 128, 1024);
            begin_products();
#pragma unroll
            for (int step = 0; step < 4; step++) wide_mma(sums, a[step], b + step * 16, adds || step > 0);
            end_products();
            ring.next();
        };
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) y[i / 4][i % 4] = 0.0f;
        uint4 first[4], second[4];
        if (AHEAD) load(first);
        for (u32 group = 0; group < groups; group++) {
            const u32 used = ring.stage;
            if (!AHEAD) load(first);
            begin(first, false);
            load(second);
            const u32 used_next = ring.stage;
            begin(second, true);
            await_products<1>();
            release(used);
            if (AHEAD && group + 1 < groups) load(first);
            await_products<0>();
            release(used_next);
#pragma unroll
            for (int i = 0; i < EIGHTS * 4; i++) y[i / 4][i % 4] = __fadd_rn(y[i / 4][i % 4], sums[i / 4][i % 4]);
        }
    }

    // Stores a tile's results, or adds them to what lies in stages.
    __device__ __forceinline__ void put(const float (&y)[EIGHTS][4], const WideTile& tile, u32 row, Ring<STAGES>& ring) const {
        const u32 lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * 16 + lane / 4, own_token = lane % 4 * 2;
        const u32 token = tile.first_eight * 8 + own_token, last = p.rows - 1;
        const bool adds = p.mode == ADD;
        float gains[2] = {1.0f, 1.0f};
        if (adds && p.gains) gains[0] = __ldg(p.gains + min(row, last)), gains[1] = __ldg(p.gains + min(row + 8, last));
        float* to = (float*)p.out + (u64)token * p.stride + row;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const u32 at = place(ring.stage) + (own_token * BEFORE_PITCH + own_row) * 4;
            if (adds) await(full + ring.stage * 8, ring.parity);
#pragma unroll
            for (int eight = piece * PIECE_EIGHTS; eight < (piece + 1) * PIECE_EIGHTS && eight < EIGHTS; eight++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float own = y[eight][c];
                    if (adds) {
                        const u32 inside = ((eight - piece * PIECE_EIGHTS) * 8 + c % 2) * BEFORE_PITCH + c / 2 * 8;
                        const float before = load_shared(at + inside * 4);
                        own = __fadd_rn(before, p.gains ? __fmul_rn(own, gains[c / 2]) : own);
                    }
                    if (token + eight * 8 + c % 2 < p.tokens && row + c / 2 * 8 < p.rows) to[c % 2 * p.stride + c / 2 * 8] = own;
                }
                to += 8 * p.stride;
            }
            if (!adds) continue;
            __syncwarp();
            release(ring.stage);
            ring.next();
        }
    }

    // What warps do that multiply.
    __device__ __forceinline__ void multiply_all() const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        Ring<STAGES> ring = {0, 0};
        float y[EIGHTS][4], sums[EIGHTS][4];
        for (u32 work = blockIdx.x; work < tiles; work += gridDim.x) {
            const WideTile tile(p, work, eights, EIGHTS);
            multiply(y, sums, ring);
            const u32 tile_row = tile.first_row + warp * 16, row = tile_row + lane / 4;
            finish_tile<EIGHTS>(p, y, row);
            if (!gives_halves(p.mode)) put(y, tile, row, ring);
            else if (warp / 4 < tile.strips) put_halves<EIGHTS>(p, y, tile_row, tile.first_eight, eights);
        }
        let_next_begin();
    }
};

template <int EIGHTS, int STAGES, int PIECES> __device__ __forceinline__ void product_wide(const Product& p) {
    extern __shared__ __align__(128) u8 stages[];
    __shared__ u64 barriers[2 * STAGES];
    const u32 full = shared_address(barriers), eights = (p.tokens + 7) / 8;
    const u32 tiles = (p.padded_rows + 127) / 128 * ((eights + EIGHTS - 1) / EIGHTS);
    const Wide<EIGHTS, STAGES, PIECES> wide = {p, shared_address(stages), full, full + STAGES * 8, eights, tiles};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(full + i * 8, 1), make_barrier(full + (STAGES + i) * 8, 8);
        show_barriers();
    }
    __syncthreads();
    // Who copies needs few registers.
    if (threadIdx.x < 256) {
        take_registers<224>();
        wide.multiply_all();
    } else {
        give_registers<56>();
        if (threadIdx.x < 288) wide.copy_all();
    }
}

#define WIDE(NAME, EIGHTS, STAGES, PIECES)                                      \
    KERNEL void __launch_bounds__(384, 1) NAME(PRODUCT_PARAMETERS) {            \
        Product p = PRODUCT_ARGUMENTS;                                          \
        product_wide<EIGHTS, STAGES, PIECES>(p);                                \
    }
#else
#define WIDE(NAME, EIGHTS, STAGES, PIECES)
#endif
