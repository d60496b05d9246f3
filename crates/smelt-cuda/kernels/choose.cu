// Chooses tokens from rows of logits by the host's own steps: equal logits and an equal draw give the equal token.
//
// Every sum has the host's order and every product its rounding; sums of a bucket are exact in f64, so theirs is free, and all
// blocks of a row add to them at once.
// What a block cannot hold is left to the host, which gets the row.

#define CHOOSE_THREADS 1024
// Logits whose weights are added up as singles.
#define WEIGHT_BLOCK 64
// Weights of blocks, or of buckets, that are added up among themselves, and the most spans that a row has.
#define SPAN 64
#define SPANS_MAX (CHOOSE_THREADS * OWN_BLOCKS / SPAN)
// Blocks of a row that a thread keeps in registers.
#define OWN_BLOCKS 8
// Candidates that are sorted at a time.
#define CANDIDATES_MAX 2048
// Candidates that are looked at first where a probability decides how many count, and of rows that have no more blocks than
// these: the largest of a row are told from the largest of its blocks, which have to be more.
#define CANDIDATES_FIRST 256
#define CANDIDATES_SHORT 64
#define BUCKETS 2048
#define TOP_MAX 20
#define NONE 0xFFFFFFFFu

// What came of a row.
#define CHOSEN 0
#define NOT_FINITE 1
#define LEFT_TO_HOST 2

// What is asked of a row.
#define ASKS_TOKEN 1
#define ASKS_SCORE 2
#define ADJUSTS 4
#define MASKS 8

// How a token is chosen from a row; the host writes it.
struct Choice {
    double uniform;
    u32 row, asks;
    // One over the temperature; 0 is greedy.
    float scale;
    u32 top_k;
    float top_p, min_p, repetition, presence, frequency;
    // Pieces of the shared lists: biases by token, counts by token, words of the mask.
    u32 first_bias, biases, first_count, counts, first_word, words;
    // The token whose likelihood is asked for where none is chosen.
    u32 token;
    // How many of the likeliest are told.
    u32 top;
    // Where the token goes besides, to be the input of the next step.
    u32 token_to;
};

// What came of it; the device writes it.
struct ChoiceResult {
    double weight;      // of the row as the model gave it
    u32 status, token;
    float logit, largest;  // of the token, and of the row as the model gave it
    u32 top_tokens[TOP_MAX];
    float top_logits[TOP_MAX];
};

struct TokenNumber { u32 token; float number; };

// What is known of a row, all zero before the first step.
struct RowFacts {
    // Its weights by logit, where more tokens may count than are sorted.
    double weights[BUCKETS];
    // The first bucket with a token that is too unlikely.
    u32 unlikely;
    // Ranks of the largest logit of both views, ~0 where one is not finite; all bits of the smallest's changed.  `choose_pick`
    // leaves zeros.
    u32 most[2], not_least;
};

// The exponential of a number that is not positive, by the host's own steps.
__device__ __forceinline__ float exp_as_host(float x) {
    x = x > -87.0f ? x : -87.0f;
    const float round = 12582912.0f;
    float rounded = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), round);
    float twos = __fadd_rn(rounded, -round);
    float rest = __fadd_rn(__fadd_rn(x, -__fmul_rn(twos, 0.6933594f)), -__fmul_rn(twos, -2.1219444e-4f));
    float series = 1.9875691e-4f;
    series = __fadd_rn(__fmul_rn(series, rest), 1.3982e-3f);
    series = __fadd_rn(__fmul_rn(series, rest), 8.333452e-3f);
    series = __fadd_rn(__fmul_rn(series, rest), 4.1665796e-2f);
    series = __fadd_rn(__fmul_rn(series, rest), 1.6666665e-1f);
    series = __fadd_rn(__fmul_rn(series, rest), 5e-1f);
    series = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(series, rest), rest), rest), 1.0f);
    u32 power = (__float_as_uint(rounded) - __float_as_uint(round) + 127) << 23;
    return __fmul_rn(series, __uint_as_float(power));
}

__device__ __forceinline__ float weight_of(float logit, float largest, float scale) {
    return exp_as_host(__fmul_rn(__fadd_rn(logit, -largest), scale));
}

// Larger logits are larger numbers; zeros of either sign are one.
__device__ __forceinline__ u32 rank_of(float logit) {
    u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ u64 candidate(u32 token, float logit) { return (u64)(~rank_of(logit)) << 32 | token; }
__device__ __forceinline__ float logit_of_rank(u32 rank) { return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank); }
__device__ __forceinline__ float logit_of(u64 candidate) { return logit_of_rank(~(u32)(candidate >> 32)); }

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

