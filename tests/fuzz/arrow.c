/* Any bytes as an Arrow file or stream: read by the same functions as Parquet, from seeds of its own. */
#include "fuzz/parquet.c"
