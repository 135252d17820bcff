/* Prompts: documents whose first tokens have no loss, from JSON lines to shards to batches. */
#include "support/data.h"
#include "support/train.h"

#include <math.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

enum { DOCUMENTS = 120, MOST = 60 };

typedef struct planted {
    char prompt[MOST + 1], text[MOST + 1]; /* prompt "": the document has none */
} planted;

typedef struct world {
    test_folder at;
    planted doc[DOCUMENTS];
    tokenizer *t;
} world;

static void draw_word(rng_key key, uint64_t *n, int least, char *out) {
    int len = least + (int)rng_below(key, (*n)++, (uint64_t)(MOST + 1 - least));
    for (int i = 0; i < len; i++) out[i] = (char)('a' + (int)rng_below(key, (*n)++, 26));
    out[len] = '\0';
}

static void write_lines(world *w, const char *name, bool apart) {
    str all = { 0 };
    for (int i = 0; i < DOCUMENTS; i++) {
        const planted *d = &w->doc[i];
        if (!apart)
            str_add(&all, "{\"completion\": \"%s%s\"}\n", d->prompt, d->text);
        else if (*d->prompt)
            str_add(&all, "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", d->prompt, d->text);
        else
            str_add(&all, "{\"completion\": \"%s\"}\n", d->text);
    }
    folder_write(&w->at, name, all.text);
    str_free(&all);
}

static int make_world(void **state) {
    world *w = calloc(1, sizeof *w);
    rng_key key = rng_key_of(7, hash_str("prompts"));
    uint64_t n = 0;
    if (folder_make(&w->at)) return -1;
    for (int i = 0; i < DOCUMENTS; i++) {
        if (rng_below(key, n++, 3)) draw_word(key, &n, 1, w->doc[i].prompt);
        draw_word(key, &n, 1, w->doc[i].text);
    }
    write_lines(w, "apart.jsonl", true);
    write_lines(w, "whole.jsonl", false);
    assert_ok(tokenizer_open("bytes", NULL, &w->t));
    *state = w;
    return 0;
}

static int remove_world(void **state) {
    world *w = *state;
    tokenizer_free(w->t);
    int failed = folder_remove(&w->at);
    free(w);
    return failed;
}

static data_source *tokenize_lines(world *w, const char *from, const char *out, const char *field,
                                   int32_t eos, tokenize_report *r) {
    char path[256];
    text_inputs *in;
    data_source *s;
    snprintf(path, sizeof path, "%s", in_folder(&w->at, from));
    const char *paths[] = { path };
    assert_ok(text_inputs_open(
        paths, 1, &(text_input_options){ .text_field = "completion", .segment_bytes = 4096 }, &in));
    tokenize_options o = { .tokenizer = w->t, .eos = eos, .prompt_field = field, .quiet = true };
    assert_ok(data_tokenize_text(in, in_folder(&w->at, out), &o, r));
    text_inputs_close(in);
    assert_ok(data_open(in_folder(&w->at, out), 0, &s));
    return s;
}

static void shards_state_every_prompt(void **state) {
    world *w = *state;
    tokenize_report r;
    data_source *s = tokenize_lines(w, "apart.jsonl", "apart", "prompt", DOCUMENT_END_OWN, &r);
    int64_t prompts = 0;
    assert_true(data_source_info(s)->prompts);
    assert_int_equal(data_source_info(s)->documents, DOCUMENTS);
    for (int i = 0; i < DOCUMENTS; i++) {
        data_range d = data_document(s, i);
        size_t n = strlen(w->doc[i].prompt);
        assert_int_equal(data_document_prompt(s, i), n);
        assert_int_equal(d.to - d.from, n + strlen(w->doc[i].text) + 1);
        prompts += n > 0;
    }
    assert_int_equal(r.prompts, prompts);
    assert_ok(data_verify(s));
    data_close(s);
    /* a rerun keeps the shards; another field, or none, are other shards */
    data_close(tokenize_lines(w, "apart.jsonl", "apart", "prompt", DOCUMENT_END_OWN, &r));
    assert_int_equal(r.resumed, r.shards);
    text_inputs *in;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder(&w->at, "apart.jsonl"));
    const char *paths[] = { path };
    assert_ok(text_inputs_open(
        paths, 1, &(text_input_options){ .text_field = "completion", .segment_bytes = 4096 }, &in));
    tokenize_options o = { .tokenizer = w->t, .eos = DOCUMENT_END_OWN, .quiet = true };
    assert_error(data_tokenize_text(in, in_folder(&w->at, "apart"), &o, &r), "other input");
    text_inputs_close(in);
}

/* Whether a token is one of a prompt. */
static bool in_prompt(const data_source *s, int64_t token) {
    int64_t d = data_document_of(s, token);
    return token < data_document(s, d).from + data_document_prompt(s, d);
}

/* The same tokens, once with prompts and once without, in the same windows: targets differ where they are of prompts, and
 * in nothing else. What a step counts before it runs is what its batches have. */