// Sums over the threads of a block of up to 1024, the same in each.
__device__ __forceinline__ u32 block_count(u32 own, u32* slots) {
    u32 all = own;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) all += __shfl_xor_sync(~0u, all, apart);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = all;
    __syncthreads();
    u32 sum = 0;
    for (u32 i = 0; i < blockDim.x / 32; i++) sum += slots[i];
    return sum;
}

// Tokens of a row that one block of `choose_adjust` takes.
#define ADJUST_TOKENS 8192
#define ADJUST_THREADS 256

// Puts biases and penalties on a copy of a row; where only some tokens may come, leaves those alone, in their order.
// Grid [pieces of the row, choices].  `rows` and `allowed` are [choices][vocab]; `lengths` and `faults` one a choice, of which
// there is a length where there is a copy; `faults` is zero at first, and `choose_pick` leaves it so.
KERNEL void __launch_bounds__(ADJUST_THREADS) choose_adjust(
    float* rows, u32* allowed, u32* lengths, u32* faults, const float* logits, const Choice* choices,
    const TokenNumber* biases, const TokenNumber* counts, const u32* masks, u32 vocab) {
    __shared__ float piece[ADJUST_TOKENS];
    __shared__ u32 slots[ADJUST_THREADS / 32];
    wait_for_earlier();
    const Choice& choice = choices[blockIdx.y];
    if (!(choice.asks & (ADJUSTS | MASKS))) return;
    const u32 first = blockIdx.x * ADJUST_TOKENS, end = min(first + ADJUST_TOKENS, vocab);
    const float* row = logits + (u64)choice.row * vocab;
    for (u32 token = first + threadIdx.x; token < end; token += ADJUST_THREADS) piece[token - first] = row[token];
    __syncthreads();
    if (choice.asks & ADJUSTS) {
        const TokenNumber* own = biases + choice.first_bias;
        for (u32 i = threadIdx.x; i < choice.biases; i += ADJUST_THREADS) {
            // Entries of one token lie together, and the first of them adds all.
            const u32 token = own[i].token;
            if (token < first || token >= end || (i > 0 && own[i - 1].token == token)) continue;
            for (u32 j = i; j < choice.biases && own[j].token == token; j++)
                piece[token - first] = __fadd_rn(piece[token - first], own[j].number);
        }
        __syncthreads();
        const TokenNumber* seen = counts + choice.first_count;
        for (u32 i = threadIdx.x; i < choice.counts; i += ADJUST_THREADS) {
            const u32 token = seen[i].token;
            if (token < first || token >= end) continue;
            float logit = piece[token - first];
            logit = logit > 0.0f ? __fdiv_rn(logit, choice.repetition) : __fmul_rn(logit, choice.repetition);
            if (seen[i].number > 0.0f) {
                logit = __fadd_rn(logit, -__fmul_rn(choice.frequency, seen[i].number));
                logit = __fadd_rn(logit, -choice.presence);
            }
            piece[token - first] = logit;
        }
        __syncthreads();
    }
    float* out = rows + (u64)blockIdx.y * vocab;
    if (!(choice.asks & MASKS)) {
        for (u32 token = first + threadIdx.x; token < end; token += ADJUST_THREADS) out[token] = piece[token - first];
        if (blockIdx.x == 0 && threadIdx.x == 0) lengths[blockIdx.y] = vocab;
        return;
    }
    bool fault = false;
    for (u32 token = first + threadIdx.x; token < end; token += ADJUST_THREADS) fault = fault || !is_finite(piece[token - first]);
    if (__syncthreads_or(fault) && threadIdx.x == 0) atomicOr(faults + blockIdx.y, 1u);
    const u32* words = masks + choice.first_word;
    // Bits of a word that stand for tokens of the row.
    auto word = [&](u32 at) {
        u32 bits = at < choice.words ? words[at] : 0;
        u32 left = vocab > at * 32 ? vocab - at * 32 : 0;
        return left < 32 ? bits & ((1u << left) - 1) : bits;
    };
    u32 own = 0;
    for (u32 at = threadIdx.x; at < first / 32; at += ADJUST_THREADS) own += __popc(word(at));
    const u32 before = block_count(own, slots);
    // A thread of the block has one word of the piece.
    const u32 bits = word(first / 32 + threadIdx.x), count = __popc(bits);
    u32 up_to = count;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        u32 other = __shfl_up_sync(~0u, up_to, apart);
        if (threadIdx.x % 32 >= apart) up_to += other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) slots[threadIdx.x / 32] = up_to;
    __syncthreads();
    u32 place = before + up_to - count, here = 0;
    for (u32 i = 0; i < ADJUST_THREADS / 32; i++) {
        if (i < threadIdx.x / 32) place += slots[i];
        here += slots[i];
    }
    for (u32 left = bits; left; left &= left - 1) {
        const u32 inside = threadIdx.x * 32 + __ffs(left) - 1;
        out[place] = piece[inside];
        allowed[(u64)blockIdx.y * vocab + place] = first + inside;
        place++;
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) lengths[blockIdx.y] = before + here;
}

