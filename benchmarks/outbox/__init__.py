"""The outbox beside raw SQL, procrastinate and pgqueuer, on one private PostgreSQL with fsync on."""
