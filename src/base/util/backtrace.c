/* Backtraces of every thread of the process, for a watchdog.
 *
 * Each thread is sent SIGURG, which nothing else uses and which is ignored where no handler is set. Its handler
 * writes what the thread is doing and posts a semaphore. A thread that does not answer within a second is in
 * the kernel for good, or blocks signals; it is named with what the kernel says of it. */
#include "util/util.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FRAMES = 64, BACKTRACE_SIGNAL = SIGURG };

/* For the handler. */
static sem_t answered;
static volatile sig_atomic_t output;

static void write_frames(int signal_number) {
    void *frame[MOST_FRAMES];
    int before = errno, n = backtrace(frame, MOST_FRAMES);
    backtrace_symbols_fd(frame + 1, n > 1 ? n - 1 : 0, output);
    sem_post(&answered);
    errno = before;
}

static void prepare_backtrace(void) {
    void *frame[1];
    struct sigaction action = { .sa_handler = write_frames, .sa_flags = SA_RESTART };
    backtrace(frame, 1); /* the first call loads a library, which a handler must not */
    sem_init(&answered, 0, 0);
    sigaction(BACKTRACE_SIGNAL, &action, NULL);
}

void backtrace_prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_backtrace);
}

/* One line of /proc/self/task/TID/NAME. */
static void read_task(const char *tid, const char *name, char *to, size_t n) {
    char path[96];
    snprintf(path, sizeof path, "/proc/self/task/%.20s/%s", tid, name);
    FILE *f = fopen(path, "r");
    to[0] = '\0';
    if (f && fgets(to, (int)n, f)) to[strcspn(to, "\n")] = '\0';
    if (f) fclose(f);
}

static void write_thread(const char *tid) {
    char name[64], where[128];
    struct timespec until;
    read_task(tid, "comm", name, sizeof name);
    dprintf(output, "thread %s (%s)\n", tid, name);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    long sent = syscall(SYS_tgkill, getpid(), atol(tid), BACKTRACE_SIGNAL);
    while (sent == 0 && sem_timedwait(&answered, &until) != 0)
        if (errno != EINTR) sent = -1;
    if (sent == 0) return;
    read_task(tid, "wchan", where, sizeof where);
    dprintf(output, "  does not answer; in the kernel it is in: %s\n", where);
}

void backtrace_write(int fd) {
    DIR *all = opendir("/proc/self/task");
    const struct dirent *entry;
    output = fd;
    while (all && (entry = readdir(all)))
        if (entry->d_name[0] != '.') write_thread(entry->d_name);
    if (all) closedir(all);
}

void thread_block_signals(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, BACKTRACE_SIGNAL);
    pthread_sigmask(SIG_SETMASK, &all, before);
}
