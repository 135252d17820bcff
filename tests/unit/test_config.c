/* config: values, ranges, files, overrides, and printing back. */
#include "support/test.h"

#include "config/config.h"

static int setup(void **state) {
    config *c = mem_alloc(sizeof *c);
    config_init(c);
    *state = c;
    return 0;
}

static int teardown(void **state) {
    config_free(*state);
    free(*state);
    return 0;
}

static err parse(config *c, const char *yaml) { return config_parse(c, yaml, strlen(yaml), "t"); }

static void defaults_are_set(void **state) {
    config *c = *state;
    assert_int_equal(c->training.seq_len, 256);
    assert_int_equal(c->model.layers, CFG_AUTO);
    assert_true(isnan(c->model.rope_theta));
    assert_int_equal(c->model.tie_embeddings, CFG_AUTO);
    assert_int_equal(c->model.norm, CFG_AUTO);
    assert_int_equal(c->optimizer.name, OPTIM_ADAMW);
    assert_string_equal(c->data.train, "");
    assert_int_equal(c->lr_scheduler.decay.unit, CFG_PERCENT);
    assert_string_equal(config_where(c, "training.steps"), "default");
}

static void whole_numbers(void **state) {
    config *c = *state;
    const struct {
        const char *text;
        int64_t value;
    } good[] = { { "7", 7 },         { "+7", 7 },          { "4_096", 4096 },
                 { "1e6", 1000000 }, { "2M", 2000000 },    { "1.5K", 1500 },
                 { "64Ki", 65536 },  { "2.50e2", 250 },    { "9007199254740993", 9007199254740993 },
                 { "0010", 10 },     { "3G", 3000000000 }, { "9223372036854775807", INT64_MAX } };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        assert_ok(config_set(c, "training.seed", good[i].text));
        assert_true(c->training.seed == good[i].value);
    }
    static const char *const bad[] = {
        "",    "x",   "1.5",  "1e-1", "0x10", "1e400", "nan",
        "inf", "1 2", "12px", "_1",   "1_",   "1e",    "9223372036854775808",
        ".",   "-",   "1Mi2", "1e30", "auto", "-1"
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_error(config_set(c, "training.seed", bad[i]), "expected a whole number");
    assert_true(c->training.seed == INT64_MAX); /* untouched by all that failed */
}

static void reals(void **state) {
    config *c = *state;
    assert_ok(config_set(c, "optimizer.lr", "3e-4"));
    assert_true(c->optimizer.lr == 3e-4);
    assert_ok(config_set(c, "optimizer.lr", ".5"));
    assert_true(c->optimizer.lr == .5);
    assert_error(config_set(c, "optimizer.lr", "-1"), "from 0 to 1000; got \"-1\"");
    assert_error(config_set(c, "optimizer.lr", "fast"), "expected a number");
    assert_error(config_set(c, "optimizer.lr", "nan"), "expected a number");
    assert_ok(config_set(c, "model.rope_theta", "500_000"));
    assert_true(c->model.rope_theta == 500000);
    assert_ok(config_set(c, "model.rope_theta", "auto"));
    assert_true(isnan(c->model.rope_theta));
}

static void ranges(void **state) {
    config *c = *state;
    assert_ok(config_set(c, "model.layers", "1024"));
    assert_error(config_set(c, "model.layers", "1025"), "from 1 to 1024, or auto; got \"1025\"");
    assert_error(config_set(c, "model.layers", "0"), "from 1 to 1024");
    /* -1 is how auto is kept, not how it is written. */
    assert_error(config_set(c, "model.layers", "-1"), "from 1 to 1024");
    assert_error(config_set(c, "training.seq_len", "auto"), "got \"auto\"");
}

