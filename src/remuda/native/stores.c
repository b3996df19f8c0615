/* What is done for every message that is held in memory, as `remuda/broker/embedded/window.py` and `recent.py` say; and
   the clock, as `clock.py` says.

   A window and the newest messages are put into, and a window is taken from, in the usual way alone; for everything else
   a method of the class in Python that is built on these is called by its name. */

#include "fields.h"

#include <stdint.h>
#include <time.h>

enum { LARGE = 16 << 10, PER_BATCH = 1024, PER_MESSAGE = 48, DROPPED = 1024 };

static PyObject *name_append, *name_popleft, *name_take, *name_shorten;
static PyTypeObject *messages_type, *deque_type;
static Py_ssize_t bodies_place;

/* The bodies of a batch; NULL without an error if it is none that can be read here. */
static PyObject *bodies_of(PyObject *messages)
{
    PyObject *bodies = messages_type == NULL || Py_TYPE(messages) != messages_type ? NULL : field(messages, bodies_place);
    return bodies == NULL || !PyList_CheckExact(bodies) ? NULL : bodies;
}

/* How many bytes they have; more than can be held if that cannot be told. */
static long long bytes_of(PyObject *bodies)
{
    long long bytes = 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(bodies); at++) {
        PyObject *body = PyList_GET_ITEM(bodies, at);
        if (!PyBytes_Check(body))
            return LLONG_MAX;
        bytes += PyBytes_GET_SIZE(body);
    }
    return bytes;
}

/* Batches of one queue, oldest first, in a deque. */

typedef struct {
    PyObject_HEAD
    long long limit, size;
    PyObject *batches;
} Batches;

static int batches_traverse(Batches *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->batches);
    return 0;
}

static int batches_clear(Batches *self)
{
    Py_CLEAR(self->batches);
    return 0;
}

static void batches_dealloc(Batches *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    batches_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int is_deque(PyObject *batches) { return batches != NULL && Py_TYPE(batches) == deque_type; }

static PyObject *batches_put(Batches *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *bodies = given == 2 ? bodies_of(args[1]) : NULL;
    Py_ssize_t count = bodies == NULL ? 0 : PyList_GET_SIZE(bodies);
    if (bodies != NULL && self->size + count > self->limit)
        Py_RETURN_NONE;
    if (bodies == NULL || !is_deque(self->batches)) {
        PyErr_SetString(PyExc_TypeError, "put takes an offset and messages");
        return NULL;
    }
    if (bytes_of(bodies) > LARGE * (long long)count)
        Py_RETURN_NONE;
    PyObject *batch = PyTuple_Pack(2, args[0], args[1]);
    PyObject *done = batch == NULL ? NULL : PyObject_CallMethodOneArg(self->batches, name_append, batch);
    Py_XDECREF(batch);
    if (done != NULL)
        self->size += count;
    return done;
}

/* Whether runs are one, and its numbers. */
static int is_one(PyObject *runs, long long *first, long long *count)
{
    if (!PyList_CheckExact(runs) || PyList_GET_SIZE(runs) != 1)
        return 0;
    PyObject *run = PyList_GET_ITEM(runs, 0);
    return PyTuple_CheckExact(run) && PyTuple_GET_SIZE(run) == 2 && is_number(PyTuple_GET_ITEM(run, 0), first) &&
           is_number(PyTuple_GET_ITEM(run, 1), count);
}

static PyObject *batches_take(Batches *self, PyObject *runs)
{
    long long first, count, start;
    PyObject *batch = NULL, *bodies;
    if (!is_one(runs, &first, &count) || !is_deque(self->batches))
        goto unusual;
    if (PyObject_Length(self->batches) == 0)
        Py_RETURN_NONE;
    if ((batch = PySequence_GetItem(self->batches, 0)) == NULL)
        return NULL;
    if (!PyTuple_CheckExact(batch) || PyTuple_GET_SIZE(batch) != 2 || !is_number(PyTuple_GET_ITEM(batch, 0), &start) ||
        start != first || (bodies = bodies_of(PyTuple_GET_ITEM(batch, 1))) == NULL || PyList_GET_SIZE(bodies) != count)
        goto unusual;
    PyObject *gone = PyObject_CallMethodNoArgs(self->batches, name_popleft), *messages = NULL;
    if (gone != NULL) {
        self->size -= count;
        messages = Py_NewRef(PyTuple_GET_ITEM(batch, 1));
        Py_DECREF(gone);
    }
    Py_DECREF(batch);
    return messages;
unusual:
    Py_XDECREF(batch);
    return PyObject_CallMethodOneArg((PyObject *)self, name_take, runs);
}

static PyMethodDef batches_methods[] = {
    {"put", (PyCFunction)(void (*)(void))batches_put, METH_FASTCALL, "Hold messages, if they fit."},
    {"take", (PyCFunction)batches_take, METH_O, "The messages of these runs, which are held no longer; None if they are not."},
    {NULL},
};

static PyMemberDef batches_members[] = {
    {"_limit", T_LONGLONG, offsetof(Batches, limit)},
    {"size", T_LONGLONG, offsetof(Batches, size)},
    {"_batches", T_OBJECT_EX, offsetof(Batches, batches)},
    {NULL},
};

static PyType_Slot batches_slots[] = {
    {Py_tp_doc, "Whole batches of one queue, oldest first."},
    {Py_tp_dealloc, batches_dealloc},
    {Py_tp_traverse, batches_traverse},
    {Py_tp_clear, batches_clear},
    {Py_tp_methods, batches_methods},
    {Py_tp_members, batches_members},
    {0, NULL},
};

static PyType_Spec batches_spec = {
    "remuda.native._stores.Batches", sizeof(Batches), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    batches_slots,
};

/* The newest batches of the log, by their first offsets; those before `head` were let go. */

typedef struct {
    PyObject_HEAD
    long long limit, bytes, head;
    PyObject *firsts, *batches;
} Newest;

static int newest_traverse(Newest *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->firsts);
    Py_VISIT(self->batches);
    return 0;
}

