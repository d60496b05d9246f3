// Chooses tokens from rows of logits by the host's own steps: equal logits and an equal draw give the equal token.
//
// Every sum has the host's order and every product its rounding; sums of a bucket are exact in f64, so theirs is free, and all
// blocks of a row add to them at once.
// What a block cannot hold is left to the host, which gets the row.

#define CHOOSE_THREADS 1024
// Logits whose weights are added up as singles.
#define WEIGHT_BLOCK 64
// Blocks of a row that a thread keeps in registers.
#define OWN_BLOCKS 8
// Candidates that are sorted at a time.
#define CANDIDATES_MAX 2048
// Candidates that are looked at first where a probability decides how many count.
#define CANDIDATES_FIRST 64
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

// The weights of a row by logit, where more tokens may count than are sorted.
struct RowBuckets {
    double weights[BUCKETS];
    // The first bucket with a token that is too unlikely.
    u32 unlikely, unused;
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
__device__ __forceinline__ float logit_of(u64 candidate) {
    u32 rank = ~(u32)(candidate >> 32);
    return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank);
}

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
// Grid [pieces of the row, choices].  `rows` and `allowed` are [choices][vocab]; `lengths` and `faults` one a choice;
// `faults` is zero at first, and `choose_pick` leaves it so.
KERNEL void __launch_bounds__(ADJUST_THREADS) choose_adjust(
    float* rows, u32* allowed, u32* lengths, u32* faults, const float* logits, const Choice* choices,
    const TokenNumber* biases, const TokenNumber* counts, const u32* masks, u32 vocab) {
    __shared__ float piece[ADJUST_TOKENS];
    __shared__ u32 slots[ADJUST_THREADS / 32];
    wait_for_earlier();
    const Choice& choice = choices[blockIdx.y];
    if (!(choice.asks & (ADJUSTS | MASKS))) {
        if (blockIdx.x == 0 && threadIdx.x == 0) lengths[blockIdx.y] = vocab;
        return;
    }
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
    return {copied ? rows + (u64)index * vocab : raw, lengths[index], choice.scale, (choice.asks & ASKS_TOKEN) != 0};
}

// Whether weights are added up by logit: how many tokens count depends on their probability.
__device__ __forceinline__ bool needs_buckets(const Choice& choice, u32 view) {
    return !view && choice.scale != 0.0f && choice.top_k == 0 && (choice.top_p < 1.0f || choice.min_p != 0.0f);
}

// The largest logit of each 64, no number where one is not finite, and of views that tokens are chosen from the smallest; grid
// [blocks of 64 / 16, choices, views].  `largest` and `weights` are [choices][2][blocks], `smallest` is [choices][blocks].
// Leaves no weight in the buckets of the choice.
KERNEL void __launch_bounds__(256) choose_largest(
    float* largest, const float* rows, const u32* lengths, const float* logits, const Choice* choices, u32 vocab, u32 blocks,
    float* smallest, RowBuckets* buckets) {
    wait_for_earlier();
    const View view = view_of(choices[blockIdx.y], blockIdx.y, blockIdx.z, rows, lengths, logits, vocab);
    if (view.wanted && needs_buckets(choices[blockIdx.y], blockIdx.z)) {
        RowBuckets& own = buckets[blockIdx.y];
        for (u32 i = blockIdx.x * 256 + threadIdx.x; i < BUCKETS; i += gridDim.x * 256) own.weights[i] = 0.0;
        if (blockIdx.x == 0 && threadIdx.x == 0) own.unlikely = BUCKETS;
    }
    const u32 lane = threadIdx.x % 16, block = blockIdx.x * 16 + threadIdx.x / 16;
    if (!view.wanted || block >= blocks) return;
    float most = __uint_as_float(0xFF800000), least = __uint_as_float(0x7F800000);
    bool fault = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 at = block * WEIGHT_BLOCK + i * 16 + lane;
        if (at >= view.length) continue;
        const float logit = view.row[at];
        fault = fault || !is_finite(logit);
        most = fmaxf(most, logit), least = fminf(least, logit);
    }
    const u32 mates = threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2) {
        most = fmaxf(most, __shfl_xor_sync(mates, most, apart));
        least = fminf(least, __shfl_xor_sync(mates, least, apart));
    }
    fault = __any_sync(mates, fault);
    if (lane == 0 && !blockIdx.z) smallest[(u64)blockIdx.y * blocks + block] = least;
    if (lane == 0) largest[((u64)blockIdx.y * 2 + blockIdx.z) * blocks + block] = fault ? __uint_as_float(0x7FC00000) : most;
}

