/* A run of messages is put into flight, and lands: as `remuda/core/in_flight.py`, which says what everything means. */

#include "fields.h"

enum { CONSUMERS, RUNS, OPEN, PULLED, FIELDS };
static const char *const LEASE[FIELDS] = {"consumers", "runs", "open", "pulled"};
enum { FIRST, COUNT, PLACES };
static const char *const RANGE[PLACES] = {"first", "count"};
enum { STALE = 1000 };

static PyTypeObject *lease_type;
static PyObject *range_type, *dispatch_type, *event_type, *events_type, *push;
static PyObject *fetched, *succeeded, *ended; /* states */
static Py_ssize_t in_lease[FIELDS], in_range[PLACES];
static PyObject *name_add, *name_take_whole, *name_answered, *name_drop_stale_ends, *name_open, *names_pulled;
static PyObject *none, *one; /* as numbers */

typedef struct {
    PyObject_HEAD
    PyObject *flights, *leases, *ends;
} InFlight;

static int air_traverse(InFlight *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->flights);
    Py_VISIT(self->leases);
    Py_VISIT(self->ends);
    return 0;
}

static int air_clear(InFlight *self)
{
    Py_CLEAR(self->flights);
    Py_CLEAR(self->leases);
    Py_CLEAR(self->ends);
    return 0;
}

static void air_dealloc(InFlight *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    air_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int is_whole(InFlight *self)
{
    if (lease_type != NULL && self->flights != NULL && self->leases != NULL && PyDict_CheckExact(self->leases) &&
        self->ends != NULL && PyList_CheckExact(self->ends))
        return 1;
    PyErr_SetString(PyExc_AttributeError, "nothing can be put into flight here yet");
    return 0;
}

/* Note when a delivery is over; -1 after an error. */
static int note_end(InFlight *self, PyObject *deadline, PyObject *token)
{
    PyObject *end = PyTuple_Pack(2, deadline, token), *pushed = NULL;
    if (end != NULL) {
        PyObject *args[] = {self->ends, end};
        pushed = PyObject_Vectorcall(push, args, 2, NULL);
        Py_DECREF(end);
    }
    if (pushed == NULL)
        return -1;
    Py_DECREF(pushed);
    if (PyList_GET_SIZE(self->ends) > 2 * PyDict_GET_SIZE(self->leases) + STALE) {
        PyObject *dropped = PyObject_CallMethodNoArgs((PyObject *)self, name_drop_stale_ends);
        if (dropped == NULL)
            return -1;
        Py_DECREF(dropped);
    }
    return 0;
}

/* A record of one event, or two, from a position on. */
static PyObject *record_of(PyObject *position, PyObject *time, PyObject *event, PyObject *next)
{
    PyObject *rows = PyList_New(next == NULL ? 1 : 2), *record = NULL;
    if (rows != NULL) {
        PyList_SET_ITEM(rows, 0, Py_NewRef(event));
        if (next != NULL)
            PyList_SET_ITEM(rows, 1, Py_NewRef(next));
        PyObject *fields[] = {position, time, rows};
        record = PyObject_Vectorcall(events_type, fields, 3, NULL);
        Py_DECREF(rows);
    }
    return record;
}

/* Put a run into flight; gives it as runs. */
static PyObject *lifted(InFlight *self, PyObject *run, PyObject *token, PyObject *consumer, PyObject *now, PyObject *deadline)
{
    PyObject *first = PyTuple_GET_ITEM(run, 0), *count = PyTuple_GET_ITEM(run, 1);
    PyObject *runs = NULL, *holders = NULL, *lease = NULL, *piece = NULL, *added = NULL;
    PyObject *pair = PyTuple_Pack(2, first, count);
    if (pair == NULL || (runs = PyList_New(1)) == NULL)
        goto end;
    PyList_SET_ITEM(runs, 0, Py_NewRef(pair));
    PyObject *range[] = {first, count, fetched, PyTuple_GET_ITEM(run, 2), PyTuple_GET_ITEM(run, 3), one, token, none,
                         Py_False, Py_None, now};
    if ((holders = PyTuple_Pack(1, consumer)) == NULL || (piece = PyObject_Vectorcall(range_type, range, 11, NULL)) == NULL)
        goto end;
    PyObject *held[] = {token, holders, runs, deadline, count, Py_True};
    if ((lease = PyObject_Vectorcall((PyObject *)lease_type, held, 5, names_pulled)) == NULL ||
        (added = PyObject_CallMethodOneArg(self->flights, name_add, piece)) == NULL ||
        PyDict_SetItem(self->leases, token, lease) < 0 || note_end(self, deadline, token) < 0)
        Py_CLEAR(runs);
end:
    if (piece == NULL || lease == NULL)
        Py_CLEAR(runs);
    Py_XDECREF(pair);
    Py_XDECREF(holders);
    Py_XDECREF(lease);
    Py_XDECREF(piece);
    Py_XDECREF(added);
    return runs;
}

static PyObject *air_send(InFlight *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 8 || !PyTuple_CheckExact(args[1]) || PyTuple_GET_SIZE(args[1]) != 4) {
        PyErr_SetString(PyExc_TypeError, "send takes a name, a run, a lease, a consumer, a tag, the time, a deadline and "
                                         "how many are left");
        return NULL;
    }
    if (!is_whole(self))
        return NULL;
    PyObject *name = args[0], *run = args[1], *token = args[2], *consumer = args[3], *now = args[5], *deadline = args[6];
    PyObject *sent = NULL, *dispatch = NULL, *event = NULL, *record = NULL;
    PyObject *runs = lifted(self, run, token, consumer, now, deadline), *attempts = runs == NULL ? NULL : PyList_New(1);
    if (attempts == NULL)
        goto end;
    PyList_SET_ITEM(attempts, 0, Py_NewRef(one));
    PyObject *fields[] = {name, consumer, args[4], token, runs, attempts, deadline, args[7]};
    PyObject *row[] = {name, fetched, PyTuple_GET_ITEM(run, 0), PyTuple_GET_ITEM(run, 1), consumer, one};
    if ((dispatch = PyObject_Vectorcall(dispatch_type, fields, 8, NULL)) != NULL &&
        (event = PyObject_Vectorcall(event_type, row, 6, NULL)) != NULL &&
        (record = record_of(token, now, event, NULL)) != NULL)
        sent = PyTuple_Pack(2, dispatch, record);
end:
    Py_XDECREF(runs);
    Py_XDECREF(attempts);
    Py_XDECREF(dispatch);
    Py_XDECREF(event);
    Py_XDECREF(record);
    return sent;
}

