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
        for (int j = 0; j < length; ++j) out[o + j] = 0.0f > in[i + j] ? 0.0f : in[i + j];
    });
}

INLINE void relu_backward(const Layer& l, int n, const float* out, const float* g_out, float* g_in) {
    by_rows(l.in, l.out, n, [&](int64_t i, int64_t o, int length) {
        for (int j = 0; j < length; ++j) g_in[i + j] = out[o + j] > 0.0f ? g_out[o + j] : 0.0f;
    });
}

INLINE void copied(const Tensor& in, const Tensor& out, int n, const float* from, float* to) {
    by_rows(in, out, n, [&](int64_t i, int64_t o, int length) {
        for (int j = 0; j < length; ++j) to[o + j] = from[i + j];
    });
}

// kept: uniform numbers in torch's order (C, H, W) of each image; the mask is `>= p`. Works forth (in -> out) and back.
INLINE void dropped(const Tensor& in, const Tensor& out, int n, float p, const float* uniform, const float* from, float* to) {
    float scale = 1.0f / (1.0f - p);
    for (int b = 0; b < n; ++b)
        for (int c = 0; c < in.C; ++c)
            for (int y = 0; y < in.H; ++y)
                for (int x = 0; x < in.W; ++x) {
                    int64_t i = int64_t(b) * in.size + in.inside() + y * in.row() + x * in.stride + c;
                    int64_t o = int64_t(b) * out.size + out.inside() + y * out.row() + x * out.stride + c;
                    to[o] = *uniform++ >= p ? from[i] * scale : 0.0f;
                }
}

// Between our geometry and the dense one that travels over a cut: (n, H, W, C) in memory, flattened as torch does.
INLINE int64_t dense(const Tensor& t, bool flat, int c, int y, int x) {
    return flat ? (int64_t(c) * t.H + y) * t.W + x : (int64_t(y) * t.W + x) * t.C + c;
}

INLINE void taken_in(const Tensor& t, bool flat, int n, const float* from, float* to) {
    for (int b = 0; b < n; ++b)
        for (int y = 0; y < t.H; ++y)
            for (int x = 0; x < t.W; ++x)
                for (int c = 0; c < t.C; ++c)
                    to[int64_t(b) * t.size + t.inside() + y * t.row() + x * t.stride + c] =
                        from[int64_t(b) * t.C * t.H * t.W + dense(t, flat, c, y, x)];
}

INLINE void given_out(const Tensor& t, bool flat, int n, const float* from, float* to) {
    for (int b = 0; b < n; ++b)
        for (int y = 0; y < t.H; ++y)
            for (int x = 0; x < t.W; ++x)
                for (int c = 0; c < t.C; ++c)
                    to[int64_t(b) * t.C * t.H * t.W + dense(t, flat, c, y, x)] =
                        from[int64_t(b) * t.size + t.inside() + y * t.row() + x * t.stride + c];
}
