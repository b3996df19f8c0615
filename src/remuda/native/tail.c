/* Where a log stands, and the short way of a single record to its file.

   One call encodes a record, frames it and writes it, as `Log.append_now` does in Python. Whatever is out of the
   ordinary, an error of the disk included, is left to Python: then nothing was done, and 0 is the answer.
   The layout of a frame is told in `remuda/log/tail/tail_frames.py`. */

#include "packing.h"

#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little-endian"
#endif

enum { MARKER = 8, HEADER = 25, NUMBERED = 9, SMALL = 32 * 1024, MESSAGES = 6, EVENTS = 7, NEIGHBOURS = 6 };
enum { HELD = 256 * 1024 };
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

static PyObject *name_written, *name_position, *name_note, *name_high, *name_low, *name_nearby;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

typedef struct {
    PyObject_HEAD
    long long next_offset, next_position, number, byte, direct_until, full, room;
    int handle; /* where single records are written; -1 while they are not */
    double distrusted_until;
    PyObject *segment, *index; /* to which records go */
    PyObject *file;            /* into which they are written by the short way */
    PyObject *block; /* what the index has open: for either kind up to its byte, and with `group` noted last */
    long long messages_end, events_end, group;
    unsigned char marker[MARKER];
    unsigned char *frame;
    unsigned char *holder; /* frames that are part of the segment, and of which `held` bytes nobody has yet */
    long long held;
    char in_order; /* whether what is held now stands behind all else */
    char unsynced; /* whether something was written to the segment since it was last synced */
} Tail;

static PyObject *tail_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Tail *self = (Tail *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->handle = -1;
    self->in_order = 1;
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
    self->messages_end = self->events_end = 0;
    return 0;
}

static void tail_dealloc(Tail *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tail_clear(self);
    PyMem_Free(self->frame);
    PyMem_Free(self->holder);
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

static int set_number(PyObject *owner, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL)
        return -1;
    int failed = PyObject_SetAttr(owner, name, value);
    Py_DECREF(value);
    return failed;
}

/* Encode a record that begins where the log stands, and say how far it takes the counters; 0 if it is not such a one,
   or does not fit. */
static int encoded(Tail *self, PyObject *record, Packed *out, unsigned char *kind, Py_ssize_t *messages,
                   Py_ssize_t *events)
{
    long long first;
    PyTypeObject *type = Py_TYPE(record);
    *messages = *events = 0;
    if (known.events == NULL)
        return 0;
    if (type == known.events) {
        PyObject *rows = field(record, known.in_events[EVENTS_ROWS]);
        if (rows == NULL || !PyList_CheckExact(rows) || !is_number(field(record, known.in_events[EVENTS_FIRST]), &first) ||
            first != self->next_position)
            return 0;
        *kind = EVENTS;
        *events = PyList_GET_SIZE(rows);
        return put_events(out, record, self->next_offset);
    }
    if (type == known.appended) {
        PyObject *batch = field(record, known.in_appended[APPENDED_MESSAGES]);
        if (batch == NULL || Py_TYPE(batch) != known.messages ||
            !is_number(field(record, known.in_appended[APPENDED_FIRST]), &first) || first != self->next_offset)
            return 0;
        *kind = MESSAGES;
        if (!put_appended(out, record, self->next_position))
            return 0;
        *messages = PyList_GET_SIZE(field(batch, known.in_messages[BODIES]));
        return 1;
    }
    return 0;
}

/* Whether the index, as far as it has a block open, knows already what a record tells, or a number in it says it. */
static int is_noted(Tail *self, PyObject *record, unsigned char kind)
{
    long long number, low, high, count;
    if (kind == EVENTS) {
        PyObject *rows = field(record, known.in_events[EVENTS_ROWS]);
        Py_ssize_t length = PyList_GET_SIZE(rows);
        for (Py_ssize_t at = 0; at < length; at++) {
            PyObject *row = PyList_GET_ITEM(rows, at);
            if (Py_TYPE(row) != known.event || !is_number(field(row, known.in_event[EVENT_FIRST]), &number) ||
                !is_number(field(row, known.in_event[EVENT_COUNT]), &count) || count != 1 ||
                number >> NEIGHBOURS != self->group)
                return 0;
        }
        return length > 0;
    }
    int noted = 0;
    PyObject *ids = field(field(record, known.in_appended[APPENDED_MESSAGES]), known.in_messages[IDS]);
    Py_ssize_t length = ids != NULL && Py_TYPE(ids) == &PyRange_Type ? PyObject_Length(ids) : 0;
    if (length < 0) {
        noted = -1;
    } else if (length == 1) {
        if (get_number(ids, known.start, &number) < 0 || get_number(self->block, name_low, &low) < 0 ||
            get_number(self->block, name_high, &high) < 0)
            noted = -1;
        else if (number > high && number >= low)
            noted = set_number(self->block, name_high, number) < 0 ? -1 : 1;
    }
    if (noted < 0 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear(); /* a block without numbers, or an id that is none of ours */
        noted = 0;
    }
    return noted;
}

