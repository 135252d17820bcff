/* Decontamination: planted texts at the beginning, middle and end, with edits; what is removed, what is
 * left alone, what is reported about it. */
#include "support/folder.h"

#include <signal.h>
#include <sys/wait.h>

#include "curate/decontaminate_internal.h"

#define QUESTION                                                                                   \
    "A farmer has 17 sheep, 4 goats and a dog; how many legs do all of his animals have together " \
    "when three sheep are away?"
enum { QUESTION_GRAMS = 13 }; /* it has 25 words */
static const char reference[] =
    "{\"id\":7,\"question\":\"" QUESTION "\",\"answer\":\"Eighty\"}\n"
    "\n"
    "{\"question\":\"Which of these nine planets has the most moons?\",\"choices\":[\"Mars\",\"one "
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen\"]}\n";

typedef struct result {
    decontaminate_summary summary;
    int64_t kept, edited, dropped[2];
    char *text; /* of all that is left: owned */
} result;

static void result_free(result *r) { free(r->text); }

static err run_with(test_folder *p, const decontaminate_options *with, const char *from,
                    const char *to, result *out) {
    decontaminate_options o = *with;
    o.pass.work = arena_printf(p->names, "%s/%s.work", p->path, to);
    o.pass.quiet = true;
    if (!o.pass.threads) o.pass.threads = 2;
    const char *path = in_folder(p, from);
    text_inputs *inputs = NULL;
    decontaminate *d = NULL;
    text_transform_report r = { 0 };
    const char *file = arena_printf(p->names, "%s/%s.jsonl", p->path, to);
    TRY(text_inputs_open(&path, 1, &(text_input_options){ .segment_bytes = 4000 }, &inputs));
    err e = decontaminate_find_matches(&o, inputs, &d);
    if (!e) {
        text_transform s = decontaminate_transform(d);
        e = text_transform_run(
            &s, inputs,
            &(text_transform_options){ .out = file, .threads = o.pass.threads, .quiet = true }, &r);
    }
    if (!e) e = decontaminate_finish(d);
    if (!e && out) {
        *out = (result){
            *decontaminate_get_summary(d), r.kept, r.edited, { r.dropped[0], r.dropped[1] }, NULL
        };
        assert_ok(io_read(file, 1 << 24, &out->text, NULL));
    }
    text_transform_report_free(&r);
    decontaminate_free(d);
    text_inputs_close(inputs);
    return e;
}

/* `words` words that no reference has. */
static void add_filler(str *out, int words, int seed) {
    for (int i = 0; i < words; i++) str_add(out, "f%dx%d ", seed, i);
}

static void put_document(test_folder *p, const char *name, const char *text) {
    str line = { 0 };
    str_add(&line, "{\"id\":\"d\",\"text\":");
    text_json_string(text, strlen(text), &line);
    str_add(&line, "}\n");
    folder_write(p, name, line.text);
    str_free(&line);
}

/* A document of `before` words of filler, the planted text, and `after` words. */
static void put_planted(test_folder *p, const char *planted, int before, int after) {
    str text = { 0 };
    add_filler(&text, before, 1);
    str_add(&text, "%s ", planted);
    add_filler(&text, after, 2);
    put_document(p, "in.jsonl", text.text);
    str_free(&text);
}

static decontaminate_options against(test_folder *p, const char *name) {
    decontaminate_options o = decontaminate_defaults();
    o.against = in_folder(p, name);
    return o;
}

/* ---- finding ------------------------------------------------------------------------------- */