// The row of a choice in one of two views: as tokens are chosen from it, or as the model gave it.
struct View { const float* row; u32 length; float scale; bool wanted; };
__device__ __forceinline__ View view_of(
    const Choice& choice, u32 index, u32 view, const float* rows, const u32* lengths, const float* logits, u32 vocab) {
    const float* raw = logits + (u64)choice.row * vocab;
    if (view) return {raw, vocab, 1.0f, (choice.asks & ASKS_SCORE) != 0};
    const bool copied = (choice.asks & (ADJUSTS | MASKS)) != 0;
    const bool wanted = (choice.asks & ASKS_TOKEN) != 0;
    if (!copied) return {raw, vocab, choice.scale, wanted};
    return {rows + (u64)index * vocab, lengths[index], choice.scale, wanted};
}

// Whether weights are added up by logit: how many tokens count depends on their probability.
__device__ __forceinline__ bool needs_buckets(const Choice& choice, u32 view) {
    return !view && choice.scale != 0.0f && choice.top_k == 0 && (choice.top_p < 1.0f || choice.min_p != 0.0f);
}

// The largest logit of each 64, and what is known of the row; grid [blocks of 64 / 16, choices, views].  `largest` and `weights`
// are [choices][2][blocks].  Leaves no weight in the buckets of the choice.
KERNEL void __launch_bounds__(256) choose_largest(
    float* largest, const float* rows, const u32* lengths, const float* logits, const Choice* choices, u32 vocab, u32 blocks,
    RowFacts* facts) {
    __shared__ u32 mosts[8], leasts[8];
    wait_for_earlier();
    const View view = view_of(choices[blockIdx.y], blockIdx.y, blockIdx.z, rows, lengths, logits, vocab);
    if (!view.wanted) return;
    RowFacts& own = facts[blockIdx.y];
    if (needs_buckets(choices[blockIdx.y], blockIdx.z)) {
        for (u32 i = blockIdx.x * 256 + threadIdx.x; i < BUCKETS; i += gridDim.x * 256) own.weights[i] = 0.0;
        if (blockIdx.x == 0 && threadIdx.x == 0) own.unlikely = BUCKETS;
    }
    const u32 lane = threadIdx.x % 16, block = blockIdx.x * 16 + threadIdx.x / 16;
    u32 most = 0, not_least = 0;
    bool fault = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 at = block * WEIGHT_BLOCK + i * 16 + lane;
        if (at >= view.length) continue;
        const float logit = view.row[at];
        fault = fault || !is_finite(logit);
        most = max(most, rank_of(logit)), not_least = max(not_least, ~rank_of(logit));
    }
    const u32 mates = threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
    most = __reduce_max_sync(mates, most);
    if (lane == 0 && block < blocks)
        largest[((u64)blockIdx.y * 2 + blockIdx.z) * blocks + block] = most ? logit_of_rank(most) : __uint_as_float(0xFF800000);
    most = __reduce_max_sync(~0u, fault ? ~0u : most), not_least = __reduce_max_sync(~0u, not_least);
    if (threadIdx.x % 32 == 0) mosts[threadIdx.x / 32] = most, leasts[threadIdx.x / 32] = not_least;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++) most = max(most, mosts[i]), not_least = max(not_least, leasts[i]);
    atomicMax(&own.most[blockIdx.z], most);
    if (!blockIdx.z) atomicMax(&own.not_least, not_least);
}

// The largest logit of a row; no number where one is none.
__device__ __forceinline__ float row_largest(const RowFacts& facts, u32 view) {
    const u32 most = facts.most[view];
    return most == ~0u ? __uint_as_float(0x7FC00000) : most ? logit_of_rank(most) : __uint_as_float(0xFF800000);
}

__device__ __forceinline__ float row_smallest(const RowFacts& facts) { return logit_of_rank(~facts.not_least); }

// Buckets for each unit of logit.
__device__ __forceinline__ float buckets_per_logit(float most, float least, float scale) {
    float range = __fmul_rn(__fadd_rn(most, -least), scale);
    range = range < 1.17549435e-38f ? 1.17549435e-38f : (range > 32.0f ? 32.0f : range);
    return __fdiv_rn(__fmul_rn((float)BUCKETS, scale), range);
}

