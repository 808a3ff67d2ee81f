// The doors to Python. A Net is a stretch of layers with its buffers; all memory belongs to the caller. Every door checks
// what it is given, and returns a Fault (checks.h) before it reads or writes where it must not.
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

#define DOOR extern "C" __attribute__((visibility("default")))

static const float* bias_of(const Net& net, const Layer& l) { return l.bias < 0 ? nullptr : net.x + l.bias; }

static void forward_layer(const Net& net, const Layer& l, int n, bool learning) {
    const float* in = net.arena + l.in_at;
    float* out = net.arena + l.out_at;
    switch (l.kind) {
        case CONV: {
            auto pass = learning ? conv_forward<true> : conv_forward<false>;  // who only looks needs no way back
            return pass(l, n, in, net.positions + l.taps, net.arena + l.forward_weight, bias_of(net, l), net.arena + l.raw_at, out, net.marks + l.marks);
        }
        case RELU: return relu_forward(l, n, in, out);
        case MAXPOOL: return maxpool_forward(l, n, in, out, net.marks + l.marks);
        case FLATTEN: return;  // the numbers lie the same
        case LINEAR: return linear_forward(l, n, in, net.x + l.weight, bias_of(net, l), out);
        case DROPOUT:
            if (learning && l.p > 0.0f) return dropout(l.in, l.out, n, l.p, net.arena + l.mask, in, out);
            return copied(l.in, l.out, n, in, out);
    }
}

static void learn_layer(const Net& net, const Layer& l, int n) {  // the gradient of a linear layer's own weights
    const float *in = net.arena + l.in_at, *g_out = net.arena + l.g_out_at;
    if (l.kind == LINEAR) linear_learn(l, n, in, g_out, net.g + l.weight, l.bias < 0 ? nullptr : net.g + l.bias);
}

static void backward_layer(const Net& net, const Layer& l, int n, bool later) {  // later: linear layers learn in a pass of their own
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
            if (!later) learn_layer(net, l, n);
            return linear_backward(l, n, net.x + l.weight, g_out, g_in);
        case DROPOUT:
            if (l.p > 0.0f) return dropout(l.out, l.in, n, l.p, net.arena + l.mask, g_out, g_in);
            return copied(l.out, l.in, n, g_out, g_in);
    }
}

static void repack_kernels(const Net& net) {  // kernels as the forward pass reads them
    for (int j = 0; j < net.n_layers; ++j)
        if (net.layers[j].kind == CONV) forward_kernels(net.layers[j], net.x + net.layers[j].weight, net.arena + net.layers[j].forward_weight);
}

static void masks(const Net& net, const Visit& v, int64_t k, int n) {  // of step k, by name: the reference engine draws the same
    for (int j = 0; j < net.n_layers; ++j) {
        const Layer& l = net.layers[j];
        if (l.kind != DROPOUT || l.p <= 0.0f) continue;
        const int64_t more[] = {k, l.number};
        Generator g = generator(*v.name, v.dropout, more, 2);
        uniform(g, int64_t(n) * l.in.C * l.in.H * l.in.W, net.arena + l.mask);
    }
}

static void forward(const Net& net, int n, bool learning) {
    for (int j = 0; j < net.n_layers; ++j) stage(PASSES + 2 * j, [&] { forward_layer(net, net.layers[j], n, learning); });
}

static void backward(const Net& net, int n, bool later = false) {
    for (int j = net.n_layers - 1; j >= 0; --j) stage(PASSES + 2 * j + 1, [&] { backward_layer(net, net.layers[j], n, later); });
    if (!later) shifted(net);
}

static double loss(const Net& net, int n, const int64_t* labels, bool gradient) {
    const Layer& last = net.layers[net.n_layers - 1];
    return cross_entropy(n, net.classes, last.out.size, net.arena + last.out_at, labels, gradient ? net.arena + last.g_out_at : nullptr);
}

static double joint(double norm2, const double* norms, int n) {
    for (int j = 0; j < n; ++j) norm2 += norms[j];
    return norm2;
}

static bool finite(double v) { return v - v == 0.0; }

// Bytes of the structures, so that Python can see whether it means the same ones.
DOOR int64_t sizes() { return sizeof(Layer) + 1000 * sizeof(Slot) + 1000000 * sizeof(Net) + 1000000000LL * (sizeof(Images) + sizeof(Visit)); }

// A checksum of the sources, so that a build that is older than them is noticed.
DOOR int64_t sources() { return SOURCES; }

// Once per net, before any other call: 0, or which layer or slot is wrong, and how (checks.h).
DOOR int64_t check_net(Net* net) { return net ? checked(*net) : int64_t(NO_POINTER); }

DOOR int32_t begin_visit(Net* net, const Visit* v) {
    if (int32_t fault = check_begin(net, v)) return fault;
    begin(*net, v->x, v->shift, v->step);
    return FINE;
}

// 1 where all of x is finite, else 0; `size`: numbers of `flat`.
DOOR int32_t save_x(const Net* net, float* flat, int64_t size) {
    if (int32_t fault = check_call(net, 1)) return fault;
    if (!flat) return NO_POINTER;
    return size == net->flat_size ? unpack(*net, net->x, flat) : int32_t(BAD_SIZE);
}

