/* Where a log stands, and the short way of a single record to its file.

   One call encodes a record, frames it and writes it, as `Log.append_now` does in Python. Whatever is out of the
   ordinary, an error of the disk included, is left to Python: then nothing was done, and 0 is the answer.
   The layout of a frame is told in `remuda/log/frames.py`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little-endian"
#endif

enum { MARKER = 8, HEADER = 25, NUMBERED = 9, SMALL = 32 * 1024, MESSAGES = 6, EVENTS = 7, NEIGHBOURS = 6 };
#define STALL 0.05
#define DISTRUST 10.0

/* CRC-32C, by the processor's own instruction where it has one. */

static uint32_t crc_table[256];

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        crc_table[byte] = crc;
    }
}

static uint32_t crc_by_table(uint32_t crc, const unsigned char *data, size_t size)
{
    while (size--)
        crc = crc_table[(crc ^ *data++) & 0xff] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_processor(uint32_t crc, const unsigned char *data, size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t eight;
        memcpy(&eight, data, 8);
        wide = __builtin_ia32_crc32di(wide, eight);
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

static uint32_t (*crc_of)(uint32_t, const unsigned char *, size_t) = crc_by_table;

/* What the log's records are, and how they are encoded: told once, by `set_up`. */

static PyObject *appended_type, *events_type, *encode_appended, *encode_events;
static PyObject *name_first, *name_rows, *name_bodies, *name_messages, *name_written, *name_position, *name_note,
    *name_count, *name_ids, *name_start, *name_high, *name_low, *name_nearby;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

typedef struct {
    PyObject_HEAD
    long long next_offset, next_position, number, byte, half, full, room;
    int handle; /* where single records are written; -1 while they are not */
    double distrusted_until;
    PyObject *segment, *index; /* to which records go */
    PyObject *file;            /* into which they are written by the short way */
    PyObject *block; /* what the index has open: up to byte `block_end`, and with `group` noted last */
    long long block_end, group;
    unsigned char marker[MARKER];
    unsigned char *frame;
} Tail;

static PyObject *tail_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Tail *self = (Tail *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->handle = -1;
    self->frame = PyMem_Malloc(SMALL);
    if (self->frame == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int tail_traverse(Tail *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->segment);
    Py_VISIT(self->file);
    Py_VISIT(self->index);
    Py_VISIT(self->block);
    return 0;
}

static int tail_clear(Tail *self)
{
    self->handle = -1;
    Py_CLEAR(self->segment);
    Py_CLEAR(self->file);
    Py_CLEAR(self->index);
    Py_CLEAR(self->block);
    self->block_end = 0;
    return 0;
}

static void tail_dealloc(Tail *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tail_clear(self);
    PyMem_Free(self->frame);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *tail_disarm(Tail *self, PyObject *unused)
{
    self->handle = -1;
    Py_CLEAR(self->file);
    Py_RETURN_NONE;
}

static PyObject *tail_arm(Tail *self, PyObject *args)
{
    PyObject *segment, *file;
    int handle;
    if (!PyArg_ParseTuple(args, "OOi", &segment, &file, &handle))
        return NULL;
    if (segment == self->segment && handle >= 0) {
        Py_XSETREF(self->file, Py_NewRef(file));
        self->handle = handle;
    }
    Py_RETURN_NONE;
}

static PyObject *tail_go_to(Tail *self, PyObject *args)
{
    PyObject *segment, *index;
    Py_buffer marker;
    if (!PyArg_ParseTuple(args, "OOy*", &segment, &index, &marker))
        return NULL;
    int right = marker.len == MARKER;
    if (right)
        memcpy(self->marker, marker.buf, MARKER);
    PyBuffer_Release(&marker);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "a segment's marker has 8 bytes");
        return NULL;
    }
    tail_clear(self);
    self->segment = Py_NewRef(segment);
    self->index = Py_NewRef(index);
    Py_RETURN_NONE;
}

static int get_number(PyObject *owner, PyObject *name, long long *number)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL)
        return -1;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static Py_ssize_t get_length(PyObject *owner, PyObject *name)
{
    PyObject *list = PyObject_GetAttr(owner, name);
    if (list == NULL)
        return -1;
    Py_ssize_t length = PyObject_Length(list);
    Py_DECREF(list);
    return length;
}

static int set_number(PyObject *owner, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL)
        return -1;
    int failed = PyObject_SetAttr(owner, name, value);
    Py_DECREF(value);
    return failed;
}

