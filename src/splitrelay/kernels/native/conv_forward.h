// Convolution, forward: no im2col. A tile of output pixels times one or two vectors of output channels stays in
// registers while the kernel is walked through: row by row, pixel by pixel, channel by channel, at every place alike.
#pragma once
#include "net.h"

struct ConvIn {
    const float* in;      // the pixel under the kernel's corner for output (0, 0)
    int32_t row, stride;  // floats from row to row, from pixel to pixel
    int32_t kh, pieces, length, piece;  // a kernel row is `pieces` of `length` inputs, `piece` floats apart
};

INLINE ConvIn conv_in(const Layer& l, const float* image) {
    const Tensor& t = l.in;
    image += l.corner;
    if (t.stride == t.C) return {image, t.row(), t.stride, l.kh, 1, l.kw * t.C, 0};
    return {image, t.row(), t.stride, l.kh, l.kw, t.C, t.stride};
}

// Kernels as the forward pass reads them: for each block of 16 (last: 8) output channels [ky][kx][channel][16 or 8].
static void forward_kernels(const Layer& l, const float* W, float* to) {
    int taps = l.kh * l.kw * l.in.C, row = LANES * l.vectors;
    for (int co = 0; co < l.raw.stride;) {
        int wide = l.raw.stride - co >= 2 * LANES ? 2 * LANES : LANES;
        for (int j = 0; j < wide; ++j) {
            float* column = to + int64_t(co) * taps + j;
            for (int ky = 0; ky < l.kh; ++ky)
                for (int kx = 0; kx < l.kw; ++kx)
                    for (int c = 0; c < l.in.C; ++c, column += wide)
                        *column = co + j < l.raw.C ? W[(int64_t(co + j) * l.kh + ky) * row + kx * l.in.stride + c] : 0.0f;
        }
        co += wide;
    }
}

template <int TY, int TX, int NV>
INLINE void conv_tile(const ConvIn& from, int rows, const float* in, const float* w, const float* bias, float* out, int out_row, int out_stride) {
    for (int first = 0; first < from.kh; first += rows) {  // long sums in a few goes: fewer rounding errors
        vf acc[TY][TX][NV];
        unrolled<NV>([&](auto v) {
            vf start = first == 0 && bias ? load(bias + LANES * v.value) : splat(0.0f);
            unrolled<TY>([&](auto y) { unrolled<TX>([&](auto x) { acc[y.value][x.value][v.value] = start; }); });
        });
        int last = least(from.kh, first + rows);
        for (int ky = first; ky < last; ++ky) {
            const float* pixel = in + ky * from.row;
            for (int piece = 0; piece < from.pieces; ++piece, pixel += from.piece)
                for (int q = 0; q < from.length; ++q, w += NV * LANES) {
                    vf weight[NV];
                    unrolled<NV>([&](auto v) { weight[v.value] = load(w + LANES * v.value); });
                    unrolled<TY>([&](auto y) {
                        unrolled<TX>([&](auto x) {
                            vf s = splat(pixel[y.value * from.row + x.value * from.stride + q]);
                            unrolled<NV>([&](auto v) {
                                vf& sum = acc[y.value][x.value][v.value];
                                sum = fma(s, weight[v.value], sum);
                            });
                        });
                    });
                }
        }
        unrolled<TY>([&](auto y) {
            unrolled<TX>([&](auto x) {
                unrolled<NV>([&](auto v) {
                    float* place = out + y.value * out_row + x.value * out_stride + LANES * v.value;
                    vf sum = acc[y.value][x.value][v.value];
                    store(place, first == 0 ? sum : load(place) + sum);
                });
            });
        });
    }
}

