"""One behaviour suite for every broker, written against the port alone. A backend supplies the `backend` fixture."""