static void switches_and_choices(void **state) {
    config *c = *state;
    assert_ok(config_set(c, "data.shuffle", "no"));
    assert_false(c->data.shuffle);
    assert_ok(config_set(c, "model.bias", "true"));
    assert_int_equal(c->model.bias, 1);
    assert_ok(config_set(c, "model.bias", "auto"));
    assert_int_equal(c->model.bias, CFG_AUTO);
    assert_error(config_set(c, "data.shuffle", "auto"), "expected true or false");
    assert_error(config_set(c, "data.shuffle", "maybe"), "got \"maybe\"");
    assert_ok(config_set(c, "optimizer.name", "muon"));
    assert_int_equal(c->optimizer.name, OPTIM_MUON);
    assert_string_equal(config_choice("optimizer.name", OPTIM_LION), "lion");
    assert_string_equal(config_choice("model.norm", CFG_AUTO), "auto");
    err e = config_set(c, "optimizer.name", "adafctor");
    assert_string_equal(err_remedy(e), "\"adafactor\"");
    err_free(e);
}

static void amounts(void **state) {
    config *c = *state;
    const struct {
        const char *text;
        double value;
        cfg_unit unit;
    } good[] = { { "1000", 1000, CFG_STEPS },        { "1e3 steps", 1000, CFG_STEPS },
                 { "2e9 tokens", 2e9, CFG_TOKENS },  { "300M tokens", 3e8, CFG_TOKENS },
                 { "1.5 epochs", 1.5, CFG_EPOCHS },  { "1.5epochs", 1.5, CFG_EPOCHS },
                 { "1 epoch", 1, CFG_EPOCHS },       { "10%", 10, CFG_PERCENT },
                 { "2.5 %", 2.5, CFG_PERCENT },      { "0", 0, CFG_STEPS },
                 { "30m", 1800, CFG_SECONDS },       { "1h", 3600, CFG_SECONDS },
                 { "1.5 hours", 5400, CFG_SECONDS }, { "90 s", 90, CFG_SECONDS },
                 { "2 days", 172800, CFG_SECONDS },  { "0.5s", 0.5, CFG_SECONDS } };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        assert_ok(config_set(c, "validation.every", good[i].text));
        assert_true(c->validation.every.value == good[i].value);
        assert_int_equal(c->validation.every.unit, good[i].unit);
    }
    static const char *const bad[] = { "", "tokens", "-5", "101%", "1.5", "0.1 tokens", "3 weeks" };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_error(config_set(c, "validation.every", bad[i]), "expected steps, tokens");
    assert_error(config_set(c, "training.steps", "10%"),
                 "expected steps, tokens, epochs or a time");
    assert_ok(config_set(c, "training.steps", "1h"));
    assert_true(c->training.steps.value == 3600 && c->training.steps.unit == CFG_SECONDS);
    assert_error(config_set(c, "lr_scheduler.length", "1h"), "expected steps, tokens");
    assert_error(config_set(c, "lr_scheduler.warmup", "1h"), "expected steps, tokens");
}

/* A printed interval reads back as the same one. */
static void times_are_printed_in_their_largest_unit(void **state) {
    static const char *const texts[][2] = { { "3600 s", "1h" },   { "90m", "90m" }, { "48h", "2d" },
                                            { "0.5s", "0.5s" },   { "90s", "90s" }, { "0s", "0s" },
                                            { "1.5 days", "36h" } };
    config *c = *state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        str out = { 0 };
        assert_ok(config_set(c, "checkpoint.every", texts[i][0]));
        for (int k = 0; k < config_option_count(); k++)
            if (!strcmp(config_option_name(k), "checkpoint.every")) config_option_text(c, k, &out);
        assert_string_equal(out.text, texts[i][1]);
        str_free(&out);
    }
}

static void check_length(const char *text, cfg_scale s, double value, cfg_unit unit) {
    config c;
    cfg_amount got;
    config_init(&c);
    assert_ok(config_set(&c, "validation.every", text));
    assert_ok(cfg_amount_resolve(c.validation.every, &s, "validation.every", &got));
    assert_true(got.value == value && got.unit == unit);
    config_free(&c);
}

