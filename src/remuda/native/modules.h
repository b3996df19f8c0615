/* How a module is made.

   What it knows of Remuda's classes it knows once for the whole process, so it serves one copy of Remuda: the first that
   asks. Another one, as in a second interpreter, is refused, and does in Python what is done here. */

#ifndef REMUDA_MODULES
#define REMUDA_MODULES

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef struct {
    PyObject **name;
    const char *text;
} Name;

/* Have the names of what is called at hand; -1 after an error. */
static inline int intern(const Name *names, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (*names[at].name == NULL && (*names[at].name = PyUnicode_InternFromString(names[at].text)) == NULL)
            return -1;
    return 0;
}

static inline int add_type(PyObject *made, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    int failed = type == NULL || PyModule_AddObjectRef(made, name, type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

/* A module that `fill` gives its content. */
#define REMUDA_MODULE(title, methods, fill)                                                                            \
    static int begin_module(PyObject *made)                                                                            \
    {                                                                                                                  \
        static char taken;                                                                                             \
        if (taken) {                                                                                                   \
            PyErr_SetString(PyExc_ImportError, "another copy of Remuda in this process has it");                       \
            return -1;                                                                                                 \
        }                                                                                                              \
        int failed = fill(made);                                                                                       \
        taken = failed == 0;                                                                                           \
        return failed;                                                                                                 \
    }                                                                                                                  \
    static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, begin_module}, {0, NULL}};                                 \
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, #title, NULL, 0, methods, module_slots, NULL, NULL, NULL}; \
    PyMODINIT_FUNC PyInit_##title(void) { return PyModuleDef_Init(&module); }

#endif
