// Load numbers as they are, or convert the bytes of the chosen images to the net's first activations by a table; apply crops and flips.
#pragma once
#include "net.h"

typedef uint64_t eight_bytes __attribute__((aligned(1), may_alias));

// Convert n contiguous bytes: eight look-ups make one vector.
INLINE void load_grey_row(const uint8_t* bytes, int n, const float* levels, float* to) {
    int x = 0;
    for (; x + LANES <= n; x += LANES) {
        uint64_t b = *(const eight_bytes*)(bytes + x);
        auto level = [&](int j) { return levels[b >> 8 * j & 255]; };  // the lowest byte is the first
        store(to + x, vf{level(0), level(1), level(2), level(3), level(4), level(5), level(6), level(7)});
    }
    for (; x < n; ++x) to[x] = levels[bytes[x]];
}

// Copy the numbers of one sample (C, H, W) into the net's order, with the channels last.
INLINE void load_features(const float* from, const Tensor& t, float* to) {
    for (int c = 0; c < t.C; ++c)
        for (int y = 0; y < t.H; ++y) {
            float* row = to + t.inside() + y * t.row() + c;
            for (int x = 0; x < t.W; ++x) row[x * t.stride] = from[(c * t.H + y) * t.W + x];
        }
}

INLINE void load_image(const Images& set, int64_t which, const Tensor& t, float* to) {
    int64_t n = set.at ? set.at[which] : which;
    if (set.features) return load_features(set.features + n * set.C * set.H * set.W, t, to);
    const uint8_t* from = set.x + n * set.C * set.H * set.W;
    if (t.stride == 1 && !t.border) return load_grey_row(from, t.H * t.W, set.levels, to);
    for (int c = 0; c < t.C; ++c)
        for (int y = 0; y < t.H; ++y) {
            const uint8_t* bytes = from + (c * t.H + y) * t.W;
            const float* levels = set.levels + 256 * c;
            float* row = to + t.inside() + y * t.row() + c;
            if (t.stride == 1) load_grey_row(bytes, t.W, levels, row);
            else
                for (int x = 0; x < t.W; ++x) row[x * t.stride] = levels[bytes[x]];
        }
}

INLINE void load_cropped_image(const Images& set, int64_t which, const Tensor& t, float* to) {
    int64_t n = set.at ? set.at[which] : which;
    const uint8_t* from = set.x + n * set.C * set.H * set.W;
    int top = int(set.top[which]) - set.pad, left = int(set.left[which]) - set.pad;
    bool flip = set.flip[which];
    for (int c = 0; c < t.C; ++c)
        for (int y = 0; y < t.H; ++y) {
            const float* levels = set.levels + 256 * c;
            float* row = to + t.inside() + y * t.row() + c;
            int v = y + top;
            for (int x = 0; x < t.W; ++x) {
                int u = (flip ? t.W - 1 - x : x) + left;
                bool inside = v >= 0 && v < t.H && u >= 0 && u < t.W;  // outside is black, before normalisation
                row[x * t.stride] = levels[inside ? from[(c * t.H + v) * t.W + u] : 0];
            }
        }
}

INLINE void gather_images(const Images& set, int64_t first, int n, const Tensor& t, float* to) {
    for (int b = 0; b < n; ++b, to += t.size)
        if (set.top) load_cropped_image(set, first + b, t, to);
        else load_image(set, first + b, t, to);
}

// Whether images first, ..., first + n - 1 of the choice exist.
INLINE bool are_in_set(const Images& set, int64_t first, int64_t n) {
    bool good = true;
    for (int64_t j = first; j < first + n; ++j) good &= uint64_t(set.at ? set.at[j] : j) < uint64_t(set.N);
    return good;
}
