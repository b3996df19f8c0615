/* A delivery in a consumer's hands, as far as it is made: as `PlainHanded` in `remuda/broker/delivery.py`, which says what
   everything means. */

#include "fields.h"

enum { QUEUE, CONSUMER, LEASE, RUNS, FIELDS };
static const char *const DISPATCH[FIELDS] = {"queue", "consumer", "lease", "runs"};

static PyTypeObject *dispatch_type, *handed_type;
static Py_ssize_t in_dispatch[FIELDS];

typedef struct {
    PyObject_HEAD
    PyObject *dispatch, *messages, *settle, *track, *begin, *offsets;
    PyObject *fields[FIELDS]; /* of the dispatch */
} Handed;

#define OBJECTS(visit)                                                                                                 \
    visit(self->dispatch);                                                                                             \
    visit(self->messages);                                                                                             \
    visit(self->settle);                                                                                               \
    visit(self->track);                                                                                                \
    visit(self->begin);                                                                                                \
    visit(self->offsets);                                                                                              \
    for (int at = 0; at < FIELDS; at++)                                                                                \
        visit(self->fields[at])

static int handed_traverse(Handed *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    OBJECTS(Py_VISIT);
    return 0;
}

static int handed_clear(Handed *self)
{
    OBJECTS(Py_CLEAR);
    return 0;
}

static void handed_dealloc(Handed *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    handed_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static void fill_delivery(Handed *self, PyObject *dispatch, PyObject *messages, PyObject *settle, PyObject *track)
{
    Py_XSETREF(self->dispatch, Py_NewRef(dispatch));
    Py_XSETREF(self->messages, Py_NewRef(messages));
    Py_XSETREF(self->settle, Py_NewRef(settle));
    Py_XSETREF(self->track, Py_NewRef(track));
    Py_XSETREF(self->begin, Py_NewRef(Py_None));
    Py_XSETREF(self->offsets, Py_NewRef(Py_None));
    for (int at = 0; at < FIELDS; at++)
        Py_XSETREF(self->fields[at], Py_XNewRef(field(dispatch, in_dispatch[at])));
}

static int handed_init(Handed *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dispatch", "messages", "settle", "track", NULL};
    PyObject *dispatch, *messages, *settle, *track = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O", names, &dispatch, &messages, &settle, &track))
        return -1;
    if (dispatch_type == NULL || !PyObject_TypeCheck(dispatch, dispatch_type)) {
        PyErr_Format(PyExc_TypeError, "a delivery is made of a dispatch, not of %.100s", Py_TYPE(dispatch)->tp_name);
        return -1;
    }
    fill_delivery(self, dispatch, messages, settle, track);
    return 0;
}

/* As the class does when it is called, without tuples of arguments. */
static PyObject *deliver(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 5 || handed_type == NULL || !PyType_Check(args[0]) ||
        !PyType_IsSubtype((PyTypeObject *)args[0], handed_type) || dispatch_type == NULL ||
        !PyObject_TypeCheck(args[1], dispatch_type)) {
        PyErr_SetString(PyExc_TypeError, "deliver takes a kind of delivery, a dispatch, messages, and two calls");
        return NULL;
    }
    PyTypeObject *kind = (PyTypeObject *)args[0];
    Handed *made = (Handed *)kind->tp_alloc(kind, 0);
    if (made != NULL)
        fill_delivery(made, args[1], args[2], args[3], args[4]);
    return (PyObject *)made;
}

static PyMemberDef handed_members[] = {
    {"_dispatch", T_OBJECT_EX, offsetof(Handed, dispatch)},
    {"messages", T_OBJECT_EX, offsetof(Handed, messages)},
    {"_settle", T_OBJECT_EX, offsetof(Handed, settle)},
    {"_track", T_OBJECT_EX, offsetof(Handed, track)},
    {"_begin", T_OBJECT_EX, offsetof(Handed, begin)},
    {"_offsets", T_OBJECT_EX, offsetof(Handed, offsets)},
    {"queue", T_OBJECT_EX, offsetof(Handed, fields[QUEUE])},
    {"consumer", T_OBJECT_EX, offsetof(Handed, fields[CONSUMER])},
    {"lease", T_OBJECT_EX, offsetof(Handed, fields[LEASE])},
    {"runs", T_OBJECT_EX, offsetof(Handed, fields[RUNS])},
    {NULL},
};

static PyType_Slot handed_slots[] = {
    {Py_tp_doc, "A delivery in a consumer's hands."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, handed_init},
    {Py_tp_dealloc, handed_dealloc},
    {Py_tp_traverse, handed_traverse},
    {Py_tp_clear, handed_clear},
    {Py_tp_members, handed_members},
    {0, NULL},
};

static PyType_Spec handed_spec = {
    "remuda.native._deliveries.Handed", sizeof(Handed), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    handed_slots,
};

static PyObject *set_dispatch(PyObject *module, PyObject *type)
{
    if (places_of(type, DISPATCH, in_dispatch, FIELDS) < 0)
        return NULL;
    Py_XSETREF(dispatch_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_dispatch", set_dispatch, METH_O, "Tell what a dispatch is."},
    {"deliver", (PyCFunction)(void (*)(void))deliver, METH_FASTCALL, "Make a delivery, of one of the two kinds."},
    {NULL},
};

static int fill(PyObject *made)
{
    PyObject *type = PyType_FromSpec(&handed_spec);
    if (type == NULL)
        return -1;
    Py_XSETREF(handed_type, (PyTypeObject *)type);
    return PyModule_AddObjectRef(made, "Handed", type);
}

REMUDA_MODULE(_deliveries, methods, fill)
