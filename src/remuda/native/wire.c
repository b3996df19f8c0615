/* One message on the wire, and its receipt: as `remuda/broker/shared/wire/wire_frames.py`, which says what everything means, and
   sent and received without letting go of the interpreter.

   What is out of the ordinary is left to Python: then nothing was sent, or what came is given as it is. */

#include "packing.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { HEAD = 5, SINGLE = 9, RECEIPT = 42, SINGLE_FIELDS = 19, FEW = 15, LITTLE = 1 << 16 };
enum { AT_ONCE = MSG_DONTWAIT | MSG_NOSIGNAL };

enum { P_MESSAGES, P_QUEUE, P_UNBOUND, P_EXCHANGE, P_OPTIONS, P_SPOOLED, P_PRODUCER, P_SEQUENCE, P_FIELDS };
static const char *const PUBLISH[P_FIELDS] = {"messages", "queue", "unbound", "exchange", "options", "spooled",
                                              "producer", "sequence"};
enum {
    R_FIRST, R_GIVEN, R_REFUSALS, R_UNCHANGED, R_WATCH, R_DIFFERS, R_UNROUTABLE, R_PARTLY, R_REPEATED, R_BY_KEY, R_FIELDS
};
static const char *const GIVEN[R_FIELDS] = {"first", "given", "refusals", "unchanged", "watch", "differs", "unroutable",
                                            "partly_refused", "repeated", "by_key"};

static PyTypeObject *publish_type, *receipt_type, *pending_type;
static Py_ssize_t in_publish[P_FIELDS], in_receipt[R_FIELDS];

/* Whoever uses this runs no code of Python before it is done with it. */
static unsigned char buffer[LITTLE];

/* Put a length and a kind before a payload. Gives the size of both. */
static Py_ssize_t framed(Packed *out, unsigned char kind)
{
    Py_ssize_t size = out->at - buffer;
    big(buffer, (uint64_t)(size - HEAD), 4);
    buffer[4] = kind;
    return size;
}

/* The frame of a publish of one message, in the buffer; 0 if it is none of which every column is one value. */
static Py_ssize_t put_single(PyObject *request, PyObject *command)
{
    Packed out = {buffer + HEAD, buffer + sizeof buffer};
    if (publish_type == NULL || Py_TYPE(command) != publish_type)
        return 0;
    PyObject *messages = field(command, in_publish[P_MESSAGES]), *columns[MESSAGES_FIELDS];
    if (messages == NULL || Py_TYPE(messages) != known.messages || field(command, in_publish[P_OPTIONS]) != Py_None)
        return 0;
    for (int at = 0; at < MESSAGES_FIELDS; at++)
        if ((columns[at] = field(messages, known.in_messages[at])) == NULL ||
            (PyList_CheckExact(columns[at]) && at != BODIES))
            return 0;
    if (!PyList_CheckExact(columns[BODIES]) || PyList_GET_SIZE(columns[BODIES]) != 1 || columns[IDS] != Py_None ||
        !PyDict_CheckExact(columns[HEADERS]))
        return 0;
    int fits = put_length(&out, SINGLE_FIELDS, 0x90, 0xdc) && put_value(&out, request, 1);
    for (int at = P_QUEUE; fits && at <= P_OPTIONS; at++)
        fits = put_value(&out, field(command, in_publish[at]), 1);
    for (int at = 0; fits && at < MESSAGES_FIELDS; at++)
        fits = put_value(&out, columns[at], 1);
    return fits ? framed(&out, SINGLE) : 0;
}

static PyObject *single_frame(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "single_frame takes a number and a command");
        return NULL;
    }
    Py_ssize_t size = put_single(args[0], args[1]);
    return size ? PyBytes_FromStringAndSize((char *)buffer, size) : Py_NewRef(Py_None);
}

static int is_empty(PyObject *value)
{
    return value != NULL && (PyDict_CheckExact(value)    ? PyDict_GET_SIZE(value) == 0
                             : PyTuple_CheckExact(value) ? PyTuple_GET_SIZE(value) == 0
                                                         : 0);
}

