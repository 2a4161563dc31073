/* Tests of prepared_launch.c against fake_libcuda.c and fake_launcher.c.
 *
 * Usage: test_prepared_launch FOLDER, where FOLDER holds launcher/libcuda.so.1, the stand-in with
 * its launches, and libcuda.so.1, the one without. */
#define _POSIX_C_SOURCE 200809L

#include "fake_libcuda.h"
#include "harness.h"
#include "prepared_launch.h"

#include <pthread.h>

static fake_state *fake;
static fake_reset_function *reset;
static void (*listen_to)(void (*)(const void *, void *, void **));
static void (*set_result)(int);

/* ---- A kernel: a map, an int, a pointer, and a map -------------------------------------------- */

enum { PARAMETERS = 4, BYTES = 384, FIRST_MAP = 0, NUMBER = 128, POINTER = 136, LAST_MAP = 256 };

static const uint32_t offsets[PARAMETERS] = {FIRST_MAP, NUMBER, POINTER, LAST_MAP};
static const pl_slot slots[] = {{PL_MAP, FIRST_MAP}, {PL_POINTER, POINTER}, {PL_MAP, LAST_MAP}};

static uint8_t values[BYTES]; /* main fills it */

static pl_request a_request(void) {
    return (pl_request){
        .function = 0x1234,
        .grid = {5, 6, 7},
        .num_warps = 4,
        .num_ctas = 1,
        .shared_bytes = 4096,
        .parameters = PARAMETERS,
        .offsets = offsets,
        .bytes = BYTES,
        .values = values,
        .slots = 3,
        .slot = slots,
    };
}

/* ---- What the driver gets --------------------------------------------------------------------- */

/* CUlaunchConfig and CUlaunchAttribute, as the CUDA driver API has them. */
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    uint64_t stream;
    const uint8_t *attributes;
    unsigned num_attributes;
} config;

enum { ATTRIBUTE_BYTES = 72, VALUE_AT = 8 };

static _Thread_local struct {
    int launches;
    config config;
    void *function;
    uint8_t attributes[4][ATTRIBUTE_BYTES];
    uint64_t first_address, pointer, last_address;
    int number;
    bool rest_is_kept;
} seen;

static void listen(const void *given, void *function, void **parameters) {
    ++seen.launches;
    memcpy(&seen.config, given, sizeof seen.config);
    seen.function = function;
    for (unsigned i = 0; i < seen.config.num_attributes; ++i)
        memcpy(seen.attributes[i], seen.config.attributes + i * ATTRIBUTE_BYTES, ATTRIBUTE_BYTES);
    memcpy(&seen.first_address, parameters[0], sizeof seen.first_address);
    memcpy(&seen.number, parameters[1], sizeof seen.number);
    memcpy(&seen.pointer, parameters[2], sizeof seen.pointer);
    memcpy(&seen.last_address, parameters[3], sizeof seen.last_address);
    /* The stand-in's maps begin with their address. */
    seen.rest_is_kept =
        memcmp((char *)parameters[0] + 8, values + FIRST_MAP + 8, TM_MAP_BYTES - 8) == 0 &&
        memcmp((char *)parameters[3] + 8, values + LAST_MAP + 8, TM_MAP_BYTES - 8) == 0;
}

static pl_launch *prepare(const pl_request *request) {
    pl_launch *prepared = NULL;
    tm_error error;
    CHECK(pl_prepare(request, &prepared, &error) == TM_OK);
    return prepared;
}

static const uint64_t addresses[] = {0x7f0000001000, 0x7f0000002008, 0x7f0000003010};

static void test_a_launch(void) {
    pl_request request = a_request();
    pl_launch *prepared = prepare(&request);
    CHECK(pl_slots(prepared) == 3);
    const char *reason = NULL;
    CHECK(pl_run(prepared, 0x77, addresses, &reason) == PL_LAUNCHED);
    CHECK(seen.launches == 1);
    CHECK(seen.function == (void *)(uintptr_t)0x1234);
    const unsigned grid[] = {5, 6, 7}, block[] = {128, 1, 1};
    CHECK(memcmp(seen.config.grid, grid, sizeof grid) == 0);
    CHECK(memcmp(seen.config.block, block, sizeof block) == 0);
    CHECK(seen.config.shared_bytes == 4096);
    CHECK(seen.config.stream == 0x77);
    CHECK(seen.config.num_attributes == 0);
    CHECK(seen.first_address == addresses[0]);
    CHECK(seen.pointer == addresses[1]);
    CHECK(seen.last_address == addresses[2]);
    CHECK(memcmp(&seen.number, values + NUMBER, sizeof seen.number) == 0);
    CHECK(seen.rest_is_kept);
    pl_free(prepared);
}

