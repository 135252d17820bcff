/* io: reading, atomic writing under failure, folders, JSON. */
#include "support/folder.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void assert_holds(const char *path, const char *expected) {
    char *text = NULL;
    size_t len = 0;
    assert_ok(io_read(path, 1 << 20, &text, &len));
    assert_int_equal(len, strlen(expected));
    assert_string_equal(text, expected);
    free(text);
}

static int entries(const char *dir) {
    char **names = NULL;
    int n = 0;
    assert_ok(io_list(dir, &names, &n));
    io_list_free(names, n);
    return n;
}

static void reads_whole_files(void **state) {
    test_folder *p = *state;
    char *text = NULL;
    size_t len;
    assert_ok(io_write(in_folder(p, "a"), "ab\0c", 4));
    assert_ok(io_read(in_folder(p, "a"), 4, &text, &len));
    assert_int_equal(len, 4);
    assert_memory_equal(text, "ab\0c", 5);
    free(text);
    assert_error(io_read(in_folder(p, "a"), 3, &text, &len), "at most 3 B; it has 4 B");
    assert_error(io_read(in_folder(p, "none"), 3, &text, &len), "No such file");
    assert_error(io_read(p->path, 3, &text, &len), "Is a directory");
    assert_error(io_read("/dev/null", 3, &text, &len), "device");
}

static void maps_files(void **state) {
    test_folder *p = *state;
    io_mapping m;
    assert_ok(io_write(in_folder(p, "a"), "hello", 5));
    assert_ok(io_map(in_folder(p, "a"), &m));
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    io_unmap(&m);
    io_unmap(&m);
    assert_ok(io_write(in_folder(p, "empty"), "", 0));
    assert_ok(io_map(in_folder(p, "empty"), &m));
    assert_int_equal(m.size, 0);
    io_unmap(&m);
    assert_error(io_map(in_folder(p, "none"), &m), "No such file");
}

static void replaces_only_on_commit(void **state) {
    test_folder *p = *state;
    io_writer *w = NULL;
    assert_ok(io_write(in_folder(p, "a"), "old", 3));
    assert_ok(io_writer_open(in_folder(p, "a"), &w));
    assert_ok(io_writer_write(w, "new", 3));
    assert_holds(in_folder(p, "a"), "old");
    io_writer_abort(w);
    assert_holds(in_folder(p, "a"), "old");
    assert_int_equal(entries(p->path), 1);
    assert_ok(io_writer_open(in_folder(p, "a"), &w));
    assert_ok(io_writer_write(w, "new", 3));
    assert_ok(io_writer_write(w, "er", 2));
    assert_ok(io_writer_commit(w));
    assert_holds(in_folder(p, "a"), "newer");
    assert_int_equal(entries(p->path), 1);
}

static void writes_large_pieces_in_order(void **state) {
    test_folder *p = *state;
    enum { PIECE = 100003, PIECES = 13 };
    unsigned char *piece = mem_alloc(PIECE);
    io_writer *w = NULL;
    assert_ok(io_writer_open(in_folder(p, "big"), &w));
    for (int i = 0; i < PIECES; i++) {
        memset(piece, 'a' + i, PIECE);
        assert_ok(io_writer_write(w, piece, i % 3 ? PIECE : 7));
    }
    unsigned char *huge = mem_alloc(1 << 20);
    assert_ok(io_writer_write(w, huge, 1 << 20));
    assert_ok(io_writer_commit(w));
    io_mapping m;
    assert_ok(io_map(in_folder(p, "big"), &m));
    size_t at = 0;
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < (i % 3 ? PIECE : 7); j++) assert_int_equal(m.data[at++], 'a' + i);
    assert_int_equal(m.size, at + (1 << 20));
    assert_memory_equal(m.data + at, huge, 1 << 20);
    io_unmap(&m);
    free(huge);
    free(piece);
}

