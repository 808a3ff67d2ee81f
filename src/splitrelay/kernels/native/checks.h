// Checks of everything that Python passes. Python has checked the same before (kernels/network_plan.py). These checks are
// sufficient alone: a net that passes check_net cannot make a kernel read or write outside the buffers whose sizes it
// declares, for any batch from 1 to net.batch.
//
// check_net checks every layer, slot and table, once per net, and writes a hash of the fields of Net (seal). Every entry
// point compares the hash and checks its own arguments, which takes some nanoseconds for any net. Layers, slots and
// tables must not change after check_net.
#pragma once
#include "images.h"

// Entry points return these instead of 0 or a count; kernels/ctypes_structs.py has their messages.
enum Fault : int32_t {
    FINE = 0,
    NO_IMAGE = -1,    // an image that does not exist
    NO_NET = -2,      // a net that was not checked, or changed since
    BAD_BATCH = -3,   // no images, or more than net.batch
    BAD_LABEL = -4,   // a label outside the classes
    BAD_SIZE = -5,    // a buffer of another size than the call needs
    NOT_FOR = -6,     // a net that cannot do this: it has no gradients, or does not end in the outputs
    NO_POINTER = -7,  // a null pointer
    BAD_SET = -8,     // images of another shape, or crops out of range
    BAD_DRAW = -9,    // nothing to draw from, or a buffer that is too small
    // Faults of a net; check_net returns -(one of these + 100 * number of the layer or slot).
    BAD_NET = 10, BAD_KIND, BAD_TENSOR, BAD_CHAIN, BAD_ARENA, BAD_WEIGHTS, BAD_MARKS, BAD_WINDOW, BAD_TABLE, BAD_ROOM, BAD_CHANCE, BAD_SLOT,
};

constexpr int64_t MOST = int64_t(1) << 30;  // numbers of one image with its padding: the sum of two stays within 32 bits
constexpr int64_t MOST_SIDE = 1 << 10;  // side of a kernel or stride
constexpr int64_t MOST_IMAGES = 1 << 24;
constexpr int64_t MOST_LAYERS = 1000;
constexpr int64_t SPARE = 16;  // floats behind every buffer: a vector may pass its end by up to seven

INLINE bool within(int64_t v, int64_t low, int64_t high) { return v >= low && v <= high; }
INLINE bool fits(int64_t at, int64_t numbers, int64_t size) { return at >= 0 && numbers >= 0 && numbers <= size && at <= size - numbers; }

// Return the product of numbers from 1 to MOST, or -1 if one of them or the product is out of this range.
INLINE int64_t multiply_bounded(int64_t a, int64_t b, int64_t c = 1, int64_t d = 1) {
    if (!within(a, 1, MOST) || !within(b, 1, MOST) || !within(c, 1, MOST) || !within(d, 1, MOST)) return -1;
    int64_t two = a * b;
    if (two > MOST || two * c > MOST || two * c * d > MOST) return -1;
    return two * c * d;
}

INLINE bool is_tensor(const Tensor& t) {
    if (!within(t.C, 1, MOST) || !within(t.H, 1, MOST) || !within(t.W, 1, MOST) || !within(t.border, 0, 1 << 20)) return false;
    if (t.stride != t.C && t.stride != round_up(t.C, LANES)) return false;
    int64_t numbers = multiply_bounded(t.H + 2 * int64_t(t.border), t.W + 2 * int64_t(t.border), t.stride);
    return numbers > 0 && t.size == round_up(numbers, LANES);
}

INLINE bool same_pixels(const Tensor& a, const Tensor& b) { return a.C == b.C && a.H == b.H && a.W == b.W && a.stride == b.stride; }
INLINE bool same_tensor(const Tensor& a, const Tensor& b) { return same_pixels(a, b) && a.border == b.border && a.size == b.size; }

INLINE bool in_arena(const Net& net, int64_t at, int64_t numbers) { return fits(at, numbers + SPARE, net.arena_size); }
INLINE bool images_in_arena(const Net& net, int64_t at, const Tensor& t) { return in_arena(net, at, net.batch * t.size); }

// Whether taps are the offsets of a kernel's inputs, in the order of summation.
INLINE bool are_taps(const Layer& l, const int32_t* taps) {
    for (int64_t y = 0; y < l.kh; ++y)
        for (int64_t x = 0; x < l.kw; ++x)
            for (int64_t c = 0; c < l.in.C; ++c)
                if (*taps++ != y * l.in.row() + x * l.in.stride + c) return false;
    return true;
}

