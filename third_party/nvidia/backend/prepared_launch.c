/* See prepared_launch.h. */
#include "prepared_launch.h"

#include <stdlib.h>
#include <string.h>

/* ---- The driver's types, as far as they are used ------------------------------------------- */

enum {
    CU_SUCCESS = 0,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_CLUSTER_SCHEDULING_POLICY_SPREAD = 1,
    MAP_ALIGNMENT = 16, /* of the address in a tensor map */
};

/* CUlaunchAttribute and CUlaunchConfig of the CUDA driver API, "Execution Control". */
typedef struct {
    int id;
    char pad[8 - sizeof(int)];
    union {
        char bytes[64];
        int number;
        struct {
            unsigned x, y, z;
        } cluster;
    } value;
} launch_attribute;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void *stream;
    launch_attribute *attributes;
    unsigned num_attributes;
} launch_config;

_Static_assert(sizeof(launch_attribute) == 72, "CUlaunchAttribute has 72 bytes");
_Static_assert(sizeof(launch_config) == 56, "CUlaunchConfig has 56 bytes");
_Static_assert(offsetof(launch_config, stream) == 32, "hStream of CUlaunchConfig");

struct pl_launch {
    int (*launch_kernel)(const launch_config *, void *function, void **parameters, void **extra);
    int (*ctx_get_current)(void **);
    int (*pointer_get_attribute)(void *, int attribute, uint64_t address);
    int (*replace_address)(void *map, void *address);
    int (*get_error_string)(int, const char **);
    void *context;
    void *function;
    launch_config config; /* without stream and attributes, which lie elsewhere in each launch */
    launch_attribute attributes[PL_MAX_ATTRIBUTES];
    uint32_t parameters;
    uint32_t bytes;
    uint32_t slots;
    uint32_t offsets[PL_MAX_PARAMETERS];
    pl_slot slot[PL_MAX_SLOTS];
    uint8_t values[PL_MAX_BYTES];
};

/* ---- Preparing ------------------------------------------------------------------------------- */

static tm_status refuse(tm_error *error, const char *text) {
    error->status = TM_BAD_ARGUMENT;
    error->code = 0;
    strncpy(error->message, text, sizeof error->message - 1);
    error->message[sizeof error->message - 1] = '\0';
    return TM_BAD_ARGUMENT;
}

/* Checks all that memory safety needs. */
static tm_status check(const pl_request *request, tm_error *error) {
    if (request->parameters > PL_MAX_PARAMETERS) return refuse(error, "too many parameters");
    if (request->bytes > PL_MAX_BYTES) return refuse(error, "too many bytes of parameters");
    if (request->slots > PL_MAX_SLOTS) return refuse(error, "too many slots");
    for (uint32_t i = 0; i < request->parameters; ++i)
        if (request->offsets[i] >= request->bytes)
            return refuse(error, "a parameter is outside of the bytes");
    for (uint32_t i = 0; i < request->slots; ++i) {
        uint32_t size = request->slot[i].kind == PL_MAP ? TM_MAP_BYTES : sizeof(uint64_t);
        uint32_t offset = request->slot[i].offset;
        if (request->bytes < size || offset > request->bytes - size)
            return refuse(error, "a slot is outside of the bytes");
        if (offset % (request->slot[i].kind == PL_MAP ? TM_MAP_BYTES : sizeof(uint64_t)) != 0)
            return refuse(error, "a slot is not aligned");
    }
    return TM_OK;
}

static void add_attribute(pl_launch *prepared, launch_attribute attribute) {
    prepared->attributes[prepared->config.num_attributes++] = attribute;
}

/* The attributes that Triton's launcher sets, in its order. */
static void add_attributes(pl_launch *prepared, const pl_request *request) {
    if (request->has_pdl)
        add_attribute(prepared, (launch_attribute){
                                    .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                    .value = {.number = 1}});
    if (request->is_cooperative)
        add_attribute(prepared, (launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                                   .value = {.number = 1}});
    if (request->num_ctas == 1) return;
    add_attribute(prepared,
                  (launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                     .value = {.cluster = {request->num_ctas, 1, 1}}});
    add_attribute(prepared, (launch_attribute){
                                .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                .value = {.number = CU_CLUSTER_SCHEDULING_POLICY_SPREAD}});
}

