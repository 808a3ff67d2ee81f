// Transpose eight vectors: rows become columns.
#pragma once
#include "net.h"

INLINE void transpose8(vf (&r)[8]) {
    vf a[8], b[8];
    unroll<4>([&](auto j) {
        constexpr int k = 2 * j.value;
        a[k] = __builtin_shufflevector(r[k], r[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[k + 1] = __builtin_shufflevector(r[k], r[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    });
    unroll<2>([&](auto j) {
        constexpr int k = 4 * j.value;
        b[k] = __builtin_shufflevector(a[k], a[k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[k + 1] = __builtin_shufflevector(a[k], a[k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        b[k + 2] = __builtin_shufflevector(a[k + 1], a[k + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        b[k + 3] = __builtin_shufflevector(a[k + 1], a[k + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    });
    unroll<4>([&](auto j) {
        r[j.value] = __builtin_shufflevector(b[j.value], b[j.value + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[j.value + 4] = __builtin_shufflevector(b[j.value], b[j.value + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    });
}
