/* See tensor_map.h. */
#define _POSIX_C_SOURCE 200809L /* pthread, strdup */

#include "tensor_map.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The driver's types, as far as they are used ------------------------------------------- */

typedef int cu_result; /* CUresult */
typedef int cu_device; /* CUdevice */
typedef void *cu_context;

_Static_assert(sizeof(void *) == sizeof(uint64_t), "the CUDA driver is 64-bit only");

enum {
    CU_SUCCESS = 0,
    CU_ERROR_NOT_INITIALIZED = 3,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_INTERLEAVE_NONE = 0,
    CU_L2_PROMOTION_128B = 2,
    CU_OOB_FILL_NONE = 0,
    CU_OOB_FILL_NAN = 1,
};

typedef struct library {
    struct library *next; /* all that were ever opened: other threads may be inside any of them */
    char *path;
    void *handle; /* of dlopen; never closed */
    cu_result (*init)(unsigned flags);
    cu_result (*get_error_name)(cu_result, const char **);
    cu_result (*get_error_string)(cu_result, const char **);
    cu_result (*driver_get_version)(int *);
    cu_result (*ctx_get_current)(cu_context *);
    cu_result (*ctx_push_current)(cu_context);
    cu_result (*ctx_pop_current)(cu_context *);
    cu_result (*primary_ctx_retain)(cu_context *, cu_device);
    cu_result (*primary_ctx_release)(cu_device);
    cu_result (*pointer_get_attribute)(void *, int attribute, uint64_t address);
    cu_result (*encode_tiled)(void *map, int data_type, uint32_t rank, void *address,
                              const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                              const uint32_t *element_strides, int interleave, int swizzle,
                              int l2_promotion, int oob_fill);
    cu_result (*encode_im2col)(void *map, int data_type, uint32_t rank, void *address,
                               const uint64_t *dims, const uint64_t *strides, const int *lower,
                               const int *upper, uint32_t channels, uint32_t pixels,
                               const uint32_t *element_strides, int interleave, int swizzle,
                               int l2_promotion, int oob_fill);
    cu_result (*replace_address)(void *map, void *address);
} library;

/* The functions looked up, where they go, and the first driver that has them. */
typedef struct {
    const char *name;
    size_t member;
    const char *minimum;
} symbol;

#define OLD_DRIVER "CUDA 11.0 (driver 450)"
#define TMA_DRIVER "CUDA 12.0 (driver 525)"
static const symbol symbols[] = {
    /* First what describes errors and versions, so that the rest can be reported with them. */
    {"cuDriverGetVersion", offsetof(library, driver_get_version), OLD_DRIVER},
    {"cuGetErrorName", offsetof(library, get_error_name), OLD_DRIVER},
    {"cuGetErrorString", offsetof(library, get_error_string), OLD_DRIVER},
    {"cuInit", offsetof(library, init), OLD_DRIVER},
    {"cuCtxGetCurrent", offsetof(library, ctx_get_current), OLD_DRIVER},
    {"cuCtxPushCurrent_v2", offsetof(library, ctx_push_current), OLD_DRIVER},
    {"cuCtxPopCurrent_v2", offsetof(library, ctx_pop_current), OLD_DRIVER},
    {"cuDevicePrimaryCtxRetain", offsetof(library, primary_ctx_retain), OLD_DRIVER},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(library, primary_ctx_release), OLD_DRIVER},
    {"cuPointerGetAttribute", offsetof(library, pointer_get_attribute), OLD_DRIVER},
    {"cuTensorMapEncodeTiled", offsetof(library, encode_tiled), TMA_DRIVER},
    {"cuTensorMapEncodeIm2col", offsetof(library, encode_im2col), TMA_DRIVER},
    {"cuTensorMapReplaceAddress", offsetof(library, replace_address), TMA_DRIVER},
};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static library *all_libraries;            /* guarded by open_lock */
static _Atomic(library *) current_library; /* entries never change once they are published */