__device__ __forceinline__ u32 bucket_of(float logit, float most, float per_logit) {
    const float at = __fmul_rn(__fadd_rn(most, -logit), per_logit);
    if (!(at > 0.0f)) return 0;
    return at < (float)(BUCKETS - 1) ? (u32)at : BUCKETS - 1;
}

// Whether the weight of the whole row is asked for.
__device__ __forceinline__ bool needs_weight(const Choice& choice, u32 view) {
    if (view) return true;
    if (choice.scale == 0.0f || choice.top_k > 0) return false;
    return choice.top_p < 1.0f || choice.min_p == 0.0f;
}

// The least weight that a bucket has to know.  What weighs less is too unlikely; or all of it weighs less than what of the row
// top_p leaves out, half of which is room for rounding: the row weighs one at least.
__device__ __forceinline__ float weight_min(const Choice& choice, u32 length) {
    if (choice.top_p >= 1.0f) return choice.min_p;
    return fmaxf(choice.min_p, __fdiv_rn(__fmul_rn(0.5f, __fadd_rn(1.0f, -choice.top_p)), (float)length));
}

// The weight of each 64 logits in the host's order: sixteen sums side by side, then one after another.  Each weight that may
// count is added to its bucket, too.
KERNEL void __launch_bounds__(256) choose_weigh(
    float* weights, const float* rows, const u32* lengths, const float* logits, const Choice* choices, u32 vocab, u32 blocks,
    RowFacts* facts) {
    wait_for_earlier();
    const Choice& choice = choices[blockIdx.y];
    const View view = view_of(choice, blockIdx.y, blockIdx.z, rows, lengths, logits, vocab);
    const bool fills = needs_buckets(choice, blockIdx.z);
    if (!view.wanted || !(fills || needs_weight(choice, blockIdx.z))) return;
    const u64 first = ((u64)blockIdx.y * 2 + blockIdx.z) * blocks;
    RowFacts& row = facts[blockIdx.y];
    const float most = row_largest(row, blockIdx.z);
    const float per_logit = fills ? buckets_per_logit(most, row_smallest(row), view.scale) : 0.0f;
    const u32 lane = threadIdx.x % 16, block = blockIdx.x * 16 + threadIdx.x / 16;
    if (block >= blocks) return;
    const float least = weight_min(choice, view.length);
    float sum = 0.0f;
    u32 unlikely = BUCKETS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 at = block * WEIGHT_BLOCK + i * 16 + lane;
        if (at >= view.length) continue;
        const float logit = view.row[at], own = weight_of(logit, most, view.scale);
        sum = __fadd_rn(sum, own);
        if (!fills) continue;
        const u32 bucket = bucket_of(logit, most, per_logit);
        // The last bucket's weight is never asked for, and alone its sum would depend on the order.
        if (bucket < BUCKETS - 1 && own >= least) atomicAdd(row.weights + bucket, (double)own);
        if (own < choice.min_p) unlikely = min(unlikely, bucket);
    }
    const u32 mates = threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
    unlikely = __reduce_min_sync(mates, unlikely);
    if (lane == 0 && unlikely < BUCKETS) atomicMin(&row.unlikely, unlikely);
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) all = __fadd_rn(all, __shfl_sync(mates, sum, i, 16));
    if (lane == 0) weights[first + block] = all;
}

// What a block that picks keeps.
struct Desk {
    u64 keys[CANDIDATES_MAX];
    double buckets[BUCKETS], spans[SPANS_MAX];
    float weights[CANDIDATES_MAX];
    u32 counts[2][32];
    u32 filled, listed, answer, answer_of;
    double number;
    u32 flag;
};

// Sorts the first `count` keys, smallest first.
__device__ void sort_keys(Desk& desk, u32 count) {
    u32 size = 32;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += CHOOSE_THREADS) desk.keys[i] = ~0ull;
    __syncthreads();
    for (u32 width = 2; width <= size; width *= 2)
        for (u32 apart = width / 2; apart > 0; apart /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += CHOOSE_THREADS) {
                const u32 inside = i & (apart - 1), low = (i - inside) * 2 + inside, high = low + apart;
                u64 a = desk.keys[low], b = desk.keys[high];
                if ((a > b) == ((low & width) == 0)) desk.keys[low] = b, desk.keys[high] = a;
            }
            // Pairs that are no further apart are of 64 keys that a warp has for itself.
            if (apart > 32 || (apart == 1 && width > 32)) __syncthreads();
            else __syncwarp();
        }
    __syncthreads();
}

