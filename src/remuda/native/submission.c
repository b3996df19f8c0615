/* The way in, and the short way of a record from there to the log: as `remuda/broker/embedded/submission.py`, which says
   what everything means.

   Whatever is out of the ordinary is done by a method of the class in Python that is built on this. */

#include "mutex.h"

#include <limits.h>

#define NEVER LLONG_MAX

enum { STORM = 10 };

static PyObject *name_acquire, *name_release, *name_locked, *name_failure, *name_busy, *name_reached, *name_wait,
    *name_lock, *name_places, *name_leader, *name_alone, *name_company, *name_leave;
static PyTypeObject *mutex_type;
static PyObject *name_check_caller, *name_refuse, *name_change, *name_mend, *name_keep_somehow, *name_pass_or_fail,
    *name_defer, *name_sync_failed, *nothing_yet;

typedef struct {
    PyObject_HEAD
    PyObject *lock, *group, *stalled, *verbs, *clock, *outbox, *fence, *hold, *write, *pend, *sync, *waiting;
    long long ticket, deferred, sync_by;
    double fence_until;
    char closed, must_sync, syncs, gathers, replicates;
} Submission;

#define OBJECTS(visit)                                                                                                 \
    visit(self->lock);                                                                                                 \
    visit(self->group);                                                                                                \
    visit(self->stalled);                                                                                              \
    visit(self->verbs);                                                                                                \
    visit(self->clock);                                                                                                \
    visit(self->outbox);                                                                                               \
    visit(self->fence);                                                                                                \
    visit(self->hold);                                                                                                 \
    visit(self->write);                                                                                                \
    visit(self->pend);                                                                                                 \
    visit(self->sync);                                                                                                 \
    visit(self->waiting)

static int entrance_traverse(Submission *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    OBJECTS(Py_VISIT);
    return 0;
}

static int entrance_clear(Submission *self)
{
    OBJECTS(Py_CLEAR);
    return 0;
}

static void entrance_dealloc(Submission *self)
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

static int enter(PyObject *lock)
{
    if (Py_IS_TYPE(lock, mutex_type))
        return mutex_take((Mutex *)lock);
    PyObject *entered = PyObject_CallMethodNoArgs(lock, name_acquire);
    Py_XDECREF(entered);
    return entered == NULL ? -1 : 0;
}

/* Let go of a lock that was entered. An error that is set stays, unless this ends in one itself. */
static int let_go(PyObject *lock)
{
    if (Py_IS_TYPE(lock, mutex_type)) {
        mutex_let_go((Mutex *)lock);
        return 0;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethodNoArgs(lock, name_release);
    if (left == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return -1;
    }
    Py_DECREF(left);
    PyErr_Restore(type, value, trace);
    return 0;
}

static int is_whole(Submission *self)
{
    if (self->lock != NULL && self->group != NULL && self->verbs != NULL && PyDict_CheckExact(self->verbs) &&
        self->clock != NULL && self->stalled != NULL && self->waiting != NULL && PySet_CheckExact(self->waiting))
        return 1;
    PyErr_SetString(PyExc_AttributeError, "this broker was never opened");
    return 0;
}

/* What `_mend` makes of the error that is set. What else is raised meanwhile, as by Ctrl-C once more, comes from outside:
   it must not keep a broker from being stopped whose queues are half changed, and is told afterwards. */
static PyObject *mended(Submission *self, PyObject *command)
{
    PyObject *error = taken_error(), *struck = NULL, *pending = NULL;
    for (int tries = 0; error != NULL && tries < STORM; tries++) {
        pending = PyObject_CallMethodObjArgs((PyObject *)self, name_mend, command, error, NULL);
        PyObject *raised = pending == NULL ? taken_error() : NULL;
        if (raised == NULL || raised == error) {
            Py_XDECREF(raised);
            break;
        }
        Py_XSETREF(struck, raised);
    }
    if (struck != NULL)
        Py_CLEAR(pending);
    if (pending == NULL && error != NULL) {
        PyObject *told = struck == NULL ? error : struck;
        PyErr_SetObject((PyObject *)Py_TYPE(told), told);
    }
    Py_XDECREF(struck);
    Py_XDECREF(error);
    return pending;
}

/* Carry out a command under the lock. */
static PyObject *carried_out(Submission *self, PyObject *command, PyObject *inbox, PyObject *wait)
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
    if (pending == NULL)
        pending = mended(self, command);
    return pending;
}

/* Whether this thread waits already, further out: who interrupted it there may be its own leader. -1 after an error. */
static int is_waiting(Submission *self)
{
    if (PySet_GET_SIZE(self->waiting) == 0)
        return 0;
    PyObject *caller = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    int is = caller == NULL ? -1 : PySet_Contains(self->waiting, caller);
    Py_XDECREF(caller);
    return is;
}