static int newest_clear(Newest *self)
{
    Py_CLEAR(self->firsts);
    Py_CLEAR(self->batches);
    return 0;
}

static void newest_dealloc(Newest *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    newest_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Let the oldest batch go. */
static int drop(Newest *self)
{
    int there = PyList_CheckExact(self->batches) && self->head >= 0 && self->head < PyList_GET_SIZE(self->batches);
    PyObject *batch = there ? PyList_GET_ITEM(self->batches, self->head) : NULL;
    long long size;
    if (batch == NULL || !PyTuple_CheckExact(batch) || PyTuple_GET_SIZE(batch) != 2 ||
        !is_number(PyTuple_GET_ITEM(batch, 1), &size)) {
        PyErr_SetString(PyExc_ValueError, "there is no batch to let go");
        return -1;
    }
    if (PyList_SetItem(self->batches, self->head, Py_NewRef(Py_None)) < 0)
        return -1;
    self->bytes -= size;
    self->head++;
    if (self->head > DROPPED && 2 * self->head > PyList_GET_SIZE(self->firsts)) {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, name_shorten);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    return 0;
}

static PyObject *newest_put(Newest *self, PyObject *const *args, Py_ssize_t given)
{
    long long size;
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "put takes an offset, messages and a size");
        return NULL;
    }
    PyObject *bodies = bodies_of(args[1]);
    if (bodies == NULL || !is_number(args[2], &size) || self->firsts == NULL || !PyList_CheckExact(self->firsts) ||
        self->batches == NULL || !PyList_CheckExact(self->batches) ||
        PyList_GET_SIZE(self->batches) != PyList_GET_SIZE(self->firsts)) {
        PyErr_SetString(PyExc_TypeError, "put takes an offset, messages and a size");
        return NULL;
    }
    size += PER_BATCH + PER_MESSAGE * (long long)PyList_GET_SIZE(bodies);
    PyObject *whole = PyLong_FromLongLong(size), *batch = whole == NULL ? NULL : PyTuple_Pack(2, args[1], whole);
    Py_XDECREF(whole);
    int failed = batch == NULL || PyList_Append(self->batches, batch) < 0;
    Py_XDECREF(batch);
    if (failed)
        return NULL;
    if (PyList_Append(self->firsts, args[0]) < 0) {
        Py_ssize_t length = PyList_GET_SIZE(self->batches);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyList_SetSlice(self->batches, length - 1, length, NULL);
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    self->bytes += size;
    while (self->bytes > self->limit)
        if (drop(self) < 0)
            return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef newest_methods[] = {
    {"put", (PyCFunction)(void (*)(void))newest_put, METH_FASTCALL, "Messages were appended, later than all before."},
    {NULL},
};

static PyMemberDef newest_members[] = {
    {"_limit", T_LONGLONG, offsetof(Newest, limit)},
    {"bytes", T_LONGLONG, offsetof(Newest, bytes)},
    {"_head", T_LONGLONG, offsetof(Newest, head)},
    {"_firsts", T_OBJECT_EX, offsetof(Newest, firsts)},
    {"_batches", T_OBJECT_EX, offsetof(Newest, batches)},
    {NULL},
};

static PyType_Slot newest_slots[] = {
    {Py_tp_doc, "The newest batches of the log."},
    {Py_tp_dealloc, newest_dealloc},
    {Py_tp_traverse, newest_traverse},
    {Py_tp_clear, newest_clear},
    {Py_tp_methods, newest_methods},
    {Py_tp_members, newest_members},
    {0, NULL},
};

static PyType_Spec newest_spec = {
    "remuda.native._stores.Newest", sizeof(Newest), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    newest_slots,
};

/* A clock that counts on from what the wall said when it was made. */

typedef struct {
    PyObject_HEAD
    long long clock, offset;
    vectorcallfunc call;
} Clock;

static PyObject *clock_read(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    struct timespec time;
    if (PyVectorcall_NARGS(given) != 0 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a clock takes no arguments");
        return NULL;
    }
    if (clock_gettime((clockid_t)((Clock *)self)->clock, &time) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    long long now = (long long)time.tv_sec * 1000000000LL + time.tv_nsec + ((Clock *)self)->offset;
    return PyLong_FromLongLong(now / 1000 - (now % 1000 < 0));
}

static PyObject *clock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long clock, offset;
    if (!PyArg_ParseTuple(args, "LL", &clock, &offset))
        return NULL;
    Clock *self = (Clock *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->clock = clock;
        self->offset = offset;
        self->call = clock_read;
    }
    return (PyObject *)self;
}

static void clock_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef clock_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Clock, call), READONLY},
    {NULL},
};

