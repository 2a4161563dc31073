/* CPython layer over tensor_map.c: the module triton_ext.backends.nvidia.backend._driver.
 * (What launches is in launch_binding.c.)
 *
 * It converts arguments and nothing else.  Every length and every integer is checked before an
 * array is written; the GIL is released around calls into the CUDA driver.  Failures of the core
 * are raised as _driver.Error, which driver.py turns into triton_ext.errors.DriverError.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launch_binding.h"
#include "tensor_map.h"

#include <limits.h>
#include <string.h>

typedef struct {
    PyObject *error; /* _driver.Error */
} module_state;

static PyObject *raise_error(PyObject *module, const tm_error *error) {
    module_state *state = PyModule_GetState(module);
    if (state == NULL) return NULL;
    PyErr_SetString(error->status == TM_BAD_ARGUMENT ? PyExc_ValueError : state->error,
                    error->message);
    return NULL;
}

/* ---- Conversions: all return false with an exception set ------------------------------------- */

/* Says which argument does not fit, e.g. "shape[2] = -1 is none of 0..18446744073709551615". */
static bool refuse_range(const char *name, Py_ssize_t index, PyObject *value, const char *range) {
    PyErr_Clear();
    if (index < 0)
        PyErr_Format(PyExc_OverflowError, "%s = %S is outside %s", name, value, range);
    else
        PyErr_Format(PyExc_OverflowError, "%s[%zd] = %S is outside %s", name, index, value, range);
    return false;
}

/* Returns a new reference to the value as a Python int. */
static PyObject *to_index(const char *name, Py_ssize_t index, PyObject *value) {
    PyObject *number = PyNumber_Index(value);
    if (number == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        if (index < 0)
            PyErr_Format(PyExc_TypeError, "%s must be an int, got %R", name, value);
        else
            PyErr_Format(PyExc_TypeError, "%s[%zd] must be an int, got %R", name, index, value);
    }
    return number;
}

/* index is the position in a sequence, or -1 for a scalar. */
static bool to_uint64(const char *name, Py_ssize_t index, PyObject *value, uint64_t *result) {
    PyObject *number = to_index(name, index, value);
    if (number == NULL) return false;
    unsigned long long converted = PyLong_AsUnsignedLongLong(number);
    bool fits = !(converted == ULLONG_MAX && PyErr_Occurred());
    if (fits)
        *result = converted;
    else
        refuse_range(name, index, number, "0..2^64-1");
    Py_DECREF(number);
    return fits;
}

static bool to_uint32(const char *name, Py_ssize_t index, PyObject *value, uint32_t *result) {
    uint64_t wide = 0;
    if (!to_uint64(name, index, value, &wide)) return false;
    if (wide > UINT32_MAX) return refuse_range(name, index, value, "0..2^32-1");
    *result = (uint32_t)wide;
    return true;
}

static bool to_int(const char *name, Py_ssize_t index, PyObject *value, int *result) {
    PyObject *number = to_index(name, index, value);
    if (number == NULL) return false;
    int overflow = 0;
    long long converted = PyLong_AsLongLongAndOverflow(number, &overflow);
    bool fits = overflow == 0 && converted >= INT_MIN && converted <= INT_MAX;
    if (fits)
        *result = (int)converted;
    else
        refuse_range(name, index, number, "-2^31..2^31-1");
    Py_DECREF(number);
    return fits;
}

/* Returns the length of a sequence, or -1 with an exception set. */
static Py_ssize_t length_of(const char *name, PyObject *sequence) {
    if (PySequence_Check(sequence)) return PySequence_Size(sequence);
    PyErr_Format(PyExc_TypeError, "%s must be a sequence of ints, got %R", name, sequence);
    return -1;
}

/* Checks the length of a sequence: exactly count entries. */
static bool check_length(const char *name, PyObject *sequence, Py_ssize_t count) {
    Py_ssize_t size = length_of(name, sequence);
    if (size < 0) return false;
    if (size == count) return true;
    PyErr_Format(PyExc_ValueError, "%s has %zd entries, expected %zd", name, size, count);
    return false;
}

/* The arrays written have at least count entries; the caller has bounded count by the rank. */
#define DEFINE_ARRAY_CONVERSION(function, convert, type)                                         \
    static bool function(const char *name, PyObject *sequence, Py_ssize_t count, type *result) { \
        if (!check_length(name, sequence, count)) return false;                                  \
        for (Py_ssize_t i = 0; i < count; ++i) {                                                 \
            PyObject *item = PySequence_GetItem(sequence, i);                                    \
            if (item == NULL) return false;                                                      \
            bool converted = convert(name, i, item, &result[i]);                                 \
            Py_DECREF(item);                                                                     \
            if (!converted) return false;                                                        \
        }                                                                                        \
        return true;                                                                             \
    }

