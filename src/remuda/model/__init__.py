"""What messages, states, topics, options and records are: frozen values with no behaviour beyond their own rules."""