/* A full disk, played by a limit on the size of files: the write ends short, then fails. */
static void full_disk_keeps_the_old_file(void **state) {
    test_folder *p = *state;
    struct rlimit before;
    assert_ok(io_write(in_folder(p, "a"), "old", 3));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = { 4096, before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char *bytes = mem_alloc(1 << 20);
    err e = io_write(in_folder(p, "a"), bytes, 1 << 20);
    err buffered = io_write(in_folder(p, "a"), bytes, 10000); /* fails in commit */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    free(bytes);
    assert_non_null(strstr(err_remedy(e), "ulimit"));
    assert_error(e, "cannot write");
    assert_error(buffered, "cannot write");
    assert_holds(in_folder(p, "a"), "old");
    assert_int_equal(entries(p->path), 1);
}

static void no_space_is_reported(void **state) {
    if (!io_exists("/dev/full")) skip();
    int fd;
    assert_ok(io_append_open("/dev/full", &fd));
    err e = io_append(fd, "/dev/full", "x", 1);
    close(fd);
    assert_non_null(strstr(err_remedy(e), "free some space"));
    assert_error(e, "No space left");
}

static void bad_targets(void **state) {
    test_folder *p = *state;
    assert_error(io_write(in_folder(p, "no/such/a"), "x", 1), "No such file");
    assert_error(io_write(p->path, "x", 1), "Is a directory");
    assert_error(io_write("/dev/null", "x", 1), "device");
    if (geteuid() == 0) return; /* root may write anywhere */
    assert_int_equal(chmod(p->path, 0555), 0);
    assert_error(io_write(in_folder(p, "a"), "x", 1), "Permission denied");
    assert_int_equal(chmod(p->path, 0755), 0);
}

static void keeps_the_mode(void **state) {
    test_folder *p = *state;
    struct stat st;
    assert_ok(io_write(in_folder(p, "a"), "x", 1));
    assert_int_equal(chmod(in_folder(p, "a"), 0640), 0);
    assert_ok(io_write(in_folder(p, "a"), "y", 1));
    assert_int_equal(stat(in_folder(p, "a"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void makes_and_lists_folders(void **state) {
    test_folder *p = *state;
    assert_ok(io_make_dirs(in_folder(p, "x/y//z/")));
    assert_ok(io_make_dirs(in_folder(p, "x/y/z")));
    assert_true(io_is_dir(in_folder(p, "x/y/z")));
    static const char *const names[] = { "b", "a", ".h", "B" };
    for (size_t i = 0; i < COUNT_OF(names); i++) assert_ok(io_write(in_folder(p, names[i]), "", 0));
    char **list = NULL;
    int n = 0;
    assert_ok(io_list(p->path, &list, &n));
    assert_int_equal(n, 5);
    static const char *const sorted[] = { ".h", "B", "a", "b", "x" };
    for (int i = 0; i < n; i++) assert_string_equal(list[i], sorted[i]);
    io_list_free(list, n);
    assert_error(io_make_dirs(in_folder(p, "a/sub")), "in the way");
    assert_error(io_make_dirs(in_folder(p, "a")), "in the way");
    assert_error(io_list(in_folder(p, "none"), &list, &n), "No such file");
    int64_t size;
    assert_ok(io_size(in_folder(p, "a"), &size));
    assert_int_equal(size, 0);
}

static void removes_trees_only_inside(void **state) {
    test_folder *p = *state;
    assert_ok(io_make_dirs(in_folder(p, "root/run/deep")));
    assert_ok(io_make_dirs(in_folder(p, "rooted")));
    assert_ok(io_write(in_folder(p, "keep"), "k", 1));
    assert_ok(io_write(in_folder(p, "root/run/deep/f"), "x", 1));
    assert_int_equal(symlink("../..", in_folder(p, "root/run/up")), 0);
    char *root = strdup(in_folder(p, "root"));
    assert_error(io_remove_tree(root, root), "not inside");
    assert_error(io_remove_tree(root, in_folder(p, "rooted")), "not inside");
    assert_error(io_remove_tree(root, in_folder(p, "root/..")), "not inside");
    assert_error(io_remove_tree(root, in_folder(p, "root/run/..")), "not inside");
    assert_error(io_remove_tree(root, in_folder(p, "root/run/up/keep")), "not inside");
    assert_ok(io_remove_tree(root, in_folder(p, "root/run/")));
    assert_false(io_exists(in_folder(p, "root/run")));
    assert_holds(in_folder(p, "keep"), "k"); /* the link was removed, not followed */
    assert_ok(io_remove_tree(root, in_folder(p, "root/run")));
    free(root);
}

static void a_folder_is_replaced_or_left_as_it_was(void **state) {
    test_folder *p = *state;
    const char *from = in_folder(p, "new"), *to = in_folder(p, "now"),
               *aside = in_folder(p, "aside");
    assert_ok(io_make_dirs(to));
    folder_write(p, "now/a", "old");
    assert_error(io_replace_tree(p->path, from, to, aside), "cannot rename");
    assert_true(io_exists(in_folder(p, "now/a")));
    assert_ok(io_make_dirs(from));
    folder_write(p, "new/b", "new");
    assert_ok(io_replace_tree(p->path, from, to, aside));
    assert_true(io_exists(in_folder(p, "now/b")) && !io_exists(in_folder(p, "now/a")));
    assert_true(!io_exists(from) && !io_exists(aside));
    assert_int_equal(rename(to, aside),
                     0); /* as after a failure in which it could not be put back */
    assert_error(io_replace_tree(p->path, from, to, aside), "cannot rename");
    assert_true(io_exists(in_folder(p, "aside/b")));
    assert_ok(io_make_dirs(from));
    assert_ok(io_replace_tree(p->path, from, to, aside));
    assert_true(io_exists(to) && !io_exists(aside));
}

/* Locks are of processes: the second holder is a child. @return its exit code. */
static int lock_in_child(const char *path, const char *expected) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        io_lock *l = NULL;
        err e = io_lock_take(path, "the folder", &l);
        bool right = expected ? e && strstr(err_message(e), expected) : !e;
        if (!right && e) err_print(stderr, e, true);
        io_lock_free(l);
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_lock_is_held_by_one_process(void **state) {
    test_folder *p = *state;
    const char *path = in_folder(p, ".lock");
    char me[64];
    io_lock *l = NULL;
    snprintf(me, sizeof me, "the folder is in use by process %ld", (long)getpid());
    assert_ok(io_lock_take(path, "the folder", &l));
    assert_int_equal(lock_in_child(path, me), 0);
    assert_true(io_exists(path)); /* who is refused does not remove it */
    assert_ok(io_lock_sign(l));
    snprintf(me, sizeof me, "process %ld on ", (long)getpid());
    assert_int_equal(lock_in_child(path, me), 0);
    io_lock_free(l);
    assert_true(io_exists(path));
    assert_int_equal(lock_in_child(path, NULL), 0);
}

static void an_unsigned_lock_leaves_no_file(void **state) {
    test_folder *p = *state;
    io_lock *l = NULL;
    assert_ok(io_lock_take(in_folder(p, ".lock"), "the folder", &l));
    io_lock_free(l);
    assert_false(io_exists(in_folder(p, ".lock")));
    assert_error(io_lock_take(in_folder(p, "none/.lock"), "the folder", &l), "cannot lock");
}

static void json_errors_name_the_place(void **state) {
    test_folder *p = *state;
    json_t *doc = NULL;
    assert_ok(io_write(in_folder(p, "a.json"), "{\"n\": 1,\n \"x\": }", 17));
    assert_error(io_json_read(in_folder(p, "a.json"), &doc), "a.json:2:7: not valid JSON");
    assert_null(doc);
    assert_error(io_json_parse("{\"a\":1,\"a\":2}", 13, "t", &doc), "t:1:");
    assert_error(io_json_parse("", 0, "t", &doc), "t:1:0");
}

static void json_members(void **state) {
    test_folder *p = *state;
    json_t *doc = json_pack("{s:s, s:i, s:f, s:b, s:[i], s:{}}", "t", "text", "i", 5, "r", 0.1, "b",
                            1, "a", 1, "o");
    assert_ok(io_json_write(in_folder(p, "d.json"), doc));
    json_decref(doc);
    assert_ok(io_json_read(in_folder(p, "d.json"), &doc));
    const char *t;
    int64_t i;
    double r;
    bool b;
    json_t *part;
    assert_ok(io_json_text(doc, "d", "t", &t));
    assert_string_equal(t, "text");
    assert_ok(io_json_int(doc, "d", "i", &i));
    assert_int_equal(i, 5);
    assert_ok(io_json_real(doc, "d", "r", &r));
    assert_true(r == 0.1);
    assert_ok(io_json_real(doc, "d", "i", &r));
    assert_ok(io_json_bool(doc, "d", "b", &b));
    assert_true(b);
    assert_ok(io_json_array(doc, "d", "a", &part));
    assert_ok(io_json_object(doc, "d", "o", &part));
    assert_error(io_json_int(doc, "d", "t", &i), "d: \"t\": expected an integer; got a string");
    assert_error(io_json_text(doc, "d", "none", &t), "got nothing");
    assert_error(io_json_object(doc, "d", "a", &part), "got an array");
    json_decref(doc);
}

static void json_of_any_bytes(void **state) {
    json_t *s = io_json_string("a\xff\xc3\xa9\xc3", 5);
    assert_string_equal(json_string_value(s), "a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd");
    json_decref(s);
    s = io_json_string("", 0);
    assert_string_equal(json_string_value(s), "");
    json_decref(s);
}

/* An address is not a path: it would become a folder called "s3:". */
static void addresses_are_not_written_to(void **state) {
    io_writer *w = NULL;
    assert_error(io_make_dirs("s3://bucket/folder"), "s3://bucket/folder", "it is an address");
    assert_error(io_writer_open("gs://bucket/a.txt", &w), "gs://bucket/a.txt", "it is an address");
    assert_false(io_exists("s3:"));
    assert_ok(io_refuse_url("a/b://c"));
    assert_ok(io_refuse_url("://c"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_not_written_to),
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
        T(reads_whole_files),
        T(maps_files),
        T(replaces_only_on_commit),
        T(writes_large_pieces_in_order),
        T(full_disk_keeps_the_old_file),
        T(no_space_is_reported),
        T(bad_targets),
        T(keeps_the_mode),
        T(makes_and_lists_folders),
        T(removes_trees_only_inside),
        T(a_folder_is_replaced_or_left_as_it_was),
        T(a_lock_is_held_by_one_process),
        T(an_unsigned_lock_leaves_no_file),
        T(json_errors_name_the_place),
        T(json_members),
        T(json_of_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
