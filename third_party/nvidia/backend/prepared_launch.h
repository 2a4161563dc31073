/* Launches of one kernel whose arguments differ in addresses only: the part without Python.
 *
 * A prepared launch holds what Triton's launcher makes of a kernel's arguments at every call: the
 * configuration of cuLaunchKernelEx and the bytes of all parameters, tensor maps included.  A launch
 * copies the parameters to the stack, writes the addresses of the call into them and calls the
 * driver.  It changes nothing that it shares, so any number of threads may launch at a time.
 *
 * A launch that is not the prepared one in everything but the addresses is not made, and says so:
 * whoever asked goes through Triton's launcher then, which knows what to do or what to say.
 */
#ifndef TRITON_EXT_PREPARED_LAUNCH_H
#define TRITON_EXT_PREPARED_LAUNCH_H

#include "tensor_map.h"

#include <stddef.h>
#include <stdint.h>

enum {
    PL_MAX_BYTES = 4096, /* of all parameters, which is CUDA's limit before CUDA 12.1 */
    PL_MAX_PARAMETERS = 256,
    PL_MAX_SLOTS = 32,
    PL_MAX_ATTRIBUTES = 4,
    PL_WARP_THREADS = 32,
};

/* What is written at a place of the parameters. */
typedef enum {
    PL_POINTER, /* an address of 8 bytes */
    PL_MAP,     /* the address within a tensor map */
} pl_kind;

typedef struct {
    pl_kind kind;
    uint32_t offset; /* in the parameters, bytes */
} pl_slot;

typedef struct {
    uint64_t function; /* CUfunction */
    uint32_t grid[3];  /* in clusters, as in Triton */
    uint32_t num_warps;
    uint32_t num_ctas; /* of a cluster, which is a row of the grid */
    uint32_t shared_bytes;
    bool has_pdl;
    bool is_cooperative;
    uint32_t parameters;
    const uint32_t *offsets; /* of the parameters, bytes */
    uint32_t bytes;
    const uint8_t *values; /* of the parameters, maps with any address */
    uint32_t slots;
    const pl_slot *slot;
} pl_request;

typedef struct pl_launch pl_launch;

typedef enum {
    PL_LAUNCHED,
    PL_NOT_LAUNCHED, /* nothing was done: take Triton's launcher */
    PL_FAILED,       /* cuLaunchKernelEx returned an error */
} pl_result;

/* Makes a prepared launch for the context that is current; pl_free gives it back. */
tm_status pl_prepare(const pl_request *request, pl_launch **prepared, tm_error *error);
void pl_free(pl_launch *prepared);

uint32_t pl_slots(const pl_launch *prepared);

/* Launches.
 *
 * addresses are those of the slots.  On PL_FAILED reason is what the driver says of the error. */
pl_result pl_run(const pl_launch *prepared, uint64_t stream, const uint64_t *addresses,
                 const char **reason);

#endif
