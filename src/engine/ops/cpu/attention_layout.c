/* The shape of an attention call, its split into chunks and tiles, and the mask of a tile. */
#include "attention_internal.h"
#include "ops/op_table.h"

att_layout CPU(att_layout_of)(const op_call *c, int64_t n, dtype dt) {
    int heads = c->attr.heads.q, kv = c->attr.heads.kv, dim = c->attr.heads.dim;
    BUG_IF(heads < 1 || kv < 1 || dim < 1 || heads % kv != 0);
    BUG_IF(n < 0 || n > INT32_MAX);
    BUG_IF(!(c->attr.heads.scale > 0));
    const tile_path *path = CPU(tile_path_for)(dt);
    int width = (int)align_up((size_t)dim, (size_t)path->unit);
    return (att_layout){
        .path = path,
        .n = n,
        .heads = heads,
        .kv = kv,
        .group = heads / kv,
        .dim = dim,
        .width = width,
        .window = c->attr.heads.window,
        .scale2 = c->attr.heads.scale * ATT_LOG2E,
        .cap2 = c->attr.heads.cap * ATT_LOG2E,
        .key_col = (int64_t)heads * dim,
        .tile_bytes = (size_t)ATT_TILE * width * path->elem,
    };
}

att_layout CPU(att_block_layout_of)(const op_call *c, const tensor *q, const tensor *kv, dtype dt) {
    att_layout p = CPU(att_layout_of)(c, q->dim[0], dt);
    BUG_IF(q->dim[1] != (int64_t)p.heads * p.dim || kv->dim[1] != (int64_t)2 * p.kv * p.dim);
    BUG_IF(kv->dim[0] < 1 || kv->dim[0] > INT32_MAX);
    p.keys = kv->dim[0];
    p.key_col = 0;
    return p;
}

/* Each chunk but the last has at least ATT_CHUNK tokens, and adds at most one partial tile. */
static int64_t max_chunks(const att_layout *p) { return p->n / ATT_CHUNK + 1; }
static int64_t max_tiles(const att_layout *p) { return p->n / ATT_TILE + max_chunks(p); }
int64_t CPU(att_max_key_tiles)(const att_layout *p) {
    return p->keys ? p->keys / ATT_TILE + 1 : max_tiles(p);
}

size_t CPU(att_layout_bytes)(const att_layout *p) {
    int64_t lists = max_tiles(p) + 1 + max_chunks(p) + 1;
    int64_t of_keys = p->keys ? CPU(att_max_key_tiles)(p) + 1 + 2 : 0;
    return align_up((size_t)(lists + of_keys) * sizeof(int32_t), 64);
}

void CPU(att_split)(att_layout *p, const int32_t *start, void *buffer) {
    p->start = start;
    p->tile_row = buffer;
    p->chunk_tile = p->tile_row + max_tiles(p) + 1;
    p->n_tiles = p->n_chunks = 0;
    int64_t chunk = 0, tile = 0;
    for (int64_t i = 0; i < p->n; i++) {
        BUG_IF(start[i] < 0 || start[i] > i || (i > 0 && start[i] < start[i - 1]));
        /* a chunk may end before token i when no token from i on sees one before i */
        bool new_chunk = i == 0 || (start[i] == i && i - chunk >= ATT_CHUNK);
        if (new_chunk) {
            chunk = i;
            p->chunk_tile[p->n_chunks++] = p->n_tiles;
        }
        if (new_chunk || i - tile == ATT_TILE) {
            tile = i;
            p->tile_row[p->n_tiles++] = (int32_t)i;
        }
    }
    p->tile_row[p->n_tiles] = (int32_t)p->n;
    p->chunk_tile[p->n_chunks] = p->n_tiles;
    p->key_row = p->tile_row;
    p->chunk_keys = p->chunk_tile;
    p->n_key_tiles = p->n_tiles;
}

static int even_tiles(int64_t n, int32_t *row) {
    int tiles = 0;
    for (int64_t i = 0; i < n; i += ATT_TILE) row[tiles++] = (int32_t)i;
    row[tiles] = (int32_t)n;
    return tiles;
}

void CPU(att_split_block)(att_layout *p, const int32_t *range, void *buffer) {
    p->first = range;
    p->end = range + p->n;
    for (int64_t i = 0; i < p->n; i++) {
        BUG_IF(p->first[i] < 0 || p->first[i] > p->end[i] || p->end[i] > p->keys);
        BUG_IF(i > 0 && (p->first[i] < p->first[i - 1] || p->end[i] < p->end[i - 1]));
    }
    p->tile_row = buffer;
    p->key_row = p->tile_row + max_tiles(p) + 1;
    p->chunk_tile = p->key_row + CPU(att_max_key_tiles)(p) + 1;
    p->chunk_keys = p->chunk_tile + 2;
    p->n_chunks = 1;
    p->n_tiles = p->chunk_tile[1] = even_tiles(p->n, p->tile_row);
    p->n_key_tiles = p->chunk_keys[1] = even_tiles(p->keys, p->key_row);
    p->chunk_tile[0] = p->chunk_keys[0] = 0;
}

