/* The fields of values that Python defines, by their places in memory.

   A place is asked for once, of the class; whoever uses it has looked at the type of the value. */

#ifndef REMUDA_FIELDS
#define REMUDA_FIELDS

#include "modules.h"

#include <string.h>

/* Where the instances of a class have a field, which must be one of `__slots__` or of a struct; -1 after an error. */
static inline Py_ssize_t place_of(PyObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    if (found == NULL)
        return -1;
    Py_ssize_t place = -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX)
        place = ((PyMemberDescrObject *)found)->d_member->offset;
    Py_DECREF(found);
    if (place < (Py_ssize_t)sizeof(PyObject)) {
        PyErr_Format(PyExc_TypeError, "%R has no field %s", type, name);
        return -1;
    }
    return place;
}

enum { MOST_FIELDS = 16 };

/* The places of all fields, or none: those of another class would be read where there is something else. */
static inline int places_of(PyObject *type, const char *const *names, Py_ssize_t *places, size_t count)
{
    Py_ssize_t found[MOST_FIELDS];
    if (!PyType_Check(type) || count > MOST_FIELDS) {
        PyErr_Format(PyExc_TypeError, "%R is no class, or has too many fields", type);
        return -1;
    }
    for (size_t at = 0; at < count; at++)
        if ((found[at] = place_of(type, names[at])) < 0)
            return -1;
    memcpy(places, found, count * sizeof *found);
    return 0;
}

/* A borrowed reference; NULL without an error if the field was never set. */
static inline PyObject *field(PyObject *owner, Py_ssize_t place) { return *(PyObject **)((char *)owner + place); }

/* Whether this is a whole number of 64 bits; never an error. */
static inline int is_number(PyObject *value, long long *number)
{
    int over;
    if (value == NULL || !PyLong_CheckExact(value))
        return 0;
#if LONG_MAX == LLONG_MAX
    *number = PyLong_AsLongAndOverflow(value, &over); /* which takes a third of the time */
#else
    *number = PyLong_AsLongLongAndOverflow(value, &over);
#endif
    return !over;
}

#endif