// Puts the `count` largest of a row on the desk, largest first, and says how many there are; NONE where too many are alike.
__device__ u32 find_largest(Desk& desk, const View& view, const float* largest, u32 count) {
    const u32 blocks = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
    if (count > view.length) count = view.length;
    if (count == 0) return 0;
    // Of the blocks' largest the one that `count` reach: the row's largest are not below it.
    u32 own[OWN_BLOCKS];
#pragma unroll
    for (int i = 0; i < OWN_BLOCKS; i++) {
        u32 at = threadIdx.x + i * CHOOSE_THREADS;
        own[i] = at < blocks ? rank_of(largest[at]) : 0;
    }
    u32 least = 0;
    if (threadIdx.x == 0) desk.filled = 0, desk.listed = 0;
    __syncthreads();
    if (blocks > count) {
        for (u32 bit = 0; bit < 32; bit++) {
            const u32 tried = least | 0x80000000u >> bit;
            u32 reach = 0;
#pragma unroll
            for (int i = 0; i < OWN_BLOCKS; i++) reach += own[i] >= tried;
            reach = __reduce_add_sync(~0u, reach);
            // Counts of warps; those of the bit before may still be read.
            if (threadIdx.x % 32 == 0) desk.counts[bit % 2][threadIdx.x / 32] = reach;
            __syncthreads();
            if (__reduce_add_sync(~0u, desk.counts[bit % 2][threadIdx.x % 32]) >= count) least = tried;
        }
    }
    // Blocks that reach it; where there are too many, so are their logits.
    u32* reaching = (u32*)desk.weights;
#pragma unroll
    for (int i = 0; i < OWN_BLOCKS; i++) {
        const u32 at = threadIdx.x + i * CHOOSE_THREADS;
        if (at >= blocks || own[i] < least) continue;
        const u32 place = atomicAdd(&desk.listed, 1u);
        if (place < CANDIDATES_MAX) reaching[place] = at;
    }
    __syncthreads();
    const u32 listed = desk.listed;
    if (listed > CANDIDATES_MAX) return NONE;
    // Logits of four blocks are on their way at once.
    for (u32 entry = threadIdx.x / 32; entry < listed; entry += 4 * CHOOSE_THREADS / 32) {
        float logits[8];
        u32 places[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 its = entry + i / 2 * (CHOOSE_THREADS / 32);
            places[i] = its < listed ? reaching[its] * WEIGHT_BLOCK + i % 2 * 32 + threadIdx.x % 32 : view.length;
            logits[i] = places[i] < view.length ? view.row[places[i]] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (places[i] >= view.length || rank_of(logits[i]) < least) continue;
            const u32 place = atomicAdd(&desk.filled, 1u);
            if (place < CANDIDATES_MAX) desk.keys[place] = candidate(places[i], logits[i]);
        }
    }
    __syncthreads();
    const u32 filled = desk.filled;
    __syncthreads();
    if (filled > CANDIDATES_MAX) return NONE;
    sort_keys(desk, filled);
    return count;
}

// The weights of the first `count` candidates.
__device__ void weigh_keys(Desk& desk, u32 count, float most, float scale) {
    for (u32 i = threadIdx.x; i < count; i += CHOOSE_THREADS) desk.weights[i] = weight_of(logit_of(desk.keys[i]), most, scale);
    __syncthreads();
}

// The following are steps of one thread.

__device__ double sum_of(const float* weights, u32 count) {
    double sum = 0.0;
    for (u32 i = 0; i < count; i++) sum = __dadd_rn(sum, (double)weights[i]);
    return sum;
}

// How many candidates weigh enough, one at least, and what they weigh.
__device__ u32 counting(const Desk& desk, u32 candidates, double enough, float min_p, double& weight) {
    u32 count = 0;
    bool counts = true;
    weight = 0.0;
    for (u32 first = 0; counts && first < candidates; first += 8) {
        // Eight are on their way at once.
        float own[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) own[i] = first + i < candidates ? desk.weights[first + i] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            counts = counts && first + i < candidates && weight < enough && own[i] >= min_p;
            if (counts) weight = __dadd_rn(weight, (double)own[i]), count++;
        }
    }
    if (count > 0) return count;
    weight = (double)desk.weights[0];
    return 1;
}

__device__ u32 along(const Desk& desk, u32 count, double left) {
    u32 last = 0;
    for (u32 i = 0; i < count; i++) {
        last = (u32)desk.keys[i];
        left = __dadd_rn(left, -(double)desk.weights[i]);
        if (left <= 0.0) break;
    }
    return last;
}