/* ---- Error texts ---------------------------------------------------------------------------- */

/* A text that is cut where the buffer ends, never beyond. */
typedef struct {
    char *buffer;
    size_t size;
    size_t used;
} text;

__attribute__((format(printf, 2, 3))) static void append(text *out, const char *format, ...) {
    if (out->used + 1 >= out->size) return;
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(out->buffer + out->used, out->size - out->used, format, arguments);
    va_end(arguments);
    if (wrote < 0) return;
    size_t left = out->size - out->used - 1;
    out->used += (size_t)wrote < left ? (size_t)wrote : left;
}

static text start_message(tm_error *error, tm_status status, int code) {
    error->status = status;
    error->code = code;
    error->message[0] = '\0';
    return (text){.buffer = error->message, .size = sizeof error->message, .used = 0};
}

__attribute__((format(printf, 3, 4))) static tm_status fail(tm_error *error, tm_status status,
                                                            const char *format, ...) {
    error->status = status;
    error->code = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

static tm_status succeed(tm_error *error) {
    error->status = TM_OK;
    error->code = 0;
    error->message[0] = '\0';
    return TM_OK;
}

/* Writes "function: CUDA_ERROR_X (1): text". */
static void append_driver_error(text *out, const library *cuda, const char *function,
                                cu_result code) {
    const char *name = NULL;
    const char *description = NULL;
    if (cuda->get_error_name(code, &name) != CU_SUCCESS || name == NULL) name = "unknown error";
    if (cuda->get_error_string(code, &description) != CU_SUCCESS) description = NULL;
    append(out, "%s: %s (%d)", function, name, code);
    if (description != NULL) append(out, ": %s", description);
}

static void append_u64(text *out, const char *name, const uint64_t *values, uint32_t count) {
    append(out, "%s=[", name);
    for (uint32_t i = 0; i < count; ++i) append(out, "%s%" PRIu64, i ? ", " : "", values[i]);
    append(out, "]");
}

static void append_u32(text *out, const char *name, const uint32_t *values, uint32_t count) {
    append(out, "%s=[", name);
    for (uint32_t i = 0; i < count; ++i) append(out, "%s%" PRIu32, i ? ", " : "", values[i]);
    append(out, "]");
}

static void append_int(text *out, const char *name, const int *values, uint32_t count) {
    append(out, "%s=[", name);
    for (uint32_t i = 0; i < count; ++i) append(out, "%s%d", i ? ", " : "", values[i]);
    append(out, "]");
}

/* Writes what all modes share, in user order. */
static void append_tensor(text *out, const tm_tensor *tensor) {
    append(out, "\n  address=0x%" PRIx64 " data_type=%d element_bytes=%" PRIu32 " rank=%" PRIu32,
           tensor->address, tensor->data_type, tensor->element_bytes, tensor->rank);
    append(out, "\n  ");
    append_u64(out, "shape", tensor->shape, tensor->rank);
    append(out, " ");
    append_u64(out, "strides", tensor->strides, tensor->rank);
    append(out, " (elements, outermost first)\n  ");
    append_u32(out, "element_strides", tensor->element_strides, tensor->rank);
    append(out, " swizzle=%d padding=%s", tensor->swizzle, tensor->fill_nan ? "nan" : "zero");
}

/* The rest of a request, by mode; tensor is the first member of each. */
static void append_tiled(text *out, const tm_tensor *tensor) {
    const tm_tiled *request = (const tm_tiled *)tensor;
    append_tensor(out, tensor);
    append(out, "\n  ");
    append_u32(out, "block_shape", request->block_shape, tensor->rank);
}

static void append_im2col(text *out, const tm_tensor *tensor) {
    const tm_im2col *request = (const tm_im2col *)tensor;
    append_tensor(out, tensor);
    append(out, "\n  ");
    uint32_t spatial_rank = tensor->rank - 2;
    append_int(out, "pixel_box_lower_corner", request->pixel_box_lower_corner, spatial_rank);
    append(out, " ");
    append_int(out, "pixel_box_upper_corner", request->pixel_box_upper_corner, spatial_rank);
    append(out, "\n  pixels_per_column=%" PRIu32 " channels_per_pixel=%" PRIu32,
           request->pixels_per_column, request->channels_per_pixel);
}

/* ---- The library ---------------------------------------------------------------------------- */

static const char default_path[] = "libcuda.so.1";

/* dlsym returns an object pointer; POSIX promises that it may be stored as a function pointer. */
static bool resolve(library *cuda, void *handle, const symbol *wanted) {
    void *address = dlsym(handle, wanted->name);
    memcpy((char *)cuda + wanted->member, &address, sizeof address);
    return address != NULL;
}

static tm_status report_missing_symbol(const library *cuda, const symbol *missing,
                                       tm_error *error) {
    int version = 0;
    if (cuda->driver_get_version == NULL || cuda->driver_get_version(&version) != CU_SUCCESS)
        version = 0;
    text out = start_message(error, TM_NO_SYMBOL, 0);
    append(&out, "driver too old: %s is missing in %s", missing->name, cuda->path);
    if (version > 0)
        append(&out, ", which supports CUDA %d.%d", version / 1000, version % 1000 / 10);
    append(&out, "; it needs %s or newer", missing->minimum);
    return TM_NO_SYMBOL;
}

/* Opens and resolves a library that was not opened before; NULL with an error otherwise. */
static library *load_library(const char *path, tm_error *error) {
    void *handle = NULL;
    library *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL || (cuda->path = strdup(path)) == NULL) {
        fail(error, TM_NO_LIBRARY, "out of memory while opening %s", path);
        goto failed;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *reason = dlerror();
        fail(error, TM_NO_LIBRARY,
             "the CUDA driver library cannot be opened: %s; install the NVIDIA driver, or set "
             "TRITON_LIBCUDA_PATH to the folder of libcuda.so.1",
             reason != NULL ? reason : path);
        goto failed;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; ++i) {
        if (!resolve(cuda, handle, &symbols[i])) {
            report_missing_symbol(cuda, &symbols[i], error);
            goto failed;
        }
    }
    cuda->handle = handle;
    return cuda;

failed:
    if (handle != NULL) dlclose(handle);
    if (cuda != NULL) free(cuda->path);
    free(cuda);
    return NULL;
}

