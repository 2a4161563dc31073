/* Stand-in for libcuda: records what the encoder was given, and fails on request. */
#ifndef FAKE_LIBCUDA_H
#define FAKE_LIBCUDA_H

#include <stdatomic.h>
#include <stdint.h>

enum { FAKE_MAX_RANK = 5, FAKE_MAX_SPATIAL = 3 };

/* The last call of an encoder on a thread; arrays innermost first, as received. */
typedef struct {
    int data_type;
    uint32_t rank;
    uint64_t address;
    uint64_t dims[FAKE_MAX_RANK];
    uint64_t strides[FAKE_MAX_RANK - 1];
    int lower[FAKE_MAX_SPATIAL];
    int upper[FAKE_MAX_SPATIAL];
    uint32_t channels;
    uint32_t pixels;
    uint32_t element_strides[FAKE_MAX_RANK];
    int interleave;
    int swizzle;
    int l2_promotion;
    int oob_fill;
    uint32_t box[FAKE_MAX_RANK]; /* tiled only */
    int is_tiled;
    int current_device; /* whose primary context was current, -1 for the thread's own */
} fake_record;

/* What the functions answer; 0 is success.  Shared by all threads. */
typedef struct {
    atomic_int driver_version;
    atomic_int version_result;
    atomic_int is_initialized;
    atomic_int init_result;
    atomic_int has_context; /* whether threads have a context of their own */
    atomic_int current_result;
    atomic_int pointer_result;
    atomic_int pointer_device;
    atomic_int retain_result;
    atomic_int push_result;
    atomic_int encode_result;
    atomic_int replace_result;
    atomic_int has_error_texts;
    /* How often each was called. */
    atomic_int inits;
    atomic_int encodes;
    atomic_int replaces;
    atomic_int retains;
    atomic_int releases;
    atomic_int pushes;
    atomic_int pops;
} fake_state;

/* The functions below are looked up by name in the loaded stand-in. */
typedef fake_state *fake_state_function(void);
typedef const fake_record *fake_record_function(void);
typedef void fake_reset_function(void);

#endif
