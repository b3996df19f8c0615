"""Execution: pools of workers for threads, coroutines and processes, timeouts, retries and settling."""
