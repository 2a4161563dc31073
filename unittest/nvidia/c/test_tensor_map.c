/* Tests of tensor_map.c against fake_libcuda.c.
 *
 * Usage: test_tensor_map FOLDER, where FOLDER holds libcuda.so.1 (the stand-in) and old/libcuda.so.1
 * (the stand-in without the im2col encoder), with LD_LIBRARY_PATH set to FOLDER, so that the
 * default name finds the stand-in too. */
#define _POSIX_C_SOURCE 200809L

#include "fake_libcuda.h"
#include "harness.h"
#include "tensor_map.h"

#include <pthread.h>

static fake_state *fake;
static fake_record_function *last_record;
static fake_reset_function *reset;

/* A legal request whose every number differs from every other. */
static tm_im2col request_of_rank(uint32_t rank) {
    tm_im2col request = {
        .tensor = {.address = 0x7f0000001230, .data_type = 6, .element_bytes = 2, .rank = rank,
                   .swizzle = 3},
        .channels_per_pixel = 64,
        .pixels_per_column = 128,
    };
    uint64_t stride = 1;
    for (uint32_t i = 0; i < rank; ++i) {
        uint32_t dim = rank - 1 - i;
        request.tensor.shape[dim] = 72 + 8 * i;
        request.tensor.strides[dim] = stride;
        stride *= 80 + 8 * i;
        request.tensor.element_strides[dim] = dim == 0 || dim == rank - 1 ? 1 : 1 + i;
    }
    for (uint32_t i = 0; i < rank - 2; ++i) {
        request.pixel_box_lower_corner[i] = -1 - (int)i;
        request.pixel_box_upper_corner[i] = -11 - (int)i;
    }
    return request;
}

/* The same tensor, read in blocks. */
static tm_tiled tiled_of_rank(uint32_t rank) {
    tm_tiled request = {.tensor = request_of_rank(3).tensor};
    request.tensor.rank = rank;
    uint64_t stride = 1;
    for (uint32_t i = 0; i < rank; ++i) {
        uint32_t dim = rank - 1 - i;
        request.tensor.shape[dim] = 72 + 8 * i;
        request.tensor.strides[dim] = stride;
        stride *= 80 + 8 * i;
        request.tensor.element_strides[dim] = 1 + i;
        request.block_shape[dim] = 64 >> i;
    }
    return request;
}

/* [N, W, C] fp16 that spans exactly the given number of bytes. */
static tm_im2col request_of_span(uint64_t span_bytes) {
    tm_im2col request = request_of_rank(3);
    uint64_t shape[] = {2, 4, 8};
    memcpy(request.tensor.shape, shape, sizeof shape);
    request.tensor.strides[2] = 1;
    request.tensor.strides[1] = 8;
    /* last byte = (N-1) * stride + 3 * 16 + 7 * 2 + 1 */
    request.tensor.strides[0] = (span_bytes - 1 - 3 * 16 - 7 * 2 - 1) / 2;
    return request;
}

static bool bit_21(const tm_map *map) { return map->words[1] >> 21 & 1; }

/* ---- Threads: first, because the library must not be open yet -------------------------------- */

enum { THREADS = 32, CALLS_PER_THREAD = 500 };

typedef struct {
    pthread_t thread;
    uint64_t number;
    int wrong;
} worker;

static pthread_barrier_t start_line;

