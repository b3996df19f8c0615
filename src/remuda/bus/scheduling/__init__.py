"""Periodic messages (B19): cron texts, intervals, and the chain of runs that each schedule is."""