typedef struct plant {
    const char *text;
    int found; /* n-grams, of 13 words */
} plant;
static const plant plants[] = {
    { QUESTION, QUESTION_GRAMS },
    { "a FARMER has... 17 sheep -- 4 goats, and a dog!! How many legs do all of his animals have "
      "together, when three sheep are away",
      QUESTION_GRAMS },
    /* An edit within: one side or the other must have 13 words in a row. */
    { "A farmer has 17 sheep, 4 goats and a dog; how many arms do all of his animals have together "
      "when three sheep are away?",
      0 },
    { "A farmer has 17 sheep, 4 goats and a cat; how many legs do all of his animals have together "
      "when three sheep are away?",
      3 },
    { "A farmer has 18 sheep, 4 goats and a dog; how many legs do all of his animals have together "
      "when three sheep are away?",
      9 },
    { "A farmer has 17 sheep, 4 goats and a dog; how many legs do all of his animals have together "
      "when three sheep are gone?",
      12 },
    { "A farmer has 17 sheep, 4 goats and a dog; how many legs do all of his animals all have "
      "together when three sheep are away?",
      6 },
    { "Which of these nine planets has the most moons?", 1 }, /* short: whole */
    { "which of these nine planets has the most", 0 },
    { "Which of these nine planets has most moons?", 0 },
    { "one two three four five six seven eight nine ten eleven twelve thirteen fourteen", 2 },
    { "Mars", 0 },
};

static void plants_are_found_anywhere(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    static const int places[][2] = { { 0, 200 }, { 100, 100 }, { 200, 0 }, { 0, 0 } };
    for (size_t i = 0; i < COUNT_OF(plants); i++)
        for (size_t k = 0; k < COUNT_OF(places); k++) {
            result r;
            put_planted(p, plants[i].text, places[k][0], places[k][1]);
            assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
            if (r.summary.found != plants[i].found)
                fail_msg("plant %zu, place %zu: %lld n-grams found", i, k,
                         (long long)r.summary.found);
            assert_int_equal(r.summary.documents, plants[i].found > 0);
            bool gone = strstr(r.text, "sheep") == NULL && strstr(r.text, "planets") == NULL &&
                        strstr(r.text, "fourteen") == NULL && strstr(r.text, "Mars") == NULL;
            assert_int_equal(gone, plants[i].found > 0);
            result_free(&r);
        }
}

static void digits_and_letters_count(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl",
                 "{\"q\":\"what is 12 plus 13 plus 14 minus 15 in caf\xC3\xA9\"}\n");
    decontaminate_options o = against(p, "ref.jsonl");
    result r;
    put_planted(p, "What is 12 plus 13 plus 14 minus 15 in cafe\xCC\x81?", 50, 50);
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_int_equal(r.summary.found, 1);
    result_free(&r);
    put_planted(p, "What is 12 plus 13 plus 14 minus 16 in cafe?", 50, 50);
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_int_equal(r.summary.found, 0);
    result_free(&r);
}

/* ---- removing ------------------------------------------------------------------------------ */

static void cuts_the_match_and_the_margin(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    o.margin = 3;
    o.piece = 4;
    result r;
    /* Characters, not bytes: the margin is 3 of two bytes each. */
    put_document(
        p, "in.jsonl",
        "abcdef\xC3\xA9\xC3\xA9 which of these nine planets has the most moons \xC3\xA9\xC3\xA9ghij");
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_string_equal(r.text, "{\"id\":\"d\",\"text\":\"abcdef\\n\\nghij\"}\n");
    assert_int_equal(r.edited, 1);
    result_free(&r);
    o.piece = 5; /* "ghij" is too short */
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_string_equal(r.text, "{\"id\":\"d\",\"text\":\"abcdef\"}\n");
    result_free(&r);
    o.piece = 7;
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_string_equal(r.text, "");
    assert_int_equal(r.dropped[0], 1);
    result_free(&r);
}

/* A document of white space only would be dropped by whoever reads it. */
static void blank_pieces_are_too_short(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    o.margin = 0;
    o.piece = 0;
    result r;
    put_document(p, "in.jsonl", "   which of these nine planets has the most moons   ");
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_string_equal(r.text, "");
    assert_int_equal(r.dropped[0], 1);
    result_free(&r);
}

