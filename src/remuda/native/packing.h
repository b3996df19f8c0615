/* The payload of a record of messages or events, as `remuda/log/tail/record_codec.py` encodes it: msgpack, the same bytes.

   No code of Python runs meanwhile, and nothing raises: what is out of the ordinary is unfit, and left to Python. */

#ifndef REMUDA_PACKING
#define REMUDA_PACKING

#include "fields.h"

#include <stdint.h>
#include <string.h>

enum { DEPTH = 4 };

enum { EVENT_FIELDS = 13 };
static const char *const EVENT[EVENT_FIELDS] = {"queue", "state", "first", "count", "consumer", "attempt", "reason",
                                                "due", "ahead", "who", "priority", "detail", "to"};
enum { EVENT_STATE = 1, EVENT_FIRST = 2, EVENT_COUNT = 3 };

enum { EVENTS_FIRST, EVENTS_TIME, EVENTS_ROWS, EVENTS_FIELDS };
static const char *const EVENTS_NAMES[EVENTS_FIELDS] = {"first", "time", "rows"};

enum { APPENDED_FIRST, APPENDED_CREATED, APPENDED_MESSAGES, APPENDED_QUEUES, APPENDED_DIGEST, APPENDED_PRODUCER,
       APPENDED_SEQUENCE, APPENDED_FIELDS };
static const char *const APPENDED[APPENDED_FIELDS] = {"first", "created", "messages", "queues", "digest", "producer",
                                                      "sequence"};

enum { BODIES, NAME, IDS, TOPICS, OBJECT, KEY, TIMESTAMP, MIME_TYPE, HEADERS, PRIORITY, CREATED, EXPIRES, DUE, WIRE,
       MESSAGES_FIELDS };
static const char *const COLUMNS[MESSAGES_FIELDS] = {"bodies", "name", "ids", "topics", "object", "key", "timestamp",
                                                     "mime_type", "headers", "priority", "created", "expires", "due",
                                                     "wire"};

typedef struct {
    PyTypeObject *appended, *events, *event, *messages, *state;
    PyObject *mime_type;           /* which is not written */
    PyObject *start, *stop, *step; /* what the numbers of a range are called */
    Py_ssize_t in_appended[APPENDED_FIELDS], in_events[EVENTS_FIELDS], in_event[EVENT_FIELDS],
        in_messages[MESSAGES_FIELDS];
} Known;

static Known known;

typedef struct {
    unsigned char *at, *end;
} Packed;

static inline int room_for(Packed *out, size_t size) { return (size_t)(out->end - out->at) >= size; }

static inline void big(unsigned char *at, uint64_t value, int bytes)
{
    while (bytes--) {
        at[bytes] = (unsigned char)value;
        value >>= 8;
    }
}

/* The first byte, and a number of as many bytes behind it. */
static int put_head(Packed *out, unsigned char code, uint64_t value, int bytes)
{
    if (!room_for(out, (size_t)bytes + 1))
        return 0;
    *out->at = code;
    big(out->at + 1, value, bytes);
    out->at += bytes + 1;
    return 1;
}

static int put_number(Packed *out, long long number)
{
    uint64_t value = (uint64_t)number;
    if (number >= 0) {
        if (number <= 0x7f)
            return put_head(out, (unsigned char)number, 0, 0);
        if (number <= 0xff)
            return put_head(out, 0xcc, value, 1);
        if (number <= 0xffff)
            return put_head(out, 0xcd, value, 2);
        return number <= 0xffffffffLL ? put_head(out, 0xce, value, 4) : put_head(out, 0xcf, value, 8);
    }
    if (number >= -32)
        return put_head(out, (unsigned char)number, 0, 0);
    if (number >= -0x80)
        return put_head(out, 0xd0, value, 1);
    if (number >= -0x8000)
        return put_head(out, 0xd1, value, 2);
    return number >= -0x80000000LL ? put_head(out, 0xd2, value, 4) : put_head(out, 0xd3, value, 8);
}

static int put_bytes(Packed *out, const char *data, Py_ssize_t size)
{
    if (!room_for(out, (size_t)size))
        return 0;
    memcpy(out->at, data, (size_t)size);
    out->at += size;
    return 1;
}

