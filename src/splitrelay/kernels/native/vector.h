// Vectors of eight floats. Every sum is written as explicit fused multiply-adds in a fixed order, and the compiler may
// not contract anything else. The bits are therefore the same on every CPU level and with every compiler.
#pragma once
#include <stdint.h>

#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

constexpr int LANES = 8;
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));
typedef float vf_anywhere __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t vi_anywhere __attribute__((vector_size(32), aligned(4), may_alias));
typedef float quad_anywhere __attribute__((vector_size(16), aligned(4), may_alias));

INLINE vf load(const float* p) { return *(const vf_anywhere*)p; }
INLINE void store(float* p, vf v) { *(vf_anywhere*)p = v; }
INLINE void store(float* p, quad v) { *(quad_anywhere*)p = v; }
INLINE vi load(const int32_t* p) { return *(const vi_anywhere*)p; }
INLINE void store(int32_t* p, vi v) { *(vi_anywhere*)p = v; }
INLINE vf splat(float s) { return vf{s, s, s, s, s, s, s, s}; }
INLINE vi splat(int32_t s) { return vi{s, s, s, s, s, s, s, s}; }
INLINE vf pick(vi mask, vf yes, vf no) { return mask ? yes : no; }
INLINE vi pick(vi mask, vi yes, vi no) { return mask ? yes : no; }

INLINE vf fma(vf a, vf b, vf c) {
#if defined(__clang__)
    return __builtin_elementwise_fma(a, b, c);
#elif defined(__FMA__)
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    for (int j = 0; j < LANES; ++j) c[j] = __builtin_fmaf(a[j], b[j], c[j]);
    return c;
#endif
}

// Zero where v is negative; NaN stays NaN, so that a diverging run is detected.
INLINE vf relu(vf v) { return pick(splat(0.0f) > v, splat(0.0f), v); }

INLINE quad add_halves(vf v) {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}

// Return the sums of four vectors, each ((0+4)+(2+6)) + ((1+5)+(3+7)).
INLINE quad add_lanes(vf a, vf b, vf c, vf d) {
    quad A = add_halves(a), B = add_halves(b), C = add_halves(c), D = add_halves(d);
    quad ab = __builtin_shufflevector(A, B, 0, 4, 1, 5) + __builtin_shufflevector(A, B, 2, 6, 3, 7);
    quad cd = __builtin_shufflevector(C, D, 0, 4, 1, 5) + __builtin_shufflevector(C, D, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

// A loop whose counter is a constant: arrays of vectors indexed by it are kept in registers.
template <int J> struct Number { static constexpr int value = J; };
template <int N, int J = 0, class Body> INLINE void unroll(Body body) {
    if constexpr (J < N) {
        body(Number<J>{});
        unroll<N, J + 1>(body);
    }
}

template <class T> INLINE T least(T a, T b) { return a < b ? a : b; }
INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
