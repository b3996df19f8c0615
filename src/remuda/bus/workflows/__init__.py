"""Work of several messages: durable functions, chains and groups (G1–G4), whose steps are notes on a message."""