DEFINE_ARRAY_CONVERSION(to_uint64_array, to_uint64, uint64_t)
DEFINE_ARRAY_CONVERSION(to_uint32_array, to_uint32, uint32_t)
DEFINE_ARRAY_CONVERSION(to_int_array, to_int, int)

/* ---- Functions ------------------------------------------------------------------------------- */

static PyObject *open_library(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"path", NULL};
    PyObject *path = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:open_library", names, &path))
        return NULL;
    PyObject *encoded = NULL;
    const char *bytes = NULL;
    if (path != Py_None) {
        if (!PyUnicode_FSConverter(path, &encoded)) return NULL;
        bytes = PyBytes_AsString(encoded);
        if (bytes == NULL) {
            Py_DECREF(encoded);
            return NULL;
        }
    }
    tm_error error;
    tm_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = tm_open_library(bytes, &error);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(encoded);
    if (status != TM_OK) return raise_error(module, &error);
    Py_RETURN_NONE;
}

static PyObject *driver_version(PyObject *module, PyObject *unused) {
    (void)unused;
    tm_error error;
    tm_status status;
    int version = 0;
    Py_BEGIN_ALLOW_THREADS;
    status = tm_driver_version(&version, &error);
    Py_END_ALLOW_THREADS;
    if (status == TM_NO_LIBRARY) Py_RETURN_NONE;
    if (status != TM_OK) return raise_error(module, &error);
    return PyLong_FromLong(version);
}

/* The arguments that all encoders have, before their conversion; borrowed references. */
typedef struct {
    PyObject *address;
    PyObject *swizzle;
    PyObject *element_bytes;
    PyObject *data_type;
    PyObject *shape;
    PyObject *strides;
    PyObject *element_strides;
    int fill_nan;
} tensor_arguments;

/* Fills what every mode of tensor map has.  The rank is that of shape. */
static bool convert_tensor(const tensor_arguments *from, Py_ssize_t min_rank, tm_tensor *tensor) {
    Py_ssize_t rank = length_of("shape", from->shape);
    if (rank < 0) return false;
    if (rank < min_rank || rank > TM_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "shape has %zd entries, expected %zd to %d", rank, min_rank,
                     TM_MAX_RANK);
        return false;
    }
    tensor->rank = (uint32_t)rank;
    tensor->fill_nan = from->fill_nan != 0;
    return to_uint64("address", -1, from->address, &tensor->address) &&
           to_int("swizzle", -1, from->swizzle, &tensor->swizzle) &&
           to_uint32("element_bytes", -1, from->element_bytes, &tensor->element_bytes) &&
           to_int("data_type", -1, from->data_type, &tensor->data_type) &&
           to_uint64_array("shape", from->shape, rank, tensor->shape) &&
           to_uint64_array("strides", from->strides, rank, tensor->strides) &&
           to_uint32_array("element_strides", from->element_strides, rank,
                           tensor->element_strides);
}

static PyObject *to_bytes(PyObject *module, tm_status status, const tm_map *map,
                          const tm_error *error) {
    if (status != TM_OK) return raise_error(module, error);
    return PyBytes_FromStringAndSize((const char *)map->words, sizeof map->words);
}

static PyObject *fill_tiled(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"address", "swizzle", "element_bytes", "data_type",
                            "block_shape", "shape", "strides", "fill_nan",
                            "element_strides", NULL};
    tensor_arguments from = {0};
    PyObject *block_shape = NULL;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "$OOOOOOOpO:fill_tma_descriptor_tiled", names, &from.address,
            &from.swizzle, &from.element_bytes, &from.data_type, &block_shape, &from.shape,
            &from.strides, &from.fill_nan, &from.element_strides))
        return NULL;
    tm_tiled request = {0};
    if (!convert_tensor(&from, TM_MIN_TILED_RANK, &request.tensor) ||
        !to_uint32_array("block_shape", block_shape, (Py_ssize_t)request.tensor.rank,
                         request.block_shape))
        return NULL;

    tm_map map;
    tm_error error;
    tm_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fill_tma_descriptor_tiled(&request, &map, &error);
    Py_END_ALLOW_THREADS;
    return to_bytes(module, status, &map, &error);
}

