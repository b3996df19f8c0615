"""Pipelines: pure functions DataFrame → DataFrame, and the jobs that run them over a log and a lake."""