/* Take one run of a delivery, or the one it has, out of the air. */
static PyObject *landed(InFlight *self, PyObject *lease, PyObject *token, PyObject *consumer, PyObject *runs)
{
    long long count, open;
    PyObject *holders = field(lease, in_lease[CONSUMERS]), *pulled = field(lease, in_lease[PULLED]);
    if (runs == Py_None)
        runs = field(lease, in_lease[RUNS]);
    if (holders == NULL || !PyTuple_CheckExact(holders) || PyTuple_GET_SIZE(holders) < 1 || pulled == NULL ||
        runs == NULL || !PyList_CheckExact(runs) || !is_number(field(lease, in_lease[OPEN]), &open)) {
        PyErr_SetString(PyExc_TypeError, "this is no lease of a delivery");
        return NULL;
    }
    int is_pulled = pulled == Py_True;
    if (PyList_GET_SIZE(runs) != 1)
        Py_RETURN_NONE;
    PyObject *run = PyList_GET_ITEM(runs, 0), *holder = PyTuple_GET_ITEM(holders, 0);
    if (!PyTuple_CheckExact(run) || PyTuple_GET_SIZE(run) != 2 || !is_number(PyTuple_GET_ITEM(run, 1), &count)) {
        PyErr_SetString(PyExc_TypeError, "a run is two numbers");
        return NULL;
    }
    if (holder != consumer) {
        int same = PyUnicode_Check(holder) ? PyUnicode_Compare(holder, consumer) == 0 : 0;
        if (!same)
            Py_RETURN_NONE;
    }
    Py_INCREF(run);
    PyObject *asked[] = {self->flights, PyTuple_GET_ITEM(run, 0), PyTuple_GET_ITEM(run, 1), token};
    PyObject *piece = PyObject_VectorcallMethod(name_take_whole, asked, 4, NULL);
    Py_DECREF(run);
    if (piece == NULL || piece == Py_None)
        return piece;
    int failed = 0;
    if (!is_pulled) {
        PyObject *told = PyObject_CallMethodOneArg((PyObject *)self, name_answered, lease);
        failed = told == NULL;
        Py_XDECREF(told);
    }
    if (!failed && open <= count) {
        failed = PyDict_DelItem(self->leases, token) < 0;
        open = count; /* none is left */
    }
    if (!failed) {
        PyObject *left = PyLong_FromLongLong(open - count);
        failed = left == NULL || PyObject_SetAttr(lease, name_open, left) < 0;
        Py_XDECREF(left);
    }
    if (failed)
        Py_CLEAR(piece);
    return piece;
}

static PyObject *air_land(InFlight *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "land takes a lease, a consumer and runs");
        return NULL;
    }
    if (!is_whole(self))
        return NULL;
    PyObject *token = args[0], *consumer = args[1], *runs = args[2];
    PyObject *lease = PyDict_GetItemWithError(self->leases, token);
    if (lease == NULL && PyErr_Occurred())
        return NULL;
    if (lease == NULL || consumer == Py_None)
        Py_RETURN_NONE;
    if (Py_TYPE(lease) != lease_type || !PyUnicode_Check(consumer)) {
        PyErr_SetString(PyExc_TypeError, "land takes a lease, a consumer and runs");
        return NULL;
    }
    /* Python may run from here on, and let go of what is not held. */
    Py_INCREF(lease);
    PyObject *piece = landed(self, lease, token, consumer, runs);
    Py_DECREF(lease);
    return piece;
}

