"""Workers that run handlers in separate processes, so that a crash costs one message one attempt."""
