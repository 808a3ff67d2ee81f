// Max-pooling by itself: any kernel, stride and padding. (A pool right behind a convolution is part of its pass.)
#pragma once
#include "net.h"

// As in torch: the first of equals wins, NaN wins over numbers.
INLINE bool wins(float v, float best) { return !(v <= best) && best == best; }

INLINE void maxpool_forward(const Layer& l, int n, const float* in, float* out, int32_t* marks) {
    const Tensor &t = l.in, &o = l.out;
    for (int b = 0; b < n; ++b, in += t.size, out += o.size)
        for (int y = 0; y < o.H; ++y)
            for (int x = 0; x < o.W; ++x)
                for (int c = 0; c < o.C; ++c) {
                    float best = -__builtin_inff();
                    int32_t at = -1;
                    for (int v = y * l.sh - l.ph; v < y * l.sh - l.ph + l.kh; ++v)
                        for (int u = x * l.sw - l.pw; u < x * l.sw - l.pw + l.kw; ++u) {
                            if (v < 0 || v >= t.H || u < 0 || u >= t.W) continue;
                            int32_t here = t.inside() + v * t.row() + u * t.stride + c;
                            if (at < 0 || wins(in[here], best)) best = in[here], at = here;
                        }
                    out[o.inside() + y * o.row() + x * o.stride + c] = best;
                    *marks++ = at;
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
