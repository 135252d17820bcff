/* ingot tokenizer: text to ids and back. Each subcommand is a file of its own, tokenizer_NAME.c, and
 * a row here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/tokenizer_common.h"

static const cli_subcommand *const members[] = { &tokenizer_train, &tokenizer_encode,
                                                 &tokenizer_decode_ids, &tokenizer_count };

const cli_family tokenizer_family = { "tokenizer", members, (int)COUNT_OF(members) };

err cmd_tokenizer(int argc, char **argv) { return cli_run_family(&tokenizer_family, argc, argv); }

err cli_open_tokenizer(const char *path, const char *pattern, tokenizer **out) {
    if (!path)
        return err_hint(ERR_USAGE("--tokenizer: needs a file"), "for example -t tokenizer.json");
    return tokenizer_open(path, pattern, out);
}

err cli_read_stdin(const char *what, str *out) {
    static const size_t CHUNK = (size_t)1 << 20, MOST = (size_t)1 << 31;
    char *chunk = mem_alloc(CHUNK);
    err e = OK;
    for (ssize_t n = 1; n != 0 && !e;) {
        n = read(STDIN_FILENO, chunk, CHUNK);
        if (n < 0 && errno != EINTR) e = ERR("cannot read standard input: %s", strerror(errno));
        if (n > 0) str_add_bytes(out, chunk, (size_t)n);
        if (out->len > MOST)
            e = err_hint(ERR("more than 2 GiB of %s on standard input", what),
                         "use \"ingot tokenizer count\" or \"ingot data tokenize\" for a corpus");
    }
    free(chunk);
    return e;
}