static PyType_Slot clock_slots[] = {
    {Py_tp_doc, "Microseconds since the epoch, by a clock that never jumps."},
    {Py_tp_new, clock_new},
    {Py_tp_dealloc, clock_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, clock_members},
    {0, NULL},
};

static PyType_Spec clock_spec = {
    "remuda.native._stores.Clock", sizeof(Clock), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, clock_slots,
};

static PyObject *set_messages(PyObject *module, PyObject *args)
{
    static const char *const names[] = {"bodies"};
    PyObject *messages, *deque;
    if (!PyArg_ParseTuple(args, "OO!", &messages, &PyType_Type, &deque) ||
        places_of(messages, names, &bodies_place, 1) < 0)
        return NULL;
    Py_XSETREF(messages_type, (PyTypeObject *)Py_NewRef(messages));
    Py_XSETREF(deque_type, (PyTypeObject *)Py_NewRef(deque));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_messages", set_messages, METH_VARARGS, "Tell what a batch and a deque are."},
    {NULL},
};

static int fill(PyObject *made)
{
    const Name names[] = {{&name_append, "append"}, {&name_popleft, "popleft"}, {&name_take, "_take"},
                          {&name_shorten, "_shorten"}};
    return intern(names, sizeof names / sizeof *names) < 0 || add_type(made, "Batches", &batches_spec) < 0 ||
                   add_type(made, "Newest", &newest_spec) < 0 || add_type(made, "Clock", &clock_spec) < 0
               ? -1
               : 0;
}

REMUDA_MODULE(_stores, methods, fill)
