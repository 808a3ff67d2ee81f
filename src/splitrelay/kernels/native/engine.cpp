// The doors to Python. A Net is a stretch of layers with its buffers; all memory belongs to the caller.
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

static void forward_layer(const Net& net, const Layer& l, int n, const float* const* uniform) {
    const float* in = net.arena + l.in_at;
    float* out = net.arena + l.out_at;
    switch (l.kind) {
        case CONV:
            return conv_forward(l, n, in, net.positions + l.taps, net.arena + l.forward_weight, bias_of(net, l), net.arena + l.raw_at, out, net.marks + l.marks);
        case RELU: return relu_forward(l, n, in, out);
        case MAXPOOL: return maxpool_forward(l, n, in, out, net.marks + l.marks);
        case FLATTEN: return;  // the numbers lie the same
        case LINEAR: return linear_forward(l, n, in, net.x + l.weight, bias_of(net, l), out);
        case DROPOUT:
            if (uniform && l.p > 0.0f) return dropped(l.in, l.out, n, l.p, uniform[l.dropout], in, out);
            return copied(l.in, l.out, n, in, out);
    }
}

static void backward_layer(const Net& net, const Layer& l, int n, const float* const* uniform) {
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
        case LINEAR: return linear_backward(l, n, in, net.x + l.weight, g_out, g_in, gW, g_bias);
        case DROPOUT:
            if (uniform && l.p > 0.0f) return dropped(l.out, l.in, n, l.p, uniform[l.dropout], g_out, g_in);
            return copied(l.out, l.in, n, g_out, g_in);
    }
}

static void ready(const Net& net) {  // kernels as the forward pass reads them
    for (int j = 0; j < net.n_layers; ++j)
        if (net.layers[j].kind == CONV) forward_kernels(net.layers[j], net.x + net.layers[j].weight, net.arena + net.layers[j].forward_weight);
}

static void forward(const Net& net, int n, const float* const* uniform) {
    for (int j = 0; j < net.n_layers; ++j) stage(PASSES + 2 * j, [&] { forward_layer(net, net.layers[j], n, uniform); });
}

