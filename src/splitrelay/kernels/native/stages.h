// Ticks of the best run of each stage, in builds with -DSTAGES (python -m benchmarks.profile_kernels); else nothing.
#pragma once
#include <stdint.h>

#ifdef STAGES
static int64_t stage_ticks[6 + 2 * 64];  // in the order of the enum below; then forward and backward of each pass
static inline int64_t ticks() {
#if defined(__x86_64__)
    return int64_t(__builtin_ia32_rdtsc());
#else
    int64_t t;
    asm volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#endif
}
template <class Work> static inline void stage(int number, Work work) {
    int64_t start = ticks();
    work();
    int64_t took = ticks() - start;
    if (number >= int(sizeof stage_ticks / sizeof *stage_ticks)) return;  // deeper nets are not measured
    if (!stage_ticks[number] || took < stage_ticks[number]) stage_ticks[number] = took;
}
#else
template <class Work> static inline __attribute__((always_inline)) void stage(int, Work work) { work(); }
#endif

enum { GATHER, READY, LOSS, UPDATE, PACK, UNPACK, PASSES };
