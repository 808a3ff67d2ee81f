// x as the house lays it out, and as the kernels want it: rows padded to whole vectors, inputs in the order of pixels.
#pragma once
#include "net.h"

// visit(position in the flat tensor, position in the packed one) for every number of a slot.
template <class Pair> INLINE void each(const Slot& s, Pair pair) {
    if (s.kind == 0)
        for (int64_t o = 0; o < s.out; ++o) pair(o, o);
    if (s.kind == 1)
        for (int64_t k = 0; k < int64_t(s.out) * s.H; ++k)
            for (int kx = 0; kx < s.W; ++kx)
                for (int c = 0; c < s.C; ++c) pair((k * s.W + kx) * s.C + c, k * s.row + kx * s.stride + c);
    if (s.kind == 2)
        for (int64_t o = 0; o < s.out; ++o)
            for (int c = 0; c < s.C; ++c)
                for (int j = 0; j < s.H * s.W; ++j) pair((o * s.C + c) * s.H * s.W + j, o * s.row + j * s.stride + c);
}

INLINE void pack(const Net& net, const float* flat, float* packed) {
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = flat + s.flat;
        float* to = packed + s.packed;
        each(s, [&](int64_t a, int64_t b) { to[b] = from[a]; });
    }
}

// Back; 1 where every number is finite.
INLINE int32_t unpack(const Net& net, const float* packed, float* flat) {
    float poison = 0.0f;
    for (int j = 0; j < net.n_slots; ++j) {
        const Slot& s = net.slots[j];
        const float* from = packed + s.packed;
        float* to = flat + s.flat;
        each(s, [&](int64_t a, int64_t b) { to[a] = from[b]; });
        for (int64_t k = 0; k < s.packed_size; ++k) poison += from[k] * 0.0f;
    }
    return poison == 0.0f;
}
