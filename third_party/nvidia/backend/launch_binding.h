/* The functions of the module _driver that launch; see launch_binding.c. */
#ifndef TRITON_EXT_LAUNCH_BINDING_H
#define TRITON_EXT_LAUNCH_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *prepare_launch(PyObject *module, PyObject *arguments, PyObject *keywords);
PyObject *launch_prepared(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

extern const char prepare_launch_doc[];
extern const char launch_prepared_doc[];

#endif
