// Softmax cross-entropy, with our own exponential and logarithm: those of systems differ in the last bits.
#pragma once
#include "net.h"

INLINE vf exponential(vf x) {  // for x <= 0
    x = pick(splat(-87.0f) > x, splat(-87.0f), x);
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    vf shifted = fma(x, splat(1.44269504f), magic);
    vf whole = shifted - magic;
    vf r = fma(whole, splat(-0.693359375f), x);
    r = fma(whole, splat(2.12194440e-4f), r);
    vf y = splat(1.9875691500e-4f);
    y = fma(y, r, splat(1.3981999507e-3f));
    y = fma(y, r, splat(8.3334519073e-3f));
    y = fma(y, r, splat(4.1665795894e-2f));
    y = fma(y, r, splat(1.6666665459e-1f));
    y = fma(y, r, splat(5.0000001201e-1f));
    y = fma(y, r * r, r) + splat(1.0f);
    vi power = ((vi)shifted - (vi)magic + 127) << 23;
    return y * (vf)power;
}

INLINE double logarithm(double v) {  // for v >= 1, finite
    union {
        double value;
        uint64_t bits;
    } u = {v};
    int exponent = int(u.bits >> 52) - 1023;
    u.bits = (u.bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m = u.value;
    if (m > 1.4142135623730951) m = m * 0.5, ++exponent;
    double s = (m - 1.0) / (m + 1.0), square = s * s, sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return exponent * 0.6931471805599453 + 2.0 * s * sum;
}

// Return log(sum exp z) - z[label]; z becomes exp(z - max), and `total` is their sum. Columns behind the classes are ignored.
INLINE double row_loss(float* z, int classes, int64_t label, float& total) {
    float highest = z[0];
    for (int c = 1; c < classes; ++c) highest = z[c] > highest || z[c] != z[c] ? z[c] : highest;
    double at_label = double(z[label]) - double(highest);
    for (int c = 0; c < classes; c += LANES) store(z + c, exponential(load(z + c) - splat(highest)));
    total = 0.0f;
    for (int c = 0; c < classes; ++c) total += z[c];
    return total == total ? logarithm(double(total)) - at_label : double(total);
}

// Return the sum of losses; write the gradient of their mean to g, unless it is null.
INLINE double cross_entropy(int n, int classes, int64_t row, float* z, const int64_t* labels, float* g) {
    double sum = 0.0;
    float part = 1.0f / float(n);
    for (int b = 0; b < n; ++b, z += row) {
        float total;
        sum += row_loss(z, classes, labels[b], total);
        if (!g) continue;
        float scale = part / total;
        for (int c = 0; c < classes; ++c) g[c] = z[c] * scale;
        g[labels[b]] -= part;
        g += row;
    }
    return sum;
}
