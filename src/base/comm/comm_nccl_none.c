/* A build without NCCL: several ranks compute on CPUs. */
#include "comm_internal.h"

err comm_nccl(comm *host, const comm_gpu *gpu, comm **out) {
    return err_hint(ERR("this build has no NCCL, through which GPUs of several ranks communicate"),
                    "build with the preset cuda on a machine that has nccl.h and libnccl, or use "
                    "--device=cpu");
}
