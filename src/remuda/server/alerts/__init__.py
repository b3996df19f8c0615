"""Alarms by rule: what is wrong with queues, on the dashboard and told to people."""