static void lengths_become_steps_or_tokens(void **state) {
    cfg_scale s = { .run = { 100, CFG_STEPS }, .tokens_per_epoch = 2500 };
    check_length("42", s, 42, CFG_STEPS);
    check_length("7%", s, 7, CFG_STEPS);   /* 0.07 * 100 is a little more than 7 */
    check_length("0.5%", s, 1, CFG_STEPS); /* up to a whole step */
    check_length("2001 tokens", s, 2001, CFG_TOKENS);
    check_length("2 epochs", s, 5000, CFG_TOKENS);
    check_length("0", s, 0, CFG_STEPS);
    s.run = (cfg_amount){ 4096, CFG_TOKENS };
    check_length("25%", s, 1024, CFG_TOKENS);
    check_length("42", s, 42, CFG_STEPS);
    cfg_amount got;
    s = (cfg_scale){ 0 };
    assert_error(cfg_amount_resolve((cfg_amount){ 2, CFG_EPOCHS }, &s, "x", &got),
                 "size of the data");
    assert_error(cfg_amount_resolve((cfg_amount){ 2, CFG_PERCENT }, &s, "x", &got),
                 "length of the run");
    assert_ok(cfg_amount_resolve((cfg_amount){ 2, CFG_STEPS }, &s, "x", &got));
}

static void batch_sizes_are_sequences_or_tokens(void **state) {
    config *c = *state;
    assert_true(isnan(c->training.global_batch_size.value));
    assert_ok(config_set(c, "training.global_batch_size", "4M tokens"));
    assert_true(c->training.global_batch_size.value == 4e6);
    assert_int_equal(c->training.global_batch_size.unit, CFG_TOKENS);
    assert_ok(config_set(c, "training.global_batch_size", "512"));
    assert_int_equal(c->training.global_batch_size.unit, CFG_SEQUENCES);
    assert_ok(config_set(c, "training.global_batch_size", "auto"));
    assert_true(isnan(c->training.global_batch_size.value));
    assert_error(config_set(c, "training.local_batch_size", "auto"), "sequences or tokens");
    assert_error(config_set(c, "training.local_batch_size", "8 steps"), "sequences or tokens");
    assert_error(config_set(c, "training.batch_ramp_start", "1.5"), "sequences or tokens");
}

static void yaml_sets_values(void **state) {
    config *c = *state;
    assert_ok(parse(c, "# a comment\n"
                       "training:\n"
                       "  steps: &n 2e9 tokens\n"
                       "  stop: *n\n"
                       "precision: bf16\n"
                       "data: { shuffle: false, train: \"a b.txt\" }\n"
                       "lr_scheduler:\n"
                       "  warmup_steps: 20\n"
                       "checkpoint:\n"
                       "sample:\n"
                       "  prompt: null\n"));
    assert_int_equal(c->training.steps.unit, CFG_TOKENS);
    assert_true(c->training.stop.value == 2e9);
    assert_int_equal(c->precision.dtype, CFG_BF16);
    assert_false(c->data.shuffle);
    assert_string_equal(c->data.train, "a b.txt");
    assert_true(c->lr_scheduler.warmup.value == 20);
    assert_string_equal(c->sample.prompt, "");
    assert_string_equal(config_where(c, "lr_scheduler.warmup"), "t:8");
    assert_string_equal(config_where(c, "training.seed"), "default");
}