static PyObject *receipt_frame(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Packed out = {buffer + HEAD, buffer + sizeof buffer};
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "receipt_frame takes a number and a receipt");
        return NULL;
    }
    if (receipt_type == NULL || Py_TYPE(args[1]) != receipt_type)
        Py_RETURN_NONE;
#define OF(name) field(args[1], in_receipt[name])
    int plain = OF(R_WATCH) == Py_None && OF(R_REPEATED) == Py_None && is_empty(OF(R_REFUSALS)) &&
                is_empty(OF(R_UNCHANGED)) && is_empty(OF(R_DIFFERS)) && is_empty(OF(R_UNROUTABLE)) &&
                is_empty(OF(R_PARTLY)) && is_empty(OF(R_BY_KEY));
    if (!plain || !put_length(&out, 3, 0x90, 0xdc) || !put_value(&out, args[0], 1) ||
        !put_value(&out, OF(R_FIRST), 1) || !put_ids(&out, OF(R_GIVEN)))
        Py_RETURN_NONE;
#undef OF
    return PyBytes_FromStringAndSize((char *)buffer, framed(&out, RECEIPT));
}

/* What came, value by value. Every one of these is 0 where something else stands there; never an error. */
typedef struct {
    const unsigned char *at, *end;
} Came;

static int get_big(Came *in, int bytes, uint64_t *value)
{
    if (in->end - in->at < bytes)
        return 0;
    for (*value = 0; bytes--; in->at++)
        *value = *value << 8 | *in->at;
    return 1;
}

static int get_code(Came *in, unsigned char *code) { return in->at < in->end ? (*code = *in->at++, 1) : 0; }

static int get_number(Came *in, long long *number)
{
    unsigned char code;
    uint64_t value;
    if (!get_code(in, &code))
        return 0;
    if (code <= 0x7f || code >= 0xe0) {
        *number = (signed char)code;
        return 1;
    }
    if (code >= 0xcc && code <= 0xcf) {
        if (!get_big(in, 1 << (code - 0xcc), &value) || value > LLONG_MAX)
            return 0;
        *number = (long long)value;
        return 1;
    }
    if (code < 0xd0 || code > 0xd3 || !get_big(in, 1 << (code - 0xd0), &value))
        return 0;
    *number = code == 0xd0   ? (int8_t)value
              : code == 0xd1 ? (int16_t)value
              : code == 0xd2 ? (int32_t)value
                             : (long long)value;
    return 1;
}

/* Bytes behind a code and a length of one, two or four. */
static const char *get_bytes(Came *in, int least, unsigned char few, Py_ssize_t *size)
{
    unsigned char code;
    uint64_t length;
    if (!get_code(in, &code))
        return NULL;
    if (few && code >= few && code < few + 32)
        length = code - few;
    else if (code < least || code > least + 2 || !get_big(in, 1 << (code - least), &length))
        return NULL;
    if ((uint64_t)(in->end - in->at) < length)
        return NULL;
    *size = (Py_ssize_t)length;
    in->at += length;
    return (const char *)in->at - length;
}

static PyObject *get_text(Came *in)
{
    Py_ssize_t size;
    const char *data = get_bytes(in, 0xd9, 0xa0, &size);
    if (data == NULL)
        return NULL;
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    if (text == NULL)
        PyErr_Clear(); /* Python tells what is wrong with it */
    return text;
}

static int is_nothing(Came *in) { return in->at < in->end && *in->at == 0xc0 ? (in->at++, 1) : 0; }

static PyObject *get_text_or_nothing(Came *in) { return is_nothing(in) ? Py_NewRef(Py_None) : get_text(in); }

static PyObject *get_whole(Came *in)
{
    long long number;
    PyObject *whole = get_number(in, &number) ? PyLong_FromLongLong(number) : NULL;
    if (whole == NULL)
        PyErr_Clear();
    return whole;
}

