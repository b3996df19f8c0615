"""Messages, states, topics, options and records: frozen values with no behaviour beyond their own rules."""