// The first place of a row with this logit.
__device__ u32 first_of(Desk& desk, const View& view, const float* largest, float most) {
    const u32 blocks = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
    if (threadIdx.x == 0) desk.answer = NONE;
    __syncthreads();
    for (u32 block = threadIdx.x; block < blocks; block += CHOOSE_THREADS)
        if (largest[block] == most) atomicMin(&desk.answer, block);
    __syncthreads();
    const u32 block = desk.answer;
    __syncthreads();
    if (threadIdx.x == 0) desk.answer = NONE;
    __syncthreads();
    if (threadIdx.x < WEIGHT_BLOCK) {
        const u32 at = block * WEIGHT_BLOCK + threadIdx.x;
        if (at < view.length && view.row[at] == most) atomicMin(&desk.answer, at);
    }
    __syncthreads();
    const u32 found = desk.answer;
    __syncthreads();
    return found;
}

// Adds up weights of each span by halves, of which each takes the other's.
template <class Of> __device__ __forceinline__ void add_spans(Desk& desk, u32 count, const Of& of) {
    for (u32 span = threadIdx.x / 32; span * SPAN < count; span += CHOOSE_THREADS / 32) {
        const u32 near = span * SPAN + threadIdx.x % 32, far = near + 32;
        double sum = __dadd_rn(near < count ? of(near) : 0.0, far < count ? of(far) : 0.0);
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum = __dadd_rn(sum, __shfl_xor_sync(~0u, sum, apart));
        if (threadIdx.x % 32 == 0) desk.spans[span] = sum;
    }
    __syncthreads();
}

// Adds up the weights of all blocks: those of spans, which stay on the desk, then spans in their order.
__device__ double whole_weight(Desk& desk, const float* weights, u32 length) {
    const u32 blocks = (length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK, spans = (blocks + SPAN - 1) / SPAN;
    add_spans(desk, blocks, [&](u32 at) { return (double)weights[at]; });
    if (threadIdx.x == 0) {
        double sum = 0.0;
#pragma unroll 8
        for (u32 span = 0; span < spans; span++) sum = __dadd_rn(sum, desk.spans[span]);
        desk.number = sum;
    }
    __syncthreads();
    const double sum = desk.number;
    __syncthreads();
    return sum;
}

// A step of one thread: which of `count` weights a draw falls on, the last where it is beyond; what is left of it there.
__device__ u32 fallen(const double* weights, u32 count, double& left) {
    u32 at = 0;
    for (; at + 1 < count && left > weights[at]; at++) left = __dadd_rn(left, -weights[at]);
    return at;
}

// Draws from the whole row, in the order of tokens: among spans, then blocks, then tokens.
__device__ u32 draw_of_all(Desk& desk, const View& view, const float* weights, float most, double uniform) {
    const u32 blocks = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK, spans = (blocks + SPAN - 1) / SPAN;
    const double all = whole_weight(desk, weights, view.length);
    if (threadIdx.x == 0) {
        desk.number = __dmul_rn(uniform, all);
        desk.answer = fallen(desk.spans, spans, desk.number) * SPAN;
    }
    __syncthreads();
    const u32 first_block = desk.answer, present = min(blocks - first_block, (u32)SPAN);
    __syncthreads();
    if (threadIdx.x < present) desk.buckets[threadIdx.x] = (double)weights[first_block + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) desk.answer = first_block + fallen(desk.buckets, present, desk.number);
    __syncthreads();
    const u32 first = desk.answer * WEIGHT_BLOCK, here = min(view.length - first, (u32)WEIGHT_BLOCK);
    if (threadIdx.x < here) {
        desk.keys[threadIdx.x] = first + threadIdx.x;
        desk.weights[threadIdx.x] = weight_of(view.row[first + threadIdx.x], most, view.scale);
    }
    __syncthreads();
    if (threadIdx.x == 0) desk.answer_of = along(desk, here, desk.number);
    __syncthreads();
    const u32 token = desk.answer_of;
    __syncthreads();
    return token;
}

// Puts a bucket's tokens on the desk, likeliest first; NONE where there are too many.
__device__ u32 collect(Desk& desk, const View& view, float most, float per_logit, u32 bucket) {
    if (threadIdx.x == 0) desk.filled = 0;
    __syncthreads();
    const float first = (float)bucket, end = first + 1.0f;
    auto look = [&](u32 at, float logit) {
        // As `bucket_of` says, where what is no number is of the first one.
        const float its = __fmul_rn(__fadd_rn(most, -logit), per_logit);
        const bool is_of = bucket == 0 ? !(its >= 1.0f) : its >= first && (its < end || bucket == BUCKETS - 1);
        if (!is_of) return;
        const u32 place = atomicAdd(&desk.filled, 1u);
        if (place < CANDIDATES_MAX) desk.keys[place] = candidate(at, logit);
    };
    // Eight logits are on their way at once.
    for (u32 base = threadIdx.x; base < view.length; base += 8 * CHOOSE_THREADS) {
        float own[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) own[i] = view.row[min(base + i * CHOOSE_THREADS, view.length - 1)];
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (base + i * CHOOSE_THREADS < view.length) look(base + i * CHOOSE_THREADS, own[i]);
    }
    __syncthreads();
    const u32 filled = desk.filled;
    __syncthreads();
    if (filled > CANDIDATES_MAX) return NONE;
    sort_keys(desk, filled);
    weigh_keys(desk, filled, most, view.scale);
    return filled;
}

// The following are steps of one thread, which has eight weights on their way at once.

// How many weights, from the first on, are less than enough with what was before, which becomes the sum of them all.
__device__ u32 taken(const double* weights, u32 count, double enough, double& before) {
    u32 end = 0;
    while (end < count) {
        double up_to[9];
        up_to[0] = before;
#pragma unroll
        for (u32 i = 0; i < 8; i++) up_to[i + 1] = __dadd_rn(up_to[i], end + i < count ? weights[end + i] : 0.0);
        // Sums only grow: those that count are the first ones.
        u32 kept = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (end + i < count && up_to[i + 1] < enough) kept = i + 1, before = up_to[i + 1];
        end += kept;
        if (kept < 8) break;
    }
    return end;
}

// The buckets, from the largest logits down, that all count: how many there are, and what they weigh.
__device__ u32 whole_buckets(const Desk& desk, u32 unlikely, double enough, double& before) {
    const u32 stop = min(unlikely, (u32)BUCKETS - 1);
    before = 0.0;
    const u32 end = taken(desk.spans, stop / SPAN, enough, before) * SPAN;
    return end + taken(desk.buckets + end, stop - end, enough, before);
}

// Where a draw falls among the first `end` buckets: the last with weight where it is beyond and nothing follows them.
struct Fall { u32 bucket; double left_of_bucket, left; };
__device__ Fall fall_of(const Desk& desk, u32 end, double left, bool is_all) {
    u32 begin = 0;
    for (; begin + SPAN < end && left > desk.spans[begin / SPAN]; begin += SPAN) left = __dadd_rn(left, -desk.spans[begin / SPAN]);
    Fall fall = {NONE, 0.0, left};
    for (u32 first = begin; first < end; first += 8) {
        double own[8], lefts[9];
        lefts[0] = fall.left;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            own[i] = first + i < end ? desk.buckets[first + i] : 0.0;
            lefts[i + 1] = __dadd_rn(lefts[i], -own[i]);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (!(own[i] > 0.0)) continue;
            fall.bucket = first + i, fall.left_of_bucket = lefts[i];
            if (lefts[i] <= own[i]) return fall;
        }
        fall.left = lefts[8];
    }
    for (; is_all && fall.bucket == NONE && begin > 0; begin--)
        if (desk.buckets[begin - 1] > 0.0) fall.bucket = begin - 1, fall.left_of_bucket = __longlong_as_double(0x7FF0000000000000ll);
    return fall;
}

