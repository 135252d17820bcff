/* The sign of life that rank 0 of a supervised job gives on its standard error, every second: a byte that no text has, and
 * the end of a line, for which starters wait. The supervisor takes both out of what it passes on. A thread gives it, so it
 * shows that the host, the process and the way to it are alive; whether the rank makes progress, the rank itself
 * watches. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch.h"
#include "util/wait.h"

static bool beat_once(void) {
    static const char sign[] = { LAUNCH_BEAT, '\n' };
    return write(STDERR_FILENO, sign, sizeof sign) == sizeof sign;
}

static void *beat(void *unused) {
    (void)unused;
    while (beat_once()) wait_seconds(1);
    return NULL;
}

static bool is_first_process(void) {
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                         "SLURM_PROCID", "RANK" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *rank = getenv(names[i]);
        if (rank) return strcmp(rank, "0") == 0;
    }
    return true;
}

void launch_beat_start(void) {
    pthread_t thread;
    sigset_t before;
    bool supervised = getenv(LAUNCH_SUPERVISED) != NULL;
    unsetenv(LAUNCH_SUPERVISED); /* its own children are not supervised */
    if (!supervised || !is_first_process() || !beat_once()) return;
    thread_block_signals(&before);
    if (pthread_create(&thread, NULL, beat, NULL) == 0)
        pthread_detach(thread);
    else
        log_warn("no thread shows the supervisor that this rank is alive");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