static void backward(const Net& net, int n, const float* const* uniform) {
    for (int j = net.n_layers - 1; j >= 0; --j) stage(PASSES + 2 * j + 1, [&] { backward_layer(net, net.layers[j], n, uniform); });
    shifted(net);
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
DOOR int64_t sizes() { return sizeof(Layer) + 1000 * sizeof(Slot) + 1000000 * sizeof(Net) + 1000000000LL * sizeof(Images); }

// A checksum of the sources, so that a build that is older than them is noticed.
DOOR int64_t sources() { return SOURCES; }

DOOR void load_x(Net* net, const float* flat) {
    pack(*net, flat, net->x);
    net->moved = 0;
}

DOOR void pack_into(const Net* net, const float* flat, float* packed) { pack(*net, flat, packed); }

DOOR int32_t save_x(const Net* net, float* flat) { return unpack(*net, net->x, flat); }

DOOR void save_gradient(const Net* net, float* flat) { unpack(*net, net->g, flat); }

// K local steps of the whole model; stops at a loss that is no number: steps done, or -1 where an image is not there.
DOOR int32_t visit(Net* net, const Images* set, const Step* step, const int32_t* batch, int32_t K, const float* const* uniform, int32_t dropouts,
                   int64_t* labels, double* norms, double* losses) {
    int64_t first = 0;
    const Layer& bottom = net->layers[0];
    for (int k = 0; k < K; first += batch[k], ++k) {
        const float* const* masks = uniform + int64_t(k) * dropouts;
        if (!are_there(*set, first, batch[k])) return -1;
        stage(GATHER, [&] {
            gather(*set, first, batch[k], bottom.in, net->arena + bottom.in_at);
            for (int b = 0; b < batch[k]; ++b) labels[b] = set->y[set->at[first + b]];
        });
        stage(READY, [&] { ready(*net); });
        forward(*net, batch[k], masks);
        stage(LOSS, [&] { losses[k] = loss(*net, batch[k], labels, true) / batch[k]; });
        if (!finite(losses[k])) return k + 1;
        backward(*net, batch[k], masks);
        stage(UPDATE, [&] {
            if (step->clip >= 0) squared_norms(*net, norms);
            move(*net, *step, step->clip < 0 ? 0.0 : joint(0.0, norms, net->n_slots));
        });
    }
    return K;
}

// The client's half of one step: images -> h, dense.
DOOR int32_t bottom_forward(Net* net, const Images* set, int64_t first, int32_t n, const float* const* uniform, int32_t flat, float* h) {
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    if (!are_there(*set, first, n)) return -1;
    gather(*set, first, n, bottom.in, net->arena + bottom.in_at);
    ready(*net);
    forward(*net, n, uniform);
    given_out(last.out, flat, n, net->arena + last.out_at, h);
    return 0;
}

// The client's half of one step: gradient at the cut -> its own gradient and, if asked for, squared norms.
DOOR void bottom_backward(Net* net, int32_t n, const float* g, int32_t flat, const float* const* uniform, double* norms) {
    const Layer& last = net->layers[net->n_layers - 1];
    taken_in(last.out, flat, n, g, net->arena + last.g_out_at);
    backward(*net, n, uniform);
    if (norms) squared_norms(*net, norms);
}

// The server's half of one step: h -> the loss, the gradient at the cut, its own gradient and squared norms.
DOOR double top_step(Net* net, int32_t n, const float* h, int32_t flat, const int64_t* labels, const float* const* uniform, float* g, double* norms) {
    const Layer& first = net->layers[0];
    taken_in(first.in, flat, n, h, net->arena + first.in_at);
    ready(*net);
    forward(*net, n, uniform);
    double mean = loss(*net, n, labels, true) / n;
    backward(*net, n, uniform);
    given_out(first.in, flat, n, net->arena + first.g_in_at, g);
    if (norms) squared_norms(*net, norms);
    return mean;
}

DOOR void apply(Net* net, const Step* step, double norm2) { move(*net, *step, norm2); }

// The server's half of an evaluation: h -> outputs.
DOOR void top_predict(Net* net, int32_t n, const float* h, int32_t flat, float* outputs) {
    const Layer &first = net->layers[0], &last = net->layers[net->n_layers - 1];
    taken_in(first.in, flat, n, h, net->arena + first.in_at);
    ready(*net);
    forward(*net, n, nullptr);
    given_out(last.out, 1, n, net->arena + last.out_at, outputs);
}

// Images first, ..., stop - 1, `batch` at a time: the sum of their losses; right answers and images by class.
DOOR double evaluate(Net* net, const Images* set, int64_t first, int64_t stop, int32_t batch, int64_t* right, int64_t* seen) {
    const Layer &bottom = net->layers[0], &last = net->layers[net->n_layers - 1];
    double sum = 0.0;
    ready(*net);
    for (; first < stop; first += batch) {
        int n = int(least<int64_t>(batch, stop - first));
        gather(*set, first, n, bottom.in, net->arena + bottom.in_at);
        forward(*net, n, nullptr);
        float* z = net->arena + last.out_at;
        for (int b = 0; b < n; ++b) {
            int best = 0;
            for (int c = 1; c < net->classes; ++c)
                if (z[int64_t(b) * last.out.size + c] > z[int64_t(b) * last.out.size + best]) best = c;
            seen[set->y[first + b]] += 1;
            right[set->y[first + b]] += best == set->y[first + b];
        }
        sum += loss(*net, n, set->y + first, false);
    }
    return sum;
}

#ifdef STAGES
DOOR const int64_t* stages() { return stage_ticks; }
DOOR int64_t now() { return ticks(); }
#endif