static PyObject *get_whole_or_nothing(Came *in) { return is_nothing(in) ? Py_NewRef(Py_None) : get_whole(in); }

static PyObject *get_nothing(Came *in) { return is_nothing(in) ? Py_NewRef(Py_None) : NULL; }

static PyObject *get_body(Came *in)
{
    Py_ssize_t size;
    unsigned char code;
    const char *data = get_code(in, &code) && code == 0x91 ? get_bytes(in, 0xc4, 0, &size) : NULL;
    PyObject *bodies = data == NULL ? NULL : PyList_New(1), *body = NULL;
    if (bodies != NULL && (body = PyBytes_FromStringAndSize(data, size)) == NULL)
        Py_CLEAR(bodies);
    if (bodies == NULL)
        PyErr_Clear();
    else
        PyList_SET_ITEM(bodies, 0, body);
    return bodies;
}

static PyObject *get_topics(Came *in)
{
    unsigned char code;
    if (!get_code(in, &code) || code < 0x90 || code > 0x90 + FEW)
        return NULL;
    PyObject *topics = PyTuple_New(code - 0x90);
    for (int at = 0; topics != NULL && at < code - 0x90; at++) {
        PyObject *topic = get_text(in);
        if (topic == NULL)
            Py_CLEAR(topics);
        else
            PyTuple_SET_ITEM(topics, at, topic);
    }
    return topics;
}

static PyObject *get_headers(Came *in)
{
    unsigned char code;
    if (!get_code(in, &code) || code < 0x80 || code > 0x80 + FEW)
        return NULL;
    PyObject *headers = PyDict_New();
    for (int left = code - 0x80; headers != NULL && left--;) {
        PyObject *name = get_text(in), *value = name == NULL ? NULL : get_text(in);
        if (value == NULL || PyDict_SetItem(headers, name, value) < 0)
            Py_CLEAR(headers);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    return headers;
}

/* The columns of one message, in their order. */
static PyObject *(*const GET[MESSAGES_FIELDS])(Came *) = {
    get_body, get_text, get_nothing, get_topics, get_text_or_nothing, get_text_or_nothing, get_whole_or_nothing,
    get_text, get_headers, get_whole, get_whole, get_whole_or_nothing, get_whole_or_nothing, get_nothing,
};

/* The command of a frame that is all that came; NULL without an error if it is something else. */
static PyObject *published(PyObject *data, PyObject *producer)
{
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    Came in = {bytes, bytes + size};
    uint64_t length, fields;
    long long request;
    PyObject *values[MESSAGES_FIELDS] = {NULL}, *said[P_FIELDS] = {NULL}, *command = NULL;
    int given = 0, fits = publish_type != NULL && size > HEAD && get_big(&in, 4, &length) &&
                          length == (uint64_t)(size - HEAD) && *in.at++ == SINGLE && in.at < in.end &&
                          *in.at++ == 0xdc && get_big(&in, 2, &fields) && fields == SINGLE_FIELDS &&
                          get_number(&in, &request);
    for (int at = P_QUEUE; fits && at <= P_EXCHANGE; at++)
        fits = (said[at] = get_text_or_nothing(&in)) != NULL;
    fits = fits && is_nothing(&in);
    for (; fits && given < MESSAGES_FIELDS; given++)
        fits = (values[given] = GET[given](&in)) != NULL;
    if (fits && in.at == in.end) {
        said[P_MESSAGES] = PyObject_Vectorcall((PyObject *)known.messages, values, MESSAGES_FIELDS, NULL);
        said[P_OPTIONS] = Py_NewRef(Py_None);
        said[P_SPOOLED] = Py_NewRef(Py_None);
        said[P_PRODUCER] = Py_NewRef(producer);
        said[P_SEQUENCE] = PyLong_FromLongLong(request);
        if (said[P_MESSAGES] != NULL && said[P_SEQUENCE] != NULL)
            command = PyObject_Vectorcall((PyObject *)publish_type, said, P_FIELDS, NULL);
    }
    PyErr_Clear(); /* whatever it was, Python comes across it again */
    for (int at = 0; at < MESSAGES_FIELDS; at++)
        Py_XDECREF(values[at]);
    for (int at = 0; at < P_FIELDS; at++)
        Py_XDECREF(said[at]);
    return command;
}

static PyObject *publish_of(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "publish_of takes what came, and a producer");
        return NULL;
    }
    PyObject *command = published(args[0], args[1]);
    return command != NULL ? command : Py_NewRef(args[0]);
}

