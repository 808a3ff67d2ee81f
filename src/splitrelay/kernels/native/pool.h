// Max-pooling with any kernel, stride and padding. (A pool right behind a convolution is part of its pass.)
#pragma once
#include "net.h"

// Compare one pixel of the window with the largest so far, channel by channel. As in torch, the first of equals wins, and
// NaN is larger than any number.
INLINE void take_larger(const float* in, int32_t here, int channels, float* best, int32_t* at) {
    for (int c = 0; c < channels; ++c) {
        float v = in[here + c], b = best[c];
        bool wins = !(v <= b) & (b == b);
        best[c] = wins ? v : b;
        at[c] = wins ? here + c : at[c];
    }
}

INLINE void maxpool_forward(const Layer& l, int n, const float* in, float* out, int32_t* marks) {
    const Tensor &t = l.in, &o = l.out;
    for (int b = 0; b < n; ++b, in += t.size, out += o.size)
        for (int y = 0; y < o.H; ++y)
            for (int x = 0; x < o.W; ++x, marks += o.C) {
                float* best = out + o.inside() + y * o.row() + x * o.stride;
                bool first = true;
                for (int v = y * l.sh - l.ph; v < y * l.sh - l.ph + l.kh; ++v)
                    for (int u = x * l.sw - l.pw; u < x * l.sw - l.pw + l.kw; ++u) {
                        if (v < 0 || v >= t.H || u < 0 || u >= t.W) continue;
                        int32_t here = t.inside() + v * t.row() + u * t.stride;
                        if (first)
                            for (int c = 0; c < o.C; ++c) best[c] = in[here + c], marks[c] = here + c;
                        else
                            take_larger(in, here, o.C, best, marks);
                        first = false;
                    }
            }
}

INLINE void maxpool_backward(const Layer& l, int n, const int32_t* marks, const float* g_out, float* g_in) {
    const Tensor &t = l.in, &o = l.out;
    for (int b = 0; b < n; ++b, g_in += t.size, g_out += o.size) {
        for (int j = 0; j < t.size; ++j) g_in[j] = 0;
        for (int y = 0; y < o.H; ++y)
            for (int x = 0; x < o.W; ++x)
                for (int c = 0; c < o.C; ++c) g_in[*marks++] += g_out[o.inside() + y * o.row() + x * o.stride + c];
    }
}