tm_status tm_open_library(const char *path, tm_error *error) {
    if (path == NULL) path = default_path;
    tm_status status = TM_OK;
    pthread_mutex_lock(&open_lock);
    library *cuda = all_libraries;
    while (cuda != NULL && strcmp(cuda->path, path) != 0) cuda = cuda->next;
    if (cuda == NULL) {
        cuda = load_library(path, error);
        if (cuda != NULL) {
            cuda->next = all_libraries;
            all_libraries = cuda;
        }
    }
    if (cuda != NULL) {
        atomic_store_explicit(&current_library, cuda, memory_order_release);
        succeed(error);
    } else {
        status = error->status;
    }
    pthread_mutex_unlock(&open_lock);
    return status;
}

/* Returns the library, opened if need be; NULL with an error otherwise. */
static const library *get_library(tm_error *error) {
    library *cuda = atomic_load_explicit(&current_library, memory_order_acquire);
    if (cuda == NULL && tm_open_library(NULL, error) == TM_OK)
        cuda = atomic_load_explicit(&current_library, memory_order_acquire);
    return cuda;
}

tm_status tm_driver_version(int *version, tm_error *error) {
    const library *cuda = get_library(error);
    if (cuda == NULL) return error->status;
    cu_result result = cuda->driver_get_version(version);
    if (result == CU_SUCCESS) return succeed(error);
    text out = start_message(error, TM_REFUSED, result);
    append_driver_error(&out, cuda, "cuDriverGetVersion", result);
    return TM_REFUSED;
}

