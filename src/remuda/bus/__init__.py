"""The bus: what applications use. Publish, send, call; handlers with retries, timeouts, failover and callbacks."""
