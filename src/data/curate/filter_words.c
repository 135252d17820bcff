/* By which rules a document is split into words: those of its language (word_tables.c), as the language model predicts it,
 * or those of --words. */
#include "curate/filter_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds the rules of each label of the language model. */
static void find_label_rules(filter *f) {
    int labels = language_count(f->model);
    f->label_words = mem_alloc((size_t)labels * sizeof *f->label_words);
    for (int i = 0; i < labels; i++) {
        int rules = word_tables_find(f->tables, language_name(f->model, i));
        f->label_words[i] = rules >= 0 ? rules : word_tables_any(f->tables);
    }
}

static err read_words_file(filter *f, const char *path) {
    if (access(path, F_OK) != 0)
        return err_hint(
            ERR_USAGE("--words: expected auto, space, a language such as en or deu_Latn, or a "
                      "file of rules; got %s",
                      path),
            "languages are written as ISO 639 has them; see docs/data.md");
    TRY(word_rules_read(path, &f->file_words));
    uint64_t hash = word_rules_hash(f->file_words);
    f->hash = hash_bytes(&hash, sizeof hash, f->hash);
    return OK;
}

err filter_open_words(filter *f) {
    const char *words = f->o.words ? f->o.words : "auto";
    f->datatrove = strcmp(words, "space") != 0;
    if (!f->datatrove || !filter_splits_words(&f->o)) return OK;
    f->tables = word_tables_new();
    uint64_t hash = word_tables_hash();
    f->hash = hash_bytes(&hash, sizeof hash, f->hash);
    f->hash = hash_bytes(words, strlen(words), f->hash);
    bool automatic = strcmp(words, "auto") ==
                     0; /* where no language is likely, English, as datatrove's default */
    f->words = word_tables_find(f->tables, automatic ? "en" : words);
    if (automatic) find_label_rules(f);
    return f->words >= 0 ? OK : read_words_file(f, words);
}

const word_rules *judgment_words(judgment *j) {
    const filter *f = j->f;
    if (f->file_words) return f->file_words;
    if (j->words) return j->words;
    int label = f->label_words ? judgment_label(j) : -1;
    return j->words = word_tables_get(f->tables, label >= 0 ? f->label_words[label] : f->words);
}

void filter_words_free(filter *f) {
    word_rules_free(f->file_words);
    word_tables_free(f->tables);
    free(f->label_words);
}
