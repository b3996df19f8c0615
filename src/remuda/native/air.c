/* A run of messages is put into flight, and lands: as `remuda/core/air.py`, which says what everything means. */

#include "fields.h"

enum { CONSUMERS, RUNS, OPEN, PULLED, FIELDS };
static const char *const LEASE[FIELDS] = {"consumers", "runs", "open", "pulled"};
enum { STALE = 1000 };

static PyTypeObject *lease_type;
static PyObject *range_type, *fetched, *push;
static Py_ssize_t in_lease[FIELDS];
static PyObject *name_add, *name_take_whole, *name_answered, *name_drop_stale_ends, *name_open, *names_pulled;
static PyObject *none, *one; /* as numbers */

typedef struct {
    PyObject_HEAD
    PyObject *flights, *leases, *ends;
} Air;

static int air_traverse(Air *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->flights);
    Py_VISIT(self->leases);
    Py_VISIT(self->ends);
    return 0;
}

static int air_clear(Air *self)
{
    Py_CLEAR(self->flights);
    Py_CLEAR(self->leases);
    Py_CLEAR(self->ends);
    return 0;
}

static void air_dealloc(Air *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    air_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int is_whole(Air *self)
{
    if (lease_type != NULL && self->flights != NULL && self->leases != NULL && PyDict_CheckExact(self->leases) &&
        self->ends != NULL && PyList_CheckExact(self->ends))
        return 1;
    PyErr_SetString(PyExc_AttributeError, "nothing can be put into flight here yet");
    return 0;
}

/* Note when a delivery is over; -1 after an error. */
static int note_end(Air *self, PyObject *deadline, PyObject *token)
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

static PyObject *air_lift(Air *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 8) {
        PyErr_SetString(PyExc_TypeError, "lift takes a first offset, a count, when they expire, a priority, a lease, a "
                                         "consumer, the time and a deadline");
        return NULL;
    }
    if (!is_whole(self))
        return NULL;
    PyObject *first = args[0], *count = args[1], *token = args[4], *consumer = args[5], *deadline = args[7];
    PyObject *runs = NULL, *holders = NULL, *lease = NULL, *piece = NULL, *added = NULL;
    PyObject *run = PyTuple_Pack(2, first, count);
    if (run == NULL || (runs = PyList_New(1)) == NULL)
        goto end;
    PyList_SET_ITEM(runs, 0, Py_NewRef(run));
    PyObject *range[] = {first, count, fetched, args[2], args[3], one, token, none, Py_False, Py_None, args[6]};
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
    Py_XDECREF(run);
    Py_XDECREF(holders);
    Py_XDECREF(lease);
    Py_XDECREF(piece);
    Py_XDECREF(added);
    return runs;
}

/* Take one run of a delivery, or the one it has, out of the air. */
static PyObject *landed(Air *self, PyObject *lease, PyObject *token, PyObject *consumer, PyObject *runs)
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

static PyObject *air_land(Air *self, PyObject *const *args, Py_ssize_t given)
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

static PyMethodDef air_methods[] = {
    {"lift", (PyCFunction)(void (*)(void))air_lift, METH_FASTCALL, "Put a run of messages into flight; gives its runs."},
    {"land", (PyCFunction)(void (*)(void))air_land, METH_FASTCALL, "Take one run of a delivery out of the air."},
    {NULL},
};

static PyMemberDef air_members[] = {
    {"flights", T_OBJECT_EX, offsetof(Air, flights)},
    {"leases", T_OBJECT_EX, offsetof(Air, leases)},
    {"_lease_ends", T_OBJECT_EX, offsetof(Air, ends)},
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
    "remuda.native._air.Air", sizeof(Air), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, air_slots,
};

static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *lease, *range, *state, *heappush;
    if (!PyArg_ParseTuple(args, "OO!OO", &lease, &PyType_Type, &range, &state, &heappush) ||
        places_of(lease, LEASE, in_lease, FIELDS) < 0)
        return NULL;
    Py_XSETREF(lease_type, (PyTypeObject *)Py_NewRef(lease));
    Py_XSETREF(range_type, Py_NewRef(range));
    Py_XSETREF(fetched, Py_NewRef(state));
    Py_XSETREF(push, Py_NewRef(heappush));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Tell what a lease, a range and the state of its messages are, and how a heap grows."},
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
    return add_type(made, "Air", &air_spec);
}

REMUDA_MODULE(_air, methods, fill)
