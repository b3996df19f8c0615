"""The table of the API: every operation with its path, its types and its parameters."""

from __future__ import annotations

from typing import Any, Final

from remuda.bus.forgotten import SentAgain
from remuda.index.language import STATE_NAMES
from remuda.model.operations.verbs import VERBS, Verb
from remuda.model.state import State
from remuda.server.http.api import api_types
from remuda.server.http.api.api import Api
from remuda.server.http.api.operations import JSON, NDJSON, Operation, Parameter
from remuda.server.http.search.searching import MAX_PAGE
from remuda.server.http.security.users import Role

_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": (1 << 62)}
_NAMED: Final = f"([{''.join(State)}]+|{'|'.join(STATE_NAMES)})"
_STATES: Final = {"type": "string", "pattern": f"^{_NAMED}(,{_NAMED})*$"}

_FILTERS: Final = (
    Parameter("queue", "Only this queue."),
    Parameter("topic", "A topic prefix: fruit finds fruit.sour, not fruits.x."),
    Parameter("state", "States by letters, such as EIN, or by names, such as dead,moved.", _STATES),
    Parameter("since", "Published at or after this time, in microseconds.", _WHOLE),
    Parameter("until", "Published before this time, in microseconds.", _WHOLE),
    Parameter("object", "The object."),
    Parameter("key", "The key."),
    Parameter("text", "Words in the body."),
)
_PAGING: Final = (
    Parameter("cursor", "Where the page begins: `next` of the previous page."),
    Parameter("limit", "The most entries to return.", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}),
)
_LOG: Final = (
    Parameter("kind", "messages, or events.", {"type": "string", "enum": ["messages", "events"]}),
    Parameter("from", "Begin at this offset, or position for events; at the end by default.", _WHOLE),
    Parameter("since", "Begin at this time, in microseconds.", _WHOLE),
    Parameter("queue", "Only this queue."),
    Parameter("topic", "Only topics under this prefix; for messages."),
    Parameter("state", "Letters of states; for events.", _STATES),
)


def endpoints(api: Api) -> list[Operation]:
    """All operations, in the order in which their paths are matched."""
    operator, queue = Role.OPERATOR, "/api/v1/queues/{name:path}"
    delivery = "/api/v1/deliveries/{token}"
    answers = "/api/v1/deliveries/{token}/{answer:answer}"
    return [
        Operation(
            "POST",
            "/api/v1/messages",
            api.publish,
            "Publish one message, a list, or NDJSON",
            api_types.Published,
            201,
            api_types.NewMessage | list[api_types.NewMessage],
            (
                Parameter("queue", "Publish only to this queue."),
                Parameter("timeout", "How long to wait for a consumer if the queue commits late, such as 5s."),
            ),
            (JSON, NDJSON),
            role=operator,
            problems=(404, 409, 413, 422, 504, 507),
        ),
        Operation(
            "GET",
            "/api/v1/messages",
            api.messages,
            "Search messages, the newest first",
            api_types.MessagePage,
            parameters=(*_FILTERS, *_PAGING),
            problems=(404,),
        ),
        Operation(
            "POST",
            "/api/v1/messages/{id:path}/resend",
            api.resend,
            "Publish a message again, edited",
            api_types.Resent,
            200,
            api_types.ResendRequest,
            role=operator,
            problems=(404, 409, 413),
            optional=True,
        ),
        Operation(
            "POST",
            "/api/v1/messages/{id:path}/cancel",
            api.cancel,
            "Cancel a message; if it is being handled, its handler is interrupted",
            api_types.Cancelled,
            role=operator,
            problems=(404,),
        ),
        Operation(
            "GET",
            "/api/v1/messages/{id:path}",
            api.message,
            "One message's whole life",
            api_types.LifeAnswer,
            problems=(404,),
        ),
        Operation(
            "GET",
            "/api/v1/queues",
            api.queues,
            "All queues by name",
            api_types.QueuePage,
            parameters=(Parameter("prefix", "Only names that begin with this."), *_PAGING),
        ),
        Operation(
            "GET",
            f"{queue}/changes",
            api.changes,
            "What operators did to the queue, newest first: status, options, forgotten messages",
            api_types.Changes,
            problems=(404,),
            parameters=_PAGING[1:],
        ),
        Operation(
            "GET", f"{queue}/dead", api.dead, "Dead letters by exception and place", api_types.Groups, problems=(404,)
        ),
        Operation(
            "POST",
            f"{queue}/pull",
            api.pull,
            "Take messages; answer them with the token of their delivery",
            api_types.Pulled,
            200,
            api_types.PullRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        *(_verb(api, verb, queue) for verb in VERBS.values()),
        Operation(
            "POST",
            f"{queue}/send-again",
            api.send_again,
            "Publish again, under new ids, the dead letters that were forgotten last, or at a time",
            SentAgain,
            200,
            api_types.SendAgainRequest,
            role=operator,
            problems=(404, 409, 413),
            optional=True,
        ),
        Operation("GET", queue, api.queue, "One queue", api_types.QueueAnswer, problems=(404,)),
        Operation(
            "PUT",
            queue,
            api.create,
            "Create a queue with these options",
            api_types.QueueAnswer,
            200,
            dict[str, Any],
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "PATCH",
            queue,
            api.configure,
            "Change a queue's options",
            api_types.QueueAnswer,
            200,
            dict[str, Any],
            role=operator,
            problems=(404, 409),
        ),
        Operation(
            "DELETE",
            queue,
            api.remove,
            "Remove a queue and end its messages",
            None,
            204,
            role=operator,
            problems=(404, 409),
        ),
        Operation(
            "POST",
            f"{delivery}/renew",
            api.renew,
            "Restart the time for an answer",
            api_types.Renewed,
            role=operator,
            problems=(404,),
        ),
        Operation(
            "POST",
            answers,
            api.answer,
            "Answer messages of a delivery",
            api_types.Settled,
            200,
            api_types.AnswerRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "GET", "/api/v1/log", api.log, "Entries of the event log", api_types.LogPage, parameters=(*_LOG, _PAGING[1])
        ),
        Operation(
            "GET",
            "/api/v1/log/stream",
            api.stream,
            "The event log as a live stream",
            None,
            parameters=_LOG,
            answers=("text/event-stream",),
        ),
    ]


def _verb(api: Api, verb: Verb, queue: str) -> Operation:
    """The operation of a verb, as it is declared."""
    request = api_types.request_of(verb)
    return Operation(
        "POST",
        f"{queue}/{verb.name.replace('_', '-')}",
        api.verb(verb, request),
        " ".join(verb.help.split()),
        api_types.Settled if verb.counts else api_types.QueueAnswer,
        200,
        request,
        role=Role.OPERATOR,
        problems=(404, 409),
        optional=not any(parameter.required for parameter in verb.parameters),
    )
