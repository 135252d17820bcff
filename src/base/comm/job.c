/* How a process learns that it is a rank of a job, and what ranks know of one another.
 *
 *     started by            environment                                        messages
 *     mpirun                OMPI_COMM_WORLD_SIZE, PMI_SIZE                     MPI
 *     srun --mpi=pmix       PMIX_RANK, SLURM_STEP_NUM_TASKS                    MPI
 *     srun                  SLURM_PROCID, SLURM_STEP_NUM_TASKS, ..._NODELIST   TCP
 *     torchrun, Kubernetes  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT         TCP
 */
#include "comm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"
#include "util/fault.h"
#include "util/wait.h"

/* ---- the environment ----------------------------------------------------------------------- */
/* @return the variable as a number, -1 where it is not one. */
static int64_t env_number(const char *name) {
    const char *text = getenv(name);
    int64_t n;
    return text && number_parse_int(text, &n) && n >= 0 && n <= INT32_MAX ? n : -1;
}

static err read_env_number(const char *name, int64_t least, int64_t most, int *out) {
    int64_t n = env_number(name);
    if (n < least || n > most)
        return err_hint(
            ERR("the environment has %s=%s, where a number from %lld to %lld is needed", name,
                getenv(name) ? getenv(name) : "", (long long)least, (long long)most),
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does, or none "
            "of them");
    *out = (int)n;
    return OK;
}

static err open_torchrun(double timeout, transport **out) {
    int rank = 0, ranks = 0, port = 0;
    const char *host = getenv("MASTER_ADDR");
    TRY(read_env_number("WORLD_SIZE", 1, COMM_MAX_RANKS, &ranks));
    if (ranks == 1) return OK;
    TRY(read_env_number("RANK", 0, ranks - 1, &rank));
    TRY(read_env_number("MASTER_PORT", 1, 65535, &port));
    if (!host || !*host)
        return err_hint(ERR("WORLD_SIZE=%d is set, but MASTER_ADDR is not", ranks),
                        "set it to the host of rank 0; unset WORLD_SIZE to train alone");
    /* torchrun itself may listen there, for stores of PyTorch. */
    const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (taken && !strcmp(taken, "True")) port = port < 65535 ? port + 1 : port - 1;
    return transport_tcp_open(rank, ranks, host, port, timeout, out);
}

/* @return the first host of "a,b", "node[3-7,9]" or "node[03-07]x". */
static void first_host(const char *list, char *out, size_t n) {
    size_t at = strcspn(list, ",["), digits = 0;
    snprintf(out, n, "%.*s", (int)at, list);
    if (list[at] != '[') return;
    digits = strspn(list + at + 1, "0123456789");
    const char *close = strchr(list + at, ']');
    int tail = close ? (int)strcspn(close + 1, ",[") : 0;
    size_t have = strlen(out);
    snprintf(out + have, n - have, "%.*s%.*s", (int)digits, list + at + 1, tail,
             close ? close + 1 : "");
}

static err open_srun(int ranks, double timeout, transport **out) {
    const char *hosts = getenv("SLURM_STEP_NODELIST");
    int64_t rank = env_number("SLURM_PROCID"), job = env_number("SLURM_JOB_ID"),
            step = env_number("SLURM_STEP_ID");
    char host[JOB_HOST];
    if (!hosts || rank < 0)
        return ERR("srun started %d tasks, but SLURM_STEP_NODELIST or SLURM_PROCID is missing",
                   ranks);
    first_host(hosts, host, sizeof host);
    int port = 20000 + (int)((job * 31 + step) % 10000);
    return transport_tcp_open((int)rank, ranks, host, port, timeout, out);
}

static err open_mpi(int64_t ranks, double timeout, void (*stalled)(void), transport **out) {
    fault_point(FAULT_MEET, (int)env_number("OMPI_COMM_WORLD_RANK"));
    TRY(transport_mpi_open(timeout, stalled, out));
    if (ranks < 0 || (*out)->ranks == ranks) return OK;
    return err_hint(
        ERR("%lld processes were started, but MPI knows of %d", (long long)ranks, (*out)->ranks),
        "use the mpirun of the MPI that ingot was built with, or srun --mpi=pmix");
}

