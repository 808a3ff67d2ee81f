// Convert x between the layout of models/layout.py and that of the kernels: rows padded to whole vectors, inputs in the
// order of pixels.
#pragma once
#include "transpose.h"

constexpr int BOUNDARY = 16;  // floats: every tensor of x starts on 64 bytes, as in models.layout

// Detect numbers that are not finite: zero times them is not zero.
struct Watch {
    vi seen;
    INLINE_MEMBER vf operator()(vf v) { return seen |= (vi)(v * splat(0.0f)), v; }
    INLINE_MEMBER float operator()(float v) { return (*this)(splat(v)), v; }
    INLINE_MEMBER int32_t all_finite() const {
        vi good = (seen & splat(0x7FFFFFFF)) == splat(0);
        int32_t number = 0;
        for (int k = 0; k < LANES; ++k) number += good[k];
        return number == -LANES;
    }
};

// to[c][r] = from[r][c], eight by eight where possible.
template <class See> INLINE void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row, int rows, int columns, See& see) {
    for (int r = 0; r < rows; r += 8)
        for (int c = 0; c < columns; c += 8) {
            if (r + 8 <= rows && c + 8 <= columns) {
                vf block[8];
                unroll<8>([&](auto j) { block[j.value] = see(load(from + (r + j.value) * from_row + c)); });
                transpose8(block);
                unroll<8>([&](auto j) { store(to + (c + j.value) * to_row + r, block[j.value]); });
            } else {
                for (int v = r; v < least(r + 8, rows); ++v)
                    for (int u = c; u < least(c + 8, columns); ++u) to[u * to_row + v] = see(from[v * from_row + u]);
            }
        }
}

// A tensor as pieces of `length` contiguous numbers: one after the other in x, at distances of `apart` when packed.
struct Pieces {
    int64_t number, length, apart;
};

INLINE Pieces get_pieces(const Slot& s) {
    Pieces found = {1, s.out, s.out};
    if (s.kind == 2) found = {s.out, int64_t(s.C) * s.H * s.W, s.row};
    if (s.kind == 1) found = s.stride % LANES ? Pieces{int64_t(s.out) * s.H, int64_t(s.W) * s.C, s.row} : Pieces{int64_t(s.out) * s.H * s.W, s.C, s.stride};
    return found.length == found.apart ? Pieces{1, found.number * found.length, 0} : found;
}

// Call eight(in x, packed) for whole vectors and some(in x, packed, n) for the last n numbers of a piece. Where a vector
// would pass the end of the tensor, call one(in x, packed) for each number.
template <class Eight, class Some, class One> INLINE void move_pieces(const Pieces& p, Eight eight, Some some, One one) {
    int64_t all = p.number * p.length, whole = p.length / LANES * LANES;
    int rest = int(p.length - whole);
    for (int64_t k = 0; k < p.number; ++k) {
        int64_t a = k * p.length, b = k * p.apart;
        for (int64_t j = 0; j < whole; j += LANES) eight(a + j, b + j);
        if (rest && a + whole + LANES <= all) some(a + whole, b + whole, rest);
        else
            for (int64_t j = whole; j < p.length; ++j) one(a + j, b + j);
    }
}

// Inputs of a linear layer are images: pixel by pixel here, channel by channel in x. For grey images both are the same.
INLINE bool is_transposed(const Slot& s) { return s.kind == 2 && s.H * s.W > 1 && s.stride > 1; }

INLINE void pack_x(const Net& net, const float* flat, float* packed) {
    const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    auto see = [](auto v) { return v; };
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = flat + s.flat;
        float* to = packed + s.packed;
        int pixels = s.H * s.W;
        if (is_transposed(s))
            for (int64_t o = 0; o < s.out; ++o) transpose_block(from + o * s.C * pixels, pixels, to + o * s.row, s.stride, s.C, pixels, see);
        else
            move_pieces(
                get_pieces(s), [&](int64_t a, int64_t b) { store(to + b, load(from + a)); },
                [&](int64_t a, int64_t b, int n) { store(to + b, pick(lanes < splat(n), load(from + a), splat(0.0f))); },
                [&](int64_t a, int64_t b) { to[b] = from[a]; });
    }
}

// The inverse of pack_x; return 1 if every number is finite. The next vector overwrites what a vector writes too much.
INLINE int32_t unpack_x(const Net& net, const float* packed, float* flat) {
    Watch watch = {};
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = packed + s.packed;
        float* to = flat + s.flat;
        int pixels = s.H * s.W;
        if (is_transposed(s))
            for (int64_t o = 0; o < s.out; ++o) transpose_block(from + o * s.row, s.stride, to + o * s.C * pixels, pixels, pixels, s.C, watch);
        else
            move_pieces(
                get_pieces(s), [&](int64_t a, int64_t b) { store(to + a, watch(load(from + b))); },
                [&](int64_t a, int64_t b, int) { store(to + a, watch(load(from + b))); },
                [&](int64_t a, int64_t b) { to[a] = watch(from[b]); });
        int64_t numbers = int64_t(s.out) * (s.kind == 0 ? 1 : s.C * pixels);
        for (int64_t j = numbers; j < round_up(numbers, BOUNDARY); ++j) to[j] = 0.0f;  // the gap before the next tensor
    }
    return watch.all_finite();
}

INLINE void copy(const float* from, float* to, int64_t n) {
    for (int64_t j = 0; j < n; ++j) to[j] = from[j];
}

// Start a visit from x, which does not change.
INLINE void begin_net(Net& net, const float* x, const float* shift, const Step* step) {
    pack_x(net, x, net.x);
    net.has_velocity = 0;
    net.has_shift = shift != nullptr;
    if (shift) pack_x(net, shift, net.shift);
    if (step && step->prox != 0.0f) copy(net.x, net.start, net.packed_size);
}
