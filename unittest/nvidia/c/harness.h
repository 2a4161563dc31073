/* What the C tests are written with: checks, a list of tests, the stand-in's symbols. */
#ifndef TRITON_EXT_HARNESS_H
#define TRITON_EXT_HARNESS_H

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the stand-ins lie. */
static const char *folder;
/* Of the test that runs. */
static int failed_checks;

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            ++failed_checks;                                                            \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__,  \
                    #condition);                                                        \
        }                                                                               \
    } while (0)

#define CHECK_EQUAL(got, expected)                                                          \
    do {                                                                                    \
        int64_t got_ = (int64_t)(got), expected_ = (int64_t)(expected);                     \
        if (got_ != expected_) {                                                            \
            ++failed_checks;                                                                \
            fprintf(stderr, "%s:%d: %s: %s is %" PRId64 ", expected %" PRId64 "\n",         \
                    __FILE__, __LINE__, __func__, #got, got_, expected_);                   \
        }                                                                                   \
    } while (0)

#define CHECK_CONTAINS(error, part)                                                           \
    do {                                                                                      \
        if (strstr((error).message, part) == NULL) {                                          \
            ++failed_checks;                                                                  \
            fprintf(stderr, "%s:%d: %s: no \"%s\" in:\n%s\n", __FILE__, __LINE__, __func__,   \
                    part, (error).message);                                                   \
        }                                                                                     \
    } while (0)

/* Returns a file of the folder, until the next call. */
static inline const char *path_of(const char *name) {
    static char buffer[4096];
    snprintf(buffer, sizeof buffer, "%s/%s", folder, name);
    return buffer;
}

/* dlsym's object pointer, as POSIX allows. */
static inline void load_symbol(void *handle, const char *name, void *function) {
    void *address = dlsym(handle, name);
    if (address == NULL) {
        fprintf(stderr, "%s is not in the stand-in: is LD_LIBRARY_PATH set?\n", name);
        exit(2);
    }
    memcpy(function, &address, sizeof address);
}

typedef struct {
    const char *name;
    void (*run)(void);
} test;

#define TEST(function) {#function, function}

/* Runs tests, each after prepare, and returns main's result. */
static inline int run_tests(const test *tests, size_t count, void (*prepare)(void)) {
    int failed = 0;
    for (size_t i = 0; i < count; ++i) {
        failed_checks = 0;
        prepare();
        tests[i].run();
        if (failed_checks != 0) {
            ++failed;
            fprintf(stderr, "FAILED %s\n", tests[i].name);
        }
    }
    printf("%d passed, %d failed\n", (int)count - failed, failed);
    return failed == 0 ? 0 : 1;
}

#endif
