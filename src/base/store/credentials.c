/* Endpoint, region and keys, from the environment and the files of the AWS tools. */
#include "store/store_internal.h"

#include <stdlib.h>
#include <string.h>

/* @return the value of the first variable that is set and not empty, owned; NULL: none. */
static char *from_environment(const char *a, const char *b) {
    const char *value = getenv(a);
    if ((!value || !*value) && b) value = getenv(b);
    return value && *value ? strdup(value) : NULL;
}

static char *trim_blanks(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    for (size_t n = strlen(s); n && strchr(" \t\r", s[n - 1]); n--) s[n - 1] = '\0';
    return s;
}

/* Fills what is still NULL from the section of a profile: lines of "name = value". */
static void take_profile(char *text, const char *profile, store_settings *s) {
    const struct {
        const char *name;
        char **to;
    } known[] = { { "aws_access_key_id", &s->key },
                  { "aws_secret_access_key", &s->secret },
                  { "aws_session_token", &s->token },
                  { "endpoint_url", &s->endpoint },
                  { "region", &s->region } };
    bool inside = false;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        line = trim_blanks(line);
        size_t n = strlen(line);
        if (*line == '[' && n > 1 && line[n - 1] == ']') {
            line[n - 1] = '\0';
            char *name = trim_blanks(line + 1);
            if (str_starts(name, "profile ")) name = trim_blanks(name + 8);
            inside = !strcmp(name, profile);
        }
        char *value = strchr(line, '=');
        if (!inside || !value || *line == '#' || *line == ';') continue;
        *value++ = '\0';
        for (size_t i = 0; i < COUNT_OF(known); i++)
            if (!strcmp(trim_blanks(line), known[i].name) && !*known[i].to)
                *known[i].to = strdup(trim_blanks(value));
    }
}

/* A file that is not there is fine. */
static err read_profile(const char *variable, const char *name, store_settings *s) {
    enum { MOST = 1 << 20 };
    const char *profile = getenv("AWS_PROFILE"), *home = getenv("HOME");
    char *path = from_environment(variable, NULL), *text = NULL;
    err e = OK;
    if (!path && home) {
        path = io_join(PATH_IN(home, ".aws"), name);
    }
    if (path && io_exists(path)) e = io_read(path, MOST, &text, NULL);
    if (text) take_profile(text, profile && *profile ? profile : "default", s);
    free(text);
    free(path);
    return e;
}

static err read_attempts(int *out) {
    enum { USUAL = 12, MOST = 100 };
    const char *text = getenv("AWS_MAX_ATTEMPTS");
    int64_t n = USUAL;
    if (text && *text && (!number_parse_int(text, &n) || n < 1 || n > MOST))
        return err_hint(
            ERR("AWS_MAX_ATTEMPTS: expected a number from 1 to %d, got \"%s\"", MOST, text),
            "unset it, or set it to %d", USUAL);
    *out = (int)n;
    return OK;
}

static err check_endpoint(store_settings *s) {
    if (!s->endpoint) return OK;
    for (size_t n = strlen(s->endpoint); n && s->endpoint[n - 1] == '/'; n--)
        s->endpoint[n - 1] = '\0';
    if (str_starts(s->endpoint, "http://") || str_starts(s->endpoint, "https://")) return OK;
    return err_hint(ERR("AWS_ENDPOINT_URL: expected http:// or https://, got \"%s\"", s->endpoint),
                    "write https://host:port");
}

err settings_read(store_settings *s) {
    *s = (store_settings){ .endpoint = from_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
                           .region = from_environment("AWS_REGION", "AWS_DEFAULT_REGION"),
                           .key = from_environment("AWS_ACCESS_KEY_ID", NULL) };
    if (s->key) { /* of one identity: nothing is mixed from two */
        s->secret = from_environment("AWS_SECRET_ACCESS_KEY", NULL);
        s->token = from_environment("AWS_SESSION_TOKEN", NULL);
    }
    err e = read_attempts(&s->attempts);
    if (!e && !s->key) e = read_profile("AWS_SHARED_CREDENTIALS_FILE", "credentials", s);
    if (!e && (!s->region || !s->endpoint)) e = read_profile("AWS_CONFIG_FILE", "config", s);
    if (!e) e = check_endpoint(s);
    if (!e && (!s->key || !s->secret || !*s->key || !*s->secret))
        e = err_hint(ERR("no credentials for s3:// were found"),
                     "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to "
                     "~/.aws/credentials");
    if (!s->region) s->region = strdup("us-east-1");
    if (e) settings_free(s);
    return e;
}

static bool equal_or_null(const char *a, const char *b) { return !strcmp(a ? a : "", b ? b : ""); }

err settings_renew(store_settings *s, bool *changed) {
    store_settings now;
    *changed = false;
    TRY(settings_read(&now));
    *changed = !equal_or_null(s->key, now.key) || !equal_or_null(s->secret, now.secret) ||
               !equal_or_null(s->token, now.token);
    char **const mine[] = { &s->key, &s->secret, &s->token };
    char **const theirs[] = { &now.key, &now.secret, &now.token };
    for (size_t i = 0; i < COUNT_OF(mine); i++) {
        char *old = *mine[i];
        *mine[i] = *theirs[i];
        *theirs[i] = old;
    }
    settings_free(&now);
    return OK;
}

void settings_free(store_settings *s) {
    char *owned[] = { s->endpoint, s->region, s->key, s->secret, s->token };
    for (size_t i = 0; i < COUNT_OF(owned); i++) free(owned[i]);
    *s = (store_settings){ 0 };
}
