"""The HTTP API and the dashboard: one Starlette application over one bus."""
