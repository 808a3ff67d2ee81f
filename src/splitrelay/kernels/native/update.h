// What a step does with its gradient: shift, squared norms, clip, decay, prox, momentum, move.
#pragma once
#include "net.h"

INLINE void shifted(const Net& net) {
    if (!net.shifted) return;
    for (int64_t j = 0; j < net.packed_size; j += LANES) store(net.g + j, load(net.g + j) + load(net.shift + j));
}

// In float64, eight partial sums, then from left to right.
INLINE double squared_norm(const float* g, int64_t size) {
    double sums[LANES] = {};
    for (int64_t j = 0; j < size; j += LANES)
        for (int k = 0; k < LANES; ++k) sums[k] += double(g[j + k]) * double(g[j + k]);
    double sum = 0.0;
    for (int k = 0; k < LANES; ++k) sum += sums[k];
    return sum;
}

INLINE void squared_norms(const Net& net, double* norms) {
    for (int j = 0; j < net.n_slots; ++j) norms[j] = squared_norm(net.g + net.slots[j].packed, net.slots[j].packed_size);
}

INLINE float clipping(const Step& step, double norm2) {
    if (step.clip < 0) return 1.0f;
    double scale = step.clip / (__builtin_sqrt(norm2) + 1e-6);  // the floor of torch's clip_grad_norm_
    return scale < 1.0 ? float(scale) : scale != scale ? float(scale) : 1.0f;
}

// x - eta (clip * g + decay x + prox (x - start)), with momentum in between.
INLINE void move(Net& net, const Step& step, double norm2) {
    vf scale = splat(clipping(step, norm2)), decay = splat(step.weight_decay), minus_eta = splat(-step.eta);
    vf prox = splat(step.prox), momentum = splat(step.momentum);
    bool held = step.prox != 0.0f, rolling = step.momentum != 0.0f, plain = !held && !rolling;
    for (int64_t j = 0; j < net.packed_size; j += LANES) {
        vf x = load(net.x + j), d = fma(decay, x, load(net.g + j) * scale);
        if (!plain) {
            if (held) d = fma(prox, x - load(net.start + j), d);
            if (rolling) {
                if (net.moved) d = fma(momentum, load(net.velocity + j), d);
                store(net.velocity + j, d);
            }
        }
        store(net.x + j, fma(minus_eta, d, x));
    }
    net.moved = 1;
}