// Draws where more count than are sorted: weights of buckets of logits are added up from the largest down.
__device__ u32 draw_of_many(
    Desk& desk, const View& view, const RowFacts& facts, float most, float least, double enough, float min_p, double uniform) {
    const float per_logit = buckets_per_logit(most, least, view.scale);
    for (u32 i = threadIdx.x; i < BUCKETS; i += CHOOSE_THREADS) desk.buckets[i] = facts.weights[i];
    __syncthreads();
    add_spans(desk, BUCKETS, [&](u32 at) { return desk.buckets[at]; });
    if (threadIdx.x == 0) {
        double before;
        desk.answer = whole_buckets(desk, facts.unlikely, enough, before);
        desk.number = before;
    }
    __syncthreads();
    const u32 end = desk.answer;
    const u32 last = collect(desk, view, most, per_logit, end);
    if (last == NONE) return NONE;
    if (threadIdx.x == 0) {
        double weight = desk.number;
        u32 of_end = 0;
        for (; of_end < last; of_end++) {
            const float own = desk.weights[of_end];
            if (!(weight < enough && own >= min_p)) break;
            weight = __dadd_rn(weight, (double)own);
        }
        const Fall fall = fall_of(desk, end, __dmul_rn(uniform, weight), of_end == 0);
        const bool is_before = fall.bucket != NONE && fall.left_of_bucket <= desk.buckets[fall.bucket];
        desk.flag = fall.bucket != NONE && (is_before || of_end == 0);
        desk.answer = fall.bucket;
        desk.number = desk.flag ? fall.left_of_bucket : fall.left;
        if (!desk.flag) desk.answer_of = along(desk, of_end, fall.left);
    }
    __syncthreads();
    if (desk.flag) {
        const u32 bucket = desk.answer;
        const double left = desk.number;
        const u32 count = collect(desk, view, most, per_logit, bucket);
        if (count == NONE) return NONE;
        if (threadIdx.x == 0) desk.answer_of = along(desk, count, left);
        __syncthreads();
    }
    const u32 token = desk.answer_of;
    __syncthreads();
    return token;
}

