// Convolution, backward: relu and pooling leave most gradients zero, so for each output channel the others are listed,
// with the input pixels they belong to, and the list is walked. A zero adds nothing: leaving it out changes no bit.
#pragma once
#include "net.h"

constexpr int GO = 128;  // gradients summed in one go: long sums in a few goes have fewer rounding errors

// The gradients of channel co that are not zero, in the order of the pool's windows (or of `positions`).
INLINE int listed_pooled(const Layer& l, int images, int co, const float* g_out, const int32_t* marks, Found* found) {
    const Tensor& o = l.out;
    int n = 0;
    for (int b = 0; b < images; ++b)
        for (int y = 0; y < o.H; ++y) {
            const float* g = g_out + int64_t(b) * o.size + o.inside() + y * o.row() + co;
            const int32_t* at = marks + (int64_t(b) * o.H + y) * o.W * o.stride + co;
            for (int x = 0; x < o.W; ++x, g += o.stride, at += o.stride) {
                found[n] = {b * l.in.size + *at, *g};
                n += *g != 0.0f;
            }
        }
    return n;
}

INLINE int listed(const Layer& l, int images, int co, const float* g_out, const int32_t* positions, Found* found) {
    int n = 0;
    for (int b = 0; b < images; ++b)
        for (int64_t j = 0; j < l.count; ++j) {
            float g = g_out[int64_t(b) * l.out.size + positions[2 * j] + co];
            found[n] = {b * l.in.size + positions[2 * j + 1], g};
            n += g != 0.0f;
        }
    return n;
}

// Kernel gradient: NK rows of NR vectors stay in registers while the list is walked.
template <int NK, int NR>
static void kernel_rows(const Found* found, int n, const float* in, int row, float* gW, int gW_row) {
    vf acc[NK][NR] = {};
    for (int j = 0; j < n; ++j) {
        const float* pixel = in + found[j].at;
        vf g = splat(found[j].g);
        unrolled<NK>([&](auto k) {
            unrolled<NR>([&](auto r) {
                vf& sum = acc[k.value][r.value];
                sum = fma(g, load(pixel + k.value * row + LANES * r.value), sum);
            });
        });
    }
    unrolled<NK>([&](auto k) {
        unrolled<NR>([&](auto r) {
            float* place = gW + k.value * gW_row + LANES * r.value;
            store(place, load(place) + acc[k.value][r.value]);
        });
    });
}

template <int NR> INLINE void kernel_columns(const Found* found, int n, const float* in, int row, float* gW, int gW_row, int kh) {
    constexpr int MOST = NR == 1 ? 8 : NR == 2 ? 5 : NR == 3 ? 3 : NR <= 5 ? 2 : 1;
    int ky = 0;
    for (; ky + MOST <= kh; ky += MOST) kernel_rows<MOST, NR>(found, n, in + ky * row, row, gW + ky * gW_row, gW_row);
    constexpr int SOME = MOST > 4 ? 5 - (NR == 2 ? 2 : 0) : MOST > 2 ? 2 : 1;
    for (; ky + SOME <= kh; ky += SOME) kernel_rows<SOME, NR>(found, n, in + ky * row, row, gW + ky * gW_row, gW_row);
    for (; ky < kh; ++ky) kernel_rows<1, NR>(found, n, in + ky * row, row, gW + ky * gW_row, gW_row);
}

INLINE void kernel_gradient(const Layer& l, const Found* found, int n, const float* in, float* gW) {
    int row = l.in.row(), gW_row = LANES * l.vectors, r = 0;
    for (; l.vectors - r >= 10; r += 8) kernel_columns<8>(found, n, in + LANES * r, row, gW + LANES * r, gW_row, l.kh);
    in += LANES * r, gW += LANES * r;
    switch (l.vectors - r) {
        case 1: return kernel_columns<1>(found, n, in, row, gW, gW_row, l.kh);
        case 2: return kernel_columns<2>(found, n, in, row, gW, gW_row, l.kh);
        case 3: return kernel_columns<3>(found, n, in, row, gW, gW_row, l.kh);
        case 4: return kernel_columns<4>(found, n, in, row, gW, gW_row, l.kh);
        case 5: return kernel_columns<5>(found, n, in, row, gW, gW_row, l.kh);
        case 6: return kernel_columns<6>(found, n, in, row, gW, gW_row, l.kh);
        case 7: return kernel_columns<7>(found, n, in, row, gW, gW_row, l.kh);
        case 8: return kernel_columns<8>(found, n, in, row, gW, gW_row, l.kh);
        case 9: return kernel_columns<9>(found, n, in, row, gW, gW_row, l.kh);
    }
}