INLINE int32_t check_conv(const Net& net, const Layer& l, int64_t& marks_end) {
    int64_t row = l.in.row(), stride = l.in.stride;
    if (!within(l.kh, 1, MOST_SIDE) || !within(l.kw, 1, MOST_SIDE) || !within(l.sh, 1, MOST_SIDE) || !within(l.sw, 1, MOST_SIDE)) return BAD_WINDOW;
    if (!within(l.relu, 0, 1) || !within(l.pooled, 0, 1) || !within(l.corner, 0, l.in.size)) return BAD_WINDOW;
    if (l.raw.border || l.raw.stride != round_up(l.raw.C, LANES) || l.raw.H < l.sh || l.raw.W < l.sw) return BAD_WINDOW;
    if (l.out.C != l.raw.C || l.out.stride != l.raw.stride) return BAD_WINDOW;
    if (l.out.H != (l.pooled ? l.raw.H / l.sh : l.raw.H) || l.out.W != (l.pooled ? l.raw.W / l.sw : l.raw.W)) return BAD_WINDOW;
    int64_t last = l.corner + (l.raw.H - 1) * row + (l.raw.W - 1) * stride;  // of the pixel under the kernel's corner
    if (last + (l.kh - 1) * row + l.kw * stride > l.in.size) return BAD_WINDOW;

    int64_t packed_row = round_up(l.kw * stride, LANES), taps = multiply_bounded(l.kh, l.kw, l.in.C);
    int64_t weights = multiply_bounded(l.raw.C, l.kh, packed_row), ready = multiply_bounded(l.raw.stride, taps);
    if (l.vectors != packed_row / LANES || weights < 0 || !fits(l.weight, weights, net.packed_size)) return BAD_WEIGHTS;
    if (l.bias != -1 && !fits(l.bias, l.raw.stride, net.packed_size)) return BAD_WEIGHTS;
    if (ready < 0 || !in_arena(net, l.forward_weight, ready)) return BAD_ARENA;

    int64_t count = int64_t(l.out.H) * l.out.W;
    if (l.count != count) return BAD_WINDOW;
    if (!fits(l.taps, taps, net.positions_size) || !are_taps(l, net.positions + l.taps)) return BAD_TABLE;
    if (l.pooled) {
        int64_t marks = net.batch * count * l.out.stride;
        if (l.marks < marks_end || !fits(l.marks, marks, net.marks_size)) return BAD_MARKS;
        marks_end = l.marks + marks;
        if (!in_arena(net, l.raw_at, l.raw.size)) return BAD_ARENA;
    } else {
        if (!fits(l.positions, 2 * count, net.positions_size) || l.marks < 0 || l.marks > net.marks_size) return BAD_TABLE;
        const int32_t* pairs = net.positions + l.positions;
        for (int64_t j = 0; j < count; ++j)
            if (!within(pairs[2 * j], 0, l.out.size - l.out.stride) || !within(pairs[2 * j + 1], 0, last)) return BAD_TABLE;
        if (!within(l.raw_at, 0, net.arena_size)) return BAD_ARENA;
    }
    int64_t block = l.block;
    if (!within(block, 1, MOST) || multiply_bounded(block, l.in.size) < 0 || multiply_bounded(block, count) < 0) return BAD_ROOM;
    if (2 * LANES * (block * count + LANES) > net.found_size || l.raw.stride > net.sums_size) return BAD_ROOM;
    return FINE;
}

INLINE int32_t check_pool(const Net& net, const Layer& l, int64_t& marks_end) {
    const Tensor &in = l.in, &out = l.out;
    if (!within(l.kh, 1, MOST_SIDE) || !within(l.kw, 1, MOST_SIDE) || !within(l.sh, 1, MOST_SIDE) || !within(l.sw, 1, MOST_SIDE)) return BAD_WINDOW;
    if (!within(l.ph, 0, l.kh / 2) || !within(l.pw, 0, l.kw / 2) || in.C != out.C || in.stride != out.stride) return BAD_WINDOW;
    int64_t H = in.H + 2 * int64_t(l.ph) - l.kh, W = in.W + 2 * int64_t(l.pw) - l.kw;
    if (H < 0 || W < 0 || out.H != H / l.sh + 1 || out.W != W / l.sw + 1) return BAD_WINDOW;
    int64_t marks = net.batch * out.C * out.H * out.W;
    if (l.marks < marks_end || !fits(l.marks, marks, net.marks_size)) return BAD_MARKS;
    marks_end = l.marks + marks;
    return FINE;
}

