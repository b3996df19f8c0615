"""The rules of queues, without I/O, threads or clock: commands and `now` go in, effects come out."""
