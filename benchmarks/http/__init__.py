"""The HTTP API and the dashboard, measured over a socket from outside their process."""
