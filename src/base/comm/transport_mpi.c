/* Messages by MPI, for processes that mpirun or srun started. */
#include "comm_internal.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "util/wait.h"

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request is a handle");

static err mpi_error(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return ERR("%s: %s", what, text);
}

#define TRY_MPI(call)                                                                              \
    do {                                                                                           \
        int try_code_ = (call);                                                                    \
        if (try_code_ != MPI_SUCCESS) return mpi_error(try_code_, #call);                          \
    } while (0)

static void keep_request(transport_request *r, MPI_Request q) { memcpy(&r->handle, &q, sizeof q); }

static err mpi_send(transport *w, int to, int tag, const void *from, transport_request *r) {
    MPI_Request q;
    TRY_MPI(MPI_Isend(from, (int)r->bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &q));
    keep_request(r, q);
    return OK;
}

static err mpi_recv(transport *w, int from, int tag, void *to, transport_request *r) {
    MPI_Request q;
    TRY_MPI(MPI_Irecv(to, (int)r->bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &q));
    keep_request(r, q);
    return OK;
}

static err mpi_test(transport *w, transport_request *r, bool *done) {
    MPI_Request q;
    MPI_Status status;
    int ended = 0, got = 0;
    memcpy(&q, &r->handle, sizeof q);
    TRY_MPI(MPI_Test(&q, &ended, &status));
    keep_request(r, q);
    *done = ended;
    if (!ended || !r->receives) return OK;
    TRY_MPI(MPI_Get_count(&status, MPI_BYTE, &got));
    if ((size_t)got == r->bytes) return OK;
    return ERR("rank %d sent %d bytes where rank %d expects %zu", r->peer, got, w->rank, r->bytes);
}

static void mpi_close(transport *w) {
    MPI_Finalize();
    free(w);
}

/* MPI_Init returns when all ranks have called it: one that is frozen, or on a host that is, keeps it for ever. */
static int init_guarded(double timeout, void (*stalled)(void), int *given) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) rank = getenv("PMIX_RANK");
    wait_guard *g =
        wait_guard_begin(timeout, stalled ? stalled : abort, !rank || !strcmp(rank, "0"),
                         "all ranks to start, in MPI_Init");
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, given);
    wait_guard_end(g);
    return code;
}

err transport_mpi_open(double timeout, void (*stalled)(void), transport **out) {
    int given, rank, ranks;
    TRY_MPI(init_guarded(timeout, stalled, &given));
    TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    if (given < MPI_THREAD_SERIALIZED)
        return err_hint(ERR("this MPI does not allow calls from several threads"),
                        "use one that was built with thread support");
    TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
    transport *w = mem_alloc(sizeof *w);
    *w = (transport){ .name = "MPI",
                      .rank = rank,
                      .ranks = ranks,
                      .send = mpi_send,
                      .recv = mpi_recv,
                      .test = mpi_test,
                      .close = mpi_close };
    *out = w;
    return OK;
}