static void many_pieces_drop_the_document(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    for (int plants_in = 9; plants_in <= 10; plants_in++) { /* 10 pieces, then 11 */
        str text = { 0 };
        result r;
        for (int i = 0; i < plants_in; i++) {
            add_filler(&text, 150, i);
            str_add(&text, QUESTION " ");
        }
        add_filler(&text, 150, 99);
        put_document(p, "in.jsonl", text.text);
        assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
        assert_int_equal(r.kept, plants_in == 9);
        assert_int_equal(r.dropped[1], plants_in == 10);
        str_free(&text);
        result_free(&r);
    }
}

/* ---- what is common ------------------------------------------------------------------------ */

static void put_repeated(test_folder *p, int documents) {
    str all = { 0 };
    for (int i = 0; i < documents; i++) {
        str_add(&all, "{\"text\":\"");
        add_filler(&all, 80, i);
        str_add(&all,
                "which of these nine planets has the most moons. Which of these nine planets "
                "has the most moons? %s ",
                i == 0 ? QUESTION : "");
        add_filler(&all, 80, 1000 + i);
        str_add(&all, "\"}\n");
    }
    folder_write(p, "in.jsonl", all.text);
    str_free(&all);
}

/* A question that was copied many times is removed from all copies. */
static void questions_in_many_documents_are_removed(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    result r;
    for (int documents = 10; documents <= 40; documents += 15) {
        put_repeated(p, documents);
        assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
        assert_int_equal(r.summary.common, 0);
        assert_int_equal(r.summary.found, QUESTION_GRAMS + 1);
        assert_int_equal(r.edited, documents);
        assert_null(strstr(r.text, "planets"));
        assert_null(strstr(r.text, "sheep"));
        result_free(&r);
    }
}

#define INSTRUCTION                                                                                \
    "Read the following question with care and answer it with one of the four options below."
/* Documents with the first words of a question, and in the last one all of it. */
static void put_instructions(test_folder *p, int documents) {
    str all = { 0 };
    for (int i = 0; i < documents; i++) {
        str_add(&all, "{\"text\":\"");
        add_filler(&all, 80, i);
        str_add(&all, INSTRUCTION " %s ", i == documents - 1 ? QUESTION : "");
        add_filler(&all, 80, 1000 + i);
        str_add(&all, "\"}\n");
    }
    folder_write(p, "in.jsonl", all.text);
    str_free(&all);
}

/* Text that precedes the questions of many evaluations is not evidence, unless a question follows it. */
static void common_ngrams_are_left_alone(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", "{\"q\":\"" INSTRUCTION " " QUESTION "\"}\n");
    decontaminate_options o = against(p, "ref.jsonl");
    result r;
    for (int documents = 10; documents <= 11; documents++) {
        put_instructions(p, documents);
        assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
        bool common = documents > 10;
        assert_int_equal(r.edited, common ? 1 : documents);
        assert_int_equal(r.summary.documents, r.edited);
        assert_int_equal(r.summary.ignored, documents - r.edited);
        assert_int_equal(strstr(r.text, "four options") != NULL, common);
        assert_null(strstr(r.text, "sheep"));
        result_free(&r);
    }
    o.common = 0;
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_int_equal(r.edited, 11);
    result_free(&r);
}

/* ---- short references ---------------------------------------------------------------------- */

