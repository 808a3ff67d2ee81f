// Convolution, backward. Relu and pooling leave most gradients zero. For each output channel the others are put into a
// list, with the input pixels they belong to, and only the list is processed. Omitting a zero changes no bit.
#pragma once
#include "lists.h"

constexpr int GO = 128;  // gradients of one partial sum: a long sum in parts has fewer rounding errors

// Kernel gradient: NK rows of NR vectors stay in registers while the list is processed. If there are few sums, each is
// made of two, for odd and even places of the list, so that one addition need not wait for the other.
template <int NK, int NR> static void kernel_rows(const List& list, const float* in, int64_t row, float* gW, int64_t gW_row) {
    constexpr int SETS = NK * NR <= 5 ? 2 : 1;
    vf acc[SETS][NK][NR] = {};
    auto add = [&](auto set, int j) {
        const float* pixel = in + list.at[j];
        vf g = splat(list.g[j]);
        unroll<NK>([&](auto k) {
            unroll<NR>([&](auto r) {
                vf& sum = acc[set.value][k.value][r.value];
                sum = fma(g, load(pixel + k.value * row + LANES * r.value), sum);
            });
        });
    };
    int j = 0;
    for (; j + SETS <= list.n; j += SETS) unroll<SETS>([&](auto set) { add(set, j + set.value); });
    if (j < list.n) add(Number<0>{}, j);
    unroll<NK>([&](auto k) {
        unroll<NR>([&](auto r) {
            float* place = gW + k.value * gW_row + LANES * r.value;
            vf sum = acc[0][k.value][r.value];
            if constexpr (SETS == 2) sum = sum + acc[1][k.value][r.value];
            store(place, load(place) + sum);
        });
    });
}

template <int NR> INLINE void kernel_columns(const List& list, const float* in, int64_t row, float* gW, int64_t gW_row, int kh) {
    constexpr int MOST = NR == 1 ? 5 : NR == 2 ? 5 : NR == 3 ? 3 : NR <= 5 ? 2 : 1;
    constexpr int SOME = MOST == 5 ? 3 : MOST == 3 ? 2 : 1;
    int ky = 0;
    for (; ky + MOST <= kh; ky += MOST) kernel_rows<MOST, NR>(list, in + ky * row, row, gW + ky * gW_row, gW_row);
    for (; ky + SOME <= kh; ky += SOME) kernel_rows<SOME, NR>(list, in + ky * row, row, gW + ky * gW_row, gW_row);
    for (; ky < kh; ++ky) kernel_rows<1, NR>(list, in + ky * row, row, gW + ky * gW_row, gW_row);
}

INLINE void kernel_gradient(const Layer& l, const List& list, const float* in, float* gW) {
    int64_t row = l.in.row(), gW_row = LANES * l.vectors;
    int r = 0;
    for (; l.vectors - r >= 10; r += 8) kernel_columns<8>(list, in + LANES * r, row, gW + LANES * r, gW_row, l.kh);
    in += LANES * r, gW += LANES * r;
    switch (l.vectors - r) {
        case 1: return kernel_columns<1>(list, in, row, gW, gW_row, l.kh);
        case 2: return kernel_columns<2>(list, in, row, gW, gW_row, l.kh);
        case 3: return kernel_columns<3>(list, in, row, gW, gW_row, l.kh);
        case 4: return kernel_columns<4>(list, in, row, gW, gW_row, l.kh);
        case 5: return kernel_columns<5>(list, in, row, gW, gW_row, l.kh);
        case 6: return kernel_columns<6>(list, in, row, gW, gW_row, l.kh);
        case 7: return kernel_columns<7>(list, in, row, gW, gW_row, l.kh);
        case 8: return kernel_columns<8>(list, in, row, gW, gW_row, l.kh);
        case 9: return kernel_columns<9>(list, in, row, gW, gW_row, l.kh);
    }
}

