/* The end of a line of messages that wait, and the lines of a queue: as `remuda/core/lanes.py`, which says what
   everything means.

   What is done for every message is done here; everything else is a method of the class in Python that is built on
   these, and called by its name. */

#include "modules.h"

#define NEVER LLONG_MAX

static PyObject *name_fold, *name_take_first, *name_add;
static PyTypeObject *line_type;

typedef struct {
    PyObject_HEAD
    long long size, soonest, first, count, deadline;
} Lane;

static PyObject *line_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Lane *self = (Lane *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->soonest = self->deadline = NEVER;
    return (PyObject *)self;
}

static void line_dealloc(Lane *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The numbers from the arguments: at least two of them, and a deadline that need not be there. */
static int get_numbers(const char *verb, PyObject *const *args, Py_ssize_t given, long long *numbers, Py_ssize_t most)
{
    if (given < most - 1 || given > most) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd or %zd numbers", verb, most - 1, most);
        return -1;
    }
    numbers[most - 1] = NEVER;
    for (Py_ssize_t at = 0; at < given; at++) {
        numbers[at] = PyLong_AsLongLong(args[at]);
        if (numbers[at] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int append(Lane *self, long long first, long long count, long long deadline)
{
    if (self->count && self->deadline == deadline && self->first + self->count == first) {
        self->count += count;
    } else {
        if (self->count) {
            PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, name_fold);
            if (done == NULL)
                return -1;
            Py_DECREF(done);
        } else if (self->size) {
            PyObject *done = PyObject_CallMethod((PyObject *)self, "_extend", "LLL", first, count, deadline);
            if (done == NULL)
                return -1;
            Py_DECREF(done);
            goto counted;
        }
        self->first = first;
        self->count = count;
        self->deadline = deadline;
    }
counted:
    self->size += count;
    if (deadline < self->soonest)
        self->soonest = deadline;
    return 0;
}

static PyObject *line_append(Lane *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[3];
    if (get_numbers("append", args, given, numbers, 3) < 0 || append(self, numbers[0], numbers[1], numbers[2]) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Take messages from the end, where there are no others. */
static void take(Lane *self, long long count, long long *run)
{
    run[0] = self->first;
    run[1] = count < self->count ? count : self->count;
    run[2] = self->deadline;
    self->first += run[1];
    self->count -= run[1];
    self->size -= run[1];
}

static PyObject *line_take_first(Lane *self, PyObject *wanted)
{
    long long run[3], count = PyLong_AsLongLong(wanted);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (count < 1 || !self->count || self->size != self->count)
        return PyObject_CallMethodOneArg((PyObject *)self, name_take_first, wanted);
    PyObject *taken =
        Py_BuildValue("LLL", self->first, count < self->count ? count : self->count, self->deadline);
    if (taken != NULL)
        take(self, count, run);
    return taken;
}

static PyMethodDef line_methods[] = {
    {"append", (PyCFunction)(void (*)(void))line_append, METH_FASTCALL, "Messages come to the end."},
    {"take_first", (PyCFunction)line_take_first, METH_O,
     "Take out the first messages, as many as are wanted, as far as they stand in one run."},
    {NULL},
};

static PyMemberDef line_members[] = {
    {"size", T_LONGLONG, offsetof(Lane, size)},
    {"soonest", T_LONGLONG, offsetof(Lane, soonest)},
    {"_first", T_LONGLONG, offsetof(Lane, first)},
    {"_count", T_LONGLONG, offsetof(Lane, count)},
    {"_deadline", T_LONGLONG, offsetof(Lane, deadline)},
    {NULL},
};

static PyType_Slot line_slots[] = {
    {Py_tp_doc, "A line of messages whose last run is at hand."},
    {Py_tp_new, line_new},
    {Py_tp_dealloc, line_dealloc},
    {Py_tp_methods, line_methods},
    {Py_tp_members, line_members},
    {0, NULL},
};

static PyType_Spec line_spec = {
    "remuda.native._lanes.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, line_slots,
};

/* The lines of a queue, in the order of delivery: tuples of a priority, whether it is of those put back, and a line. */

typedef struct {
    PyObject_HEAD
    long long size, soonest;
    PyObject *order;
} Lanes;

static PyObject *lines_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Lanes *self = (Lanes *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->soonest = NEVER;
    if ((self->order = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int lines_traverse(Lanes *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->order);
    return 0;
}

static int lines_clear(Lanes *self)
{
    Py_CLEAR(self->order);
    return 0;
}

static void lines_dealloc(Lanes *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    lines_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* One of the lines; NULL if it is none that can be read here. */
static Lane *line_at(Lanes *self, Py_ssize_t at, PyObject **priority, PyObject **front)
{
    PyObject *item = PyList_GET_ITEM(self->order, at);
    if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) != 3 ||
        !PyObject_TypeCheck(PyTuple_GET_ITEM(item, 2), line_type))
        return NULL;
    *priority = PyTuple_GET_ITEM(item, 0);
    *front = PyTuple_GET_ITEM(item, 1);
    return (Lane *)PyTuple_GET_ITEM(item, 2);
}

static PyObject *lines_add(Lanes *self, PyObject *const *args, Py_ssize_t given)
{
    long long numbers[3], wanted, own;
    if (given < 4 || given > 5) {
        PyErr_SetString(PyExc_TypeError, "add takes a priority, whether they were put back, and two or three numbers");
        return NULL;
    }
    if (get_numbers("add", args + 2, given - 2, numbers, 3) < 0)
        return NULL;
    wanted = PyLong_AsLongLong(args[0]);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (args[1] == Py_False && self->order != NULL && PyList_CheckExact(self->order))
        for (Py_ssize_t at = 0; at < PyList_GET_SIZE(self->order); at++) {
            PyObject *priority, *front;
            Lane *line = line_at(self, at, &priority, &front);
            if (line == NULL || front != Py_False)
                continue;
            own = PyLong_AsLongLong(priority);
            if (own == -1 && PyErr_Occurred())
                return NULL;
            if (own != wanted)
                continue;
            Py_INCREF(line);
            int failed = append(line, numbers[0], numbers[1], numbers[2]);
            Py_DECREF(line);
            if (failed)
                return NULL;
            self->size += numbers[1];
            if (numbers[2] < self->soonest)
                self->soonest = numbers[2];
            Py_RETURN_NONE;
        }
    PyObject *all[6] = {(PyObject *)self, args[0], args[1], args[2], args[3], given > 4 ? args[4] : NULL};
    return PyObject_VectorcallMethod(name_add, all, (size_t)given + 1, NULL);
}

static PyObject *lines_take_run(Lanes *self, PyObject *const *args, Py_ssize_t given)
{
    long long count, now, run[3];
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "take_run takes a count and a time");
        return NULL;
    }
    count = PyLong_AsLongLong(args[0]);
    now = count == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[1]);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    if (!self->size || self->soonest <= now || count < 1)
        Py_RETURN_NONE;
    if (self->order != NULL && PyList_CheckExact(self->order))
        for (Py_ssize_t at = 0; at < PyList_GET_SIZE(self->order); at++) {
            PyObject *priority, *front, *result;
            Lane *line = line_at(self, at, &priority, &front);
            if (line == NULL)
                break;
            if (!line->size)
                continue;
            if (line->size == line->count) {
                if (line->count < count && line->count != self->size)
                    Py_RETURN_NONE;
                result = Py_BuildValue("LLLO", line->first, count < line->count ? count : line->count, line->deadline,
                                       priority);
                if (result != NULL) {
                    take(line, count, run);
                    self->size -= run[1];
                }
                return result;
            }
            /* Its first run is not its last. */
            Py_INCREF(priority);
            PyObject *found = PyObject_CallMethod((PyObject *)self, "_take_run", "OL", line, count);
            if (found == NULL || found == Py_None) {
                result = found;
            } else if (!PyTuple_CheckExact(found) || PyTuple_GET_SIZE(found) != 3) {
                PyErr_SetString(PyExc_TypeError, "a run is three numbers");
                Py_DECREF(found);
                result = NULL;
            } else {
                result = PyTuple_Pack(4, PyTuple_GET_ITEM(found, 0), PyTuple_GET_ITEM(found, 1),
                                      PyTuple_GET_ITEM(found, 2), priority);
                Py_DECREF(found);
            }
            Py_DECREF(priority);
            return result;
        }
    PyErr_SetString(PyExc_LookupError, "no message waits");
    return NULL;
}

static PyMethodDef lines_methods[] = {
    {"add", (PyCFunction)(void (*)(void))lines_add, METH_FASTCALL, "Messages come to the end of their line."},
    {"take_run", (PyCFunction)(void (*)(void))lines_take_run, METH_FASTCALL,
     "Take out the next messages, if they stand in one run."},
    {NULL},
};

static PyMemberDef lines_members[] = {
    {"size", T_LONGLONG, offsetof(Lanes, size)},
    {"soonest", T_LONGLONG, offsetof(Lanes, soonest)},
    {"_order", T_OBJECT_EX, offsetof(Lanes, order)},
    {NULL},
};

static PyType_Slot lines_slots[] = {
    {Py_tp_doc, "The lines of a queue, in the order of delivery."},
    {Py_tp_new, lines_new},
    {Py_tp_dealloc, lines_dealloc},
    {Py_tp_traverse, lines_traverse},
    {Py_tp_clear, lines_clear},
    {Py_tp_methods, lines_methods},
    {Py_tp_members, lines_members},
    {0, NULL},
};

static PyType_Spec lines_spec = {
    "remuda.native._lanes.Lanes", sizeof(Lanes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    lines_slots,
};

static int fill(PyObject *made)
{
    const Name names[] = {{&name_fold, "_fold"}, {&name_take_first, "_take_first"}, {&name_add, "_add"}};
    PyObject *line = intern(names, sizeof names / sizeof *names) < 0 ? NULL : PyType_FromSpec(&line_spec);
    if (line == NULL)
        return -1;
    Py_XSETREF(line_type, (PyTypeObject *)line);
    return PyModule_AddObjectRef(made, "Lane", line) < 0 ? -1 : add_type(made, "Lanes", &lines_spec);
}

REMUDA_MODULE(_lanes, NULL, fill)