static err open_transport(double timeout, void (*stalled)(void), transport **out) {
    int64_t ompi = env_number("OMPI_COMM_WORLD_SIZE"), pmi = env_number("PMI_SIZE"),
            tasks = env_number("SLURM_STEP_NUM_TASKS");
    if (ompi > 1 || pmi > 1) return open_mpi(MAX(ompi, pmi), timeout, stalled, out);
    if (ompi == 1 || pmi == 1) return OK;
    if (tasks > 1 && getenv("PMIX_RANK")) return open_mpi(tasks, timeout, stalled, out);
    if (getenv("WORLD_SIZE")) return open_torchrun(timeout, out);
    if (tasks > 1 && getenv("SLURM_PROCID")) return open_srun((int)tasks, timeout, out);
    return OK;
}

/* ---- all to all, blocking --------------------------------------------------------------------- */
static err wait_request(transport *w, double deadline, transport_request *r) {
    enum { YIELDS = 1000 };
    bool done = false;
    wait_state s;
    wait_begin(&s, deadline - time_now(), "rank %d to answer rank %d while the job starts or ends",
               r->peer, w->rank);
    wait_set_back_off(&s, 1e-5, 2e-3);
    for (int looks = 0;; looks++) {
        TRY(w->test(w, r, &done));
        if (done) return OK;
        if (looks < YIELDS)
            sched_yield();
        else
            TRY(wait_next(&s));
    }
}

static err send_now(transport *w, double deadline, int to, const void *from, size_t bytes) {
    transport_request r = { .bytes = bytes, .peer = to };
    TRY(w->send(w, to, TRANSPORT_TAGS - 1, from, &r));
    return wait_request(w, deadline, &r);
}
static err recv_now(transport *w, double deadline, int from, void *to, size_t bytes) {
    transport_request r = { .bytes = bytes, .peer = from, .receives = true };
    TRY(w->recv(w, from, TRANSPORT_TAGS - 1, to, &r));
    return wait_request(w, deadline, &r);
}

err transport_gather(transport *w, double timeout, const void *mine, void *all, size_t bytes) {
    double deadline = time_now() + timeout;
    if (w->rank) {
        TRY(send_now(w, deadline, 0, mine, bytes));
        return recv_now(w, deadline, 0, all, bytes * (size_t)w->ranks);
    }
    memcpy(all, mine, bytes);
    for (int r = 1; r < w->ranks; r++)
        TRY(recv_now(w, deadline, r, (char *)all + (size_t)r * bytes, bytes));
    for (int r = 1; r < w->ranks; r++) TRY(send_now(w, deadline, r, all, bytes * (size_t)w->ranks));
    return OK;
}

/* ---- members ---------------------------------------------------------------------------------- */
static uint64_t hash_file(const char *path, uint64_t seed) {
    char text[128] = "";
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    return hash_bytes(text, n, seed);
}

/* Processes share memory when they run on one kernel, see one another's ids, and have one host name: the
 * name distinguishes network namespaces that stand for hosts. */
static job_member describe_myself(void) {
    job_member m = { .host = "unknown" };
    cpu_set_t cores;
    struct stat ids = { 0 };
    gethostname(m.host, sizeof m.host - 1);
    m.machine = hash_file("/proc/sys/kernel/random/boot_id", hash_str(m.host));
    if (stat("/proc/self/ns/pid", &ids) == 0)
        m.machine ^= hash_bytes(&ids.st_ino, sizeof ids.st_ino, 1);
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    m.cores = hash_bytes(&cores, sizeof cores, m.machine);
    return m;
}

err comm_job_open(double timeout, void (*stalled)(void), comm_job **out) {
    *out = NULL;
    transport *w = NULL;
    TRY(open_transport(timeout, stalled, &w));
    if (!w) return OK;
    comm_job *j = mem_alloc(sizeof *j);
    *j = (comm_job){ .w = w, .timeout = timeout };
    j->members = mem_alloc((size_t)w->ranks * sizeof *j->members);
    job_member me = describe_myself();
    *out = j;
    return transport_gather(w, timeout, &me, j->members, sizeof me);
}

