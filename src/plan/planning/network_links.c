/* The cost of communications: collectives by ring or tree and the size of their messages, over the links of a host, the
 * network's switches or a torus; and how long a synchronous step waits for its slowest chip and host. */
#include "planning_internal.h"

#include <math.h>

/* How a group of ranks is distributed over hosts, or over the racks and slices that one domain of links joins. */
typedef struct group_shape {
    double n, local, hosts; /* members; of one host; hosts */
    double
        apart; /* ranks between the first and the last member: beyond a pod it crosses the upper tier */
} group_shape;

static group_shape shape_of_group(const cost_model *k, const mesh *m, axis_set axes) {
    group_shape g = { .n = mesh_span(m, axes), .local = 1 };
    int domain = k->gpu->domain;
    for (int a = 0; a < AX_COUNT; a++) {
        int stride = mesh_stride(m, (mesh_axis)a), size = mesh_size(m, (mesh_axis)a);
        if (!(axes & AXIS(a))) continue;
        if (stride < domain) g.local *= MIN(size, domain / stride);
        g.apart = MAX(g.apart, (double)stride * size);
    }
    if (axes == AXES_TP_REP) g.local = MIN(g.n, domain);
    g.local = MIN(g.local, g.n);
    g.hosts = ceil(g.n / g.local);
    return g;
}

/* A group along one dimension of a torus has the two links of that dimension, a longer one those of more. */
static double torus_bandwidth(const accelerator *gpu, double members) {
    static const double side = 16; /* of a pod of TPU v4, 16 x 16 x 16 */
    double dims = members > side * side ? 3 : members > side ? 2 : 1;
    return gpu->link / 2 * MIN(dims, gpu->torus) / gpu->torus;
}

static double link_rate(const cost_model *k, const group_shape *g) {
    double link = k->gpu->torus ? torus_bandwidth(k->gpu, g->n) : k->gpu->link / 2;
    return link * plan_constants.link;
}

/* Of one accelerator's adapter; above a pod, its share of the oversubscribed tier. */
static double network_rate(const cost_model *k, const group_shape *g) {
    bool above = k->gpu->pod && g->apart > k->gpu->pod;
    return k->gpu->network * plan_constants.network / (above ? k->gpu->oversubscription : 1);
}

/* @return the seconds of a step between hosts: each tier of switches, 32 times as large as the one below, adds to it. */
static double network_hop(const group_shape *g) {
    double tiers = MAX(1, ceil(log(g->hosts) / log(32)));
    return plan_constants.network_hop + tiers * plan_constants.switch_hop;
}

/* Bytes per second through each member, all members sending at once. A host's members each have a network
 * adapter, and rings cross between hosts on all of them. */
static double group_bandwidth(const cost_model *k, const group_shape *g) {
    double link = link_rate(k, g), network = network_rate(k, g) * g->local;
    return g->hosts > 1 ? MIN(network, g->local > 1 ? link : network) : link;
}

/* A ring moves the least bytes, in as many steps as it has members; a tree the other way around. `moved` is what a
 * ring sends per member. */
static double ring_or_tree(const cost_model *k, const group_shape *g, double moved, double steps,
                           nccl_algorithm algorithm) {
    double rate = group_bandwidth(k, g), hop = network_hop(g);
    double ring_hops = (g->hosts - 1) * hop + (g->n - g->hosts) * plan_constants.link_hop;
    double tree_hops = ceil(log2(g->hosts)) * hop + ceil(log2(g->local)) * plan_constants.link_hop;
    double ring = moved / rate + steps * ring_hops;
    double tree = moved / (rate * plan_constants.tree) + steps * tree_hops;
    switch (algorithm) {
    case NCCL_BY_RING: return plan_constants.start + ring;
    case NCCL_BY_TREE: return plan_constants.start + tree;
    case NCCL_BY_SIZE: break;
    }
    return plan_constants.start + MIN(ring, tree);
}

/* Everyone sends a part to everyone: most of it leaves the host. */
static double exchange_seconds(const cost_model *k, const group_shape *g, double bytes) {
    double inside = bytes * (g->local - 1) / g->n, outside = bytes * (g->n - g->local) / g->n;
    double seconds = MAX(inside / link_rate(k, g), outside / network_rate(k, g));
    return plan_constants.start + seconds +
           (g->hosts > 1 ? network_hop(g) : plan_constants.link_hop);
}

static double message_seconds(const cost_model *k, const group_shape *g, double bytes) {
    bool inside = g->hosts == 1;
    double rate = inside ? link_rate(k, g) : network_rate(k, g);
    return plan_constants.start + bytes / rate +
           (inside ? plan_constants.link_hop : network_hop(g));
}