void CPU(att_drop_init)(att_layout *p, const op_call *c, const tensor *id, const tensor *key_id) {
    p->drop = attention_drop_of(c, id);
    p->key_id = p->drop.id ? key_id->data : NULL;
    if (p->drop.id) p->drop_key = c->run->step->dropout;
}

void CPU(att_mask_init)(att_mask *m, const att_layout *p, int head, int64_t row, int rows) {
    m->drop = p->drop.id ? &p->drop : NULL;
    if (!m->drop) return;
    m->key = p->drop_key;
    m->head = head;
    for (int q = 0; q < ATT_TILE; q++) {
        uint64_t id = q < rows ? (uint64_t)p->drop.id[row + q] : 0;
        m->id_low[q] = (uint32_t)id;
        m->id_high[q] = (uint32_t)(id >> 32);
    }
}

int CPU(att_end_tile)(const att_layout *p, int qt) {
    if (!p->end) return qt + 1;
    return (int)((att_end_key(p, p->tile_row[qt + 1] - 1) + ATT_TILE - 1) / ATT_TILE);
}

int CPU(att_first_tile)(const att_layout *p, int qt) {
    int64_t first = att_first_key(p, p->tile_row[qt]);
    if (p->first) return (int)(first / ATT_TILE);
    int kt = qt;
    while (kt > 0 && p->tile_row[kt] > first) kt--;
    return kt;
}

/* Weighs chunks by their pairs of tiles: there are as many equal tasks as the longest chunk divides the
 * total. */
bool CPU(att_by_chunk)(const att_layout *p, int threads, double worth) {
    int64_t whole = 0, longest = 1;
    for (int c = 0; c < p->n_chunks; c++) {
        int64_t pairs = 0;
        for (int t = p->chunk_tile[c]; t < p->chunk_tile[c + 1]; t++)
            pairs += MAX(0, CPU(att_end_tile)(p, t) - CPU(att_first_tile)(p, t));
        whole += pairs;
        longest = MAX(longest, pairs);
    }
    int64_t tasks = p->kv * whole / longest, rounds = (tasks + threads - 1) / threads;
    return (double)(rounds * threads) <= worth * (double)tasks;
}

size_t CPU(attention_workspace)(const op_backend *b, const op_call *c, int threads) {
    switch (c->op) {
    case OP_ATTENTION:
    case OP_ATTENTION_BLOCK: return CPU(att_fwd_workspace)(c, threads);
    case OP_ATTENTION_BWD:
    case OP_ATTENTION_BLOCK_BWD: return CPU(att_bwd_workspace)(c, threads);
    default: return CPU(att_cached_workspace)(c, threads);
    }
}

/* ---- masks ---------------------------------------------------------------------------------- */
static uint8_t clamp_key(int64_t key, int64_t key0, int keys) {
    return (uint8_t)MIN(MAX(key - key0, 0), keys);
}

const att_band *CPU(att_band_of)(att_band *band, const att_layout *p, const int64_t *lo,
                                 const int64_t *end, int nq, int64_t key0, int keys) {
    bool padded = keys % p->path->unit != 0;
    if (!padded && lo[nq - 1] <= key0 && end[0] >= key0 + keys) return NULL;
    int from = 0, to = 0;
    for (int k = 0; k < ATT_TILE; k++) {
        while (from < nq && (k >= keys || end[from] <= key0 + k)) from++;
        while (to < nq && (k >= keys || lo[to] <= key0 + k)) to++;
        band->from[k] = (uint8_t)from;
        band->to[k] = (uint8_t)to;
    }
    for (int g = 0; g < ATT_TILE / ATT_GROUP; g++) {
        int first = MIN(g * ATT_GROUP, nq - 1), last = MIN(first + ATT_GROUP, nq) - 1;
        band->keys[g].lo = clamp_key(lo[first], key0, keys);
        band->keys[g].hi = clamp_key(end[last], key0, keys);
        band->queries[g].lo = band->from[g * ATT_GROUP];
        band->queries[g].hi = band->to[g * ATT_GROUP + ATT_GROUP - 1];
    }
    return band;
}

const att_band *CPU(att_band_tiles)(att_band *band, const att_layout *p, int qt, int kt) {
    int64_t lo[ATT_TILE], end[ATT_TILE];
    int nq = att_tile_rows(p, qt);
    for (int q = 0; q < nq; q++) {
        int64_t i = p->tile_row[qt] + q;
        lo[q] = att_first_key(p, i);
        end[q] = att_end_key(p, i);
    }
    return CPU(att_band_of)(band, p, lo, end, nq, p->key_row[kt], att_key_rows(p, kt));
}

void CPU(att_hide)(float *s, const att_band *band, int q0, int klo, int khi, float hidden) {
    for (int k = klo; k < khi; k++) {
        float *row = s + (size_t)k * ATT_TILE + q0;
        int from = MIN(MAX(band->from[k] - q0, 0), ATT_LANES), to = band->to[k] - q0;
        for (int q = 0; q < from; q++) row[q] = hidden;
        for (int q = MAX(to, from); q < ATT_LANES; q++) row[q] = hidden;
    }
}
