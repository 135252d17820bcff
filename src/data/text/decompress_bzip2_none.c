/* bzip2 in a build without its library: such inputs are refused. */
#include "text/decompress.h"

const decoder decode_bzip2 = { .package = "libbz2-dev" };
