"""The table of the API: every operation with its path, its types and its parameters."""

from __future__ import annotations

from typing import Any, Final

from remuda.model.state import State
from remuda.server.http import schemas
from remuda.server.http.api import STATE_NAMES, Api
from remuda.server.http.operations import JSON, NDJSON, Operation, Parameter
from remuda.server.http.search import MAX_PAGE
from remuda.server.http.users import Role

_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": (1 << 62)}
_NAMED: Final = f"({'|'.join(STATE_NAMES)})"
_STATES: Final = {"type": "string", "pattern": f"^([{''.join(State)}]+|{_NAMED}(,{_NAMED})*)$"}

_FILTERS: Final = (
    Parameter("queue", "Only this queue."),
    Parameter("topic", "A topic prefix: fruit finds fruit.sour, not fruits.x."),
    Parameter("state", "States by letters, such as EIN, or by names, such as dead,invalid.", _STATES),
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
    choice_, settled = schemas.Choice, schemas.Settled
    delivery = "/api/v1/deliveries/{token}"
    answers = "/api/v1/deliveries/{token}/{answer:answer}"
    return [
        Operation(
            "POST",
            "/api/v1/messages",
            api.publish,
            "Publish one message, a list, or NDJSON",
            schemas.Published,
            201,
            schemas.NewMessage | list[schemas.NewMessage],
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
            schemas.MessagePage,
            parameters=(*_FILTERS, *_PAGING),
            problems=(404,),
        ),
        Operation(
            "POST",
            "/api/v1/messages/{id:path}/resend",
            api.resend,
            "Publish a message again, edited",
            schemas.Resent,
            200,
            schemas.ResendRequest,
            role=operator,
            problems=(404, 409, 413),
            optional=True,
        ),
        Operation(
            "GET",
            "/api/v1/messages/{id:path}",
            api.message,
            "One message's whole life",
            schemas.LifeAnswer,
            problems=(404,),
        ),
        Operation(
            "GET",
            "/api/v1/queues",
            api.queues,
            "All queues by name",
            schemas.QueuePage,
            parameters=(Parameter("prefix", "Only names that begin with this."), *_PAGING),
        ),
        Operation(
            "GET",
            f"{queue}/changes",
            api.changes,
            "What operators did to the queue, newest first: status, options, forgotten messages",
            schemas.Changes,
            problems=(404,),
            parameters=_PAGING[1:],
        ),
        Operation(
            "GET", f"{queue}/dead", api.dead, "Dead letters by exception and place", schemas.Groups, problems=(404,)
        ),
        Operation(
            "POST",
            f"{queue}/pull",
            api.pull,
            "Take messages; answer them with the token of their delivery",
            schemas.Pulled,
            200,
            schemas.PullRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "POST",
            f"{queue}/pause",
            api.pause,
            "Stop delivering a queue's messages; with refuse, also refuse publishers",
            schemas.QueueAnswer,
            200,
            schemas.PauseRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "POST",
            f"{queue}/resume",
            api.resume,
            "Resume a queue",
            schemas.QueueAnswer,
            role=operator,
            problems=(404, 409),
        ),
        Operation(
            "POST",
            f"{queue}/clear",
            api.clear,
            "End all waiting messages, or those that match",
            settled,
            200,
            schemas.ClearRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "POST",
            f"{queue}/reprocess",
            api.reprocess,
            "Send dead letters, and messages that wait for a retry, back to the queue",
            settled,
            200,
            schemas.ReprocessRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "POST",
            f"{queue}/forget",
            api.forget,
            "Delete dead letters for good",
            settled,
            200,
            choice_,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "POST",
            f"{queue}/move",
            api.move,
            "Move messages to another queue",
            settled,
            200,
            schemas.MoveRequest,
            role=operator,
            problems=(404, 409),
        ),
        Operation("GET", queue, api.queue, "One queue", schemas.QueueAnswer, problems=(404,)),
        Operation(
            "PUT",
            queue,
            api.create,
            "Create a queue with these options",
            schemas.QueueAnswer,
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
            schemas.QueueAnswer,
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
            schemas.Renewed,
            role=operator,
            problems=(404,),
        ),
        Operation(
            "POST",
            answers,
            api.answer,
            "Answer messages of a delivery",
            settled,
            200,
            schemas.AnswerRequest,
            role=operator,
            problems=(404, 409),
            optional=True,
        ),
        Operation(
            "GET", "/api/v1/log", api.log, "Entries of the event log", schemas.LogPage, parameters=(*_LOG, _PAGING[1])
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