static PyObject *air_complete(InFlight *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 6) {
        PyErr_SetString(PyExc_TypeError, "complete takes a name, a lease, a consumer, runs, a position and the time");
        return NULL;
    }
    PyObject *piece = air_land(self, args + 1, 3);
    if (piece == NULL || piece == Py_None)
        return piece;
    PyObject *record = NULL, *success = NULL, *completed = NULL;
    if (Py_TYPE(piece) != (PyTypeObject *)range_type) {
        PyErr_SetString(PyExc_TypeError, "this is no range of messages");
    } else {
        PyObject *first = field(piece, in_range[FIRST]), *count = field(piece, in_range[COUNT]);
        PyObject *done[] = {args[0], succeeded, first, count, args[2]}, *over[] = {args[0], ended, first, count};
        if ((success = PyObject_Vectorcall(event_type, done, 5, NULL)) != NULL &&
            (completed = PyObject_Vectorcall(event_type, over, 4, NULL)) != NULL)
            record = record_of(args[4], args[5], success, completed);
    }
    Py_XDECREF(success);
    Py_XDECREF(completed);
    Py_DECREF(piece);
    return record;
}

static PyMethodDef air_methods[] = {
    {"send", (PyCFunction)(void (*)(void))air_send, METH_FASTCALL,
     "Put a run of messages into flight; gives the delivery, and what is to be kept of it."},
    {"complete", (PyCFunction)(void (*)(void))air_complete, METH_FASTCALL,
     "As land, for messages that are done; gives what is to be kept of that."},
    {"land", (PyCFunction)(void (*)(void))air_land, METH_FASTCALL, "Take one run of a delivery out of the air."},
    {NULL},
};

static PyMemberDef air_members[] = {
    {"flights", T_OBJECT_EX, offsetof(InFlight, flights)},
    {"leases", T_OBJECT_EX, offsetof(InFlight, leases)},
    {"_lease_ends", T_OBJECT_EX, offsetof(InFlight, ends)},
    {NULL},
};

static PyType_Slot air_slots[] = {
    {Py_tp_doc, "Messages in flight, and under which leases."},
    {Py_tp_dealloc, air_dealloc},
    {Py_tp_traverse, air_traverse},
    {Py_tp_clear, air_clear},
    {Py_tp_methods, air_methods},
    {Py_tp_members, air_members},
    {0, NULL},
};

static PyType_Spec air_spec = {
    "remuda.native._in_flight.InFlight", sizeof(InFlight), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, air_slots,
};

static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *lease, *range, *dispatch, *event, *events, *states[3], *heappush;
    if (!PyArg_ParseTuple(args, "OO!OOO(OOO)O", &lease, &PyType_Type, &range, &dispatch, &event, &events, &states[0],
                          &states[1], &states[2], &heappush) ||
        places_of(lease, LEASE, in_lease, FIELDS) < 0 || places_of(range, RANGE, in_range, PLACES) < 0)
        return NULL;
    Py_XSETREF(lease_type, (PyTypeObject *)Py_NewRef(lease));
    Py_XSETREF(range_type, Py_NewRef(range));
    Py_XSETREF(dispatch_type, Py_NewRef(dispatch));
    Py_XSETREF(event_type, Py_NewRef(event));
    Py_XSETREF(events_type, Py_NewRef(events));
    Py_XSETREF(fetched, Py_NewRef(states[0]));
    Py_XSETREF(succeeded, Py_NewRef(states[1]));
    Py_XSETREF(ended, Py_NewRef(states[2]));
    Py_XSETREF(push, Py_NewRef(heappush));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Tell what a lease, a range, a delivery and its events are, and how a heap grows."},
    {NULL},
};

static int fill(PyObject *made)
{
    static PyObject *pulled;
    const Name names[] = {{&pulled, "pulled"}, {&name_add, "add"}, {&name_take_whole, "take_whole"},
                          {&name_answered, "answered"}, {&name_drop_stale_ends, "_drop_stale_ends"}, {&name_open, "open"}};
    if (intern(names, sizeof names / sizeof *names) < 0 ||
        (names_pulled == NULL && (names_pulled = PyTuple_Pack(1, pulled)) == NULL) ||
        (none == NULL && (none = PyLong_FromLong(0)) == NULL) || (one == NULL && (one = PyLong_FromLong(1)) == NULL))
        return -1;
    return add_type(made, "InFlight", &air_spec);
}

REMUDA_MODULE(_in_flight, methods, fill)