static void *encode_many(void *argument) {
    worker *self = argument;
    pthread_barrier_wait(&start_line);
    for (uint64_t call = 0; call < CALLS_PER_THREAD; ++call) {
        tm_im2col request = request_of_rank(3 + (uint32_t)((self->number + call) % 3));
        request.tensor.address = (self->number << 32 | call << 4) + 16;
        tm_map map;
        tm_error error;
        if (fill_tma_descriptor_im2col(&request, &map, &error) != TM_OK) ++self->wrong;
        if (map.words[0] != request.tensor.address) ++self->wrong;
        uint32_t rank = request.tensor.rank;
        for (uint32_t i = 0; i < rank; ++i)
            if (map.words[2 + i] != request.tensor.shape[rank - 1 - i]) ++self->wrong;
        if (replace_tma_descriptor_address(&map, (call + 1) << 4, &error) != TM_OK) ++self->wrong;
        if (map.words[0] != (call + 1) << 4) ++self->wrong;
        tm_tiled tiled = tiled_of_rank(1 + (uint32_t)((self->number + call) % 5));
        tiled.tensor.address = request.tensor.address;
        if (fill_tma_descriptor_tiled(&tiled, &map, &error) != TM_OK) ++self->wrong;
        if (map.words[0] != tiled.tensor.address || map.words[2] != 72) ++self->wrong;
        /* Every thread fails now and then, so that messages are written side by side. */
        request.tensor.rank = 9;
        if (fill_tma_descriptor_im2col(&request, &map, &error) != TM_BAD_ARGUMENT) ++self->wrong;
    }
    return NULL;
}

static int run_threads(void) {
    static worker workers[THREADS];
    int wrong = 0;
    pthread_barrier_init(&start_line, NULL, THREADS);
    for (uint64_t i = 0; i < THREADS; ++i) {
        workers[i] = (worker){.number = i};
        if (pthread_create(&workers[i].thread, NULL, encode_many, &workers[i]) != 0) abort();
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(workers[i].thread, NULL);
        wrong += workers[i].wrong;
    }
    pthread_barrier_destroy(&start_line);
    return wrong;
}

static void test_32_threads_open_and_encode(void) {
    CHECK_EQUAL(run_threads(), 0);
    CHECK_EQUAL(fake->encodes, 2 * THREADS * CALLS_PER_THREAD);
    CHECK_EQUAL(fake->replaces, THREADS * CALLS_PER_THREAD);
}

static void test_32_threads_borrow_contexts(void) {
    fake->has_context = 0;
    CHECK_EQUAL(run_threads(), 0);
    CHECK_EQUAL(fake->retains, 3 * THREADS * CALLS_PER_THREAD);
    CHECK_EQUAL(fake->releases, 3 * THREADS * CALLS_PER_THREAD);
    CHECK_EQUAL(fake->pushes, fake->pops);
}

/* ---- Packing --------------------------------------------------------------------------------- */

static void check_packing(uint32_t rank) {
    tm_im2col request = request_of_rank(rank);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(error.message[0], '\0');
    const fake_record *got = last_record();
    CHECK_EQUAL(got->rank, rank);
    CHECK_EQUAL(got->data_type, 6);
    CHECK_EQUAL(got->address, 0x7f0000001230);
    CHECK_EQUAL(got->channels, 64);
    CHECK_EQUAL(got->pixels, 128);
    CHECK_EQUAL(got->swizzle, 3);
    CHECK_EQUAL(got->interleave, 0);
    CHECK_EQUAL(got->l2_promotion, 2);
    CHECK_EQUAL(got->oob_fill, 0);
    CHECK_EQUAL(got->current_device, -1);
    /* Innermost first: C = 72, W = 80, ...; strides in bytes, without that of C. */
    uint64_t stride_bytes = 2;
    for (uint32_t i = 0; i < rank; ++i) {
        CHECK_EQUAL(got->dims[i], 72 + 8 * i);
        stride_bytes *= 80 + 8 * i;
        if (i < rank - 1) CHECK_EQUAL(got->strides[i], stride_bytes);
        CHECK_EQUAL(got->element_strides[i], i == 0 || i == rank - 1 ? 1 : 1 + i);
    }
    for (uint32_t i = 0; i < rank - 2; ++i) {
        CHECK_EQUAL(got->lower[i], -1 - (int)(rank - 3 - i));
        CHECK_EQUAL(got->upper[i], -11 - (int)(rank - 3 - i));
    }
}

static void test_packing_rank_3(void) { check_packing(3); }
static void test_packing_rank_4(void) { check_packing(4); }
static void test_packing_rank_5(void) { check_packing(5); }

static void test_nan_fill_and_other_enumerations(void) {
    tm_im2col request = request_of_rank(4);
    request.tensor.fill_nan = true;
    request.tensor.swizzle = 1;
    request.tensor.data_type = 11;
    request.tensor.element_bytes = 4;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(last_record()->oob_fill, 1);
    CHECK_EQUAL(last_record()->swizzle, 1);
    CHECK_EQUAL(last_record()->data_type, 11);
    CHECK_EQUAL(last_record()->strides[0], 80 * 4);
}

