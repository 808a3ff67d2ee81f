// Layers that work on each number alone, and copies from one layout to another.
#pragma once
#include "net.h"

// Call change(in, out, length) for the rows of each image; input and output may have borders of different width.
template <class Change> INLINE void for_each_row(const Tensor& in, const Tensor& out, int n, Change change) {
    int length = in.W * in.stride;
    for (int b = 0; b < n; ++b)
        for (int y = 0; y < in.H; ++y)
            change(int64_t(b) * in.size + in.inside() + y * in.row(), int64_t(b) * out.size + out.inside() + y * out.row(), length);
}

INLINE void relu_forward(const Layer& l, int n, const float* in, float* out) {
    for_each_row(l.in, l.out, n, [&](int64_t i, int64_t o, int length) {
        int j = 0;
        for (; j + LANES <= length; j += LANES) store(out + o + j, relu(load(in + i + j)));
        for (; j < length; ++j) out[o + j] = 0.0f > in[i + j] ? 0.0f : in[i + j];
    });
}

INLINE void relu_backward(const Layer& l, int n, const float* out, const float* g_out, float* g_in) {
    for_each_row(l.in, l.out, n, [&](int64_t i, int64_t o, int length) {
        int j = 0;
        for (; j + LANES <= length; j += LANES) store(g_in + i + j, pick(load(out + o + j) > splat(0.0f), load(g_out + o + j), splat(0.0f)));
        for (; j < length; ++j) g_in[i + j] = out[o + j] > 0.0f ? g_out[o + j] : 0.0f;
    });
}

INLINE void copy_rows(const Tensor& in, const Tensor& out, int n, const float* from, float* to) {
    for_each_row(in, out, n, [&](int64_t i, int64_t o, int length) {
        for (int j = 0; j < length; ++j) to[o + j] = from[i + j];
    });
}

// uniform: numbers in torch's order (C, H, W) of each image; the mask is `>= p`. Used forward (in -> out) and backward.
INLINE void dropout(const Tensor& in, const Tensor& out, int n, float p, const float* uniform, const float* from, float* to) {
    float scale = 1.0f / (1.0f - p);
    for (int b = 0; b < n; ++b, uniform += in.C * in.H * in.W)
        for (int y = 0; y < in.H; ++y)
            for (int x = 0; x < in.W; ++x) {
                const float* f = from + int64_t(b) * in.size + in.inside() + y * in.row() + x * in.stride;
                const float* u = uniform + y * in.W + x;
                float* t = to + int64_t(b) * out.size + out.inside() + y * out.row() + x * out.stride;
                int c = 0, apart = in.H * in.W;
                if (apart == 1)
                    for (; c + LANES <= in.C; c += LANES) store(t + c, pick(load(u + c) >= splat(p), load(f + c) * splat(scale), splat(0.0f)));
                for (; c < in.C; ++c) {
                    float v = f[c] * scale;
                    t[c] = u[c * apart] >= p ? v : 0.0f;
                }
            }
}

// Convert between our layout and the dense one of smashed data: (n, H, W, C) in memory, flattened as torch does.
// Call move(ours, dense) for every number.
template <class Move> INLINE void for_each_number(const Tensor& t, bool flat, int n, Move move) {
    int64_t size = int64_t(t.C) * t.H * t.W, apart = flat ? t.H * t.W : 1;
    for (int b = 0; b < n; ++b)
        for (int y = 0; y < t.H; ++y)
            for (int x = 0; x < t.W; ++x) {
                int64_t ours = int64_t(b) * t.size + t.inside() + y * t.row() + x * t.stride;
                int64_t dense = b * size + (y * t.W + x) * (flat ? 1 : t.C);
                if (apart == 1)
                    for (int c = 0; c < t.C; ++c) move(ours + c, dense + c);
                else
                    for (int c = 0; c < t.C; ++c) move(ours + c, dense + c * apart);
            }
}

INLINE void read_dense(const Tensor& t, bool flat, int n, const float* __restrict from, float* __restrict to) {
    for_each_number(t, flat, n, [&](int64_t ours, int64_t dense) { to[ours] = from[dense]; });
}

INLINE void write_dense(const Tensor& t, bool flat, int n, const float* __restrict from, float* __restrict to) {
    for_each_number(t, flat, n, [&](int64_t ours, int64_t dense) { to[dense] = from[ours]; });
}