static void yaml_errors_name_the_place(void **state) {
    const struct {
        const char *yaml, *message;
    } bad[] = {
        { "training:\n  stepz: 1\n", "t:2: unknown key \"stepz\" in section \"training\"" },
        { "trainin:\n  steps: 1\n", "t:1: unknown section \"trainin\"" },
        { "training:\n  seq_len: many\n", "t:2: training.seq_len: expected a whole number" },
        { "training:\n  seq_len: [1, 2]\n", "got a list" },
        { "training:\n  seq_len: { a: 1 }\n", "got a section" },
        { "training:\n  seq_len:\n", "got nothing" },
        { "training:\n  seed: 1\n  seed: 2\n", "t:3: training.seed is set twice; first on line 2" },
        { "lr_scheduler:\n  warmup: 1\n  warmup_steps: 2\n", "lr_scheduler.warmup is set twice" },
        { "training:\n  seed: 1\ntraining:\n", "t:3: section \"training\" is set twice" },
        { "training: 5\n", "t:1: section \"training\": expected keys" },
        { "- a\n- b\n", "t:1: expected sections such as" },
        { "training:\n\tseed: 1\n", "t:2:1: not valid YAML" },
        { "a: 'b\n", "not valid YAML" },
        { "run:\n  name: \"a\\0b\"\n", "text with a NUL" },
        { "run:\n  name: \xff\n", "not UTF-8" },
        { "run:\n  name: a\n---\nrun:\n  name: b\n", "t:4: a second YAML document" },
        { "[x]: 1\n", "t:1: expected the name of a section; got a list" },
        { "model:\n  <<: *a\n", "undefined alias" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        config c;
        config_init(&c);
        assert_error(parse(&c, bad[i].yaml), bad[i].message);
        config_free(&c);
    }
}

/* The remedy must name `option`. */
static void assert_suggests(config *c, const char *yaml, const char *option) {
    err e = parse(c, yaml);
    assert_non_null(e);
    if (!strstr(err_remedy(e), option)) fail_msg("no %s in %s", option, err_remedy(e));
    err_free(e);
}

static void suggestions(void **state) {
    config *c = *state;
    assert_suggests(c, "training:\n  setps: 1\n", "\"training.steps\"");
    assert_suggests(c, "training:\n  weight_decay: 1\n", "\"optimizer.weight_decay\"");
    assert_suggests(c, "optimiser:\n  lr: 1\n", "\"optimizer\"");
    assert_suggests(c, "steps: 1\n", "\"training.steps\"");
    err e = config_set(c, "trainng.sed", "1");
    assert_non_null(strstr(err_remedy(e), "\"training.seed\""));
    err_free(e);
}

/* Texts of every kind, arriving from a mutated file, must give an error or a config, no crash. */
static void yaml_fuzz(void **state) {
    str base = { 0 };
    config_print(*state, &base);
    rng_key key = rng_key_of(1, 2);
    uint64_t draw = 0;
    for (int round = 0; round < 300; round++) {
        char *text = mem_alloc(base.len + 1);
        memcpy(text, base.text, base.len);
        for (int i = 0; i < 1 + round % 5; i++) {
            uint64_t at = rng_below(key, draw++, base.len);
            text[at] = (char)rng_u32(key, draw++);
        }
        config c;
        config_init(&c);
        err_free(config_parse(&c, text, rng_below(key, draw++, base.len), "fuzz"));
        config_free(&c);
        free(text);
    }
    str_free(&base);
}

static err from_args(config *c, char **argv) {
    int argc = 0;
    while (argv[argc]) argc++;
    return config_from_args(c, argc, argv, NULL, 0);
}
#define ARGS(...) ((char *[]){ "train", __VA_ARGS__, NULL })

static void overrides(void **state) {
    config *c = *state;
    assert_ok(from_args(c, ARGS("--training.steps=5", "--training.seed", "9", "--precision", "bf16",
                                "--data.shuffle", "no", "--training.noise_scale",
                                "--optimizer=lion", "--lr_scheduler.warmup_steps=3",
                                "--sample.every=5", "--sample.prompt", "--dashes", "--run.name=")));
    assert_true(c->training.steps.value == 5);
    assert_int_equal(c->training.seed, 9);
    assert_int_equal(c->precision.dtype, CFG_BF16);
    assert_false(c->data.shuffle);
    assert_true(c->training.noise_scale);
    assert_int_equal(c->optimizer.name, OPTIM_LION);
    assert_true(c->lr_scheduler.warmup.value == 3);
    assert_string_equal(c->sample.prompt, "--dashes");
    assert_string_equal(c->run.name, "");
    assert_string_equal(config_where(c, "training.steps"), "command line");
    assert_error(from_args(c, ARGS("--training.stepz=5")), "--training.stepz: unknown option");
    assert_error(from_args(c, ARGS("--training.steps")), "end of the command line");
    assert_error(from_args(c, ARGS("--training=5")), "--training: unknown option");
    assert_error(from_args(c, ARGS("-x")), "-x: unknown option");
    assert_error(from_args(c, ARGS("/nonexistent/a.yaml")), "cannot open /nonexistent/a.yaml");
    assert_error(from_args(c, ARGS("--precision=half")), "--precision: expected fp32");
    assert_error(from_args(c, ARGS("--run.name=\xff")), "expected UTF-8 text");
}

static void file_then_overrides(void **state) {
    config *c = *state;
    char path[] = "/tmp/ingot_config_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs("training:\n  seed: 1\n  seq_len: 64\n", f);
    fclose(f);
    bool dry = false;
    const char *from = NULL;
    const config_flag flags[] = { { "--dry", &dry, NULL }, { "--from", NULL, &from } };
    char *argv[] = { "train", "--training.seed=2", path, "--dry", "--from", "here", NULL };
    assert_ok(config_from_args(c, 6, argv, flags, 2));
    assert_int_equal(c->training.seed, 2);
    assert_int_equal(c->training.seq_len, 64);
    assert_true(dry);
    assert_string_equal(from, "here");
    assert_error(from_args(c, ARGS(path, path)), "expected one config file");
    remove(path);
    assert_error(config_load(c, "/"), "cannot read /");
}

/* Prints, reads back, prints again. */
static void assert_round_trip(config *c) {
    str once = { 0 }, twice = { 0 };
    config again;
    config_print(c, &once);
    config_init(&again);
    assert_ok(config_parse(&again, once.text, once.len, "printed"));
    config_print(&again, &twice);
    assert_string_equal(once.text, twice.text);
    assert_string_equal(c->sample.prompt, again.sample.prompt);
    assert_true(c->optimizer.lr == again.optimizer.lr);
    assert_true(c->validation.every.value == again.validation.every.value);
    assert_true(c->training.seed == again.training.seed);
    str_free(&once);
    str_free(&twice);
    config_free(&again);
}

static void print_round_trip(void **state) {
    config *c = *state;
    assert_round_trip(c);
    static const char *const prompts[] = {
        " lead",           "# no comment",           "a: b",
        "\"q\" \\ 'x'",    "two\nlines\ttab",        "null",
        "\x01\x7f",        "h\xc3\xa9 \xe4\xbd\xa0", "\xc2\x85 \xe2\x80\xa8 \xef\xbb\xbf",
        "\xf0\x9f\x98\x80"
    };
    assert_ok(config_set(c, "optimizer.lr", "0.1234567890123456789"));
    assert_ok(config_set(c, "training.seed", "9223372036854775807"));
    assert_ok(config_set(c, "validation.every", "7.1%"));
    assert_ok(config_set(c, "training.steps", "123_456_789_012 tokens"));
    assert_ok(config_set(c, "checkpoint.every", "0.1 epochs"));
    assert_ok(config_set(c, "sample.every",
                         "5")); /* without it the prompt has no effect, and is not printed */
    for (size_t i = 0; i < COUNT_OF(prompts); i++) {
        assert_ok(config_set(c, "sample.prompt", prompts[i]));
        assert_round_trip(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(defaults_are_set),
        T(whole_numbers),
        T(reals),
        T(ranges),
        T(switches_and_choices),
        T(amounts),
        T(times_are_printed_in_their_largest_unit),
        T(lengths_become_steps_or_tokens),
        T(batch_sizes_are_sequences_or_tokens),
        T(yaml_sets_values),
        T(yaml_errors_name_the_place),
        T(suggestions),
        T(yaml_fuzz),
        T(overrides),
        T(file_then_overrides),
        T(print_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