/* The payload of a record that begins where the log stands, and how far it takes the counters; NULL without an error if
   it is not such a one. */
static PyObject *encoded(Tail *self, PyObject *record, unsigned char *kind, Py_ssize_t *messages, Py_ssize_t *events)
{
    long long first;
    *messages = *events = 0;
    PyTypeObject *type = Py_TYPE(record);
    if (type == (PyTypeObject *)events_type) {
        if (get_number(record, name_first, &first) < 0 || first != self->next_position)
            return NULL;
        *kind = EVENTS;
        if ((*events = get_length(record, name_rows)) < 0)
            return NULL;
        PyObject *offset = PyLong_FromLongLong(self->next_offset);
        PyObject *pair = offset == NULL ? NULL : PyTuple_Pack(2, offset, record);
        PyObject *payload = pair == NULL ? NULL : PyObject_CallOneArg(encode_events, pair);
        Py_XDECREF(pair);
        Py_XDECREF(offset);
        return payload;
    }
    if (type == (PyTypeObject *)appended_type) {
        if (get_number(record, name_first, &first) < 0 || first != self->next_offset)
            return NULL;
        *kind = MESSAGES;
        PyObject *batch = PyObject_GetAttr(record, name_messages);
        if (batch == NULL)
            return NULL;
        *messages = get_length(batch, name_bodies);
        Py_DECREF(batch);
        PyObject *position = *messages < 0 ? NULL : PyLong_FromLongLong(self->next_position);
        PyObject *payload = position == NULL ? NULL : PyObject_CallFunctionObjArgs(encode_appended, record, position, NULL);
        Py_XDECREF(position);
        return payload;
    }
    return NULL;
}

/* Whether the index, as far as it has a block open, knows already what a record tells, or a number in it says it. */
static int is_noted(Tail *self, PyObject *record, unsigned char kind)
{
    long long number, low, high, count;
    int noted = 0;
    if (kind == EVENTS) {
        PyObject *rows = PyObject_GetAttr(record, name_rows);
        if (rows == NULL)
            return -1;
        Py_ssize_t length = noted = PyList_CheckExact(rows) ? (int)PyList_GET_SIZE(rows) : 0;
        for (Py_ssize_t at = 0; noted > 0 && at < length; at++) {
            PyObject *row = PyList_GET_ITEM(rows, at);
            if (get_number(row, name_first, &number) < 0 || get_number(row, name_count, &count) < 0)
                noted = -1;
            else
                noted = count == 1 && number >> NEIGHBOURS == self->group;
        }
        Py_DECREF(rows);
        return noted;
    }
    PyObject *batch = PyObject_GetAttr(record, name_messages);
    PyObject *ids = batch == NULL ? NULL : PyObject_GetAttr(batch, name_ids);
    Py_XDECREF(batch);
    if (ids == NULL)
        return -1;
    if (Py_TYPE(ids) == &PyRange_Type && PyObject_Length(ids) == 1) {
        if (get_number(ids, name_start, &number) < 0 || get_number(self->block, name_low, &low) < 0 ||
            get_number(self->block, name_high, &high) < 0)
            noted = -1;
        else if (number > high && number >= low)
            noted = set_number(self->block, name_high, number) < 0 ? -1 : 1;
    }
    Py_DECREF(ids);
    if (noted < 0 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear(); /* a block without numbers, or an id that is none of ours */
        noted = 0;
    }
    return noted;
}

