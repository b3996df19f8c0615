"""The event log on a RabbitMQ stream, which many processes write and read.

A stream holds *entries*, which the broker numbers 0, 1, 2, … as they arrive. A writer puts many records into one entry,
so that a message costs the broker a fraction of an entry. Only the broker knows an entry's number before it is read,
and that number determines those of its rows:

    offset of a message  = entry × 65,536 + its row among the messages of the entry
    position of an event = entry × 65,536 + its row among the events of the entry

Numbers are assigned once, by the stream's one order for all writers, and never change. They grow, but jump from one
entry to the next.

The writer of an event cannot know its message's offset. It writes a *reference* instead, which every process can derive
from the message's id (`numbers.reference`); the reader replaces it with the offset (`references.py`). A message is
appended before anything happens to it, so its entry precedes those of its events, and a reader that follows the stream
has seen it. One that begins in the middle looks it up: near the time that a snowflake tells, or else backwards.
"""
