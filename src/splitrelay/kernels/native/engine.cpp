// The functions that Python calls. A Net is a range of layers with its buffers; all memory belongs to the caller. Every
// function checks its arguments and returns a Fault (checks.h) before it could read or write outside the buffers.
#include "checks.h"
#include "conv_backward.h"
#include "conv_forward.h"
#include "elementwise.h"
#include "images.h"
#include "linear.h"
#include "net.h"
#include "packing.h"
#include "pool.h"
#include "softmax.h"
#include "stages.h"
#include "update.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

static const float* get_bias(const Net& net, const Layer& l) { return l.bias < 0 ? nullptr : net.x + l.bias; }

static void forward_layer(const Net& net, const Layer& l, int n, bool learning) {
    const float* in = net.arena + l.in_at;
    float* out = net.arena + l.out_at;
    switch (l.kind) {
        case CONV: {
            auto pass = learning ? conv_forward<true> : conv_forward<false>;  // evaluation needs no marks
            return pass(l, n, in, net.positions + l.taps, net.arena + l.forward_weight, get_bias(net, l), net.arena + l.raw_at, out, net.marks + l.marks);
        }
        case RELU: return relu_forward(l, n, in, out);
        case MAXPOOL: return maxpool_forward(l, n, in, out, net.marks + l.marks);
        case FLATTEN: return;  // no number moves
        case LINEAR: return linear_forward(l, n, in, net.x + l.weight, get_bias(net, l), out);
        case DROPOUT:
            if (learning && l.p > 0.0f) return dropout(l.in, l.out, n, l.p, net.arena + l.mask, in, out);
            return copy_rows(l.in, l.out, n, in, out);
    }
}

static void compute_weight_gradient(const Net& net, const Layer& l, int n) {  // of a linear layer
    const float *in = net.arena + l.in_at, *g_out = net.arena + l.g_out_at;
    if (l.kind == LINEAR) linear_weight_gradient(l, n, in, g_out, net.g + l.weight, l.bias < 0 ? nullptr : net.g + l.bias);
}

static void backward_layer(const Net& net, const Layer& l, int n, bool later) {  // later: weight gradients of linear layers are computed in a separate call
    const float *in = net.arena + l.in_at, *out = net.arena + l.out_at;
    float *g_out = net.arena + l.g_out_at, *g_in = l.g_in_at < 0 ? nullptr : net.arena + l.g_in_at;
    float *gW = net.g + l.weight, *g_bias = l.bias < 0 ? nullptr : net.g + l.bias;
    if (!g_in && l.kind != CONV && l.kind != LINEAR) return;
    switch (l.kind) {
        case CONV:
            return conv_backward(l, n, {in, net.x + l.weight, out, net.marks + l.marks, net.positions + l.positions, g_out, g_in, gW, g_bias},
                                 net.found, net.sums);
        case RELU: return relu_backward(l, n, out, g_out, g_in);
        case MAXPOOL: return maxpool_backward(l, n, net.marks + l.marks, g_out, g_in);
        case FLATTEN: return;
        case LINEAR:
            if (!later) compute_weight_gradient(net, l, n);
            return linear_backward(l, n, net.x + l.weight, g_out, g_in);
        case DROPOUT:
            if (l.p > 0.0f) return dropout(l.out, l.in, n, l.p, net.arena + l.mask, g_out, g_in);
            return copy_rows(l.out, l.in, n, g_out, g_in);
    }
}

static void pack_all_kernels(const Net& net) {  // as the forward pass reads them
    for (int j = 0; j < net.n_layers; ++j)
        if (net.layers[j].kind == CONV) pack_kernels(net.layers[j], net.x + net.layers[j].weight, net.arena + net.layers[j].forward_weight);
}

static void draw_masks(const Net& net, const Visit& v, int64_t k, int n) {  // of step k, by name: the same numbers as in the reference engine
    for (int j = 0; j < net.n_layers; ++j) {
        const Layer& l = net.layers[j];
        if (l.kind != DROPOUT || l.p <= 0.0f) continue;
        const int64_t more[] = {k, l.number};
        Generator g = make_generator(*v.name, v.dropout, more, 2);
        fill_uniform(g, int64_t(n) * l.in.C * l.in.H * l.in.W, net.arena + l.mask);
    }
}