static int note(Tail *self, PyObject *record, unsigned char kind, long long start)
{
    int noted = start < (kind == EVENTS ? self->events_end : self->messages_end) ? is_noted(self, record, kind) : 0;
    if (noted != 0 || self->index == Py_None)
        return noted < 0 ? -1 : 0;
    PyObject *index = Py_NewRef(self->index), *place = PyLong_FromLongLong(start), *nearby = NULL, *block;
    PyObject *done = place == NULL ? NULL : PyObject_CallMethodObjArgs(index, name_note, record, place, NULL);
    if (done != NULL)
        nearby = PyObject_CallMethodNoArgs(index, name_nearby);
    long long messages_end, events_end, group;
    int told = nearby != NULL && PyArg_ParseTuple(nearby, "OLLL", &block, &messages_end, &events_end, &group);
    if (told) {
        Py_XSETREF(self->block, Py_NewRef(block));
        self->messages_end = messages_end;
        self->events_end = events_end;
        self->group = group;
    }
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
    self->unsynced = 1;
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

/* Put the frame of a record there, where there is room for a small one. Gives its size; 0 if it is none that fits. */
static Py_ssize_t make_frame(Tail *self, PyObject *record, unsigned char *frame, Step *step)
{
    Packed out = {frame + HEADER, frame + SMALL};
    step->size = 0;
    if (!encoded(self, record, &out, &step->kind, &step->messages, &step->events) ||
        self->next_offset > LLONG_MAX - step->messages || self->next_position > LLONG_MAX - step->events ||
        self->number == LLONG_MAX)
        return 0; /* Python tells that the counters end here */
    uint32_t length = (uint32_t)(out.at - frame - HEADER), crc;
    uint64_t number = (uint64_t)self->number;
    unsigned char numbered[NUMBERED];
    memcpy(numbered, &number, 8);
    numbered[8] = step->kind;
    crc = ~crc_of(crc_of(~0u, numbered, NUMBERED), frame + HEADER, length);
    memcpy(frame, self->marker, MARKER);
    memcpy(frame + 8, &number, 8);
    memcpy(frame + 16, &length, 4);
    memcpy(frame + 20, &crc, 4);
    frame[24] = step->kind;
    return step->size = HEADER + (Py_ssize_t)length;
}

/* The record in the buffer is part of the log. */
static void go_on(Tail *self, const Step *step)
{
    self->next_offset += step->messages;
    self->next_position += step->events;
    self->number++;
    self->byte += step->size;
    self->room = self->byte < self->full ? self->room - step->size : 0;
}

static PyObject *tail_write_single(Tail *self, PyObject *record)
{
    Step step;
    long long before;
    if (self->handle < 0 || self->byte <= 0 || self->byte >= self->direct_until || self->held)
        return PyLong_FromLong(0);
    PyObject *segment = Py_NewRef(self->segment), *file = Py_NewRef(self->file), *size = NULL, *end = NULL;
    if (get_number(segment, name_written, &before) < 0)
        goto end;
    if (before != self->byte || make_frame(self, record, self->frame, &step) == 0) {
        size = PyLong_FromLong(0);
        goto end;
    }
    /* All that can fail comes before the write: what is written counts, and nobody is told otherwise. A record that is
       noted and not written is noted again, at the same place, when it is. */
    if ((size = PyLong_FromSsize_t(step.size)) == NULL || (end = PyLong_FromLongLong(before + step.size)) == NULL ||
        note(self, record, step.kind, self->byte) < 0) {
        Py_CLEAR(size);
        goto end;
    }
    /* Where this fails, Python writes the same to the same place, and tells why it cannot. */
    if (self->handle < 0 || written(self, (size_t)step.size) != step.size) {
        Py_SETREF(size, PyLong_FromLong(0));
        goto end;
    }
    go_on(self, &step);
    if (PyObject_SetAttr(segment, name_written, end) < 0 || PyObject_SetAttr(file, name_position, end) < 0)
        Py_CLEAR(size);
end:
    Py_XDECREF(end);
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
    if (args[0] != self->segment || self->byte <= 0 || self->byte >= self->full || self->held ||
        make_frame(self, args[1], self->frame, &step) == 0)
        Py_RETURN_NONE;
    PyObject *frame = PyBytes_FromStringAndSize((char *)self->frame, step.size);
    if (frame != NULL && note(self, args[1], step.kind, self->byte) < 0)
        Py_CLEAR(frame);
    if (frame != NULL)
        go_on(self, &step);
    return frame;
}

static PyObject *tail_hold_single(Tail *self, PyObject *record)
{
    Step step;
    if (!self->in_order || self->segment == NULL || self->byte <= 0 || self->byte >= self->full ||
        self->held > HELD - SMALL)
        return PyLong_FromLong(0);
    if (self->holder == NULL && (self->holder = PyMem_Malloc(HELD)) == NULL)
        return PyErr_NoMemory();
    if (make_frame(self, record, self->holder + self->held, &step) == 0 || step.size > self->room)
        return PyLong_FromLong(0);
    PyObject *size = PyLong_FromSsize_t(step.size);
    if (size == NULL || note(self, record, step.kind, self->byte) < 0) {
        Py_XDECREF(size);
        return NULL;
    }
    self->held += step.size;
    go_on(self, &step);
    return size;
}

static PyObject *tail_let_go(Tail *self, PyObject *unused)
{
    PyObject *frames = PyBytes_FromStringAndSize((char *)self->holder, self->held);
    if (frames != NULL)
        self->held = 0;
    return frames;
}

static PyMethodDef tail_methods[] = {
    {"go_to", (PyCFunction)tail_go_to, METH_VARARGS, "Records go to this segment from now on."},
    {"arm", (PyCFunction)tail_arm, METH_VARARGS, "The file of a segment is open, and single records may be written to it."},
    {"disarm", (PyCFunction)tail_disarm, METH_NOARGS, "Single records are not written by the short way from now on."},
    {"frame_single", (PyCFunction)(void (*)(void))tail_frame_single, METH_FASTCALL,
     "The frame of a small record, which is part of this segment from now on. None, and nothing is done, for others."},
    {"hold_single", (PyCFunction)tail_hold_single, METH_O,
     "Hold the frame of a small record, which is part of the log from now on; gives its size. 0, and nothing is done, "
     "for others, and where there is no room."},
    {"let_go", (PyCFunction)tail_let_go, METH_NOARGS, "The frames that were held."},
    {"write_single", (PyCFunction)tail_write_single, METH_O,
     "Write a small record, when nothing is pending; gives its size. 0, and nothing is done, where that does not hold."},
    {NULL},
};

static PyMemberDef tail_members[] = {
    {"next_offset", T_LONGLONG, offsetof(Tail, next_offset)},
    {"next_position", T_LONGLONG, offsetof(Tail, next_position)},
    {"_number", T_LONGLONG, offsetof(Tail, number)},
    {"_byte", T_LONGLONG, offsetof(Tail, byte)},
    {"_direct_until", T_LONGLONG, offsetof(Tail, direct_until)},
    {"_full", T_LONGLONG, offsetof(Tail, full)},
    {"room", T_LONGLONG, offsetof(Tail, room)},
    {"_held", T_LONGLONG, offsetof(Tail, held), READONLY},
    {"_in_order", T_BOOL, offsetof(Tail, in_order)},
    {"unsynced", T_BOOL, offsetof(Tail, unsynced)},
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
    PyObject *appended, *events, *event, *messages, *state, *mime_type;
    if (!PyArg_ParseTuple(args, "OOOOOO", &appended, &events, &event, &messages, &state, &mime_type) ||
        know(appended, events, event, messages, state, mime_type) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Tell what the log's records are."},
    {NULL},
};

static int fill(PyObject *made)
{
    const Name names[] = {{&name_written, "written"}, {&name_position, "_position"}, {&name_note, "note"},
                          {&name_high, "high"}, {&name_low, "low"}, {&name_nearby, "nearby"}};
    make_crc_table();
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        crc_of = crc_by_processor;
#endif
    return intern(names, sizeof names / sizeof *names) < 0 ? -1 : add_type(made, "Tail", &tail_spec);
}

REMUDA_MODULE(_tail, methods, fill)
