/* The catalogue of hardware and prices. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "observe/observe.h"

static const char *const peak_names[PEAKS] = { "fp32", "tf32", "fp16", "bf16", "fp8" };
const char *peak_name(peak_kind k) { return peak_names[k]; }

/* ---- entries ---------------------------------------------------------------------------------- */
/* Where an entry stands, for messages: "hardware.yaml: accelerators[3]". */
err read_hardware_number(const json_t *o, const char *where, const char *key, double scale,
                         double *out) {
    TRY(io_json_real(o, where, key, out));
    if (*out > 0 && *out < 1e12) {
        *out *= scale;
        return OK;
    }
    return err_hint(ERR("%s: %s: expected a number above 0; got %g", where, key, *out),
                    "`ingot plan hardware` shows the units");
}

/* Without tflops: the peaks published for the chip, which MFU refers to as well. */
static err read_peaks(const json_t *o, const char *where, accelerator *a) {
    json_t *peaks = NULL, *value;
    const char *key;
    bool published = false;
    for (int k = 0; k < PEAKS; k++) {
        a->peak[k] = chip_peak(a->chip, peak_names[k]);
        published |= isfinite(a->peak[k]);
    }
    if (published && !json_object_get(o, "tflops")) return OK;
    TRY(io_json_object(o, where, "tflops", &peaks));
    if (!json_object_size(peaks))
        return err_hint(ERR("%s: tflops: no type is given", where),
                        "its peak in each type it computes in, like {fp32: 67, bf16: 989}");
    for (int k = 0; k < PEAKS; k++) a->peak[k] = NAN;
    json_object_foreach(peaks, key, value) {
        int k = 0;
        while (k < PEAKS && strcmp(peak_names[k], key) != 0) k++;
        if (k == PEAKS)
            return err_hint(ERR("%s: tflops: unknown type \"%.20s\"", where, key),
                            "fp32, tf32, fp16, bf16 or fp8");
        TRY(read_hardware_number(peaks, where, key, 1e12, &a->peak[k]));
    }
    return OK;
}

/* Rates by name, TFLOP/s; those that are left out stay NaN. @param names [n], NULL: cannot be given */
static err read_rates(const json_t *o, const char *where, const char *key, const char *const *names,
                      int n, double *out) {
    json_t *rates = NULL, *value;
    const char *name;
    char within[200];
    for (int k = 0; k < n; k++) out[k] = NAN;
    if (!json_object_get(o, key)) return OK;
    TRY(io_json_object(o, where, key, &rates));
    snprintf(within, sizeof within, "%s: %s", where, key);
    json_object_foreach(rates, name, value) {
        int k = 0;
        while (k < n && (!names[k] || strcmp(names[k], name) != 0)) k++;
        if (k == n)
            return err_hint(ERR("%s: unknown name \"%.20s\"", within, name), "%s", names[n - 1]);
        TRY(read_hardware_number(rates, within, name, 1e12, &out[k]));
    }
    return OK;
}

static const char *const attention_names[ATTENTION_KERNELS] = {
    [ATTENTION_CUDNN] = "cudnn", [ATTENTION_FLASH2] = "flash2", [ATTENTION_FLASH1] = "flash1"
};

/* Switches and links beside their bandwidths, with defaults: one tier that all share. */
static err read_topology(const json_t *o, const char *where, accelerator *a) {
    int64_t pod = 0, torus = 0, domain = a->per_node;
    a->oversubscription = 1;
    if (json_object_get(o, "pod")) TRY(io_json_int(o, where, "pod", &pod));
    if (json_object_get(o, "domain")) TRY(io_json_int(o, where, "domain", &domain));
    if (domain < a->per_node || domain > 1 << 24)
        return err_hint(
            ERR("%s: domain: expected %d, the accelerators of a node, to 16777216; got %lld", where,
                a->per_node, (long long)domain),
            "leave it out where links join one node");
    if (json_object_get(o, "torus")) TRY(io_json_int(o, where, "torus", &torus));
    if (json_object_get(o, "oversubscription"))
        TRY(read_hardware_number(o, where, "oversubscription", 1, &a->oversubscription));
    if (pod < 0 || pod > 1 << 24 || torus < 0 || torus > 3 || a->oversubscription < 1)
        return err_hint(
            ERR("%s: expected pod up to 16777216, torus up to 3, oversubscription of 1 or more; got %lld, %lld, %g",
                where, (long long)pod, (long long)torus, a->oversubscription),
            "leave them out for one tier of switches");
    a->domain = (int)domain;
    a->pod = (int)pod;
    a->torus = (int)torus;
    return OK;
}