INLINE int32_t check_linear(const Net& net, const Layer& l) {
    if (l.out.H != 1 || l.out.W != 1 || l.out.border || l.out.stride != l.out.size || l.in.border) return BAD_WINDOW;
    int64_t weights = multiply_bounded(round_up(l.out.C, 4), l.in.size);
    if (weights < 0 || !fits(l.weight, weights, net.packed_size)) return BAD_WEIGHTS;
    if (l.bias != -1 && !fits(l.bias, l.out.size, net.packed_size)) return BAD_WEIGHTS;
    return FINE;
}

INLINE int32_t check_dropout(const Net& net, const Layer& l) {
    if (!(l.p >= 0.0f && l.p < 1.0f)) return BAD_CHANCE;
    if (net.learns && !in_arena(net, l.mask, net.batch * l.in.C * l.in.H * l.in.W)) return BAD_ARENA;
    return FINE;
}

// Check the gradients: a layer that has weights, or passes a gradient on, needs the gradient of its output.
INLINE bool are_gradients(const Net& net, const Layer& l) {
    if (!net.learns) return l.g_in_at < 0 && l.g_out_at < 0;
    if (l.g_in_at >= 0 && !images_in_arena(net, l.g_in_at, l.in)) return false;
    if (l.g_out_at >= 0 && !images_in_arena(net, l.g_out_at, l.out)) return false;
    bool needed = l.kind == CONV || l.kind == LINEAR || l.g_in_at >= 0;
    return l.g_in_at >= -1 && l.g_out_at >= (needed ? 0 : -1);
}

INLINE int32_t check_layer(const Net& net, int64_t j, int64_t& marks_end) {
    const Layer& l = net.layers[j];
    if (!within(l.kind, CONV, DROPOUT)) return BAD_KIND;
    if (!is_tensor(l.in) || !is_tensor(l.raw) || !is_tensor(l.out)) return BAD_TENSOR;
    if (j > 0) {
        const Layer& before = net.layers[j - 1];
        if (!same_tensor(before.out, l.in) || before.out_at != l.in_at || before.g_out_at != l.g_in_at) return BAD_CHAIN;
    }
    if (!images_in_arena(net, l.in_at, l.in) || !images_in_arena(net, l.out_at, l.out) || !are_gradients(net, l)) return BAD_ARENA;
    switch (l.kind) {
        case CONV: return check_conv(net, l, marks_end);
        case MAXPOOL: return check_pool(net, l, marks_end);
        case LINEAR: return check_linear(net, l);
        case DROPOUT: return same_pixels(l.in, l.out) ? check_dropout(net, l) : BAD_WINDOW;
        case FLATTEN: return same_tensor(l.in, l.out) && l.in_at == l.out_at ? FINE : BAD_WINDOW;
        default: return same_pixels(l.in, l.out) ? FINE : BAD_WINDOW;
    }
}

INLINE bool is_slot(const Net& net, const Slot& s) {
    int64_t pixels = multiply_bounded(s.H, s.W), inputs = multiply_bounded(s.C, pixels), numbers = s.kind == 0 ? s.out : multiply_bounded(s.out, inputs), packed;
    if (!within(s.kind, 0, 2) || inputs < 0 || !within(numbers, 1, MOST) || !within(s.out, 1, MOST)) return false;
    if (s.kind == 0) packed = s.out;
    else {
        int64_t used = s.kind == 2 ? multiply_bounded(pixels, s.stride) : multiply_bounded(s.W, s.stride);  // numbers of one packed row in use
        bool dense = s.stride == s.C, whole = s.stride == round_up(s.C, LANES);
        if (used < 0 || (!dense && !whole) || s.row != round_up(used, LANES)) return false;
        packed = multiply_bounded(s.out, s.kind == 2 ? 1 : s.H, s.row);
    }
    if (packed < 0 || s.packed_size < packed || !fits(s.packed, round_up(s.packed_size, LANES), net.packed_size)) return false;
    return fits(s.flat, round_up(numbers, 16), net.flat_size);
}

INLINE bool is_net(const Net& n) {
    if (!n.layers || !n.slots || !n.arena || !n.marks || !n.positions || !n.found || !n.sums || !n.x) return false;
    if (!within(n.learns, 0, 1) || (n.learns && (!n.g || !n.velocity || !n.start || !n.shift))) return false;
    const int64_t sizes[] = {n.packed_size, n.flat_size, n.arena_size, n.marks_size, n.positions_size, n.found_size, n.sums_size};
    for (int64_t size : sizes)
        if (!within(size, 0, int64_t(1) << 48)) return false;
    return n.packed_size % LANES == 0 && within(n.n_layers, 1, MOST_LAYERS) && within(n.n_slots, 0, 2 * MOST_LAYERS) && n.classes >= 1 &&
           within(n.batch, 1, MOST_IMAGES);
}

