/* CPython layer over prepared_launch.c: two functions of the module _driver.
 *
 * launch_prepared is what an eager call of an operator costs, so it takes its arguments by position
 * and makes no object but the integers that data_ptr() returns. */
#include "launch_binding.h"

#include "prepared_launch.h"

#include <string.h>

const char prepare_launch_doc[] =
    "prepare_launch(*, function, grid, num_warps, num_ctas, shared_bytes, has_pdl,\n"
    "               is_cooperative, values, offsets, slots, kinds)\n--\n\n"
    "Returns a capsule for launch_prepared, for the context that is current.\n\n"
    "values are the bytes of all parameters, offsets where each begins, as uint32_t.  slots are\n"
    "three uint32_t for each tensor of a launch that is a parameter: its index among the tensors,\n"
    "0 for a pointer or 1 for a tensor map, its place in values.  kinds has for each tensor the\n"
    "(type, names, values, dtype) of the descriptor of which it may be the base, or None: names and\n"
    "values of its attributes, and the dtype of its base, None where the values tell it.\n\n"
    "Raises ValueError where that makes no sense, RuntimeError where the driver is missing, too\n"
    "old, or has no context.";

const char launch_prepared_doc[] =
    "launch_prepared(prepared, stream, tensors)\n--\n\n"
    "Launches with the addresses of tensors, or descriptors of tensors.\n\n"
    "Returns False where nothing was launched because a tensor is not what was prepared for, the\n"
    "driver refuses an address, or another context is current.  Raises RuntimeError where the\n"
    "launch fails, with the text of Triton's launcher.";

static const char capsule_name[] = "triton_ext.backends.nvidia.backend._driver.prepared";

typedef struct {
    pl_launch *launch;
    PyObject *kinds; /* tuple, one for each tensor */
    PyObject *data_ptr; /* the names of what is looked up */
    PyObject *base;
    PyObject *dtype;
    uint32_t index[PL_MAX_SLOTS]; /* of the slot's tensor */
    uint64_t is_given; /* a bit for each tensor that has a slot */
} prepared;

static void free_prepared(prepared *self) {
    pl_free(self->launch);
    Py_XDECREF(self->kinds);
    Py_XDECREF(self->data_ptr);
    Py_XDECREF(self->base);
    Py_XDECREF(self->dtype);
    PyMem_Free(self);
}

static void free_capsule(PyObject *capsule) {
    prepared *self = PyCapsule_GetPointer(capsule, capsule_name);
    if (self != NULL) free_prepared(self);
}

/* ---- Preparing ------------------------------------------------------------------------------- */

enum { MAX_TENSORS = 64, SLOT_WORDS = 3, MAX_WARPS = 32 };

/* What an entry of kinds has. */
enum { KIND_TYPE, KIND_NAMES, KIND_VALUES, KIND_DTYPE, KIND_ENTRIES };

static bool is_kind(PyObject *kind) {
    if (!PyTuple_Check(kind) || PyTuple_Size(kind) != KIND_ENTRIES ||
        !PyType_Check(PyTuple_GetItem(kind, KIND_TYPE)))
        return false;
    PyObject *names = PyTuple_GetItem(kind, KIND_NAMES);
    PyObject *values = PyTuple_GetItem(kind, KIND_VALUES);
    if (!PyTuple_Check(names) || !PyTuple_Check(values)) return false;
    Py_ssize_t count = PyTuple_Size(names);
    if (PyTuple_Size(values) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!PyUnicode_Check(PyTuple_GetItem(names, i))) return false;
    return true;
}

/* Checks the kinds; false with an exception set. */
static bool check_kinds(PyObject *kinds) {
    Py_ssize_t count = PyTuple_Size(kinds);
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *kind = PyTuple_GetItem(kinds, i);
        if (kind == Py_None) continue;
        if (!is_kind(kind)) {
            PyErr_Format(PyExc_TypeError, "kinds[%zd] must be (type, names, values, dtype), got %R",
                         i, kind);
            return false;
        }
    }
    return true;
}