/* Refuse who is inside already; -1 then. */
static int check_caller(Submission *self)
{
    PyObject *checked = PyObject_CallMethodNoArgs((PyObject *)self, name_check_caller);
    Py_XDECREF(checked);
    return checked == NULL ? -1 : 0;
}

static PyObject *submit(Submission *self, PyObject *command, PyObject *inbox, PyObject *wait)
{
    if (!is_whole(self))
        return NULL;
    int inside = Py_IS_TYPE(self->lock, mutex_type) && mutex_is_owned((Mutex *)self->lock);
    if (!inside && wait == Py_True)
        inside = is_waiting(self);
    if (inside < 0 || (inside && check_caller(self) < 0))
        return NULL;
    PyObject *lock = Py_NewRef(self->lock), *pending;
    if (enter(lock) < 0) {
        Py_DECREF(lock);
        return NULL;
    }
    PyObject *failure = PyObject_GetAttr(self->group, name_failure);
    if (failure == NULL) {
        pending = NULL;
    } else if (self->closed || failure != Py_None || self->stalled != Py_None) {
        pending = PyObject_CallMethodOneArg((PyObject *)self, name_refuse, command);
    } else {
        pending = carried_out(self, command, inbox, wait);
    }
    Py_XDECREF(failure);
    if (let_go(lock) < 0)
        Py_CLEAR(pending);
    Py_DECREF(lock);
    return pending;
}

static PyObject *entrance_submit(Submission *self, PyObject *const *args, Py_ssize_t given, PyObject *names)
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

/* Whether the directory is known to be ours. */
static int is_ours(Submission *self)
{
    if (self->fence == Py_None)
        return 1;
    return monotonic_seconds() <= self->fence_until;
}

/* Whether a record may go to the log without a detour. */
static int is_plain(Submission *self)
{
    return self->outbox != NULL && PyList_CheckExact(self->outbox) && !self->replicates && self->fence != NULL;
}

/* Whether nobody else writes, and the directory is known to be ours; -1 after an error. */
static int is_alone(Submission *self)
{
    if (!is_plain(self) || PyList_GET_SIZE(self->outbox) || !is_ours(self))
        return 0;
    int busy = says(self->group, name_busy);
    return busy < 0 ? -1 : !busy;
}

/* How a record goes to the log at once: written, where nobody else writes and the directory is known to be ours; or only
   made pending, where it is written along with others anyway. NULL, perhaps with an error, if in no such way. */
static PyObject *way_of(Submission *self)
{
    if (self->gathers)
        return self->hold;
    if (!is_plain(self))
        return NULL;
    if (PyList_GET_SIZE(self->outbox) || self->must_sync)
        return self->pend;
    int busy = says(self->group, name_busy);
    if (busy)
        return busy < 0 ? NULL : self->pend;
    return is_ours(self) ? self->write : NULL;
}

