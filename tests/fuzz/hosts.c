/* Any text as the hosts of `ingot launch`. */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* The command prints what it would start. */
static void silence_output(void) {
    static bool silent;
    int fd = silent ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) dup2(fd, STDOUT_FILENO);
    silent = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    str option = { 0 };
    silence_output();
    str_add(&option, "--hosts=");
    str_add_bytes(&option, data, n);
    char *words[] = { option.text, "--dry-run", "--", "train" };
    err_free(cmd_launch((int)COUNT_OF(words), words));
    str_free(&option);
    return 0;
}
