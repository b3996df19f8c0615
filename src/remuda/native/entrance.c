/* The way in, and the short way of a record from there to the log: as `remuda/broker/embedded/entrance.py`, which says
   what everything means.

   Whatever is out of the ordinary is done by a method of the class in Python that is built on this. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <time.h>

static PyObject *name_acquire, *name_release, *name_failure, *name_busy, *name_reached, *name_wait;
static PyObject *name_check_caller, *name_refuse, *name_change, *name_mend, *name_keep_somehow, *name_pass_or_fail,
    *name_defer, *nothing_yet;

typedef struct {
    PyObject_HEAD
    PyObject *lock, *holder, *group, *stalled, *verbs, *clock, *outbox, *fence, *hold, *write, *pend;
    long long ticket, deferred;
    double fence_until;
    char closed, must_sync, syncs, gathers, replicates;
} Entrance;

#define OBJECTS(visit)                                                                                                 \
    visit(self->lock);                                                                                                 \
    visit(self->holder);                                                                                               \
    visit(self->group);                                                                                                \
    visit(self->stalled);                                                                                              \
    visit(self->verbs);                                                                                                \
    visit(self->clock);                                                                                                \
    visit(self->outbox);                                                                                               \
    visit(self->fence);                                                                                                \
    visit(self->hold);                                                                                                 \
    visit(self->write);                                                                                                \
    visit(self->pend)

static int entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    OBJECTS(Py_VISIT);
    return 0;
}

static int entrance_clear(Entrance *self)
{
    OBJECTS(Py_CLEAR);
    return 0;
}

static void entrance_dealloc(Entrance *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    entrance_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* The error that is set, as a value of its own. */
static PyObject *taken_error(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL && value != NULL)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Whether an attribute of a part says so; -1 after an error. */
static int says(PyObject *part, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(part, name);
    if (value == NULL)
        return -1;
    int truth = value == Py_False || value == Py_None ? 0 : value == Py_True ? 1 : PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

static int is_whole(Entrance *self)
{
    if (self->lock != NULL && self->group != NULL && self->verbs != NULL && PyDict_CheckExact(self->verbs) &&
        self->clock != NULL && self->stalled != NULL)
        return 1;
    PyErr_SetString(PyExc_AttributeError, "this broker was never opened");
    return 0;
}

/* Carry out a command under the lock. */
static PyObject *carried_out(Entrance *self, PyObject *command, PyObject *inbox, PyObject *wait)
{
    PyObject *verb = Py_XNewRef(PyDict_GetItemWithError(self->verbs, (PyObject *)Py_TYPE(command)));
    if (verb == NULL && !PyErr_Occurred())
        verb = PyObject_GetAttr((PyObject *)self, name_change);
    PyObject *now = verb == NULL ? NULL : PyObject_CallNoArgs(self->clock), *pending = NULL;
    if (now != NULL) {
        PyObject *args[] = {command, now, inbox, wait};
        pending = PyObject_Vectorcall(verb, args, 4, NULL);
    }
    Py_XDECREF(verb);
    Py_XDECREF(now);
    if (pending == NULL) {
        PyObject *error = taken_error();
        if (error != NULL) {
            pending = PyObject_CallMethodObjArgs((PyObject *)self, name_mend, command, error, NULL);
            Py_DECREF(error);
        }
    }
    return pending;
}

static PyObject *submit(Entrance *self, PyObject *command, PyObject *inbox, PyObject *wait)
{
    PyObject *caller = is_whole(self) ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    if (caller == NULL)
        return NULL;
    if (self->holder != NULL && self->holder != Py_None) {
        int same = PyObject_RichCompareBool(self->holder, caller, Py_EQ);
        PyObject *checked = same == 0   ? Py_NewRef(Py_None)
                            : same == 1 ? PyObject_CallMethodNoArgs((PyObject *)self, name_check_caller)
                                        : NULL;
        Py_XDECREF(checked);
        if (checked == NULL) {
            Py_DECREF(caller);
            return NULL;
        }
    }
    PyObject *lock = Py_NewRef(self->lock), *pending;
    PyObject *entered = PyObject_CallMethodNoArgs(lock, name_acquire);
    if (entered == NULL) {
        Py_DECREF(lock);
        Py_DECREF(caller);
        return NULL;
    }
    Py_DECREF(entered);
    PyObject *failure = PyObject_GetAttr(self->group, name_failure);
    if (failure == NULL) {
        pending = NULL;
    } else if (self->closed || failure != Py_None || self->stalled != Py_None) {
        pending = PyObject_CallMethodOneArg((PyObject *)self, name_refuse, command);
    } else {
        Py_XSETREF(self->holder, Py_NewRef(caller));
        pending = carried_out(self, command, inbox, wait);
        Py_XSETREF(self->holder, Py_NewRef(Py_None));
    }
    Py_XDECREF(failure);
    Py_DECREF(caller);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethodNoArgs(lock, name_release);
    Py_DECREF(lock);
    if (left == NULL) {
        Py_CLEAR(pending);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return NULL;
    }
    Py_DECREF(left);
    PyErr_Restore(type, value, trace);
    return pending;
}

static PyObject *entrance_submit(Entrance *self, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *wait = Py_True;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (given < 1 || given > 2 || named > 1 ||
        (named && PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), name_wait) != 0)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "submit takes a command, an inbox, and whether to wait");
        return NULL;
    }
    if (named)
        wait = args[given];
    return submit(self, args[0], given > 1 ? args[1] : Py_None, wait);
}

