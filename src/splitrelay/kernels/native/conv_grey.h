// Convolution, forward, for grey images and few output channels (LeNet's first layer). A vector is eight pixels of a row,
// not eight channels, so that no lane is unused. Each sum has the same order, so the bits are the same.
#pragma once
#include "net.h"

constexpr int FEW = 6;  // output channels: twelve sums, two rows of pixels and one weight fit into sixteen registers

INLINE bool is_grey(const Layer& l) { return l.in.stride == 1 && l.raw.C <= FEW && l.out.W >= 4 && l.kh * l.kw <= TAPS; }

// Compute two rows of eight pixels for each channel.
INLINE void grey_sums(vf (&acc)[2][FEW], const Layer& l, const float* in, const int32_t* taps, const float* w, const float* bias) {
    int64_t row = l.in.row(), number = int64_t(l.kh) * l.kw;
    unroll<FEW>([&](auto c) { acc[0][c.value] = acc[1][c.value] = splat(bias ? bias[c.value] : 0.0f); });
    for (int64_t t = 0; t < number; ++t, w += LANES) {
        const float* pixel = in + taps[t];
        vf upper = load(pixel), lower = load(pixel + row);
        unroll<FEW>([&](auto c) {
            vf weight = splat(w[c.value]);
            acc[0][c.value] = fma(upper, weight, acc[0][c.value]);
            acc[1][c.value] = fma(lower, weight, acc[1][c.value]);
        });
    }
}

// Convert rows a (channels 0 and 1), b (2 and 3) and c (4 and 5), each as `even` returns four pixels, to pixels of eight channels.
template <class V, class Put> INLINE void grey_pixels(V a, V b, V c, Put put) {
    V none = {};
    V ab = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14), AB = __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
    V cd = __builtin_shufflevector(c, none, 0, 2, 8, 10, 4, 6, 12, 14), CD = __builtin_shufflevector(c, none, 1, 3, 9, 11, 5, 7, 13, 15);
    put(0, __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11));
    put(1, __builtin_shufflevector(AB, CD, 0, 1, 2, 3, 8, 9, 10, 11));
    put(2, __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15));
    put(3, __builtin_shufflevector(AB, CD, 4, 5, 6, 7, 12, 13, 14, 15));
}

// Select every second pixel of two channels. No number leaves its half of the vector, so it is one instruction.
INLINE vf even(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14); }
INLINE vf odd(vf a, vf b) { return __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15); }

template <bool MARKS> static void conv_grey(const Layer& l, const float* image, const int32_t* taps, const float* w, const float* bias, ConvOut to) {
    int32_t row = l.in.row();
    for (int y = 0; y < l.out.H; ++y)
        for (int x = 0; x < l.out.W; x += 4) {
            int u = least(x, l.out.W - 4);
            int32_t corner = 2 * y * row + 2 * u;
            vf acc[2][FEW], best[3];
            vi found[3], place = vi{0, 2, 0, 2, 4, 6, 4, 6} + splat(l.corner + corner);
            grey_sums(acc, l, image + corner, taps, w, bias);
            unroll<3>([&](auto j) {
                constexpr int c = 2 * j.value;
                best[j.value] = even(acc[0][c], acc[0][c + 1]);
                found[j.value] = place;
                take_larger(best[j.value], found[j.value], odd(acc[0][c], acc[0][c + 1]), place + splat(1));
                take_larger(best[j.value], found[j.value], even(acc[1][c], acc[1][c + 1]), place + splat(row));
                take_larger(best[j.value], found[j.value], odd(acc[1][c], acc[1][c + 1]), place + splat(row + 1));
                if (to.relu) best[j.value] = relu(best[j.value]);
            });
            float* out = to.out + y * to.row + u * to.stride;
            grey_pixels(best[0], best[1], best[2], [&](int j, vf pixel) { store(out + j * to.stride, pixel); });
            if constexpr (MARKS) {
                int32_t* marks = to.marks + (int64_t(y) * l.out.W + u) * l.out.stride;
                grey_pixels(found[0], found[1], found[2], [&](int j, vi mark) { store(marks + j * l.out.stride, mark); });
            }
        }
}
