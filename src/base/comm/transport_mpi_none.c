/* A build without MPI. */
#include "comm_internal.h"

err transport_mpi_open(double timeout, void (*stalled)(void), transport **out) {
    return err_hint(ERR("this process was started by mpirun, but this build of ingot has no MPI"),
                    "install libopenmpi-dev and build again; or start ranks without mpirun: "
                    "ingot launch");
}