// The place of the token that a row's draw gives; NONE where the host has to look.
__device__ u32 pick(
    Desk& desk, const Choice& choice, const View& view, const float* largest, const float* weights, const RowFacts& facts,
    float most, float least) {
    if (choice.scale == 0.0f) return first_of(desk, view, largest, most);
    if (choice.top_k == 0 && choice.top_p >= 1.0f && choice.min_p == 0.0f)
        return draw_of_all(desk, view, weights, most, choice.uniform);
    const bool few = choice.top_k > 0;
    const u32 first = view.length > CANDIDATES_FIRST * WEIGHT_BLOCK ? CANDIDATES_FIRST : CANDIDATES_SHORT;
    double enough = __longlong_as_double(0x7FF0000000000000ll);
    if (!few && choice.top_p < 1.0f) enough = __dmul_rn((double)choice.top_p, whole_weight(desk, weights, view.length));
    const u32 found = find_largest(desk, view, largest, few ? choice.top_k : first);
    if (found == NONE) return NONE;
    weigh_keys(desk, found, most, view.scale);
    if (threadIdx.x == 0) {
        if (few && choice.top_p < 1.0f) enough = __dmul_rn((double)choice.top_p, sum_of(desk.weights, found));
        double weight;
        const u32 count = counting(desk, found, enough, choice.min_p, weight);
        desk.flag = few || count < first;
        if (desk.flag) desk.answer = along(desk, count, __dmul_rn(choice.uniform, weight));
    }
    __syncthreads();
    const u32 token = desk.answer, done = desk.flag;
    __syncthreads();
    return done ? token : draw_of_many(desk, view, facts, most, least, enough, choice.min_p, choice.uniform);
}

// One block for each choice.  `next` are the tokens of the next step.
KERNEL void __launch_bounds__(CHOOSE_THREADS, 1) choose_pick(
    ChoiceResult* results, u32* next, const float* largest, const float* weights, const float* rows, const u32* allowed,
    const u32* lengths, u32* faults, const float* logits, const Choice* choices, u32 vocab, u32 blocks, RowFacts* facts) {
    __shared__ Desk desk;
    wait_for_earlier();
    const u32 index = blockIdx.x;
    const Choice& choice = choices[index];
    ChoiceResult& result = results[index];
    RowFacts& row = facts[index];
    const float mosts[2] = {row_largest(row, 0), row_largest(row, 1)}, least = row_smallest(row);
    u32 status = CHOSEN, token = choice.token;
    if (choice.asks & ASKS_TOKEN) {
        const View view = view_of(choice, index, 0, rows, lengths, logits, vocab);
        const u64 first = (u64)index * 2 * blocks;
        const bool masks = (choice.asks & MASKS) != 0;
        if (view.length == 0 || !is_finite(mosts[0]) || (masks && faults[index])) {
            status = NOT_FINITE, token = 0;
        } else {
            token = pick(desk, choice, view, largest + first, weights + first, row, mosts[0], least);
            if (token == NONE) status = LEFT_TO_HOST;
            else if (masks) token = allowed[(u64)index * vocab + token];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        faults[index] = 0, row.most[0] = 0, row.most[1] = 0, row.not_least = 0;
        result.status = status, result.token = token;
        if (choice.token_to != NONE) next[choice.token_to] = token == NONE ? 0 : token;
    }
    if (!(choice.asks & ASKS_SCORE) || status == LEFT_TO_HOST) return;
    const View view = view_of(choice, index, 1, rows, lengths, logits, vocab);
    const u64 first = ((u64)index * 2 + 1) * blocks;
    if (!is_finite(mosts[1])) {
        if (threadIdx.x == 0) result.status = NOT_FINITE;
        return;
    }
    const double weight = whole_weight(desk, weights + first, view.length);
    const u32 found = find_largest(desk, view, largest + first, choice.top);
    if (threadIdx.x == 0) {
        if (found == NONE) result.status = LEFT_TO_HOST;
        result.weight = weight, result.largest = mosts[1];
        result.logit = token < vocab ? view.row[token] : 0.0f;
    }
    if (found != NONE && threadIdx.x < found && threadIdx.x < TOP_MAX) {
        result.top_tokens[threadIdx.x] = (u32)desk.keys[threadIdx.x];
        result.top_logits[threadIdx.x] = logit_of(desk.keys[threadIdx.x]);
    }
}
