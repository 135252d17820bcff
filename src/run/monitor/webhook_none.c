/* A build without libcurl posts nothing. */
#include "webhook_internal.h"

err webhook_check(const char *address) {
    return err_hint(ERR("alerts.webhook: this build has no libcurl"),
                    "install libcurl's headers and build again; or let alerts.command run curl");
}

err webhook_post(const char *address, const char *text, double seconds) {
    BUG("refused by webhook_check");
}
