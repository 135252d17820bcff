# Writes OUT, a C file with what `git describe` prints of SOURCE ("" where that is not a repository), or REVISION, and with the
# optional features that are built in (WITH) and left out (WITHOUT). The file changes only when one of these does, so that nothing
# is compiled again without need.
if(REVISION)
    set(revision "${REVISION}")
else()
    execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
        OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
endif()
if(failed OR NOT revision MATCHES "^[A-Za-z0-9._/-]+$")
    set(revision "")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT
    "#include \"util/util.h\"\n\nconst char *build_revision(void) { return \"${revision}\"; }\n\
const char *build_features(bool present) { return present ? \"${WITH}\" : \"${WITHOUT}\"; }\n")
