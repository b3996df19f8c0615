"""Durable functions and fan-in, beside DBOS and Celery."""
