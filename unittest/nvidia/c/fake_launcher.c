/* The rest of libcuda that Triton's launcher is linked with: a GPU that runs nothing.
 *
 * Linked with fake_libcuda.c where a test launches through Triton's own launcher.  A launch leaves
 * the bytes of its first parameters, so that a test sees what a kernel would have read. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_PARAMETERS = 8, MAP_BYTES = 128 };

static _Atomic uint64_t launches;
static _Thread_local uint8_t parameters[MAX_PARAMETERS][MAP_BYTES];
static char anything[MAP_BYTES];

EXPORT uint64_t fake_launcher_launches(void);
EXPORT const void *fake_launcher_parameter(int index);

uint64_t fake_launcher_launches(void) { return launches; }
const void *fake_launcher_parameter(int index) { return parameters[index]; }

/* The launcher passes a CUlaunchConfig and the kernel's parameters, here three tensor maps with what
 * lies between them; which parameters are maps is the test's knowledge.  Reading MAP_BYTES of a
 * scalar would read beyond it, so the test says how many bytes each one has. */
static int parameter_bytes[MAX_PARAMETERS];
EXPORT void fake_launcher_set_bytes(int index, int bytes);
void fake_launcher_set_bytes(int index, int bytes) { parameter_bytes[index] = bytes; }

/* What is told of every launch, so that a test that knows the sizes sees all of it; and what the
 * launches answer. */
typedef void launch_listener(const void *config, void *function, void **arguments);
static launch_listener *listener;
static int launch_result;
EXPORT void fake_launcher_listen(launch_listener *wanted);
EXPORT void fake_launcher_set_result(int result);
void fake_launcher_listen(launch_listener *wanted) { listener = wanted; }
void fake_launcher_set_result(int result) { launch_result = result; }

EXPORT int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra);
int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) {
    (void)extra;
    ++launches;
    if (listener != NULL) listener(config, function, arguments);
    if (launch_result != 0) return launch_result;
    for (int i = 0; i < MAX_PARAMETERS; ++i)
        if (parameter_bytes[i] > 0) memcpy(parameters[i], arguments[i], (size_t)parameter_bytes[i]);
    return 0;
}

#define SUCCEEDS(name)   \
    EXPORT int name(void); \
    int name(void) { return 0; }

SUCCEEDS(cuCtxSetCurrent)
SUCCEEDS(cuCtxSetLimit)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuFuncSetCacheConfig)
SUCCEEDS(cuModuleUnload)


#define STORES(name, type, value)        \
    EXPORT int name(type *result);       \
    int name(type *result) {             \
        *result = value;                 \
        return 0;                        \
    }

STORES(cuCtxGetDevice, int, 0)
STORES(cuDeviceGet, int, 0)
STORES(cuDeviceGetCount, int, 1)
STORES(cuModuleLoadData, void *, anything)
STORES(cuModuleGetFunction, void *, anything)
STORES(cuCtxGetLimit, size_t, 0)
STORES(cuOccupancyMaxActiveClusters, int, 1)

EXPORT int cuStreamIsCapturing(void *stream, int *status);
int cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = 0;
    return 0;
}

/* Compute capability 9.0; everything else is large enough for any kernel. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    enum { MAJOR = 75, MINOR = 76 };
    *value = attribute == MAJOR ? 9 : attribute == MINOR ? 0 : 232448;
    return 0;
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function);
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)function;
    *value = attribute == 0 ? 1024 : 0; /* CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
    return 0;
}