static void test_extreme_values_arrive_whole(void) {
    tm_im2col request = request_of_rank(3);
    request.tensor.address = UINT64_MAX - 15;
    request.tensor.shape[0] = UINT64_C(1) << 32;
    request.tensor.strides[0] = UINT64_C(1) << 38;
    request.pixel_box_lower_corner[0] = -32768;
    request.pixel_box_upper_corner[0] = 32767;
    request.channels_per_pixel = UINT32_MAX;
    request.pixels_per_column = UINT32_MAX - 1;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    const fake_record *got = last_record();
    CHECK(got->address == UINT64_MAX - 15);
    CHECK_EQUAL(got->dims[2], INT64_C(1) << 32);
    CHECK_EQUAL(got->strides[1], INT64_C(1) << 39);
    CHECK_EQUAL(got->lower[0], -32768);
    CHECK_EQUAL(got->upper[0], 32767);
    CHECK_EQUAL(got->channels, UINT32_MAX);
    CHECK_EQUAL(got->pixels, UINT32_MAX - 1);
}

static void check_tiled_packing(uint32_t rank) {
    tm_tiled request = tiled_of_rank(rank);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    CHECK_EQUAL(error.message[0], '\0');
    const fake_record *got = last_record();
    CHECK_EQUAL(got->is_tiled, 1);
    CHECK_EQUAL(got->rank, rank);
    CHECK_EQUAL(got->data_type, 6);
    CHECK_EQUAL(got->address, 0x7f0000001230);
    CHECK_EQUAL(got->swizzle, 3);
    CHECK_EQUAL(got->interleave, 0);
    CHECK_EQUAL(got->l2_promotion, 2);
    CHECK_EQUAL(got->oob_fill, 0);
    uint64_t stride_bytes = 2;
    for (uint32_t i = 0; i < rank; ++i) {
        CHECK_EQUAL(got->dims[i], 72 + 8 * i);
        stride_bytes *= 80 + 8 * i;
        if (i < rank - 1) CHECK_EQUAL(got->strides[i], stride_bytes);
        CHECK_EQUAL(got->element_strides[i], 1 + i);
        CHECK_EQUAL(got->box[i], 64 >> i);
    }
}

static void test_tiled_packing(void) {
    for (uint32_t rank = 1; rank <= 5; ++rank) check_tiled_packing(rank);
    tm_tiled request = tiled_of_rank(2);
    request.tensor.fill_nan = true;
    request.tensor.swizzle = 0;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    CHECK_EQUAL(last_record()->oob_fill, 1);
    CHECK_EQUAL(last_record()->swizzle, 0);
}

/* ---- Another address -------------------------------------------------------------------------- */

static void test_replaced_address_changes_nothing_else(void) {
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    tm_map before = map;
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f00deadbe00, &error), TM_OK);
    CHECK_EQUAL(map.words[0], 0x7f00deadbe00);
    CHECK(memcmp(map.words + 1, before.words + 1, TM_MAP_BYTES - 8) == 0);
    CHECK_EQUAL(fake->encodes, 1);
}

static void test_replacing_keeps_the_repair(void) {
    tm_im2col request = request_of_span(256);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f0000002000, &error), TM_OK);
    CHECK(!bit_21(&map));
}

static void test_refused_address_leaves_the_map(void) {
    tm_tiled request = tiled_of_rank(2);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    tm_map before = map;
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f0000000008, &error), TM_REFUSED);
    CHECK_CONTAINS(error, "cuTensorMapReplaceAddress: CUDA_ERROR_INVALID_VALUE (1)");
    CHECK_CONTAINS(error, "address=0x7f0000000008");
    fake->replace_result = 999;
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f0000000010, &error), TM_REFUSED);
    CHECK_EQUAL(error.code, 999);
    CHECK(memcmp(&map, &before, sizeof map) == 0);
}