/* Sockets */

static int handle_of(PyObject *value, int *handle)
{
    long long number;
    if (!is_number(value, &number) || number < INT_MIN || number > INT_MAX) {
        PyErr_SetString(PyExc_TypeError, "a socket's handle is a number");
        return 0;
    }
    *handle = (int)number;
    return 1;
}

static PyObject *send_bytes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    int handle;
    if (given != 2 || !PyBytes_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "send takes a socket's handle and bytes");
        return NULL;
    }
    if (!handle_of(args[0], &handle))
        return NULL;
    ssize_t sent = send(handle, PyBytes_AS_STRING(args[1]), (size_t)PyBytes_GET_SIZE(args[1]), AT_ONCE);
    return sent < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(sent);
}

static PyObject *receive(PyObject *module, PyObject *value)
{
    int handle;
    if (!handle_of(value, &handle))
        return NULL;
    ssize_t size = recv(handle, buffer, sizeof buffer, AT_ONCE);
    return size < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyBytes_FromStringAndSize((char *)buffer, size);
}

static PyObject *receive_publish(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "receive_publish takes a socket's handle and a producer");
        return NULL;
    }
    PyObject *data = receive(module, args[0]), *command = data == NULL ? NULL : published(data, args[1]);
    if (command == NULL)
        return data;
    Py_DECREF(data);
    return command;
}

static PyObject *send_single(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    int handle;
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "send_single takes a socket's handle, a number and a command");
        return NULL;
    }
    if (!handle_of(args[0], &handle))
        return NULL;
    Py_ssize_t size = put_single(args[1], args[2]);
    if (!size)
        Py_RETURN_NONE;
    ssize_t sent = send(handle, buffer, (size_t)size, AT_ONCE);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    sent = sent < 0 ? 0 : sent;
    return PyBytes_FromStringAndSize((char *)buffer + sent, size - sent);
}

/* Where a message stands, and under which id, if a receipt for this number is all that is in the buffer. */
static int is_receipt(ssize_t size, long long wanted, long long *first, long long *ids)
{
    Came in = {buffer, buffer + size};
    uint64_t length;
    unsigned char code;
    long long number;
    return size > HEAD && get_big(&in, 4, &length) && length == (uint64_t)(size - HEAD) && *in.at++ == RECEIPT &&
           get_code(&in, &code) && code == 0x93 && get_number(&in, &number) && number == wanted &&
           get_number(&in, first) && get_code(&in, &code) && code == 0x93 && get_number(&in, ids) &&
           get_number(&in, ids + 1) && get_number(&in, ids + 2) && ids[2] != 0 && in.at == in.end;
}

static PyObject *plain_pending(long long first, const long long *ids)
{
    PyObject *given = PyObject_CallFunction((PyObject *)&PyRange_Type, "LLL", ids[0], ids[1], ids[2]);
    PyObject *offset = PyLong_FromLongLong(first), *refusals = PyDict_New(), *kept = PyLong_FromLong(0);
    PyObject *receipt = NULL, *pending = NULL;
    if (given != NULL && offset != NULL && refusals != NULL && kept != NULL) {
        PyObject *fields[] = {offset, given, refusals};
        receipt = PyObject_Vectorcall((PyObject *)receipt_type, fields, 3, NULL);
    }
    if (receipt != NULL) {
        PyObject *fields[] = {receipt, kept};
        pending = PyObject_Vectorcall((PyObject *)pending_type, fields, 2, NULL);
    }
    Py_XDECREF(given);
    Py_XDECREF(offset);
    Py_XDECREF(refusals);
    Py_XDECREF(kept);
    Py_XDECREF(receipt);
    return pending;
}