static void forward(const Net& net, int n, bool learning) {
    for (int j = 0; j < net.n_layers; ++j) stage(PASSES + 2 * j, [&] { forward_layer(net, net.layers[j], n, learning); });
}

static void backward(const Net& net, int n, bool later = false) {
    for (int j = net.n_layers - 1; j >= 0; --j) stage(PASSES + 2 * j + 1, [&] { backward_layer(net, net.layers[j], n, later); });
    if (!later) add_shift(net);
}

static double compute_loss(const Net& net, int n, const int64_t* labels, bool gradient) {
    const Layer& last = net.layers[net.n_layers - 1];
    return cross_entropy(n, net.classes, last.out.size, net.arena + last.out_at, labels, gradient ? net.arena + last.g_out_at : nullptr);
}

static double add_norms(double norm2, const double* norms, int n) {
    for (int j = 0; j < n; ++j) norm2 += norms[j];
    return norm2;
}

static bool is_finite(double v) { return v - v == 0.0; }

// Return the sizes of the structures, so that Python can compare them with its own.
EXPORT int64_t sizes() { return sizeof(Layer) + 1000 * sizeof(Slot) + 1000000 * sizeof(Net) + 1000000000LL * (sizeof(Images) + sizeof(Visit)); }

// Return a checksum of the sources, so that Python detects an old build.
EXPORT int64_t sources() { return SOURCES; }

// Call once per net before any other function. Return 0, or a code for the wrong layer or slot (checks.h).
EXPORT int64_t check_net(Net* net) { return net ? check_parts(*net) : int64_t(NO_POINTER); }

EXPORT int32_t begin_visit(Net* net, const Visit* v) {
    if (int32_t fault = check_begin(net, v)) return fault;
    begin_net(*net, v->x, v->shift, v->step);
    return FINE;
}

// Return 1 if all of x is finite, else 0; `size`: numbers of `flat`.
EXPORT int32_t save_x(const Net* net, float* flat, int64_t size) {
    if (int32_t fault = check_call(net, 1)) return fault;
    if (!flat) return NO_POINTER;
    return size == net->flat_size ? unpack_x(*net, net->x, flat) : int32_t(BAD_SIZE);
}

EXPORT int32_t save_gradient(const Net* net, float* flat, int64_t size) {
    if (int32_t fault = check_call(net, 1)) return fault;
    if (!flat) return NO_POINTER;
    if (!net->learns) return NOT_FOR;
    if (size != net->flat_size) return BAD_SIZE;
    unpack_x(*net, net->g, flat);
    return FINE;
}

// Draw the images of a visit as numpy does and return their number. `room` has n places, `at` has `size_at`.
EXPORT int64_t draw(const Name* name, int32_t purpose, int32_t again, const int64_t* held, int64_t n, int32_t K, int32_t size, int64_t* room, int64_t* at,
                  int64_t size_at) {
    if (!is_name(name) || !held || !room || !at) return NO_POINTER;
    if (!within(n, 1, 0xFFFFFFFF) || K < 0 || size < 1 || size_at < 0 || (again && int64_t(K) * size > size_at)) return BAD_DRAW;
    Generator g = make_generator(*name, purpose, nullptr, 0);
    return again ? draw_with_replacement(g, held, n, K, size, at) : draw_passes(g, held, n, K, size, room, at, size_at);
}

// Shuffle 0, ..., n-1 under the name (root, purpose, number); `room` has 2 n places, and the result is in the last n.
EXPORT int32_t draw_order(const uint32_t* root, int64_t words, int32_t purpose, int64_t number, int64_t n, uint32_t* room, int64_t size) {
    if (!root || !room) return NO_POINTER;
    if (!within(words, 0, 1 << 20) || !within(n, 0, 0xFFFFFFFF)) return BAD_DRAW;
    if (size < 2 * n) return BAD_SIZE;
    Seeds seeds = make_seeds(root, words);
    seeds.add_number(purpose);
    seeds.add_number(number);
    fill_permutation(make_generator(seeds), n, room, room + n);
    return FINE;
}