static void test_replacing_borrows_a_context(void) {
    tm_tiled request = tiled_of_rank(2);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    fake->has_context = 0;
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f0000000010, &error), TM_OK);
    CHECK_EQUAL(fake->retains, 1);
    CHECK_EQUAL(fake->releases, 1);
    fake->retain_result = 201;
    CHECK_EQUAL(replace_tma_descriptor_address(&map, 0x7f0000000020, &error), TM_NO_CONTEXT);
    CHECK_EQUAL(map.words[0], 0x7f0000000010);
}

/* ---- Refused before the driver is asked ------------------------------------------------------- */

static void test_ranks_outside_3_to_5(void) {
    static const uint32_t ranks[] = {0, 1, 2, 6, UINT32_MAX};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; ++i) {
        tm_im2col request = request_of_rank(4);
        request.tensor.rank = ranks[i];
        tm_map map;
        tm_error error;
        CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_BAD_ARGUMENT);
        CHECK_CONTAINS(error, "is none of 3..5");
    }
    CHECK_EQUAL(fake->encodes, 0);
}

static void test_tiled_refusals_before_the_driver(void) {
    tm_map map;
    tm_error error;
    static const uint32_t ranks[] = {0, 6, UINT32_MAX};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; ++i) {
        tm_tiled request = tiled_of_rank(2);
        request.tensor.rank = ranks[i];
        CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_BAD_ARGUMENT);
        CHECK_CONTAINS(error, "is none of 1..5");
    }
    tm_tiled request = tiled_of_rank(1);
    request.tensor.strides[0] = 2;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_BAD_ARGUMENT);
    CHECK_CONTAINS(error, "stride of the last dimension must be 1, got 2");
    request = tiled_of_rank(3);
    request.tensor.element_bytes = 0;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_BAD_ARGUMENT);
    request = tiled_of_rank(3);
    request.tensor.strides[0] = UINT64_MAX;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_BAD_ARGUMENT);
    CHECK_CONTAINS(error, "strides[0] = 18446744073709551615 elements of 2 bytes");
    CHECK_EQUAL(fake->encodes, 0);
}

static void test_last_stride_must_be_1(void) {
    tm_im2col request = request_of_rank(4);
    request.tensor.strides[3] = 7;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_BAD_ARGUMENT);
    CHECK_CONTAINS(error, "stride of the last dimension must be 1, got 7");
}

static void test_stride_in_bytes_must_fit(void) {
    tm_im2col request = request_of_rank(4);
    request.tensor.strides[1] = UINT64_MAX / 2 + 1;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_BAD_ARGUMENT);
    CHECK_CONTAINS(error, "strides[1] = 9223372036854775808 elements of 2 bytes");
}

static void test_element_bytes_must_not_be_0(void) {
    tm_im2col request = request_of_rank(4);
    request.tensor.element_bytes = 0;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_BAD_ARGUMENT);
    CHECK_CONTAINS(error, "element_bytes must be at least 1");
}

/* ---- Refused by the driver -------------------------------------------------------------------- */

static void test_refusal_shows_every_argument_in_user_order(void) {
    fake->encode_result = 1;
    tm_im2col request = request_of_rank(5);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_REFUSED);
    CHECK_EQUAL(error.status, TM_REFUSED);
    CHECK_EQUAL(error.code, 1);
    CHECK_CONTAINS(error, "cuTensorMapEncodeIm2col: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    CHECK_CONTAINS(error, "address=0x7f0000001230 data_type=6 element_bytes=2 rank=5");
    CHECK_CONTAINS(error, "shape=[104, 96, 88, 80, 72]");
    CHECK_CONTAINS(error, " strides=[70287360, 675840, 7040, 80, 1] (elements, outermost first)");
    CHECK_CONTAINS(error, "element_strides=[1, 4, 3, 2, 1] swizzle=3 padding=zero");
    CHECK_CONTAINS(error, "pixel_box_lower_corner=[-1, -2, -3] pixel_box_upper_corner=[-11, -12, -13]");
    CHECK_CONTAINS(error, "pixels_per_column=128 channels_per_pixel=64");
}