// The largest of all blocks, the same in each thread; no number where one is none.
__device__ __forceinline__ float row_largest(const float* largest, u32 blocks, float* slots) {
    float most = __uint_as_float(0xFF800000);
    bool fault = false;
    for (u32 at = threadIdx.x; at < blocks; at += blockDim.x) {
        fault = fault || largest[at] != largest[at];
        most = fmaxf(most, largest[at]);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    fault = __syncthreads_or(fault);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = most;
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / 32; i++) most = fmaxf(most, slots[i]);
    __syncthreads();
    return fault ? __uint_as_float(0x7FC00000) : most;
}

// The smallest of all blocks, the same in each thread.
__device__ __forceinline__ float row_smallest(const float* smallest, u32 blocks, float* slots) {
    float least = __uint_as_float(0x7F800000);
    for (u32 at = threadIdx.x; at < blocks; at += blockDim.x) least = fminf(least, smallest[at]);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) least = fminf(least, __shfl_xor_sync(~0u, least, apart));
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = least;
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / 32; i++) least = fminf(least, slots[i]);
    __syncthreads();
    return least;
}

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

// The weight of each 64 logits in the host's order: sixteen sums side by side, then one after another.  Each weight is added to
// its bucket, too.
KERNEL void __launch_bounds__(256) choose_weigh(
    float* weights, const float* largest, const float* rows, const u32* lengths, const float* logits, const Choice* choices,
    u32 vocab, u32 blocks, const float* smallest, RowBuckets* buckets) {
    __shared__ float slots[8];
    wait_for_earlier();
    const Choice& choice = choices[blockIdx.y];
    const View view = view_of(choice, blockIdx.y, blockIdx.z, rows, lengths, logits, vocab);
    const bool fills = needs_buckets(choice, blockIdx.z);
    if (!view.wanted || !(fills || needs_weight(choice, blockIdx.z))) return;
    const u64 first = ((u64)blockIdx.y * 2 + blockIdx.z) * blocks;
    const u32 present = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
    const float most = row_largest(largest + first, present, slots);
    float per_logit = 0.0f;
    if (fills) per_logit = buckets_per_logit(most, row_smallest(smallest + (u64)blockIdx.y * blocks, present, slots), view.scale);
    const u32 lane = threadIdx.x % 16, block = blockIdx.x * 16 + threadIdx.x / 16;
    if (block >= blocks) return;
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
        if (bucket < BUCKETS - 1) atomicAdd(buckets[blockIdx.y].weights + bucket, (double)own);
        if (own < choice.min_p) unlikely = min(unlikely, bucket);
    }
    const u32 mates = threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
    unlikely = __reduce_min_sync(mates, unlikely);
    if (lane == 0 && unlikely < BUCKETS) atomicMin(&buckets[blockIdx.y].unlikely, unlikely);
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) all = __fadd_rn(all, __shfl_sync(mates, sum, i, 16));
    if (lane == 0) weights[first + block] = all;
}

