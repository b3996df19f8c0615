/* What is done for every delivery of messages in flight: as `PlainRanges` in `remuda/core/ranges.py`, which says what
   everything means.

   Here is the usual way alone: a range that comes last, and one that leaves as it came. For everything else a method of
   the class in Python that is built on this is called by its name. */

#include "fields.h"

enum { FIRST, COUNT, LEASE, FIELDS };
static const char *const RANGE[FIELDS] = {"first", "count", "lease"};
enum { LOAD = 512 };

static PyObject *name_put, *name_take_whole;
static PyTypeObject *range_type;
static Py_ssize_t in_range[FIELDS];

typedef struct {
    PyObject_HEAD
    PyObject *blocks, *firsts, *shared, *size;
    char listed;
} Ranges;

static int ranges_traverse(Ranges *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->blocks);
    Py_VISIT(self->firsts);
    Py_VISIT(self->shared);
    Py_VISIT(self->size);
    return 0;
}

static int ranges_clear(Ranges *self)
{
    Py_CLEAR(self->blocks);
    Py_CLEAR(self->firsts);
    Py_CLEAR(self->shared);
    Py_CLEAR(self->size);
    return 0;
}

static void ranges_dealloc(Ranges *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ranges_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether this is a range, and its numbers. */
static int is_range(PyObject *piece, long long *numbers)
{
    if (range_type == NULL || Py_TYPE(piece) != range_type)
        return 0;
    for (int at = 0; at < FIELDS; at++)
        if (!is_number(field(piece, in_range[at]), &numbers[at]))
            return 0;
    return 1;
}

static int begins(PyObject *piece, long long *first)
{
    return range_type != NULL && Py_TYPE(piece) == range_type && is_number(field(piece, in_range[FIRST]), first);
}

/* Whether the blocks can be changed here. */
static int is_usual(Ranges *self)
{
    return self->blocks != NULL && PyList_CheckExact(self->blocks) && self->firsts != NULL &&
           PyList_CheckExact(self->firsts) && PyList_GET_SIZE(self->firsts) == PyList_GET_SIZE(self->blocks) &&
           self->shared != NULL && PyFrozenSet_CheckExact(self->shared) && PySet_GET_SIZE(self->shared) == 0;
}

/* The size after a change by so many; NULL after an error. */
static PyObject *size_after(Ranges *self, long long more)
{
    long long size;
    if (!is_number(self->size, &size)) {
        PyErr_SetString(PyExc_TypeError, "size must be a whole number");
        return NULL;
    }
    return PyLong_FromLongLong(size + more);
}

/* The first block, with one range in it. */
static int begin(Ranges *self, PyObject *piece)
{
    PyObject *block = PyList_New(1);
    if (block == NULL)
        return -1;
    PyList_SET_ITEM(block, 0, Py_NewRef(piece));
    int failed = PyList_Append(self->firsts, field(piece, in_range[FIRST]));
    if (!failed && (failed = PyList_Append(self->blocks, block)) != 0)
        PyList_SetSlice(self->firsts, 0, 1, NULL);
    Py_DECREF(block);
    return failed;
}

static PyObject *ranges_add(Ranges *self, PyObject *piece)
{
    long long numbers[FIELDS], before;
    if (!is_range(piece, numbers)) {
        PyErr_SetString(PyExc_TypeError, "add takes a range of messages");
        return NULL;
    }
    PyObject *size = size_after(self, numbers[COUNT]), *done;
    if (size == NULL)
        return NULL;
    int usual = is_usual(self);
    Py_ssize_t blocks = usual ? PyList_GET_SIZE(self->blocks) : 0;
    PyObject *block = blocks ? PyList_GET_ITEM(self->blocks, blocks - 1) : NULL;
    if (usual && !blocks && self->listed)
        done = begin(self, piece) < 0 ? NULL : Py_NewRef(Py_None);
    else if (block != NULL && PyList_CheckExact(block) && PyList_GET_SIZE(block) > 0 && PyList_GET_SIZE(block) < LOAD &&
        begins(PyList_GET_ITEM(block, PyList_GET_SIZE(block) - 1), &before) && before < numbers[FIRST])
        done = PyList_Append(block, piece) < 0 ? NULL : Py_NewRef(Py_None);
    else
        done = PyObject_CallMethodOneArg((PyObject *)self, name_put, piece);
    if (done != NULL)
        Py_XSETREF(self->size, size);
    else
        Py_DECREF(size);
    return done;
}

/* The last of some numbers that is not above `first`; -1 if there is none, or it cannot be told. */
static Py_ssize_t last_number(PyObject *numbers, long long first)
{
    Py_ssize_t low = 0, high = PyList_GET_SIZE(numbers);
    long long number;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (!is_number(PyList_GET_ITEM(numbers, middle), &number))
            return -1;
        if (number <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

static Py_ssize_t last_range(PyObject *block, long long first)
{
    Py_ssize_t low = 0, high = PyList_GET_SIZE(block);
    long long number;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (!begins(PyList_GET_ITEM(block, middle), &number))
            return -1;
        if (number <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

static PyObject *ranges_take_whole(Ranges *self, PyObject *const *args, Py_ssize_t given)
{
    long long wanted[FIELDS], numbers[FIELDS];
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "take_whole takes a first offset, a count and a lease");
        return NULL;
    }
    for (int at = 0; at < FIELDS; at++)
        if (!is_number(args[at], &wanted[at]))
            goto unusual;
    if (!is_usual(self))
        goto unusual;
    Py_ssize_t at = last_number(self->firsts, wanted[FIRST]);
    PyObject *block = at < 0 ? NULL : PyList_GET_ITEM(self->blocks, at);
    if (block == NULL || !PyList_CheckExact(block))
        goto unusual;
    Py_ssize_t within = last_range(block, wanted[FIRST]);
    PyObject *piece = within < 0 ? NULL : PyList_GET_ITEM(block, within);
    if (piece == NULL || !is_range(piece, numbers) || memcmp(wanted, numbers, sizeof wanted) != 0)
        goto unusual;
    PyObject *size = size_after(self, -wanted[COUNT]);
    if (size == NULL)
        return NULL;
    Py_INCREF(piece);
    int failed;
    if (PyList_GET_SIZE(block) > 1) {
        failed = PyList_SetSlice(block, within, within + 1, NULL);
    } else {
        Py_INCREF(block);
        failed = PyList_SetSlice(self->blocks, at, at + 1, NULL);
        if (!failed && (failed = PyList_SetSlice(self->firsts, at, at + 1, NULL)) != 0) {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            PyList_Insert(self->blocks, at, block);
            PyErr_Restore(type, value, trace);
        }
        Py_DECREF(block);
    }
    if (failed) {
        Py_DECREF(piece);
        Py_DECREF(size);
        return NULL;
    }
    Py_XSETREF(self->size, size);
    return piece;
unusual:;
    PyObject *all[] = {(PyObject *)self, args[0], args[1], args[2]};
    return PyObject_VectorcallMethod(name_take_whole, all, 4, NULL);
}

static PyMethodDef ranges_methods[] = {
    {"add", (PyCFunction)ranges_add, METH_O, "A range comes in."},
    {"take_whole", (PyCFunction)(void (*)(void))ranges_take_whole, METH_FASTCALL,
     "Take offsets out of the one range under a lease that has them all; None if there is none."},
    {NULL},
};

static PyMemberDef ranges_members[] = {
    {"_blocks", T_OBJECT_EX, offsetof(Ranges, blocks)},
    {"_firsts", T_OBJECT_EX, offsetof(Ranges, firsts)},
    {"_shared", T_OBJECT_EX, offsetof(Ranges, shared)},
    {"size", T_OBJECT_EX, offsetof(Ranges, size)},
    {"_listed", T_BOOL, offsetof(Ranges, listed)},
    {NULL},
};

static PyType_Slot ranges_slots[] = {
    {Py_tp_doc, "Disjoint ranges in the order of their offsets, in blocks."},
    {Py_tp_dealloc, ranges_dealloc},
    {Py_tp_traverse, ranges_traverse},
    {Py_tp_clear, ranges_clear},
    {Py_tp_methods, ranges_methods},
    {Py_tp_members, ranges_members},
    {0, NULL},
};

static PyType_Spec ranges_spec = {
    "remuda.native._ranges.Ranges", sizeof(Ranges), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    ranges_slots,
};

static PyObject *set_range(PyObject *module, PyObject *type)
{
    if (places_of(type, RANGE, in_range, FIELDS) < 0)
        return NULL;
    Py_XSETREF(range_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_range", set_range, METH_O, "Tell what a range is."},
    {NULL},
};

static int fill(PyObject *made)
{
    const Name names[] = {{&name_put, "_put"}, {&name_take_whole, "_take_whole"}};
    return intern(names, sizeof names / sizeof *names) < 0 ? -1 : add_type(made, "Ranges", &ranges_spec);
}

REMUDA_MODULE(_ranges, methods, fill)