static PyObject *entrance_keep(Submission *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBool_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "_keep takes a record, and whether it is durable");
        return NULL;
    }
    if (!is_whole(self))
        return NULL;
    long long ticket = ++self->ticket;
    int syncs = self->syncs && args[1] == Py_True;
    PyObject *way = Py_XNewRef(way_of(self));
    int pends = way != NULL && !self->gathers && way == self->pend;
    if (way != NULL && !self->gathers && !pends)
        self->must_sync = (char)syncs;
    PyObject *size = way == NULL ? NULL : PyObject_CallOneArg(way, args[0]);
    Py_XDECREF(way);
    if (size == NULL && PyErr_Occurred()) {
        PyObject *error = taken_error();
        PyObject *passed = error == NULL ? NULL : PyObject_CallMethodOneArg((PyObject *)self, name_pass_or_fail, error);
        Py_XDECREF(error);
        Py_XDECREF(passed);
        return passed == NULL ? NULL : PyLong_FromLongLong(ticket); /* whoever waits for it tries again */
    }
    int done = size != NULL && PyLong_CheckExact(size) && PyObject_IsTrue(size) > 0;
    Py_XDECREF(size);
    if (!done)
        return PyObject_CallMethodObjArgs((PyObject *)self, name_keep_somehow, args[0], args[1], NULL);
    if (pends) {
        self->must_sync = self->must_sync || syncs;
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
    } else if (syncs) {
        return PyLong_FromLongLong(ticket);
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

/* Whether nobody holds a lock; -1 after an error. As long as the interpreter is kept, it stays so. */
static int is_free(PyObject *lock)
{
    if (Py_IS_TYPE(lock, mutex_type))
        return !((Mutex *)lock)->held;
    PyObject *locked = PyObject_CallMethodNoArgs(lock, name_locked);
    Py_XDECREF(locked);
    return locked == NULL ? -1 : locked == Py_False;
}

/* As `is_free`, for a part's own lock, which guards what else is asked of it. */
static int is_unguarded(PyObject *part)
{
    PyObject *lock = PyObject_GetAttr(part, name_lock);
    int is = lock == NULL ? -1 : is_free(lock);
    Py_XDECREF(lock);
    return is;
}

/* Whether nobody waits for the group to write; -1 after an error. */
static int is_deserted(PyObject *group)
{
    PyObject *places = PyObject_GetAttr(group, name_places);
    Py_ssize_t waiting = places == NULL ? -1 : PyObject_Size(places);
    Py_XDECREF(places);
    return waiting < 0 ? -1 : waiting == 0;
}

/* Whether a sync is all that is left to do, and nobody else does it, or waits for it; -1 after an error. */
static int is_left_to_sync(Submission *self)
{
    if (!self->must_sync || self->closed || self->stalled != Py_None || self->sync == NULL)
        return 0;
    int so = is_alone(self);
    if (so > 0)
        so = is_free(self->lock);
    if (so > 0)
        so = is_unguarded(self->group);
    if (so > 0)
        so = is_deserted(self->group);
    if (so > 0 && (so = says(self->group, name_company)) >= 0)
        so = !so;
    if (so > 0) {
        PyObject *failure = PyObject_GetAttr(self->group, name_failure);
        so = failure == NULL ? -1 : failure == Py_None;
        Py_XDECREF(failure);
    }
    return so;
}

static int lead(Submission *self, PyObject *place)
{
    return PyObject_SetAttr(self->group, name_leader, place) < 0 ||
                   PyObject_SetAttr(self->group, name_busy, place == Py_None ? Py_False : Py_True) < 0
               ? -1
               : 0;
}

/* Pass on the lead. An interrupt, which may be any error, may come where that takes Python: then it is begun again, and
   the interrupt goes on. */
static int leave(Submission *self, PyObject *place, PyObject *reached, PyObject *failure)
{
    int simple = failure != Py_None ? 0 : is_unguarded(self->group);
    if (simple > 0)
        simple = is_deserted(self->group);
    if (simple > 0)
        simple = PyObject_SetAttr(self->group, name_reached, reached) < 0 || lead(self, Py_None) < 0 ? -1 : 1;
    if (simple != 0)
        return simple < 0 ? -1 : 0;
    PyObject *interrupt = NULL, *left = NULL;
    for (int times = 0; times < 3 && left == NULL; times++) {
        left = PyObject_CallMethodObjArgs(self->group, name_leave, place, reached, failure, NULL);
        if (left == NULL)
            Py_XSETREF(interrupt, taken_error());
    }
    Py_XDECREF(left);
    if (interrupt != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(interrupt), interrupt);
        Py_DECREF(interrupt);
        return -1;
    }
    return left == NULL ? -1 : 0;
}

/* Sync, as whoever leads, for all that is written. 0 if there is more to do, and then nothing was done; -1 after an
   error. Up to the sync, and behind it, the interpreter is kept: nobody finds it half done. */
static int sync_alone(Submission *self)
{
    PyObject *place = PyObject_GetAttr(self->group, name_alone), *reached = PyLong_FromLongLong(self->ticket);
    PyObject *done = NULL, *failure = NULL;
    long long deferred = self->deferred, sync_by = self->sync_by;
    int ended = -1;
    if (place == NULL || reached == NULL || lead(self, place) < 0)
        goto end;
    self->must_sync = 0;
    self->deferred = 0;
    self->sync_by = NEVER;
    done = PyObject_CallNoArgs(self->sync);
    if (done == Py_False) {
        self->must_sync = 1;
        self->deferred = deferred;
        self->sync_by = sync_by;
        ended = lead(self, Py_None);
    } else if (done != NULL) {
        ended = leave(self, place, reached, Py_None) < 0 ? -1 : 1;
    } else {
        PyObject *error = taken_error();
        PyObject *told = error == NULL ? NULL : PyObject_CallMethodOneArg((PyObject *)self, name_sync_failed, error);
        Py_XDECREF(told);
        Py_XDECREF(error);
        failure = taken_error();
        if (failure != NULL && leave(self, place, nothing_yet, failure) == 0)
            PyErr_SetObject((PyObject *)Py_TYPE(failure), failure);
    }
end:
    Py_XDECREF(failure);
    Py_XDECREF(done);
    Py_XDECREF(reached);
    Py_XDECREF(place);
    return ended;
}

