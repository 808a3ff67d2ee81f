// From the gradient to the new weights: shift, squared norms, clip, decay, prox, momentum, update.
#pragma once
#include "net.h"

INLINE void add_shift(const Net& net) {
    if (!net.has_shift) return;
    for (int64_t j = 0; j < net.packed_size; j += LANES) store(net.g + j, load(net.g + j) + load(net.shift + j));
}

// Sum in float64: eight partial sums, then these from left to right.
INLINE double compute_squared_norm(const float* g, int64_t size) {
    double sums[LANES] = {};
    for (int64_t j = 0; j < size; j += LANES)
        for (int k = 0; k < LANES; ++k) sums[k] += double(g[j + k]) * double(g[j + k]);
    double sum = 0.0;
    for (int k = 0; k < LANES; ++k) sum += sums[k];
    return sum;
}

INLINE void compute_squared_norms(const Net& net, double* norms) {
    for (int j = 0; j < net.n_slots; ++j) norms[j] = compute_squared_norm(net.g + net.slots[j].packed, net.slots[j].packed_size);
}

INLINE float get_clip_scale(const Step& step, double norm2) {
    if (step.clip < 0) return 1.0f;
    double scale = step.clip / (__builtin_sqrt(norm2) + 1e-6);  // the floor of torch's clip_grad_norm_
    return scale < 1.0 ? float(scale) : scale != scale ? float(scale) : 1.0f;
}

// x - eta (clip * g + decay x + prox (x - start)), with momentum in between.
INLINE void update_weights(Net& net, const Step& step, double norm2) {
    vf scale = splat(get_clip_scale(step, norm2)), decay = splat(step.weight_decay), minus_eta = splat(-step.eta);
    vf prox = splat(step.prox), momentum = splat(step.momentum);
    bool has_prox = step.prox != 0.0f, has_momentum = step.momentum != 0.0f, plain = !has_prox && !has_momentum;
    for (int64_t j = 0; j < net.packed_size; j += LANES) {
        vf x = load(net.x + j), d = fma(decay, x, load(net.g + j) * scale);
        if (!plain) {
            if (has_prox) d = fma(prox, x - load(net.start + j), d);
            if (has_momentum) {
                if (net.has_velocity) d = fma(momentum, load(net.velocity + j), d);
                store(net.velocity + j, d);
            }
        }
        store(net.x + j, fma(minus_eta, d, x));
    }
    net.has_velocity = 1;
}
