"""Who may come in, what is hidden from whom, and where the server may connect to."""
