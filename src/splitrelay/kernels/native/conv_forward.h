// Convolution, forward, without im2col. A tile of output pixels times one or two vectors of output channels stays in
// registers while the taps of the kernel are added, in the same order at every pixel. Relu, pool and the position of the
// maximum follow before anything is stored.
#pragma once
#include "transpose.h"

constexpr int TAPS = 256;  // products of one partial sum: a long sum in parts has fewer rounding errors

// Write the numbers of eight kernels at `from` as `length` vectors of eight outputs each; missing kernels are zeros.
INLINE void pack_eight_kernels(const float* from, int64_t kernel, int there, int length, float* to, int64_t wide) {
    for (int c = 0; c < length; c += LANES) {
        vf block[LANES];
        unroll<LANES>([&](auto j) { block[j.value] = j.value < there ? load(from + j.value * kernel + c) : splat(0.0f); });
        transpose8(block);
        unroll<LANES>([&](auto j) {
            if (c + j.value < length) store(to + (c + j.value) * wide, block[j.value]);
        });
    }
}

// Write the kernels as the forward pass reads them: for each block of 16 (last: 8) output channels [ky][kx][channel][16 or 8].
static void pack_kernels(const Layer& l, const float* W, float* to) {
    int64_t taps = int64_t(l.kh) * l.kw * l.in.C, row = LANES * l.vectors, wide;
    int pieces = l.in.stride == l.in.C ? 1 : l.kw, length = l.kw / pieces * l.in.C;  // contiguous numbers
    for (int co = 0; co < l.raw.stride; co += int(wide)) {
        wide = l.raw.stride - co >= 2 * LANES ? 2 * LANES : LANES;
        for (int j = 0; j < wide; j += LANES) {
            float* column = to + co * taps + j;
            for (int ky = 0; ky < l.kh; ++ky)
                for (int piece = 0; piece < pieces; ++piece, column += length * wide)
                    pack_eight_kernels(W + ((co + j) * int64_t(l.kh) + ky) * row + piece * l.in.stride, l.kh * row, l.raw.C - co - j, length, column, wide);
        }
    }
}

// Add the taps from first to last - 1, for the pixels at p[TY][TX]; w: NV vectors of output channels for each tap.
template <int TY, int TX, int NV>
INLINE void conv_taps(vf (&acc)[TY][TX][NV], const float* const (&p)[TY][TX], const int32_t* taps, int64_t first, int64_t last, const float* w) {
    w += first * NV * LANES;
    for (int64_t t = first; t < last; ++t, w += NV * LANES) {
        int64_t tap = taps[t];
        vf weight[NV];
        unroll<NV>([&](auto v) { weight[v.value] = load(w + LANES * v.value); });
        unroll<TY>([&](auto y) {
            unroll<TX>([&](auto x) {
                vf s = splat(p[y.value][x.value][tap]);
                unroll<NV>([&](auto v) { acc[y.value][x.value][v.value] = fma(s, weight[v.value], acc[y.value][x.value][v.value]); });
            });
        });
    }
}

template <int TY, int TX, int NV>
INLINE void conv_sums(vf (&acc)[TY][TX][NV], const Layer& l, const float* in, const int32_t* taps, const float* w, const float* bias) {
    const float* p[TY][TX];
    int64_t row = l.in.row(), stride = l.in.stride, number = int64_t(l.kh) * l.kw * l.in.C;
    unroll<TY>([&](auto y) {
        unroll<TX>([&](auto x) {
            p[y.value][x.value] = in + y.value * row + x.value * stride;
            unroll<NV>([&](auto v) { acc[y.value][x.value][v.value] = bias ? load(bias + LANES * v.value) : splat(0.0f); });
        });
    });
    conv_taps<TY, TX, NV>(acc, p, taps, 0, least<int64_t>(number, TAPS), w);
    for (int64_t first = TAPS; first < number; first += TAPS) {
        vf more[TY][TX][NV] = {};
        conv_taps<TY, TX, NV>(more, p, taps, first, least(number, first + TAPS), w);
        unroll<TY>([&](auto y) {
            unroll<TX>([&](auto x) {
                unroll<NV>([&](auto v) { acc[y.value][x.value][v.value] = acc[y.value][x.value][v.value] + more[y.value][x.value][v.value]; });
            });
        });
    }
}

// Keep the larger of two and its position: the first of equals; NaN is larger than any number.
INLINE void take_larger(vf& best, vi& at, vf here, vi place) {
    vi wins = ~(here <= best) & (best == best);
    best = pick(wins, here, best);
    at = pick(wins, place, at);
}
INLINE void take_larger(vf& best, vi& at, vf here, int32_t place) { take_larger(best, at, here, splat(place)); }

struct ConvOut {
    float* out;
    int64_t row, stride;
    int32_t* marks;  // if pooled: the position in the convolution's input that receives each gradient
    bool relu;
};

// Compute all tiles of one image. The last ones are moved back inside, since a pixel's sum is the same in any tile.
template <int TY, int TX, int NV>
static void conv_tiles(const Layer& l, const float* image, const int32_t* taps, const float* w, const float* bias, ConvOut to) {
    int64_t row = l.in.row(), stride = l.in.stride;
    for (int y = 0; y < l.raw.H; y += TY)
        for (int x = 0; x < l.raw.W; x += TX) {
            int v = least(y, l.raw.H - TY), u = least(x, l.raw.W - TX);
            vf acc[TY][TX][NV];
            conv_sums<TY, TX, NV>(acc, l, image + v * row + u * stride, taps, w, bias);
            float* out = to.out + v * to.row + u * to.stride;
            unroll<TY>([&](auto j) {
                unroll<TX>([&](auto i) {
                    unroll<NV>([&](auto k) {
                        vf sum = acc[j.value][i.value][k.value];
                        store(out + j.value * to.row + i.value * to.stride + LANES * k.value, to.relu ? relu(sum) : sum);
                    });
                });
            });
        }
}

