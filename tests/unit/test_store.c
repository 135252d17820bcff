/* The client of S3: replies, credentials, and every call against a server that verifies signatures and fails a
 * third of the requests. */
#include "support/folder.h"
#include "support/store.h"

#include <pthread.h>
#include <stdatomic.h>

#include "store/store_internal.h"
#include "util/wait.h"

/* ---- replies ---------------------------------------------------------------------------------------------- */
static void md5_is_that_of_the_rfc(void **state) {
    static const struct {
        const char *text, *md5;
    } known[] = {
        { "", "d41d8cd98f00b204e9800998ecf8427e" },
        { "message digest", "f96b697d7cb7938d525a2f31aaf161d0" },
        { "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
          "57edf4a22be3c955ac49da2e2107b67a" }
    };
    char got[33];
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        md5_hex(known[i].text, strlen(known[i].text), got);
        assert_string_equal(got, known[i].md5);
    }
}

static void sha256_is_that_of_the_standard(void **state) {
    static const struct {
        const char *text, *sha;
    } known[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    char got[65];
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        sha256_hex(known[i].text, strlen(known[i].text), got);
        assert_string_equal(got, known[i].sha);
    }
}

static void a_list_is_read(void **state) {
    static const char text[] =
        "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"><EncodingType>url</EncodingType>"
        "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b&#x3d;</NextContinuationToken>"
        "<Contents><Key>a%20b/%C3%BC+c</Key><Size>12</Size><ETag>&quot;x&quot;</ETag>"
        "<LastModified>1970-01-02T00:00:01.000Z</LastModified></Contents>"
        "<CommonPrefixes/></ListBucketResult>\n";
    store_list l = { 0 };
    char *next = NULL;
    assert_ok(reply_list(text, sizeof text - 1, "s3://b", "a b/", &l, &next));
    assert_int_equal(l.n, 1);
    assert_string_equal(l.at[0].url, "s3://b/a b/\xc3\xbc c");
    assert_string_equal(l.at[0].name, "\xc3\xbc c");
    assert_int_equal(l.at[0].bytes, 12);
    assert_int_equal(l.at[0].modified, 86401);
    assert_string_equal(next, "a&b=");
    free(next);
    store_list_free(&l);
}

static void malformed_replies_are_refused(void **state) {
    static const char *const texts[] = {
        "",
        "<",
        "<html>",
        "<a></b>",
        "<ListBucketResult><Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        ("<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%0</Key></Contents>"
         "</ListBucketResult>"),
        "<ListBucketResult><Name>&unknown;</Name></ListBucketResult>",
        "<ListBucketResult><Name>&#0;</Name></ListBucketResult>",
        "<ListBucketResult><!-- a --></ListBucketResult>",
        "<!DOCTYPE x><ListBucketResult></ListBucketResult>",
        "<ListBucketResult></ListBucketResult>x",
        "<a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a>",
        "<Error><Code>SlowDown</Code></Error>",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        store_list l = { 0 };
        char *next = NULL;
        assert_error(reply_list(texts[i], strlen(texts[i]), "s3://b", "", &l, &next), "malformed");
        assert_null(next);
        store_list_free(&l);
    }
}

/* ---- credentials -------------------------------------------------------------------------------------------- */
static void clear_environment(const char *home) {
    static const char *const names[] = { "AWS_ENDPOINT_URL",   "AWS_ENDPOINT_URL_S3",
                                         "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY",
                                         "AWS_SESSION_TOKEN",  "AWS_REGION",
                                         "AWS_DEFAULT_REGION", "AWS_PROFILE",
                                         "AWS_MAX_ATTEMPTS",   "AWS_SHARED_CREDENTIALS_FILE",
                                         "AWS_CONFIG_FILE" };
    for (size_t i = 0; i < COUNT_OF(names); i++) unsetenv(names[i]);
    setenv("HOME", home, 1);
}

