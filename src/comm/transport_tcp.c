#include "comm_internal.h"

err transport_tcp_open(int rank, int ranks, const char *host, int port, double timeout,
                       transport **out) {
    return err_hint(
        ERR("RANK and WORLD_SIZE are set, but ranks that meet over TCP are not there yet"),
        "use mpirun; unset WORLD_SIZE to train alone");
}
