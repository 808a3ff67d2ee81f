// Linear layers. W is stored as in torch, one row per output; rows are padded to whole vectors.
#pragma once
#include "net.h"

// Compute the dot products of NB inputs with four rows of W.
template <int NB> INLINE void compute_dots(const float* in, int64_t in_row, const float* W, int64_t row, const float* bias, float* out, int64_t out_row) {
    vf acc[NB][4] = {};
    for (int64_t i = 0; i < row; i += LANES) {
        vf v[NB];
        unroll<NB>([&](auto b) { v[b.value] = load(in + b.value * in_row + i); });
        unroll<4>([&](auto o) {
            vf w = load(W + o.value * row + i);
            unroll<NB>([&](auto b) { acc[b.value][o.value] = fma(v[b.value], w, acc[b.value][o.value]); });
        });
    }
    quad add = bias ? quad{bias[0], bias[1], bias[2], bias[3]} : quad{0, 0, 0, 0};
    unroll<NB>([&](auto b) {
        store(out + b.value * out_row, add_lanes(acc[b.value][0], acc[b.value][1], acc[b.value][2], acc[b.value][3]) + add);
    });
}

INLINE void linear_forward(const Layer& l, int n, const float* in, const float* W, const float* bias, float* out) {
    int64_t row = l.in.size, out_row = l.out.size;
    for (int o = 0; o < l.out.C; o += 4) {  // W has zero rows up to a multiple of four
        const float *w = W + o * row, *add = bias ? bias + o : nullptr;
        int b = 0;
        for (; b + 2 <= n; b += 2) compute_dots<2>(in + b * row, row, w, row, add, out + b * out_row + o, out_row);
        if (b < n) compute_dots<1>(in + b * row, row, w, row, add, out + b * out_row + o, out_row);
    }
}

// C[m][0..8N) = sum over k of A[m * a_m + k * a_k] * B[k * b_k + 0..8N), for MM rows and NN vectors at once.
struct Product {
    const float* A;
    int64_t a_m, a_k;
    const float* B;
    int64_t b_k;
    float* C;
    int64_t c_m;
    int M, K;
    int64_t N;
};

constexpr int PRODUCTS = 256;  // of one partial sum

template <int MM, int NN> INLINE void product_tile(const Product p, int m, int64_t j) {
    const float *a = p.A + m * p.a_m, *b = p.B + j;
    for (int first = 0; first < p.K; first += PRODUCTS) {
        vf acc[MM][NN] = {};
        int last = least(p.K, first + PRODUCTS);
        for (int k = first; k < last; ++k, a += p.a_k, b += p.b_k) {
            vf v[NN];
            unroll<NN>([&](auto q) { v[q.value] = load(b + LANES * q.value); });
            unroll<MM>([&](auto i) {
                vf s = splat(a[i.value * p.a_m]);
                unroll<NN>([&](auto q) { acc[i.value][q.value] = fma(s, v[q.value], acc[i.value][q.value]); });
            });
        }
        unroll<MM>([&](auto i) {
            unroll<NN>([&](auto q) {
                float* place = p.C + (m + i.value) * p.c_m + j + LANES * q.value;
                store(place, first == 0 ? acc[i.value][q.value] : load(place) + acc[i.value][q.value]);
            });
        });
    }
}

// Five rows by two vectors: ten sums, two vectors and one number fit into the sixteen registers of AVX2.
template <int NN> INLINE void product_columns(const Product p, int64_t j) {
    int m = 0;
    for (; m + 5 <= p.M; m += 5) product_tile<5, NN>(p, m, j);
    switch (p.M - m) {
        case 4: return product_tile<4, NN>(p, m, j);
        case 3: return product_tile<3, NN>(p, m, j);
        case 2: return product_tile<2, NN>(p, m, j);
        case 1: return product_tile<1, NN>(p, m, j);
    }
}

static void multiply(Product p) {
    int64_t j = 0;
    for (; j + 2 * LANES <= p.N; j += 2 * LANES) product_columns<2>(p, j);
    if (j < p.N) product_columns<1>(p, j);
}

INLINE void linear_backward(const Layer& l, int n, const float* W, const float* g_out, float* g_in) {
    int64_t row = l.in.size, out_row = l.out.size;
    if (g_in) multiply({g_out, out_row, 1, W, row, g_in, row, n, l.out.C, row});  // dF/din[b] = sum over o of g_out[b][o] W[o]
}

INLINE void linear_weight_gradient(const Layer& l, int n, const float* in, const float* g_out, float* gW, float* g_bias) {
    int64_t row = l.in.size, out_row = l.out.size;
    multiply({g_out, 1, out_row, in, row, gW, row, l.out.C, n, row});  // dF/dW[o] = sum over b of g_out[b][o] in[b]
    if (g_bias)
        for (int64_t o = 0; o < out_row; o += LANES) {
            vf sum = splat(0.0f);
            for (int b = 0; b < n; ++b) sum = sum + load(g_out + b * out_row + o);
            store(g_bias + o, sum);
        }
}