static PyObject *fill_im2col(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"address",
                            "swizzle",
                            "element_bytes",
                            "data_type",
                            "shape",
                            "strides",
                            "fill_nan",
                            "pixel_box_lower_corner",
                            "pixel_box_upper_corner",
                            "channels_per_pixel",
                            "pixels_per_column",
                            "element_strides",
                            NULL};
    tensor_arguments from = {0};
    PyObject *lower = NULL, *upper = NULL, *channels = NULL, *pixels = NULL;
    if (!PyArg_ParseTupleAndKeywords(
            arguments, keywords, "$OOOOOOpOOOOO:fill_tma_descriptor_im2col", names, &from.address,
            &from.swizzle, &from.element_bytes, &from.data_type, &from.shape, &from.strides,
            &from.fill_nan, &lower, &upper, &channels, &pixels, &from.element_strides))
        return NULL;
    tm_im2col request = {0};
    if (!convert_tensor(&from, TM_MIN_IM2COL_RANK, &request.tensor)) return NULL;
    Py_ssize_t spatial_rank = (Py_ssize_t)request.tensor.rank - 2;
    if (!to_int_array("pixel_box_lower_corner", lower, spatial_rank,
                      request.pixel_box_lower_corner) ||
        !to_int_array("pixel_box_upper_corner", upper, spatial_rank,
                      request.pixel_box_upper_corner) ||
        !to_uint32("channels_per_pixel", -1, channels, &request.channels_per_pixel) ||
        !to_uint32("pixels_per_column", -1, pixels, &request.pixels_per_column))
        return NULL;

    tm_map map;
    tm_error error;
    tm_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fill_tma_descriptor_im2col(&request, &map, &error);
    Py_END_ALLOW_THREADS;
    return to_bytes(module, status, &map, &error);
}

static PyObject *replace_address(PyObject *module, PyObject *arguments) {
    PyObject *encoded = NULL, *address = NULL;
    if (!PyArg_ParseTuple(arguments, "SO:replace_tma_descriptor_address", &encoded, &address))
        return NULL;
    if (PyBytes_Size(encoded) != TM_MAP_BYTES) {
        PyErr_Format(PyExc_ValueError, "a tensor map has %d bytes, got %zd", TM_MAP_BYTES,
                     PyBytes_Size(encoded));
        return NULL;
    }
    uint64_t new_address = 0;
    if (!to_uint64("address", -1, address, &new_address)) return NULL;
    tm_map map;
    memcpy(map.words, PyBytes_AsString(encoded), sizeof map.words);
    tm_error error;
    /* The GIL is kept: the driver only writes a few bits of the map. */
    tm_status status = replace_tma_descriptor_address(&map, new_address, &error);
    return to_bytes(module, status, &map, &error);
}

/* Returns (first, *rest); steals first, which may be NULL with an exception set. */
static PyObject *prepend(PyObject *first, PyObject *rest) {
    Py_ssize_t count = PyTuple_Size(rest);
    PyObject *result = first == NULL ? NULL : PyTuple_New(count + 1);
    if (result == NULL) {
        Py_XDECREF(first);
        return NULL;
    }
    PyTuple_SetItem(result, 0, first);
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *item = PyTuple_GetItem(rest, i);
        Py_INCREF(item);
        PyTuple_SetItem(result, i + 1, item);
    }
    return result;
}

/* A type of which every instance holds the bytes of a map; checked when it is made. */
typedef struct {
    PyObject *type;
    Py_ssize_t offset;
} map_place;

static const char map_place_name[] = "triton_ext.backends.nvidia.backend._driver.map_place";

static void free_map_place(PyObject *capsule) {
    map_place *place = PyCapsule_GetPointer(capsule, map_place_name);
    if (place == NULL) return;
    Py_DECREF(place->type);
    PyMem_Free(place);
}

/* Returns what type.__basicsize__ says, or -1 with an exception set. */
static Py_ssize_t instance_bytes(PyObject *type) {
    /* A metaclass of its own could say anything about the size of the instances. */
    if (!Py_IS_TYPE(type, &PyType_Type)) {
        PyErr_Format(PyExc_TypeError, "expected a type without a metaclass, got %R", type);
        return -1;
    }
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    if (size == NULL) return -1;
    Py_ssize_t bytes = PyLong_AsSsize_t(size);
    Py_DECREF(size);
    return bytes;
}

/* Tells whether an attribute of a type is a number other than 0; -1 with an exception set. */
static int is_set(PyObject *type, const char *name) {
    PyObject *number = PyObject_GetAttrString(type, name);
    if (number == NULL) return -1;
    int found = PyObject_IsTrue(number);
    Py_DECREF(number);
    return found;
}