DOOR int32_t save_gradient(const Net* net, float* flat, int64_t size) {
    if (int32_t fault = check_call(net, 1)) return fault;
    if (!flat) return NO_POINTER;
    if (!net->learns) return NOT_FOR;
    if (size != net->flat_size) return BAD_SIZE;
    unpack(*net, net->g, flat);
    return FINE;
}

// The images of a visit, drawn as numpy draws them: how many. `room` has n places, `at` has `size_at`.
DOOR int64_t draw(const Name* name, int32_t purpose, int32_t again, const int64_t* held, int64_t n, int32_t K, int32_t size, int64_t* room, int64_t* at,
                  int64_t size_at) {
    if (!is_name(name) || !held || !room || !at) return NO_POINTER;
    if (!within(n, 1, 0xFFFFFFFF) || K < 0 || size < 1 || size_at < 0 || (again && int64_t(K) * size > size_at)) return BAD_DRAW;
    Generator g = generator(*name, purpose, nullptr, 0);
    return again ? replacement(g, held, n, K, size, at) : passes(g, held, n, K, size, room, at, size_at);
}

// 0, ..., n-1 shuffled under the name (root, purpose, number); `room` has 2 n places, and the answer is in the latter n.
DOOR int32_t draw_order(const uint32_t* root, int64_t words, int32_t purpose, int64_t number, int64_t n, uint32_t* room, int64_t size) {
    if (!root || !room) return NO_POINTER;
    if (!within(words, 0, 1 << 20) || !within(n, 0, 0xFFFFFFFF)) return BAD_DRAW;
    if (size < 2 * n) return BAD_SIZE;
    Seeds seeds = rooted(root, words);
    seeds.add_number(purpose);
    seeds.add_number(number);
    permutation(generator(seeds), n, room, room + n);
    return FINE;
}

// n uniform numbers of that name.
DOOR int32_t draw_uniform(const Name* name, int32_t purpose, const int64_t* more, int32_t n_more, int64_t n, float* to) {
    if (!is_name(name) || !to || (n_more && !more)) return NO_POINTER;
    if (n < 0 || n_more < 0) return BAD_DRAW;
    Generator g = generator(*name, purpose, more, n_more);
    uniform(g, n, to);
    return FINE;
}

static void one_step(Net& net, const Visit& v, int k, int64_t first, int n) {
    const Layer& bottom = net.layers[0];
    stage(GATHER, [&] {
        gather(*v.images, first, n, bottom.in, net.arena + bottom.in_at);
        for (int b = 0; b < n; ++b) v.labels[b] = v.images->y[v.images->at[first + b]];
    });
    stage(READY, [&] {
        repack_kernels(net);
        masks(net, v, k, n);
    });
    forward(net, n, true);
    stage(LOSS, [&] { v.losses[k] = loss(net, n, v.labels, true) / n; });
    if (!finite(v.losses[k])) return;
    backward(net, n);
    stage(UPDATE, [&] {
        if (v.step->clip >= 0) squared_norms(net, v.norms);
        move(net, *v.step, v.step->clip < 0 ? 0.0 : joint(0.0, v.norms, net.n_slots));
    });
}

// K local steps of the whole model; stops at a loss that is no number: steps done, or a Fault.
DOOR int32_t visit(Net* net, Visit* v) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    if (int32_t fault = check_begin(net, v)) return fault;
    if (int32_t fault = check_set(*net, v->images)) return fault;
    if (!has_outputs(*net, true)) return NOT_FOR;
    if (!v->images->at || !v->sizes || !v->labels || !v->losses || !v->out) return NO_POINTER;
    if (v->K < 0 || v->labels_size < net->batch) return BAD_SIZE;
    int64_t first = 0;
    stage(PACK, [&] { begin(*net, v->x, v->shift, v->step); });
    for (int k = 0; k < v->K; first += v->sizes[k], ++k) {
        if (int32_t fault = check_images(*net, *v->images, first, v->sizes[k])) return fault;
        one_step(*net, *v, k, first, v->sizes[k]);
        if (!finite(v->losses[k])) return k + 1;
    }
    stage(UNPACK, [&] { v->finite = unpack(*net, net->x, v->out); });
    return v->K;
}

// The client's half of step k: images -> h, dense; `size`: numbers of h.
DOOR int32_t bottom_forward(Net* net, const Visit* v, int32_t k, int64_t first, int32_t flat, float* h, int64_t size) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    if (int32_t fault = check_set(*net, v->images)) return fault;
    if (!v->images->at || !v->sizes || !h) return NO_POINTER;
    if (!within(k, 0, int64_t(v->K) - 1)) return BAD_SIZE;
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    int n = v->sizes[k];
    if (int32_t fault = check_images(*net, *v->images, first, n)) return fault;
    if (size != numbers_of(last.out, n)) return BAD_SIZE;
    gather(*v->images, first, n, bottom.in, net->arena + bottom.in_at);
    repack_kernels(*net);
    masks(*net, *v, k, n);
    forward(*net, n, true);
    given_out(last.out, flat, n, net->arena + last.out_at, h);
    return FINE;
}

