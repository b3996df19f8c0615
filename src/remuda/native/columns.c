/* Whether nothing needs to be looked at more closely: a message as a caller gives it, a command that publishes it, and a
   name. Each has a twin in `remuda/model`, which says what it means. */

#include "fields.h"

enum { MAX_NAME = 255, MAX_PRIORITY = 31 };

/* The fields of a message, in their order; and the columns of a batch. */
enum { M_NAME, M_BODY, M_ID, M_TOPICS, M_OBJECT, M_KEY, M_TIMESTAMP, M_MIME_TYPE, M_HEADERS, M_PRIORITY, M_CREATED,
       M_EXPIRES, M_DUE, M_WIRE, M_FIELDS };
static const char *const MESSAGE[M_FIELDS] = {"name", "body", "id", "topics", "object", "key", "timestamp", "mime_type",
                                              "headers", "priority", "created", "expires", "due", "wire"};

static const char *const PUBLISH[] = {"messages", "queue"};

enum { ALL = 14 };
static const char *const COLUMNS[ALL] = {"bodies", "name", "ids", "topics", "object", "key", "timestamp", "mime_type",
                                         "headers", "priority", "created", "expires", "due", "wire"};
enum { C_IDS = 2, C_CREATED = 10 };

static PyTypeObject *message_type, *batch_type, *publish_type;
static PyObject *usually; /* what is cleared after a request: none */
static Py_ssize_t in_message[M_FIELDS], in_columns[ALL];

static int is_ascii(PyObject *text) { return PyUnicode_CheckExact(text) && PyUnicode_IS_COMPACT_ASCII(text); }

static int are_plain(PyObject *headers)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(headers, &at, &name, &value))
        if (!is_ascii(name) || !is_ascii(value))
            return 0;
    return 1;
}

static PyObject *of_plain(PyObject *module, PyObject *message)
{
    if (message_type == NULL || Py_TYPE(message) != message_type)
        Py_RETURN_NONE;
    PyObject *values[M_FIELDS];
    for (int at = 0; at < M_FIELDS; at++)
        if ((values[at] = field(message, in_message[at])) == NULL)
            Py_RETURN_NONE;
    if (!is_ascii(values[M_NAME]) || !PyBytes_CheckExact(values[M_BODY]) || !PyUnicode_CheckExact(values[M_ID]) ||
        PyUnicode_GET_LENGTH(values[M_ID]) || !PyTuple_CheckExact(values[M_TOPICS]) ||
        PyTuple_GET_SIZE(values[M_TOPICS]) || values[M_OBJECT] != Py_None || values[M_KEY] != Py_None ||
        values[M_TIMESTAMP] != Py_None || !is_ascii(values[M_MIME_TYPE]) || !PyDict_CheckExact(values[M_HEADERS]) ||
        !PyLong_CheckExact(values[M_PRIORITY]) || !PyLong_CheckExact(values[M_CREATED]) ||
        values[M_EXPIRES] != Py_None || values[M_DUE] != Py_None || values[M_WIRE] != Py_None)
        Py_RETURN_NONE;
    long long priority;
    if (!is_number(values[M_PRIORITY], &priority) || priority < 0 || priority > MAX_PRIORITY ||
        !are_plain(values[M_HEADERS]))
        Py_RETURN_NONE;
    /* The caller may go on with its own headers. */
    PyObject *bodies = PyList_New(1), *headers = PyDict_Copy(values[M_HEADERS]), *batch = NULL;
    if (bodies != NULL && headers != NULL) {
        PyList_SET_ITEM(bodies, 0, Py_NewRef(values[M_BODY]));
        PyObject *columns[] = {bodies, values[M_NAME], Py_None, values[M_TOPICS], values[M_OBJECT], values[M_KEY],
                               values[M_TIMESTAMP], values[M_MIME_TYPE], headers, values[M_PRIORITY],
                               values[M_CREATED]};
        batch = PyObject_Vectorcall((PyObject *)batch_type, columns, sizeof columns / sizeof *columns, NULL);
    }
    Py_XDECREF(headers);
    Py_XDECREF(bodies);
    return batch;
}