static int put_text(Packed *out, PyObject *text)
{
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data == NULL) {
        PyErr_Clear();
        return 0;
    }
    int headed = size < 32        ? put_head(out, (unsigned char)(0xa0 | size), 0, 0)
                 : size <= 0xff   ? put_head(out, 0xd9, (uint64_t)size, 1)
                 : size <= 0xffff ? put_head(out, 0xda, (uint64_t)size, 2)
                                  : put_head(out, 0xdb, (uint64_t)size, 4);
    return headed && put_bytes(out, data, size);
}

static int put_length(Packed *out, Py_ssize_t length, unsigned char few, unsigned char many)
{
    if (length < 16)
        return put_head(out, (unsigned char)(few | length), 0, 0);
    return length <= 0xffff && put_head(out, many, (uint64_t)length, 2);
}

static int put_value(Packed *out, PyObject *value, int depth)
{
    long long number;
    if (value == NULL || depth > DEPTH)
        return 0;
    if (value == Py_None)
        return put_head(out, 0xc0, 0, 0);
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type)
        return is_number(value, &number) && put_number(out, number);
    if (type == &PyUnicode_Type || type == known.state)
        return put_text(out, value);
    if (type == &PyBool_Type)
        return put_head(out, value == Py_True ? 0xc3 : 0xc2, 0, 0);
    if (type == &PyBytes_Type) {
        Py_ssize_t size = PyBytes_GET_SIZE(value);
        int headed = size <= 0xff     ? put_head(out, 0xc4, (uint64_t)size, 1)
                     : size <= 0xffff ? put_head(out, 0xc5, (uint64_t)size, 2)
                                      : 0;
        return headed && put_bytes(out, PyBytes_AS_STRING(value), size);
    }
    if (type == &PyTuple_Type || type == &PyList_Type) {
        Py_ssize_t length = PySequence_Fast_GET_SIZE(value);
        int fits = put_length(out, length, 0x90, 0xdc);
        for (Py_ssize_t at = 0; fits && at < length; at++)
            fits = put_value(out, PySequence_Fast_GET_ITEM(value, at), depth + 1);
        return fits;
    }
    if (type == &PyDict_Type) {
        PyObject *key, *text;
        Py_ssize_t at = 0;
        int fits = put_length(out, PyDict_GET_SIZE(value), 0x80, 0xde);
        while (fits && PyDict_Next(value, &at, &key, &text))
            fits = PyUnicode_CheckExact(key) && put_text(out, key) && put_value(out, text, depth + 1);
        return fits;
    }
    if (type == known.event) {
        int fits = put_length(out, EVENT_FIELDS, 0x90, 0xdc);
        for (int at = 0; fits && at < EVENT_FIELDS; at++)
            fits = put_value(out, field(value, known.in_event[at]), depth + 1);
        return fits;
    }
    return 0;
}

/* A range of ids, as its three numbers; or whatever else stands there. */
static int put_ids(Packed *out, PyObject *ids)
{
    PyObject *const parts[] = {known.start, known.stop, known.step};
    if (ids == NULL || Py_TYPE(ids) != &PyRange_Type)
        return put_value(out, ids, 1);
    int fits = put_length(out, 3, 0x90, 0xdc);
    for (int at = 0; fits && at < 3; at++) {
        PyObject *part = PyObject_GetAttr(ids, parts[at]);
        if (part == NULL) {
            PyErr_Clear();
            return 0;
        }
        fits = put_value(out, part, 1);
        Py_DECREF(part);
    }
    return fits;
}