// All tiles of one image; the last ones are moved back inside, since a pixel's sum is the same in any tile.
template <int TY, int TX, int NV>
static void conv_tiles(const Layer& l, const ConvIn& from, const float* w, const float* bias, float* out, int out_row, int out_stride) {
    for (int y = 0; y < l.raw.H; y += TY)
        for (int x = 0; x < l.raw.W; x += TX) {
            int v = least(y, l.raw.H - TY), u = least(x, l.raw.W - TX);
            conv_tile<TY, TX, NV>(from, l.rows, from.in + v * from.row + u * from.stride, w, bias, out + v * out_row + u * out_stride, out_row, out_stride);
        }
}

template <int NV>
INLINE void conv_channels(const Layer& l, const ConvIn& from, const float* w, const float* bias, float* out, int out_row, int out_stride) {
    int H = l.raw.H, W = l.raw.W;
    if (NV == 1 && H >= 2 && W >= 4) conv_tiles<2, 4, NV>(l, from, w, bias, out, out_row, out_stride);
    else if (H >= 2 && W >= 2) conv_tiles<2, 2, NV>(l, from, w, bias, out, out_row, out_stride);
    else conv_tiles<1, 1, NV>(l, from, w, bias, out, out_row, out_stride);
}

// One image: in -> raw (geometry of l.raw, or of l.out where nothing is pooled here).
static void conv_image(const Layer& l, const float* image, const float* w, const float* bias, float* out, int out_row, int out_stride) {
    ConvIn from = conv_in(l, image);
    int taps = l.kh * l.kw * l.in.C;
    for (int co = 0; co < l.raw.stride;) {
        const float *kernels = w + int64_t(co) * taps, *add = bias ? bias + co : nullptr;
        if (l.raw.stride - co >= 2 * LANES) {
            conv_channels<2>(l, from, kernels, add, out + co, out_row, out_stride);
            co += 2 * LANES;
        } else {
            conv_channels<1>(l, from, kernels, add, out + co, out_row, out_stride);
            co += LANES;
        }
    }
}

// The pool behind a convolution: windows that do not overlap. Each maximum is kept with the place in the
// convolution's *input* to which its gradient will go back.
INLINE void pool_image(const Layer& l, const float* raw, float* out, int32_t* marks) {
    const Tensor &t = l.in, &o = l.out;
    int raw_row = l.raw.row();
    for (int y = 0; y < o.H; ++y)
        for (int x = 0; x < o.W; ++x)
            for (int c = 0; c < o.stride; c += LANES) {
                const float* window = raw + y * l.sh * raw_row + x * l.sw * l.raw.stride + c;
                int32_t corner = l.corner + y * l.sh * t.row() + x * l.sw * t.stride;
                vf best = load(window);
                vi at = splat(corner);
                for (int v = 0; v < l.sh; ++v)
                    for (int u = v == 0; u < l.sw; ++u) {
                        vf here = load(window + v * raw_row + u * l.raw.stride);
                        vi wins = ~(here <= best) & (best == best);  // the first of equals; NaN over numbers
                        best = pick(wins, here, best);
                        at = pick(wins, splat(int32_t(corner + v * t.row() + u * t.stride)), at);
                    }
                store(out + o.inside() + y * o.row() + x * o.stride + c, l.relu ? relu(best) : best);
                store(marks, at);
                marks += LANES;
            }
}

INLINE void relu_image(const Tensor& t, float* out) {
    for (int y = 0; y < t.H; ++y) {
        float* row = out + t.inside() + y * t.row();
        for (int j = 0; j < t.W * t.stride; j += LANES) store(row + j, relu(load(row + j)));
    }
}

static void conv_forward(const Layer& l, int n, const float* in, const float* w, const float* bias, float* raw, float* out, int32_t* marks) {
    const Tensor& o = l.out;
    for (int b = 0; b < n; ++b, in += l.in.size, out += o.size) {
        if (l.pooled) {
            conv_image(l, in, w, bias, raw, l.raw.row(), l.raw.stride);
            pool_image(l, raw, out, marks + int64_t(b) * o.H * o.W * o.stride);
        } else {
            conv_image(l, in, w, bias, out + o.inside(), o.row(), o.stride);
            if (l.relu) relu_image(o, out);
        }
    }
}
