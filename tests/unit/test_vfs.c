/* Files and objects by the same calls: a folder on the disk and one below a URL behave alike, although the store fails
 * some requests. */
#include <jansson.h>
#include <unistd.h>

#include "io/io.h"
#include "store/vfs.h"
#include "support/folder.h"
#include "support/store.h"

typedef struct fixture {
    test_folder folder;
    s3_server server;
    bool store;
    char *before; /* TMPDIR */
} fixture;

static int setup(void **state) {
    fixture *f = mem_alloc(sizeof *f);
    *state = f;
    log_set_level(LOG_WARN);
    if (folder_make(&f->folder)) return -1;
    const char *before = getenv("TMPDIR");
    f->before = before ? strdup(before) : NULL;
    setenv("TMPDIR", f->folder.path, 1);
    f->store = s3_server_start(&f->server, "--faults", "0.2");
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    s3_server_stop(&f->server);
    if (f->before)
        setenv("TMPDIR", f->before, 1);
    else
        unsetenv("TMPDIR");
    free(f->before);
    int failed = folder_remove(&f->folder);
    free(f);
    return failed;
}

static void write_text(vfs *v, const char *folder, const char *name, const char *text) {
    char *path = io_join(folder, name);
    assert_ok(vfs_write(v, path, text, strlen(text)));
    free(path);
}

static void write_nested(vfs *v, const char *folder, const char *name) {
    char *below = io_join(folder, name);
    assert_ok(vfs_make_folder(below));
    write_text(v, below, "1", "x");
    write_text(v, below, "2", "y");
    free(below);
}

static void check_folder(vfs *v, const char *folder) {
    static const struct {
        const char *name;
        int64_t bytes;
    } want[] = { { "a", -1 }, { "a-b", 3 }, { "a.b", 4 }, { "doc.json", 19 } };
    char *doc = io_join(folder, "doc.json"), *gone = io_join(folder, "gone"), *text = NULL;
    vfs_info info;
    vfs_listing l;
    assert_ok(vfs_make_folder(folder));
    assert_ok(vfs_list(v, folder, &l));
    assert_int_equal(l.n, 0);
    write_nested(v, folder, "a");
    write_text(v, folder, "a.b", "abcd");
    write_text(v, folder, "a-b", "abc");
    write_text(v, folder, "gone", "");
    json_t *o = json_pack("{s:i}", "number", 17), *back = NULL;
    assert_ok(vfs_json_write(v, doc, o));
    assert_ok(vfs_json_read(v, doc, &back));
    assert_true(json_equal(o, back));
    json_decref(o);
    json_decref(back);
    assert_ok(vfs_remove(v, gone));
    assert_ok(vfs_remove(v, gone));
    assert_ok(vfs_stat(v, gone, &info));
    assert_false(info.found);
    assert_ok(vfs_list(v, folder, &l));
    assert_int_equal(l.n, COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        assert_string_equal(l.at[i].name, want[i].name);
        assert_int_equal(l.at[i].bytes, want[i].bytes);
        assert_ptr_equal(vfs_find(&l, want[i].name), &l.at[i]);
    }
    assert_null(vfs_find(&l, "b"));
    vfs_listing_free(&l);
    assert_ok(vfs_stat(v, doc, &info));
    assert_true(info.found && info.bytes == 19 && info.modified > 1600000000);
    assert_ok(vfs_read(v, doc, 100, &text, NULL));
    assert_string_equal(text, "{\n  \"number\": 17\n}\n");
    free(text);
    free(doc);
    free(gone);
}

static void a_url_is_used_like_a_folder(void **state) {
    fixture *f = *state;
    vfs *v = vfs_new();
    check_folder(v, in_folder(&f->folder, "disk"));
    if (f->store) check_folder(v, "s3://bucket/out");
    if (f->store) check_folder(NULL, "s3://bucket/again");
    vfs_free(v);
}

/* 20 MB: more than one part of an upload. */
static void write_long(const char *path, bool commit) {
    enum { PIECES = 5000, PIECE = 4000 };
    static char piece[PIECE];
    vfs_writer *w = NULL;
    assert_ok(vfs_writer_open(path, &w));
    for (int i = 0; i < PIECES; i++) {
        memset(piece, 'a' + i % 26, PIECE);
        assert_ok(vfs_writer_write(w, piece, PIECE));
    }
    if (commit)
        assert_ok(vfs_writer_commit(w));
    else
        vfs_writer_abort(w);
}

static void a_writer_writes_all_or_nothing(void **state) {
    fixture *f = *state;
    const char *local = in_folder(&f->folder, "long"), *url = "s3://bucket/long";
    char *here = NULL, *there = NULL;
    size_t n = 0, m = 0;
    vfs_info info;
    write_long(local, true);
    assert_ok(vfs_read(NULL, local, 1 << 25, &here, &n));
    if (f->store) {
        write_long(url, false);
        assert_ok(vfs_stat(NULL, url, &info));
        assert_false(info.found);
        write_long(url, true);
        assert_ok(vfs_read(NULL, url, 1 << 25, &there, &m));
        assert_int_equal(m, n);
        assert_memory_equal(here, there, n);
    }
    free(here);
    free(there);
    char **names = NULL;
    int files = 0;
    assert_ok(io_list(f->folder.path, &names, &files)); /* nothing is left of an upload */
    for (int i = 0; i < files; i++) assert_false(str_starts(names[i], "ingot-upload"));
    io_list_free(names, files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_url_is_used_like_a_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_writes_all_or_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