/* Tells whether a class names members of its instances; -1 with an exception set. */
static int names_members(PyObject *type) {
    PyObject *attributes = PyObject_GetAttrString(type, "__dict__");
    PyObject *values = attributes == NULL ? NULL : PyMapping_Values(attributes);
    Py_XDECREF(attributes);
    if (values == NULL) return -1;
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyList_Size(values); ++i)
        found = Py_IS_TYPE(PyList_GetItem(values, i), &PyMemberDescr_Type);
    Py_DECREF(values);
    return found;
}

/* Tells whether instances hold references that a map would overwrite: those of slots, a __dict__,
 * weak references.  -1 with an exception set. */
static int holds_references(PyObject *type) {
    int found = is_set(type, "__dictoffset__");
    if (found == 0) found = is_set(type, "__weakrefoffset__");
    if (found != 0) return found;
    PyObject *bases = PyObject_GetAttrString(type, "__mro__");
    if (bases == NULL) return -1;
    Py_ssize_t count = PyTuple_Check(bases) ? PyTuple_Size(bases) : 0;
    for (Py_ssize_t i = 0; found == 0 && i < count; ++i)
        found = names_members(PyTuple_GetItem(bases, i));
    Py_DECREF(bases);
    return found;
}

static PyObject *new_map_place(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *type = NULL;
    Py_ssize_t offset = 0;
    if (!PyArg_ParseTuple(arguments, "On:map_place", &type, &offset)) return NULL;
    Py_ssize_t bytes = instance_bytes(type);
    if (bytes == -1 && PyErr_Occurred()) return NULL;
    Py_ssize_t head = (Py_ssize_t)sizeof(PyObject);
    /* No sum: offset + TM_MAP_BYTES may overflow. */
    if (offset < head || bytes < TM_MAP_BYTES || offset > bytes - TM_MAP_BYTES) {
        PyErr_Format(PyExc_ValueError,
                     "a map of %d bytes at offset %zd is not inside of the %zd bytes behind the "
                     "first %zd of a %R",
                     TM_MAP_BYTES, offset, bytes > head ? bytes - head : 0, head, type);
        return NULL;
    }
    int holds = holds_references(type);
    if (holds < 0) return NULL;
    if (holds) {
        PyErr_Format(PyExc_TypeError,
                     "expected a type whose instances have no slots, no __dict__ and no weak "
                     "references, got %R",
                     type);
        return NULL;
    }
    map_place *place = PyMem_Malloc(sizeof *place);
    if (place == NULL) return PyErr_NoMemory();
    Py_INCREF(type);
    *place = (map_place){type, offset};
    PyObject *capsule = PyCapsule_New(place, map_place_name, free_map_place);
    if (capsule == NULL) {
        Py_DECREF(type);
        PyMem_Free(place);
    }
    return capsule;
}

/* Returns a new instance with the map written into it. */
static PyObject *new_map_object(const map_place *place, const tm_map *map) {
    PyObject *object = PyObject_CallNoArgs(place->type);
    if (object == NULL) return NULL;
    /* __new__ may return whatever it likes, and only the size of this type was checked. */
    if (!Py_IS_TYPE(object, (PyTypeObject *)place->type)) {
        PyErr_Format(PyExc_TypeError, "%R() returned %R", place->type, object);
        Py_DECREF(object);
        return NULL;
    }
    memcpy((char *)object + place->offset, map->words, sizeof map->words);
    return object;
}

/* The hot path of a launch: arguments by position, no keywords, no tuple. */
static PyObject *new_arguments(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "new_tma_arguments takes 4 arguments, got %zd", count);
        return NULL;
    }
    PyObject *encoded = arguments[1], *sizes = arguments[2];
    if (!PyCapsule_CheckExact(arguments[0])) {
        PyErr_Format(PyExc_TypeError, "expected what map_place returned, got %R", arguments[0]);
        return NULL;
    }
    const map_place *place = PyCapsule_GetPointer(arguments[0], map_place_name);
    if (place == NULL) return NULL;
    if (!PyBytes_Check(encoded) || PyBytes_Size(encoded) != TM_MAP_BYTES) {
        PyErr_Format(PyExc_ValueError, "a tensor map is %d bytes, got %R", TM_MAP_BYTES, encoded);
        return NULL;
    }
    if (!PyTuple_Check(sizes)) {
        PyErr_Format(PyExc_TypeError, "sizes must be a tuple, got %R", sizes);
        return NULL;
    }
    uint64_t address = 0;
    if (!to_uint64("address", -1, arguments[3], &address)) return NULL;
    tm_map map;
    memcpy(map.words, PyBytes_AsString(encoded), sizeof map.words);
    tm_error error;
    /* The GIL is kept: the driver only writes a few bits of the map. */
    tm_status status = replace_tma_descriptor_address(&map, address, &error);
    if (status != TM_OK) return raise_error(module, &error);
    return prepend(new_map_object(place, &map), sizes);
}

