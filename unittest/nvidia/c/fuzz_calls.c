/* Random calls of tensor_map.c and prepared_launch.c, for the sanitizers.
 *
 * Usage: fuzz_calls FOLDER CALLS SEED, where FOLDER holds launcher/libcuda.so.1.  THREADS threads
 * share the calls.  Whatever the arguments are, a call ends with one of its results, and a message
 * where that is an error. */
#define _POSIX_C_SOURCE 200809L

#include "fake_libcuda.h"
#include "harness.h"
#include "prepared_launch.h"

#include <pthread.h>

enum { THREADS = 4, KINDS = 5 };

typedef struct {
    pthread_t thread;
    uint64_t state;
    uint64_t calls;
    uint64_t succeeded[KINDS];
    int wrong;
} worker;

static fake_state *fake;

/* xorshift64* */
static uint64_t next(worker *self) {
    self->state ^= self->state >> 12;
    self->state ^= self->state << 25;
    self->state ^= self->state >> 27;
    return self->state * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t below(worker *self, uint64_t limit) { return next(self) % limit; }

/* A number that is legal at most places, or one near the limits of some type. */
static uint64_t some_number(worker *self) {
    static const uint64_t odd[] = {
        0, 1, 2, 3, 5, 15, 127, 128, 255, 65535, INT32_MAX, UINT32_MAX, UINT64_C(1) << 32,
        UINT64_C(1) << 40, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX,
    };
    if (below(self, 4) != 0) return UINT64_C(8) << below(self, 6);
    if (below(self, 2) != 0) return odd[below(self, sizeof odd / sizeof odd[0])];
    return next(self);
}

static tm_tensor some_tensor(worker *self) {
    tm_tensor tensor = {
        .address = below(self, 4) != 0 ? below(self, 1 << 20) << 12 : next(self),
        .data_type = (int)below(self, 17) - 1,
        .element_bytes = (uint32_t)(below(self, 8) != 0 ? 2 : some_number(self)),
        .rank = (uint32_t)(below(self, 8) != 0 ? 1 + below(self, TM_MAX_RANK) : some_number(self)),
        .swizzle = (int)below(self, 6) - 1,
        .fill_nan = below(self, 2) != 0,
    };
    for (uint32_t i = 0; i < TM_MAX_RANK; ++i) {
        tensor.shape[i] = some_number(self);
        tensor.strides[i] = i + 1 == tensor.rank && below(self, 8) != 0 ? 1 : some_number(self);
        tensor.element_strides[i] = (uint32_t)some_number(self);
    }
    return tensor;
}

static bool is_told(tm_status status, const tm_error *error) {
    return (status == TM_OK) == (error->message[0] == '\0') &&
           memchr(error->message, '\0', sizeof error->message) != NULL;
}

static tm_status call_im2col(worker *self) {
    tm_im2col request = {
        .tensor = some_tensor(self),
        .channels_per_pixel = (uint32_t)some_number(self),
        .pixels_per_column = (uint32_t)some_number(self),
    };
    for (int i = 0; i < TM_MAX_SPATIAL_RANK; ++i) {
        request.pixel_box_lower_corner[i] = (int)some_number(self);
        request.pixel_box_upper_corner[i] = (int)-some_number(self);
    }
    tm_map map;
    tm_error error;
    tm_status status = fill_tma_descriptor_im2col(&request, &map, &error);
    if (!is_told(status, &error)) ++self->wrong;
    return status;
}

static tm_status call_tiled(worker *self) {
    tm_tiled request = {.tensor = some_tensor(self)};
    for (int i = 0; i < TM_MAX_RANK; ++i) request.block_shape[i] = (uint32_t)some_number(self);
    tm_map map;
    tm_error error;
    tm_status status = fill_tma_descriptor_tiled(&request, &map, &error);
    if (!is_told(status, &error)) ++self->wrong;
    return status;
}

static tm_status call_replace(worker *self) {
    tm_map map;
    for (size_t i = 0; i < TM_MAP_BYTES / sizeof map.words[0]; ++i) map.words[i] = next(self);
    tm_error error;
    tm_status status = replace_tma_descriptor_address(&map, some_number(self) << 4, &error);
    if (!is_told(status, &error)) ++self->wrong;
    return status;
}

static tm_status call_find(worker *self) {
    static const char *const names[] = {"cuLaunchKernelEx", "no_such_function", ""};
    void *function = NULL;
    tm_error error;
    int version = 0;
    if (below(self, 2) != 0) return tm_driver_version(&version, &error);
    tm_status status = tm_find_function(names[below(self, 3)], &function, &error);
    if ((status == TM_OK) != (function != NULL)) ++self->wrong;
    return status;
}

static uint32_t count_up_to(worker *self, uint32_t most) {
    return (uint32_t)(below(self, 16) != 0 ? below(self, most + 1) : some_number(self));
}

static tm_status call_launch(worker *self) {
    uint32_t offsets[PL_MAX_PARAMETERS];
    uint8_t values[PL_MAX_BYTES];
    pl_slot slots[PL_MAX_SLOTS];
    memset(values, (int)below(self, 256), sizeof values);
    pl_request request = {
        .function = next(self),
        .num_warps = (uint32_t)(below(self, 8) != 0 ? 4 : some_number(self)),
        .num_ctas = (uint32_t)(below(self, 8) != 0 ? 1 : some_number(self)),
        .shared_bytes = (uint32_t)below(self, 1 << 18),
        .has_pdl = below(self, 2) != 0,
        .is_cooperative = below(self, 2) != 0,
        .parameters = count_up_to(self, 16),
        .offsets = offsets,
        .bytes = below(self, 4) != 0 ? PL_MAX_BYTES : count_up_to(self, PL_MAX_BYTES),
        .values = values,
        .slots = count_up_to(self, 8),
        .slot = slots,
    };
    for (int i = 0; i < 3; ++i) request.grid[i] = (uint32_t)(1 + below(self, 9));
    if (below(self, 8) == 0) request.grid[below(self, 3)] = (uint32_t)some_number(self);
    for (uint32_t i = 0; i < PL_MAX_PARAMETERS; ++i)
        offsets[i] = (uint32_t)(below(self, 64) != 0 ? 8 * below(self, 64) : some_number(self));
    for (uint32_t i = 0; i < PL_MAX_SLOTS; ++i)
        slots[i] = (pl_slot){
            .kind = below(self, 2) != 0 ? PL_POINTER : PL_MAP,
            .offset = (uint32_t)(below(self, 64) != 0 ? 64 * below(self, 60) : some_number(self)),
        };
    pl_launch *prepared = NULL;
    tm_error error;
    tm_status status = pl_prepare(&request, &prepared, &error);
    if ((status == TM_OK) != (prepared != NULL)) ++self->wrong;
    if (prepared == NULL) return status;
    if (pl_slots(prepared) != request.slots) ++self->wrong;
    for (int run = 0; run < 3; ++run) {
        uint64_t addresses[PL_MAX_SLOTS];
        for (int i = 0; i < PL_MAX_SLOTS; ++i) addresses[i] = some_number(self) << below(self, 5);
        const char *reason = NULL;
        pl_result result = pl_run(prepared, next(self), addresses, &reason);
        if ((result == PL_FAILED) != (reason != NULL)) ++self->wrong;
    }
    pl_free(prepared);
    return TM_OK;
}

static tm_status (*const calls[KINDS])(worker *) = {call_im2col, call_tiled, call_replace, call_find,
                                                    call_launch};

/* What the driver answers, now and then something else, for all threads. */
static void change_driver(worker *self) {
    static const size_t results[] = {
        offsetof(fake_state, has_context),    offsetof(fake_state, current_result),
        offsetof(fake_state, pointer_result), offsetof(fake_state, retain_result),
        offsetof(fake_state, push_result),    offsetof(fake_state, encode_result),
        offsetof(fake_state, replace_result), offsetof(fake_state, has_error_texts),
        offsetof(fake_state, version_result),
    };
    size_t chosen = results[below(self, sizeof results / sizeof results[0])];
    atomic_int *field = (atomic_int *)((char *)fake + chosen);
    static const int answers[] = {1, 201, 700, -1};
    bool is_context = chosen == offsetof(fake_state, has_context);
    bool is_healthy = below(self, 4) != 0;
    atomic_store(field, is_healthy ? is_context : is_context ? 0 : answers[below(self, 4)]);
}

static void *run(void *argument) {
    worker *self = argument;
    for (uint64_t call = 0; call < self->calls; ++call) {
        if (call % 1024 == 1023) change_driver(self);
        uint64_t kind = below(self, KINDS);
        if (calls[kind](self) == TM_OK) ++self->succeeded[kind];
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: %s FOLDER CALLS SEED\n", arguments[0]);
        return 2;
    }
    folder = arguments[1];
    tm_error error;
    void *handle = dlopen(path_of("launcher/libcuda.so.1"), RTLD_NOW);
    if (handle == NULL || tm_open_library(path_of("launcher/libcuda.so.1"), &error) != TM_OK) {
        fprintf(stderr, "%s\n", handle == NULL ? dlerror() : error.message);
        return 2;
    }
    fake_state_function *get_state = NULL;
    load_symbol(handle, "fake_libcuda_state", &get_state);
    fake = get_state();

    static worker workers[THREADS];
    uint64_t total = strtoull(arguments[2], NULL, 10), seed = strtoull(arguments[3], NULL, 10);
    int wrong = 0;
    for (uint64_t i = 0; i < THREADS; ++i) {
        workers[i] = (worker){
            .state = (seed * THREADS + i + 1) * UINT64_C(0x9e3779b97f4a7c15),
            .calls = total / THREADS + (i < total % THREADS),
        };
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) abort();
    }
    uint64_t succeeded[KINDS] = {0};
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(workers[i].thread, NULL);
        wrong += workers[i].wrong;
        for (int kind = 0; kind < KINDS; ++kind) succeeded[kind] += workers[i].succeeded[kind];
    }
    printf("%" PRIu64 " calls, %d wrong; succeeded: %" PRIu64 " im2col, %" PRIu64 " tiled, %" PRIu64
           " replaced, %" PRIu64 " found, %" PRIu64 " launched\n",
           total, wrong, succeeded[0], succeeded[1], succeeded[2], succeeded[3], succeeded[4]);
    return wrong == 0 ? 0 : 1;
}