static PyObject *receive_receipt(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long wanted, milliseconds, first, ids[3];
    int handle, ready;
    if (given != 3 || !is_number(args[1], &wanted) || !is_number(args[2], &milliseconds) || receipt_type == NULL) {
        PyErr_SetString(PyExc_TypeError, "receive_receipt takes a socket's handle, a number and milliseconds");
        return NULL;
    }
    if (!handle_of(args[0], &handle))
        return NULL;
    struct pollfd watched = {handle, POLLIN, 0};
    int patience = milliseconds > INT_MAX ? INT_MAX : milliseconds < 0 ? 0 : (int)milliseconds;
    /* In `recv` it would be woken twice: also when the host takes what was sent. */
    Py_BEGIN_ALLOW_THREADS
    ready = poll(&watched, 1, patience);
    Py_END_ALLOW_THREADS
    if (ready < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (ready <= 0)
        return PyErr_CheckSignals() < 0 ? NULL : Py_NewRef(Py_None);
    ssize_t size = recv(handle, buffer, sizeof buffer, AT_ONCE);
    if (size < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Py_NewRef(Py_None)
                                                                         : PyErr_SetFromErrno(PyExc_OSError);
    return is_receipt(size, wanted, &first, ids) ? plain_pending(first, ids)
                                                 : PyBytes_FromStringAndSize((char *)buffer, size);
}

static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *publish, *messages, *receipt, *pending;
    Py_ssize_t of_publish[P_FIELDS], of_messages[MESSAGES_FIELDS], of_receipt[R_FIELDS];
    if (!PyArg_ParseTuple(args, "OOOO", &publish, &messages, &receipt, &pending) ||
        places_of(publish, PUBLISH, of_publish, P_FIELDS) < 0 ||
        places_of(messages, COLUMNS, of_messages, MESSAGES_FIELDS) < 0 ||
        places_of(receipt, GIVEN, of_receipt, R_FIELDS) < 0 || know_ranges() < 0)
        return NULL;
    if (!PyType_Check(pending)) {
        PyErr_Format(PyExc_TypeError, "%R is no class", pending);
        return NULL;
    }
    memcpy(in_publish, of_publish, sizeof of_publish);
    memcpy(known.in_messages, of_messages, sizeof of_messages);
    memcpy(in_receipt, of_receipt, sizeof of_receipt);
    Py_XSETREF(publish_type, (PyTypeObject *)Py_NewRef(publish));
    Py_XSETREF(known.messages, (PyTypeObject *)Py_NewRef(messages));
    Py_XSETREF(receipt_type, (PyTypeObject *)Py_NewRef(receipt));
    Py_XSETREF(pending_type, (PyTypeObject *)Py_NewRef(pending));
    Py_RETURN_NONE;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"single_frame", FAST(single_frame), "The frame of a publish of one message; None for others."},
    {"receipt_frame", FAST(receipt_frame), "The answer to a publish of which there is no more to tell; None for others."},
    {"publish_of", FAST(publish_of), "The publish of one message, if its frame is all that came; else what came."},
    {"send", FAST(send_bytes), "Send as much as the system takes now, and tell how much that was."},
    {"receive", receive, METH_O, "What has come; nothing at the end."},
    {"receive_publish", FAST(receive_publish), "The publish of one message, if that is what has come; else what has."},
    {"send_single", FAST(send_single),
     "Send the publish of one message, and give what of it the system does not take now; None if it is no such one."},
    {"receive_receipt", FAST(receive_receipt),
     "Wait for the receipt of a publish. Gives what came, if it is something else; None after that time."},
    {"set_up", set_up, METH_VARARGS, "Tell what a publish, a batch, a receipt and an outcome are."},
    {NULL},
};

static int fill(PyObject *made)
{
    (void)made;
    return know_ranges();
}

REMUDA_MODULE(_wire, methods, fill)