/* ---- Module ---------------------------------------------------------------------------------- */

PyDoc_STRVAR(open_library_doc,
             "open_library(path=None)\n--\n\n"
             "Opens libcuda (libcuda.so.1 for None) and makes it the one that is used.\n\n"
             "Raises Error where it is missing or lacks a function.");

PyDoc_STRVAR(driver_version_doc,
             "driver_version()\n--\n\n"
             "Returns the CUDA version that the driver supports (13010 for 13.1), or None where\n"
             "there is no driver.");

#define COMMON_DOC                                                                              \
    "Arrays are outermost first, strides in elements; data_type and swizzle are the\n"          \
    "driver's enumerations.  Raises Error with every argument where the driver refuses."

PyDoc_STRVAR(fill_tiled_doc,
             "fill_tma_descriptor_tiled(*, address, swizzle, element_bytes, data_type,\n"
             "                          block_shape, shape, strides, fill_nan,\n"
             "                          element_strides)\n--\n\n"
             "Returns the 128 bytes of a tiled CUtensorMap.\n\n" COMMON_DOC);

PyDoc_STRVAR(fill_im2col_doc,
             "fill_tma_descriptor_im2col(*, address, swizzle, element_bytes, data_type, shape,\n"
             "                           strides, fill_nan, pixel_box_lower_corner,\n"
             "                           pixel_box_upper_corner, channels_per_pixel,\n"
             "                           pixels_per_column, element_strides)\n--\n\n"
             "Returns the 128 bytes of an im2col CUtensorMap.\n\n" COMMON_DOC);

PyDoc_STRVAR(replace_address_doc,
             "replace_tma_descriptor_address(map, address)\n--\n\n"
             "Returns the map, of either mode, for a tensor of the same geometry elsewhere.");

PyDoc_STRVAR(map_place_doc,
             "map_place(type, offset)\n--\n\n"
             "Returns a capsule for new_tma_arguments: the instances of the type have a map offset\n"
             "bytes behind their start.\n\n"
             "Raises ValueError where that is not inside of them.");

PyDoc_STRVAR(new_arguments_doc,
             "new_tma_arguments(place, map, sizes, address)\n--\n\n"
             "Returns (type(), *sizes) with the map, for another address, written into the object\n"
             "at the place, which map_place returned.");

/* PyMethodDef stores functions with keywords under the type of those without. */
#define KEYWORD_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"open_library", KEYWORD_FUNCTION(open_library), METH_VARARGS | METH_KEYWORDS,
     open_library_doc},
    {"driver_version", driver_version, METH_NOARGS, driver_version_doc},
    {"fill_tma_descriptor_tiled", KEYWORD_FUNCTION(fill_tiled), METH_VARARGS | METH_KEYWORDS,
     fill_tiled_doc},
    {"fill_tma_descriptor_im2col", KEYWORD_FUNCTION(fill_im2col), METH_VARARGS | METH_KEYWORDS,
     fill_im2col_doc},
    {"replace_tma_descriptor_address", replace_address, METH_VARARGS, replace_address_doc},
    {"map_place", new_map_place, METH_VARARGS, map_place_doc},
    {"new_tma_arguments", (PyCFunction)(void (*)(void))new_arguments, METH_FASTCALL,
     new_arguments_doc},
    {"prepare_launch", KEYWORD_FUNCTION(prepare_launch), METH_VARARGS | METH_KEYWORDS,
     prepare_launch_doc},
    {"launch_prepared", (PyCFunction)(void (*)(void))launch_prepared, METH_FASTCALL,
     launch_prepared_doc},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    if (state == NULL) return -1;
    state->error = PyErr_NewException("triton_ext.backends.nvidia.backend._driver.Error",
                                      PyExc_RuntimeError, NULL);
    if (state->error == NULL) return -1;
    Py_INCREF(state->error);
    if (PyModule_AddObject(module, "Error", state->error) < 0) {
        Py_DECREF(state->error); /* PyModule_AddObject steals only when it succeeds */
        return -1;
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    if (state != NULL) Py_VISIT(state->error);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    if (state != NULL) Py_CLEAR(state->error);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_driver",
    .m_doc = "Encodes TMA tensor maps, and launches, through the CUDA driver, which is opened on\n"
             "first use.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__driver(void) { return PyModuleDef_Init(&definition); }