/* Reads the slots; false with an exception set. */
static bool read_slots(prepared *self, const char *bytes, Py_ssize_t size, pl_slot *slot,
                       uint32_t *count) {
    Py_ssize_t tensors = PyTuple_Size(self->kinds);
    const Py_ssize_t slot_bytes = SLOT_WORDS * (Py_ssize_t)sizeof(uint32_t);
    if (tensors < 0) return false;
    if (tensors > MAX_TENSORS || size % slot_bytes != 0 || size / slot_bytes > PL_MAX_SLOTS) {
        PyErr_Format(PyExc_ValueError, "%zd tensors, slots of %zd bytes", tensors, size);
        return false;
    }
    *count = (uint32_t)(size / slot_bytes);
    for (uint32_t i = 0; i < *count; ++i) {
        uint32_t words[SLOT_WORDS];
        memcpy(words, bytes + i * sizeof words, sizeof words);
        if (words[0] >= (uint32_t)tensors || words[1] > PL_MAP) {
            PyErr_Format(PyExc_ValueError, "slot %u: tensor %u of %zd, kind %u", i, words[0],
                         tensors, words[1]);
            return false;
        }
        self->index[i] = words[0];
        self->is_given |= (uint64_t)1 << words[0];
        slot[i] = (pl_slot){(pl_kind)words[1], words[2]};
    }
    return true;
}

PyObject *prepare_launch(PyObject *module, PyObject *arguments, PyObject *keywords) {
    (void)module;
    static char *names[] = {"function", "grid", "num_warps", "num_ctas", "shared_bytes",
                            "has_pdl", "is_cooperative", "values", "offsets", "slots",
                            "kinds", NULL};
    long long function = 0;
    int grid[3] = {0}, num_warps = 0, num_ctas = 0, shared_bytes = 0, has_pdl = 0, cooperative = 0;
    const char *values = NULL, *offsets = NULL, *slots = NULL;
    Py_ssize_t values_size = 0, offsets_size = 0, slots_size = 0;
    PyObject *kinds = NULL;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "$L(iii)iiippy#y#y#O!:prepare_launch", names, &function, &grid[0],
            &grid[1], &grid[2], &num_warps, &num_ctas, &shared_bytes, &has_pdl, &cooperative,
            &values, &values_size, &offsets, &offsets_size, &slots, &slots_size, &PyTuple_Type,
            &kinds))
        return NULL;
    const Py_ssize_t offset_bytes = (Py_ssize_t)sizeof(uint32_t);
    /* The driver's limits of a grid and of a block; 32 bits hold every product below. */
    if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || num_warps < 1 || num_warps > MAX_WARPS ||
        num_ctas < 1 || (long long)grid[0] * num_ctas > INT32_MAX || shared_bytes < 0 ||
        values_size > PL_MAX_BYTES || offsets_size % offset_bytes != 0 ||
        offsets_size / offset_bytes > PL_MAX_PARAMETERS) {
        PyErr_Format(PyExc_ValueError,
                     "grid (%d, %d, %d), %d warps, %d CTAs, %d bytes of shared memory, %zd bytes "
                     "of parameters at offsets of %zd bytes",
                     grid[0], grid[1], grid[2], num_warps, num_ctas, shared_bytes, values_size,
                     offsets_size);
        return NULL;
    }
    prepared *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL) return PyErr_NoMemory();
    Py_INCREF(kinds);
    self->kinds = kinds;
    self->data_ptr = PyUnicode_InternFromString("data_ptr");
    self->base = PyUnicode_InternFromString("base");
    self->dtype = PyUnicode_InternFromString("dtype");
    pl_slot slot[PL_MAX_SLOTS];
    uint32_t offset[PL_MAX_PARAMETERS];
    uint32_t slot_count = 0;
    PyObject *capsule = NULL;
    if (self->data_ptr == NULL || self->base == NULL || self->dtype == NULL ||
        !check_kinds(kinds) || !read_slots(self, slots, slots_size, slot, &slot_count))
        goto done;
    memcpy(offset, offsets, (size_t)offsets_size);
    const pl_request request = {
        .function = (uint64_t)function,
        .grid = {(uint32_t)grid[0], (uint32_t)grid[1], (uint32_t)grid[2]},
        .num_warps = (uint32_t)num_warps,
        .num_ctas = (uint32_t)num_ctas,
        .shared_bytes = (uint32_t)shared_bytes,
        .has_pdl = has_pdl != 0,
        .is_cooperative = cooperative != 0,
        .parameters = (uint32_t)(offsets_size / offset_bytes),
        .offsets = offset,
        .bytes = (uint32_t)values_size,
        .values = (const uint8_t *)values,
        .slots = slot_count,
        .slot = slot,
    };
    tm_error error;
    if (pl_prepare(&request, &self->launch, &error) != TM_OK) {
        PyErr_SetString(
            error.status == TM_BAD_ARGUMENT ? PyExc_ValueError : PyExc_RuntimeError, error.message);
        goto done;
    }
    capsule = PyCapsule_New(self, capsule_name, free_capsule);