// What a block that picks keeps.
struct Desk {
    u64 keys[CANDIDATES_MAX];
    double buckets[BUCKETS];
    float weights[CANDIDATES_MAX];
    float slots[32];
    u32 counts[32];
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
                u32 low = i / apart * apart * 2 + i % apart, high = low + apart;
                u64 a = desk.keys[low], b = desk.keys[high];
                if ((a > b) == ((low & width) == 0)) desk.keys[low] = b, desk.keys[high] = a;
            }
            __syncthreads();
        }
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
    if (threadIdx.x < 32) desk.counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) desk.filled = 0, desk.listed = 0;
    __syncthreads();
    if (blocks > count) {
        // A count of its own for each bit that is tried.
        for (u32 bit = 0; bit < 32; bit++) {
            const u32 tried = least | 0x80000000u >> bit;
            u32 reach = 0;
#pragma unroll
            for (int i = 0; i < OWN_BLOCKS; i++) reach += own[i] >= tried;
            reach = __reduce_add_sync(~0u, reach);
            if (threadIdx.x % 32 == 0 && reach > 0) atomicAdd(desk.counts + bit, reach);
            __syncthreads();
            if (desk.counts[bit] >= count) least = tried;
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
    for (u32 entry = threadIdx.x / 32; entry < listed; entry += CHOOSE_THREADS / 32) {
        const u32 block = reaching[entry];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 at = block * WEIGHT_BLOCK + i * 32 + threadIdx.x % 32;
            if (at < view.length && rank_of(view.row[at]) >= least) {
                const u32 place = atomicAdd(&desk.filled, 1u);
                if (place < CANDIDATES_MAX) desk.keys[place] = candidate(at, view.row[at]);
            }
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

__device__ u32 counting(const Desk& desk, u32 candidates, double enough, float min_p) {
    double before = 0.0;
    u32 count = 0;
    for (; count < candidates; count++) {
        const float own = desk.weights[count];
        if (!(before < enough && own >= min_p)) break;
        before = __dadd_rn(before, (double)own);
    }
    return count > 0 ? count : 1;
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

// Adds up the weights of all blocks in their order, on the whole row's account.
__device__ double whole_weight(Desk& desk, const float* weights, u32 length) {
    const u32 blocks = (length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
    double sum = 0.0;
    // Pieces come through shared memory, where one thread reads them faster.
    for (u32 first = 0; first < blocks; first += BUCKETS) {
        // Zeros fill the last eight: adding one changes nothing.
        const u32 here = min(blocks - first, (u32)BUCKETS), filled = (here + 7) / 8 * 8;
        for (u32 i = threadIdx.x; i < filled; i += CHOOSE_THREADS) desk.buckets[i] = i < here ? (double)weights[first + i] : 0.0;
        __syncthreads();
        if (threadIdx.x == 0)
            for (u32 i = 0; i < filled; i += 8) {
                double own[8];
#pragma unroll
                for (int j = 0; j < 8; j++) own[j] = desk.buckets[i + j];
#pragma unroll
                for (int j = 0; j < 8; j++) sum = __dadd_rn(sum, own[j]);
            }
        __syncthreads();
    }
    if (threadIdx.x == 0) desk.number = sum;
    __syncthreads();
    sum = desk.number;
    __syncthreads();
    return sum;
}

// Draws from the whole row, in the order of tokens.
__device__ u32 draw_of_all(Desk& desk, const View& view, const float* weights, float most, double uniform) {
    const u32 blocks = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
    const double all = whole_weight(desk, weights, view.length);
    if (threadIdx.x == 0) {
        double left = __dmul_rn(uniform, all);
        u32 last = 0;
        for (u32 block = 0; block < blocks; block++) {
            last = block;
            const double own = (double)weights[block];
            if (left <= own) break;
            left = __dadd_rn(left, -own);
        }
        desk.answer = last, desk.number = left;
    }
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
    // Eight logits are on their way at once.
    for (u32 first = threadIdx.x; first < view.length; first += 8 * CHOOSE_THREADS) {
        float own[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 at = first + i * CHOOSE_THREADS;
            own[i] = at < view.length ? view.row[at] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 at = first + i * CHOOSE_THREADS;
            if (at >= view.length || bucket_of(own[i], most, per_logit) != bucket) continue;
            const u32 place = atomicAdd(&desk.filled, 1u);
            if (place < CANDIDATES_MAX) desk.keys[place] = candidate(at, own[i]);
        }
    }
    __syncthreads();
    const u32 filled = desk.filled;
    __syncthreads();
    if (filled > CANDIDATES_MAX) return NONE;
    sort_keys(desk, filled);
    weigh_keys(desk, filled, most, view.scale);
    return filled;
}

// The following two are steps of one thread, which has eight buckets on their way at once.

// The buckets, from the largest logits down, that all count: how many there are, and what they weigh.
__device__ u32 whole_buckets(const Desk& desk, u32 unlikely, double enough, double& before) {
    const u32 stop = min(unlikely, (u32)BUCKETS - 1);
    u32 end = 0;
    before = 0.0;
    while (end < stop) {
        double up_to[9];
        up_to[0] = before;
#pragma unroll
        for (u32 i = 0; i < 8; i++) up_to[i + 1] = __dadd_rn(up_to[i], desk.buckets[end + i]);
        // Sums only grow: those that count are the first ones.
        u32 kept = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (end + i < stop && up_to[i + 1] < enough) kept = i + 1, before = up_to[i + 1];
        end += kept;
        if (kept < 8) break;
    }
    return end;
}

// Where a draw falls among the first `end` buckets.
struct Fall { u32 bucket; double left_of_bucket, left; };
__device__ Fall fall_of(const Desk& desk, u32 end, double left) {
    Fall fall = {NONE, 0.0, left};
    for (u32 first = 0; first < end; first += 8) {
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
    return fall;
}

// Draws where more count than are sorted: weights of buckets of logits are added up from the largest down.
__device__ u32 draw_of_many(
    Desk& desk, const View& view, const RowBuckets& buckets, const float* smallest, float most, double enough, float min_p,
    double uniform) {
    const float least = row_smallest(smallest, (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK, desk.slots);
    const float per_logit = buckets_per_logit(most, least, view.scale);
    for (u32 i = threadIdx.x; i < BUCKETS; i += CHOOSE_THREADS) desk.buckets[i] = buckets.weights[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        double before;
        desk.answer = whole_buckets(desk, buckets.unlikely, enough, before);
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
        const Fall fall = fall_of(desk, end, __dmul_rn(uniform, weight));
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
    Desk& desk, const Choice& choice, const View& view, const float* largest, const float* weights, const float* smallest,
    const RowBuckets& buckets, float most) {
    if (choice.scale == 0.0f) return first_of(desk, view, largest, most);
    if (choice.top_k == 0 && choice.top_p >= 1.0f && choice.min_p == 0.0f)
        return draw_of_all(desk, view, weights, most, choice.uniform);
    const bool few = choice.top_k > 0;
    double enough = __longlong_as_double(0x7FF0000000000000ll);
    if (!few && choice.top_p < 1.0f) enough = __dmul_rn((double)choice.top_p, whole_weight(desk, weights, view.length));
    const u32 found = find_largest(desk, view, largest, few ? choice.top_k : CANDIDATES_FIRST);
    if (found == NONE) return NONE;
    weigh_keys(desk, found, most, view.scale);
    if (threadIdx.x == 0) {
        if (few && choice.top_p < 1.0f) enough = __dmul_rn((double)choice.top_p, sum_of(desk.weights, found));
        const u32 count = counting(desk, found, enough, choice.min_p);
        desk.flag = few || count < CANDIDATES_FIRST;
        if (desk.flag) desk.answer = along(desk, count, __dmul_rn(choice.uniform, sum_of(desk.weights, count)));
    }
    __syncthreads();
    const u32 token = desk.answer, done = desk.flag;
    __syncthreads();
    return done ? token : draw_of_many(desk, view, buckets, smallest, most, enough, choice.min_p, choice.uniform);
}

// One block for each choice.  `next` are the tokens of the next step.
KERNEL void __launch_bounds__(CHOOSE_THREADS, 1) choose_pick(
    ChoiceResult* results, u32* next, const float* largest, const float* weights, const float* rows, const u32* allowed,
    const u32* lengths, u32* faults, const float* logits, const Choice* choices, u32 vocab, u32 blocks, const float* smallest,
    const RowBuckets* buckets) {
    __shared__ Desk desk;
    wait_for_earlier();
    const u32 index = blockIdx.x;
    const Choice& choice = choices[index];
    ChoiceResult& result = results[index];
    u32 status = CHOSEN, token = choice.token;
    if (choice.asks & ASKS_TOKEN) {
        const View view = view_of(choice, index, 0, rows, lengths, logits, vocab);
        const u64 first = (u64)index * 2 * blocks;
        const u32 present = (view.length + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK;
        const float most = row_largest(largest + first, present, desk.slots);
        const bool masks = (choice.asks & MASKS) != 0;
        if (view.length == 0 || !is_finite(most) || (masks && faults[index])) {
            status = NOT_FINITE, token = 0;
        } else {
            token = pick(
                desk, choice, view, largest + first, weights + first, smallest + (u64)index * blocks, buckets[index], most);
            if (token == NONE) status = LEFT_TO_HOST;
            else if (masks) token = allowed[(u64)index * vocab + token];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        faults[index] = 0;
        result.status = status, result.token = token;
        if (choice.token_to != NONE) next[choice.token_to] = token == NONE ? 0 : token;
    }
    if (!(choice.asks & ASKS_SCORE) || status == LEFT_TO_HOST) return;
    const View view = view_of(choice, index, 1, rows, lengths, logits, vocab);
    const u64 first = ((u64)index * 2 + 1) * blocks;
    const float most = row_largest(largest + first, blocks, desk.slots);
    if (!is_finite(most)) {
        if (threadIdx.x == 0) result.status = NOT_FINITE;
        return;
    }
    const double weight = whole_weight(desk, weights + first, view.length);
    const u32 found = find_largest(desk, view, largest + first, choice.top);
    if (threadIdx.x == 0) {
        if (found == NONE) result.status = LEFT_TO_HOST;
        result.weight = weight, result.largest = most;
        result.logit = token < vocab ? view.row[token] : 0.0f;
    }
    if (found != NONE && threadIdx.x < found && threadIdx.x < TOP_MAX) {
        result.top_tokens[threadIdx.x] = (u32)desk.keys[threadIdx.x];
        result.top_logits[threadIdx.x] = logit_of(desk.keys[threadIdx.x]);
    }
}
