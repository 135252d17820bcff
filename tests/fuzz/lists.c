/* Any bytes as a file that a transform reads beside its documents. The first byte chooses the kind:
 *
 *     0  rules of words   1  a list of words and phrases   2  references of decontamination   3  state.json of an input
 *     4  documents compressed with Brotli, which has no magic number: its name alone says so */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <unistd.h>

#include "curate/decontaminate_internal.h"
#include "curate/word_rules.h"

enum { RULES, PHRASES, REFERENCES, STATE, BROTLI, KINDS };
static const char probe[] =
    "One, two and three \xE2\x80\x94 don't count \xE4\xB8\xAD\xE6\x96\x87 twice.";
static const text_span text = { probe, sizeof probe - 1 };

static err split_by_rules(const char *path) {
    word_rules *w = NULL;
    TRY(word_rules_read(path, &w));
    word_scratch *s = word_scratch_new();
    for (size_t at = 0, end; at < text.len; at = end + 1) {
        size_t words;
        for (end = at; end < text.len && probe[end] != ' ';) end++;
        word_rules_split(w, s, probe + at, end - at, &words);
    }
    if (word_rules_have_sentences(w)) word_rules_sentences(w, s, probe, text.len);
    word_scratch_free(s);
    word_rules_free(w);
    return OK;
}

static err count_phrases(const char *path) {
    phrase_list *l = NULL;
    TRY(phrase_list_read(path, &l));
    phrase_list_count(l, text);
    phrase_list_free(l);
    return OK;
}

static err find_references(const char *path) {
    ref_hits hits = { 0 };
    refs *r = NULL;
    TRY(refs_read(path, NULL, (ref_lengths){ 4, 3, 2 }, 1 << 24, &r));
    refs_find_in_text(r, text, &hits);
    free(hits.at);
    refs_free(r);
    return OK;
}

static err see_documents(void *ctx, int worker, const text_block *b, void *result) { return OK; }
static err count_block(void *ctx, const text_block *b, void *result) { return OK; }

static err read_documents(const char *path) {
    static const text_pipeline flow = { NULL, 1, see_documents, count_block, NULL };
    text_inputs *in = NULL;
    text_counts counts = { 0 };
    TRY(text_inputs_open(&path, 1, &(text_input_options){ .document_bytes = 4096 }, &in));
    err e = OK;
    for (int i = 0; i < text_segments(in) && !e; i++)
        e = text_pipeline_run(in, i, &flow, 1, &counts);
    text_inputs_close(in);
    return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const names[KINDS] = { "rules.json", "list.txt", "refs.jsonl", "state.json",
                                              "a.jsonl.br" };
    if (n < 1) return 0;
    log_set_level(LOG_ERROR);
    int kind = data[0] % KINDS;
    if (kind == STATE) fuzz_write("part-000000.jsonl", "{\"text\": \"a\"}\n", 14);
    const char *path = fuzz_write(names[kind], data + 1, n - 1);
    err e = OK;
    switch (kind) {
    case RULES: e = split_by_rules(path); break;
    case PHRASES: e = count_phrases(path); break;
    case REFERENCES: e = find_references(path); break;
    case STATE: e = read_documents(fuzz_folder()); break;
    case BROTLI: e = read_documents(path); break;
    }
    err_free(e);
    unlink(path); /* no input sees a file of another one */
    return 0;
}