static void credentials_come_from_the_usual_files(void **state) {
    test_folder *f = *state;
    store_settings s;
    clear_environment(f->path);
    assert_error(settings_read(&s), "no credentials");
    assert_ok(io_make_dirs(in_folder(f, ".aws")));
    folder_write(f, ".aws/credentials",
                 "# c\n[default]\naws_access_key_id = A\naws_secret_access_key=b/c=\n"
                 "[other]\naws_access_key_id=X\naws_secret_access_key=Y\naws_session_token=Z\n");
    folder_write(f, ".aws/config", "[default]\nregion = eu-west-3\n[profile other]\nregion=r2\n");
    assert_ok(settings_read(&s));
    assert_string_equal(s.key, "A");
    assert_string_equal(s.secret, "b/c=");
    assert_string_equal(s.region, "eu-west-3");
    assert_null(s.token);
    settings_free(&s);
    setenv("AWS_PROFILE", "other", 1);
    assert_ok(settings_read(&s));
    assert_string_equal(s.token, "Z");
    assert_string_equal(s.region, "r2");
    settings_free(&s);
    setenv("AWS_ENDPOINT_URL", "localhost:9000", 1);
    assert_error(settings_read(&s), "AWS_ENDPOINT_URL", "localhost:9000");
    clear_environment(f->path);
}

/* ---- a server ----------------------------------------------------------------------------------------------- */
static void nothing_is_lost_where_a_third_of_requests_fail(void **state) {
    enum { OBJECTS = 24, RANGE = 4096 };
    s3_server server;
    store *s = NULL;
    store_list l;
    if (!s3_server_start(&server, "--faults", "0.34")) {
        s3_server_stop(&server);
        skip();
    }
    assert_ok(store_open(&s));
    char url[64], body[64], *got;
    for (int i = 0; i < OBJECTS; i++) {
        snprintf(url, sizeof url, "s3://bucket/run/a %c/\xc3\xbc+&=%%%02d", 'a' + i % 3, i);
        snprintf(body, sizeof body, "object %d", i);
        assert_ok(store_put(s, url, body, strlen(body)));
    }
    assert_ok(store_put(s, "s3://bucket/runner", "", 0)); /* not below run/ */
    assert_ok(store_list_folder(s, "s3://bucket/run", &l));
    assert_int_equal(l.n, OBJECTS);
    for (int i = 0; i < l.n; i++) {
        size_t n;
        int number = atoi(strchr(l.at[i].url, '%') + 1);
        assert_ok(store_read(s, l.at[i].url, 1000, &got, &n));
        snprintf(body, sizeof body, "object %d", number);
        assert_string_equal(got, body);
        assert_int_equal(n, l.at[i].bytes);
        free(got);
        if (number % 2) assert_ok(store_delete(s, l.at[i].url));
    }
    store_list_free(&l);
    assert_ok(store_list_folder(s, "s3://bucket/run/", &l));
    assert_int_equal(l.n, OBJECTS / 2);
    store_list_free(&l);
    store_close(s);
    s3_server_stop(&server);
}

static void large_files_travel_in_parts(void **state) {
    enum { BYTES = 33 * 1000 * 1000 };
    test_folder *f = *state;
    s3_server server;
    store *s = NULL;
    store_object o;
    bool found;
    if (!s3_server_start(&server, "--faults", "0.34")) {
        s3_server_stop(&server);
        skip();
    }
    uint32_t *bytes = mem_alloc(BYTES);
    rng_key key = rng_key_of(7, 7);
    for (uint32_t i = 0; i < BYTES / 4; i += 64) bytes[i] = rng_u32(key, i);
    const char *path = in_folder(f, "large"), *back = in_folder(f, "back");
    assert_ok(io_write(path, bytes, BYTES));
    assert_ok(store_open(&s));
    assert_ok(store_put_file(s, "s3://bucket/large", path));
    assert_ok(store_head(s, "s3://bucket/large", &found, &o));
    assert_true(found);
    assert_int_equal(o.bytes, BYTES);
    assert_ok(store_get_file(s, "s3://bucket/large", back));
    io_mapping m;
    assert_ok(io_map(back, &m));
    assert_int_equal(m.size, BYTES);
    assert_memory_equal(m.data, bytes, BYTES);
    io_unmap(&m);
    char range[1000];
    assert_ok(store_get(s, "s3://bucket/large", 16777216 - 500, sizeof range, range));
    assert_memory_equal(range, (char *)bytes + 16777216 - 500, sizeof range);
    free(bytes);
    store_close(s);
    s3_server_stop(&server);
}

