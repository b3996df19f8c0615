"""Periodic messages (B19): cron expressions, intervals, and each schedule's chain of runs."""