static void test_a_launch_changes_nothing_for_the_next(void) {
    pl_request request = a_request();
    pl_launch *prepared = prepare(&request);
    const char *reason = NULL;
    const uint64_t others[] = {0x10, 0, 0x20};
    CHECK(pl_run(prepared, 0, others, &reason) == PL_LAUNCHED);
    CHECK(seen.pointer == 0);
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_LAUNCHED);
    CHECK(seen.first_address == addresses[0]);
    CHECK(seen.rest_is_kept);
    pl_free(prepared);
}

static int attribute_id(unsigned index) {
    int id = 0;
    memcpy(&id, seen.attributes[index], sizeof id);
    return id;
}

static void test_attributes_in_tritons_order(void) {
    pl_request request = a_request();
    request.has_pdl = request.is_cooperative = true;
    request.num_ctas = 2;
    pl_launch *prepared = prepare(&request);
    const char *reason = NULL;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_LAUNCHED);
    CHECK(seen.config.grid[0] == 10);
    CHECK(seen.config.num_attributes == 4);
    const int ids[] = {6, 2, 4, 5};
    const unsigned first[] = {1, 1, 2, 1};
    for (unsigned i = 0; i < 4; ++i) {
        unsigned value = 0;
        CHECK(attribute_id(i) == ids[i]);
        memcpy(&value, seen.attributes[i] + VALUE_AT, sizeof value);
        CHECK(value == first[i]);
        /* Nothing but what the attribute has: (num_ctas, 1, 1), or one number. */
        for (int at = VALUE_AT + 4; at < ATTRIBUTE_BYTES; ++at) {
            bool is_one = ids[i] == 4 && (at == VALUE_AT + 4 || at == VALUE_AT + 8);
            CHECK(seen.attributes[i][at] == (is_one ? 1 : 0));
        }
    }
    pl_free(prepared);
}

static void test_what_is_not_launched(void) {
    pl_request request = a_request();
    pl_launch *prepared = prepare(&request);
    const char *reason = NULL;
    const uint64_t no_memory[] = {0, 0x10, 0x20}, unaligned[] = {0x10, 0x10, 0x28};
    CHECK(pl_run(prepared, 0, no_memory, &reason) == PL_NOT_LAUNCHED);
    CHECK(pl_run(prepared, 0, unaligned, &reason) == PL_NOT_LAUNCHED);
    fake->replace_result = 1;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_NOT_LAUNCHED);
    fake->replace_result = 0;
    fake->has_context = 0;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_NOT_LAUNCHED);
    fake->has_context = 1;
    fake->current_result = 999;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_NOT_LAUNCHED);
    CHECK(seen.launches == 0);
    fake->current_result = 0;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_LAUNCHED);
    pl_free(prepared);
}

static void test_a_launch_that_fails(void) {
    pl_request request = a_request();
    pl_launch *prepared = prepare(&request);
    const char *reason = NULL;
    set_result(1);
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_FAILED);
    CHECK(reason != NULL && strcmp(reason, "invalid argument") == 0);
    fake->has_error_texts = 0;
    CHECK(pl_run(prepared, 0, addresses, &reason) == PL_FAILED);
    CHECK(reason != NULL && strcmp(reason, "unknown error") == 0);
    pl_free(prepared);
}

/* ---- Requests that make no sense -------------------------------------------------------------- */

static void check_refused(const pl_request *request) {
    pl_launch *prepared = NULL;
    tm_error error;
    CHECK(pl_prepare(request, &prepared, &error) == TM_BAD_ARGUMENT);
    CHECK(prepared == NULL);
    CHECK(error.message[0] != '\0');
}

static void check_slot_refused(pl_kind kind, uint32_t offset) {
    pl_request request = a_request();
    const pl_slot slot = {kind, offset};
    request.slot = &slot;
    request.slots = 1;
    check_refused(&request);
}

static void test_requests_beyond_the_arrays(void) {
    static uint8_t many_bytes[PL_MAX_BYTES + 1];
    static uint32_t many_offsets[PL_MAX_PARAMETERS + 1];
    static pl_slot many_slots[PL_MAX_SLOTS + 1];
    pl_request request = a_request();
    request.values = many_bytes;
    request.bytes = PL_MAX_BYTES + 1;
    check_refused(&request);
    request = a_request();
    request.offsets = many_offsets;
    request.parameters = PL_MAX_PARAMETERS + 1;
    check_refused(&request);
    request = a_request();
    request.slot = many_slots;
    request.slots = PL_MAX_SLOTS + 1;
    check_refused(&request);
    request = a_request();
    const uint32_t outside = BYTES;
    request.offsets = &outside;
    request.parameters = 1;
    check_refused(&request);
}

static void test_slots_outside_or_unaligned(void) {
    check_slot_refused(PL_MAP, BYTES);
    check_slot_refused(PL_MAP, BYTES - 64);
    check_slot_refused(PL_MAP, 64);
    check_slot_refused(PL_POINTER, BYTES);
    check_slot_refused(PL_POINTER, UINT32_MAX);
    check_slot_refused(PL_POINTER, 4);
    pl_request request = a_request();
    const pl_slot slot = {PL_MAP, 0};
    request.slot = &slot;
    request.slots = 1;
    request.parameters = 0;
    request.bytes = 8;
    check_refused(&request);
}