/* How a record goes to the log at once: written, where nobody else writes and the directory is known to be ours; or only
   made pending, where it is written along with others anyway. NULL, perhaps with an error, if in no such way. */
static PyObject *way_of(Entrance *self, int durable)
{
    if (self->gathers)
        return self->hold;
    if (self->outbox == NULL || !PyList_CheckExact(self->outbox) || self->replicates || self->fence == NULL)
        return NULL;
    if (PyList_GET_SIZE(self->outbox) || self->must_sync || (durable && self->syncs))
        return self->pend;
    int busy = says(self->group, name_busy);
    if (busy)
        return busy < 0 ? NULL : self->pend;
    if (self->fence != Py_None) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        if ((double)time.tv_sec + (double)time.tv_nsec * 1e-9 > self->fence_until)
            return NULL;
    }
    return self->write;
}

static PyObject *entrance_keep(Entrance *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBool_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "_keep takes a record, and whether it is durable");
        return NULL;
    }
    if (!is_whole(self))
        return NULL;
    long long ticket = ++self->ticket;
    PyObject *way = Py_XNewRef(way_of(self, args[1] == Py_True));
    PyObject *size = way == NULL ? NULL : PyObject_CallOneArg(way, args[0]);
    int pends = way != NULL && !self->gathers && way == self->pend;
    Py_XDECREF(way);
    if (size == NULL && PyErr_Occurred()) {
        PyObject *error = taken_error();
        PyObject *passed = error == NULL ? NULL : PyObject_CallMethodOneArg((PyObject *)self, name_pass_or_fail, error);
        Py_XDECREF(error);
        Py_XDECREF(passed);
        return passed == NULL ? NULL : PyLong_FromLongLong(ticket); /* whoever waits for it tries again */
    }
    int done = size != NULL && PyLong_CheckExact(size) && PyLong_AsLong(size) > 0;
    Py_XDECREF(size);
    if (!done)
        return PyObject_CallMethodObjArgs((PyObject *)self, name_keep_somehow, args[0], args[1], NULL);
    if (pends) {
        self->must_sync = self->must_sync || (args[1] == Py_True && self->syncs);
        return PyLong_FromLongLong(ticket);
    }
    if (self->gathers) {
        if (!self->deferred) {
            PyObject *told = PyObject_CallMethodOneArg((PyObject *)self, name_defer, args[0]);
            if (told == NULL)
                return NULL;
            Py_DECREF(told);
        }
        self->deferred = ticket;
    } else {
        PyObject *reached = PyLong_FromLongLong(ticket);
        if (reached == NULL || PyObject_SetAttr(self->group, name_reached, reached) < 0) {
            Py_XDECREF(reached);
            return NULL;
        }
        Py_DECREF(reached);
        self->deferred = 0;
    }
    return Py_NewRef(nothing_yet);
}

