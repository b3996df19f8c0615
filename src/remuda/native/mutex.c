/* A lock that is not a queue for the processor.

   A lock of Python's own belongs to a waiting thread from the moment it is released, and that thread may not run before
   it has the interpreter. Whoever released it and comes back meanwhile must wait, gives up the interpreter, and from then
   on every use of the lock costs a switch between threads. Here it is free until a thread takes it that runs, so that
   each thread goes on for as long as the interpreter is its own.

   Its state is changed only with the interpreter held. A thread that was called and found the lock taken gets it handed
   over; once in SLICE, so that those who wait get their turn and the others still do more than one thing in theirs. */

#include "modules.h"

#include <time.h>

#define SLICE 0.005

typedef struct Waiter {
    PyThread_type_lock gate;
    struct Waiter *next;
    unsigned long thread;
    char called, passed_over, owns;
} Waiter;

typedef struct {
    PyObject_HEAD
    Waiter *first;
    double handed_over;
    unsigned long owner; /* the thread that has it, where it is held */
    char held;
} Mutex;

static double monotonic_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void mutex_unlink(Mutex *self, Waiter *waiter)
{
    for (Waiter **at = &self->first; *at != NULL; at = &(*at)->next)
        if (*at == waiter) {
            *at = waiter->next;
            return;
        }
}

static void mutex_call_first(Mutex *self)
{
    if (self->first != NULL && !self->first->called) {
        self->first->called = 1;
        PyThread_release_lock(self->first->gate);
    }
}

static void mutex_let_go(Mutex *self)
{
    Waiter *first = self->first;
    if (first != NULL && first->passed_over) {
        double now = monotonic_seconds();
        if (now - self->handed_over >= SLICE) {
            self->handed_over = now;
            self->first = first->next;
            self->owner = first->thread;
            first->owns = 1;
            if (!first->called)
                PyThread_release_lock(first->gate);
            return;
        }
    }
    self->held = 0;
    mutex_call_first(self);
}

/* What a thread waits with. Its memory is no thread's own: one that ends with the interpreter while it waits leaves it. */
static Waiter *mutex_enqueue(Mutex *self)
{
    Waiter *waiter = PyMem_RawCalloc(1, sizeof *waiter), **at = &self->first;
    if (waiter == NULL || (waiter->gate = PyThread_allocate_lock()) == NULL) {
        PyMem_RawFree(waiter);
        PyErr_NoMemory();
        return NULL;
    }
    PyThread_acquire_lock(waiter->gate, NOWAIT_LOCK);
    waiter->thread = PyThread_get_thread_ident();
    while (*at != NULL)
        at = &(*at)->next;
    return *at = waiter;
}

/* Wait until the lock is ours; -1 after an error, as when a signal's handler raises one. */
static int mutex_wait(Mutex *self)
{
    Waiter *waiter = mutex_enqueue(self);
    int failed = waiter == NULL;
    if (failed)
        return -1;
    while (!waiter->owns) {
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(waiter->gate, -1, 1);
        Py_END_ALLOW_THREADS
        if (waiter->owns)
            break;
        mutex_unlink(self, waiter);
        if (status == PY_LOCK_INTR) {
            /* The handler may want the lock, too. Then this thread does not hear its first call, and nobody may wait
               behind it. */
            if (!self->held)
                mutex_call_first(self);
            if ((failed = Py_MakePendingCalls() < 0))
                break;
        } else {
            waiter->called = 0;
            waiter->passed_over = 1;
        }
        if (self->held) {
            waiter->next = self->first;
            self->first = waiter;
        } else {
            self->held = waiter->owns = 1;
            self->owner = waiter->thread;
        }
    }
    PyThread_free_lock(waiter->gate);
    PyMem_RawFree(waiter);
    return failed ? -1 : 0;
}

static int mutex_take(Mutex *self)
{
    if (self->held)
        return mutex_wait(self);
    self->held = 1;
    self->owner = PyThread_get_thread_ident();
    return 0;
}

static PyObject *mutex_acquire(Mutex *self, PyObject *unused)
{
    return mutex_take(self) < 0 ? NULL : Py_NewRef(Py_True);
}

static PyObject *mutex_release(Mutex *self, PyObject *unused)
{
    if (!self->held) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    mutex_let_go(self);
    Py_RETURN_NONE;
}

static PyObject *mutex_exit(Mutex *self, PyObject *const *error, Py_ssize_t parts)
{
    return mutex_release(self, NULL);
}

static int mutex_is_owned(Mutex *self)
{
    return self->held && self->owner == PyThread_get_thread_ident();
}

static PyObject *mutex_owned(Mutex *self, PyObject *unused)
{
    return PyBool_FromLong(mutex_is_owned(self));
}

static PyObject *mutex_locked(Mutex *self, PyObject *unused)
{
    return PyBool_FromLong(self->held);
}

static void mutex_dealloc(Mutex *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef mutex_methods[] = {
    {"acquire", (PyCFunction)mutex_acquire, METH_NOARGS, "Wait until the lock is this thread's."},
    {"release", (PyCFunction)mutex_release, METH_NOARGS, "Let others have it."},
    {"locked", (PyCFunction)mutex_locked, METH_NOARGS, "Whether somebody has it."},
    {"owned", (PyCFunction)mutex_owned, METH_NOARGS, "Whether this thread has it."},
    {"__enter__", (PyCFunction)mutex_acquire, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))mutex_exit, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot mutex_slots[] = {
    {Py_tp_doc, "A lock for short work of many threads."},
    {Py_tp_dealloc, mutex_dealloc},
    {Py_tp_methods, mutex_methods},
    {0, NULL},
};

static PyType_Spec mutex_spec = {
    "remuda.native._mutex.Mutex", sizeof(Mutex), 0, Py_TPFLAGS_DEFAULT, mutex_slots,
};

static int fill(PyObject *made) { return add_type(made, "Mutex", &mutex_spec); }

REMUDA_MODULE(_mutex, NULL, fill)
