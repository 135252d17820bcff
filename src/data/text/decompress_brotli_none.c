/* Brotli in a build without its library: such inputs are refused. */
#include "text/decompress.h"

const decoder decode_brotli = { .package = "libbrotli-dev" };