static void an_upload_that_fails_is_aborted(void **state) {
    test_folder *f = *state;
    s3_server server;
    store *s = NULL;
    store_object o;
    bool found;
    char *stats;
    if (!s3_server_start(&server, "--refuse-part", "2")) {
        s3_server_stop(&server);
        skip();
    }
    const char *path = in_folder(f, "large");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, 17 << 20), 0);
    close(fd);
    assert_ok(store_open(&s));
    assert_error(store_put_file(s, "s3://bucket/large", path), "s3://bucket/large", "400",
                 "InvalidPart");
    assert_ok(store_head(s, "s3://bucket/large", &found, &o));
    assert_false(found);
    assert_ok(store_read(s, "s3://---/stats", 1000, &stats, NULL));
    assert_non_null(strstr(stats, "\"aborted\": 1"));
    assert_non_null(strstr(stats, "\"uploads\": 0"));
    free(stats);
    store_close(s);
    s3_server_stop(&server);
}

/* ---- stores that lie, hang, or stay away ------------------------------------------------------------------- */
/* Has the server behave in a way, as its head describes: "list=short". */
static void let_server(const char *lie) {
    store *s = NULL;
    char url[64], *text;
    snprintf(url, sizeof url, "s3://---/lie/%s", lie);
    assert_ok(store_open(&s));
    assert_ok(store_read(s, url, 1000, &text, NULL));
    free(text);
    store_close(s);
}

static void start_server(s3_server *server) {
    if (s3_server_start(server, "--faults", "0")) return;
    s3_server_stop(server);
    skip();
}

static void lists_that_lie_are_errors(void **state) {
    static const struct {
        const char *lie, *error;
    } lies[] = { { "list=short", "malformed" },
                 { "list=empty", "does not end" },
                 { "list=same", "does not end" } };
    s3_server server;
    store *s = NULL;
    store_list l;
    start_server(&server);
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        let_server(lies[i].lie);
        assert_ok(store_open(&s));
        assert_error(store_list_folder(s, "s3://bucket/a/folder/with/a/long/name", &l),
                     lies[i].error);
        assert_int_equal(l.n, 0);
        store_close(s);
    }
    s3_server_stop(&server);
}

/* A session's keys expire; the process that renews them writes others to the file, or sets others here. */
static void expired_credentials_are_read_again(void **state) {
    test_folder *f = *state;
    s3_server server;
    store *s = NULL;
    const char *file = in_folder(f, "credentials");
    const char *format = "[default]\naws_access_key_id = test-key\n"
                         "aws_secret_access_key=test/secret+key\naws_session_token=%s\n";
    char text[200];
    start_server(&server);
    setenv("AWS_SESSION_TOKEN", "test-token", 1);
    assert_ok(store_open(&s));
    assert_ok(store_put(s, "s3://bucket/a", "abc", 3));
    let_server("token=second");
    setenv("AWS_SESSION_TOKEN", "second", 1);
    assert_ok(store_put(s, "s3://bucket/a", "abc", 3));
    store_close(s);

    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_SHARED_CREDENTIALS_FILE", file, 1);
    snprintf(text, sizeof text, format, "second");
    folder_write(f, "credentials", text);
    assert_ok(store_open(&s));
    assert_ok(store_put(s, "s3://bucket/a", "abc", 3));
    let_server("token=third");
    snprintf(text, sizeof text, format, "third");
    folder_write(f, "credentials", text);
    assert_ok(store_put(s, "s3://bucket/a", "abc", 3));
    let_server("token=fourth"); /* which nobody writes */
    setenv("AWS_MAX_ATTEMPTS", "3", 1);
    store_close(s);
    assert_ok(store_open(&s));
    assert_error(store_put(s, "s3://bucket/a", "abc", 3), "ExpiredToken", "3 attempts");
    store_close(s);
    unsetenv("AWS_MAX_ATTEMPTS");
    unsetenv("AWS_SHARED_CREDENTIALS_FILE");
    s3_server_stop(&server);
}