tm_status tm_find_function(const char *name, void **function, tm_error *error) {
    const library *cuda = get_library(error);
    if (cuda == NULL) return error->status;
    *function = dlsym(cuda->handle, name);
    if (*function != NULL) return succeed(error);
    return fail(error, TM_NO_SYMBOL, "driver too old: %s is missing in %s", name, cuda->path);
}

/* ---- Contexts ------------------------------------------------------------------------------- */

/* A context that was made current for the duration of one call. */
typedef struct {
    bool pushed;
    bool retained;
    cu_device device;
} borrowed_context;

static void release_context(const library *cuda, const borrowed_context *borrowed) {
    cu_context popped = NULL;
    if (borrowed->pushed) cuda->ctx_pop_current(&popped);
    if (borrowed->retained) cuda->primary_ctx_release(borrowed->device);
}

static tm_status report_no_context(const library *cuda, const char *function, cu_result result,
                                   cu_device device, tm_error *error) {
    text out = start_message(error, TM_NO_CONTEXT, result);
    append_driver_error(&out, cuda, function, result);
    append(&out, "; no CUDA context is current on this thread");
    if (device >= 0)
        append(&out, ", and the primary context of device %d cannot be used", device);
    else
        append(&out, ", and CUDA cannot be initialized");
    return TM_NO_CONTEXT;
}

/* Makes sure that a context is current, which the encoders demand (CUDA_ERROR_INVALID_CONTEXT).
 *
 * A thread that has made no CUDA call yet has none, although the process does: there the primary
 * context of the device that owns the memory is borrowed, which is the context that torch and the
 * CUDA runtime use.  Retaining a primary context that is in use costs next to nothing. */
static tm_status borrow_context(const library *cuda, uint64_t address, borrowed_context *borrowed,
                                tm_error *error) {
    *borrowed = (borrowed_context){.device = 0};
    cu_context context = NULL;
    cu_result result = cuda->ctx_get_current(&context);
    if (result == CU_ERROR_NOT_INITIALIZED) {
        result = cuda->init(0);
        if (result != CU_SUCCESS) return report_no_context(cuda, "cuInit", result, -1, error);
        result = cuda->ctx_get_current(&context);
    }
    if (result != CU_SUCCESS) return report_no_context(cuda, "cuCtxGetCurrent", result, -1, error);
    if (context != NULL) return succeed(error);

    int ordinal = 0;
    result = cuda->pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    /* Memory that the driver does not know, or has no device for: the encoder reads none of it, so
     * any context does. */
    borrowed->device = result == CU_SUCCESS && ordinal >= 0 ? ordinal : 0;
    result = cuda->primary_ctx_retain(&context, borrowed->device);
    if (result != CU_SUCCESS)
        return report_no_context(cuda, "cuDevicePrimaryCtxRetain", result, borrowed->device, error);
    borrowed->retained = true;
    result = cuda->ctx_push_current(context);
    if (result != CU_SUCCESS) {
        release_context(cuda, borrowed);
        return report_no_context(cuda, "cuCtxPushCurrent", result, borrowed->device, error);
    }
    borrowed->pushed = true;
    return succeed(error);
}

/* ---- What all modes share ------------------------------------------------------------------- */

/* A tensor's arrays as the driver wants them: innermost first, strides in bytes without the one of
 * the innermost dimension. */
typedef struct {
    uint64_t dims[TM_MAX_RANK];
    uint64_t strides_bytes[TM_MAX_RANK];
    uint32_t element_strides[TM_MAX_RANK];
} packed_tensor;