/* A text of few words is found as a sentence or line, not inside of one; a shorter one is counted. */
static void short_references_match_as_sentences(void **state) {
    test_folder *p = *state;
    static const struct {
        const char *text;
        bool found;
    } cases[] = {
        { "Who wrote Hamlet?", true },
        { "Q: Who wrote Hamlet? A: Shakespeare", true },
        { "quiz:\n- who wrote hamlet\n- next", true },
        { "he said (Who wrote, Hamlet) to us", true },
        { "Tell me who wrote Hamlet?", false },
        { "Who wrote Hamlet first?", false },
        { "Who wrote Macbeth?", false },
        { "the man who wrote Hamlet lived in England", false },
        { "Was it he?\nIt was seven words long indeed.", true },
    };
    folder_write(p, "ref.jsonl",
                 "{\"q\":\"Who wrote Hamlet?\",\"a\":\"Shakespeare\"}\n"
                 "{\"q\":\"It was seven words long, indeed!\",\"a\":[\"no one\",\"\"]}\n");
    decontaminate_options o = against(p, "ref.jsonl");
    o.margin = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        result r;
        str text = { 0 };
        add_filler(&text, 60, 1);
        str_add(&text, ".\n%s\n", cases[i].text);
        add_filler(&text, 60, 2);
        put_document(p, "in.jsonl", text.text);
        assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
        if ((r.summary.documents == 1) != cases[i].found) fail_msg("%s", cases[i].text);
        assert_int_equal(r.edited, cases[i].found);
        assert_int_equal(r.summary.unsearched, 2);
        result_free(&r);
        str_free(&text);
    }
    o.sentence = 0;
    put_document(p, "in.jsonl", "Who wrote Hamlet?");
    assert_error(run_with(p, &o, "in.jsonl", "out", NULL), "of at least 8 words");
}

/* A short sentence in many documents may be anybody's: it stays, is counted and listed. */
static void short_references_in_many_documents_are_left(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", "{\"q\":\"He went home.\"}\n");
    decontaminate_options o = against(p, "ref.jsonl");
    for (int documents = 10; documents <= 11; documents++) {
        str all = { 0 };
        result r;
        for (int i = 0; i < documents; i++) {
            str_add(&all, "{\"text\":\"");
            add_filler(&all, 80, i);
            str_add(&all, ". He went home. ");
            add_filler(&all, 80, 1000 + i);
            str_add(&all, "\"}\n");
        }
        folder_write(p, "in.jsonl", all.text);
        assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
        assert_int_equal(r.edited, documents > 10 ? 0 : documents);
        assert_int_equal(r.summary.ignored, documents > 10 ? documents : 0);
        result_free(&r);
        str_free(&all);
    }
}

/* ---- what is reported --------------------------------------------------------------------- */

static void report_names_each_match(void **state) {
    test_folder *p = *state;
    str references = { 0 };
    str_add(&references, "%s{\"q\":\"it was me\"}\n", reference);
    folder_write(p, "ref.jsonl", references.text);
    str_free(&references);
    decontaminate_options o = against(p, "ref.jsonl");
    o.pass.report = in_folder(p, "report");
    o.common = 1;
    result r;
    folder_write(p, "in.jsonl",
                 "{\"id\":\"a\",\"text\":\"clean\"}\n"
                 "{\"id\":\"b\",\"text\":\"So: " QUESTION "\",\"source\":\"web\"}\n"
                 "{\"id\":\"c\",\"text\":\"It was me.\"}\n"
                 "{\"id\":\"e\",\"text\":\"it was me\"}\n");
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    char *report = folder_read(p, "report");
    const char *file = in_folder(p, "in.jsonl"), *ref = in_folder(p, "ref.jsonl");
    const char *text = QUESTION;
    const char *expected = arena_printf(
        p->names,
        "{\"document\":1,\"file\":\"%s\",\"id\":\"b\",\"source\":\"web\",\"begin\":4,\"end\":%d,"
        "\"ngrams\":%d,\"reference\":\"%s\",\"line\":1,\"member\":\"question\",\"text\":\"%.*s\"}\n"
        "{\"common\":\"it was me\",\"documents\":2,"
        "\"reference\":\"%s\",\"line\":4,\"member\":\"q\"}\n",
        file, (int)strlen(text) + 3, QUESTION_GRAMS, ref, (int)strlen(text) - 1, text, ref);
    assert_string_equal(report, expected);
    free(report);
    result_free(&r);
}