static err read_accelerator(const json_t *o, const char *where, void *into) {
    accelerator *a = into;
    const struct {
        const char *key;
        double *to;
    } bandwidths[] = { { "memory_bandwidth", &a->memory_bandwidth },
                       { "link", &a->link },
                       { "host", &a->host },
                       { "network", &a->network },
                       { "disk", &a->disk } };
    int64_t per_node;
    TRY(io_json_text(o, where, "name", &a->name));
    TRY(io_json_text(o, where, "title", &a->title));
    TRY(io_json_text(o, where, "chip", &a->chip));
    TRY(io_json_text(o, where, "source", &a->source));
    TRY(read_hardware_number(o, where, "memory", 1e9, &a->memory));
    for (size_t i = 0; i < COUNT_OF(bandwidths); i++)
        TRY(read_hardware_number(o, where, bandwidths[i].key, 1e9, bandwidths[i].to));
    TRY(io_json_int(o, where, "per_node", &per_node));
    if (per_node < 1 || per_node > 4096)
        return ERR("%s: per_node: expected 1 to 4096; got %lld", where, (long long)per_node);
    a->per_node = (int)per_node;
    a->power = 1;
    if (json_object_get(o, "power")) TRY(read_hardware_number(o, where, "power", 1, &a->power));
    if (a->power > 1) return ERR("%s: power: expected a share, up to 1; got %g", where, a->power);
    a->shared = json_is_true(json_object_get(o, "shared"));
    TRY(call_costs_read(o, where, a));
    TRY(read_rates(o, where, "gemm", peak_names, PEAKS, a->gemm));
    TRY(read_rates(o, where, "attention", attention_names, ATTENTION_KERNELS, a->attention));
    a->attention[ATTENTION_OURS] = a->attention[ATTENTION_CUDNN];
    TRY(read_topology(o, where, a));
    return read_peaks(o, where, a);
}

static err read_price(const json_t *o, const char *where, void *into) {
    hardware_price *p = into;
    TRY(io_json_text(o, where, "provider", &p->provider));
    TRY(io_json_text(o, where, "accelerator", &p->accelerator));
    TRY(io_json_text(o, where, "instance", &p->instance));
    TRY(io_json_text(o, where, "date", &p->date));
    TRY(io_json_text(o, where, "source", &p->source));
    return read_hardware_number(o, where, "usd", 1, &p->usd);
}

static err read_store(const json_t *o, const char *where, void *into) {
    storage_price *s = into;
    TRY(io_json_text(o, where, "provider", &s->provider));
    TRY(io_json_text(o, where, "name", &s->name));
    TRY(io_json_text(o, where, "date", &s->date));
    TRY(io_json_text(o, where, "source", &s->source));
    TRY(read_hardware_number(o, where, "usd_gb_month", 1, &s->usd_gb_month));
    return read_hardware_number(o, where, "usd_gb_egress", 1, &s->usd_gb_egress);
}

static err read_energy(const json_t *o, const char *where, void *into) {
    energy_use *u = into;
    TRY(io_json_text(o, where, "accelerator", &u->accelerator));
    TRY(io_json_text(o, where, "source", &u->source));
    return read_hardware_number(o, where, "watts", 1, &u->watts);
}

static bool same_accelerator(const void *a, const void *b) {
    return !strcmp(((const accelerator *)a)->name, ((const accelerator *)b)->name);
}
static void free_accelerator(void *entry) { call_costs_free(entry); }
static bool same_price(const void *a, const void *b) {
    const hardware_price *p = a, *q = b;
    return !strcmp(p->provider, q->provider) && !strcmp(p->accelerator, q->accelerator) &&
           !strcmp(p->instance, q->instance);
}
static bool same_store(const void *a, const void *b) {
    return !strcmp(((const storage_price *)a)->provider, ((const storage_price *)b)->provider);
}

static bool same_energy(const void *a, const void *b) {
    return !strcmp(((const energy_use *)a)->accelerator, ((const energy_use *)b)->accelerator);
}

