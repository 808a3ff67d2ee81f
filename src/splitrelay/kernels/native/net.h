// The structures that Python passes: layers with their sizes, and the places of their numbers. kernels/ctypes_structs.py
// declares the same structures, and kernels/buffer_layout.py fills them.
#pragma once
#include "random.h"

// One image: (H + 2 border) x (W + 2 border) pixels of `stride` floats, C of them in use, the rest and the border zero.
// Flatten does not move any number. A plain vector of F features is C = F with H = W = 1.
struct Tensor {
    int32_t C, H, W, stride, border;
    int32_t size;  // floats from one image to the next
    INLINE_MEMBER int32_t row() const { return (W + 2 * border) * stride; }
    INLINE_MEMBER int32_t inside() const { return border * (row() + stride); }  // offset of the first pixel
};

enum Kind : int32_t { CONV, RELU, MAXPOOL, FLATTEN, LINEAR, DROPOUT };

struct Layer {
    int32_t kind;
    int32_t kh, kw;          // kernel of a convolution or a pool
    int32_t sh, sw;          // stride of a pool
    int32_t ph, pw;          // padding of a pool
    int32_t relu, pooled;    // convolution: whether a relu or a pool is part of this pass (the pool's kernel is then sh, sw)
    int32_t vectors;         // convolution: vectors of eight floats in one row of a kernel
    int32_t block;           // convolution: images at a time, so that they stay in the L1 cache
    int32_t corner;          // convolution: offset of the pixel under the kernel's corner for output (0, 0)
    int32_t number;          // the number of this layer in the whole net
    float p;                 // probability of dropout
    Tensor in, raw, out;     // raw: the output of a convolution before the pool
    int64_t in_at, out_at;   // activations, in the arena
    int64_t g_in_at, g_out_at;  // gradients, in the arena; g_in_at < 0: not needed
    int64_t weight, bias;    // in the packed parameters; bias < 0: none
    int64_t forward_weight;  // convolution: kernels as the forward pass reads them, in the arena
    int64_t raw_at;          // convolution: one image before the pool, in the arena
    int64_t marks;           // pool: the position of each maximum
    int64_t mask;            // dropout: uniform numbers of this step, in the arena
    int64_t taps;            // convolution: offsets of the inputs under a kernel, in the order of summation
    int64_t positions;       // convolution that is not pooled here: order in which its outputs are summed
    int64_t count;           // number of these positions
};

// One tensor of x: where it starts in the flat vector, and where in the packed one.
struct Slot {
    int64_t flat, packed, packed_size;
    int32_t kind;            // 0 vector, 1 convolution kernel, 2 linear
    int32_t out, C, H, W;    // kernel: C = inputs, H x W its size; linear: the shape of one input
    int32_t stride, row;     // floats of one pixel, of one packed row
};

struct Net {
    const Layer* layers;
    const Slot* slots;
    float* arena;
    int32_t* marks;
    const int32_t* positions;  // tables: taps; and pairs (offset of an output, offset of the input pixel under its kernel's corner)
    int32_t* found;          // buffer for lists of gradients that are not zero
    double* sums;            // one number per channel of the widest layer
    float *x, *g, *velocity, *start, *shift;  // packed; without g nothing is trained, and the last three do not exist
    int64_t packed_size;     // numbers of each of these
    int64_t flat_size;       // numbers of x in the layout of models/layout.py
    int64_t arena_size, marks_size, positions_size, found_size, sums_size;
    int64_t batch;           // maximum number of images of one call
    int32_t n_layers, n_slots;
    int32_t classes;
    int32_t learns;          // whether g and the last three exist
    uint64_t seal;           // written by check_net (checks.h): a hash of the fields above
    int32_t has_velocity, has_shift;  // in this visit: whether velocity has been written, whether there is a shift
};

struct Images {
    const uint8_t* x;
    const int64_t* y;
    const float* levels;     // (C, 256): the number that each byte stands for
    const int64_t *at, *top, *left;  // positions of the images; corner of each crop, or null
    const uint8_t* flip;
    int64_t N;               // images of the set
    int64_t chosen;          // length of `at`, and of top, left and flip if they are not null
    int32_t C, H, W, pad;
    const float* features;   // (N, C, H, W): numbers in place of bytes and levels, or null
};

struct Step {
    float eta, weight_decay, momentum, prox;
    double clip;             // < 0: none
};

// One visit: its x before and after, the images of its steps, and the name of its random numbers.
struct Visit {
    const Images* images;
    const Step* step;
    const Name* name;
    const float *x, *shift;  // in the layout of models/layout.py; shift may be null
    float* out;
    const int32_t* sizes;    // images of each step
    int64_t* labels;
    double *norms, *losses;
    int64_t x_size;          // numbers of x, of shift and of out
    int64_t labels_size, norms_size;
    double loss;             // result: the loss of a step of the server half
    int32_t K, dropout;      // K: length of sizes and losses; dropout: the number of this purpose
    int32_t finite;          // result: whether all of x is finite
};