done:
    if (capsule == NULL) free_prepared(self);
    return capsule;
}

/* ---- Launching ------------------------------------------------------------------------------- */

/* Stores tensor.data_ptr(); false, without an exception, where that is no address. */
static bool read_address(PyObject *tensor, PyObject *data_ptr, uint64_t *address) {
    PyObject *number = PyObject_CallMethodObjArgs(tensor, data_ptr, NULL);
    if (number != NULL) {
        *address = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
        if (*address != UINT64_MAX || !PyErr_Occurred()) return true;
    }
    PyErr_Clear();
    return false;
}

/* Tells whether an attribute is what it was; without an exception. */
static bool is_same(PyObject *object, PyObject *name, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(object, name);
    int equal = value == NULL ? -1 : PyObject_RichCompareBool(value, expected, Py_EQ);
    Py_XDECREF(value);
    if (equal < 0) PyErr_Clear();
    return equal > 0;
}

/* Stores the address of a tensor, or of the base of a descriptor like the one prepared for. */
static bool address_of(const prepared *self, uint32_t index, PyObject *tensor, uint64_t *address) {
    PyObject *kind = PyTuple_GetItem(self->kinds, (Py_ssize_t)index);
    if (tensor == Py_None) return false;
    if (kind == Py_None ||
        !Py_IS_TYPE(tensor, (PyTypeObject *)PyTuple_GetItem(kind, KIND_TYPE)))
        return read_address(tensor, self->data_ptr, address);
    /* Plans describe all tensors of a parameter alike; one that did not would be read wrongly. */
    PyObject *names = PyTuple_GetItem(kind, KIND_NAMES);
    PyObject *values = PyTuple_GetItem(kind, KIND_VALUES);
    Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!is_same(tensor, PyTuple_GetItem(names, i), PyTuple_GetItem(values, i))) return false;
    PyObject *base = PyObject_GetAttr(tensor, self->base);
    if (base == NULL) {
        PyErr_Clear();
        return false;
    }
    PyObject *dtype = PyTuple_GetItem(kind, KIND_DTYPE);
    bool is_read = (dtype == Py_None || is_same(base, self->dtype, dtype)) &&
                   read_address(base, self->data_ptr, address);
    Py_DECREF(base);
    return is_read;
}

/* Reads the addresses of all slots; false where the tensors are not what was prepared for. */
static bool read_addresses(const prepared *self, PyObject *tensors, uint64_t *addresses) {
    Py_ssize_t count = PyTuple_Size(tensors);
    if (count != PyTuple_Size(self->kinds)) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!(self->is_given >> i & 1) && PyTuple_GetItem(tensors, i) != Py_None) return false;
    uint32_t slots = pl_slots(self->launch);
    for (uint32_t i = 0; i < slots; ++i) {
        uint32_t index = self->index[i];
        PyObject *tensor = PyTuple_GetItem(tensors, (Py_ssize_t)index);
        if (!address_of(self, index, tensor, &addresses[i])) return false;
    }
    return true;
}

PyObject *launch_prepared(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 3 || !PyTuple_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "launch_prepared(prepared, stream, tensors)");
        return NULL;
    }
    const prepared *self = PyCapsule_GetPointer(arguments[0], capsule_name);
    if (self == NULL) return NULL;
    uint64_t stream = PyLong_AsUnsignedLongLong(arguments[1]);
    if (stream == UINT64_MAX && PyErr_Occurred()) return NULL;
    uint64_t addresses[PL_MAX_SLOTS];
    if (!read_addresses(self, arguments[2], addresses)) Py_RETURN_FALSE;

    const char *reason = NULL;
    pl_result result;
    Py_BEGIN_ALLOW_THREADS;
    result = pl_run(self->launch, stream, addresses, &reason);
    Py_END_ALLOW_THREADS;
    if (result == PL_FAILED) {
        PyErr_Format(PyExc_RuntimeError, "Triton Error [CUDA]: %s", reason);
        return NULL;
    }
    return PyBool_FromLong(result == PL_LAUNCHED);
}