static int note(Tail *self, PyObject *record, unsigned char kind, long long start)
{
    int noted = start < self->block_end ? is_noted(self, record, kind) : 0;
    if (noted != 0 || self->index == Py_None)
        return noted < 0 ? -1 : 0;
    PyObject *index = Py_NewRef(self->index), *place = PyLong_FromLongLong(start), *nearby = NULL, *block;
    PyObject *done = place == NULL ? NULL : PyObject_CallMethodObjArgs(index, name_note, record, place, NULL);
    if (done != NULL)
        nearby = PyObject_CallMethodNoArgs(index, name_nearby);
    int told = nearby != NULL && PyArg_ParseTuple(nearby, "OLL", &block, &self->block_end, &self->group);
    if (told)
        Py_XSETREF(self->block, Py_NewRef(block));
    Py_XDECREF(nearby);
    Py_XDECREF(done);
    Py_XDECREF(place);
    Py_DECREF(index);
    return told ? 0 : -1;
}

/* A small write is over before another thread has woken up, so the interpreter is kept; unless the disk made one wait. */
static ssize_t written(Tail *self, size_t size)
{
    double began = now();
    ssize_t done;
    if (began < self->distrusted_until) {
        Py_BEGIN_ALLOW_THREADS
        done = pwrite(self->handle, self->frame, size, (off_t)self->byte);
        Py_END_ALLOW_THREADS
    } else {
        done = pwrite(self->handle, self->frame, size, (off_t)self->byte);
    }
    double ended = now();
    if (ended - began > STALL)
        self->distrusted_until = ended + DISTRUST;
    return done;
}

/* A record on its way: its kind, and how far it takes the counters. */
typedef struct {
    unsigned char kind;
    Py_ssize_t messages, events, size;
} Step;

/* Put the frame of a record into the buffer. Gives its size; 0 if it is none that fits, and -1 after an error. */
static Py_ssize_t make_frame(Tail *self, PyObject *record, Step *step)
{
    step->size = 0;
    PyObject *payload = encoded(self, record, &step->kind, &step->messages, &step->events);
    if (payload == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyBytes_CheckExact(payload) || HEADER + PyBytes_GET_SIZE(payload) > SMALL) {
        Py_DECREF(payload);
        return 0;
    }
    uint32_t length = (uint32_t)PyBytes_GET_SIZE(payload), crc;
    uint64_t number = (uint64_t)self->number;
    unsigned char *frame = self->frame, numbered[NUMBERED];
    memcpy(numbered, &number, 8);
    numbered[8] = step->kind;
    memcpy(frame + HEADER, PyBytes_AS_STRING(payload), length);
    Py_DECREF(payload);
    crc = ~crc_of(crc_of(~0u, numbered, NUMBERED), frame + HEADER, length);
    memcpy(frame, self->marker, MARKER);
    memcpy(frame + 8, &number, 8);
    memcpy(frame + 16, &length, 4);
    memcpy(frame + 20, &crc, 4);
    frame[24] = step->kind;
    return step->size = HEADER + (Py_ssize_t)length;
}

/* The record in the buffer is part of the log. */
static int go_on(Tail *self, PyObject *record, const Step *step)
{
    long long start = self->byte;
    self->next_offset += step->messages;
    self->next_position += step->events;
    self->number++;
    self->byte += step->size;
    self->room -= step->size;
    return note(self, record, step->kind, start);
}

static PyObject *tail_write_single(Tail *self, PyObject *record)
{
    Step step;
    long long before;
    if (self->handle < 0 || self->byte <= 0 || self->byte >= self->half)
        return PyLong_FromLong(0);
    /* Python code runs meanwhile, and may disarm this. */
    PyObject *segment = Py_NewRef(self->segment), *file = Py_NewRef(self->file), *size = NULL;
    if (get_number(segment, name_written, &before) < 0)
        goto end;
    if (before == self->byte && make_frame(self, record, &step) < 0)
        goto end;
    /* Where this fails, Python writes the same to the same place, and tells why it cannot. */
    if (before != self->byte || step.size == 0 || self->handle < 0 || written(self, (size_t)step.size) != step.size)
        size = PyLong_FromLong(0);
    else if (set_number(segment, name_written, before + step.size) == 0 &&
             set_number(file, name_position, before + step.size) == 0 && go_on(self, record, &step) == 0)
        size = PyLong_FromSsize_t(step.size);
end:
    Py_DECREF(segment);
    Py_DECREF(file);
    return size;
}

