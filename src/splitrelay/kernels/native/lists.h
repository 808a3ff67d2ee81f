// Lists of the gradients that are not zero, for eight output channels at a time, each with the input pixel it belongs to.
// Eight positions are transposed and compressed (zeros removed) at once.
#pragma once
#include "transpose.h"

struct List {  // of one channel
    int32_t* at;
    float* g;
    int n;
};

// For each mask of eight bits the places of its ones, as bytes.
struct Squeeze {
    uint64_t places[256];
    constexpr Squeeze() : places() {
        for (int mask = 0; mask < 256; ++mask)
            for (int j = 0, n = 0; j < 8; ++j)
                if (mask >> j & 1) places[mask] |= uint64_t(j) << 8 * n++;
    }
};
static constexpr Squeeze squeeze;

// Append the pairs whose g is not zero: write eight, count those.
INLINE void append(List& list, vf g, vi at) {
#if defined(__AVX2__)
    typedef char bytes __attribute__((vector_size(16)));
    typedef long long words __attribute__((vector_size(16)));
    int mask = __builtin_ia32_movmskps256((vf)(g != splat(0.0f)));
    bytes packed = (bytes)(words){(long long)squeeze.places[mask], 0};
    typedef char eight __attribute__((vector_size(8)));
    vi order = __builtin_convertvector((eight)__builtin_shufflevector(packed, packed, 0, 1, 2, 3, 4, 5, 6, 7), vi);
    store(list.g + list.n, (vf)__builtin_ia32_permvarsf256(g, order));
    store(list.at + list.n, (vi)__builtin_ia32_permvarsi256(at, order));
    list.n += __builtin_popcount(unsigned(mask));
#else
    for (int j = 0; j < LANES; ++j) {
        list.g[list.n] = g[j];
        list.at[list.n] = at[j];
        list.n += g[j] != 0.0f;
    }
#endif
}

// Up to eight positions that wait for the transpose.
struct Waiting {
    float g[8 * LANES];
    int32_t at[8 * LANES];
    int n;
};

INLINE void flush(Waiting& w, List* lists) {
    for (; w.n < 8; ++w.n) {
        store(w.g + LANES * w.n, splat(0.0f));
        store(w.at + LANES * w.n, splat(0));
    }
    vf g[8], at[8];
    unroll<8>([&](auto j) {
        g[j.value] = load(w.g + LANES * j.value);
        at[j.value] = (vf)load(w.at + LANES * j.value);
    });
    transpose8(g);
    transpose8(at);
    unroll<8>([&](auto j) { append(lists[j.value], g[j.value], (vi)at[j.value]); });
    w.n = 0;
}

// Make the lists of channels c, ..., c + 7, in the order of the pool's windows (or of `positions`), and the sums of all
// their gradients: a row of windows in float32, rows in float64, since large gradients may cancel.
template <bool POOLED>
static void list_gradients(const Layer& l, int images, int c, const float* out, const float* g_out, const int32_t* marks, const int32_t* positions, List* lists, double* sums) {
    const Tensor& o = l.out;
    Waiting waiting;
    waiting.n = 0;
    int64_t row = POOLED ? o.W : int64_t(l.raw.W / l.sw) * l.sh * l.sw;
    for (int b = 0; b < images; ++b) {
        const float *g_b = g_out + int64_t(b) * o.size + c, *out_b = out + int64_t(b) * o.size + c;
        vi image = splat(int32_t(b * l.in.size));
        for (int64_t first = 0; first < l.count; first += row) {
            vf sum = splat(0.0f);
            int64_t pixel = o.inside() + first / o.W * o.row(), last = least(l.count, first + row);
            for (int64_t j = first; j < last; ++j, pixel += o.stride) {
                int64_t here = POOLED ? pixel : positions[2 * j];
                vi at = POOLED ? load(marks + (int64_t(b) * l.count + j) * o.stride + c) : splat(positions[2 * j + 1]);
                vf g = load(g_b + here);
                if (l.relu) g = pick(load(out_b + here) > splat(0.0f), g, splat(0.0f));  // the gradient of relu is zero there
                sum = sum + g;
                store(waiting.g + LANES * waiting.n, g);
                store(waiting.at + LANES * waiting.n, at + image);
                if (++waiting.n == 8) flush(waiting, lists);
            }
            for (int k = 0; k < LANES; ++k) sums[k] += double(sum[k]);
        }
    }
    if (waiting.n) flush(waiting, lists);
}