// Draw n uniform numbers of that name.
EXPORT int32_t draw_uniform(const Name* name, int32_t purpose, const int64_t* more, int32_t n_more, int64_t n, float* to) {
    if (!is_name(name) || !to || (n_more && !more)) return NO_POINTER;
    if (n < 0 || n_more < 0) return BAD_DRAW;
    Generator g = make_generator(*name, purpose, more, n_more);
    fill_uniform(g, n, to);
    return FINE;
}

static void one_step(Net& net, const Visit& v, int k, int64_t first, int n) {
    const Layer& bottom = net.layers[0];
    stage(GATHER, [&] {
        gather_images(*v.images, first, n, bottom.in, net.arena + bottom.in_at);
        for (int b = 0; b < n; ++b) v.labels[b] = v.images->y[v.images->at[first + b]];
    });
    stage(READY, [&] {
        pack_all_kernels(net);
        draw_masks(net, v, k, n);
    });
    forward(net, n, true);
    stage(LOSS, [&] { v.losses[k] = compute_loss(net, n, v.labels, true) / n; });
    if (!is_finite(v.losses[k])) return;
    backward(net, n);
    stage(UPDATE, [&] {
        if (v.step->clip >= 0) compute_squared_norms(net, v.norms);
        update_weights(net, *v.step, v.step->clip < 0 ? 0.0 : add_norms(0.0, v.norms, net.n_slots));
    });
}

// Take K local steps of the whole model; stop at a loss that is not finite. Return the number of steps, or a Fault.
EXPORT int32_t visit(Net* net, Visit* v) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    if (int32_t fault = check_begin(net, v)) return fault;
    if (int32_t fault = check_set(*net, v->images)) return fault;
    if (!has_outputs(*net, true)) return NOT_FOR;
    if (!v->images->at || !v->sizes || !v->labels || !v->losses || !v->out) return NO_POINTER;
    if (v->K < 0 || v->labels_size < net->batch) return BAD_SIZE;
    int64_t first = 0;
    stage(PACK, [&] { begin_net(*net, v->x, v->shift, v->step); });
    for (int k = 0; k < v->K; first += v->sizes[k], ++k) {
        if (int32_t fault = check_images(*net, *v->images, first, v->sizes[k])) return fault;
        one_step(*net, *v, k, first, v->sizes[k]);
        if (!is_finite(v->losses[k])) return k + 1;
    }
    stage(UNPACK, [&] { v->finite = unpack_x(*net, net->x, v->out); });
    return v->K;
}

// The client half of step k: images -> h, dense; `size`: numbers of h.
EXPORT int32_t bottom_forward(Net* net, const Visit* v, int32_t k, int64_t first, int32_t flat, float* h, int64_t size) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    if (int32_t fault = check_set(*net, v->images)) return fault;
    if (!v->images->at || !v->sizes || !h) return NO_POINTER;
    if (!within(k, 0, int64_t(v->K) - 1)) return BAD_SIZE;
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    int n = v->sizes[k];
    if (int32_t fault = check_images(*net, *v->images, first, n)) return fault;
    if (size != count_numbers(last.out, n)) return BAD_SIZE;
    gather_images(*v->images, first, n, bottom.in, net->arena + bottom.in_at);
    pack_all_kernels(*net);
    draw_masks(*net, *v, k, n);
    forward(*net, n, true);
    write_dense(last.out, flat, n, net->arena + last.out_at, h);
    return FINE;
}

// The client half of one step: gradient at the cut -> its own gradient and, with clipping, squared norms; `size`: numbers
// of g.
EXPORT int32_t bottom_backward(Net* net, const Visit* v, int32_t n, const float* g, int64_t size, int32_t flat) {
    if (int32_t fault = check_visit(net, v, n)) return fault;
    const Layer& last = net->layers[net->n_layers - 1];
    if (!g) return NO_POINTER;
    if (last.g_out_at < 0) return NOT_FOR;
    if (size != count_numbers(last.out, n)) return BAD_SIZE;
    read_dense(last.out, flat, n, g, net->arena + last.g_out_at);
    backward(*net, n);
    if (v->step->clip >= 0) compute_squared_norms(*net, v->norms);
    return FINE;
}

