// Numpy's named generators, SeedSequence(root, spawn_key) and PCG64, so that a visit draws without Python.
// kernels/seeded_draws.py compares them with numpy's own before the first use.
#pragma once
#include "vector.h"

// The words of the root seed, at least four, then round, client and occurrence.
struct Name {
    const uint32_t* root;
    int64_t words, r, m, i;
};

constexpr int POOL = 4;

struct Hash {
    uint32_t constant, factor;
    INLINE_MEMBER uint32_t operator()(uint32_t v) {
        v ^= constant;
        constant *= factor;
        v *= constant;
        return v ^ v >> 16;
    }
};

// SeedSequence: every word of the name is mixed into each of four.
struct Seeds {
    uint32_t pool[POOL];
    Hash hash;
    int64_t taken;

    static uint32_t mix(uint32_t x, uint32_t y) {
        uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;
        return z ^ z >> 16;
    }

    void add(uint32_t word) {
        if (taken < POOL) pool[taken] = hash(word);
        else
            for (int k = 0; k < POOL; ++k) pool[k] = mix(pool[k], hash(word));
        if (++taken == POOL)
            for (int from = 0; from < POOL; ++from)
                for (int to = 0; to < POOL; ++to)
                    if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }

    void add_number(int64_t number) {  // as in numpy: the low word, then the high word if it is not zero
        add(uint32_t(number));
        if (number >> 32) add(uint32_t(number >> 32));
    }
};

// PCG64: 128 bits of state; each step gives 64 bits, which are used whole or in halves.
struct Generator {
    typedef unsigned __int128 wide;
    wide state, increment;
    uint32_t kept;
    bool has_kept;

    INLINE_MEMBER void step() { state = state * (wide(0x2360ed051fc65da4ull) << 64 | 0x4385df649fccf645ull) + increment; }

    INLINE_MEMBER uint64_t next() {
        step();
        uint64_t folded = uint64_t(state >> 64) ^ uint64_t(state);
        int turn = int(state >> 122);
        return folded >> turn | folded << (-turn & 63);
    }

    INLINE_MEMBER uint32_t half() {
        if (has_kept) return has_kept = false, kept;
        uint64_t both = next();
        has_kept = true, kept = uint32_t(both >> 32);
        return uint32_t(both);
    }

    // Draw an integer up to `highest` by rejection, as numpy does to shuffle.
    INLINE_MEMBER uint32_t up_to(uint32_t highest) {
        uint32_t mask = ~0u >> __builtin_clz(highest), found;
        do found = half() & mask;
        while (found > highest);
        return found;
    }

    // Draw an integer below `limit` by Lemire's method, as numpy does to draw integers.
    INLINE_MEMBER uint32_t below(uint32_t limit) {
        uint64_t product = uint64_t(half()) * limit;
        if (uint32_t(product) < limit)
            for (uint32_t threshold = -limit % limit; uint32_t(product) < threshold;) product = uint64_t(half()) * limit;
        return uint32_t(product >> 32);
    }
};

// Start with the words of a root seed; numbers follow.
static Seeds make_seeds(const uint32_t* root, int64_t words) {
    Seeds seeds = {{}, {0x43b0d7e5u, 0x931e8875u}, 0};
    for (int64_t j = 0; j < words; ++j) seeds.add(root[j]);
    return seeds;
}

static Generator make_generator(const Seeds& seeds) {
    Hash hash = {0x8b51f9ddu, 0x58f38dedu};
    uint64_t words[4] = {};
    for (int j = 0; j < 8; ++j) words[j / 2] |= uint64_t(hash(seeds.pool[j % POOL])) << 32 * (j % 2);
    Generator found = {0, (Generator::wide(words[2]) << 64 | words[3]) << 1 | 1, 0, false};
    found.step();
    found.state += Generator::wide(words[0]) << 64 | words[1];
    found.step();
    return found;
}

// Make the generator of a visit's name and a purpose; dropout also names step and layer.
static Generator make_generator(const Name& name, int32_t purpose, const int64_t* more, int n_more) {
    Seeds seeds = make_seeds(name.root, name.words);
    const int64_t numbers[] = {purpose, name.r, name.m, name.i};
    for (int64_t number : numbers) seeds.add_number(number);
    for (int j = 0; j < n_more; ++j) seeds.add_number(more[j]);
    return make_generator(seeds);
}

// Draw K batches of `size` out of n, in shuffled passes with short last batches; write `held` at these positions to `at`.
// Return -9 (BAD_DRAW, checks.h) if `at` is too small.
static int64_t draw_passes(Generator& g, const int64_t* held, int64_t n, int32_t K, int32_t size, int64_t* shuffled, int64_t* at, int64_t room) {
    int64_t drawn = 0;
    for (int32_t k = 0; k < K;) {
        for (int64_t j = 0; j < n; ++j) shuffled[j] = held[j];
        for (int64_t j = n - 1; j > 0; --j) {
            int64_t other = g.up_to(uint32_t(j)), kept = shuffled[j];
            shuffled[j] = shuffled[other], shuffled[other] = kept;
        }
        for (int64_t first = 0; first < n && k < K; first += size, ++k) {
            if (least<int64_t>(n, first + size) - first > room - drawn) return -9;
            for (int64_t j = first; j < least<int64_t>(n, first + size); ++j) at[drawn++] = shuffled[j];
        }
    }
    return drawn;
}

// Draw K batches of `size` with replacement.
static int64_t draw_with_replacement(Generator& g, const int64_t* held, int64_t n, int64_t K, int64_t size, int64_t* at) {
    for (int64_t j = 0; j < K * size; ++j) at[j] = held[n == 1 ? 0 : g.below(uint32_t(n))];
    return K * size;
}

// Shuffle 0, ..., n-1. All exchanges are drawn first, and a rejected number is overwritten: a branch that the CPU cannot
// predict would cost more than the rest.
static void fill_permutation(Generator g, int64_t n, uint32_t* other, uint32_t* shuffled) {
    for (int64_t j = n - 1; j > 0;) {
        const uint32_t mask = ~0u >> __builtin_clz(uint32_t(j));
        for (const int64_t low = mask / 2; j > low;) {  // while the mask is the same
            other[j] = g.half() & mask;
            j -= other[j] <= uint32_t(j);
        }
    }
    for (int64_t j = 0; j < n; ++j) shuffled[j] = uint32_t(j);
    for (int64_t j = n - 1; j > 0; --j) {
        uint32_t kept = shuffled[j];
        shuffled[j] = shuffled[other[j]], shuffled[other[j]] = kept;
    }
}

// Draw numbers from 0 (included) to 1 (excluded).
static void fill_uniform(Generator& g, int64_t n, float* to) {
    for (int64_t j = 0; j < n; ++j) to[j] = float(g.half() >> 8) * (1.0f / 16777216.0f);
}