static PyObject *tail_frame_single(Tail *self, PyObject *const *args, Py_ssize_t count)
{
    Step step;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "frame_single takes a segment and a record");
        return NULL;
    }
    if (args[0] != self->segment || self->byte <= 0 || self->byte >= self->full)
        Py_RETURN_NONE;
    if (make_frame(self, args[1], &step) < 0)
        return NULL;
    if (step.size == 0)
        Py_RETURN_NONE;
    PyObject *frame = PyBytes_FromStringAndSize((char *)self->frame, step.size);
    if (frame != NULL && go_on(self, args[1], &step) < 0)
        Py_CLEAR(frame);
    return frame;
}

static PyMethodDef tail_methods[] = {
    {"go_to", (PyCFunction)tail_go_to, METH_VARARGS, "Records go to this segment from now on."},
    {"arm", (PyCFunction)tail_arm, METH_VARARGS, "The file of a segment is open, and single records may be written to it."},
    {"disarm", (PyCFunction)tail_disarm, METH_NOARGS, "Single records are not written by the short way from now on."},
    {"frame_single", (PyCFunction)(void (*)(void))tail_frame_single, METH_FASTCALL,
     "The frame of a small record, which is part of this segment from now on. None, and nothing is done, for others."},
    {"write_single", (PyCFunction)tail_write_single, METH_O,
     "Write a small record, when nothing is pending; gives its size. 0, and nothing is done, where that does not hold."},
    {NULL},
};

static PyMemberDef tail_members[] = {
    {"next_offset", T_LONGLONG, offsetof(Tail, next_offset)},
    {"next_position", T_LONGLONG, offsetof(Tail, next_position)},
    {"_number", T_LONGLONG, offsetof(Tail, number)},
    {"_byte", T_LONGLONG, offsetof(Tail, byte)},
    {"_half", T_LONGLONG, offsetof(Tail, half)},
    {"_full", T_LONGLONG, offsetof(Tail, full)},
    {"room", T_LONGLONG, offsetof(Tail, room)},
    {NULL},
};

static PyType_Slot tail_slots[] = {
    {Py_tp_doc, "Where a log stands, and the short way of a single record to its file."},
    {Py_tp_new, tail_new},
    {Py_tp_dealloc, tail_dealloc},
    {Py_tp_traverse, tail_traverse},
    {Py_tp_clear, tail_clear},
    {Py_tp_methods, tail_methods},
    {Py_tp_members, tail_members},
    {0, NULL},
};

static PyType_Spec tail_spec = {
    "remuda.native._tail.Tail", sizeof(Tail), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tail_slots,
};

static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *parts[4];
    if (!PyArg_ParseTuple(args, "OOOO", &parts[0], &parts[1], &parts[2], &parts[3]))
        return NULL;
    Py_XSETREF(appended_type, Py_NewRef(parts[0]));
    Py_XSETREF(events_type, Py_NewRef(parts[1]));
    Py_XSETREF(encode_appended, Py_NewRef(parts[2]));
    Py_XSETREF(encode_events, Py_NewRef(parts[3]));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Tell what the log's records are, and how they are encoded."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tail", NULL, -1, methods};

PyMODINIT_FUNC PyInit__tail(void)
{
    make_crc_table();
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        crc_of = crc_by_processor;
#endif
    struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_first, "first"}, {&name_rows, "rows"}, {&name_bodies, "bodies"}, {&name_messages, "messages"},
                 {&name_written, "written"}, {&name_position, "_position"}, {&name_note, "note"}, {&name_count, "count"},
                 {&name_ids, "ids"}, {&name_start, "start"}, {&name_high, "high"}, {&name_low, "low"},
                 {&name_nearby, "nearby"}};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if ((*names[at].name = PyUnicode_InternFromString(names[at].text)) == NULL)
            return NULL;
    PyObject *made = PyModule_Create(&module), *type = made == NULL ? NULL : PyType_FromSpec(&tail_spec);
    if (type == NULL || PyModule_AddObjectRef(made, "Tail", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    Py_DECREF(type);
    return made;
}