// The server half of step k: h -> the loss (in v), the gradient at the cut, its own gradient and squared norms. With
// `later`, top_learn computes the weight gradients of linear layers after the reply; no other call may come in between.
// `size`: numbers of h and of g; there are n labels.
EXPORT int32_t top_step(Net* net, Visit* v, int32_t k, int32_t n, const float* h, int64_t size, int32_t flat, const int64_t* labels, float* g,
                      int32_t later) {
    if (int32_t fault = check_visit(net, v, n)) return fault;
    const Layer& first = net->layers[0];
    if (!h || !labels || !g) return NO_POINTER;
    if (!has_outputs(*net, true) || first.g_in_at < 0) return NOT_FOR;
    if (size != count_numbers(first.in, n)) return BAD_SIZE;
    if (!are_labels(labels, n, net->classes)) return BAD_LABEL;
    read_dense(first.in, flat, n, h, net->arena + first.in_at);
    pack_all_kernels(*net);
    draw_masks(*net, *v, k, n);
    forward(*net, n, true);
    v->loss = compute_loss(*net, n, labels, true) / n;
    backward(*net, n, later);
    write_dense(first.in, flat, n, net->arena + first.g_in_at, g);
    if (v->step->clip >= 0) compute_squared_norms(*net, v->norms);
    return FINE;
}

EXPORT int32_t top_learn(Net* net, int32_t n) {
    if (int32_t fault = check_call(net, n)) return fault;
    if (!net->learns) return NOT_FOR;
    for (int j = net->n_layers - 1; j >= 0; --j) compute_weight_gradient(*net, net->layers[j], n);
    add_shift(*net);
    return FINE;
}

EXPORT int32_t apply(Net* net, const Visit* v, double norm2) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    update_weights(*net, *v->step, norm2);
    return FINE;
}

// The server half of an evaluation: h -> outputs, each with its size.
EXPORT int32_t top_predict(Net* net, int32_t n, const float* h, int64_t size, int32_t flat, float* outputs, int64_t outputs_size) {
    if (int32_t fault = check_call(net, n)) return fault;
    if (!h || !outputs) return NO_POINTER;
    const Layer &first = net->layers[0], &last = net->layers[net->n_layers - 1];
    if (size != count_numbers(first.in, n) || outputs_size != count_numbers(last.out, n)) return BAD_SIZE;
    read_dense(first.in, flat, n, h, net->arena + first.in_at);
    pack_all_kernels(*net);
    forward(*net, n, false);
    write_dense(last.out, 1, n, net->arena + last.out_at, outputs);
    return FINE;
}

// The part of one thread in an evaluation: it takes the next `batch` images until none is left. The loss of each batch
// has its own place; right answers and images are counted by class. `losses` has `calls` places, `right` and `seen` have
// `classes`.
EXPORT int32_t evaluate(Net* net, const Images* set, int64_t* next, int32_t batch, double* losses, int64_t calls, int64_t* right, int64_t* seen,
                      int64_t classes) {
    if (int32_t fault = check_call(net, batch)) return fault;
    if (int32_t fault = check_set(*net, set)) return fault;
    if (!next || !losses || !right || !seen) return NO_POINTER;
    if (set->at || set->top) return BAD_SET;  // only visits choose images
    if (!has_outputs(*net, false)) return NOT_FOR;
    if (classes != net->classes || calls < (set->N + batch - 1) / batch) return BAD_SIZE;
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    pack_all_kernels(*net);
    for (;;) {
        int64_t call = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (!within(call, 0, calls - 1)) return call < 0 ? BAD_SIZE : FINE;
        int64_t first = call * batch;
        if (first >= set->N) return FINE;
        int n = int(least<int64_t>(batch, set->N - first));
        if (!are_labels(set->y + first, n, classes)) return BAD_LABEL;
        gather_images(*set, first, n, bottom.in, net->arena + bottom.in_at);
        forward(*net, n, false);
        const float* z = net->arena + last.out_at;
        for (int b = 0; b < n; ++b, z += last.out.size) {
            int64_t label = set->y[first + b];
            int best = 0;
            for (int c = 1; c < net->classes; ++c)
                if (z[c] > z[best]) best = c;
            seen[label] += 1;
            right[label] += best == label;
        }
        losses[call] = compute_loss(*net, n, set->y + first, false);
    }
}

#ifdef STAGES
EXPORT const int64_t* stages() { return stage_ticks; }
EXPORT int64_t now() { return ticks(); }
#endif
