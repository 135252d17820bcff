/* xz in a build without its library: such inputs are refused. */
#include "text/decompress.h"

const decoder decode_xz = { .package = "liblzma-dev" };