static PyObject *waited(Submission *self, PyObject *ticket, long long number)
{
    int done = number > self->ticket ? 0 : is_left_to_sync(self);
    if (done > 0)
        done = sync_alone(self);
    if (done < 0)
        return NULL;
    return done ? Py_NewRef(Py_None) : PyObject_CallMethodOneArg(self->group, name_wait, ticket);
}

static PyObject *entrance_wait(Submission *self, PyObject *ticket)
{
    long long number = PyLong_AsLongLong(ticket);
    if ((number == -1 && PyErr_Occurred()) || !is_whole(self))
        return NULL;
    if (number == 0)
        Py_RETURN_NONE;
    int inside = is_waiting(self);
    if (inside < 0 || (inside && check_caller(self) < 0))
        return NULL;
    PyObject *waiting = Py_NewRef(self->waiting), *caller = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *done = NULL;
    if (caller != NULL && PySet_Add(waiting, caller) == 0) {
        done = waited(self, ticket, number);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (PySet_Discard(waiting, caller) < 0)
            PyErr_Clear(); /* a number can always be compared */
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(caller);
    Py_DECREF(waiting);
    return done;
}

static PyMethodDef entrance_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))entrance_submit, METH_FASTCALL | METH_KEYWORDS,
     "Carry out a command. Deliveries of its subscription, or pull, will come to the inbox."},
    {"_keep", (PyCFunction)(void (*)(void))entrance_keep, METH_FASTCALL, "Keep one record that concerns nobody else."},
    {"wait", (PyCFunction)entrance_wait, METH_O, "Return when everything up to this ticket is kept."},
    {NULL},
};

static PyMemberDef entrance_members[] = {
    {"lock", T_OBJECT_EX, offsetof(Submission, lock)},
    {"_waiting", T_OBJECT_EX, offsetof(Submission, waiting)},
    {"_group", T_OBJECT_EX, offsetof(Submission, group)},
    {"_stalled", T_OBJECT_EX, offsetof(Submission, stalled)},
    {"_verbs", T_OBJECT_EX, offsetof(Submission, verbs)},
    {"clock", T_OBJECT_EX, offsetof(Submission, clock)},
    {"_outbox", T_OBJECT_EX, offsetof(Submission, outbox)},
    {"fence", T_OBJECT_EX, offsetof(Submission, fence)},
    {"_hold", T_OBJECT_EX, offsetof(Submission, hold)},
    {"_write_single", T_OBJECT_EX, offsetof(Submission, write)},
    {"_pend_single", T_OBJECT_EX, offsetof(Submission, pend)},
    {"_sync_single", T_OBJECT_EX, offsetof(Submission, sync)},
    {"_sync_by", T_LONGLONG, offsetof(Submission, sync_by)},
    {"_ticket", T_LONGLONG, offsetof(Submission, ticket)},
    {"_deferred", T_LONGLONG, offsetof(Submission, deferred)},
    {"_fence_until", T_DOUBLE, offsetof(Submission, fence_until)},
    {"_closed", T_BOOL, offsetof(Submission, closed)},
    {"_must_sync", T_BOOL, offsetof(Submission, must_sync)},
    {"_syncs", T_BOOL, offsetof(Submission, syncs)},
    {"_gathers", T_BOOL, offsetof(Submission, gathers)},
    {"_replicates", T_BOOL, offsetof(Submission, replicates)},
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
    "remuda.native._submission.Submission", sizeof(Submission), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, entrance_slots,
};

static int fill(PyObject *made)
{
    const Name names[] = {{&name_acquire, "acquire"}, {&name_release, "release"}, {&name_failure, "failure"},
                          {&name_busy, "busy"}, {&name_reached, "reached"}, {&name_wait, "wait"},
                          {&name_check_caller, "_check_caller"}, {&name_refuse, "_refuse"}, {&name_change, "_change"},
                          {&name_mend, "_mend"}, {&name_keep_somehow, "_keep_somehow"},
                          {&name_pass_or_fail, "_pass_or_fail"}, {&name_defer, "_defer"}, {&name_locked, "locked"},
                          {&name_lock, "_lock"}, {&name_places, "_places"}, {&name_leader, "_leader"},
                          {&name_alone, "_alone"}, {&name_company, "_company"}, {&name_leave, "_leave"},
                          {&name_sync_failed, "_sync_failed"}};
    if (intern(names, sizeof names / sizeof *names) < 0 ||
        (nothing_yet == NULL && (nothing_yet = PyLong_FromLong(0)) == NULL))
        return -1;
    if (add_type(made, "Mutex", &mutex_spec) < 0 ||
        (mutex_type = (PyTypeObject *)PyObject_GetAttrString(made, "Mutex")) == NULL)
        return -1;
    return add_type(made, "Submission", &entrance_spec);
}

REMUDA_MODULE(_submission, NULL, fill)
