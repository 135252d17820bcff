/* Datasets in the local cache of the Hugging Face hub, which other programs have downloaded:
 *
 *     CACHE/datasets--ORG--NAME/refs/main              the commit that "main" is
 *     CACHE/datasets--ORG--NAME/snapshots/COMMIT/...   its files: links into ../../blobs
 *
 * CACHE is $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub. Nothing is downloaded here. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "text/inputs_internal.h"

#define HUB_PREFIX "hf://datasets/"

bool hub_is_url(const char *path) { return str_starts(path, "hf://"); }

/* @return the folder of the cache; owned. NULL: without a home folder. */
static char *hub_cache_folder(void) {
    const char *cache = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    if (cache && *cache) return strdup(cache);
    if (home && *home) return io_join(home, "hub");
    return user && *user ? io_join(user, ".cache/huggingface/hub") : NULL;
}

/* @return the commit of a revision, which may be a branch, a tag or itself a commit; owned. NULL: it is not there. */
static char *find_commit(const char *repository, const char *revision) {
    str path = { 0 };
    char *commit = NULL;
    size_t n = 0;
    str_add(&path, "%s/refs/%s", repository, revision);
    if (io_exists(path.text)) err_free(io_read(path.text, 256, &commit, &n));
    if (commit) commit[strcspn(commit, " \r\n")] = 0;
    path.len = 0;
    str_add(&path, "%s/snapshots/%s", repository, commit ? commit : revision);
    bool there = (!commit || (*commit && !strchr(commit, '/'))) && io_is_dir(path.text);
    str_free(&path);
    if (there) return commit ? commit : strdup(revision);
    free(commit);
    return NULL;
}

char *hub_snapshot(const char *folder) {
    char *commit = find_commit(folder, "main");
    if (!commit) return NULL;
    str path = { 0 };
    str_add(&path, "%s/snapshots/%s", folder, commit);
    free(commit);
    return path.text;
}

typedef struct hub_name {
    char *repository; /* "ORG--NAME", owned */
    char *revision;   /* owned */
    const char *rest; /* the path in it, or "" */
} hub_name;

/* Splits hf://datasets/ORG/NAME[@REVISION][/PATH]. */
static err parse_hub_url(const char *url, hub_name *out) {
    const char *org = url + strlen(HUB_PREFIX);
    size_t n_org = str_starts(url, HUB_PREFIX) ? strcspn(org, "/") : 0;
    const char *name = n_org && org[n_org] ? org + n_org + 1 : "";
    size_t n_name = strcspn(name, "/@");
    if (!n_org || !n_name)
        return err_hint(ERR("%s does not name a dataset", url),
                        "write hf://datasets/ORG/NAME, or hf://datasets/ORG/NAME@REVISION/FOLDER");
    const char *after = name + n_name;
    size_t n_revision = *after == '@' ? strcspn(after + 1, "/") : 0;
    str repository = { 0 };
    str_add(&repository, "%.*s--%.*s", (int)n_org, org, (int)n_name, name);
    out->repository = repository.text;
    out->revision = n_revision ? strndup(after + 1, n_revision) : strdup("main");
    after += n_revision ? n_revision + 1 : 0;
    out->rest = *after == '/' ? after + 1 : after;
    return OK;
}

err hub_resolve(const char *url, char **path) {
    hub_name name = { 0 };
    TRY(parse_hub_url(url, &name));
    char *cache = hub_cache_folder();
    str repository = { 0 }, found = { 0 };
    str_add(&repository, "%s/datasets--%s", cache ? cache : "", name.repository);
    char *commit = find_commit(repository.text, name.revision);
    err e = OK;
    if (commit)
        str_add(&found, "%s/snapshots/%s%s%s", repository.text, commit, *name.rest ? "/" : "",
                name.rest);
    if (!commit || !(io_exists(found.text) || io_is_dir(found.text)))
        e = err_hint(ERR("%s is not in the cache of the hub, which lacks %s%s%s", url,
                         commit ? found.text : repository.text, commit ? "" : " of the revision ",
                         commit ? "" : name.revision),
                     "download it first: `hf download --repo-type dataset`, or another program; "
                     "HF_HUB_CACHE names the cache");
    if (e) str_free(&found);
    *path = found.text;
    free(commit);
    free(cache);
    free(name.repository);
    free(name.revision);
    str_free(&repository);
    return e;
}
