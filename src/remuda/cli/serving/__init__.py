"""Commands that run until they are stopped: handlers, workers, relays and servers."""
