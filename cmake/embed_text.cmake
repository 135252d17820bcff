# Writes a C file that holds a text file: cmake -DIN=FILE -DOUT=FILE.c -DNAME=symbol -P embed_text.cmake
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* ${NAME}: the text of a file, with a NUL after it. */\n#include <stddef.h>\n"
    "extern const char ${NAME}[];\nextern const size_t ${NAME}_size;\n"
    "const char ${NAME}[] = {\n${bytes}0 };\nconst size_t ${NAME}_size = sizeof ${NAME} - 1;\n")