static PyMethodDef entrance_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))entrance_submit, METH_FASTCALL | METH_KEYWORDS,
     "Carry out a command. Deliveries of its subscription, or pull, will come to the inbox."},
    {"_keep", (PyCFunction)(void (*)(void))entrance_keep, METH_FASTCALL, "Keep one record that concerns nobody else."},
    {NULL},
};

static PyMemberDef entrance_members[] = {
    {"lock", T_OBJECT_EX, offsetof(Entrance, lock)},
    {"_holder", T_OBJECT_EX, offsetof(Entrance, holder)},
    {"_group", T_OBJECT_EX, offsetof(Entrance, group)},
    {"_stalled", T_OBJECT_EX, offsetof(Entrance, stalled)},
    {"_verbs", T_OBJECT_EX, offsetof(Entrance, verbs)},
    {"clock", T_OBJECT_EX, offsetof(Entrance, clock)},
    {"_outbox", T_OBJECT_EX, offsetof(Entrance, outbox)},
    {"fence", T_OBJECT_EX, offsetof(Entrance, fence)},
    {"_hold", T_OBJECT_EX, offsetof(Entrance, hold)},
    {"_write_single", T_OBJECT_EX, offsetof(Entrance, write)},
    {"_pend_single", T_OBJECT_EX, offsetof(Entrance, pend)},
    {"_ticket", T_LONGLONG, offsetof(Entrance, ticket)},
    {"_deferred", T_LONGLONG, offsetof(Entrance, deferred)},
    {"_fence_until", T_DOUBLE, offsetof(Entrance, fence_until)},
    {"_closed", T_BOOL, offsetof(Entrance, closed)},
    {"_must_sync", T_BOOL, offsetof(Entrance, must_sync)},
    {"_syncs", T_BOOL, offsetof(Entrance, syncs)},
    {"_gathers", T_BOOL, offsetof(Entrance, gathers)},
    {"_replicates", T_BOOL, offsetof(Entrance, replicates)},
    {NULL},
};

static PyType_Slot entrance_slots[] = {
    {Py_tp_doc, "The one way in."},
    {Py_tp_dealloc, entrance_dealloc},
    {Py_tp_traverse, entrance_traverse},
    {Py_tp_clear, entrance_clear},
    {Py_tp_methods, entrance_methods},
    {Py_tp_members, entrance_members},
    {0, NULL},
};

static PyType_Spec entrance_spec = {
    "remuda.native._entrance.Entrance", sizeof(Entrance), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, entrance_slots,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_entrance", NULL, -1, NULL};

PyMODINIT_FUNC PyInit__entrance(void)
{
    struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_acquire, "acquire"}, {&name_release, "release"}, {&name_failure, "failure"},
                 {&name_busy, "busy"}, {&name_reached, "reached"}, {&name_wait, "wait"},
                 {&name_check_caller, "_check_caller"}, {&name_refuse, "_refuse"}, {&name_change, "_change"},
                 {&name_mend, "_mend"}, {&name_keep_somehow, "_keep_somehow"}, {&name_pass_or_fail, "_pass_or_fail"},
                 {&name_defer, "_defer"}};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if ((*names[at].name = PyUnicode_InternFromString(names[at].text)) == NULL)
            return NULL;
    if ((nothing_yet = PyLong_FromLong(0)) == NULL)
        return NULL;
    PyObject *made = PyModule_Create(&module), *type = made == NULL ? NULL : PyType_FromSpec(&entrance_spec);
    if (type == NULL || PyModule_AddObjectRef(made, "Entrance", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    Py_DECREF(type);
    return made;
}
