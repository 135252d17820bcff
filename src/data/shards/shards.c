/* Folders of shards: the index that names them. data_tokenize_text writes them. */
#include "shards/data_internal.h"

#include <stdlib.h>
#include <string.h>

err shards_check_name(const char *index, const char *name) {
    if (name[0] && name[0] != '.' && !strchr(name, '/')) return OK;
    return ERR("%s: \"%.60s\" is not the name of a shard", index, name);
}

static err open_shard(data_source *s, const char *folder, const char *index, const json_t *entry) {
    const char *name;
    int64_t tokens, documents;
    TRY(io_json_text(entry, index, "file", &name));
    TRY(io_json_int(entry, index, "tokens", &tokens));
    TRY(io_json_int(entry, index, "documents", &documents));
    TRY(shards_check_name(index, name));
    if (tokens == 0) return OK; /* no document of this part of the input is on this side */
    data_shard *shard = source_add(s, PATH_IN(folder, name));
    TRY(io_map(shard->path, &shard->file));
    data_info info = { .eos = -1 };
    bool found;
    TRY(tokfile_parse(shard, &info, &found));
    if (!found) return shard_damaged(shard, "the file does not begin like a token file");
    if (shard->n != tokens || shard->docs != documents)
        return err_hint(ERR("%s: %lld tokens in %lld documents, %s lists %lld in %lld", shard->path,
                            (long long)shard->n, (long long)shard->docs, index, (long long)tokens,
                            (long long)documents),
                        "the folder mixes the results of two runs; write it anew with --fresh");
    TRY(source_join(s, &info));
    s->info.format = "ingot shards";
    return OK;
}

err shards_list(const char *index, const json_t *doc, bool held_out, json_t **list) {
    bool complete;
    TRY(io_json_bool(doc, index, "complete", &complete));
    if (!complete)
        return err_hint(ERR("%s: the folder is not complete", index),
                        "run the `ingot data tokenize` command that makes it once more; it "
                        "continues where it was stopped");
    return io_json_array(doc, index, held_out ? "validation" : "train", list);
}

bool shards_are_in(const char *path) { return io_is_dir(path) && io_has(path, SHARDS_INDEX); }

err shards_open(data_source *s, const char *folder, bool held_out) {
    char *index = io_join(folder, SHARDS_INDEX), *own = io_join(folder, SHARDS_TOKENIZER);
    json_t *doc = NULL, *list;
    err e = OK;
    TRY_CLEAN(io_json_read(index, &doc));
    TRY_CLEAN(shards_list(index, doc, held_out, &list));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY_CLEAN(open_shard(s, folder, index, json_array_get(list, i)));
    if (!s->tokenizer && io_exists(own)) {
        s->tokenizer = own;
        s->info.tokenizer_path = own;
        own = NULL;
    }
cleanup:
    json_decref(doc);
    free(own);
    free(index);
    return e;
}