static inline int put_appended(Packed *out, PyObject *record, long long position)
{
    PyObject *messages = field(record, known.in_appended[APPENDED_MESSAGES]);
    if (messages == NULL || Py_TYPE(messages) != known.messages)
        return 0;
#define OF(name) field(record, known.in_appended[name])
#define COLUMN(name) field(messages, known.in_messages[name])
    PyObject *bodies = COLUMN(BODIES), *headers = COLUMN(HEADERS), *mime_type = COLUMN(MIME_TYPE),
             *stamps = COLUMN(CREATED);
    long long created, stamp;
    if (bodies == NULL || !PyList_CheckExact(bodies) || headers == NULL || !PyDict_CheckExact(headers) ||
        mime_type == NULL || !PyUnicode_CheckExact(mime_type) || !is_number(OF(APPENDED_CREATED), &created) ||
        !is_number(stamps, &stamp))
        return 0;
    int usual = mime_type == known.mime_type || PyUnicode_Compare(mime_type, known.mime_type) == 0;
    return put_length(out, 22, 0x90, 0xdc) && put_number(out, position) && put_value(out, OF(APPENDED_FIRST), 1) &&
           put_number(out, PyList_GET_SIZE(bodies)) && put_number(out, created) && put_value(out, COLUMN(NAME), 1) &&
           put_value(out, OF(APPENDED_QUEUES), 1) && put_ids(out, COLUMN(IDS)) && put_value(out, COLUMN(TOPICS), 1) &&
           put_value(out, COLUMN(OBJECT), 1) && put_value(out, COLUMN(KEY), 1) && put_value(out, COLUMN(TIMESTAMP), 1) &&
           put_value(out, usual ? Py_None : mime_type, 1) &&
           put_value(out, PyDict_GET_SIZE(headers) ? headers : Py_None, 1) && put_value(out, COLUMN(PRIORITY), 1) &&
           put_value(out, COLUMN(EXPIRES), 1) && put_value(out, COLUMN(DUE), 1) &&
           put_value(out, OF(APPENDED_DIGEST), 1) &&
           put_value(out, stamp == 0 || stamp == created ? Py_None : stamps, 1) && put_value(out, COLUMN(WIRE), 1) &&
           put_value(out, OF(APPENDED_PRODUCER), 1) && put_value(out, OF(APPENDED_SEQUENCE), 1) &&
           put_value(out, bodies, 1);
#undef OF
#undef COLUMN
}

static inline int put_events(Packed *out, PyObject *record, long long offset)
{
    int fits = put_length(out, 2, 0x90, 0xdc) && put_number(out, offset) && put_length(out, EVENTS_FIELDS, 0x90, 0xdc);
    for (int at = 0; fits && at < EVENTS_FIELDS; at++)
        fits = put_value(out, field(record, known.in_events[at]), 1);
    return fits;
}

/* What the numbers of a range are called. */
static inline int know_ranges(void)
{
    const Name names[] = {{&known.start, "start"}, {&known.stop, "stop"}, {&known.step, "step"}};
    return intern(names, sizeof names / sizeof *names);
}

/* Tell what the records are. */
static inline int know(PyObject *appended, PyObject *events, PyObject *event, PyObject *messages, PyObject *state,
                PyObject *mime_type)
{
    Known told = known;
    if (places_of(appended, APPENDED, told.in_appended, APPENDED_FIELDS) < 0 ||
        places_of(events, EVENTS_NAMES, told.in_events, EVENTS_FIELDS) < 0 ||
        places_of(event, EVENT, told.in_event, EVENT_FIELDS) < 0 ||
        places_of(messages, COLUMNS, told.in_messages, MESSAGES_FIELDS) < 0)
        return -1;
    if (!PyType_Check(state) || !PyType_IsSubtype((PyTypeObject *)state, &PyUnicode_Type) ||
        !PyUnicode_CheckExact(mime_type)) {
        PyErr_SetString(PyExc_TypeError, "states are texts, and so is a type of content");
        return -1;
    }
    if (know_ranges() < 0)
        return -1;
    Known before = known;
    told.start = known.start, told.stop = known.stop, told.step = known.step;
    told.appended = (PyTypeObject *)Py_NewRef(appended);
    told.events = (PyTypeObject *)Py_NewRef(events);
    told.event = (PyTypeObject *)Py_NewRef(event);
    told.messages = (PyTypeObject *)Py_NewRef(messages);
    told.state = (PyTypeObject *)Py_NewRef(state);
    told.mime_type = Py_NewRef(mime_type);
    known = told;
    Py_XDECREF(before.appended);
    Py_XDECREF(before.events);
    Py_XDECREF(before.event);
    Py_XDECREF(before.messages);
    Py_XDECREF(before.state);
    Py_XDECREF(before.mime_type);
    return 0;
}

#endif