static void test_largest_request(void) {
    static uint8_t bytes[PL_MAX_BYTES];
    static uint32_t places[PL_MAX_PARAMETERS];
    static pl_slot most[PL_MAX_SLOTS];
    static uint64_t given[PL_MAX_SLOTS];
    for (uint32_t i = 0; i < PL_MAX_PARAMETERS; ++i) places[i] = PL_MAX_BYTES - 8;
    for (uint32_t i = 0; i < PL_MAX_SLOTS; ++i) {
        most[i] = (pl_slot){PL_MAP, PL_MAX_BYTES - (i + 1) * TM_MAP_BYTES};
        given[i] = 16 * (i + 1);
    }
    pl_request request = a_request();
    request.values = bytes;
    request.bytes = PL_MAX_BYTES;
    request.offsets = places;
    request.parameters = PL_MAX_PARAMETERS;
    request.slot = most;
    request.slots = PL_MAX_SLOTS;
    pl_launch *prepared = prepare(&request);
    const char *reason = NULL;
    listen_to(NULL);
    CHECK(pl_run(prepared, 0, given, &reason) == PL_LAUNCHED);
    pl_free(prepared);
}

static void test_no_context(void) {
    pl_request request = a_request();
    fake->has_context = 0;
    check_refused(&request);
}

static void test_driver_without_launches(void) {
    tm_error error;
    CHECK(tm_open_library(path_of("libcuda.so.1"), &error) == TM_OK);
    pl_request request = a_request();
    pl_launch *prepared = NULL;
    CHECK(pl_prepare(&request, &prepared, &error) == TM_NO_SYMBOL);
    CHECK(prepared == NULL);
    CHECK(strstr(error.message, "cuLaunchKernelEx is missing in ") != NULL);
    CHECK(tm_open_library(path_of("launcher/libcuda.so.1"), &error) == TM_OK);
}

/* ---- Threads ---------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 500 };

typedef struct {
    const pl_launch *prepared;
    uint64_t base;
    int wrong;
} worker;

static void *launch_often(void *argument) {
    worker *self = argument;
    for (uint64_t i = 1; i <= ROUNDS; ++i) {
        const uint64_t own[] = {self->base + 16 * i, self->base + 8 * i, self->base + 32 * i};
        const char *reason = NULL;
        if (pl_run(self->prepared, self->base, own, &reason) != PL_LAUNCHED ||
            seen.config.stream != self->base || seen.first_address != own[0] ||
            seen.pointer != own[1] || seen.last_address != own[2] || !seen.rest_is_kept)
            ++self->wrong;
    }
    return NULL;
}

static void test_threads_share_a_prepared_launch(void) {
    pl_request request = a_request();
    pl_launch *prepared = prepare(&request);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        workers[i] = (worker){prepared, (uint64_t)(i + 1) << 32, 0};
        CHECK(pthread_create(&threads[i], NULL, launch_often, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].wrong == 0);
    }
    pl_free(prepared);
}

/* ---- Main ------------------------------------------------------------------------------------- */

static const test tests[] = {
    TEST(test_a_launch),
    TEST(test_a_launch_changes_nothing_for_the_next),
    TEST(test_attributes_in_tritons_order),
    TEST(test_what_is_not_launched),
    TEST(test_a_launch_that_fails),
    TEST(test_requests_beyond_the_arrays),
    TEST(test_slots_outside_or_unaligned),
    TEST(test_largest_request),
    TEST(test_no_context),
    TEST(test_driver_without_launches),
    TEST(test_threads_share_a_prepared_launch),
};

static void start_again(void) {
    reset();
    set_result(0);
    memset(&seen, 0, sizeof seen);
    listen_to(listen);
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return 2;
    }
    folder = arguments[1];
    for (int i = 0; i < BYTES; ++i) values[i] = (uint8_t)i;
    tm_error error;
    void *handle = dlopen(path_of("launcher/libcuda.so.1"), RTLD_NOW);
    if (handle == NULL || tm_open_library(path_of("launcher/libcuda.so.1"), &error) != TM_OK) {
        fprintf(stderr, "%s\n", handle == NULL ? dlerror() : error.message);
        return 2;
    }
    fake_state_function *get_state = NULL;
    load_symbol(handle, "fake_libcuda_state", &get_state);
    load_symbol(handle, "fake_libcuda_reset", &reset);
    load_symbol(handle, "fake_launcher_listen", &listen_to);
    load_symbol(handle, "fake_launcher_set_result", &set_result);
    fake = get_state();

    return run_tests(tests, sizeof tests / sizeof tests[0], start_again);
}