/* ---- the file: four lists --------------------------------------------------------------------- */
typedef struct entry_kind {
    const char *key;
    size_t list_at, count_at, size; /* of the list and its length in a `hardware`; of an entry */
    err (*read)(const json_t *o, const char *where, void *into);
    bool (*same)(const void *a, const void *b);
    void (*free)(void *entry); /* what it owns; NULL: nothing */
} entry_kind;
static const entry_kind kinds[] = {
    { "accelerators", offsetof(hardware, accelerators), offsetof(hardware, n_accelerators),
      sizeof(accelerator), read_accelerator, same_accelerator, free_accelerator },
    { "prices", offsetof(hardware, prices), offsetof(hardware, n_prices), sizeof(hardware_price),
      read_price, same_price },
    { "storage", offsetof(hardware, stores), offsetof(hardware, n_stores), sizeof(storage_price),
      read_store, same_store },
    { "energy", offsetof(hardware, energies), offsetof(hardware, n_energies), sizeof(energy_use),
      read_energy, same_energy },
};

/* Adds an entry, or puts it over the one it names again. */
static void put_entry(hardware *h, const entry_kind *k, const void *entry) {
    char **list = (char **)((char *)h + k->list_at);
    int *n = (int *)((char *)h + k->count_at), at = 0;
    while (at < *n && !k->same(*list + (size_t)at * k->size, entry)) at++;
    if (at == *n)
        *list = mem_grow(*list, (size_t)++ * n * k->size);
    else if (k->free)
        k->free(*list + (size_t)at * k->size);
    memcpy(*list + (size_t)at * k->size, entry, k->size);
}

static err read_entries(hardware *h, const entry_kind *k, const json_t *list, const char *name) {
    if (!json_is_array(list))
        return err_hint(ERR("%s: %s: expected a list", name, k->key),
                        "`configs/hardware.yaml` shows the form");
    for (size_t i = 0; i < json_array_size(list); i++) {
        union {
            accelerator a;
            hardware_price p;
            storage_price s;
            energy_use u;
        } entry = { 0 };
        char where[160];
        snprintf(where, sizeof where, "%s: %s[%zu]", name, k->key, i);
        err e = k->read(json_array_get(list, i), where, &entry);
        if (e && k->free) k->free(&entry);
        if (e) return e;
        put_entry(h, k, &entry);
    }
    return OK;
}

static err read_catalogue(hardware *h, const char *text, size_t len, const char *name) {
    json_t *doc = NULL, *value;
    const char *key;
    TRY(yaml_to_json(text, len, name, &doc));
    json_array_append_new(h->docs, doc);
    if (!json_is_object(doc))
        return err_hint(ERR("%s: expected sections accelerators, prices, storage, energy", name),
                        "`configs/hardware.yaml` shows the form");
    json_object_foreach(doc, key, value) {
        const entry_kind *k = NULL;
        for (size_t i = 0; i < COUNT_OF(kinds); i++)
            if (!strcmp(kinds[i].key, key)) k = &kinds[i];
        if (!k)
            return err_hint(ERR("%s: unknown section \"%.40s\"", name, key),
                            "accelerators, prices, storage or energy");
        TRY(read_entries(h, k, value, name));
    }
    return OK;
}

err hardware_open(const char *extra, hardware *out) {
    hardware h = { .docs = json_array() };
    err e =
        read_catalogue(&h, hardware_files[0].text, strlen(hardware_files[0].text), "hardware.yaml");
    if (!e && extra) {
        char *text = NULL;
        size_t len;
        e = io_read(extra, 1 << 24, &text, &len);
        if (!e) e = read_catalogue(&h, text, len, extra);
        free(text);
    }
    if (e) hardware_free(&h);
    *out = h;
    return e;
}

void hardware_free(hardware *h) {
    for (int i = 0; i < h->n_accelerators; i++) call_costs_free(&h->accelerators[i]);
    free(h->accelerators);
    free(h->prices);
    free(h->stores);
    free(h->energies);
    json_decref(h->docs);
    *h = (hardware){ 0 };
}

/* ---- looking up ------------------------------------------------------------------------------- */
/* Names are written in many ways: "A100", "H100 SXM", "a100_80gb". */
static void fold_name(const char *from, char to[64]) {
    size_t n = 0;
    for (; *from && n < 63; from++)
        if (!strchr(" _-", *from))
            to[n++] = (char)(*from >= 'A' && *from <= 'Z' ? *from + 32 : *from);
    to[n] = '\0';
}