static void silent_references_are_counted(void **state) {
    test_folder *p = *state;
    assert_ok(io_make_dirs(in_folder(p, "refs")));
    folder_write(p, "refs/a.jsonl", reference);
    folder_write(p, "refs/b.jsonl",
                 "{\"q\":\"words that occur in none of the documents at all\"}\n");
    folder_write(p, "refs/c.jsonl", reference); /* the same again: found as well */
    folder_write(p, "refs/notes.txt", "not a reference");
    decontaminate_options o = against(p, "refs");
    result r;
    put_planted(p, QUESTION, 10, 10);
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_int_equal(r.summary.references, 3);
    assert_int_equal(r.summary.silent, 1);
    result_free(&r);
}

static void fields_are_chosen(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    decontaminate_options o = against(p, "ref.jsonl");
    o.fields = "answer,choices";
    result r;
    put_planted(p, QUESTION, 10, 10);
    assert_ok(run_with(p, &o, "in.jsonl", "out", &r));
    assert_int_equal(r.summary.found, 0);
    assert_int_equal(r.summary.grams, 2);
    result_free(&r);
    o.fields = "quest";
    assert_error(run_with(p, &o, "in.jsonl", "out", &r), "no member of --fields");
}

static void bad_references_are_errors(void **state) {
    test_folder *p = *state;
    put_planted(p, "x", 10, 10);
    static const struct {
        const char *text, *error;
    } bad[] = {
        { "", "no string of at least 3 words" },
        { "\n\n", "no string of at least 3 words" },
        { "{\"q\":\"too short\"}\n", "no string of at least 3 words" },
        { "{\"q\":\"fine\"}\n{\"q\": broken}\n", "ref.jsonl:2:" },
        { "\x1f\x8b\x08", "compressed" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        folder_write(p, "ref.jsonl", bad[i].text);
        decontaminate_options o = against(p, "ref.jsonl");
        assert_error(run_with(p, &o, "in.jsonl", "out", NULL), bad[i].error);
    }
    decontaminate_options o = against(p, "nowhere.jsonl");
    assert_error(run_with(p, &o, "in.jsonl", "out", NULL), "nowhere.jsonl");
    folder_write(p, "ref.jsonl", reference);
    o = against(p, "ref.jsonl");
    o.pass.memory = 1000;
    assert_error(run_with(p, &o, "in.jsonl", "out", NULL), "do not fit");
}

/* Bits flipped in a reference: an error or another reference, never a crash. */
static void damaged_references_do_no_harm(void **state) {
    test_folder *p = *state;
    char text[sizeof reference];
    put_planted(p, QUESTION, 10, 10);
    for (uint64_t i = 0; i < 40; i++) {
        memcpy(text, reference, sizeof text);
        size_t at = rng_below(rng_key_of(1, 1), i, sizeof text - 1);
        text[at] ^= (char)(1 << i % 8);
        assert_ok(io_write(in_folder(p, "ref.jsonl"), text, i % 2 ? at : sizeof text - 1));
        refs *r = NULL;
        err e = refs_read(in_folder(p, "ref.jsonl"), NULL, (ref_lengths){ 13, 8, 3 }, 1 << 20, &r);
        assert_true(!e == (r != NULL));
        err_free(e);
        refs_free(r);
    }
}

/* ---- the same bytes ------------------------------------------------------------------------ */

static void put_many(test_folder *p, int n) {
    str all = { 0 };
    for (int i = 0; i < n; i++) {
        str_add(&all, "{\"id\":\"%d\",\"text\":\"", i);
        add_filler(&all, 60 + i % 40, i);
        if (i % 7 == 0)
            str_add(&all,
                    i % 2 ? QUESTION " " : "Which of these nine planets has the most moons? ");
        add_filler(&all, 60, -i);
        str_add(&all, "\"}\n");
    }
    folder_write(p, "in.jsonl", all.text);
    str_free(&all);
}

static void threads_and_kills_change_nothing(void **state) {
    test_folder *p = *state;
    folder_write(p, "ref.jsonl", reference);
    put_many(p, 150);
    decontaminate_options o = against(p, "ref.jsonl");
    o.pass.report = in_folder(p, "report.one");
    o.pass.threads = 1;
    assert_ok(run_with(p, &o, "in.jsonl", "one", NULL));
    o.pass.report = in_folder(p, "report.four");
    o.pass.threads = 4;
    assert_ok(run_with(p, &o, "in.jsonl", "four", NULL));
    assert_same_files(p, "one.jsonl", "four.jsonl");
    assert_same_files(p, "report.one", "report.four");
    o.pass.report = in_folder(p, "report.killed");
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            err e = run_with(p, &o, "in.jsonl", "killed", NULL);
            _exit(e ? 1 : 0);
        }
        usleep((useconds_t)rng_below(rng_key_of(2, 2), (uint64_t)i, 20000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    assert_ok(run_with(p, &o, "in.jsonl", "killed", NULL));
    assert_same_files(p, "one.jsonl", "killed.jsonl");
    assert_same_files(p, "report.one", "report.killed");
    assert_false(io_exists(in_folder(p, "killed.work")));
}

/* ---- files others made ----------------------------------------------------------------------- */

static void published_plants_are_found(void **state) {
    static const struct {
        const char *name;
        int documents;
    } files[] = { { "clean", 0 },
                  { "contaminated_at_beginning", 1 },
                  { "contaminated_middle_position", 1 },
                  { "contaminated_at_end", 1 },
                  { "contaminated_multiple_in_one", 1 },
                  { "contaminated_punctuation_variation", 1 },
                  { "contaminated_single_edit", 1 },
                  { "contaminated_single_deletion", 1 },
                  { "contaminated_single_insertion", 1 },
                  { "long_document", 1 } };
    test_folder *p = *state;
    const char *shared = getenv("INGOT_SHARED_DATA");
    if (!shared) skip();
    in_folder(p, "in.jsonl"); /* makes the arena of names */
    const char *folder = arena_printf(p->names, "%s/decontam/decon-fixtures", shared);
    decontaminate_options o = decontaminate_defaults();
    o.against = arena_printf(p->names, "%s/reference_question_answer_reference.jsonl", folder);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char *text = NULL;
        size_t len = 0;
        result r;
        assert_ok(io_read(arena_printf(p->names, "%s/training_%s.jsonl", folder, files[i].name),
                          1 << 20, &text, &len));
        folder_write(p, "in.jsonl", text);
        free(text);
        assert_ok(run_with(p, &o, "in.jsonl", files[i].name, &r));
        assert_int_equal(r.summary.documents, files[i].documents);
        assert_int_equal(strstr(r.text, "Paris") != NULL, 0);
        result_free(&r);
    }
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void) {
    log_set_level(LOG_ERROR); /* warnings are counted, not read */
    const struct CMUnitTest tests[] = {
        IN_PLACE(plants_are_found_anywhere),
        IN_PLACE(digits_and_letters_count),
        IN_PLACE(cuts_the_match_and_the_margin),
        IN_PLACE(blank_pieces_are_too_short),
        IN_PLACE(many_pieces_drop_the_document),
        IN_PLACE(questions_in_many_documents_are_removed),
        IN_PLACE(common_ngrams_are_left_alone),
        IN_PLACE(report_names_each_match),
        IN_PLACE(short_references_match_as_sentences),
        IN_PLACE(short_references_in_many_documents_are_left),
        IN_PLACE(silent_references_are_counted),
        IN_PLACE(fields_are_chosen),
        IN_PLACE(bad_references_are_errors),
        IN_PLACE(damaged_references_do_no_harm),
        IN_PLACE(threads_and_kills_change_nothing),
        IN_PLACE(published_plants_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