static tm_status look_up(pl_launch *prepared, tm_error *error) {
    const struct {
        const char *name;
        void *member;
    } functions[] = {
        {"cuLaunchKernelEx", &prepared->launch_kernel},
        {"cuCtxGetCurrent", &prepared->ctx_get_current},
        {"cuPointerGetAttribute", &prepared->pointer_get_attribute},
        {"cuTensorMapReplaceAddress", &prepared->replace_address},
        {"cuGetErrorString", &prepared->get_error_string},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
        void *address = NULL;
        tm_status status = tm_find_function(functions[i].name, &address, error);
        if (status != TM_OK) return status;
        memcpy(functions[i].member, &address, sizeof address);
    }
    return TM_OK;
}

tm_status pl_prepare(const pl_request *request, pl_launch **result, tm_error *error) {
    tm_status status = check(request, error);
    if (status != TM_OK) return status;
    pl_launch *prepared = calloc(1, sizeof *prepared);
    if (prepared == NULL) return refuse(error, "out of memory");
    status = look_up(prepared, error);
    if (status == TM_OK &&
        (prepared->ctx_get_current(&prepared->context) != CU_SUCCESS || prepared->context == NULL))
        status = refuse(error, "no CUDA context is current on this thread");
    if (status != TM_OK) {
        free(prepared);
        return status;
    }
    prepared->function = (void *)(uintptr_t)request->function;
    prepared->config = (launch_config){
        .grid = {request->grid[0] * request->num_ctas, request->grid[1], request->grid[2]},
        .block = {PL_WARP_THREADS * request->num_warps, 1, 1},
        .shared_bytes = request->shared_bytes,
    };
    add_attributes(prepared, request);
    prepared->parameters = request->parameters;
    prepared->bytes = request->bytes;
    prepared->slots = request->slots;
    memcpy(prepared->offsets, request->offsets, request->parameters * sizeof *request->offsets);
    memcpy(prepared->slot, request->slot, request->slots * sizeof *request->slot);
    memcpy(prepared->values, request->values, request->bytes);
    *result = prepared;
    return TM_OK;
}

void pl_free(pl_launch *prepared) { free(prepared); }

uint32_t pl_slots(const pl_launch *prepared) { return prepared->slots; }

/* ---- Launching ------------------------------------------------------------------------------- */

/* Writes an address into the parameters; false where the driver refuses it. */
static bool write_address(const pl_launch *prepared, pl_kind kind, uint8_t *at, uint64_t address) {
    if (kind == PL_MAP)
        return address != 0 && address % MAP_ALIGNMENT == 0 &&
               prepared->replace_address(at, (void *)(uintptr_t)address) == CU_SUCCESS;
    uint64_t on_device = address;
    /* As Triton's launcher does: pinned memory has another address there, other memory has none. */
    if (address != 0 &&
        prepared->pointer_get_attribute(&on_device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) !=
            CU_SUCCESS)
        return false;
    memcpy(at, &on_device, sizeof on_device);
    return true;
}

pl_result pl_run(const pl_launch *prepared, uint64_t stream, const uint64_t *addresses,
                 const char **reason) {
    void *context = NULL;
    if (prepared->ctx_get_current(&context) != CU_SUCCESS || context != prepared->context)
        return PL_NOT_LAUNCHED;

    _Alignas(TM_MAP_BYTES) uint8_t values[PL_MAX_BYTES];
    memcpy(values, prepared->values, prepared->bytes);
    for (uint32_t i = 0; i < prepared->slots; ++i) {
        const pl_slot *slot = &prepared->slot[i];
        if (!write_address(prepared, slot->kind, values + slot->offset, addresses[i]))
            return PL_NOT_LAUNCHED;
    }
    void *parameters[PL_MAX_PARAMETERS];
    for (uint32_t i = 0; i < prepared->parameters; ++i)
        parameters[i] = values + prepared->offsets[i];
    /* The driver takes the attributes by a pointer that is not const. */
    launch_attribute attributes[PL_MAX_ATTRIBUTES];
    memcpy(attributes, prepared->attributes, sizeof attributes);
    launch_config config = prepared->config;
    config.stream = (void *)(uintptr_t)stream;
    config.attributes = attributes;

    int code = prepared->launch_kernel(&config, prepared->function, parameters, NULL);
    if (code == CU_SUCCESS) return PL_LAUNCHED;
    if (prepared->get_error_string(code, reason) != CU_SUCCESS || *reason == NULL)
        *reason = "unknown error";
    return PL_FAILED;
}
