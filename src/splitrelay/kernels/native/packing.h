// x as the house lays it out, and as the kernels want it: rows padded to whole vectors, inputs in the order of pixels.
#pragma once
#include "turned.h"

constexpr int BOUNDARY = 16;  // floats: every tensor of x starts on 64 bytes, as in models.layout

// Notices numbers that are not finite: zero times them is not zero.
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

// to[c][r] = from[r][c], eight by eight where that fits.
template <class See> INLINE void turn(const float* from, int64_t from_row, float* to, int64_t to_row, int rows, int columns, See& see) {
    for (int r = 0; r < rows; r += 8)
        for (int c = 0; c < columns; c += 8) {
            if (r + 8 <= rows && c + 8 <= columns) {
                vf block[8];
                unrolled<8>([&](auto j) { block[j.value] = see(load(from + (r + j.value) * from_row + c)); });
                turned(block);
                unrolled<8>([&](auto j) { store(to + (c + j.value) * to_row + r, block[j.value]); });
            } else {
                for (int v = r; v < least(r + 8, rows); ++v)
                    for (int u = c; u < least(c + 8, columns); ++u) to[u * to_row + v] = see(from[v * from_row + u]);
            }
        }
}

// A tensor as pieces: each `length` numbers side by side, one after the other in x, `apart` when packed.
struct Pieces {
    int64_t number, length, apart;
};

INLINE Pieces pieces(const Slot& s) {
    Pieces found = {1, s.out, s.out};
    if (s.kind == 2) found = {s.out, int64_t(s.C) * s.H * s.W, s.row};
    if (s.kind == 1) found = s.stride % LANES ? Pieces{int64_t(s.out) * s.H, int64_t(s.W) * s.C, s.row} : Pieces{int64_t(s.out) * s.H * s.W, s.C, s.stride};
    return found.length == found.apart ? Pieces{1, found.number * found.length, 0} : found;
}

// eight(in x, packed) for whole vectors, some(in x, packed, n) for the last n of a piece; where even these would be eight
// too many for the tensor, one(in x, packed) for each number.
template <class Eight, class Some, class One> INLINE void moved(const Pieces& p, Eight eight, Some some, One one) {
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

// Inputs of a linear layer are images, pixel by pixel here and channel by channel there. A grey picture lies the same.
INLINE bool is_turned(const Slot& s) { return s.kind == 2 && s.H * s.W > 1 && s.stride > 1; }

INLINE void pack(const Net& net, const float* flat, float* packed) {
    const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    auto see = [](auto v) { return v; };
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = flat + s.flat;
        float* to = packed + s.packed;
        int pixels = s.H * s.W;
        if (is_turned(s))
            for (int64_t o = 0; o < s.out; ++o) turn(from + o * s.C * pixels, pixels, to + o * s.row, s.stride, s.C, pixels, see);
        else
            moved(
                pieces(s), [&](int64_t a, int64_t b) { store(to + b, load(from + a)); },
                [&](int64_t a, int64_t b, int n) { store(to + b, pick(lanes < splat(n), load(from + a), splat(0.0f))); },
                [&](int64_t a, int64_t b) { to[b] = from[a]; });
    }
}

// Back; 1 where every number is finite. What eight write too much is written again by the next.
INLINE int32_t unpack(const Net& net, const float* packed, float* flat) {
    Watch watch = {};
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = packed + s.packed;
        float* to = flat + s.flat;
        int pixels = s.H * s.W;
        if (is_turned(s))
            for (int64_t o = 0; o < s.out; ++o) turn(from + o * s.row, s.stride, to + o * s.C * pixels, pixels, pixels, s.C, watch);
        else
            moved(
                pieces(s), [&](int64_t a, int64_t b) { store(to + a, watch(load(from + b))); },
                [&](int64_t a, int64_t b, int) { store(to + a, watch(load(from + b))); },
                [&](int64_t a, int64_t b) { to[a] = watch(from[b]); });
        int64_t numbers = int64_t(s.out) * (s.kind == 0 ? 1 : s.C * pixels);
        for (int64_t j = numbers; j < rounded_up(numbers, BOUNDARY); ++j) to[j] = 0.0f;  // the gap before the next tensor
    }
    return watch.all_finite();
}

INLINE void copy(const float* from, float* to, int64_t n) {
    for (int64_t j = 0; j < n; ++j) to[j] = from[j];
}

// Start a visit from x, which stays untouched.
INLINE void begin(Net& net, const float* x, const float* shift, const Step* step) {
    pack(net, x, net.x);
    net.moved = 0;
    net.shifted = shift != nullptr;
    if (shift) pack(net, shift, net.shift);
    if (step && step->prox != 0.0f) copy(net.x, net.start, net.packed_size);
}
