// x as the house lays it out, and as the kernels want it: rows padded to whole vectors, inputs in the order of pixels.
#pragma once
#include "lists.h"

constexpr int BOUNDARY = 16;  // floats: every tensor of x starts on 64 bytes, as in models.layout

INLINE void copy(const float* from, float* to, int64_t n) {
    for (int64_t j = 0; j < n; ++j) to[j] = from[j];
}

// to[c][r] = from[r][c], eight by eight where that fits.
INLINE void turn(const float* from, int64_t from_row, float* to, int64_t to_row, int rows, int columns) {
    for (int r = 0; r < rows; r += 8)
        for (int c = 0; c < columns; c += 8) {
            if (r + 8 <= rows && c + 8 <= columns) {
                vf block[8];
                unrolled<8>([&](auto j) { block[j.value] = load(from + (r + j.value) * from_row + c); });
                turned(block);
                unrolled<8>([&](auto j) { store(to + (c + j.value) * to_row + r, block[j.value]); });
            } else {
                for (int v = r; v < least(r + 8, rows); ++v)
                    for (int u = c; u < least(c + 8, columns); ++u) to[u * to_row + v] = from[v * from_row + u];
            }
        }
}

// run(flat, packed, n): n numbers that lie side by side in both; for all of a slot but images of a linear layer.
template <class Run> INLINE void each_run(const Slot& s, Run run) {
    if (s.kind == 0) return run(0, 0, s.out);
    if (s.kind == 2) {
        for (int64_t o = 0; o < s.out; ++o) run(o * s.C * s.H * s.W, o * s.row, s.C * s.H * s.W);
        return;
    }
    int pieces = s.stride == s.C ? 1 : s.W, length = s.stride == s.C ? s.W * s.C : s.C;
    for (int64_t k = 0; k < int64_t(s.out) * s.H; ++k)
        for (int piece = 0; piece < pieces; ++piece) run(k * s.W * s.C + piece * s.C, k * s.row + piece * s.stride, length);
}

// Inputs of a linear layer are images, pixel by pixel here and channel by channel there. A grey picture lies the same.
INLINE bool is_turned(const Slot& s) { return s.kind == 2 && s.H * s.W > 1 && s.stride > 1; }

INLINE void pack(const Net& net, const float* flat, float* packed) {
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = flat + s.flat;
        float* to = packed + s.packed;
        int pixels = s.H * s.W;
        if (is_turned(s))
            for (int64_t o = 0; o < s.out; ++o) turn(from + o * s.C * pixels, pixels, to + o * s.row, s.stride, s.C, pixels);
        else each_run(s, [&](int64_t a, int64_t b, int64_t n) { copy(from + a, to + b, n); });
    }
}

INLINE int32_t all_finite(const float* x, int64_t size) {
    vf poison[4] = {};
    for (int64_t j = 0; j < size; j += 4 * LANES)  // sizes are whole lines and lines to spare
        unrolled<4>([&](auto k) { poison[k.value] = fma(load(x + j + LANES * k.value), splat(0.0f), poison[k.value]); });
    vi good = (poison[0] + poison[1]) + (poison[2] + poison[3]) == splat(0.0f);
    int32_t number = 0;
    for (int k = 0; k < LANES; ++k) number += good[k];
    return number == -LANES;
}

// Back; 1 where every number is finite.
INLINE int32_t unpack(const Net& net, const float* packed, float* flat) {
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = packed + s.packed;
        float* to = flat + s.flat;
        int pixels = s.H * s.W;
        if (is_turned(s))
            for (int64_t o = 0; o < s.out; ++o) turn(from + o * s.row, s.stride, to + o * s.C * pixels, pixels, pixels, s.C);
        else each_run(s, [&](int64_t a, int64_t b, int64_t n) { copy(from + b, to + a, n); });
        int64_t numbers = int64_t(s.out) * (s.kind == 0 ? 1 : s.C * pixels);
        for (int64_t j = numbers; j < rounded_up(numbers, BOUNDARY); ++j) to[j] = 0.0f;  // the gap before the next tensor
    }
    return all_finite(packed, net.packed_size);
}

// Start a visit from x, which stays untouched.
INLINE void begin(Net& net, const float* x, const float* shift, const Step* step) {
    pack(net, x, net.x);
    net.moved = 0;
    net.shifted = shift != nullptr;
    if (shift) pack(net, shift, net.shift);
    if (step && step->prox != 0.0f) copy(net.x, net.start, net.packed_size);
}