// The client's half of one step: gradient at the cut -> its own gradient and, if it clips, squared norms; `size`: numbers
// of g.
DOOR int32_t bottom_backward(Net* net, const Visit* v, int32_t n, const float* g, int64_t size, int32_t flat) {
    if (int32_t fault = check_visit(net, v, n)) return fault;
    const Layer& last = net->layers[net->n_layers - 1];
    if (!g) return NO_POINTER;
    if (last.g_out_at < 0) return NOT_FOR;
    if (size != numbers_of(last.out, n)) return BAD_SIZE;
    taken_in(last.out, flat, n, g, net->arena + last.g_out_at);
    backward(*net, n);
    if (v->step->clip >= 0) squared_norms(*net, v->norms);
    return FINE;
}

// The server's half of step k: h -> the loss (in v), the gradient at the cut, its own gradient and squared norms; what the
// client does not wait for may come later, by top_learn: nothing that it reads is written meanwhile. `size`: numbers of h
// and of g; there are n labels.
DOOR int32_t top_step(Net* net, Visit* v, int32_t k, int32_t n, const float* h, int64_t size, int32_t flat, const int64_t* labels, float* g,
                      int32_t later) {
    if (int32_t fault = check_visit(net, v, n)) return fault;
    const Layer& first = net->layers[0];
    if (!h || !labels || !g) return NO_POINTER;
    if (!has_outputs(*net, true) || first.g_in_at < 0) return NOT_FOR;
    if (size != numbers_of(first.in, n)) return BAD_SIZE;
    if (!are_labels(labels, n, net->classes)) return BAD_LABEL;
    taken_in(first.in, flat, n, h, net->arena + first.in_at);
    repack_kernels(*net);
    masks(*net, *v, k, n);
    forward(*net, n, true);
    v->loss = loss(*net, n, labels, true) / n;
    backward(*net, n, later);
    given_out(first.in, flat, n, net->arena + first.g_in_at, g);
    if (v->step->clip >= 0) squared_norms(*net, v->norms);
    return FINE;
}

DOOR int32_t top_learn(Net* net, int32_t n) {
    if (int32_t fault = check_call(net, n)) return fault;
    if (!net->learns) return NOT_FOR;
    for (int j = net->n_layers - 1; j >= 0; --j) learn_layer(*net, net->layers[j], n);
    shifted(*net);
    return FINE;
}

DOOR int32_t apply(Net* net, const Visit* v, double norm2) {
    if (int32_t fault = check_visit(net, v, 1)) return fault;
    move(*net, *v->step, norm2);
    return FINE;
}

// The server's half of an evaluation: h -> outputs, both with the numbers of them.
DOOR int32_t top_predict(Net* net, int32_t n, const float* h, int64_t size, int32_t flat, float* outputs, int64_t outputs_size) {
    if (int32_t fault = check_call(net, n)) return fault;
    if (!h || !outputs) return NO_POINTER;
    const Layer &first = net->layers[0], &last = net->layers[net->n_layers - 1];
    if (size != numbers_of(first.in, n) || outputs_size != numbers_of(last.out, n)) return BAD_SIZE;
    taken_in(first.in, flat, n, h, net->arena + first.in_at);
    repack_kernels(*net);
    forward(*net, n, false);
    given_out(last.out, 1, n, net->arena + last.out_at, outputs);
    return FINE;
}

// One thread's share of an evaluation: whoever is free takes the next `batch` images; the loss of each batch has its
// place, right answers and images are counted by class. `losses` has `turns` places, `right` and `seen` have `classes`.
DOOR int32_t evaluate(Net* net, const Images* set, int64_t* next, int32_t batch, double* losses, int64_t turns, int64_t* right, int64_t* seen,
                      int64_t classes) {
    if (int32_t fault = check_call(net, batch)) return fault;
    if (int32_t fault = check_set(*net, set)) return fault;
    if (!next || !losses || !right || !seen) return NO_POINTER;
    if (set->at || set->top) return BAD_SET;  // a choice of images is for visits
    if (!has_outputs(*net, false)) return NOT_FOR;
    if (classes != net->classes || turns < (set->N + batch - 1) / batch) return BAD_SIZE;
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    repack_kernels(*net);
    for (;;) {
        int64_t turn = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (!within(turn, 0, turns - 1)) return turn < 0 ? BAD_SIZE : FINE;
        int64_t first = turn * batch;
        if (first >= set->N) return FINE;
        int n = int(least<int64_t>(batch, set->N - first));
        if (!are_labels(set->y + first, n, classes)) return BAD_LABEL;
        gather(*set, first, n, bottom.in, net->arena + bottom.in_at);
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
        losses[turn] = loss(*net, n, set->y + first, false);
    }
}

#ifdef STAGES
DOOR const int64_t* stages() { return stage_ticks; }
DOOR int64_t now() { return ticks(); }
#endif
