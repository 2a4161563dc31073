/* See fake_libcuda.h.  Built a second time with FAKE_WITHOUT_IM2COL: a driver older than CUDA 12. */
#include "fake_libcuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1, INVALID_CONTEXT = 201, MAX_DEVICES = 16 };

static fake_state state;
static _Thread_local fake_record record;
/* Contexts are told apart by their address; a primary context is that of its device's entry. */
static char own_context;
static char primary_contexts[MAX_DEVICES];
static _Thread_local void *pushed_context;

EXPORT fake_state *fake_libcuda_state(void);
EXPORT const fake_record *fake_libcuda_record(void);
EXPORT int fake_libcuda_record_bytes(void);
EXPORT void fake_libcuda_reset(void);
EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuGetErrorName(int error, const char **name);
EXPORT int cuGetErrorString(int error, const char **description);
EXPORT int cuInit(unsigned flags);
EXPORT int cuCtxGetCurrent(void **context);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t address);
EXPORT int cuTensorMapEncodeTiled(void *map, int data_type, uint32_t rank, void *address,
                                  const uint64_t *dims, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *element_strides,
                                  int interleave, int swizzle, int l2_promotion, int oob_fill);
EXPORT int cuTensorMapReplaceAddress(void *map, void *address);
EXPORT int cuTensorMapEncodeIm2col(void *map, int data_type, uint32_t rank, void *address,
                                   const uint64_t *dims, const uint64_t *strides, const int *lower,
                                   const int *upper, uint32_t channels, uint32_t pixels,
                                   const uint32_t *element_strides, int interleave, int swizzle,
                                   int l2_promotion, int oob_fill);

fake_state *fake_libcuda_state(void) { return &state; }

const fake_record *fake_libcuda_record(void) { return &record; }
int fake_libcuda_record_bytes(void) { return (int)sizeof record; }

/* A healthy driver of CUDA 13.0 with a context on every thread. */
__attribute__((constructor)) void fake_libcuda_reset(void) {
    state.driver_version = 13000;
    state.version_result = 0;
    state.is_initialized = 1;
    state.init_result = 0;
    state.has_context = 1;
    state.current_result = 0;
    state.pointer_result = 0;
    state.pointer_device = 0;
    state.retain_result = 0;
    state.push_result = 0;
    state.encode_result = 0;
    state.replace_result = 0;
    state.has_error_texts = 1;
    state.inits = 0;
    state.encodes = 0;
    state.replaces = 0;
    state.retains = 0;
    state.releases = 0;
    state.pushes = 0;
    state.pops = 0;
}

int cuDriverGetVersion(int *version) {
    if (state.version_result != 0) return state.version_result;
    *version = state.driver_version;
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = NULL;
    if (!state.has_error_texts) return INVALID_VALUE;
    *name = error == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
            : error == 100             ? "CUDA_ERROR_NO_DEVICE"
            : error == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                       : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuGetErrorString(int error, const char **description) {
    *description = NULL;
    if (!state.has_error_texts) return INVALID_VALUE;
    *description = error == INVALID_VALUE ? "invalid argument" : "some other text";
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    state.inits++;
    if (state.init_result == 0) state.is_initialized = 1;
    return state.init_result;
}

int cuCtxGetCurrent(void **context) {
    if (!state.is_initialized) return NOT_INITIALIZED;
    if (state.current_result != 0) return state.current_result;
    *context = pushed_context != NULL ? pushed_context : state.has_context ? &own_context : NULL;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    if (state.push_result != 0) return state.push_result;
    state.pushes++;
    pushed_context = context;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    state.pops++;
    *context = pushed_context;
    pushed_context = NULL;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (state.retain_result != 0) return state.retain_result;
    state.retains++;
    *context = &primary_contexts[device];
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    state.releases++;
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    enum { DEVICE_POINTER = 3, DEVICE_ORDINAL = 9 };
    if (attribute == DEVICE_POINTER) {
        *(uint64_t *)data = address; /* all memory is the device's */
        return 0;
    }
    if (attribute != DEVICE_ORDINAL) return INVALID_VALUE;
    if (state.pointer_result != 0) return state.pointer_result;
    *(int *)data = state.pointer_device;
    return 0;
}

/* Checks what the driver checks of every encoder, and records what both modes have. */
static int begin_record(const void *map, int data_type, uint32_t rank, void *address,
                        const uint64_t *dims, const uint64_t *strides,
                        const uint32_t *element_strides, int interleave, int swizzle,
                        int l2_promotion, int oob_fill) {
    void *context = NULL;
    state.encodes++;
    if (cuCtxGetCurrent(&context) != 0 || context == NULL) return INVALID_CONTEXT;
    if ((uintptr_t)map % 64 != 0) return INVALID_VALUE;
    memset(&record, 0, sizeof record);
    record.data_type = data_type;
    record.rank = rank;
    record.address = (uint64_t)(uintptr_t)address;
    memcpy(record.dims, dims, rank * sizeof *dims);
    memcpy(record.strides, strides, (rank - 1) * sizeof *strides);
    memcpy(record.element_strides, element_strides, rank * sizeof *element_strides);
    record.interleave = interleave;
    record.swizzle = swizzle;
    record.l2_promotion = l2_promotion;
    record.oob_fill = oob_fill;
    record.current_device =
        context == &own_context ? -1 : (int)((char *)context - primary_contexts);
    return state.encode_result;
}

/* Fills the map with what tells calls apart, and with ones where a bit may have to be cleared. */
static void fill_map(void *map) {
    memset(map, 0xff, 128);
    memcpy(map, &record.address, sizeof record.address);
    memcpy((char *)map + 16, record.dims, record.rank * sizeof *record.dims);
}

int cuTensorMapEncodeTiled(void *map, int data_type, uint32_t rank, void *address,
                           const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *element_strides, int interleave, int swizzle,
                           int l2_promotion, int oob_fill) {
    int result = begin_record(map, data_type, rank, address, dims, strides, element_strides,
                              interleave, swizzle, l2_promotion, oob_fill);
    if (result != 0) return result;
    memcpy(record.box, box, rank * sizeof *box);
    record.is_tiled = 1;
    fill_map(map);
    return 0;
}

int cuTensorMapReplaceAddress(void *map, void *address) {
    void *context = NULL;
    state.replaces++;
    if (cuCtxGetCurrent(&context) != 0 || context == NULL) return INVALID_CONTEXT;
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0) return INVALID_VALUE;
    memcpy(map, &address, sizeof address);
    return state.replace_result;
}

#ifndef FAKE_WITHOUT_IM2COL
int cuTensorMapEncodeIm2col(void *map, int data_type, uint32_t rank, void *address,
                            const uint64_t *dims, const uint64_t *strides, const int *lower,
                            const int *upper, uint32_t channels, uint32_t pixels,
                            const uint32_t *element_strides, int interleave, int swizzle,
                            int l2_promotion, int oob_fill) {
    int result = begin_record(map, data_type, rank, address, dims, strides, element_strides,
                              interleave, swizzle, l2_promotion, oob_fill);
    if (result != 0) return result;
    memcpy(record.lower, lower, (rank - 2) * sizeof *lower);
    memcpy(record.upper, upper, (rank - 2) * sizeof *upper);
    record.channels = channels;
    record.pixels = pixels;
    fill_map(map);
    return 0;
}
#endif