INLINE uint64_t compute_seal(const Net& net) {
    typedef uint64_t word __attribute__((may_alias));
    static_assert(__builtin_offsetof(Net, seal) % sizeof(word) == 0, "whole words");
    uint64_t found = 0x9e3779b97f4a7c15ull;
    for (unsigned long j = 0; j < __builtin_offsetof(Net, seal) / sizeof(word); ++j) found = (found ^ ((const word*)&net)[j]) * 0x100000001b3ull;
    return found;
}

static int64_t check_parts(Net& net) {
    net.seal = 0;
    int64_t marks_end = 0;
    if (!is_net(net)) return -BAD_NET;
    for (int64_t j = 0; j < net.n_layers; ++j)
        if (int32_t fault = check_layer(net, j, marks_end)) return -(fault + 100 * j);
    for (int64_t j = 0; j < net.n_slots; ++j)
        if (!is_slot(net, net.slots[j])) return -(BAD_SLOT + 100 * j);
    net.seal = compute_seal(net);
    return FINE;
}

// Check what every call needs, for n images.
INLINE int32_t check_call(const Net* net, int64_t n) {
    if (!net) return NO_POINTER;
    if (net->seal != compute_seal(*net)) return NO_NET;
    return within(n, 1, net->batch) ? FINE : BAD_BATCH;
}

INLINE bool is_name(const Name* name) { return name && name->root && within(name->words, 0, 1 << 20); }

// Check what a visit of a half or of the whole net needs, except its images.
INLINE int32_t check_visit(const Net* net, const Visit* v, int64_t n) {
    if (int32_t fault = check_call(net, n)) return fault;
    if (!v || !v->step || !is_name(v->name)) return NO_POINTER;
    if (!net->learns) return NOT_FOR;
    if (v->step->clip < 0) return FINE;  // not true for NaN: then norms are summed, too
    if (!v->norms) return NO_POINTER;
    return v->norms_size < net->n_slots ? BAD_SIZE : FINE;
}

// Whether the last layer's outputs are those of the classes, with a gradient if one is needed.
INLINE bool has_outputs(const Net& net, bool gradient) {
    const Layer& last = net.layers[net.n_layers - 1];
    return last.out.C == net.classes && last.out.H == 1 && last.out.W == 1 && !last.out.border && (!gradient || last.g_out_at >= 0);
}

INLINE bool are_labels(const int64_t* labels, int64_t n, int64_t classes) {
    bool good = true;
    for (int64_t b = 0; b < n; ++b) good &= uint64_t(labels[b]) < uint64_t(classes);
    return good;
}

INLINE int64_t count_numbers(const Tensor& t, int64_t n) { return n * t.C * t.H * t.W; }

// Check that the images fit the net's first layer; the caller checks the choice of images.
INLINE int32_t check_set(const Net& net, const Images* set) {
    if (!set || !set->y || (!set->features && (!set->x || !set->levels))) return NO_POINTER;
    if (set->features && set->top) return BAD_SET;  // numbers are not cropped
    const Tensor& t = net.layers[0].in;
    if (set->C != t.C || set->H != t.H || set->W != t.W || !within(set->N, 0, int64_t(1) << 32)) return BAD_SET;
    if (set->top && (!set->left || !set->flip)) return NO_POINTER;
    return within(set->pad, 0, 1 << 20) ? FINE : BAD_SET;
}

// Check that images first, ..., first + n - 1 of the choice exist, with labels and crops in range.
INLINE int32_t check_images(const Net& net, const Images& set, int64_t first, int64_t n) {
    if (!within(n, 1, net.batch)) return BAD_BATCH;
    if (!fits(first, n, set.chosen) || !are_in_set(set, first, n)) return NO_IMAGE;
    bool good = true, near = true;
    for (int64_t j = first; j < first + n; ++j) good &= uint64_t(set.y[set.at[j]]) < uint64_t(net.classes);
    if (!good) return BAD_LABEL;
    if (set.top)
        for (int64_t j = first; j < first + n; ++j) near &= within(set.top[j], 0, 1 << 21) && within(set.left[j], 0, 1 << 21);
    return near ? FINE : BAD_SET;
}

// Check what the start of a visit needs: x, and buffers for what a step reads in addition.
INLINE int32_t check_begin(const Net* net, const Visit* v) {
    if (int32_t fault = check_call(net, 1)) return fault;
    if (!v || !v->x) return NO_POINTER;
    if (v->x_size != net->flat_size) return BAD_SIZE;
    return !net->learns && (v->shift || (v->step && v->step->prox != 0.0f)) ? NOT_FOR : FINE;
}
