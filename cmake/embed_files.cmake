# Writes a C file that holds text files: an array NAME of { name, text } that ends in { 0 }.
#
#     cmake -DFILES=a.yaml|b.yaml -DOUT=FILE.c -DNAME=symbol -P embed_files.cmake
string(REPLACE "|" ";" FILES "${FILES}")
set(table "")
set(texts "")
set(n 0)
foreach(path ${FILES})
    get_filename_component(name ${path} NAME_WLE)
    file(READ ${path} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
    string(APPEND texts "static const char text_${n}[] = {\n${bytes}0 };\n")
    string(APPEND table "    { \"${name}\", text_${n} },\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "/* ${NAME}: text files, compiled in. */\n#include \"util/util.h\"\n"
    "${texts}const embedded_file ${NAME}[] = {\n${table}    { 0 }\n};\n")