static tm_status pack_tensor(const tm_tensor *tensor, uint32_t min_rank, packed_tensor *packed,
                             tm_error *error) {
    uint32_t rank = tensor->rank;
    if (rank < min_rank || rank > TM_MAX_RANK)
        return fail(error, TM_BAD_ARGUMENT, "rank %" PRIu32 " is none of %" PRIu32 "..%d", rank,
                    min_rank, TM_MAX_RANK);
    if (tensor->element_bytes == 0)
        return fail(error, TM_BAD_ARGUMENT, "element_bytes must be at least 1, got 0");
    if (tensor->strides[rank - 1] != 1)
        return fail(error, TM_BAD_ARGUMENT,
                    "stride of the last dimension must be 1, got %" PRIu64,
                    tensor->strides[rank - 1]);
    *packed = (packed_tensor){0};
    for (uint32_t dim = 0; dim < rank; ++dim) {
        uint32_t reversed = rank - 1 - dim;
        packed->dims[reversed] = tensor->shape[dim];
        packed->element_strides[reversed] = tensor->element_strides[dim];
        if (reversed == 0) continue;
        if (tensor->strides[dim] > UINT64_MAX / tensor->element_bytes)
            return fail(error, TM_BAD_ARGUMENT,
                        "strides[%" PRIu32 "] = %" PRIu64 " elements of %" PRIu32
                        " bytes does not fit 64 bits",
                        dim, tensor->strides[dim], tensor->element_bytes);
        packed->strides_bytes[reversed - 1] = tensor->strides[dim] * tensor->element_bytes;
    }
    return TM_OK;
}

/* Drivers up to CUDA 13.1 set a bit in the maps of small tensors that makes the unit address them
 * wrongly at their border; CUTLASS clears it (include/cute/atom/copy_traits_sm90_tma.hpp), for
 * tiled and im2col maps alike, when the tensor spans less than 128 KiB. */
enum { LAST_DRIVER_WITH_SMALL_TENSOR_BUG = 13010, SMALL_TENSOR_BYTES = 128 * 1024 };

/* Whether the bytes from the first element to the last, both included, are below the limit. */
static bool is_small_tensor(const tm_tensor *tensor, const packed_tensor *packed) {
    uint64_t last_byte = tensor->element_bytes - 1;
    for (uint32_t i = 0; i < tensor->rank; ++i) {
        uint64_t stride = i == 0 ? tensor->element_bytes : packed->strides_bytes[i - 1];
        if (packed->dims[i] == 0 || packed->dims[i] == 1 || stride == 0) continue;
        if (packed->dims[i] - 1 > SMALL_TENSOR_BYTES / stride) return false;
        last_byte += (packed->dims[i] - 1) * stride;
    }
    return last_byte + 1 < SMALL_TENSOR_BYTES;
}

static tm_status repair_small_tensor(const library *cuda, const tm_tensor *tensor,
                                     const packed_tensor *packed, tm_map *map, tm_error *error) {
    if (!is_small_tensor(tensor, packed)) return succeed(error);
    int version = 0;
    cu_result result = cuda->driver_get_version(&version);
    if (result != CU_SUCCESS) {
        text out = start_message(error, TM_REFUSED, result);
        append_driver_error(&out, cuda, "cuDriverGetVersion", result);
        return TM_REFUSED;
    }
    if (version <= LAST_DRIVER_WITH_SMALL_TENSOR_BUG) map->words[1] &= ~(UINT64_C(1) << 21);
    return succeed(error);
}

/* A call of an encoder, between begin_fill and end_fill. */
typedef struct {
    const library *cuda;
    const tm_tensor *tensor;
    packed_tensor packed;
    borrowed_context borrowed;
    int oob_fill;
} fill_call;

/* Checks and packs what all modes share, and makes sure of a library and a context.  After a failure
 * there is nothing to end. */
static tm_status begin_fill(const tm_tensor *tensor, uint32_t min_rank, tm_map *map,
                            fill_call *call, tm_error *error) {
    call->tensor = tensor;
    call->oob_fill = tensor->fill_nan ? CU_OOB_FILL_NAN : CU_OOB_FILL_NONE;
    tm_status status = pack_tensor(tensor, min_rank, &call->packed, error);
    if (status != TM_OK) return status;
    call->cuda = get_library(error);
    if (call->cuda == NULL) return error->status;
    memset(map, 0, sizeof *map);
    return borrow_context(call->cuda, tensor->address, &call->borrowed, error);
}

