"""A broker for others: HTTP for programs, the dashboard for people."""
