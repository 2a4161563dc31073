/* Encoding of TMA tensor maps through the CUDA driver: the part without Python.
 *
 * Arrays are in user order, outermost dimension first (N, [D, [H,]] W, C).  The driver wants them
 * innermost first; the reversal is made here and nowhere else.
 *
 * libcuda is opened when first needed and never closed.  All functions may be called from any
 * thread.  Whether arguments make sense is decided in Python (validation.py); this core checks what
 * memory safety needs, and reports what the driver refuses with every argument.
 *
 * The driver's types are declared here, so that no CUDA header is needed to build.  They are ABI:
 * CUDA driver API, "Tensor Map Object Management" (cuTensorMap* since CUDA 12.0).
 */
#ifndef TRITON_EXT_TENSOR_MAP_H
#define TRITON_EXT_TENSOR_MAP_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TM_MAX_RANK = 5,
    TM_MIN_TILED_RANK = 1,
    TM_MIN_IM2COL_RANK = 3,
    TM_MAX_SPATIAL_RANK = 3,
    TM_MAP_BYTES = 128,
    TM_MESSAGE_BYTES = 2048,
};

typedef enum {
    TM_OK = 0,
    TM_NO_LIBRARY,   /* libcuda cannot be opened */
    TM_NO_SYMBOL,    /* libcuda is too old: a function is missing */
    TM_BAD_ARGUMENT, /* refused here, before the driver is asked */
    TM_NO_CONTEXT,   /* no CUDA device, or no context could be made current */
    TM_REFUSED,      /* the driver returned an error */
} tm_status;

typedef struct {
    tm_status status;
    int code; /* CUresult, 0 where the driver was not asked */
    char message[TM_MESSAGE_BYTES];
} tm_error;

/* What every mode of tensor map needs. */
typedef struct {
    uint64_t address; /* bytes */
    int data_type;    /* CUtensorMapDataType */
    uint32_t element_bytes;
    uint32_t rank;
    uint64_t shape[TM_MAX_RANK];           /* elements */
    uint64_t strides[TM_MAX_RANK];         /* elements; the last must be 1 */
    uint32_t element_strides[TM_MAX_RANK]; /* step of the traversal, per dimension */
    int swizzle;                           /* CUtensorMapSwizzle */
    bool fill_nan;                         /* outside the tensor: NaN instead of 0 */
} tm_tensor;

typedef struct {
    tm_tensor tensor;
    uint32_t block_shape[TM_MAX_RANK]; /* of one TMA instruction; rank are used */
} tm_tiled;

typedef struct {
    tm_tensor tensor;
    int pixel_box_lower_corner[TM_MAX_SPATIAL_RANK]; /* rank - 2 are used */
    int pixel_box_upper_corner[TM_MAX_SPATIAL_RANK];
    uint32_t channels_per_pixel;
    uint32_t pixels_per_column;
} tm_im2col;

/* A CUtensorMap.  The driver wants it 64-byte aligned. */
typedef struct {
    _Alignas(128) uint64_t words[TM_MAP_BYTES / sizeof(uint64_t)];
} tm_map;

/* Opens libcuda ("libcuda.so.1" for NULL) and makes it the one that is used.  A library that was
 * opened before under the same path is used again.  On failure the current library stays. */
tm_status tm_open_library(const char *path, tm_error *error);

/* Stores the CUDA version that the driver supports, such as 13010 for 13.1. */
tm_status tm_driver_version(int *version, tm_error *error);

/* Finds another function of the library that is used. */
tm_status tm_find_function(const char *name, void **function, tm_error *error);

/* Encode a map.  Where no context is current on the calling thread, the primary context of the device
 * that owns the address is made current for the call.  Both repair the maps of small tensors that
 * drivers up to CUDA 13.1 encode wrongly. */
tm_status fill_tma_descriptor_tiled(const tm_tiled *request, tm_map *map, tm_error *error);
tm_status fill_tma_descriptor_im2col(const tm_im2col *request, tm_map *map, tm_error *error);

/* Makes an encoded map, of either mode, describe a tensor of the same geometry at another address.
 * On failure the map is unchanged. */
tm_status replace_tma_descriptor_address(tm_map *map, uint64_t address, tm_error *error);

#endif
