// Layers that change every number by itself, and copies from one geometry to another.
#pragma once
#include "net.h"

// change(in, out) on the rows of each image; input and output may have borders of different width.
template <class Change> INLINE void by_rows(const Tensor& in, const Tensor& out, int n, Change change) {
    int length = in.W * in.stride;
    for (int b = 0; b < n; ++b)
        for (int y = 0; y < in.H; ++y)
            change(int64_t(b) * in.size + in.inside() + y * in.row(), int64_t(b) * out.size + out.inside() + y * out.row(), length);
}

INLINE void relu_forward(const Layer& l, int n, const float* in, float* out) {
    by_rows(l.in, l.out, n, [&](int64_t i, int64_t o, int length) {
        int j = 0;
        for (; j + LANES <= length; j += LANES) store(out + o + j, relu(load(in + i + j)));
        for (; j < length; ++j) out[o + j] = 0.0f > in[i + j] ? 0.0f : in[i + j];
    });
}

INLINE void relu_backward(const Layer& l, int n, const float* out, const float* g_out, float* g_in) {
    by_rows(l.in, l.out, n, [&](int64_t i, int64_t o, int length) {
        int j = 0;
        for (; j + LANES <= length; j += LANES) store(g_in + i + j, pick(load(out + o + j) > splat(0.0f), load(g_out + o + j), splat(0.0f)));
        for (; j < length; ++j) g_in[i + j] = out[o + j] > 0.0f ? g_out[o + j] : 0.0f;
    });
}

INLINE void copied(const Tensor& in, const Tensor& out, int n, const float* from, float* to) {
    by_rows(in, out, n, [&](int64_t i, int64_t o, int length) {
        for (int j = 0; j < length; ++j) to[o + j] = from[i + j];
    });
}

// uniform: numbers in torch's order (C, H, W) of each image; the mask is `>= p`. Works forth (in -> out) and back.
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

// Between our geometry and the dense one that travels over a cut: (n, H, W, C) in memory, flattened as torch does.
// move(ours, dense) for every number.
template <class Move> INLINE void each_number(const Tensor& t, bool flat, int n, Move move) {
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

INLINE void taken_in(const Tensor& t, bool flat, int n, const float* __restrict from, float* __restrict to) {
    each_number(t, flat, n, [&](int64_t ours, int64_t dense) { to[ours] = from[dense]; });
}

INLINE void given_out(const Tensor& t, bool flat, int n, const float* __restrict from, float* __restrict to) {
    each_number(t, flat, n, [&](int64_t ours, int64_t dense) { to[dense] = from[ours]; });
}
