"""Messages on the wire, published with confirms, at once or after a delay."""