int comm_job_rank(const comm_job *j) { return j->w->rank; }
int comm_job_ranks(const comm_job *j) { return j->w->ranks; }

void comm_job_close(comm_job *j, bool failed) {
    if (!j) return;
    if (!failed) j->w->close(j->w);
    free(j->members);
    free(j);
}

/* ---- the same on all ranks ---------------------------------------------------------------------- */
/* @return the length of a line up to its comment. */
static int line_length(const char *line) {
    int n = (int)strcspn(line, "\n");
    for (int i = 0; i + 1 < n; i++)
        if (line[i] == ' ' && line[i + 1] == '#') n = i;
    while (n > 0 && line[n - 1] == ' ') n--;
    return n;
}

/* Appends the first line in which b differs from a, with the line above it that is indented less (its section). */
static void different_lines(const char *a, const char *b, str *out) {
    const char *section = NULL;
    while (*a && *b) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n) != 0) break;
        if (n && *a != ' ') section = a;
        a += n + (a[n] != 0);
        b += m + (b[m] != 0);
    }
    if (section && *a == ' ') str_add(out, "%.*s ", line_length(section), section);
    a += strspn(a, " ");
    b += strspn(b, " ");
    str_add(out, "\"%.*s\", not \"%.*s\"", line_length(b), b, line_length(a), a);
}

static err report_difference(comm_job *j, const char *what, const char *text, int rank) {
    uint64_t own = strlen(text) + 1, longest = 0;
    int n = j->w->ranks;
    uint64_t *lengths = mem_alloc((size_t)n * sizeof *lengths);
    char *all = NULL, *mine = NULL;
    err e = OK;
    TRY_CLEAN(transport_gather(j->w, j->timeout, &own, lengths, sizeof own));
    for (int i = 0; i < n; i++) longest = MAX(longest, lengths[i]);
    all = mem_alloc(longest * (size_t)n);
    mine = mem_alloc(longest);
    memcpy(mine, text, own);
    TRY_CLEAN(transport_gather(j->w, j->timeout, mine, all, longest));
    str lines = { 0 };
    different_lines(all, all + longest * (size_t)rank, &lines);
    e = err_hint(ERR("the %s of rank %d (%s) differs from rank 0 (%s): %s", what, rank,
                     j->members[rank].host, j->members[0].host, lines.text),
                 "start all ranks with the same command, files and program");
    str_free(&lines);
cleanup:
    free(lengths);
    free(all);
    free(mine);
    return e;
}

err comm_job_compare(comm_job *j, const char *what, const char *text) {
    uint64_t own = hash_str(text), *all = mem_alloc((size_t)j->w->ranks * sizeof *all);
    err e = transport_gather(j->w, j->timeout, &own, all, sizeof own);
    int differs = 0;
    for (int i = 1; i < j->w->ranks && !e && !differs; i++)
        if (all[i] != all[0]) differs = i;
    free(all);
    TRY(e);
    return differs ? report_difference(j, what, text, differs) : OK;
}

err comm_job_compare_program(comm_job *j) {
    enum { MOST = 1 << 30 };
    char *program = NULL, hash[32];
    size_t bytes = 0;
    err e = io_read("/proc/self/exe", MOST, &program, &bytes);
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)(e ? 0 : hash_bytes(program, bytes, 0)));
    free(program);
    err_free(e);
    return comm_job_compare(j, "program", hash);
}

/* ---- failing ------------------------------------------------------------------------------------- */
err comm_job_name_rank(const comm_job *j, err e) {
    err named =
        ERR("rank %d (%s): %s", comm_job_rank(j), j->members[j->w->rank].host, err_message(e));
    if (*err_remedy(e)) named = err_hint(named, "%s", err_remedy(e));
    named = err_exit(named, err_exit_code(e));
    err_free(e);
    return named;
}

double comm_job_wait_seconds(const comm_job *j, const comm *c) {
    if (j->w->watch) return 0; /* nothing else ends the other processes */
    if (c && comm_failed_elsewhere(c)) return 10;
    return comm_job_rank(j) > 0 ? 2 : 0;
}