static void compare_batches(const data_source *masked, const data_source *plain,
                            const loader_options *o) {
    loader *a, *b;
    data_batch x, y;
    int64_t hidden = 0, kept = 0;
    assert_ok(loader_new(masked, o, &a));
    assert_ok(loader_new(plain, o, &b));
    for (int step = 0; step < 40; step++) {
        int64_t sum = 0, valid = -1;
        do {
            int64_t here = 0;
            assert_ok(loader_next(a, &x));
            assert_ok(loader_next(b, &y));
            for (int64_t i = 0; i < o->rows * o->seq_len; i++) {
                assert_int_equal(x.tokens[i], y.tokens[i]);
                bool target = y.targets[i] != DATA_NO_TARGET;
                bool mask = target && in_prompt(masked, x.id[i] + 1);
                assert_int_equal(x.targets[i], mask ? DATA_NO_TARGET : y.targets[i]);
                hidden += mask;
                here += target && !mask;
            }
            assert_int_equal(x.valid_here, here);
            valid = x.valid;
            sum += here;
        } while (x.microbatch + 1 < x.microbatches);
        assert_int_equal(valid, sum);
        kept += sum;
    }
    assert_true(hidden > 100 && kept > 100);
    loader_free(a);
    loader_free(b);
}

static void batches_mask_prompts_alone(void **state) {
    world *w = *state;
    tokenize_report r;
    static const int32_t ends[] = { DOCUMENT_END_OWN, DOCUMENT_END_NONE };
    for (size_t e = 0; e < COUNT_OF(ends); e++) {
        const char *names[] = { e ? "masked-none" : "masked", e ? "plain-none" : "plain" };
        data_source *masked = tokenize_lines(w, "apart.jsonl", names[0], "prompt", ends[e], &r);
        data_source *plain = tokenize_lines(w, "whole.jsonl", names[1], NULL, ends[e], &r);
        assert_false(data_source_info(plain)->prompts);
        for (int kind = 0; kind < 8; kind++) {
            loader_options o = { .seq_len = 48,
                                 .rows = 2,
                                 .ranks = 1,
                                 .step_windows = 6,
                                 .seed = 3,
                                 .mask_documents = kind & 1,
                                 .epoch_offset = kind & 2,
                                 .packing = kind & 4 ? PACK_BEST_FIT : PACK_CONCAT };
            if ((kind & 4) && (!(kind & 1) || (kind & 2))) continue; /* packing keeps documents */
            compare_batches(masked, plain, &o);
        }
        data_close(masked);
        data_close(plain);
    }
}

/* Losses of a run are those of one rank on every layout, after a resume too: the mean over targets outside prompts. */
static void runs_agree_on_masked_data(void **state) {
    world *w = *state;
    tokenize_report r;
    char data[256];
    static settings layouts[] = {
        { "parallelism.tensor_parallel_degree", "2" },
        { "parallelism.context_parallel_degree", "2" },
        { "parallelism.pipeline_parallel_degree", "2" },
        { "parallelism.zero_stage", "3" },
    };
    data_close(tokenize_lines(w, "apart.jsonl", "train", "prompt", DOCUMENT_END_OWN, &r));
    data_close(tokenize_lines(w, "whole.jsonl", "all", NULL, DOCUMENT_END_OWN, &r));
    snprintf(data, sizeof data, "%s", in_folder(&w->at, "train"));
    settings common = { SETTINGS_FOR_RANKS("2"),
                        "training.local_batch_size",
                        "1",
                        "data.train",
                        data,
                        "training.label_smoothing",
                        "0.1",
                        "training.z_loss",
                        "0.01" };
    assert_ok(run_on_ranks(&w->at, "one", common, (settings){ NULL }, 1));
    json_t *one = logged_steps(&w->at, "one");
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        char name[16];
        snprintf(name, sizeof name, "many%zu", i);
        settings half;
        memcpy(half, layouts[i], sizeof half);
        half[2] = "training.stop", half[3] = "3";
        assert_ok(run_on_ranks(&w->at, name, common, half, 2));
        assert_ok(run_on_ranks(&w->at, name, common, layouts[i], 2));
        json_t *many = logged_steps(&w->at, name);
        assert_int_equal(json_array_size(many), json_array_size(one));
        for (size_t k = 0; k < json_array_size(one); k++)
            assert_true(fabs(logged_number(many, k, "loss") - logged_number(one, k, "loss")) <
                        2e-4);
        json_decref(many);
    }
    snprintf(data, sizeof data, "%s", in_folder(&w->at, "all"));
    assert_ok(run_on_ranks(&w->at, "unmasked", common, (settings){ NULL }, 1));
    json_t *other = logged_steps(&w->at, "unmasked");
    assert_true(logged_number(other, 0, "loss") != logged_number(one, 0, "loss"));
    json_decref(other);
    json_decref(one);
}

static void a_file_of_another_version_is_damage(void **state) {
    world *w = *state;
    tokenize_report r;
    data_source *s = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder(&w->at, "one.tok"));
    data_close(tokenize_lines(w, "apart.jsonl", "one.tok", "prompt", DOCUMENT_END_OWN, &r));
    io_mapping file;
    assert_ok(io_map(path, &file));
    size_t n = file.size;
    uint8_t *bytes = malloc(n);
    memcpy(bytes, file.data, n);
    io_unmap(&file);
    /* the version of files without prompts: sizes do not add up any more */
    bytes[8] = 3;
    assert_ok(io_write(path, bytes, n));
    assert_error(data_open(path, 0, &s), "trailer");
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_state_every_prompt),
        cmocka_unit_test(batches_mask_prompts_alone),
        cmocka_unit_test(runs_agree_on_masked_data),
        cmocka_unit_test(a_file_of_another_version_is_damage),
    };
    return cmocka_run_group_tests(tests, make_world, remove_world);
}