static void *cancel_soon(void *flag) {
    wait_seconds(0.3);
    atomic_store((_Atomic bool *)flag, true);
    return NULL;
}
static void *signal_soon(void *unused) {
    wait_seconds(0.3);
    wait_note_signal(SIGTERM);
    return NULL;
}

/* A server that never answers, for which a request waits half a minute, and 12 times. */
static void a_request_in_flight_ends_when_cancelled(void **state) {
    test_folder *f = *state;
    s3_server server;
    store *s = NULL;
    pthread_t thread;
    char *stats;
    const char *path = in_folder(f, "large");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, 17 << 20), 0);
    close(fd);
    start_server(&server);
    let_server("hang=PUT");
    _Atomic bool cancelled = false;
    assert_ok(store_open(&s));
    store_cancel_by(s, &cancelled);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancelled), 0);
    assert_error(store_put_file(s, "s3://bucket/large", path), "s3://bucket/large", "cancelled");
    pthread_join(thread, NULL);
    store_close(s);
    assert_ok(store_open(&s));
    assert_ok(store_read(s, "s3://---/stats", 1000, &stats, NULL));
    assert_non_null(strstr(stats, "\"uploads\": 0")); /* its parts are not left there */
    free(stats);
    assert_int_equal(pthread_create(&thread, NULL, signal_soon, NULL), 0);
    err e = store_put(s, "s3://bucket/a", "abc", 3);
    assert_int_equal(err_exit_code(e), EXIT_PREEMPTED);
    assert_error(e, "s3://bucket/a", "stopped by signal");
    pthread_join(thread, NULL);
    wait_forget_signals();
    store_close(s);
    s3_server_stop(&server);
}

static void errors_name_what_to_do(void **state) {
    s3_server server;
    store *s = NULL;
    char *text;
    if (!s3_server_start(&server, "--faults", "0")) {
        s3_server_stop(&server);
        skip();
    }
    setenv("AWS_SESSION_TOKEN", "test-token", 1);
    assert_ok(store_open(&s));
    assert_ok(store_put(s, "s3://bucket/a", "abc", 3)); /* the token is signed too */
    assert_error(store_read(s, "s3://bucket/a", 2, &text, NULL), "s3://bucket/a", "longer than 2");
    assert_error(store_read(s, "s3://bucket/none", 2000, &text, NULL), "s3://bucket/none", "404",
                 "NoSuchKey");
    assert_error(store_put(s, "s3://missing/a", "abc", 3), "NoSuchBucket");
    assert_error(store_put(s, "s3://UPPER/a", "abc", 3), "not the name of a bucket");
    store_close(s);
    setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
    assert_ok(store_open(&s));
    assert_error(store_put(s, "s3://bucket/a", "abc", 3), "SignatureDoesNotMatch");
    store_close(s);
    s3_server_stop(&server);
    setenv("AWS_MAX_ATTEMPTS", "2", 1);
    s3_environment(1);
    setenv("AWS_MAX_ATTEMPTS", "2", 1);
    assert_ok(store_open(&s));
    assert_error(store_put(s, "s3://bucket/a", "abc", 3), "s3://bucket/a", "2 attempts");
    store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(md5_is_that_of_the_rfc),
        cmocka_unit_test(sha256_is_that_of_the_standard),
        cmocka_unit_test(a_list_is_read),
        cmocka_unit_test(malformed_replies_are_refused),
        cmocka_unit_test_setup_teardown(credentials_come_from_the_usual_files, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(nothing_is_lost_where_a_third_of_requests_fail),
        cmocka_unit_test_setup_teardown(large_files_travel_in_parts, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(an_upload_that_fails_is_aborted, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(lists_that_lie_are_errors),
        cmocka_unit_test_setup_teardown(expired_credentials_are_read_again, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_request_in_flight_ends_when_cancelled, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(errors_name_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