// The same, with a pool of 2 x 2 on the tile while it is in registers. PX: pooled pixels of a tile. Evaluation needs no
// MARKS: the positions of the maxima are then not computed.
template <int PX, int NV, bool MARKS>
static void conv_tiles_pooled(const Layer& l, const float* image, const int32_t* taps, const float* w, const float* bias, ConvOut to) {
    int32_t row = l.in.row(), stride = l.in.stride;
    for (int y = 0; y < l.out.H; ++y)
        for (int x = 0; x < l.out.W; x += PX) {
            int u = least(x, l.out.W - PX);
            int32_t corner = l.corner + 2 * y * row + 2 * u * stride;
            vf acc[2][2 * PX][NV];
            conv_sums<2, 2 * PX, NV>(acc, l, image - l.corner + corner, taps, w, bias);
            float* out = to.out + y * to.row + u * to.stride;
            int64_t mark = (int64_t(y) * l.out.W + u) * l.out.stride;
            unroll<PX>([&](auto i) {
                unroll<NV>([&](auto k) {
                    int32_t at = corner + 2 * i.value * stride;
                    vf best = acc[0][2 * i.value][k.value];
                    vi found = splat(at);
                    take_larger(best, found, acc[0][2 * i.value + 1][k.value], at + stride);
                    take_larger(best, found, acc[1][2 * i.value][k.value], at + row);
                    take_larger(best, found, acc[1][2 * i.value + 1][k.value], at + row + stride);
                    store(out + i.value * to.stride + LANES * k.value, to.relu ? relu(best) : best);
                    if constexpr (MARKS) store(to.marks + mark + i.value * l.out.stride + LANES * k.value, found);
                });
            });
        }
}

#include "conv_grey.h"

INLINE bool is_pooled_in_registers(const Layer& l) { return l.pooled && l.sh == 2 && l.sw == 2; }

template <int NV, bool MARKS> INLINE void conv_channels(const Layer& l, const float* image, const int32_t* taps, const float* w, const float* bias, ConvOut to) {
    int H = l.raw.H, W = l.raw.W;
    if (is_pooled_in_registers(l)) {
        if (NV == 1 && is_grey(l)) conv_grey<MARKS>(l, image, taps, w, bias, to);
        else if (NV == 1 && l.out.W >= 2) conv_tiles_pooled<2, NV, MARKS>(l, image, taps, w, bias, to);
        else conv_tiles_pooled<1, NV, MARKS>(l, image, taps, w, bias, to);
    } else if (NV == 1 && H >= 2 && W >= 4) conv_tiles<2, 4, NV>(l, image, taps, w, bias, to);
    else if (H >= 2 && W >= 2) conv_tiles<2, 2, NV>(l, image, taps, w, bias, to);
    else conv_tiles<1, 1, NV>(l, image, taps, w, bias, to);
}

// Compute one image, sixteen output channels at a time, and eight at the end.
template <bool MARKS> static void conv_image(const Layer& l, const float* image, const int32_t* taps, const float* w, const float* bias, ConvOut to) {
    int64_t number = int64_t(l.kh) * l.kw * l.in.C;
    for (int co = 0; co < l.raw.stride;) {
        const float *kernels = w + co * number, *add = bias ? bias + co : nullptr;
        ConvOut here = {to.out + co, to.row, to.stride, to.marks + co, to.relu};
        if (l.raw.stride - co >= 2 * LANES) {
            conv_channels<2, MARKS>(l, image + l.corner, taps, kernels, add, here);
            co += 2 * LANES;
        } else {
            conv_channels<1, MARKS>(l, image + l.corner, taps, kernels, add, here);
            co += LANES;
        }
    }
}

// The pool behind a convolution, of any size: windows that do not overlap.
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
                    for (int u = v == 0; u < l.sw; ++u)
                        take_larger(best, at, load(window + v * raw_row + u * l.raw.stride), corner + v * t.row() + u * t.stride);
                store(out + o.inside() + y * o.row() + x * o.stride + c, l.relu ? relu(best) : best);
                store(marks, at);
                marks += LANES;
            }
}

template <bool MARKS> static void conv_forward(const Layer& l, int n, const float* in, const int32_t* taps, const float* w, const float* bias, float* raw, float* out, int32_t* marks) {
    const Tensor& o = l.out;
    for (int b = 0; b < n; ++b, in += l.in.size, out += o.size) {
        int32_t* here = l.pooled ? marks + int64_t(b) * o.H * o.W * o.stride : marks;
        if (l.pooled && !is_pooled_in_registers(l)) {
            conv_image<MARKS>(l, in, taps, w, bias, {raw, l.raw.row(), l.raw.stride, here, false});
            pool_image(l, raw, out, here);
        } else {
            conv_image<MARKS>(l, in, taps, w, bias, {out + o.inside(), o.row(), o.stride, here, l.relu != 0});
        }
    }
}