// Input gradient: each listed gradient times the kernel is added around its pixel.
INLINE void input_gradient(const Layer& l, const Found* found, int n, const float* W, float* g_in) {
    int row = l.in.row(), length = LANES * l.vectors;
    for (int j = 0; j < n; ++j) {
        float* pixel = g_in + found[j].at;
        vf g = splat(found[j].g);
        const float* w = W;
        for (int ky = 0; ky < l.kh; ++ky, pixel += row, w += length)
            for (int r = 0; r < length; r += LANES) store(pixel + r, fma(g, load(w + r), load(pixel + r)));
    }
}

// The sum over all outputs, each row of windows in float32, rows in float64: large gradients may cancel.
INLINE void bias_gradient(const Layer& l, int images, const float* g_out, const int32_t* positions, double* sums) {
    const Tensor& o = l.out;
    int64_t row = l.pooled ? o.W : int64_t(l.raw.W / l.sw) * l.sh * l.sw;
    for (int c = 0; c < o.stride; c += LANES)
        for (int b = 0; b < images; ++b) {
            const float* g = g_out + int64_t(b) * o.size + c;
            for (int64_t first = 0; first < l.count; first += row) {
                vf sum = splat(0.0f);
                const float* pixel = g + o.inside() + first / o.W * o.row();
                int64_t last = least(l.count, first + row);
                for (int64_t j = first; j < last; ++j, pixel += o.stride) sum = sum + load(l.pooled ? pixel : g + positions[2 * j]);
                for (int k = 0; k < LANES; ++k) sums[c + k] += double(sum[k]);
            }
        }
}

// Where a relu closed, no gradient passes. In place: nobody else reads this gradient.
INLINE void closed(const Tensor& o, int images, const float* out, float* g_out) {
    for (int b = 0; b < images; ++b)
        for (int y = 0; y < o.H; ++y) {
            int64_t at = int64_t(b) * o.size + o.inside() + y * o.row();
            for (int j = 0; j < o.W * o.stride; j += LANES)
                store(g_out + at + j, pick(load(out + at + j) > splat(0.0f), load(g_out + at + j), splat(0.0f)));
        }
}

// Vectors run over the end of a kernel row that is no multiple of eight; what lies there is no gradient.
INLINE void clear_row_ends(const Layer& l, float* gW) {
    int used = l.kw * l.in.stride, row = LANES * l.vectors;
    if (used == row) return;
    for (int k = 0; k < l.raw.C * l.kh; ++k)
        for (int j = used; j < row; ++j) gW[k * row + j] = 0.0f;
}

static void conv_backward(const Layer& l, int n, const float* in, const float* W, const float* out, const int32_t* marks, const int32_t* positions,
                          Found* found, double* sums, float* g_out, float* g_in, float* gW, float* g_bias) {
    const Tensor &t = l.in, &o = l.out;
    int64_t kernel = int64_t(l.kh) * LANES * l.vectors;
    for (int64_t j = 0; j < l.raw.C * kernel; ++j) gW[j] = 0.0f;
    for (int c = 0; c < l.raw.stride; ++c) sums[c] = 0.0;
    for (int b = 0; b < n; b += l.block) {
        int images = least(l.block, n - b);
        const float* in_b = in + int64_t(b) * t.size;
        float *g = g_out + int64_t(b) * o.size, *g_in_b = g_in ? g_in + int64_t(b) * t.size : nullptr;
        const int32_t* marks_b = l.pooled ? marks + int64_t(b) * o.H * o.W * o.stride : nullptr;
        if (l.relu) closed(o, images, out + int64_t(b) * o.size, g);
        if (g_bias) bias_gradient(l, images, g, positions, sums);
        if (g_in)
            for (int64_t j = 0; j < int64_t(images) * t.size; ++j) g_in_b[j] = 0.0f;
        for (int co = 0; co < l.raw.C; ++co) {
            int some = l.pooled ? listed_pooled(l, images, co, g, marks_b, found) : listed(l, images, co, g, positions, found);
            for (int first = 0; first < some; first += GO)
                kernel_gradient(l, found + first, least(GO, some - first), in_b, gW + co * kernel);
            if (g_in) input_gradient(l, found, some, W + co * kernel, g_in_b);
        }
    }
    if (g_bias)
        for (int c = 0; c < l.raw.stride; ++c) g_bias[c] = float(sums[c]);
    clear_row_ends(l, gW);
}
