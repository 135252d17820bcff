/* LZ4 in a build without its library: such inputs are refused. */
#include "text/decompress.h"

const decoder decode_lz4 = { .package = "liblz4-dev" };