/* Repairs the map, or reports what the driver refused; returns the context. */
static tm_status end_fill(fill_call *call, cu_result result, const char *function,
                          void (*append_request)(text *, const tm_tensor *), tm_map *map,
                          tm_error *error) {
    tm_status status = TM_REFUSED;
    if (result == CU_SUCCESS) {
        status = repair_small_tensor(call->cuda, call->tensor, &call->packed, map, error);
    } else {
        text out = start_message(error, status, result);
        append_driver_error(&out, call->cuda, function, result);
        append_request(&out, call->tensor);
    }
    release_context(call->cuda, &call->borrowed);
    return status;
}

/* ---- The two modes, and another address ------------------------------------------------------ */

tm_status fill_tma_descriptor_tiled(const tm_tiled *request, tm_map *map, tm_error *error) {
    const tm_tensor *tensor = &request->tensor;
    fill_call call;
    tm_status status = begin_fill(tensor, TM_MIN_TILED_RANK, map, &call, error);
    if (status != TM_OK) return status;
    uint32_t box[TM_MAX_RANK] = {0};
    for (uint32_t dim = 0; dim < tensor->rank; ++dim)
        box[tensor->rank - 1 - dim] = request->block_shape[dim];
    cu_result result = call.cuda->encode_tiled(
        map, tensor->data_type, tensor->rank, (void *)(uintptr_t)tensor->address, call.packed.dims,
        call.packed.strides_bytes, box, call.packed.element_strides, CU_INTERLEAVE_NONE,
        tensor->swizzle, CU_L2_PROMOTION_128B, call.oob_fill);
    return end_fill(&call, result, "cuTensorMapEncodeTiled", append_tiled, map, error);
}

tm_status fill_tma_descriptor_im2col(const tm_im2col *request, tm_map *map, tm_error *error) {
    const tm_tensor *tensor = &request->tensor;
    fill_call call;
    tm_status status = begin_fill(tensor, TM_MIN_IM2COL_RANK, map, &call, error);
    if (status != TM_OK) return status;
    uint32_t spatial_rank = tensor->rank - 2;
    int lower[TM_MAX_SPATIAL_RANK] = {0};
    int upper[TM_MAX_SPATIAL_RANK] = {0};
    for (uint32_t i = 0; i < spatial_rank; ++i) {
        lower[spatial_rank - 1 - i] = request->pixel_box_lower_corner[i];
        upper[spatial_rank - 1 - i] = request->pixel_box_upper_corner[i];
    }
    cu_result result = call.cuda->encode_im2col(
        map, tensor->data_type, tensor->rank, (void *)(uintptr_t)tensor->address, call.packed.dims,
        call.packed.strides_bytes, lower, upper, request->channels_per_pixel,
        request->pixels_per_column, call.packed.element_strides, CU_INTERLEAVE_NONE,
        tensor->swizzle, CU_L2_PROMOTION_128B, call.oob_fill);
    return end_fill(&call, result, "cuTensorMapEncodeIm2col", append_im2col, map, error);
}

tm_status replace_tma_descriptor_address(tm_map *map, uint64_t address, tm_error *error) {
    const library *cuda = get_library(error);
    if (cuda == NULL) return error->status;
    borrowed_context borrowed;
    tm_status status = borrow_context(cuda, address, &borrowed, error);
    if (status != TM_OK) return status;
    tm_map replaced = *map;
    cu_result result = cuda->replace_address(&replaced, (void *)(uintptr_t)address);
    if (result == CU_SUCCESS) {
        *map = replaced;
    } else {
        status = TM_REFUSED;
        text out = start_message(error, status, result);
        append_driver_error(&out, cuda, "cuTensorMapReplaceAddress", result);
        append(&out, "\n  address=0x%" PRIx64, address);
    }
    release_context(cuda, &borrowed);
    return status;
}
