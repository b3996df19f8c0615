"""Workers that run handlers in processes of their own, so that a crash costs one attempt of one message."""