static double whole_move_seconds(const cost_model *k, const group_shape *g, const comm_move *move,
                                 double bytes) {
    double others = (g->n - 1) / g->n;
    switch (comm_kind(move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX: return ring_or_tree(k, g, 2 * others * bytes, 2, k->algorithm);
    case MOVE_ALL_GATHER:
    case MOVE_REDUCE_SCATTER: return ring_or_tree(k, g, others * bytes, 1, NCCL_BY_SIZE);
    case MOVE_ALL_TO_ALL:
    case MOVE_ROWS: return exchange_seconds(k, g, bytes);
    case MOVE_SHIFT: return message_seconds(k, g, bytes);
    default: return 0;
    }
}

/* Returns the bytes that cross where another system's tensors are narrower than ours. */
static double narrowed(const cost_model *k, const comm_move *move, move_kind kind, double bytes) {
    if (!k->as || (move->axes & ~AXES_DATA)) return bytes;
    bool sums = kind == MOVE_ALL_REDUCE || kind == MOVE_REDUCE_SCATTER;
    bool half = sums ? k->as->bf16_gradients && move->wire == DT_NONE
                     : kind == MOVE_ALL_GATHER && k->as->fp8_gather && k->fp8;
    return half ? bytes / 2 : bytes;
}

/* Part of a communication that a system hides beside the calls around it; the rest slows those as any hidden
 * communication does. */
static double hidden_part(double seconds, double exposed) {
    return seconds * (exposed + plan_constants.interference * (1 - exposed));
}

static double price_message(const cost_model *k, const mesh *m, const group_shape *g,
                            double bytes) {
    message_kind kind = k->as ? k->as->messages : MESSAGES_WHOLE;
    double tp = mesh_size(m, AX_TP);
    if (kind == MESSAGES_EARLY) return hidden_part(message_seconds(k, g, bytes), 0);
    if (kind == MESSAGES_WHOLE || tp == 1) return message_seconds(k, g, bytes);
    group_shape of_tp = shape_of_group(k, m, AXIS(AX_TP));
    return message_seconds(k, g, bytes / tp) +
           ring_or_tree(k, &of_tp, bytes * (tp - 1) / tp, 1, NCCL_BY_SIZE);
}

/* Returns the bytes that leave a host where a token goes once to each of the hosts that have experts of it, of those that go to
 * each expert: k experts are drawn evenly from all hosts. */
static double sent_once(const cost_model *k, const group_shape *g, double bytes) {
    double experts = k->experts_per_token, others = 1 - 1 / g->hosts;
    if (!k->as || !k->as->sends_once || experts <= 1 || g->hosts <= 1) return bytes;
    return bytes * g->hosts * (1 - pow(others, experts)) / experts;
}

/* Prices the exchange with experts. Ours moves the rows of all tokens on every tensor-parallel rank. */
static double price_experts(const cost_model *k, const mesh *m, const group_shape *g,
                            double bytes) {
    double tp = mesh_size(m, AX_TP);
    bool shards = k->as && k->as->routes_shards && tp > 1;
    group_shape of_tp = shape_of_group(k, m, AXIS(AX_TP));
    double seconds = exchange_seconds(k, g, sent_once(k, g, shards ? bytes / tp : bytes));
    if (shards) seconds += ring_or_tree(k, &of_tp, bytes * (tp - 1) / tp, 1, NCCL_BY_SIZE);
    return k->as && k->as->hides_experts ? hidden_part(seconds, 0) : seconds;
}

/* Prices a move. A system that divides tensor-parallel communication into chunks beside GEMMs exposes one chunk. */
double price_move(void *ctx, const mesh *m, const comm_move *move, double bytes) {
    const cost_model *k = ctx;
    group_shape g = shape_of_group(k, m, move->axes);
    move_kind kind = comm_kind(move);
    if (g.n <= 1) return 0;
    if (kind == MOVE_SEND || kind == MOVE_RECV) return price_message(k, m, &g, bytes);
    bool scales = kind == MOVE_ALL_MAX && !(move->axes & ~AXES_DATA);
    if (scales && k->as && k->as->fp8_gather) return 0; /* computed once per step */
    if (move->axes == AXIS(AX_EP) && (kind == MOVE_ALL_TO_ALL || kind == MOVE_ROWS))
        return price_experts(k, m, &g, bytes);
    double seconds = whole_move_seconds(k, &g, move, narrowed(k, move, kind, bytes));
    int chunks = k->as && move->axes == AXIS(AX_TP) ? k->as->tp_overlap : 0;
    return chunks > 1 ? hidden_part(seconds, 1.0 / chunks) : seconds;
}

unsigned links_of_move(void *ctx, const mesh *m, const comm_move *move) {
    group_shape g = shape_of_group(ctx, m, move->axes);
    if (g.n <= 1) return 0;
    return (g.local > 1 ? SIM_LINK_HOST : 0) | (g.hosts > 1 ? SIM_LINK_NETWORK : 0);
}

/* Chips differ by a normal deviate, and the slowest of n is about sqrt(2 ln n) deviations below the mean. A host
 * delays a step by an exponential deviate now and then (interrupts, retransmissions, page faults), and the largest of n is
 * about ln n times their mean. */
double straggler_seconds(const accelerator *gpu, double seconds, int ranks) {
    double hosts = ceil((double)ranks / gpu->per_node);
    return seconds *
           (plan_constants.chips * sqrt(2 * log(ranks)) + plan_constants.hosts * log(hosts));
}