// Input gradient: add each gradient of the list, times the kernel, around its pixel. NR > 0: vectors of a kernel row.
template <int NR> static void input_rows(const Layer& l, const List& list, const float* W, float* g_in) {
    int64_t row = l.in.row(), length = LANES * l.vectors;
    for (int j = 0; j < list.n; ++j) {
        float* pixel = g_in + list.at[j];
        vf g = splat(list.g[j]);
        const float* w = W;
        for (int ky = 0; ky < l.kh; ++ky, pixel += row, w += length)
            if constexpr (NR > 0) {
                vf sum[NR];
                unroll<NR>([&](auto r) { sum[r.value] = fma(g, load(w + LANES * r.value), load(pixel + LANES * r.value)); });
                unroll<NR>([&](auto r) { store(pixel + LANES * r.value, sum[r.value]); });
            } else {
                for (int64_t r = 0; r < length; r += LANES) store(pixel + r, fma(g, load(w + r), load(pixel + r)));
            }
    }
}

INLINE void input_gradient(const Layer& l, const List& list, const float* W, float* g_in) {
    switch (l.vectors) {
        case 3: return input_rows<3>(l, list, W, g_in);
        case 5: return input_rows<5>(l, list, W, g_in);
        case 6: return input_rows<6>(l, list, W, g_in);
        case 12: return input_rows<12>(l, list, W, g_in);
        default: return input_rows<0>(l, list, W, g_in);
    }
}

// Vectors pass the end of a kernel row that is no multiple of eight. The numbers there are no gradients.
INLINE void clear_row_ends(const Layer& l, float* gW) {
    int used = l.kw * l.in.stride, row = LANES * l.vectors;
    if (used == row) return;
    for (int k = 0; k < l.raw.C * l.kh; ++k)
        for (int j = used; j < row; ++j) gW[k * row + j] = 0.0f;
}

INLINE void clear(float* numbers, int64_t n) {
    for (int64_t j = 0; j < n; ++j) numbers[j] = 0.0f;
}

struct ConvBackward {
    const float *in, *W, *out;
    const int32_t *marks, *positions;
    float *g_out, *g_in, *gW, *g_bias;
};

// Process one block of images, eight output channels at a time. `found` holds eight lists, one behind the other.
INLINE void conv_block(const Layer& l, const ConvBackward& a, int b, int images, int64_t room, int32_t* found, double* sums) {
    int64_t kernel = int64_t(l.kh) * LANES * l.vectors, in_at = int64_t(b) * l.in.size, out_at = int64_t(b) * l.out.size;
    for (int c = 0; c < l.raw.C; c += LANES) {
        List lists[LANES];
        for (int k = 0; k < LANES; ++k) lists[k] = {found + 2 * k * room, (float*)(found + (2 * k + 1) * room), 0};
        const int32_t* marks = a.marks + b * l.count * l.out.stride;
        if (l.pooled) list_gradients<true>(l, images, c, a.out + out_at, a.g_out + out_at, marks, nullptr, lists, sums + c);
        else list_gradients<false>(l, images, c, a.out + out_at, a.g_out + out_at, nullptr, a.positions, lists, sums + c);
        for (int co = c; co < least(c + LANES, l.raw.C); ++co) {
            const List& all = lists[co - c];
            for (int first = 0; first < all.n; first += GO)
                kernel_gradient(l, {all.at + first, all.g + first, least(GO, all.n - first)}, a.in + in_at, a.gW + co * kernel);
            if (a.g_in) input_gradient(l, all, a.W + co * kernel, a.g_in + in_at);
        }
    }
}

static void conv_backward(const Layer& l, int n, const ConvBackward& a, int32_t* found, double* sums) {
    int64_t room = int64_t(l.block) * l.count + LANES;
    clear(a.gW, int64_t(l.raw.C) * l.kh * LANES * l.vectors);
    for (int c = 0; c < l.raw.stride; ++c) sums[c] = 0.0;
    for (int b = 0; b < n; b += l.block) {
        int images = least(l.block, n - b);
        if (a.g_in) clear(a.g_in + int64_t(b) * l.in.size, int64_t(images) * l.in.size);
        conv_block(l, a, b, images, room, found, sums);
    }
    if (a.g_bias)
        for (int c = 0; c < l.raw.C; ++c) a.g_bias[c] = float(sums[c]);
    clear_row_ends(l, a.gW);
}