static void test_tiled_refusal_shows_every_argument(void) {
    fake->encode_result = 1;
    tm_tiled request = tiled_of_rank(3);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_REFUSED);
    CHECK_EQUAL(error.code, 1);
    CHECK_CONTAINS(error, "cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    CHECK_CONTAINS(error, "address=0x7f0000001230 data_type=6 element_bytes=2 rank=3");
    CHECK_CONTAINS(error, "shape=[88, 80, 72] strides=[7040, 80, 1]");
    CHECK_CONTAINS(error, "element_strides=[3, 2, 1] swizzle=3 padding=zero");
    CHECK_CONTAINS(error, "block_shape=[16, 32, 64]");
}

static void test_error_without_name_or_text(void) {
    fake->encode_result = 999;
    fake->has_error_texts = 0;
    tm_im2col request = request_of_rank(3);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_REFUSED);
    CHECK_EQUAL(error.code, 999);
    CHECK_CONTAINS(error, "cuTensorMapEncodeIm2col: unknown error (999)\n");
}

static void test_longest_message_fits(void) {
    fake->encode_result = 1;
    tm_im2col request = {.tensor = {.address = UINT64_MAX, .data_type = INT32_MIN,
                                    .element_bytes = 1, .rank = 5, .swizzle = INT32_MIN,
                                    .fill_nan = true},
                         .channels_per_pixel = UINT32_MAX,
                         .pixels_per_column = UINT32_MAX};
    for (int i = 0; i < 5; ++i) {
        request.tensor.shape[i] = UINT64_MAX;
        request.tensor.strides[i] = i == 4 ? 1 : UINT64_MAX;
        request.tensor.element_strides[i] = UINT32_MAX;
    }
    for (int i = 0; i < 3; ++i)
        request.pixel_box_lower_corner[i] = request.pixel_box_upper_corner[i] = INT32_MIN;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_REFUSED);
    CHECK_CONTAINS(error, "pixels_per_column=4294967295 channels_per_pixel=4294967295");
    CHECK(strlen(error.message) < TM_MESSAGE_BYTES - 1);
}

/* ---- Contexts --------------------------------------------------------------------------------- */

static void test_no_context_borrows_that_of_the_pointers_device(void) {
    fake->has_context = 0;
    fake->pointer_device = 5;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(last_record()->current_device, 5);
    CHECK_EQUAL(fake->retains, 1);
    CHECK_EQUAL(fake->releases, 1);
    CHECK_EQUAL(fake->pushes, 1);
    CHECK_EQUAL(fake->pops, 1);
}

static void test_memory_unknown_to_the_driver_borrows_device_0(void) {
    fake->has_context = 0;
    fake->pointer_device = 5;
    fake->pointer_result = 1;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(last_record()->current_device, 0);

    fake->pointer_result = 0;
    fake->pointer_device = -2; /* cudaInvalidDeviceId: host memory */
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(last_record()->current_device, 0);
}

static void test_own_context_is_left_alone(void) {
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(fake->inits + fake->retains + fake->pushes + fake->pops + fake->releases, 0);
}

static void test_driver_is_initialized_when_needed(void) {
    fake->is_initialized = 0;
    fake->has_context = 0;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK_EQUAL(fake->inits, 1);
    CHECK_EQUAL(fake->retains, 1);
}

static void test_no_device(void) {
    fake->is_initialized = 0;
    fake->init_result = 100;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_NO_CONTEXT);
    CHECK_EQUAL(error.code, 100);
    CHECK_CONTAINS(error, "cuInit: CUDA_ERROR_NO_DEVICE (100)");
    CHECK_CONTAINS(error, "CUDA cannot be initialized");
    CHECK_EQUAL(fake->encodes, 0);
}

static void test_context_query_fails(void) {
    fake->current_result = 999;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_NO_CONTEXT);
    CHECK_CONTAINS(error, "cuCtxGetCurrent: CUDA_ERROR_UNKNOWN (999)");
}

static void test_primary_context_cannot_be_retained(void) {
    fake->has_context = 0;
    fake->pointer_device = 3;
    fake->retain_result = 201;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_NO_CONTEXT);
    CHECK_EQUAL(error.code, 201);
    CHECK_CONTAINS(error, "cuDevicePrimaryCtxRetain: CUDA_ERROR_INVALID_CONTEXT (201)");
    CHECK_CONTAINS(error, "the primary context of device 3 cannot be used");
    CHECK_EQUAL(fake->releases, 0);
    CHECK_EQUAL(fake->pops, 0);
}

