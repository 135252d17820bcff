/* Ctrl-C ends every command with one exit code. What was complete on disk is kept; a command that can continue from that
 * says so. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const char *volatile message;

void cli_on_interrupt(const char *text) { message = text; }

static void end_interrupted(int number) {
    const char *const parts[] = { "\n", message, "\n" };
    for (size_t i = 0; message && i < COUNT_OF(parts); i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) break;
    _exit(EXIT_INTERRUPTED);
}

void cli_catch_interrupt(void) {
    struct sigaction before, action = { .sa_handler = end_interrupted };
    sigaction(SIGINT, NULL, &before);
    if (before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL); /* a shell's background job */
}