err hardware_find(const hardware *h, const char *name, const accelerator **out) {
    char wanted[64], have[64];
    fold_name(name, wanted);
    for (int i = 0; i < h->n_accelerators; i++) {
        fold_name(h->accelerators[i].name, have);
        if (strcmp(have, wanted) != 0) continue;
        *out = &h->accelerators[i];
        return OK;
    }
    str all = { 0 };
    const char *near = NULL;
    for (int i = 0; i < h->n_accelerators; i++) {
        str_add(&all, "%s%s", i ? ", " : "", h->accelerators[i].name);
        near = str_nearer(wanted, h->accelerators[i].name, near);
    }
    err e = ERR_USAGE("--gpu: \"%.40s\" is not in the catalogue, which has %s", name,
                      all.text ? all.text : "none");
    str_free(&all);
    if (near) return err_hint(e, "--gpu %s, or describe it in a file: --catalogue FILE", near);
    return err_hint(e, "describe it in a file: --catalogue FILE");
}

err hardware_find_price(const hardware *h, const accelerator *a, const char *provider,
                        const hardware_price **out) {
    const hardware_price *best = NULL;
    str others = { 0 };
    for (int i = 0; i < h->n_prices; i++) {
        const hardware_price *p = &h->prices[i];
        if (strcmp(p->accelerator, a->name) != 0) continue;
        str_add(&others, "%s%s", others.len ? ", " : "", p->provider);
        if (provider && strcmp(p->provider, provider) != 0) continue;
        if (!best || p->usd < best->usd) best = p;
    }
    err e = OK;
    if (!best && provider)
        e = err_hint(ERR_USAGE("--provider: no price for %s at \"%.40s\"", a->name, provider),
                     others.len ? "--provider %s" : "add one in a file: --catalogue FILE%s",
                     others.len ? others.text : "");
    else if (!best)
        e = err_hint(ERR("the catalogue has no price for %s", a->name),
                     "add one in a file: --catalogue FILE");
    str_free(&others);
    *out = best;
    return e;
}

const char *hardware_fastest_type(const accelerator *a) {
    bool fp16 = !a->shared && !isnan(a->peak[PEAK_FP16]);
    if (!isnan(a->peak[PEAK_BF16])) return peak_names[PEAK_BF16];
    return peak_names[fp16 ? PEAK_FP16 : PEAK_FP32];
}

err hardware_find_peak(const accelerator *a, const char *type, double *flops) {
    str has = { 0 };
    *flops = NAN;
    for (int k = 0; k < PEAKS; k++) {
        if (isnan(a->peak[k])) continue;
        str_add(&has, "%s%s", has.len ? ", " : "", peak_names[k]);
        if (!strcmp(peak_names[k], type)) *flops = a->peak[k];
    }
    err e = OK;
    if (isnan(*flops))
        e = err_hint(ERR_USAGE("--dtype: %s does not compute in \"%.20s\"", a->name, type),
                     "one of %s", has.text);
    str_free(&has);
    return e;
}

/* ---- time and cost ---------------------------------------------------------------------------- */
run_cost cost_of_flops(double flops, double gpus, double peak, double mfu,
                       double usd_per_gpu_hour) {
    run_cost c = { .seconds = flops / (gpus * peak * mfu) };
    c.gpu_hours = c.seconds * gpus / 3600;
    c.usd = c.gpu_hours * usd_per_gpu_hour;
    return c;
}

double zero_state_bytes(double params, double ranks, int zero) {
    BUG_IF(zero < 0 || zero > 3);
    double weights = 2 / (zero >= 3 ? ranks : 1), gradients = 2 / (zero >= 2 ? ranks : 1);
    return params * (weights + gradients + 12 / (zero >= 1 ? ranks : 1));
}

const energy_use *hardware_find_energy(const hardware *h, const accelerator *a) {
    for (int i = 0; i < h->n_energies; i++)
        if (!strcmp(h->energies[i].accelerator, a->name)) return &h->energies[i];
    return NULL;
}

run_energy energy_of(double gpu_hours, double watts, double pue, double usd_kwh) {
    double mwh = gpu_hours * watts * pue / 1e6;
    return (run_energy){ .mwh = mwh, .usd = mwh * 1000 * usd_kwh };
}