static void test_primary_context_cannot_be_pushed(void) {
    fake->has_context = 0;
    fake->push_result = 999;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_NO_CONTEXT);
    CHECK_CONTAINS(error, "cuCtxPushCurrent: CUDA_ERROR_UNKNOWN (999)");
    CHECK_EQUAL(fake->retains, 1);
    CHECK_EQUAL(fake->releases, 1);
    CHECK_EQUAL(fake->pops, 0);
}

static void test_borrowed_context_is_returned_after_a_refusal(void) {
    fake->has_context = 0;
    fake->encode_result = 1;
    tm_im2col request = request_of_rank(4);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_REFUSED);
    CHECK_EQUAL(fake->releases, 1);
    CHECK_EQUAL(fake->pops, 1);
}

/* ---- Small tensors ---------------------------------------------------------------------------- */

static bool keeps_bit_21(uint64_t span_bytes, int version) {
    fake->driver_version = version;
    tm_im2col request = request_of_span(span_bytes);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    /* All other bits are the driver's. */
    CHECK((map.words[1] | UINT64_C(1) << 21) == UINT64_MAX);
    CHECK(map.words[15] == UINT64_MAX);
    return bit_21(&map);
}

static void test_small_tensor_repair(void) {
    enum { LIMIT = 128 * 1024 };
    CHECK(!keeps_bit_21(256, 13010));
    CHECK(!keeps_bit_21(LIMIT - 16, 13010));
    CHECK(!keeps_bit_21(LIMIT - 16, 12000));
    CHECK(keeps_bit_21(LIMIT, 13010));
    CHECK(keeps_bit_21(LIMIT + 16, 13010));
    CHECK(keeps_bit_21(256, 13011));
    CHECK(keeps_bit_21(256, 13020));
}

static void test_small_tensor_repair_of_tiled_maps(void) {
    tm_tiled request = {.tensor = request_of_span(256).tensor, .block_shape = {1, 4, 8}};
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    CHECK(!bit_21(&map));
    fake->driver_version = 13020;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    CHECK(bit_21(&map));
    fake->driver_version = 13010;
    request.tensor = request_of_span(128 * 1024).tensor;
    CHECK_EQUAL(fill_tma_descriptor_tiled(&request, &map, &error), TM_OK);
    CHECK(bit_21(&map));
}

static void test_huge_tensors_are_not_small(void) {
    /* 2^25 steps of 2^39 bytes are 2^64: a sum that wraps would look small. */
    tm_im2col request = request_of_rank(3);
    request.tensor.shape[0] = (UINT64_C(1) << 25) + 1;
    request.tensor.strides[0] = UINT64_C(1) << 38;
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_OK);
    CHECK(bit_21(&map));
}

static void test_version_fails_for_a_small_tensor(void) {
    fake->version_result = 999;
    tm_im2col request = request_of_span(256);
    tm_map map;
    tm_error error;
    CHECK_EQUAL(fill_tma_descriptor_im2col(&request, &map, &error), TM_REFUSED);
    CHECK_CONTAINS(error, "cuDriverGetVersion: CUDA_ERROR_UNKNOWN (999)");
}

/* ---- The library ------------------------------------------------------------------------------ */

static void test_driver_version(void) {
    int version = 0;
    tm_error error;
    fake->driver_version = 12080;
    CHECK_EQUAL(tm_driver_version(&version, &error), TM_OK);
    CHECK_EQUAL(version, 12080);
    fake->version_result = 999;
    CHECK_EQUAL(tm_driver_version(&version, &error), TM_REFUSED);
    CHECK_CONTAINS(error, "cuDriverGetVersion: CUDA_ERROR_UNKNOWN (999)");
}