static PyObject *with_id(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long first, step;
    if (given != 4 || batch_type == NULL || Py_TYPE(args[0]) != batch_type || !is_number(args[1], &first) ||
        !is_number(args[2], &step) || !PyLong_CheckExact(args[3])) {
        PyErr_SetString(PyExc_TypeError, "with_id takes messages, a first id, what lies between two, and the time");
        return NULL;
    }
    PyObject *columns[ALL], *messages = NULL, *ids = NULL, *next = PyNumber_Add(args[1], args[2]);
    if (next != NULL) {
        PyObject *bounds[] = {args[1], next, args[2]};
        ids = PyObject_Vectorcall((PyObject *)&PyRange_Type, bounds, 3, NULL);
        Py_DECREF(next);
    }
    if (ids == NULL)
        return NULL;
    for (int at = 0; at < ALL; at++)
        columns[at] = at == C_IDS ? ids : at == C_CREATED ? args[3] : field(args[0], in_columns[at]);
    messages = PyObject_Vectorcall((PyObject *)batch_type, columns, ALL, NULL);
    Py_DECREF(ids);
    return messages;
}

static int is_ordinary(PyObject *name)
{
    if (!is_ascii(name) || PyUnicode_GET_LENGTH(name) < 1 || PyUnicode_GET_LENGTH(name) > MAX_NAME)
        return 0;
    const unsigned char *letters = PyUnicode_1BYTE_DATA(name);
    for (Py_ssize_t at = 0; at < PyUnicode_GET_LENGTH(name); at++)
        if (letters[at] < 0x20 || letters[at] > 0x7e)
            return 0;
    return 1;
}

static PyObject *is_name(PyObject *module, PyObject *value) { return PyBool_FromLong(is_ordinary(value)); }

static PyObject *plain_publish(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 6) {
        PyErr_SetString(PyExc_TypeError, "plain_publish takes a message and five options");
        return NULL;
    }
    for (int at = 2; at < 6; at++)
        if (args[at] != Py_None)
            Py_RETURN_NONE;
    if (publish_type == NULL || (args[1] != Py_None && !is_ordinary(args[1])))
        Py_RETURN_NONE;
    PyObject *batch = of_plain(module, args[0]);
    if (batch == NULL || batch == Py_None)
        return batch;
    PyObject *fields[] = {batch, args[1]};
    PyObject *command = PyObject_Vectorcall((PyObject *)publish_type, fields, 2, NULL);
    Py_DECREF(batch);
    return command;
}

/* As `is_name`, and that all else of a request is as usual. */
static PyObject *is_plain_pull(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long count, timeout;
    if (given != 5) {
        PyErr_SetString(PyExc_TypeError, "is_plain_pull takes a queue, a count, newest, clear_after and a timeout");
        return NULL;
    }
    if (args[2] != Py_False || !is_number(args[1], &count) || count < 1 || count >= 1LL << 62 ||
        !is_number(args[4], &timeout) || timeout != 0 || !PyUnicode_CheckExact(args[3]) ||
        (args[3] != usually && PyUnicode_Compare(args[3], usually) != 0))
        Py_RETURN_FALSE;
    return is_name(module, args[0]);
}

static PyObject *set_messages(PyObject *module, PyObject *args)
{
    PyObject *message, *batch;
    Py_ssize_t places[M_FIELDS];
    if (!PyArg_ParseTuple(args, "OO", &message, &batch) || places_of(message, MESSAGE, places, M_FIELDS) < 0 ||
        places_of(batch, COLUMNS, in_columns, ALL) < 0)
        return NULL;
    memcpy(in_message, places, sizeof places);
    Py_XSETREF(message_type, (PyTypeObject *)Py_NewRef(message));
    Py_XSETREF(batch_type, (PyTypeObject *)Py_NewRef(batch));
    Py_RETURN_NONE;
}

static PyObject *set_publish(PyObject *module, PyObject *publish)
{
    Py_ssize_t places[2];
    if (places_of(publish, PUBLISH, places, 2) < 0)
        return NULL;
    Py_XSETREF(publish_type, (PyTypeObject *)Py_NewRef(publish));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"of_plain", of_plain, METH_O, "The columns of one message of which nothing needs to be checked; None for others."},
    {"with_id", (PyCFunction)(void (*)(void))with_id, METH_FASTCALL,
     "The same message with an id, from a first one on, and the time it came in."},
    {"is_name", is_name, METH_O, "Whether a name is of ordinary letters, as most are."},
    {"plain_publish", (PyCFunction)(void (*)(void))plain_publish, METH_FASTCALL,
     "The command that publishes one message of which nothing needs to be checked; None for others."},
    {"is_plain_pull", (PyCFunction)(void (*)(void))is_plain_pull, METH_FASTCALL,
     "Whether a request for messages asks for nothing special, and does not wait."},
    {"set_messages", set_messages, METH_VARARGS, "Tell what a message and a batch are."},
    {"set_publish", set_publish, METH_O, "Tell what the command is."},
    {NULL},
};

static int fill(PyObject *made)
{
    const Name names[] = {{&usually, "none"}};
    return intern(names, 1);
}

REMUDA_MODULE(_columns, methods, fill)