static void test_missing_library_leaves_the_current_one(void) {
    tm_error error;
    CHECK_EQUAL(tm_open_library("/nonexistent/libcuda.so.1", &error), TM_NO_LIBRARY);
    CHECK_CONTAINS(error, "the CUDA driver library cannot be opened");
    CHECK_CONTAINS(error, "/nonexistent/libcuda.so.1");
    CHECK_CONTAINS(error, "TRITON_LIBCUDA_PATH");
    check_packing(4);
}

static void test_old_driver_names_symbol_and_minimum(void) {
    tm_error error;
    CHECK_EQUAL(tm_open_library(path_of("old/libcuda.so.1"), &error), TM_NO_SYMBOL);
    CHECK_CONTAINS(error, "driver too old: cuTensorMapEncodeIm2col is missing in ");
    CHECK_CONTAINS(error, "old/libcuda.so.1, which supports CUDA 13.0");
    CHECK_CONTAINS(error, "it needs CUDA 12.0 (driver 525) or newer");
    check_packing(3);
}

static void test_not_the_cuda_driver(void) {
    tm_error error;
    CHECK_EQUAL(tm_open_library("libdl.so.2", &error), TM_NO_SYMBOL);
    CHECK_CONTAINS(error, "cuDriverGetVersion is missing in libdl.so.2; it needs CUDA 11.0");
}

static void test_reopening_is_harmless(void) {
    tm_error error;
    for (int i = 0; i < 100; ++i) {
        CHECK_EQUAL(tm_open_library(path_of("libcuda.so.1"), &error), TM_OK);
        CHECK_EQUAL(tm_open_library(NULL, &error), TM_OK);
    }
    check_packing(5);
}

/* ---- Main ------------------------------------------------------------------------------------- */

static const test tests[] = {
    TEST(test_32_threads_open_and_encode), /* must be first */
    TEST(test_32_threads_borrow_contexts),
    TEST(test_packing_rank_3),
    TEST(test_packing_rank_4),
    TEST(test_packing_rank_5),
    TEST(test_tiled_packing),
    TEST(test_replaced_address_changes_nothing_else),
    TEST(test_replacing_keeps_the_repair),
    TEST(test_refused_address_leaves_the_map),
    TEST(test_replacing_borrows_a_context),
    TEST(test_nan_fill_and_other_enumerations),
    TEST(test_extreme_values_arrive_whole),
    TEST(test_ranks_outside_3_to_5),
    TEST(test_tiled_refusals_before_the_driver),
    TEST(test_last_stride_must_be_1),
    TEST(test_stride_in_bytes_must_fit),
    TEST(test_element_bytes_must_not_be_0),
    TEST(test_refusal_shows_every_argument_in_user_order),
    TEST(test_tiled_refusal_shows_every_argument),
    TEST(test_error_without_name_or_text),
    TEST(test_longest_message_fits),
    TEST(test_no_context_borrows_that_of_the_pointers_device),
    TEST(test_memory_unknown_to_the_driver_borrows_device_0),
    TEST(test_own_context_is_left_alone),
    TEST(test_driver_is_initialized_when_needed),
    TEST(test_no_device),
    TEST(test_context_query_fails),
    TEST(test_primary_context_cannot_be_retained),
    TEST(test_primary_context_cannot_be_pushed),
    TEST(test_borrowed_context_is_returned_after_a_refusal),
    TEST(test_small_tensor_repair),
    TEST(test_small_tensor_repair_of_tiled_maps),
    TEST(test_huge_tensors_are_not_small),
    TEST(test_version_fails_for_a_small_tensor),
    TEST(test_driver_version),
    TEST(test_missing_library_leaves_the_current_one),
    TEST(test_old_driver_names_symbol_and_minimum),
    TEST(test_not_the_cuda_driver),
    TEST(test_reopening_is_harmless),
};

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return 2;
    }
    folder = arguments[1];
    void *handle = dlopen(path_of("libcuda.so.1"), RTLD_NOW);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    fake_state_function *get_state = NULL;
    load_symbol(handle, "fake_libcuda_state", &get_state);
    load_symbol(handle, "fake_libcuda_record", &last_record);
    load_symbol(handle, "fake_libcuda_reset", &reset);
    fake = get_state();

    return run_tests(tests, sizeof tests / sizeof tests[0], reset);
}
